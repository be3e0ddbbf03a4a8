//! A checkpoint in MLX layout that does not exist: for sizes, and for random models.
//!
//! **Invariant:** tensors follow each other without hole, in the order in which they were asked
//! for; names, shapes and types are those that mlx-lm would write. Knows no values.

use moeflux_kernels::FloatKind;

use crate::format::DType;
use crate::spec::QuantParams;

/// How an imagined checkpoint is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imagined {
    /// Of every matrix whose columns are whole groups.
    pub params: QuantParams,
    /// Of scales, biases, norms and everything unquantised.
    pub scale: FloatKind,
}

/// What a tensor is for: decides which random values suit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImaginedRole {
    /// Packed codes of a quantised matrix.
    Codes(QuantisedRows),
    /// Its scales.
    Scales(QuantisedRows),
    /// Its biases.
    Biases(QuantisedRows),
    /// A matrix in floating point.
    Matrix {
        /// Inputs of the product.
        n_cols: usize,
    },
    /// The gain of a norm: about 1.
    Gain,
    /// Taps of a convolution.
    Taps {
        /// Taps per channel.
        n_taps: usize,
    },
    /// Logarithm of a decay's speed, per head.
    DecayLog,
    /// Added to something: about 0.
    Bias,
}

/// How the rows of a quantised matrix are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantisedRows {
    /// Bits and group.
    pub params: QuantParams,
    /// Inputs of the product.
    pub n_cols: usize,
}

/// One tensor that could be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImaginedTensor {
    /// As mlx-lm names it.
    pub name: String,
    /// Type of the values.
    pub dtype: DType,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// What it is for.
    pub role: ImaginedRole,
    /// Bytes of all values.
    pub len_bytes: u64,
}

/// All that a writer needs besides values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImaginedCheckpoint {
    /// What holds for matrices without an override.
    pub params: QuantParams,
    /// In the order in which they lie in the file.
    pub tensors: Vec<ImaginedTensor>,
    /// By base name as mlx-lm writes it: the entries of `quantization` besides the default.
    pub overrides: Vec<(String, QuantParams)>,
}
