//! In-place operations on one row of values: gates, norms, rope, convolution, sums of experts, and
//! the spreading of keys.
//!
//! **Invariant:** sums have the order stated in the crate's documentation; everything else is value
//! by value. This module knows nothing of heads or of the location of rows.

use crate::functions::{AddedProducts, ScaledFunction};
use crate::lanes::gates;
use crate::lanes::vector::StridedRows;
use crate::lanes::{LANES, Lanes, Simd, padded};
use crate::spread::Spread;

/// An operation over one row, in place: see [`crate::KernelTable::apply`].
#[derive(Clone, Copy, Debug)]
pub enum RowOp<'a> {
    /// `x = sigmoid(x)`.
    Sigmoid,
    /// `x *= sigmoid(gate)`.
    MulSigmoid {
        /// One per value.
        gate: &'a [f32],
    },
    /// `x *= silu(gate)`.
    MulSilu {
        /// One per value.
        gate: &'a [f32],
    },
    /// `x = silu(x) * up`; with a limit `x = x * sigmoid(1.702 x) * (up + 1)`, with `x` clamped to
    /// at most `limit` and `up` to `-limit ..= limit`.
    SwiGlu {
        /// One per value.
        up: &'a [f32],
        /// Limit of gpt_oss.
        limit: Option<f32>,
    },
    /// `x = exp(-exp(a_log) * softplus(x + dt_bias))`.
    Decay {
        /// One per value.
        a_log: &'a [f32],
        /// One per value.
        dt_bias: &'a [f32],
    },
    /// `x = x * (1 / sqrt(mean of squares + epsilon)) * gain`; NaN if the mean is not finite, since
    /// a factor of 0 would hide that.
    RmsNorm {
        /// One per value.
        gain: &'a [f32],
        /// Added to the mean.
        epsilon: f32,
    },
    /// `x = x * (1 / sqrt(sum of squares + epsilon)) * factor`; NaN if the sum is not finite.
    L2Norm {
        /// Added to the sum.
        epsilon: f32,
        /// Applied last.
        factor: f32,
    },
    /// Rotates pairs: `(a, b) = (a cos - b sin, a sin + b cos)`.
    Rope {
        /// Placement of pairs.
        pairs: RopePairs,
        /// One per pair.
        cosines: &'a [f32],
        /// One per pair.
        sines: &'a [f32],
    },
    /// `x = silu(sum of tap * input)`, by `fma` from +0, oldest input first.
    Convolution {
        /// The first inputs, oldest first.
        kept: StridedRows<'a>,
        /// The inputs after them.
        new: StridedRows<'a>,
        /// One row of taps per input.
        taps: StridedRows<'a>,
    },
    /// `x = (sum of weight * partial + gate * shared) + x`, the sum by `fma` from +0.
    Combine {
        /// The sum so far; zeros if `None`.
        sum: Option<&'a [f32]>,
        /// One per partial.
        weights: &'a [f32],
        /// Rows as long as the values.
        partials: StridedRows<'a>,
        /// Gate and values.
        shared: Option<(f32, &'a [f32])>,
    },
    /// `value = fma(weight, block value, value)`, for a row of a product's outputs. Each sixteen
    /// values are a row of `blocks`.
    AddBlocks {
        /// Weight of the row.
        weight: f32,
        /// Blocks; the last may extend beyond the values.
        blocks: StridedRows<'a>,
    },
    /// `x = after * f(before * x)`.
    Function(ScaledFunction),
    /// `x = fma(first, second, x)`.
    AddProducts(AddedProducts<'a>),
    /// For every block of values, as many times as 2 divides its length:
    /// `(x[2 i], x[2 i + 1]) = (x[i] + x[i + block / 2], x[i] - x[i + block / 2])`; then
    /// `x *= factor`.
    Spread(Spread),
}

/// Placement of the two values that are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// One in the first half, one in the second.
    Halves,
    /// Adjacent.
    Neighbours,
}

