//! The norm of root mean squares, with its gains and its gate.

use crate::ids::VectorId;
use crate::ops::shape::Heads;
use crate::spec::GateFunction;

/// `out = x / sqrt(mean(x^2) + epsilon) * gain`, per head; then `* f(gate)` if there is a gate.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// Input.
    pub x: Heads,
    /// Factors after the norm.
    pub gain: Gain,
    /// Multiplied after the gain (gated DeltaNet).
    pub gate: Option<NormGate>,
    /// Output; may be `x`.
    pub out: Heads,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// The factors after a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gain {
    /// `[head_dim]`, the same for every head.
    Shared(VectorId),
    /// `[n_heads, head_dim]`.
    PerHead(VectorId),
}

impl Gain {
    /// Returns the vector that holds the factors.
    #[must_use]
    pub const fn vector(self) -> VectorId {
        match self {
            Self::Shared(vector) | Self::PerHead(vector) => vector,
        }
    }

    /// Returns the first factor of a head of `head_dim` values.
    #[must_use]
    pub const fn first_of(self, head_idx: usize, head_dim: usize) -> usize {
        match self {
            Self::Shared(_) => 0,
            Self::PerHead(_) => head_idx * head_dim,
        }
    }
}

/// The gate of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormGate {
    /// Input of the function; same heads as the norm.
    pub x: Heads,
    /// The function.
    pub function: GateFunction,
}
