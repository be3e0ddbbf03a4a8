//! Staging of large data for the device. The host writes into mapped blocks, and commands copy them
//! to their targets, in queue order.
//!
//! **Invariant:** a block is rewritten only when the submission that copies it is done. All blocks
//! together stay within [`STAGING_BYTES_MAX`], unless a single one exceeds it.

use moeflux::provider::error::Result;

use crate::device::Gpu;
use crate::device::mapping::Mapping;
use crate::device::recorder::CommandRecorder;

/// Upper bound on the bytes of blocks: enough to overlap writing and copying.
pub(crate) const STAGING_BYTES_MAX: u64 = 64 << 20;

/// Written by the host, copied by the device.
const STAGING: wgpu::BufferUsages =
    wgpu::BufferUsages::MAP_WRITE.union(wgpu::BufferUsages::COPY_SRC);

/// A copy to a range of a buffer: the new contents, as chunks of bytes with their offsets in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StagedCopy<'a> {
    pub(crate) buffer: &'a wgpu::Buffer,
    pub(crate) begin: u64,
    pub(crate) n_bytes: u64,
    pub(crate) chunks: &'a [(usize, &'a [u8])],
}

/// The present use of a block.
#[derive(Debug)]
enum StagingPhase {
    /// The host may write.
    Mapped,
    /// Copies were recorded for this submission.
    Recorded(u64),
    /// Copies were submitted; the mapping completes when they are done.
    Mapping(Mapping),
}

/// A block of memory that the host writes and the device copies.
#[derive(Debug)]
struct StagingBlock {
    buffer: wgpu::Buffer,
    phase: StagingPhase,
}

/// All blocks.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    blocks: Vec<StagingBlock>,
}

impl Staging {
    /// Fills a range by a command. Returns `false` if the recorded commands must be submitted
    /// first.
    ///
    /// # Errors
    ///
    /// [`moeflux::Error::NoRoom`] if no block can be allocated; [`moeflux::Error::Device`] if the
    /// driver reports a failure.
    pub(crate) fn fill(
        &mut self,
        recorder: &mut CommandRecorder,
        copy: &StagedCopy<'_>,
    ) -> Result<bool> {
        let Some(block_idx) = self.block(recorder, copy.n_bytes)? else {
            return Ok(false);
        };
        let StagingBlock { buffer, phase } = &mut self.blocks[block_idx];
        let view = buffer.get_mapped_range_mut(..copy.n_bytes);
        let mut view = view.map_err(|e| recorder.gpu().error(&format!("staging failed: {e}")))?;
        for &(at, bytes) in copy.chunks {
            view.slice(at..at + bytes.len()).copy_from_slice(bytes);
        }
        drop(view);
        buffer.unmap();
        *phase = StagingPhase::Recorded(recorder.submission());
        let StagedCopy { buffer: target, begin, n_bytes, .. } = *copy;
        recorder.encoder().copy_buffer_to_buffer(buffer, 0, target, begin, n_bytes);
        Ok(true)
    }

    /// Returns a writable block; waits for the device if all are in flight.
    fn block(&mut self, recorder: &CommandRecorder, n_bytes: u64) -> Result<Option<usize>> {
        let gpu = recorder.gpu();
        loop {
            self.advance(gpu, recorder.submission())?;
            let fits = |it: &StagingBlock| {
                matches!(it.phase, StagingPhase::Mapped) && it.buffer.size() >= n_bytes
            };
            if let Some(found) = self.blocks.iter().position(fits) {
                return Ok(Some(found));
            }
            // The remaining ones are too small.
            let used_bytes =
                |blocks: &[StagingBlock]| -> u64 { blocks.iter().map(|it| it.buffer.size()).sum() };
            if used_bytes(&self.blocks) + n_bytes > STAGING_BYTES_MAX {
                self.blocks.retain(|it| !matches!(it.phase, StagingPhase::Mapped));
            }
            if self.blocks.is_empty() || used_bytes(&self.blocks) + n_bytes <= STAGING_BYTES_MAX {
                let buffer = gpu.buffer("memory for copies", n_bytes, STAGING)?;
                self.blocks.push(StagingBlock { buffer, phase: StagingPhase::Mapped });
            } else if self.blocks.iter().all(|it| matches!(it.phase, StagingPhase::Recorded(_))) {
                return Ok(None);
            } else {
                std::thread::yield_now();
                gpu.poll()?;
            }
        }
    }

    /// Requests the mapping of submitted blocks, and marks completed ones as writable.
    fn advance(&mut self, gpu: &Gpu, submission: u64) -> Result<()> {
        for StagingBlock { buffer, phase } in &mut self.blocks {
            match phase {
                StagingPhase::Recorded(at) if *at < submission => {
                    *phase = StagingPhase::Mapping(Mapping::begin(buffer, wgpu::MapMode::Write));
                }
                StagingPhase::Mapping(mapping) if mapping.is_done(gpu)? => {
                    *phase = StagingPhase::Mapped;
                }
                StagingPhase::Mapped | StagingPhase::Recorded(_) | StagingPhase::Mapping(_) => {}
            }
        }
        Ok(())
    }
}