impl RowOp<'_> {
    pub(crate) fn check(&self, n: usize) {
        match self {
            Self::Sigmoid | Self::L2Norm { .. } | Self::Function(_) => {}
            Self::AddProducts(products) => products.check(n),
            Self::MulSigmoid { gate } | Self::MulSilu { gate } => {
                assert_eq!(gate.len(), n, "gates");
            }
            Self::SwiGlu { up, .. } => assert_eq!(up.len(), n, "factors"),
            Self::Decay { a_log, dt_bias } => {
                assert_eq!((a_log.len(), dt_bias.len()), (n, n), "parameters of the decay");
            }
            Self::RmsNorm { gain, .. } => assert_eq!(gain.len(), n, "gains"),
            Self::Rope { cosines, sines, .. } => {
                assert_eq!((2 * cosines.len(), 2 * sines.len()), (n, n), "a turn per pair");
            }
            Self::Convolution { kept, new, taps } => {
                assert_eq!(kept.n_rows + new.n_rows, taps.n_rows, "a tap per input");
                assert!([kept, new, taps].iter().all(|rows| rows.row_len == n), "channels");
            }
            Self::Spread(spread) => spread.check(n),
            Self::AddBlocks { blocks, .. } => {
                assert_eq!(blocks.row_len, LANES, "values of a block");
                assert_eq!(blocks.n_rows, n.div_ceil(LANES), "blocks of a row");
            }
            Self::Combine { sum, weights, partials, shared } => {
                assert!(sum.is_none_or(|sum| sum.len() == n), "sum so far");
                assert_eq!(weights.len(), partials.n_rows, "a weight per partial");
                assert_eq!(partials.row_len, n, "length of a partial");
                assert!(shared.is_none_or(|(_, shared)| shared.len() == n), "shared expert");
            }
        }
    }
}

#[inline(always)]
pub(crate) fn apply<S: Simd>(simd: S, op: &RowOp<'_>, values: &mut [f32]) {
    match *op {
        RowOp::Sigmoid => gates::sigmoid_all(simd, values),
        RowOp::MulSigmoid { gate } => gates::mul_sigmoid(simd, values, gate),
        RowOp::MulSilu { gate } => gates::mul_silu(simd, values, gate),
        RowOp::SwiGlu { up, limit } => gates::swiglu(simd, values, up, limit),
        RowOp::Decay { a_log, dt_bias } => gates::decay_all(simd, values, a_log, dt_bias),
        RowOp::RmsNorm { gain, epsilon } => rms_norm(simd, values, gain, epsilon),
        RowOp::L2Norm { epsilon, factor } => l2_norm(simd, values, epsilon, factor),
        RowOp::Rope { pairs: RopePairs::Halves, cosines, sines } => {
            rope_halves(values, cosines, sines);
        }
        RowOp::Rope { pairs: RopePairs::Neighbours, cosines, sines } => {
            rope_neighbours(values, cosines, sines);
        }
        RowOp::Convolution { kept, new, taps } => convolution(simd, [&kept, &new], &taps, values),
        RowOp::Combine { sum, weights, partials, shared } => {
            combine(simd, sum, (weights, &partials), shared, values);
        }
        RowOp::Spread(spread) => spread.apply(values),
        RowOp::Function(function) => function.apply(simd, values),
        RowOp::AddProducts(products) => products.apply(simd, values),
        RowOp::AddBlocks { weight, blocks } => add_blocks(simd, weight, &blocks, values),
    }
}

/// Returns the sum of squares: four sums of 16 lanes take chunks of 16 values in turn.
#[inline(always)]
fn squares<S: Simd>(simd: S, values: &[f32]) -> f32 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let (quads, singles) = chunks.as_chunks::<4>();
    let mut acc = [simd.splat(0.0); 4];
    for quad in quads {
        for c in 0..4 {
            let x = simd.load(&quad[c]);
            acc[c] = simd.fma(x, x, acc[c]);
        }
    }
    for (acc, chunk) in acc.iter_mut().zip(singles) {
        let x = simd.load(chunk);
        *acc = simd.fma(x, x, *acc);
    }
    if !rest.is_empty() {
        let x = simd.load(&padded(rest));
        acc[singles.len()] = simd.fma(x, x, acc[singles.len()]);
    }
    simd.reduce(simd.add(simd.add(acc[0], acc[1]), simd.add(acc[2], acc[3])))
}

