//! What happens to one row of values in place: gates, norms, rope, convolution, sums of experts.
//!
//! **Invariant:** sums are in the order that the crate's documentation states; all else is value by
//! value. Knows nothing of heads or of where rows lie.

use crate::gates;
use crate::lanes::{LANES, Simd, padded};
use crate::vector::Rows;

/// An operation over one row, in place: see [`crate::KernelTable::apply`].
#[derive(Clone, Copy, Debug)]
pub enum RowOp<'a> {
    /// `x = sigmoid(x)`.
    Sigmoid,
    /// `x *= sigmoid(gate)`.
    MulSigmoid {
        /// As many as values.
        gate: &'a [f32],
    },
    /// `x *= silu(gate)`.
    MulSilu {
        /// As many as values.
        gate: &'a [f32],
    },
    /// `x = silu(x) * up`; with a limit `x = x * sigmoid(1.702 x) * (up + 1)` of `x` cut to at
    /// most `limit` and `up` to `-limit ..= limit`.
    SwiGlu {
        /// As many as values.
        up: &'a [f32],
        /// Of gpt_oss.
        limit: Option<f32>,
    },
    /// `x = exp(-exp(a_log) * softplus(x + dt_bias))`.
    Decay {
        /// As many as values.
        a_log: &'a [f32],
        /// As many as values.
        dt_bias: &'a [f32],
    },
    /// `x = x * (1 / sqrt(mean of squares + epsilon)) * gain`.
    RmsNorm {
        /// As many as values.
        gain: &'a [f32],
        /// Added to the mean.
        epsilon: f32,
    },
    /// `x = x * (1 / sqrt(sum of squares + epsilon)) * factor`.
    L2Norm {
        /// Added to the sum.
        epsilon: f32,
        /// Applied last.
        factor: f32,
    },
    /// Turns pairs: `(a, b) = (a cos - b sin, a sin + b cos)`.
    Rope {
        /// Where pairs stand.
        pairs: RopePairs,
        /// One per pair.
        cosines: &'a [f32],
        /// One per pair.
        sines: &'a [f32],
    },
    /// `x = silu(sum of tap * input)`, by `fma` from +0, oldest input first.
    Convolution {
        /// The first inputs, oldest first.
        kept: Rows<'a>,
        /// The inputs after them.
        new: Rows<'a>,
        /// One row of taps per input.
        taps: Rows<'a>,
    },
    /// `x = (sum of weight * partial + gate * shared) + x`, the sum by `fma` from +0.
    Combine {
        /// One per partial.
        weights: &'a [f32],
        /// Rows as long as the values.
        partials: Rows<'a>,
        /// Gate and values.
        shared: Option<(f32, &'a [f32])>,
    },
}

/// Where the two values stand that turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// One in the first half, one in the second.
    Halves,
    /// Side by side.
    Neighbours,
}

impl RowOp<'_> {
    pub(crate) fn check(&self, n: usize) {
        match self {
            Self::Sigmoid | Self::L2Norm { .. } => {}
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
            Self::Combine { weights, partials, shared } => {
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
        RowOp::Sigmoid => gates::sigmoid_all(values),
        RowOp::MulSigmoid { gate } => gates::mul_sigmoid(values, gate),
        RowOp::MulSilu { gate } => gates::mul_silu(values, gate),
        RowOp::SwiGlu { up, limit } => gates::swiglu(values, up, limit),
        RowOp::Decay { a_log, dt_bias } => gates::decay_all(values, a_log, dt_bias),
        RowOp::RmsNorm { gain, epsilon } => rms_norm(simd, values, gain, epsilon),
        RowOp::L2Norm { epsilon, factor } => l2_norm(simd, values, epsilon, factor),
        RowOp::Rope { pairs: RopePairs::Halves, cosines, sines } => {
            rope_halves(values, cosines, sines);
        }
        RowOp::Rope { pairs: RopePairs::Neighbours, cosines, sines } => {
            rope_neighbours(values, cosines, sines);
        }
        RowOp::Convolution { kept, new, taps } => convolution(simd, [&kept, &new], &taps, values),
        RowOp::Combine { weights, partials, shared } => {
            combine(simd, (weights, &partials), shared, values);
        }
    }
}

/// The sum of squares: chunks of 16 values go in turn to four sums of 16 lanes.
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
    let factor = 1.0 / (mean + epsilon).sqrt();
    for (value, &gain) in values.iter_mut().zip(gain) {
        *value = *value * factor * gain;
    }
}

