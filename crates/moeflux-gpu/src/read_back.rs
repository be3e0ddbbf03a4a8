//! Memory through which values come back from the device, and the wait for them.
//!
//! **Invariant:** a copy is behind all that was recorded before it; one is under way at a time.

use std::time::{Duration, Instant};

use moeflux::error::Result;

use crate::device::Gpu;
use crate::mapping::Mapping;
use crate::recorder::Recorder;

/// A thread that sleeps to the end of a wait wakes some 0.1 ms late: the last part of what a wait
/// usually lasts is spent asking instead, and at most this.
const ASKING_MAX: Duration = Duration::from_micros(300);

/// That part is one of so many; before it the device is asked as often.
const N_PARTS: u32 = 8;

/// Memory through which values come back.
#[derive(Debug)]
pub(crate) struct ReadBack {
    buffer: wgpu::Buffer,
    /// How long the last wait was.
    usual: Duration,
}

impl ReadBack {
    pub(crate) fn new(gpu: &Gpu) -> Result<Self> {
        Ok(Self { buffer: made(gpu, 1 << 16)?, usual: Duration::ZERO })
    }

    /// Begins to copy a stretch of a buffer, as it is after all that was recorded.
    pub(crate) fn begin(
        &mut self,
        (gpu, recorder): (&Gpu, &mut Recorder),
        (source, offset_bytes): (&wgpu::Buffer, u64),
        n_bytes: u64,
    ) -> Result<Option<wgpu::SubmissionIndex>> {
        if n_bytes > self.buffer.size() {
            self.buffer = made(gpu, n_bytes.next_power_of_two())?;
        }
        let encoder = recorder.encoder();
        encoder.copy_buffer_to_buffer(source, offset_bytes, &self.buffer, 0, n_bytes);
        let submission = recorder.submit();
        recorder.device_is_waited_for();
        Ok(submission)
    }

    /// What that submission copies, once it is done.
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
        let part = self.usual / N_PARTS;
        let asking = part.min(ASKING_MAX);
        while !mapping.is_done(gpu)? {
            // Another thread that waits for the same device may be the one that hears of it. No
            // wait has an end in time: wgpu 30 panics where one ends while another thread waits.
            let waited = begin.elapsed();
            if waited > self.usual + asking {
                gpu.wait_for(submission.clone())?;
                continue;
            }
            let rest = self.usual.saturating_sub(waited + asking);
            if !rest.is_zero() {
                mapping.sleep(rest.min(part));
            }
            gpu.poll()?;
        }
        self.usual = begin.elapsed();
        copy_mapped(gpu, &self.buffer, target)
    }
}

/// Copies the first bytes of a buffer that is mapped, and unmaps it.
pub(crate) fn copy_mapped(gpu: &Gpu, buffer: &wgpu::Buffer, target: &mut [u8]) -> Result<()> {
    let view = buffer.get_mapped_range(..target.len() as u64);
    let view = view.map_err(|e| gpu.error(&format!("reading back failed: {e}")))?;
    target.copy_from_slice(&view);
    drop(view);
    buffer.unmap();
    Ok(())
}

fn made(gpu: &Gpu, n_bytes: u64) -> Result<wgpu::Buffer> {
    let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
    gpu.buffer("values to read back", n_bytes, usage)
}