#[inline(always)]
#[expect(clippy::cast_precision_loss, reason = "a row has far fewer than 2^24 columns")]
fn rms_norm<S: Simd>(simd: S, values: &mut [f32], gain: &[f32], epsilon: f32) {
    let mean = squares(simd, values) / values.len() as f32;
    let factor = inverse_root(mean + epsilon);
    for (value, &gain) in values.iter_mut().zip(gain) {
        *value = *value * factor * gain;
    }
}

#[inline(always)]
fn l2_norm<S: Simd>(simd: S, values: &mut [f32], epsilon: f32, last_factor: f32) {
    let factor = inverse_root(squares(simd, values) + epsilon);
    for value in values {
        *value = *value * factor * last_factor;
    }
}

/// Returns NaN for non-finite values: values whose squares overflow must not become zeros.
#[inline(always)]
fn inverse_root(value: f32) -> f32 {
    if value.is_finite() { 1.0 / value.sqrt() } else { f32::NAN }
}

#[inline(always)]
fn rope_halves(values: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let (firsts, seconds) = values.split_at_mut(cosines.len());
    let pairs = firsts.iter_mut().zip(seconds);
    for ((a, b), (&cos, &sin)) in pairs.zip(cosines.iter().zip(sines)) {
        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
    }
}

#[inline(always)]
fn rope_neighbours(values: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let (pairs, _) = values.as_chunks_mut::<2>();
    for ([a, b], (&cos, &sin)) in pairs.iter_mut().zip(cosines.iter().zip(sines)) {
        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
    }
}

/// Chunks of the output that stay in registers across rows.
const CHUNKS: usize = 4;

/// Values of these chunks.
const BLOCK: usize = CHUNKS * LANES;

/// Returns the chunks of one block.
#[inline(always)]
fn block(values: &[f32], first: usize) -> &[Lanes; CHUNKS] {
    &values[first..].as_chunks::<LANES>().0.as_chunks::<CHUNKS>().0[0]
}

