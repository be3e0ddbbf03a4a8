//! Commands that are recorded now and submitted together.
//!
//! **Invariant:** commands run in the order of recording; one compute pass stays open as long as
//! only dispatches follow each other.

use std::sync::Arc;

use moeflux::error::Result;

use crate::device::Gpu;
use crate::profile::Profiler;

/// After so many dispatches the device begins with them, while others are recorded: soon where it
/// has nothing to do, later where each submission costs both sides more than it brings.
const N_DISPATCHES_IDLE: usize = 12;
const N_DISPATCHES_BUSY: usize = 96;

/// The commands since the last submission.
#[derive(Debug)]
pub(crate) struct Recorder {
    gpu: Arc<Gpu>,
    // The pass is dropped before the encoder that it belongs to.
    pass: Option<wgpu::ComputePass<'static>>,
    encoder: Option<wgpu::CommandEncoder>,
    n_dispatches: usize,
    /// Whether nothing was submitted since the device was last waited for.
    is_idle: bool,
    profiler: Option<Profiler>,
}

impl Recorder {
    pub(crate) fn new(gpu: Arc<Gpu>) -> Result<Self> {
        let profiler = if gpu.is_profiled() { Some(Profiler::new(&gpu)?) } else { None };
        Ok(Self { gpu, pass: None, encoder: None, n_dispatches: 0, is_idle: true, profiler })
    }

    /// The pass for one more dispatch.
    pub(crate) fn pass(&mut self) -> &mut wgpu::ComputePass<'static> {
        self.n_dispatches += 1;
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

    /// A dispatch of this kernel was recorded.
    pub(crate) fn note(&mut self, name: &'static str) {
        if let (Some(profiler), Some(pass)) = (&mut self.profiler, &mut self.pass) {
            profiler.note(pass, name);
        }
    }

    /// The encoder, for copies between dispatches.
    pub(crate) fn encoder(&mut self) -> &mut wgpu::CommandEncoder {
        self.pass = None;
        self.encoder.get_or_insert_with(|| encoder(&self.gpu))
    }

    /// Whether enough is recorded to be worth a submission.
    pub(crate) fn is_full(&self) -> bool {
        let n_enough = if self.is_idle { N_DISPATCHES_IDLE } else { N_DISPATCHES_BUSY };
        self.n_dispatches >= n_enough
    }

    /// Hands what is recorded to the device, if there is something.
    pub(crate) fn submit(&mut self) -> Option<wgpu::SubmissionIndex> {
        self.pass = None;
        self.n_dispatches = 0;
        let mut encoder = self.encoder.take()?;
        self.is_idle = false;
        let profiler = self.profiler.as_mut().filter(|it| !it.is_empty());
        let Some(profiler) = profiler else {
            return Some(self.gpu.queue().submit([encoder.finish()]));
        };
        profiler.end(&mut encoder);
        let index = self.gpu.queue().submit([encoder.finish()]);
        // A device that fails is found out by the next check.
        profiler.collect(&self.gpu, index.clone()).ok();
        Some(index)
    }
}

fn encoder(gpu: &Gpu) -> wgpu::CommandEncoder {
    gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
}

/// Memory through which values come back.
#[derive(Debug)]
pub(crate) struct ReadBack {
    buffer: wgpu::Buffer,
}

impl ReadBack {
    pub(crate) fn new(gpu: &Gpu) -> Result<Self> {
        Ok(Self { buffer: made(gpu, 1 << 16)? })
    }

    /// Copies stretches of buffers, one behind the other, as they are after all that was recorded:
    /// so many bytes from a place on.
    pub(crate) fn read(
        &mut self,
        (gpu, recorder): (&Gpu, &mut Recorder),
        sources: &[(&wgpu::Buffer, u64, u64)],
        target: &mut [u8],
    ) -> Result<()> {
        if target.is_empty() {
            return Ok(());
        }
        let n_bytes = target.len() as u64;
        if n_bytes > self.buffer.size() {
            self.buffer = made(gpu, n_bytes.next_power_of_two())?;
        }
        let encoder = recorder.encoder();
        let mut at = 0;
        for &(source, offset_bytes, n_bytes) in sources {
            encoder.copy_buffer_to_buffer(source, offset_bytes, &self.buffer, at, n_bytes);
            at += n_bytes;
        }
        let submission = recorder.submit();
        recorder.is_idle = true;
        gpu.read_mapped(&self.buffer, submission, target)
    }
}

fn made(gpu: &Gpu, n_bytes: u64) -> Result<wgpu::Buffer> {
    let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
    gpu.buffer("values to read back", n_bytes, usage)
}
