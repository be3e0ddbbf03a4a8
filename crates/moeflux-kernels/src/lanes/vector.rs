//! Kernels over plain vectors, for attention.
//!
//! **Invariant:** the order of every sum is the one stated in the crate's documentation.

use crate::lanes::gates::exp_all;
use crate::lanes::{LANES, Simd, padded};

/// Rows of f32 within a larger buffer.
#[derive(Clone, Copy, Debug)]
pub struct StridedRows<'a> {
    /// Values from the first one of the first row on.
    pub values: &'a [f32],
    /// Number of rows.
    pub n_rows: usize,
    /// Values of one row.
    pub row_len: usize,
    /// Distance between rows, in values.
    pub stride: usize,
}

impl<'a> StridedRows<'a> {
    /// Returns one row.
    #[inline(always)]
    #[must_use]
    pub fn row(&self, row_idx: usize) -> &'a [f32] {
        &self.values[row_idx * self.stride..][..self.row_len]
    }
}

#[inline(always)]
pub(crate) fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    simd.reduce(dot_lanes(simd, a, b))
}

/// Returns the lanes of a dot product, before they are added.
#[inline(always)]
pub(crate) fn dot_lanes<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> S::Vector {
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    let mut lanes = simd.splat(0.0);
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        lanes = simd.fma(simd.load(a), simd.load(b), lanes);
    }
    if !a_rest.is_empty() {
        lanes = simd.fma(simd.load(&padded(a_rest)), simd.load(&padded(b_rest)), lanes);
    }
    lanes
}

#[inline(always)]
pub(crate) fn sum<S: Simd>(simd: S, values: &[f32]) -> f32 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = simd.splat(0.0);
    for chunk in chunks {
        lanes = simd.add(simd.load(chunk), lanes);
    }
    if !rest.is_empty() {
        lanes = simd.add(simd.load(&padded(rest)), lanes);
    }
    simd.reduce(lanes)
}

#[inline(always)]
pub(crate) fn group_sums<S: Simd>(simd: S, row: &[f32], group_cols: usize, sums: &mut [f32]) {
    for (group, out) in row.chunks_exact(group_cols).zip(sums) {
        *out = sum(simd, group);
    }
}

#[inline(always)]
pub(crate) fn axpy<S: Simd>(simd: S, factor: f32, x: &[f32], y: &mut [f32]) {
    let (x_chunks, x_rest) = x.as_chunks::<LANES>();
    let (y_chunks, y_rest) = y.as_chunks_mut::<LANES>();
    for (x, y) in x_chunks.iter().zip(y_chunks) {
        simd.store(simd.fma(simd.splat(factor), simd.load(x), simd.load(y)), y);
    }
    for (&x, y) in x_rest.iter().zip(y_rest) {
        *y = simd.fma1(factor, x, *y);
    }
}

#[inline(always)]
pub(crate) fn exp_shifted<S: Simd>(simd: S, values: &mut [f32], shift: f32) -> f32 {
    exp_all(simd, values, shift);
    sum(simd, values)
}
