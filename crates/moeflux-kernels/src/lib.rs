//! CPU kernels: weight formats, the scalar definition of each product, one file per instruction
//! set.
//!
//! **Invariant:** no I/O, no threads, no knowledge of models. Callers see only safe functions.
#![allow(unsafe_code, reason = "SIMD entry points; every block is documented and tested")]

mod format;

pub use format::{Affine, FP8_BLOCK, FloatKind, LayoutError, Matrix, MatrixKind, MatrixLayout};
