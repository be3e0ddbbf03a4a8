//! Buffer for reading values back from the device, and the wait for them.
//!
//! **Invariant:** a copy follows all commands recorded before it; at most one is in flight.

use std::time::{Duration, Instant};

use moeflux::provider::error::Result;

use crate::adapter::AdapterKind;
use crate::device::Gpu;
use crate::device::mapping::{Mapping, copy_mapped};
use crate::device::recorder::CommandRecorder;

/// A sleeping thread wakes some 0.1 ms late. So the last part of the usual wait is spent polling,
/// for at most this time.
const ASKING_MAX: Duration = Duration::from_micros(300);

/// Number of parts of the usual wait. The last one is polled; before it the device is polled once
/// per part.
const N_PARTS: u32 = 8;

/// If the usual wait is shorter, as that for a choice is, all of it is spent polling.
const SHORT: Duration = Duration::from_millis(2);

/// Buffer through which values are read back.
#[derive(Debug)]
pub(crate) struct ReadBackBuffer {
    buffer: wgpu::Buffer,
    /// Duration of the last wait.
    usual: Duration,
}

/// A byte range of a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferRange<'a> {
    pub(crate) source: &'a wgpu::Buffer,
    pub(crate) offset_bytes: u64,
    pub(crate) n_bytes: u64,
}

impl ReadBackBuffer {
    pub(crate) fn new(gpu: &Gpu) -> Result<Self> {
        Ok(Self { buffer: made(gpu, 1 << 16)?, usual: Duration::ZERO })
    }

    /// Starts copying ranges of buffers, one after the other, with the values after all recorded
    /// commands.
    pub(crate) fn begin(
        &mut self,
        recorder: &mut CommandRecorder,
        ranges: &[BufferRange<'_>],
    ) -> Result<Option<wgpu::SubmissionIndex>> {
        let n_bytes = ranges.iter().map(|it| it.n_bytes).sum::<u64>();
        if n_bytes > self.buffer.size() {
            self.buffer = made(recorder.gpu(), n_bytes.next_power_of_two())?;
        }
        let encoder = recorder.encoder();
        let mut at = 0;
        for &BufferRange { source, offset_bytes, n_bytes } in ranges {
            encoder.copy_buffer_to_buffer(source, offset_bytes, &self.buffer, at, n_bytes);
            at += n_bytes;
        }
        let submission = recorder.submit();
        recorder.device_is_waited_for();
        Ok(submission)
    }

    /// Returns the data that the submission copies, once it is done.
    #[expect(
        clippy::disallowed_methods,
        reason = "it waits for a device, whose time is the real one"
    )]
    pub(crate) fn end(
        &mut self,
        gpu: &Gpu,
        submission: Option<wgpu::SubmissionIndex>,
        target: &mut [u8],
    ) -> Result<()> {
        let mapping = Mapping::begin(&self.buffer, wgpu::MapMode::Read);
        let begin = Instant::now();
        // A software driver needs the CPU time itself.
        let asks = gpu.facts().kind != AdapterKind::Software;
        let part = self.usual / N_PARTS;
        let asking = part.min(ASKING_MAX);
        let asleep = if self.usual > SHORT { self.usual - asking } else { Duration::ZERO };
        while !mapping.is_done(gpu)? {
            // Another thread that waits for the same device may receive the answer. No wait has a
            // timeout: wgpu 30 panics if one expires while another thread waits.
            let waited = begin.elapsed();
            if !asks || waited > (self.usual + asking).max(SHORT) {
                gpu.wait_for(submission.clone())?;
                continue;
            }
            if waited < asleep {
                mapping.sleep((asleep - waited).min(part));
            }
            gpu.poll()?;
        }
        self.usual = begin.elapsed();
        copy_mapped(gpu, &self.buffer, target)
    }
}

fn made(gpu: &Gpu, n_bytes: u64) -> Result<wgpu::Buffer> {
    let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
    gpu.buffer("values to read back", n_bytes, usage)
}
