//! The way of much memory to the device: the host writes into blocks that the device sees, and
//! commands copy those to where the bytes belong, in the order of the queue.
//!
//! **Invariant:** a block is written again only when the submission that copies it is done; all
//! blocks together take no more than they were given, if one alone does not.

use moeflux::provider::error::Result;

use crate::device::Gpu;
use crate::device::mapping::Mapping;
use crate::device::recorder::Recorder;

/// Bytes of blocks at most: enough that writing and copying go on side by side.
pub(crate) const STAGING_BYTES_MAX: u64 = 64 << 20;

/// Written by the host, copied by the device.
const STAGING: wgpu::BufferUsages =
    wgpu::BufferUsages::MAP_WRITE.union(wgpu::BufferUsages::COPY_SRC);

/// What copies are recorded into.
#[derive(Debug)]
pub(crate) struct Flow<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) recorder: &'a mut Recorder,
    /// Number of the submission that is being recorded.
    pub(crate) submission: u64,
}

/// A stretch of a buffer, and what it shall hold: pieces of bytes, and where in it each begins.
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
    /// They were submitted; the answer comes when they are done.
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
    /// Fills a stretch by a command. `false` if what was recorded must be submitted first.
    ///
    /// # Errors
    ///
    /// [`moeflux::Error::NoRoom`], [`moeflux::Error::Device`].
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

    /// A block that can be written; waits for the device where all are on their way.
    fn block(&mut self, gpu: &Gpu, submission: u64, n_bytes: u64) -> Result<Option<usize>> {
        loop {
            self.advance(gpu, submission)?;
            let fits =
                |it: &Block| matches!(it.phase, Phase::Mapped) && it.buffer.size() >= n_bytes;
            if let Some(found) = self.blocks.iter().position(fits) {
                return Ok(Some(found));
            }
            // Those that are left are too small.
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

    /// Asks for blocks that were submitted, and takes those that are done.
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
