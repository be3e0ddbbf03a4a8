//! A routing trace: a file of the experts that each row chose, step by step and layer by layer.
//!
//! It consists of a header, blocks and an end mark, all little endian. A block is one layer of one
//! step: kind, layer, number of rows, the experts of each row in ascending order, and a checksum
//! that also covers the block's number, so that a lost, duplicated or moved block is detected.
//! **Invariant:** a file is read whole and valid, or refused with the location of the fault. This
//! module knows shapes and indices, never weights or tokens.

mod read;
mod write;

use twox_hash::XxHash3_64;

use crate::ids::LayerIdx;

pub use write::TraceWriter;

/// First bytes of the file.
const MAGIC: [u8; 8] = *b"MOETRACE";

/// Version of the format that is written and read.
const VERSION: u32 = 1;

/// More layers than any model has.
pub(crate) const N_LAYERS_MAX: usize = 4096;

/// Upper bound that follows from writing an expert's index in two bytes.
pub(crate) const N_EXPERTS_MAX: usize = 1 << 16;

/// Upper bound on the experts of all layers: forty times those of the largest model. Replaying a
/// trace allocates tables of this size; without the bound a few kB of header could claim a hundred
/// million.
pub(crate) const N_ALL_EXPERTS_MAX: usize = 1 << 20;

/// More experts per token than any model has.
pub(crate) const TOP_K_MAX: usize = 1024;

/// Upper bound on the rows of a step, as in the engine.
pub const N_ROWS_MAX: usize = 1 << 16;

/// Size of about a quarter of a million tokens of a model with 600 experts per token.
pub(crate) const FILE_BYTES_MAX: u64 = 512 << 20;

/// Shape of the experts of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerShape {
    /// Routed experts; none in a dense layer.
    pub n_experts: usize,
    /// Experts that each row chooses.
    pub top_k: usize,
    /// Stored bytes of an expert.
    pub record_bytes: u64,
}

/// The model whose routes a trace holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceHeader {
    /// Identifies the model's weights.
    pub fingerprint: u64,
    /// All layers of the model, dense ones too.
    pub layers: Vec<LayerShape>,
}

impl TraceHeader {
    /// Returns the number of routed experts of all layers.
    #[must_use]
    pub fn n_experts(&self) -> usize {
        self.layers.iter().map(|layer| layer.n_experts).sum()
    }

    /// Returns the number of experts that a token uses, over all layers.
    #[must_use]
    pub fn n_uses_per_row(&self) -> usize {
        self.layers.iter().map(|layer| layer.top_k).sum()
    }

    /// Returns the bytes of a slot: the largest record.
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.record_bytes).max().unwrap_or(0)
    }

    fn first_layer(&self) -> Option<LayerIdx> {
        self.next_layer(LayerIdx(0))
    }

    /// Returns the first layer with experts at or after `from`.
    fn next_layer(&self, from: LayerIdx) -> Option<LayerIdx> {
        let found = self.layers.iter().skip(from.0).position(|layer| layer.n_experts > 0);
        found.map(|skipped| LayerIdx(from.0 + skipped))
    }
}

/// Purpose of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// Processes a chunk of a prompt.
    Prefill,
    /// Continues each row's session by one token.
    Decode,
}

/// An expert that a layer used in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceUse {
    /// Its index in the layer.
    pub expert: u32,
    /// Rows that chose it.
    pub n_uses: u32,
}

/// The experts that one layer used in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceBlock<'a> {
    /// Purpose of the step.
    pub kind: StepKind,
    /// Rows of the step.
    pub n_rows: usize,
    /// The layer.
    pub layer: LayerIdx,
    /// Ascending by expert, each once.
    pub uses: &'a [TraceUse],
}

/// A trace in memory: per step and layer, the union of the experts of its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    header: TraceHeader,
    blocks: Vec<BlockHead>,
    uses: Vec<TraceUse>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockHead {
    kind: StepKind,
    n_rows: usize,
    layer: LayerIdx,
    /// End of its uses, which begin where those of the block before it end.
    uses_end: usize,
}

impl Trace {
    /// Creates a trace without steps, to which blocks are added.
    #[must_use]
    pub fn empty(header: TraceHeader) -> Self {
        Self { header, blocks: Vec::new(), uses: Vec::new() }
    }

    /// Adds one layer of a step.
    ///
    /// # Panics
    ///
    /// If the experts do not ascend or the layer does not have them.
    pub fn push(&mut self, block: TraceBlock<'_>) {
        let TraceBlock { kind, n_rows, layer, uses } = block;
        let n_experts = self.header.layers[layer.0].n_experts;
        assert!(uses.is_sorted_by(|a, b| a.expert < b.expert), "experts ascend, each once");
        assert!(uses.iter().all(|it| (it.expert as usize) < n_experts), "experts of the layer");
        self.uses.extend_from_slice(uses);
        self.blocks.push(BlockHead { kind, n_rows, layer, uses_end: self.uses.len() });
    }

    /// Returns the model whose routes these are.
    #[must_use]
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn n_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Returns all blocks, in the order in which they were computed.
    pub fn blocks(&self) -> impl DoubleEndedIterator<Item = TraceBlock<'_>> {
        (0..self.blocks.len()).map(|block_idx| self.block(block_idx))
    }

    fn block(&self, block_idx: usize) -> TraceBlock<'_> {
        let BlockHead { kind, n_rows, layer, uses_end } = self.blocks[block_idx];
        let uses_start = block_idx.checked_sub(1).map_or(0, |idx| self.blocks[idx].uses_end);
        TraceBlock { kind, n_rows, layer, uses: &self.uses[uses_start..uses_end] }
    }

    /// Returns the total rows of the steps of this kind.
    #[must_use]
    pub fn n_rows(&self, kind: StepKind) -> usize {
        let first_layer = self.header.first_layer();
        let of_kind = |block: &&BlockHead| block.kind == kind && Some(block.layer) == first_layer;
        self.blocks.iter().filter(of_kind).map(|block| block.n_rows).sum()
    }
}

/// Codes of block kinds.
mod code {
    /// A chunk of a prompt.
    pub(super) const PREFILL: u8 = 1;
    /// One token per row.
    pub(super) const DECODE: u8 = 2;
    /// Nothing follows.
    pub(super) const END: u8 = 0xff;
}

/// Returns the checksum of block `block_idx`; the header, which has no number, uses `u64::MAX`.
fn checksum(bytes: &[u8], block_idx: u64) -> [u8; 4] {
    let [a, b, c, d, ..] = XxHash3_64::oneshot_with_seed(block_idx, bytes).to_le_bytes();
    [a, b, c, d]
}

#[cfg(test)]
mod tests;
