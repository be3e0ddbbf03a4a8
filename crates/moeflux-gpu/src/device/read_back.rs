//! Memory through which values come back from the device, and the wait for them.
//!
//! **Invariant:** a copy is behind all that was recorded before it; one is under way at a time.

use std::time::{Duration, Instant};

use moeflux::provider::error::Result;

use crate::adapter::AdapterKind;
use crate::device::Gpu;
use crate::device::mapping::{Mapping, copy_mapped};
use crate::device::recorder::Recorder;

/// A thread that sleeps to the end of a wait wakes some 0.1 ms late: the last part of what a wait
/// usually lasts is spent asking instead, and at most this.
const ASKING_MAX: Duration = Duration::from_micros(300);

/// That part is one of so many; before it the device is asked as often.
const N_PARTS: u32 = 8;

/// A wait that is usually shorter, as that for a choice is, is spent asking as a whole.
const SHORT: Duration = Duration::from_millis(2);

/// Memory through which values come back.
#[derive(Debug)]
pub(crate) struct ReadBack {
    buffer: wgpu::Buffer,
    /// How long the last wait was.
    usual: Duration,
}

/// So many bytes of a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch<'a> {
    pub(crate) source: &'a wgpu::Buffer,
    pub(crate) offset_bytes: u64,
    pub(crate) n_bytes: u64,
}

impl ReadBack {
    pub(crate) fn new(gpu: &Gpu) -> Result<Self> {
        Ok(Self { buffer: made(gpu, 1 << 16)?, usual: Duration::ZERO })
    }

    /// Begins to copy stretches of buffers, one behind the other, as they are after all that was
    /// recorded.
    pub(crate) fn begin(
        &mut self,
        (gpu, recorder): (&Gpu, &mut Recorder),
        stretches: &[Stretch<'_>],
    ) -> Result<Option<wgpu::SubmissionIndex>> {
        let n_bytes = stretches.iter().map(|it| it.n_bytes).sum::<u64>();
        if n_bytes > self.buffer.size() {
            self.buffer = made(gpu, n_bytes.next_power_of_two())?;
        }
        let encoder = recorder.encoder();
        let mut at = 0;
        for &Stretch { source, offset_bytes, n_bytes } in stretches {
            encoder.copy_buffer_to_buffer(source, offset_bytes, &self.buffer, at, n_bytes);
            at += n_bytes;
        }
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
        // A software driver needs the time itself.
        let asks = gpu.facts().kind != AdapterKind::Software;
        let part = self.usual / N_PARTS;
        let asking = part.min(ASKING_MAX);
        let asleep = if self.usual > SHORT { self.usual - asking } else { Duration::ZERO };
        while !mapping.is_done(gpu)? {
            // Another thread that waits for the same device may be the one that hears of it. No
            // wait has an end in time: wgpu 30 panics where one ends while another thread waits.
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