#[inline(always)]
fn l2_norm<S: Simd>(simd: S, values: &mut [f32], epsilon: f32, last_factor: f32) {
    let factor = 1.0 / (squares(simd, values) + epsilon).sqrt();
    for value in values {
        *value = *value * factor * last_factor;
    }
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

/// Chunks of the output that stay in registers while the rows go by.
const CHUNKS: usize = 4;

/// Adds `weight * row` to chunks, row by row from `first`.
#[inline(always)]
fn add_rows<S: Simd>(
    simd: S,
    acc: &mut [S::Vector; CHUNKS],
    rows: &Rows<'_>,
    first: usize,
    weight: impl Fn(usize, usize) -> S::Vector,
) {
    for row_idx in 0..rows.n_rows {
        let (chunks, _) = rows.row(row_idx)[first..][..CHUNKS * LANES].as_chunks::<LANES>();
        for c in 0..CHUNKS {
            acc[c] = simd.fma(weight(row_idx, c), simd.load(&chunks[c]), acc[c]);
        }
    }
}

#[inline(always)]
fn convolution<S: Simd>(simd: S, inputs: [&Rows<'_>; 2], taps: &Rows<'_>, out: &mut [f32]) {
    let (blocks, rest) = out.as_chunks_mut::<{ CHUNKS * LANES }>();
    let first_rest = blocks.len() * CHUNKS * LANES;
    for (block_idx, block) in blocks.iter_mut().enumerate() {
        let first = block_idx * CHUNKS * LANES;
        let mut acc = [simd.splat(0.0); CHUNKS];
        for (rows, first_tap) in inputs.into_iter().zip([0, inputs[0].n_rows]) {
            add_rows(simd, &mut acc, rows, first, |row_idx, c| {
                let taps = &taps.row(first_tap + row_idx)[first + c * LANES..];
                simd.load(&taps.as_chunks::<LANES>().0[0])
            });
        }
        let (chunks, _) = block.as_chunks_mut::<LANES>();
        for (chunk, acc) in chunks.iter_mut().zip(acc) {
            simd.store(acc, chunk);
        }
        gates::silu_all(block);
    }
    for (i, out) in rest.iter_mut().enumerate() {
        let [kept, new] = inputs.map(|rows| (0..rows.n_rows).map(|row_idx| rows.row(row_idx)));
        let products = kept.chain(new).enumerate();
        let column = first_rest + i;
        let sum = products.fold(0.0_f32, |sum, (tap_idx, input)| {
            taps.row(tap_idx)[column].mul_add(input[column], sum)
        });
        *out = gates::silu(sum);
    }
}

#[inline(always)]
fn combine<S: Simd>(
    simd: S,
    (weights, partials): (&[f32], &Rows<'_>),
    shared: Option<(f32, &[f32])>,
    values: &mut [f32],
) {
    let (blocks, rest) = values.as_chunks_mut::<{ CHUNKS * LANES }>();
    let first_rest = blocks.len() * CHUNKS * LANES;
    let (gate, shared) = shared.unwrap_or((0.0, &[]));
    for (block_idx, block) in blocks.iter_mut().enumerate() {
        let first = block_idx * CHUNKS * LANES;
        let mut acc = [simd.splat(0.0); CHUNKS];
        add_rows(simd, &mut acc, partials, first, |row_idx, _| simd.splat(weights[row_idx]));
        if !shared.is_empty() {
            let (chunks, _) = shared[first..][..CHUNKS * LANES].as_chunks::<LANES>();
            for c in 0..CHUNKS {
                acc[c] = simd.fma(simd.splat(gate), simd.load(&chunks[c]), acc[c]);
            }
        }
        let (chunks, _) = block.as_chunks_mut::<LANES>();
        for (chunk, acc) in chunks.iter_mut().zip(acc) {
            simd.store(simd.add(acc, simd.load(chunk)), chunk);
        }
    }
    for (i, value) in rest.iter_mut().enumerate() {
        let column = first_rest + i;
        let mut sum = 0.0_f32;
        for (row_idx, &weight) in weights.iter().enumerate() {
            sum = weight.mul_add(partials.row(row_idx)[column], sum);
        }
        if !shared.is_empty() {
            sum = gate.mul_add(shared[column], sum);
        }
        *value += sum;
    }
}
