//! The causal convolution, and where its layer keeps the inputs of earlier rows.

use crate::ids::{LayerIdx, VectorId};
use crate::ops::shape::Heads;

/// Causal depthwise convolution over time, then SiLU; the layer's state holds the last
/// [`CausalConv::n_kept`] inputs, oldest first.
#[derive(Clone, Debug, PartialEq)]
pub struct CausalConv {
    /// Layer of the state.
    pub layer: LayerIdx,
    /// Place of the inputs in that state.
    pub kept: KeptInputs,
    /// One head of channels.
    pub x: Heads,
    /// `[channels, n_taps]`; the last tap meets the newest input.
    pub weight: VectorId,
    /// Taps per channel.
    pub n_taps: usize,
    /// Rows from the input of one tap to that of the next.
    pub dilation: usize,
    /// One head of channels; a different buffer from `x`.
    pub out: Heads,
}

impl CausalConv {
    /// Returns the number of earlier inputs that an output depends on.
    #[must_use]
    pub const fn n_kept(&self) -> usize {
        (self.n_taps - 1) * self.dilation
    }
}

/// The place of a convolution's inputs among the values that its layer keeps for convolutions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptInputs {
    /// Index of the first value: channel 0 of the oldest input.
    pub first: usize,
    /// Values that the layer keeps for all its convolutions.
    pub n_of_layer: usize,
}

impl KeptInputs {
    /// Returns the place in a layer with one convolution, whose inputs are `n_values` values.
    #[must_use]
    pub const fn alone(n_values: usize) -> Self {
        Self { first: 0, n_of_layer: n_values }
    }
}