#[inline(always)]
fn convolution<S: Simd>(
    simd: S,
    inputs: [&StridedRows<'_>; 2],
    taps: &StridedRows<'_>,
    out: &mut [f32],
) {
    let (blocks, rest) = out.as_chunks_mut::<BLOCK>();
    let first_rest = blocks.len() * BLOCK;
    for (block_idx, out) in blocks.iter_mut().enumerate() {
        let first = block_idx * BLOCK;
        let mut acc = [simd.splat(0.0); CHUNKS];
        for (rows, first_tap) in inputs.into_iter().zip([0, inputs[0].n_rows]) {
            for row_idx in 0..rows.n_rows {
                let row = block(rows.row(row_idx), first);
                let taps = block(taps.row(first_tap + row_idx), first);
                for c in 0..CHUNKS {
                    acc[c] = simd.fma(simd.load(&taps[c]), simd.load(&row[c]), acc[c]);
                }
            }
        }
        let (chunks, _) = out.as_chunks_mut::<LANES>();
        for (chunk, acc) in chunks.iter_mut().zip(acc) {
            simd.store(acc, chunk);
        }
        gates::silu_all(simd, out);
    }
    for (i, out) in rest.iter_mut().enumerate() {
        let column = first_rest + i;
        let mut sum = 0.0_f32;
        for (rows, first_tap) in inputs.into_iter().zip([0, inputs[0].n_rows]) {
            for row_idx in 0..rows.n_rows {
                let tap = taps.row(first_tap + row_idx)[column];
                sum = simd.fma1(tap, rows.row(row_idx)[column], sum);
            }
        }
        *out = gates::silu(simd, sum);
    }
}

#[inline(always)]
fn add_blocks<S: Simd>(simd: S, weight: f32, blocks: &StridedRows<'_>, values: &mut [f32]) {
    let (chunks, rest) = values.as_chunks_mut::<LANES>();
    let n_chunks = chunks.len();
    let weights = simd.splat(weight);
    for (block_idx, chunk) in chunks.iter_mut().enumerate() {
        let (block, _) = blocks.row(block_idx).as_chunks::<LANES>();
        simd.store(simd.fma(weights, simd.load(&block[0]), simd.load(chunk)), chunk);
    }
    if !rest.is_empty() {
        for (value, x) in rest.iter_mut().zip(blocks.row(n_chunks)) {
            *value = simd.fma1(weight, *x, *value);
        }
    }
}

#[inline(always)]
fn combine<S: Simd>(
    simd: S,
    sum: Option<&[f32]>,
    (weights, partials): (&[f32], &StridedRows<'_>),
    shared: Option<(f32, &[f32])>,
    values: &mut [f32],
) {
    let (blocks, rest) = values.as_chunks_mut::<BLOCK>();
    let first_rest = blocks.len() * BLOCK;
    let (gate, shared) = shared.unwrap_or((0.0, &[]));
    for (block_idx, values) in blocks.iter_mut().enumerate() {
        let first = block_idx * BLOCK;
        let mut acc = [simd.splat(0.0); CHUNKS];
        if let Some(sum) = sum {
            let row = block(sum, first);
            for c in 0..CHUNKS {
                acc[c] = simd.load(&row[c]);
            }
        }
        for (row_idx, &weight) in weights.iter().enumerate() {
            let row = block(partials.row(row_idx), first);
            for c in 0..CHUNKS {
                acc[c] = simd.fma(simd.splat(weight), simd.load(&row[c]), acc[c]);
            }
        }
        if !shared.is_empty() {
            let row = block(shared, first);
            for c in 0..CHUNKS {
                acc[c] = simd.fma(simd.splat(gate), simd.load(&row[c]), acc[c]);
            }
        }
        let (chunks, _) = values.as_chunks_mut::<LANES>();
        for (chunk, acc) in chunks.iter_mut().zip(acc) {
            simd.store(simd.add(acc, simd.load(chunk)), chunk);
        }
    }
    for (i, value) in rest.iter_mut().enumerate() {
        let column = first_rest + i;
        let mut acc = sum.map_or(0.0, |sum| sum[column]);
        for (row_idx, &weight) in weights.iter().enumerate() {
            acc = simd.fma1(weight, partials.row(row_idx)[column], acc);
        }
        if !shared.is_empty() {
            acc = simd.fma1(gate, shared[column], acc);
        }
        *value += acc;
    }
}

#[cfg(test)]
mod tests {
    use moeflux_testing::random::Rng;

    use super::*;
    use crate::lanes::fused::FusedMultiplyAdd as _;
    use crate::tests::{NMSE_MAX, nmse, same_bits, scalar, tree};
    use crate::{KernelTable, available};

    const LENGTHS: [usize; 14] = [1, 2, 15, 16, 17, 48, 63, 64, 65, 128, 200, 300, 512, 1030];

    /// Checks that all tables give `expected`.
    fn check(op: &RowOp<'_>, values: &[f32], expected: &[f32]) {
        for table in available() {
            let mut out = values.to_vec();
            table.apply(op, &mut out);
            same_bits(&out, expected, &format!("{}, {} values", table.name(), values.len()));
        }
    }

    fn by_scalar(op: &RowOp<'_>, values: &[f32]) -> Vec<f32> {
        let mut out = values.to_vec();
        scalar().apply(op, &mut out);
        out
    }

    /// Returns the sum of squares in the stated order.
    fn stated_squares(values: &[f32]) -> f32 {
        let mut sums = [[0.0_f32; 16]; 4];
        for (i, &x) in values.iter().enumerate() {
            let sum = &mut sums[i / 16 % 4][i % 16];
            *sum = x.fused(x, *sum);
        }
        tree(std::array::from_fn(|j| (sums[0][j] + sums[1][j]) + (sums[2][j] + sums[3][j])))
    }

    #[test]
    fn norms_are_as_stated() {
        let mut rng = Rng::new(20);
        for n in LENGTHS {
            let (x, gain) = (rng.units(n), rng.units(n));
            let factor = 1.0 / (stated_squares(&x) / n as f32 + 1e-6).sqrt();
            let stated: Vec<f32> = x.iter().zip(&gain).map(|(x, gain)| x * factor * gain).collect();
            check(&RowOp::RmsNorm { gain: &gain, epsilon: 1e-6 }, &x, &stated);
            let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
            let norm = (squares / n as f64 + 1e-6).sqrt();
            let exact =
                x.iter().zip(&gain).map(|(&x, &gain)| f64::from(x) / norm * f64::from(gain));
            let error = nmse(&stated, &exact.collect::<Vec<_>>());
            assert!(error <= NMSE_MAX, "{n} values: {error:e}");
            let factor = 1.0 / (stated_squares(&x) + 0.5).sqrt();
            let stated: Vec<f32> = x.iter().map(|x| x * factor * 0.25).collect();
            check(&RowOp::L2Norm { epsilon: 0.5, factor: 0.25 }, &x, &stated);
        }
    }

    #[test]
    fn ropes_turn_pairs() {
        let mut rng = Rng::new(21);
        for n_pairs in [1, 3, 8, 16, 17, 32, 64, 100] {
            let x = rng.units(2 * n_pairs);
            let (cosines, sines) = (rng.units(n_pairs), rng.units(n_pairs));
            for pairs in [RopePairs::Halves, RopePairs::Neighbours] {
                let mut stated = x.clone();
                for i in 0..n_pairs {
                    let (a, b) = match pairs {
                        RopePairs::Halves => (i, i + n_pairs),
                        RopePairs::Neighbours => (2 * i, 2 * i + 1),
                    };
                    stated[a] = x[a] * cosines[i] - x[b] * sines[i];
                    stated[b] = x[a] * sines[i] + x[b] * cosines[i];
                }
                check(&RowOp::Rope { pairs, cosines: &cosines, sines: &sines }, &x, &stated);
            }
        }
    }

    #[test]
    fn gates_are_the_same_for_any_length() {
        let mut rng = Rng::new(22);
        let edges = [0.0, -0.0, 1e-42, 100.0, -100.0, f32::MAX, f32::NAN, f32::INFINITY];
        for n in LENGTHS {
            let [mut x, gate, a, b] = [(); 4].map(|()| rng.units(n));
            x.iter_mut().step_by(5).zip(edges.iter().cycle()).for_each(|(x, &edge)| *x = edge);
            let ops = [
                RowOp::Sigmoid,
                RowOp::MulSigmoid { gate: &gate },
                RowOp::MulSilu { gate: &gate },
                RowOp::SwiGlu { up: &gate, limit: None },
                RowOp::SwiGlu { up: &gate, limit: Some(0.5) },
                RowOp::Decay { a_log: &a, dt_bias: &b },
            ];
            for op in ops {
                // Value by value is the definition.
                let one_by_one = (0..n).map(|i| {
                    let (gate, a, b) = (&gate[i..=i], &a[i..=i], &b[i..=i]);
                    let op = match op {
                        RowOp::MulSigmoid { .. } => RowOp::MulSigmoid { gate },
                        RowOp::MulSilu { .. } => RowOp::MulSilu { gate },
                        RowOp::SwiGlu { limit, .. } => RowOp::SwiGlu { up: gate, limit },
                        RowOp::Decay { .. } => RowOp::Decay { a_log: a, dt_bias: b },
                        other => other,
                    };
                    by_scalar(&op, &x[i..=i])[0]
                });
                check(&op, &x, &one_by_one.collect::<Vec<_>>());
            }
            let one = vec![1.0; n];
            let sigmoids = by_scalar(&RowOp::MulSigmoid { gate: &gate }, &one);
            same_bits(&by_scalar(&RowOp::Sigmoid, &gate), &sigmoids, "two ways to a sigmoid");
            let silus = by_scalar(&RowOp::SwiGlu { up: &one, limit: None }, &gate);
            same_bits(&by_scalar(&RowOp::MulSilu { gate: &gate }, &one), &silus, "to a SiLU");
        }
    }

    fn rows(values: &[f32], n_rows: usize, row_len: usize) -> StridedRows<'_> {
        StridedRows { values, n_rows, row_len, stride: row_len + 3 }
    }

    #[test]
    fn convolutions_are_as_stated() {
        let mut rng = Rng::new(23);
        for n in LENGTHS {
            for (n_old, n_new) in [(0, 4), (1, 3), (3, 1), (4, 0), (0, 1), (0, 0), (7, 2)] {
                let n_taps = n_old + n_new;
                let [old, new, taps] =
                    [n_old, n_new, n_taps].map(|n_rows| rng.units(n_rows * (n + 3)));
                let op = RowOp::Convolution {
                    kept: rows(&old, n_old, n),
                    new: rows(&new, n_new, n),
                    taps: rows(&taps, n_taps, n),
                };
                let inputs: Vec<f32> = [old.clone(), new.clone()].concat();
                let mut sums = vec![0.0_f32; n];
                for (taps, inputs) in taps.chunks(n + 3).zip(inputs.chunks(n + 3)) {
                    let products = taps.iter().zip(inputs);
                    sums.iter_mut()
                        .zip(products)
                        .for_each(|(sum, (a, b))| *sum = a.fused(*b, *sum));
                }
                let stated = by_scalar(&RowOp::SwiGlu { up: &vec![1.0; n], limit: None }, &sums);
                check(&op, &vec![f32::NAN; n], &stated);
            }
        }
    }

    #[test]
    fn experts_are_summed_in_order() {
        let mut rng = Rng::new(24);
        for n in LENGTHS {
            for n_partials in [0, 1, 2, 10] {
                let partials = rng.units(n_partials * (n + 3));
                let (weights, shared) = (rng.units(n_partials), rng.units(n));
                let residual = rng.units(n);
                for shared in [None, Some((0.3, shared.as_slice()))] {
                    let partials = rows(&partials, n_partials, n);
                    let mut stated = vec![0.0; n];
                    let all = weights.iter().enumerate().map(|(i, &it)| (it, partials.row(i)));
                    all.chain(shared).for_each(|(it, row)| scalar().axpy(it, row, &mut stated));
                    stated.iter_mut().zip(&residual).for_each(|(sum, x)| *sum += x);
                    let combine = RowOp::Combine { sum: None, weights: &weights, partials, shared };
                    check(&combine, &residual, &stated);
                    // The same from the sum of all partials but the last.
                    let n_first = n_partials.saturating_sub(1);
                    let mut sum = vec![0.0; n];
                    let first = weights.iter().enumerate().take(n_first);
                    first.for_each(|(i, &it)| scalar().axpy(it, partials.row(i), &mut sum));
                    let partials = StridedRows {
                        values: &partials.values[n_first * partials.stride..],
                        n_rows: n_partials - n_first,
                        ..partials
                    };
                    let (sum, weights) = (Some(sum.as_slice()), &weights[n_first..]);
                    let combine = RowOp::Combine { sum, weights, partials, shared };
                    check(&combine, &residual, &stated);
                }
            }
        }
    }

    #[test]
    fn blocks_are_added_as_a_row() {
        let mut rng = Rng::new(25);
        for n in LENGTHS {
            let n_blocks = n.div_ceil(LANES);
            let (blocks, before) = (rng.units(n_blocks * (LANES + 3)), rng.units(n));
            let blocks = rows(&blocks, n_blocks, LANES);
            let row: Vec<f32> = (0..n_blocks).flat_map(|i| blocks.row(i).to_vec()).collect();
            let mut stated = before.clone();
            scalar().axpy(0.7, &row[..n], &mut stated);
            check(&RowOp::AddBlocks { weight: 0.7, blocks }, &before, &stated);
        }
    }

    #[test]
    #[should_panic(expected = "gains")]
    fn shapes_are_checked() {
        let table: &KernelTable = scalar();
        table.apply(&RowOp::RmsNorm { gain: &[1.0; 3], epsilon: 1.0 }, &mut [1.0; 4]);
    }
}
