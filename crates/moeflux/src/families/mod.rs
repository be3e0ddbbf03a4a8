//! Builds a model's plans from a valid spec and a checkpoint's tensors.
//!
//! The published families share their blocks. They differ in tensor names and in how projections
//! are fused; there the block checks the spec's family.
//! **Invariant:** each tensor of a family is bound here, under its published name; the binder
//! refuses tensors that remain unbound. Nothing here reads a weight.

mod streams;
mod layer_builder;
mod indexer;
mod ngrams;
mod attention;
mod ffn;
mod gated_delta;
mod mla;
mod decoder;
mod shard;

pub(crate) use decoder::build;

use std::ops::Range;

use crate::ids::{BufferId, TableId};
use crate::ops::{Heads, Plan, StateSpec, Workspace};
use crate::rows::NgramHash;

/// A model as plans to run layer by layer.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelPlan {
    /// The activation buffers that all plans share.
    pub workspace: Workspace,
    /// State that each layer keeps for a session.
    pub state: StateSpec,
    /// The buffers that pass from layer to layer: the residual stream, and the positions that an
    /// indexer chose if a layer above it shares them.
    pub carried: Vec<BufferId>,
    /// Maps tokens to the residual stream.
    pub embed: Plan,
    /// The decoder, in order.
    pub layers: Vec<LayerPlan>,
    /// Maps wanted rows of the residual stream to logits.
    pub head: Plan,
    /// Output of `head`.
    pub logits: Heads,
    /// As `head`, followed by a search for the largest logits.
    pub head_and_best: Plan,
    /// Output of that search: see [`crate::ops::TopK`].
    pub best: Heads,
}

impl ModelPlan {
    /// Returns how many tokens before a token affect its rows of tables.
    #[must_use]
    pub fn n_earlier(&self) -> usize {
        let lookups = self.layers.iter().filter_map(|layer| layer.lookup.as_ref());
        lookups.map(|lookup| lookup.hash.n_earlier()).max().unwrap_or(0)
    }

    /// Returns the bytes for the rows of tables of one row of a step: see
    /// [`TableLookup::bytes_per_row`].
    #[must_use]
    pub fn table_bytes_per_row(&self) -> u64 {
        let lookups = self.layers.iter().filter_map(|layer| layer.lookup.as_ref());
        lookups.map(TableLookup::bytes_per_row).max().unwrap_or(0)
    }
}

impl TableLookup {
    /// Lists of the numbers of a step's rows: as needed, asked for, wanted, unread, in jobs.
    const N_LISTS: usize = 6;

    /// Returns an upper bound on the bytes for the rows of one row of a step, beside its workspace:
    /// as stored, as values, and their numbers.
    #[must_use]
    pub fn bytes_per_row(&self) -> u64 {
        let value_bytes = 2 * self.out.end_col() * size_of::<f32>();
        (value_bytes + Self::N_LISTS * self.hash.n_heads() * size_of::<u64>()) as u64
    }
}

/// One decoder layer. In a sparse layer, routing separates `mixer` from the rest.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerPlan {
    /// Rows of a table that `mixer` reads, if there are any.
    pub lookup: Option<TableLookup>,
    /// Norm, mixer, residual; then the dense feed-forward, or the norm and the router.
    pub mixer: Plan,
    /// The plans after the router's choice.
    pub moe: Option<MoePlan>,
}

/// Rows of a table that a layer reads: which, and where they are to be.
#[derive(Clone, Debug, PartialEq)]
pub struct TableLookup {
    /// The table.
    pub table: TableId,
    /// From tokens to rows.
    pub hash: NgramHash,
    /// All columns of a buffer: the rows of a token side by side.
    pub out: Heads,
}

/// The sparse part of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct MoePlan {
    /// The shared expert, computed while routed experts are being read.
    pub shared: Plan,
    /// Routed experts: run for each arrived group.
    pub experts: Plan,
    /// Sum and residual.
    pub combine: Plan,
    /// The whole layer, mixer included, for a device that holds the experts itself.
    pub whole: Plan,
    /// Predicts the router's choice and its runners-up, as if nothing were added to the residual
    /// stream until then. Runs while the experts of the layer before are being read.
    pub guess: Plan,
    /// Present if the rows of every expert are sharded among several machines.
    pub sharded: Option<ShardedExperts>,
}

/// The part of experts that one of several machines computes, and the parts of the others.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardedExperts {
    /// Runs for each arrived group; the inner values are exchanged afterwards.
    pub up: Plan,
    /// Runs for all experts of a chunk; columns of the sum are exchanged after the last chunk.
    pub down: Plan,
    /// Input of the experts.
    pub x: Heads,
    /// Rows of gate and up of whole experts.
    pub n_inner: usize,
    /// The range of these rows on each machine.
    pub inner: Vec<Range<usize>>,
    /// The columns of the sum on each machine.
    pub sums: Vec<Heads>,
}
