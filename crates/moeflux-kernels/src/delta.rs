//! The gated delta rule over a run of tokens: updates the state of some values of one head, in
//! place or from one buffer to another.
//!
//! A state is stored in strips of 16 values, each `[key][16 values]` (the last strip may be
//! narrower): lanes are values, so that no sum runs across lanes, and a strip stays in the
//! first-level cache across tokens. **Invariant:** sums over keys ascend, by `fma` from +0. This
//! module knows no heads.

use crate::lanes::vector::StridedRows;
use crate::lanes::{LANES, Lanes, Simd, padded};

/// Tokens of one head: see [`crate::KernelTable::delta_rule`].
#[derive(Clone, Copy, Debug)]
pub struct DeltaRun<'a> {
    /// Queries, `[key dim]` per token.
    pub q: StridedRows<'a>,
    /// Keys, `[key dim]` per token.
    pub k: StridedRows<'a>,
    /// Values of this part of the state, per token.
    pub v: StridedRows<'a>,
    /// Factor by which the state decays, per token.
    pub decay: &'a [f32],
    /// Fraction of the difference that is written, per token.
    pub beta: &'a [f32],
    /// The state before the first token, if it must stay unchanged.
    pub before: Option<&'a [f32]>,
    /// Whether a state copied from `before` is too large to be cached until the next run. After a
    /// single token it is then stored with non-temporal stores.
    pub is_large: bool,
}

impl DeltaRun<'_> {
    pub(crate) fn check(&self, state: &[f32], out: &[f32]) {
        let (n_tokens, n_values) = (self.v.n_rows, self.v.row_len);
        assert_eq!((self.q.n_rows, self.k.n_rows), (n_tokens, n_tokens), "tokens");
        assert_eq!((self.decay.len(), self.beta.len()), (n_tokens, n_tokens), "gates");
        assert_eq!(self.q.row_len, self.k.row_len, "key dimension");
        assert_eq!(state.len(), n_values * self.k.row_len, "state of these values");
        assert!(self.before.is_none_or(|it| it.len() == state.len()), "state before these tokens");
        assert_eq!(out.len(), n_tokens * n_values, "outputs");
    }

    /// Returns whether the state bypasses the cache. Lines that are written once and were not read
    /// are not worth caching.
    fn bypasses_cache(&self) -> bool {
        self.is_large && self.before.is_some() && self.v.n_rows == 1
    }
}

/// Some values of the state, by key.
trait StateStrip {
    /// Returns the values of the strip.
    fn width(&self) -> usize;

    fn n_keys(&self) -> usize;

    fn load<S: Simd>(&self, simd: S, key_idx: usize) -> S::Vector;

    fn store<S: Simd>(&mut self, simd: S, key_idx: usize, vector: S::Vector);

    /// The same, for values that are not read soon.
    fn store_past_cache<S: Simd>(&mut self, simd: S, key_idx: usize, vector: S::Vector);
}

/// Sixteen values.
impl StateStrip for &mut [Lanes] {
    #[inline(always)]
    fn width(&self) -> usize {
        LANES
    }

    #[inline(always)]
    fn n_keys(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn load<S: Simd>(&self, simd: S, key_idx: usize) -> S::Vector {
        simd.load(&self[key_idx])
    }

    #[inline(always)]
    fn store<S: Simd>(&mut self, simd: S, key_idx: usize, vector: S::Vector) {
        simd.store(vector, &mut self[key_idx]);
    }

    #[inline(always)]
    fn store_past_cache<S: Simd>(&mut self, simd: S, key_idx: usize, vector: S::Vector) {
        simd.store_past_cache(vector, &mut self[key_idx]);
    }
}

/// Fewer than sixteen values.
struct NarrowStrip<'a> {
    values: &'a mut [f32],
    width: usize,
}

