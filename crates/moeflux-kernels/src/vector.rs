//! Kernels over plain vectors: what attention, the delta rule and the sums of experts need.
//!
//! **Invariant:** the order of every sum is the one stated in the crate's documentation.

use crate::lanes::{LANES, Simd, padded};

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
pub(crate) fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    simd.reduce(dot_lanes(simd, a, b))
}

#[inline(always)]
fn dot_lanes<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> S::Vector {
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
        *y = factor.mul_add(x, *y);
    }
}

#[inline(always)]
pub(crate) fn dots<S: Simd>(simd: S, x: &[f32], rows: &Rows<'_>, out: &mut [f32]) {
    let (quads, rest) = out.as_chunks_mut::<4>();
    let n_quads = quads.len();
    for (i, out) in quads.iter_mut().enumerate() {
        let mut lanes = [simd.splat(0.0); 4];
        for (r, lanes) in lanes.iter_mut().enumerate() {
            *lanes = dot_lanes(simd, rows.row(4 * i + r), x);
        }
        *out = simd.store4(simd.reduce4(lanes));
    }
    for (r, out) in rest.iter_mut().enumerate() {
        *out = dot(simd, rows.row(4 * n_quads + r), x);
    }
}

/// Chunks of the output that stay in registers while the rows go by.
const SUM_CHUNKS: usize = 4;

#[inline(always)]
pub(crate) fn weighted_sum<S: Simd>(simd: S, weights: &[f32], rows: &Rows<'_>, out: &mut [f32]) {
    let mut first = 0;
    while first + SUM_CHUNKS * LANES <= out.len() {
        let (chunks, _) = out[first..][..SUM_CHUNKS * LANES].as_chunks_mut::<LANES>();
        let mut acc = [simd.splat(0.0); SUM_CHUNKS];
        for c in 0..SUM_CHUNKS {
            acc[c] = simd.load(&chunks[c]);
        }
        for (row_idx, &weight) in weights.iter().enumerate() {
            let row = &rows.row(row_idx)[first..][..SUM_CHUNKS * LANES];
            let (row, _) = row.as_chunks::<LANES>();
            for c in 0..SUM_CHUNKS {
                acc[c] = simd.fma(simd.splat(weight), simd.load(&row[c]), acc[c]);
            }
        }
        for c in 0..SUM_CHUNKS {
            simd.store(acc[c], &mut chunks[c]);
        }
        first += SUM_CHUNKS * LANES;
    }
    if first < out.len() {
        for (row_idx, &weight) in weights.iter().enumerate() {
            axpy(simd, weight, &rows.row(row_idx)[first..], &mut out[first..]);
        }
    }
}

#[inline(always)]
pub(crate) fn delta_step<S: Simd>(
    simd: S,
    step: &DeltaStep<'_>,
    state: &mut [f32],
    out: &mut [f32],
) {
    let rows = state.chunks_exact_mut(step.k.len());
    for ((row, &v), out) in rows.zip(step.v).zip(out) {
        for value in row.iter_mut() {
            *value *= step.decay;
        }
        let delta = (v - dot(simd, row, step.k)) * step.beta;
        axpy(simd, delta, step.k, row);
        *out = dot(simd, row, step.q);
    }
}

#[inline(always)]
pub(crate) fn exp_shifted<S: Simd>(simd: S, values: &mut [f32], shift: f32) -> f32 {
    for value in values.iter_mut() {
        *value = exp_below(*value - shift);
    }
    sum(simd, values)
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
