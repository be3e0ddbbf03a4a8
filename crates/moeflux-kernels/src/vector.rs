//! Kernels over plain vectors: what attention, the delta rule and the sums of experts need.
//!
//! **Invariant:** the order of every sum is the one stated in the crate's documentation.

use crate::lanes::{LANES, add, fma, padded, reduce};

/// Rows of f32 in memory that is not theirs alone.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// From the first value of the first row.
    pub values: &'a [f32],
    /// Rows.
    pub n_rows: usize,
    /// Values of one row.
    pub row_len: usize,
    /// Values from one row to the next.
    pub stride: usize,
}

impl<'a> Rows<'a> {
    /// One row.
    #[inline(always)]
    #[must_use]
    pub fn row(&self, row_idx: usize) -> &'a [f32] {
        &self.values[row_idx * self.stride..][..self.row_len]
    }
}

/// One token of the gated delta rule for one head: see [`crate::KernelTable::delta_step`].
#[derive(Clone, Copy, Debug)]
pub struct DeltaStep<'a> {
    /// Query, `[key dim]`.
    pub q: &'a [f32],
    /// Key, `[key dim]`.
    pub k: &'a [f32],
    /// Value, `[value dim]`.
    pub v: &'a [f32],
    /// What remains of the state.
    pub decay: f32,
    /// How much of the difference is written.
    pub beta: f32,
}

#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        fma(a, b, &mut lanes);
    }
    if !a_rest.is_empty() {
        fma(&padded(a_rest), &padded(b_rest), &mut lanes);
    }
    reduce(&lanes)
}

#[inline(always)]
pub(crate) fn sum(values: &[f32]) -> f32 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for chunk in chunks {
        add(chunk, &mut lanes);
    }
    if !rest.is_empty() {
        add(&padded(rest), &mut lanes);
    }
    reduce(&lanes)
}

#[inline(always)]
pub(crate) fn group_sums(row: &[f32], group_cols: usize, sums: &mut [f32]) {
    for (group, out) in row.chunks_exact(group_cols).zip(sums) {
        *out = sum(group);
    }
}

#[inline(always)]
pub(crate) fn axpy(factor: f32, x: &[f32], y: &mut [f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = factor.mul_add(x, *y);
    }
}

#[inline(always)]
pub(crate) fn dots(x: &[f32], rows: &Rows<'_>, out: &mut [f32]) {
    for (row_idx, out) in out.iter_mut().enumerate() {
        *out = dot(x, rows.row(row_idx));
    }
}

/// Chunks of the output that stay in registers while the rows go by.
const SUM_CHUNKS: usize = 4;

#[inline(always)]
pub(crate) fn weighted_sum(weights: &[f32], rows: &Rows<'_>, out: &mut [f32]) {
    let mut first = 0;
    while first + SUM_CHUNKS * LANES <= out.len() {
        let (chunks, _) = out[first..][..SUM_CHUNKS * LANES].as_chunks_mut::<LANES>();
        let mut acc = [[0.0; LANES]; SUM_CHUNKS];
        acc.copy_from_slice(chunks);
        for (row_idx, &weight) in weights.iter().enumerate() {
            let row = &rows.row(row_idx)[first..][..SUM_CHUNKS * LANES];
            let (row, _) = row.as_chunks::<LANES>();
            for c in 0..SUM_CHUNKS {
                fma(&[weight; LANES], &row[c], &mut acc[c]);
            }
        }
        chunks.copy_from_slice(&acc);
        first += SUM_CHUNKS * LANES;
    }
    if first < out.len() {
        for (row_idx, &weight) in weights.iter().enumerate() {
            axpy(weight, &rows.row(row_idx)[first..], &mut out[first..]);
        }
    }
}

#[inline(always)]
pub(crate) fn delta_step(step: &DeltaStep<'_>, state: &mut [f32], out: &mut [f32]) {
    let rows = state.chunks_exact_mut(step.k.len());
    for ((row, &v), out) in rows.zip(step.v).zip(out) {
        for value in row.iter_mut() {
            *value *= step.decay;
        }
        let delta = (v - dot(row, step.k)) * step.beta;
        axpy(delta, step.k, row);
        *out = dot(row, step.q);
    }
}

#[inline(always)]
pub(crate) fn exp_shifted(values: &mut [f32], shift: f32) -> f32 {
    let (chunks, rest) = values.as_chunks_mut::<LANES>();
    let mut lanes = [0.0; LANES];
    for chunk in chunks {
        for value in chunk.iter_mut() {
            *value = exp_below(*value - shift);
        }
        add(chunk, &mut lanes);
    }
    if !rest.is_empty() {
        for value in rest.iter_mut() {
            *value = exp_below(*value - shift);
        }
        add(&padded(rest), &mut lanes);
    }
    reduce(&lanes)
}

/// `exp(x)` for `x <= 0` within 2 units in the last place; 0 below -87.3, NaN for NaN.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; `exp(r)` is its Taylor polynomial of degree 7, whose
/// remainder is below 2^-27.
#[inline(always)]
fn exp_below(x: f32) -> f32 {
    /// Adding it leaves a number rounded to an integer in the low bits.
    const ROUNDER: f32 = 12_582_912.0;
    /// Upper part of ln 2, with zeros at the end, so that its product with `n` is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;

    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUNDER);
    let n = shifted - ROUNDER;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let mut poly = 1.0_f32 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        poly = poly.mul_add(r, coefficient);
    }
    // The low bits of `shifted` are n: moved to the exponent they make 2^n.
    let power = (shifted.to_bits() << 23).wrapping_add(1.0_f32.to_bits());
    let value = poly * f32::from_bits(power);
    if x < -87.3 { 0.0 } else { value }
}

