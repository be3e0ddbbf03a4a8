//! Records commands and submits them together.
//!
//! **Invariant:** commands run in the order of recording; one compute pass stays open across
//! consecutive dispatches.

use std::sync::Arc;

use moeflux::provider::error::Result;

use crate::device::Gpu;
use crate::device::profile::Profiler;

/// Recorded dispatches that trigger a submission: few if the device is idle, more if it is busy,
/// when each submission costs both sides more than it gains.
const N_DISPATCHES_IDLE: usize = 12;
const N_DISPATCHES_BUSY: usize = 96;

/// The commands since the last submission.
#[derive(Debug)]
pub(crate) struct CommandRecorder {
    gpu: Arc<Gpu>,
    // Declared first: the pass must be dropped before its encoder.
    pass: Option<wgpu::ComputePass<'static>>,
    encoder: Option<wgpu::CommandEncoder>,
    n_dispatches: usize,
    n_dispatches_of_all: u64,
    /// Number of the submission being recorded, counted from 1.
    submission: u64,
    /// Whether nothing was submitted since the last wait for the device.
    is_idle: bool,
    profiler: Option<Profiler>,
}

impl CommandRecorder {
    pub(crate) fn new(gpu: Arc<Gpu>) -> Result<Self> {
        let profiler = if gpu.is_profiled() { Some(Profiler::new(&gpu)?) } else { None };
        Ok(Self {
            gpu,
            pass: None,
            encoder: None,
            n_dispatches: 0,
            n_dispatches_of_all: 0,
            submission: 1,
            is_idle: true,
            profiler,
        })
    }

    /// Returns the device.
    pub(crate) const fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Returns the number of the submission being recorded.
    pub(crate) const fn submission(&self) -> u64 {
        self.submission
    }

    /// Returns the pass for one more dispatch.
    pub(crate) fn pass(&mut self) -> &mut wgpu::ComputePass<'static> {
        self.n_dispatches += 1;
        self.n_dispatches_of_all += 1;
        let encoder = self.encoder.get_or_insert_with(|| encoder(&self.gpu));
        self.pass.get_or_insert_with(|| {
            let descriptor = wgpu::ComputePassDescriptor::default();
            let mut pass = encoder.begin_compute_pass(&descriptor).forget_lifetime();
            if let Some(profiler) = &self.profiler {
                profiler.begin(&mut pass);
            }
            pass
        })
    }

    /// Returns the number of dispatches recorded so far.
    pub(crate) const fn n_dispatches(&self) -> u64 {
        self.n_dispatches_of_all
    }

    /// Notes a recorded dispatch of this kernel.
    pub(crate) fn note(&mut self, name: &'static str) {
        if let (Some(profiler), Some(pass)) = (&mut self.profiler, &mut self.pass) {
            profiler.note(pass, name);
        }
    }

    /// Returns the encoder, for copies between dispatches.
    pub(crate) fn encoder(&mut self) -> &mut wgpu::CommandEncoder {
        self.pass = None;
        self.encoder.get_or_insert_with(|| encoder(&self.gpu))
    }

    /// Returns whether enough is recorded to be worth a submission.
    pub(crate) fn is_full(&self) -> bool {
        let n_enough = if self.is_idle { N_DISPATCHES_IDLE } else { N_DISPATCHES_BUSY };
        self.n_dispatches >= n_enough
    }

    /// Submits the recorded commands, if there are any.
    pub(crate) fn submit(&mut self) -> Option<wgpu::SubmissionIndex> {
        self.submission += 1;
        let mut encoder = self.take()?;
        let profiler = self.profiler.as_mut().filter(|it| !it.is_empty());
        let Some(profiler) = profiler else {
            return Some(self.gpu.queue().submit([encoder.finish()]));
        };
        profiler.end(&mut encoder);
        let index = self.gpu.queue().submit([encoder.finish()]);
        // The next check reports a device failure.
        profiler.collect(&self.gpu, index.clone()).ok();
        Some(index)
    }

    /// Returns the recorded commands for a later submission: see
    /// [`CommandRecorder::submit_recorded`].
    pub(crate) fn finish(&mut self) -> Option<wgpu::CommandBuffer> {
        self.take().map(wgpu::CommandEncoder::finish)
    }

    /// Notes that the device will be idle when the next commands are recorded.
    pub(crate) const fn device_is_waited_for(&mut self) {
        self.is_idle = true;
    }

    /// Submits commands of another recorder.
    pub(crate) fn submit_recorded(&mut self, commands: wgpu::CommandBuffer) {
        assert!(self.encoder.is_none(), "earlier commands were submitted");
        self.is_idle = false;
        self.submission += 1;
        self.gpu.queue().submit([commands]);
    }

    fn take(&mut self) -> Option<wgpu::CommandEncoder> {
        self.pass = None;
        self.n_dispatches = 0;
        let encoder = self.encoder.take()?;
        self.is_idle = false;
        Some(encoder)
    }
}

fn encoder(gpu: &Gpu) -> wgpu::CommandEncoder {
    gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
}
