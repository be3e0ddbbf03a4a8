//! The gated delta rule over a run of tokens: the state of some values of one head, in place.
//!
//! A state lies in strips of 16 values, each `[key][16 values]` (the last strip may be narrower):
//! lanes are values, so that no sum runs across lanes, and a strip stays in the first cache while
//! tokens go by. **Invariant:** sums over keys ascend, by `fma` from +0. Knows no heads.

use crate::lanes::{LANES, Lanes, Simd, padded};
use crate::vector::Rows;

/// Tokens of one head: see [`crate::KernelTable::delta_rule`].
#[derive(Clone, Copy, Debug)]
pub struct DeltaRun<'a> {
    /// Queries, `[key dim]` per token.
    pub q: Rows<'a>,
    /// Keys, `[key dim]` per token.
    pub k: Rows<'a>,
    /// Values of the state's part, per token.
    pub v: Rows<'a>,
    /// What remains of the state, per token.
    pub decay: &'a [f32],
    /// How much of the difference is written, per token.
    pub beta: &'a [f32],
}

impl DeltaRun<'_> {
    pub(crate) fn check(&self, state: &[f32], out: &[f32]) {
        let (n_tokens, n_values) = (self.v.n_rows, self.v.row_len);
        assert_eq!((self.q.n_rows, self.k.n_rows), (n_tokens, n_tokens), "tokens");
        assert_eq!((self.decay.len(), self.beta.len()), (n_tokens, n_tokens), "gates");
        assert_eq!(self.q.row_len, self.k.row_len, "key dimension");
        assert_eq!(state.len(), n_values * self.k.row_len, "state of these values");
        assert_eq!(out.len(), n_tokens * n_values, "outputs");
    }
}

/// Some values of the state, by key.
trait Strip {
    /// Values of the strip.
    fn width(&self) -> usize;

    fn load<S: Simd>(&self, simd: S, key_idx: usize) -> S::Vector;

    fn store<S: Simd>(&mut self, simd: S, key_idx: usize, vector: S::Vector);
}

/// Sixteen values.
impl Strip for &mut [Lanes] {
    #[inline(always)]
    fn width(&self) -> usize {
        LANES
    }

    #[inline(always)]
    fn load<S: Simd>(&self, simd: S, key_idx: usize) -> S::Vector {
        simd.load(&self[key_idx])
    }

    #[inline(always)]
    fn store<S: Simd>(&mut self, simd: S, key_idx: usize, vector: S::Vector) {
        simd.store(vector, &mut self[key_idx]);
    }
}

/// Fewer than sixteen values.
struct Narrow<'a> {
    values: &'a mut [f32],
    width: usize,
}

impl Strip for Narrow<'_> {
    #[inline(always)]
    fn width(&self) -> usize {
        self.width
    }

    #[inline(always)]
    fn load<S: Simd>(&self, simd: S, key_idx: usize) -> S::Vector {
        simd.load(&padded(&self.values[key_idx * self.width..][..self.width]))
    }

    #[inline(always)]
    fn store<S: Simd>(&mut self, simd: S, key_idx: usize, vector: S::Vector) {
        let mut lanes = [0.0; LANES];
        simd.store(vector, &mut lanes);
        self.values[key_idx * self.width..][..self.width].copy_from_slice(&lanes[..self.width]);
    }
}

#[inline(always)]
pub(crate) fn delta_rule<S: Simd>(
    simd: S,
    run: &DeltaRun<'_>,
    state: &mut [f32],
    out: &mut [f32],
) {
    let (n_keys, n_values) = (run.k.row_len, run.v.row_len);
    if run.v.n_rows == 0 || n_keys == 0 {
        out.fill(0.0);
        return;
    }
    let mut rest = state;
    let mut first = 0;
    while first < n_values {
        let n_left = n_values - first;
        // Registers that hold a larger tile hold the sums of two strips.
        let n_strips = if S::TILE_ROWS > 1 && n_left >= 2 * LANES { 2 } else { 1 };
        let width = n_left.min(n_strips * LANES);
        let (part, tail) = rest.split_at_mut(width * n_keys);
        rest = tail;
        if width == 2 * LANES {
            let (low, high) = part.as_chunks_mut::<LANES>().0.split_at_mut(n_keys);
            all_tokens(simd, run, [low, high], (first, out));
        } else if width == LANES {
            all_tokens(simd, run, [part.as_chunks_mut::<LANES>().0], (first, out));
        } else {
            all_tokens(simd, run, [Narrow { values: part, width }], (first, out));
        }
        first += width;
    }
}

