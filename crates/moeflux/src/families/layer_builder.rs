//! Context for building the blocks of a layer: the sources of their tensors and buffers.
//!
//! **Invariant:** tensor names belong to one layer. This module is independent of the kinds of
//! blocks.

use crate::error::Result;
use crate::families::streams::{self, StreamBuffers};
use crate::ids::LayerIdx;
use crate::ops::{Add, Gain, Heads, MatMul, Op, RmsNorm, StreamBase, StreamWrite, Workspace};
use crate::spec::{ModelSpec, StreamSpec};
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
    /// The residual stream: a head for each, if there are several.
    pub(super) stream: Heads,
    /// What several streams need besides.
    pub(super) streams: Option<LayerStreams<'a>>,
    /// Values that the layer keeps for its convolutions.
    pub(super) n_conv_values: usize,
    /// Normed input of a block.
    pub(super) normed: Heads,
}

/// How the blocks of a layer read and write several residual streams.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerStreams<'a> {
    pub(super) spec: &'a StreamSpec,
    /// Buffers of the reads.
    pub(super) buffers: StreamBuffers,
    /// The factor of a block's output for each stream.
    pub(super) beta: Heads,
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

    /// Returns the op that normalises each head of `x` in place, with the same gains for all.
    pub(super) fn head_norm(&mut self, module: &str, x: Heads) -> Result<Op> {
        let tensor = self.name(&format!("{module}.weight"));
        let gain = Gain::Shared(self.binder.norm(&tensor, x.head_dim)?);
        let epsilon = self.spec.norm_epsilon;
        Ok(Op::RmsNorm(RmsNorm { x, gain, gate: None, out: x, epsilon }))
    }

    /// Appends the ops that bring the input of a block from the residual stream to `normed`.
    pub(super) fn read_stream(&mut self, block: Block, ops: &mut Vec<Op>) -> Result<()> {
        let Some(streams) = &self.streams else {
            let tensor = self.name(&format!("{}.weight", block.norm()));
            let gain = Gain::Shared(self.binder.norm(&tensor, self.spec.hidden)?);
            let (x, out, epsilon) = (self.stream, self.normed, self.spec.norm_epsilon);
            ops.push(Op::RmsNorm(RmsNorm { x, gain, gate: None, out, epsilon }));
            return Ok(());
        };
        let LayerStreams { spec, buffers, beta } = *streams;
        let base = self.name(block.connection());
        let read = streams::read(self.binder, (self.spec, spec), &base, &buffers)?;
        ops.push(read.norm);
        ops.extend(streams::factors(self.binder, spec, &base, (&buffers, beta))?);
        ops.extend(read.read);
        Ok(())
    }

    /// Returns the op that adds a block's output to the residual stream.
    pub(super) fn add_to_stream(&self, x: Heads) -> Op {
        let (stream, out) = (self.stream, self.stream);
        match &self.streams {
            None => Op::Add(Add { x: stream, y: x, out }),
            Some(LayerStreams { beta, .. }) => Op::StreamWrite(StreamWrite {
                base: StreamBase::Streams(stream),
                beta: *beta,
                x,
                out,
            }),
        }
    }
}

/// The blocks of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    Mixer,
    FeedForward,
}

impl Block {
    /// Returns the module that norms the block's input.
    const fn norm(self) -> &'static str {
        match self {
            Self::Mixer => "input_layernorm",
            Self::FeedForward => "post_attention_layernorm",
        }
    }

    /// Returns the module that connects the block with several streams.
    const fn connection(self) -> &'static str {
        match self {
            Self::Mixer => "attn_hyper_connection",
            Self::FeedForward => "mlp_hyper_connection",
        }
    }
}
