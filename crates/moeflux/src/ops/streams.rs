//! Ops of models with several residual streams: what a block reads from them and adds to them.
//!
//! A row of `n` streams is a view of `n` heads. **Invariant:** sums over streams ascend.

use moeflux_kernels::ScaledFunction;

use crate::ops::shape::Heads;

/// `out = after * f(before * x)`, value by value.
#[derive(Clone, Debug, PartialEq)]
pub struct Activate {
    /// Input.
    pub x: Heads,
    /// The function and its factors.
    pub function: ScaledFunction,
    /// Output; may be `x`.
    pub out: Heads,
}

/// `out[head] = factor * (x[head] . y[head])`.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadDot {
    /// Heads.
    pub x: Heads,
    /// As many heads, as wide.
    pub y: Heads,
    /// Applied last.
    pub factor: f32,
    /// One head of a value per head of `x`; a different buffer from `x` and `y`.
    pub out: Heads,
}

/// `out = sum over streams of weight * stream`.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamRead {
    /// A head per stream.
    pub streams: Heads,
    /// The share of each stream.
    pub weights: StreamWeights,
    /// One head, as wide as a stream; a different buffer from the inputs.
    pub out: Heads,
}

/// The shares of streams in a sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StreamWeights {
    /// One per value: as many heads as streams, as wide.
    PerValue(Heads),
    /// One per stream: one head of a value per stream.
    PerStream(Heads),
}

impl StreamWeights {
    /// Returns the view that holds the shares.
    #[must_use]
    pub const fn heads(&self) -> Heads {
        match self {
            Self::PerValue(heads) | Self::PerStream(heads) => *heads,
        }
    }
}

/// `out[stream] = base[stream] + beta[stream] * x`.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamWrite {
    /// What `x` is added to.
    pub base: StreamBase,
    /// One head of a value per stream.
    pub beta: Heads,
    /// One head, as wide as a stream.
    pub x: Heads,
    /// A head per stream: the streams of `base` themselves, or another buffer than all inputs.
    pub out: Heads,
}

/// The streams to which a block's output is added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StreamBase {
    /// Zeros.
    Nothing,
    /// The streams as they are, a head each.
    Streams(Heads),
    /// Sums of the streams: `base[to] = sum over from of mix[from][to] * streams[from]`.
    Mixed {
        /// A head per stream.
        streams: Heads,
        /// As many heads as streams, each with a value per stream.
        mix: Heads,
    },
}

impl StreamWrite {
    /// Returns the views that the op reads, then the one that it writes.
    pub(super) fn heads(&self) -> Vec<Heads> {
        let inputs = [self.beta, self.x, self.out];
        match self.base {
            StreamBase::Nothing => inputs.to_vec(),
            StreamBase::Streams(streams) => [&[streams], &inputs[..]].concat(),
            StreamBase::Mixed { streams, mix } => [&[streams, mix], &inputs[..]].concat(),
        }
    }
}