/// All tokens over `W` strips, which begin with value `first`.
///
/// The state is gone over once per token and once more at the beginning: while a token's
/// difference is written and its output taken, the state decays for the next token and meets its
/// key.
#[inline(always)]
fn all_tokens<S: Simd, T: Strip, const W: usize>(
    simd: S,
    run: &DeltaRun<'_>,
    mut strips: [T; W],
    (first, out): (usize, &mut [f32]),
) {
    let (n_tokens, n_values) = (run.v.n_rows, run.v.row_len);
    let mut held = decay_and_meet(simd, &mut strips, run.k.row(0), run.decay[0]);
    for token_idx in 0..n_tokens {
        let v = &run.v.row(token_idx)[first..];
        let beta = simd.splat(run.beta[token_idx]);
        let minus = simd.splat(-1.0);
        let mut deltas = [beta; W];
        for w in 0..W {
            // Minus one times a number is exact: this is the difference, rounded once.
            let difference = simd.fma(held[w], minus, lanes_at(simd, &strips[w], v, w));
            deltas[w] = simd.mul(difference, beta);
        }
        let (q, k) = (run.q.row(token_idx), run.k.row(token_idx));
        let sums = if token_idx + 1 < n_tokens {
            let next = (run.k.row(token_idx + 1), run.decay[token_idx + 1]);
            let sums;
            (sums, held) = write_and_go_on(simd, &mut strips, (q, k, deltas), next);
            sums
        } else {
            write_last(simd, &mut strips, (q, k, deltas))
        };
        let out = &mut out[token_idx * n_values + first..];
        for w in 0..W {
            let mut lanes = [0.0; LANES];
            simd.store(sums[w], &mut lanes);
            let width = strips[w].width();
            out[w * LANES..][..width].copy_from_slice(&lanes[..width]);
        }
    }
}

#[inline(always)]
fn lanes_at<S: Simd>(simd: S, strip: &impl Strip, values: &[f32], w: usize) -> S::Vector {
    simd.load(&padded(&values[w * LANES..][..strip.width()]))
}

/// `S *= decay`; returns `S k`.
#[inline(always)]
fn decay_and_meet<S: Simd, T: Strip, const W: usize>(
    simd: S,
    strips: &mut [T; W],
    k: &[f32],
    decay: f32,
) -> [S::Vector; W] {
    let decay = simd.splat(decay);
    let mut held = [simd.splat(0.0); W];
    for (key_idx, &k) in k.iter().enumerate() {
        let k = simd.splat(k);
        for w in 0..W {
            let s = simd.mul(strips[w].load(simd, key_idx), decay);
            strips[w].store(simd, key_idx, s);
            held[w] = simd.fma(s, k, held[w]);
        }
    }
    held
}

/// `S += delta k^T` and `S q`; then `S *= decay` and `S k` for the next token. Returns the products.
#[inline(always)]
#[expect(clippy::type_complexity, reason = "a pair of the same small arrays")]
fn write_and_go_on<S: Simd, T: Strip, const W: usize>(
    simd: S,
    strips: &mut [T; W],
    (q, k, deltas): (&[f32], &[f32], [S::Vector; W]),
    (next_k, next_decay): (&[f32], f32),
) -> ([S::Vector; W], [S::Vector; W]) {
    let decay = simd.splat(next_decay);
    let zero = simd.splat(0.0);
    let (mut sums, mut held) = ([zero; W], [zero; W]);
    for (key_idx, ((&q, &k), &next_k)) in q.iter().zip(k).zip(next_k).enumerate() {
        let (q, k, next_k) = (simd.splat(q), simd.splat(k), simd.splat(next_k));
        for w in 0..W {
            let s = simd.fma(deltas[w], k, strips[w].load(simd, key_idx));
            sums[w] = simd.fma(s, q, sums[w]);
            let s = simd.mul(s, decay);
            strips[w].store(simd, key_idx, s);
            held[w] = simd.fma(s, next_k, held[w]);
        }
    }
    (sums, held)
}

/// `S += delta k^T`; returns `S q`.
#[inline(always)]
fn write_last<S: Simd, T: Strip, const W: usize>(
    simd: S,
    strips: &mut [T; W],
    (q, k, deltas): (&[f32], &[f32], [S::Vector; W]),
) -> [S::Vector; W] {
    let mut sums = [simd.splat(0.0); W];
    for (key_idx, (&q, &k)) in q.iter().zip(k).enumerate() {
        let (q, k) = (simd.splat(q), simd.splat(k));
        for w in 0..W {
            let s = simd.fma(deltas[w], k, strips[w].load(simd, key_idx));
            strips[w].store(simd, key_idx, s);
            sums[w] = simd.fma(s, q, sums[w]);
        }
    }
    sums
}
