//! Context for building the blocks of a layer: the sources of their tensors and buffers.
//!
//! **Invariant:** tensor names belong to one layer. This module is independent of the kinds of
//! blocks.

use crate::error::Result;
use crate::ids::LayerIdx;
use crate::ops::{Add, Gain, Heads, MatMul, Op, RmsNorm, Workspace};
use crate::spec::ModelSpec;
use crate::weights::Binder;

/// The context in which the blocks of a layer bind their tensors and name their buffers.
pub(super) struct LayerBuilder<'a, 'b> {
    /// The model.
    pub(super) spec: &'a ModelSpec,
    /// Source of tensors.
    pub(super) binder: &'a mut Binder<'b>,
    /// Source of buffers.
    pub(super) workspace: &'a mut Workspace,
    /// Index of the layer.
    pub(super) layer: LayerIdx,
    /// The residual stream.
    pub(super) stream: Heads,
    /// Normed input of a block.
    pub(super) normed: Heads,
}

impl LayerBuilder<'_, '_> {
    /// Returns the full name of a tensor or module of this layer.
    pub(super) fn name(&self, rest: &str) -> String {
        format!("model.layers.{}.{rest}", self.layer.0)
    }

    /// Returns a buffer with this name.
    pub(super) fn buffer(&mut self, name: &'static str, n_cols: usize) -> Heads {
        self.workspace.buffer(name, n_cols)
    }

    /// Returns the op `out = module . x`, without bias.
    pub(super) fn linear(&mut self, module: &str, x: Heads, out: Heads) -> Result<Op> {
        let base = self.name(module);
        let weight = self.binder.matrix(&base, out.head_dim, x.head_dim)?;
        Ok(Op::MatMul(MatMul { weight, bias: None, x, out }))
    }

    /// Returns the op `out = module . x + bias`.
    pub(super) fn linear_with_bias(&mut self, module: &str, x: Heads, out: Heads) -> Result<Op> {
        let base = self.name(module);
        let weight = self.binder.matrix(&base, out.head_dim, x.head_dim)?;
        let bias = Some(self.binder.vector(&format!("{base}.bias"), out.head_dim)?);
        Ok(Op::MatMul(MatMul { weight, bias, x, out }))
    }

    /// Returns the op for the layer's norm `module` of the residual stream, into `normed`.
    pub(super) fn norm_stream(&mut self, module: &str) -> Result<Op> {
        let tensor = self.name(&format!("{module}.weight"));
        let gain = Gain::Shared(self.binder.norm(&tensor, self.spec.hidden)?);
        let (x, out, epsilon) = (self.stream, self.normed, self.spec.norm_epsilon);
        Ok(Op::RmsNorm(RmsNorm { x, gain, gate: None, out, epsilon }))
    }

    /// Returns the op that adds a block's output to the residual stream.
    pub(super) fn add_to_stream(&self, y: Heads) -> Op {
        Op::Add(Add { x: self.stream, y, out: self.stream })
    }
}
