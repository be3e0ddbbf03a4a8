//! Several residual streams, which blocks read from and write to by learned weights.

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

/// The function of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateFunction {
    /// `x * sigmoid(x)`.
    Silu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}
