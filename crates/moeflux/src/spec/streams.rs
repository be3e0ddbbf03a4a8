//! Several residual streams, which blocks read from and write to by learned weights.

use crate::ids::LayerIdx;
use crate::spec::ngrams::NgramShape;

/// Upper bound on residual streams: published models have 4, and kernels hold a value of each in
/// registers.
pub(super) const N_STREAMS_MAX: usize = 16;

/// The residual streams of a model, and how they are read and written (`qwen4_exp`).
///
/// The streams are normed, each with its own gains. A block reads the mean of the normed streams
/// times a weight per value, which a product of low rank derives from all of them. Its output is
/// added to each stream times a factor, which another product derives from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSpec {
    /// Number of streams.
    pub n_streams: usize,
    /// Rank of the product that derives the weights.
    pub rank: usize,
}

/// Rows of a table of n-grams that a layer adds to its streams, through a gate for each stream and
/// a short convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NgramSpec {
    /// The layer, whose mixer is gated DeltaNet.
    pub layer: LayerIdx,
    /// The table and its hashes.
    pub(crate) shape: NgramShape,
    /// Values of all rows of a token together.
    pub width: usize,
    /// Taps of the convolution.
    pub n_taps: usize,
}

impl NgramSpec {
    /// Returns the number of rows that a token needs; it divides the width.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.shape.n_heads()
    }

    /// Returns the rows from the input of one tap to that of the next.
    #[must_use]
    pub const fn dilation(&self) -> usize {
        self.shape.n_tokens_max
    }
}

/// The function of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateFunction {
    /// `x * sigmoid(x)`.
    Silu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}