impl StateStrip for NarrowStrip<'_> {
    #[inline(always)]
    fn width(&self) -> usize {
        self.width
    }

    #[inline(always)]
    fn n_keys(&self) -> usize {
        self.values.len() / self.width
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

    #[inline(always)]
    fn store_past_cache<S: Simd>(&mut self, simd: S, key_idx: usize, vector: S::Vector) {
        self.store(simd, key_idx, vector);
    }
}

/// Source of the state that a token reads.
trait StateSource<S: Simd, T: StateStrip, const W: usize> {
    fn load(&self, simd: S, strips: &[T; W], key_idx: usize) -> [S::Vector; W];
}

/// The state left by the previous token.
struct LastState;

/// The state before the first token of a run, in place and not yet decayed.
struct UndecayedState<V>(V);

/// The same in strips of another state.
struct UndecayedCopy<'a, V, const W: usize> {
    strips: [&'a [f32]; W],
    decay: V,
}

impl<S: Simd, T: StateStrip, const W: usize> StateSource<S, T, W> for LastState {
    #[inline(always)]
    fn load(&self, simd: S, strips: &[T; W], key_idx: usize) -> [S::Vector; W] {
        load_all(simd, strips, key_idx)
    }
}

impl<S: Simd, T: StateStrip, const W: usize> StateSource<S, T, W> for UndecayedState<S::Vector> {
    #[inline(always)]
    fn load(&self, simd: S, strips: &[T; W], key_idx: usize) -> [S::Vector; W] {
        let mut s = load_all(simd, strips, key_idx);
        for s in &mut s {
            *s = simd.mul(*s, self.0);
        }
        s
    }
}

impl<S: Simd, T: StateStrip, const W: usize> StateSource<S, T, W>
    for UndecayedCopy<'_, S::Vector, W>
{
    #[inline(always)]
    fn load(&self, simd: S, strips: &[T; W], key_idx: usize) -> [S::Vector; W] {
        let mut s = [self.decay; W];
        for w in 0..W {
            let width = strips[w].width();
            let values = &self.strips[w][key_idx * width..][..width];
            let vector = match values.first_chunk() {
                Some(lanes) => simd.load(lanes),
                None => simd.load(&padded(values)),
            };
            s[w] = simd.mul(vector, self.decay);
        }
        s
    }
}

#[inline(always)]
pub(crate) fn delta_rule<S: Simd>(simd: S, run: &DeltaRun<'_>, state: &mut [f32], out: &mut [f32]) {
    let (n_keys, n_values) = (run.k.row_len, run.v.row_len);
    if run.v.n_rows == 0 || n_keys == 0 {
        out.fill(0.0);
        return;
    }
    let mut rest = state;
    let mut first = 0;
    while first < n_values {
        let n_left = n_values - first;
        // Registers that hold a larger tile also hold the sums of two strips.
        let n_strips = if S::TILE_ROWS > 1 && n_left >= 2 * LANES { 2 } else { 1 };
        let width = n_left.min(n_strips * LANES);
        let (part, tail) = rest.split_at_mut(width * n_keys);
        rest = tail;
        let before = run.before.map(|it| &it[first * n_keys..][..width * n_keys]);
        if width == 2 * LANES {
            let before =
                before.map(|it| it.split_at(LANES * n_keys)).map(|(low, high)| [low, high]);
            let (low, high) = part.as_chunks_mut::<LANES>().0.split_at_mut(n_keys);
            all_tokens(simd, run, (before, [low, high]), (first, out));
        } else if width == LANES {
            let strips = [part.as_chunks_mut::<LANES>().0];
            all_tokens(simd, run, (before.map(|it| [it]), strips), (first, out));
        } else {
            let strips = [NarrowStrip { values: part, width }];
            all_tokens(simd, run, (before.map(|it| [it]), strips), (first, out));
        }
        first += width;
    }
    if run.bypasses_cache() {
        simd.drain();
    }
}

