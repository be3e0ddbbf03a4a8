//! Staging of large data for the device. The host writes into mapped blocks, and commands copy them
//! to their targets, in queue order.
//!
//! **Invariant:** a block is rewritten only when the submission that copies it is done. All blocks
//! together stay within [`STAGING_BYTES_MAX`], unless a single one exceeds it.

use moeflux::provider::error::Result;

use crate::device::Gpu;
use crate::device::mapping::Mapping;
use crate::device::recorder::Recorder;

/// Upper bound on the bytes of blocks: enough to overlap writing and copying.
pub(crate) const STAGING_BYTES_MAX: u64 = 64 << 20;

/// Written by the host, copied by the device.
const STAGING: wgpu::BufferUsages =
    wgpu::BufferUsages::MAP_WRITE.union(wgpu::BufferUsages::COPY_SRC);

/// Target of recorded copies.
#[derive(Debug)]
pub(crate) struct Flow<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) recorder: &'a mut Recorder,
    /// Number of the submission being recorded.
    pub(crate) submission: u64,
}

/// A range of a buffer, and its new contents: pieces of bytes with their offsets in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filling<'a> {
    pub(crate) buffer: &'a wgpu::Buffer,
    pub(crate) begin: u64,
    pub(crate) n_bytes: u64,
    pub(crate) pieces: &'a [(usize, &'a [u8])],
}

#[derive(Debug)]
enum Phase {
    /// The host may write.
    Mapped,
    /// Copies were recorded for this submission.
    Recorded(u64),
    /// Copies were submitted; the mapping completes when they are done.
    Mapping(Mapping),
}

#[derive(Debug)]
struct Block {
    buffer: wgpu::Buffer,
    phase: Phase,
}

/// All blocks.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    blocks: Vec<Block>,
}

impl Staging {
    /// Fills a range by a command. Returns `false` if the recorded commands must be submitted
    /// first.
    ///
    /// # Errors
    ///
    /// [`moeflux::Error::NoRoom`] if no block can be allocated; [`moeflux::Error::Device`] if the
    /// driver reports a failure.
    pub(crate) fn fill(&mut self, flow: &mut Flow<'_>, filling: &Filling<'_>) -> Result<bool> {
        let Some(block_idx) = self.block(flow.gpu, flow.submission, filling.n_bytes)? else {
            return Ok(false);
        };
        let Block { buffer, phase } = &mut self.blocks[block_idx];
        let view = buffer.get_mapped_range_mut(..filling.n_bytes);
        let mut view = view.map_err(|e| flow.gpu.error(&format!("staging failed: {e}")))?;
        for &(at, bytes) in filling.pieces {
            view.slice(at..at + bytes.len()).copy_from_slice(bytes);
        }
        drop(view);
        buffer.unmap();
        *phase = Phase::Recorded(flow.submission);
        let Filling { buffer: target, begin, n_bytes, .. } = *filling;
        flow.recorder.encoder().copy_buffer_to_buffer(buffer, 0, target, begin, n_bytes);
        Ok(true)
    }

    /// Returns a writable block; waits for the device if all are in flight.
    fn block(&mut self, gpu: &Gpu, submission: u64, n_bytes: u64) -> Result<Option<usize>> {
        loop {
            self.advance(gpu, submission)?;
            let fits =
                |it: &Block| matches!(it.phase, Phase::Mapped) && it.buffer.size() >= n_bytes;
            if let Some(found) = self.blocks.iter().position(fits) {
                return Ok(Some(found));
            }
            // The remaining ones are too small.
            let used_bytes =
                |blocks: &[Block]| -> u64 { blocks.iter().map(|it| it.buffer.size()).sum() };
            if used_bytes(&self.blocks) + n_bytes > STAGING_BYTES_MAX {
                self.blocks.retain(|it| !matches!(it.phase, Phase::Mapped));
            }
            if self.blocks.is_empty() || used_bytes(&self.blocks) + n_bytes <= STAGING_BYTES_MAX {
                let buffer = gpu.buffer("memory for copies", n_bytes, STAGING)?;
                self.blocks.push(Block { buffer, phase: Phase::Mapped });
            } else if self.blocks.iter().all(|it| matches!(it.phase, Phase::Recorded(_))) {
                return Ok(None);
            } else {
                std::thread::yield_now();
                gpu.poll()?;
            }
        }
    }

    /// Requests the mapping of submitted blocks, and marks completed ones as writable.
    fn advance(&mut self, gpu: &Gpu, submission: u64) -> Result<()> {
        for Block { buffer, phase } in &mut self.blocks {
            match phase {
                Phase::Recorded(at) if *at < submission => {
                    *phase = Phase::Mapping(Mapping::begin(buffer, wgpu::MapMode::Write));
                }
                Phase::Mapping(mapping) if mapping.is_done(gpu)? => *phase = Phase::Mapped,
                Phase::Mapped | Phase::Recorded(_) | Phase::Mapping(_) => {}
            }
        }
        Ok(())
    }
}
