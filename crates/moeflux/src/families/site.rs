//! What the blocks of a layer are handed: where their tensors and buffers come from.
//!
//! **Invariant:** names of tensors are those of one layer. Knows no block.

use crate::error::Result;
use crate::ids::LayerIdx;
use crate::ops::{Add, Heads, MatMul, Op, RmsNorm, Workspace};
use crate::spec::ModelSpec;
use crate::weights::Binder;

/// What the blocks of a layer need to bind their tensors and name their buffers.
pub(super) struct Site<'a, 'b> {
    /// The model.
    pub(super) spec: &'a ModelSpec,
    /// Where tensors come from.
    pub(super) binder: &'a mut Binder<'b>,
    /// Where buffers come from.
    pub(super) workspace: &'a mut Workspace,
    /// Which layer.
    pub(super) layer: LayerIdx,
    /// The residual stream.
    pub(super) stream: Heads,
    /// Input of a block, normed.
    pub(super) normed: Heads,
}

impl Site<'_, '_> {
    /// Full name of a tensor or module of this layer.
    pub(super) fn name(&self, rest: &str) -> String {
        format!("model.layers.{}.{rest}", self.layer.0)
    }

    /// A buffer under this name.
    pub(super) fn buffer(&mut self, name: &'static str, n_cols: usize) -> Heads {
        self.workspace.buffer(name, n_cols)
    }

    /// `out = module . x`, without bias.
    pub(super) fn linear(&mut self, module: &str, x: Heads, out: Heads) -> Result<Op> {
        let base = self.name(module);
        let weight = self.binder.matrix(&base, out.head_dim, x.head_dim)?;
        Ok(Op::MatMul(MatMul { weight, bias: None, x, out }))
    }

    /// `out = module . x + bias`.
    pub(super) fn linear_with_bias(&mut self, module: &str, x: Heads, out: Heads) -> Result<Op> {
        let base = self.name(module);
        let weight = self.binder.matrix(&base, out.head_dim, x.head_dim)?;
        let bias = Some(self.binder.vector(&format!("{base}.bias"), out.head_dim)?);
        Ok(Op::MatMul(MatMul { weight, bias, x, out }))
    }

    /// The layer's norm `module` of the residual stream, into `normed`.
    pub(super) fn norm_stream(&mut self, module: &str) -> Result<Op> {
        let tensor = self.name(&format!("{module}.weight"));
        let gain = self.binder.norm(&tensor, self.spec.hidden)?;
        let (x, out, epsilon) = (self.stream, self.normed, self.spec.norm_epsilon);
        Ok(Op::RmsNorm(RmsNorm { x, gain, gate: None, out, epsilon }))
    }

    /// Adds a block's output to the residual stream.
    pub(super) fn add_to_stream(&self, y: Heads) -> Op {
        Op::Add(Add { x: self.stream, y, out: self.stream })
    }
}