/// Processes all tokens over `W` strips, which begin with value `first`.
#[inline(always)]
fn all_tokens<S: Simd, T: StateStrip, const W: usize>(
    simd: S,
    run: &DeltaRun<'_>,
    (before, strips): (Option<[&[f32]; W]>, [T; W]),
    out: (usize, &mut [f32]),
) {
    let decay = simd.splat(run.decay[0]);
    match before {
        Some(before) => {
            // One check instead of one per key in the loops.
            let n_values: [usize; W] = std::array::from_fn(|w| strips[w].width() * run.k.row_len);
            assert!((0..W).all(|w| before[w].len() == n_values[w]), "a state for every key");
            process_tokens(simd, run, (UndecayedCopy { strips: before, decay }, strips), out);
        }
        None => process_tokens(simd, run, (UndecayedState(decay), strips), out),
    }
}

/// Passes over the state once per token and once more at the start. While a token's difference is
/// written and its output computed, the state decays for the next token and is multiplied by its
/// key. Before the first token the state is only read, twice, so that it is written once.
#[inline(always)]
fn process_tokens<S: Simd, T: StateStrip, F: StateSource<S, T, W>, const W: usize>(
    simd: S,
    run: &DeltaRun<'_>,
    (source, mut strips): (F, [T; W]),
    (first, out): (usize, &mut [f32]),
) {
    let (n_tokens, n_values) = (run.v.n_rows, run.v.row_len);
    let mut recalled = multiply_state(simd, &strips, &source, run.k.row(0));
    for token_idx in 0..n_tokens {
        let v = &run.v.row(token_idx)[first..];
        let beta = simd.splat(run.beta[token_idx]);
        let minus = simd.splat(-1.0);
        let mut deltas = [beta; W];
        for w in 0..W {
            // Minus one times a number is exact: this is the difference, rounded once.
            let difference = simd.fma(recalled[w], minus, lanes_at(simd, &strips[w], v, w));
            deltas[w] = simd.mul(difference, beta);
        }
        let token = (run.q.row(token_idx), run.k.row(token_idx), deltas);
        let sums;
        if token_idx + 1 < n_tokens {
            let next = (run.k.row(token_idx + 1), run.decay[token_idx + 1]);
            (sums, recalled) = if token_idx == 0 {
                write_and_continue(simd, (&mut strips, &source), token, next)
            } else {
                write_and_continue(simd, (&mut strips, &LastState), token, next)
            };
        } else if run.bypasses_cache() {
            sums = write_last::<S, T, F, W, true>(simd, (&mut strips, &source), token);
        } else if token_idx == 0 {
            sums = write_last::<S, T, F, W, false>(simd, (&mut strips, &source), token);
        } else {
            sums = write_last::<S, T, LastState, W, false>(simd, (&mut strips, &LastState), token);
        }
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
fn lanes_at<S: Simd>(simd: S, strip: &impl StateStrip, values: &[f32], w: usize) -> S::Vector {
    simd.load(&padded(&values[w * LANES..][..strip.width()]))
}

/// Returns `S k` of the state that was read.
#[inline(always)]
fn multiply_state<S: Simd, T: StateStrip, F: StateSource<S, T, W>, const W: usize>(
    simd: S,
    strips: &[T; W],
    source: &F,
    k: &[f32],
) -> [S::Vector; W] {
    check_keys(strips, k.len());
    let mut recalled = [simd.splat(0.0); W];
    for (key_idx, &k) in k.iter().enumerate() {
        let k = simd.splat(k);
        let s = source.load(simd, strips, key_idx);
        for w in 0..W {
            recalled[w] = simd.fma(s[w], k, recalled[w]);
        }
    }
    recalled
}

/// Computes `S += delta k^T` and `S q`; then `S *= decay` and `S k` for the next token. Returns
/// both products.
#[inline(always)]
fn write_and_continue<S: Simd, T: StateStrip, F: StateSource<S, T, W>, const W: usize>(
    simd: S,
    (strips, source): (&mut [T; W], &F),
    (q, k, deltas): (&[f32], &[f32], [S::Vector; W]),
    (next_k, next_decay): (&[f32], f32),
) -> ([S::Vector; W], [S::Vector; W]) {
    check_keys(strips, q.len());
    let decay = simd.splat(next_decay);
    let zero = simd.splat(0.0);
    let (mut sums, mut recalled) = ([zero; W], [zero; W]);
    for (key_idx, ((&q, &k), &next_k)) in q.iter().zip(k).zip(next_k).enumerate() {
        let (q, k, next_k) = (simd.splat(q), simd.splat(k), simd.splat(next_k));
        let mut s = source.load(simd, strips, key_idx);
        for w in 0..W {
            s[w] = simd.fma(deltas[w], k, s[w]);
            sums[w] = simd.fma(s[w], q, sums[w]);
            s[w] = simd.mul(s[w], decay);
            recalled[w] = simd.fma(s[w], next_k, recalled[w]);
        }
        store_all(simd, strips, key_idx, s);
    }
    (sums, recalled)
}

/// Computes `S += delta k^T`, with non-temporal stores if `NT`; returns `S q`.
#[inline(always)]
fn write_last<S: Simd, T: StateStrip, F: StateSource<S, T, W>, const W: usize, const NT: bool>(
    simd: S,
    (strips, source): (&mut [T; W], &F),
    (q, k, deltas): (&[f32], &[f32], [S::Vector; W]),
) -> [S::Vector; W] {
    check_keys(strips, q.len());
    let mut sums = [simd.splat(0.0); W];
    for (key_idx, (&q, &k)) in q.iter().zip(k).enumerate() {
        let (q, k) = (simd.splat(q), simd.splat(k));
        let mut s = source.load(simd, strips, key_idx);
        for w in 0..W {
            s[w] = simd.fma(deltas[w], k, s[w]);
            sums[w] = simd.fma(s[w], q, sums[w]);
        }
        if NT {
            for (strip, vector) in strips.iter_mut().zip(s) {
                strip.store_past_cache(simd, key_idx, vector);
            }
        } else {
            store_all(simd, strips, key_idx, s);
        }
    }
    sums
}

/// One check instead of one per key in the loops.
#[inline(always)]
fn check_keys(strips: &[impl StateStrip], n_keys: usize) {
    assert!(strips.iter().all(|strip| strip.n_keys() >= n_keys), "a state for every key");
}

/// Loads all strips before any store: strips are a multiple of 4 KiB apart, and a load waits for a
/// store whose address has the same low bits.
#[inline(always)]
fn load_all<S: Simd, T: StateStrip, const W: usize>(
    simd: S,
    strips: &[T; W],
    key_idx: usize,
) -> [S::Vector; W] {
    let mut vectors = [simd.splat(0.0); W];
    for (vector, strip) in vectors.iter_mut().zip(strips) {
        *vector = strip.load(simd, key_idx);
    }
    vectors
}

#[inline(always)]
fn store_all<S: Simd, T: StateStrip, const W: usize>(
    simd: S,
    strips: &mut [T; W],
    key_idx: usize,
    vectors: [S::Vector; W],
) {
    for (strip, vector) in strips.iter_mut().zip(vectors) {
        strip.store(simd, key_idx, vector);
    }
}

#[cfg(test)]
mod tests {
    use moeflux_testing::random::Rng;

    use super::*;
    use crate::available;
    use crate::lanes::fused::FusedMultiplyAdd as _;
    use crate::tests::{NMSE_MAX, nmse, same_bits};

    /// Key dimension, value dimension, tokens.
    const SHAPES: [(usize, usize, usize); 8] = [
        (128, 128, 5),
        (128, 64, 1),
        (16, 24, 7),
        (24, 16, 3),
        (32, 48, 2),
        (20, 7, 4),
        (1, 1, 6),
        (40, 83, 9),
    ];

    /// All inputs of a run, with padding between rows.
    struct Tokens {
        n: usize,
        k_dim: usize,
        v_dim: usize,
        q: Vec<f32>,
        k: Vec<f32>,
        v: Vec<f32>,
        decay: Vec<f32>,
        beta: Vec<f32>,
    }

    impl Tokens {
        fn random(rng: &mut Rng, (k_dim, v_dim, n): (usize, usize, usize)) -> Self {
            let mut gates = |n: usize| (0..n).map(|_| rng.unit().abs()).collect();
            let (mut decay, beta): (Vec<f32>, _) = (gates(n), gates(n));
            decay[n / 2] = 0.0;
            let keys_max = (k_dim as f32).sqrt();
            let mut keys = || rng.units(n * (k_dim + 3)).iter().map(|x| x / keys_max).collect();
            let (q, k) = (keys(), keys());
            Self { n, k_dim, v_dim, q, k, v: rng.units(n * (v_dim + 5)), decay, beta }
        }

        /// Returns some tokens over some values.
        fn run(
            &self,
            tokens: std::ops::Range<usize>,
            first: usize,
            row_len: usize,
        ) -> DeltaRun<'_> {
            let stride = self.k_dim + 3;
            let rows =
                |values| StridedRows { values, n_rows: tokens.len(), row_len: self.k_dim, stride };
            let v_stride = self.v_dim + 5;
            DeltaRun {
                q: rows(&self.q[tokens.start * stride..]),
                k: rows(&self.k[tokens.start * stride..]),
                v: StridedRows {
                    values: &self.v[tokens.start * v_stride + first..],
                    n_rows: tokens.len(),
                    row_len,
                    stride: v_stride,
                },
                decay: &self.decay[tokens.clone()],
                beta: &self.beta[tokens],
                before: None,
                is_large: false,
            }
        }

        /// Computes the rule as stated, for one value of the head: its row of the state and its
        /// outputs.
        fn stated(&self, value_idx: usize, row: &mut [f32]) -> Vec<f32> {
            let run = self.run(0..self.n, 0, self.v_dim);
            let dot = |row: &[f32], x: &[f32]| {
                row.iter().zip(x).fold(0.0_f32, |sum, (s, &x)| s.fused(x, sum))
            };
            let token = |t: usize| {
                row.iter_mut().for_each(|s| *s *= self.decay[t]);
                let delta = (run.v.row(t)[value_idx] - dot(row, run.k.row(t))) * self.beta[t];
                for (s, &k) in row.iter_mut().zip(run.k.row(t)) {
                    *s = delta.fused(k, *s);
                }
                dot(row, run.q.row(t))
            };
            (0..self.n).map(token).collect()
        }

        /// Computes the same in f64.
        fn exact(&self, value_idx: usize, row: &[f32]) -> Vec<f64> {
            let run = self.run(0..self.n, 0, self.v_dim);
            let mut row: Vec<f64> = row.iter().map(|&s| f64::from(s)).collect();
            let dot = |row: &[f64], x: &[f32]| -> f64 {
                row.iter().zip(x).map(|(s, &x)| s * f64::from(x)).sum()
            };
            let token = |t: usize| {
                row.iter_mut().for_each(|s| *s *= f64::from(self.decay[t]));
                let difference = f64::from(run.v.row(t)[value_idx]) - dot(&row, run.k.row(t));
                let delta = difference * f64::from(self.beta[t]);
                for (s, &k) in row.iter_mut().zip(run.k.row(t)) {
                    *s += delta * f64::from(k);
                }
                dot(&row, run.q.row(t))
            };
            (0..self.n).map(token).collect()
        }
    }

    /// Converts `[value][key]` to strips.
    fn in_strips(rows: &[f32], k_dim: usize) -> Vec<f32> {
        let strips = rows.chunks(16 * k_dim);
        let strip = |strip: &[f32]| -> Vec<f32> {
            (0..k_dim).flat_map(|key| strip.iter().skip(key).step_by(k_dim).copied()).collect()
        };
        strips.flat_map(strip).collect()
    }

    #[test]
    fn the_delta_rule_is_as_stated() {
        let mut rng = Rng::new(30);
        for shape in SHAPES {
            let tokens = Tokens::random(&mut rng, shape);
            let (k_dim, v_dim, n) = shape;
            let before = rng.units(k_dim * v_dim);
            let mut after = before.clone();
            let (mut stated, mut exact) = (vec![0.0; n * v_dim], vec![0.0; n * v_dim]);
            for (value_idx, row) in after.chunks_mut(k_dim).enumerate() {
                for (t, out) in tokens.exact(value_idx, row).into_iter().enumerate() {
                    exact[t * v_dim + value_idx] = out;
                }
                for (t, out) in tokens.stated(value_idx, row).into_iter().enumerate() {
                    stated[t * v_dim + value_idx] = out;
                }
            }
            let error = nmse(&stated, &exact);
            assert!(error <= NMSE_MAX, "{shape:?}: NMSE {error:e}");
            for table in available() {
                let mut state = in_strips(&before, k_dim);
                let mut out = vec![f32::NAN; n * v_dim];
                table.delta_rule(&tokens.run(0..n, 0, v_dim), &mut state, &mut out);
                let what = format!("{} {shape:?}", table.name());
                same_bits(&out, &stated, &what);
                same_bits(&state, &in_strips(&after, k_dim), &what);
            }
        }
    }

    #[test]
    fn a_state_that_stays_gives_the_bits_of_one_that_changes() {
        let mut rng = Rng::new(32);
        for shape in SHAPES {
            let (k_dim, v_dim, n) = shape;
            let tokens = Tokens::random(&mut rng, shape);
            let before = rng.units(k_dim * v_dim);
            for (table, n) in available().iter().flat_map(|it| [(it, 1), (it, n)]) {
                let mut changed = before.clone();
                let mut expected = vec![0.0; n * v_dim];
                table.delta_rule(&tokens.run(0..n, 0, v_dim), &mut changed, &mut expected);
                // Aligned to cache lines, and unaligned.
                for (first, is_large) in [(0, false), (0, true), (3, true)] {
                    let mut memory = vec![f32::NAN; 32 + before.len()];
                    let aligned = memory.as_ptr().align_offset(64) + first;
                    let after = &mut memory[aligned..][..before.len()];
                    let run = tokens.run(0..n, 0, v_dim);
                    let run = DeltaRun { before: Some(&before), is_large, ..run };
                    let mut out = vec![0.0; n * v_dim];
                    table.delta_rule(&run, after, &mut out);
                    let what = format!("{} {shape:?} {first} {is_large}", table.name());
                    same_bits(&out, &expected, &what);
                    same_bits(after, &changed, &what);
                }
            }
        }
    }

    #[test]
    fn cuts_in_time_and_in_values_change_nothing() {
        let mut rng = Rng::new(31);
        let (k_dim, v_dim, n) = (24, 83, 9);
        let tokens = Tokens::random(&mut rng, (k_dim, v_dim, n));
        let before = rng.units(k_dim * v_dim);
        for table in available() {
            let (mut whole, mut cut) = (before.clone(), before.clone());
            let mut out = vec![0.0; n * v_dim];
            table.delta_rule(&tokens.run(0..n, 0, v_dim), &mut whole, &mut out);
            let cuts = [(0, 32), (32, 16), (48, 35)].into_iter();
            let cuts = cuts.flat_map(|cut| [0..1, 1..1, 1..6, 6..9].map(|part| (cut, part)));
            for ((first, width), part) in cuts {
                let state = &mut cut[first * k_dim..][..width * k_dim];
                let mut values = vec![0.0; part.len() * width];
                table.delta_rule(&tokens.run(part.clone(), first, width), state, &mut values);
                for (t, values) in part.zip(values.chunks(width)) {
                    same_bits(values, &out[t * v_dim + first..][..width], table.name());
                }
            }
            same_bits(&cut, &whole, table.name());
        }
    }
}
