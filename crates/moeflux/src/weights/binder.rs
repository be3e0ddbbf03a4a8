//! A family's wishes, one tensor at a time, become a manifest.
//!
//! **Invariant:** when [`Binder::finish`] succeeds, every tensor of the checkpoint was bound
//! once or skipped by name. A tensor asked for twice is our own mistake, a missing one or one of
//! another shape is the checkpoint's. Knows names and shapes, never bytes.

use std::ops::Range;

use crate::error::Result;
use crate::format::Checkpoint;
use crate::ids::{LayerIdx, MatrixId, VectorId};
use crate::spec::ModelSpec;
use crate::weights::imagined::Imagined;
use crate::weights::manifest::Manifest;

/// Where tensors come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Files.
    Checkpoint(&'a Checkpoint),
    /// A checkpoint in MLX layout that does not exist: has whatever is asked for.
    Imagined(Imagined),
}

/// Sizes of a layer's routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertShape {
    /// How many.
    pub n_experts: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Inner width of one expert.
    pub inner: usize,
}

/// Binds tensors to slots.
#[derive(Debug)]
pub struct Binder<'a> {
    spec: &'a ModelSpec,
    source: Source<'a>,
}

#[expect(unused_variables, clippy::unimplemented, reason = "signatures first")]
impl<'a> Binder<'a> {
    /// Nothing bound yet.
    #[must_use]
    pub fn new(source: Source<'a>, spec: &'a ModelSpec) -> Self {
        Self { spec, source }
    }

    /// Whether there is a tensor of this full canonical name. An imagined checkpoint has what
    /// MLX would have: `embed_q` and `unembed_out`, not `kv_b_proj`.
    #[must_use]
    pub fn has(&self, tensor: &str) -> bool {
        unimplemented!()
    }

    /// Binds a matrix `[n_rows, n_cols]`. `base` is its name without `.weight`.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Tensor`] if it is missing or of another shape or type.
    pub fn matrix(&mut self, base: &str, n_rows: usize, n_cols: usize) -> Result<MatrixId> {
        unimplemented!()
    }

    /// Binds some rows of a matrix `[n_rows, n_cols]`, in the given order. The same tensor may be
    /// asked for again with other rows; in the end every row is used once.
    ///
    /// # Errors
    ///
    /// As [`Binder::matrix`].
    pub fn matrix_rows(
        &mut self,
        base: &str,
        n_rows: usize,
        n_cols: usize,
        rows: Vec<Range<usize>>,
    ) -> Result<MatrixId> {
        unimplemented!()
    }

    /// Binds a tensor `[n_stack, n_rows, n_cols]` as one matrix of `n_stack * n_rows` rows.
    ///
    /// # Errors
    ///
    /// As [`Binder::matrix`].
    pub fn stacked(
        &mut self,
        base: &str,
        n_stack: usize,
        n_rows: usize,
        n_cols: usize,
    ) -> Result<MatrixId> {
        unimplemented!()
    }

    /// Binds `n` values of f32, f16 or bf16, of any shape. `tensor` is the full name.
    ///
    /// # Errors
    ///
    /// As [`Binder::matrix`].
    pub fn vector(&mut self, tensor: &str, n: usize) -> Result<VectorId> {
        unimplemented!()
    }

    /// Binds the gain of a norm; where the family centres them on zero and the checkpoint was not
    /// converted yet, 1 is added when it is loaded.
    ///
    /// # Errors
    ///
    /// As [`Binder::matrix`].
    pub fn norm(&mut self, tensor: &str, n: usize) -> Result<VectorId> {
        unimplemented!()
    }

    /// Adds values that are computed, not read.
    pub fn constant(&mut self, values: Vec<f32>) -> VectorId {
        unimplemented!()
    }

    /// Binds the routed experts of a layer, whichever way they are stored. `prefix` is what
    /// stands before `.experts` or `.switch_mlp`: `model.layers.3.mlp`. Layers ascend.
    ///
    /// # Errors
    ///
    /// As [`Binder::matrix`]; also if one expert is stored otherwise than the others.
    pub fn experts(&mut self, layer: LayerIdx, prefix: &str, shape: ExpertShape) -> Result<()> {
        unimplemented!()
    }

    /// The manifest.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::Tensor`] naming a tensor that was not bound and that no rule skips.
    pub fn finish(self) -> Result<Manifest> {
        unimplemented!()
    }
}
