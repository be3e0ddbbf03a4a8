//! Attention over stored keys: scores of a block of positions and their softmax.
//!
//! Several queries are multiplied by a block together, so that its data is read once for all of
//! them. **Invariant:** a query's results do not depend on the other queries: every sum has the
//! order stated in the crate's documentation. This module knows neither heads, windows nor the
//! number of positions.

pub(crate) mod choice;
pub(crate) mod weighted;

use std::ops::Range;

use crate::cached::{CachedRows, CachedValues};
use crate::lanes::rounding::from_f16;
use crate::lanes::vector::{StridedRows, exp_shifted};
use crate::lanes::{LANES, Lanes, Simd, larger, padded};
use crate::prefetch::Prefetcher;

/// Positions of one block: the length of a row of scores.
pub const BLOCK_POSITIONS: usize = 64;

/// Positions that all queries are multiplied by before the next ones. Keys of up to 256 columns
/// stay in the first-level cache meanwhile, and queries are loaded once per pass.
const PASS_POSITIONS: usize = 16;

/// Queries and the keys they are multiplied by.
#[derive(Clone, Copy, Debug)]
pub struct ScorePart<'a> {
    /// `[n_queries, key dim]`.
    pub queries: StridedRows<'a>,
    /// `[n_positions, key dim]`.
    pub keys: CachedRows<'a>,
}

/// All products of a score: see [`crate::KernelTable::scores`].
#[derive(Clone, Copy, Debug)]
pub struct ScoreInputs<'a> {
    /// Parts, summed in this order.
    pub parts: &'a [ScorePart<'a>],
    /// Rows to prefetch for the next call.
    pub next: Option<CachedRows<'a>>,
}

/// State of an online softmax over the positions seen so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftmaxState {
    /// Largest score.
    pub max: f32,
    /// Sum of `exp(score - max)`.
    pub sum: f32,
}

impl SoftmaxState {
    /// State before any position.
    pub const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };

    /// Returns whether no position was seen. After any position the largest contributes 1 to the
    /// sum.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sum == 0.0
    }
}

/// Scores that a softmax takes in: see [`crate::KernelTable::update_softmax`].
#[derive(Debug)]
pub struct SoftmaxUpdate<'a> {
    /// `[n_queries, BLOCK_POSITIONS]`: scores, then weights.
    pub scores: &'a mut [f32],
    /// Valid positions of each row.
    pub n_positions: usize,
    /// Factor applied to the scores first.
    pub scale: f32,
    /// `[n_queries]`.
    pub states: &'a mut [SoftmaxState],
    /// `[n_queries]`: factor for the previous sums.
    pub factors: &'a mut [f32],
}

impl ScorePart<'_> {
    pub(crate) fn check(&self, out: &[f32]) {
        let StridedRows { values, n_rows, row_len, stride } = self.queries;
        self.keys.check(BLOCK_POSITIONS);
        let are_codes = matches!(self.keys.values, CachedValues::Codes { .. });
        assert!(!are_codes, "scores of codes are products with a matrix");
        assert_eq!(row_len, self.keys.row_len, "a query is as long as a key");
        assert_eq!(out.len(), n_rows * BLOCK_POSITIONS, "a row of scores per query");
        let end = n_rows.checked_sub(1).map_or(0, |last| last * stride + row_len);
        assert!(end <= values.len(), "all queries");
    }
}

impl SoftmaxUpdate<'_> {
    pub(crate) fn check(&self) {
        let n_queries = self.states.len();
        assert!(self.n_positions <= BLOCK_POSITIONS, "{} positions in a block", self.n_positions);
        assert_eq!(self.scores.len(), n_queries * BLOCK_POSITIONS, "a row of scores per query");
        assert_eq!(self.factors.len(), n_queries, "a factor per query");
    }
}

/// Storage type of cached values.
pub(crate) trait CacheElement: Copy {
    const ZERO: Self;

    fn lanes<S: Simd>(simd: S, values: &[Self; LANES]) -> S::Vector;

    fn value(self) -> f32;
}

impl CacheElement for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn lanes<S: Simd>(simd: S, values: &[Self; LANES]) -> S::Vector {
        simd.load(values)
    }

    #[inline(always)]
    fn value(self) -> f32 {
        self
    }
}

/// The bits of half precision.
impl CacheElement for u16 {
    const ZERO: Self = 0;

    #[inline(always)]
    fn lanes<S: Simd>(simd: S, values: &[Self; LANES]) -> S::Vector {
        simd.widened(values)
    }

    #[inline(always)]
    fn value(self) -> f32 {
        from_f16(self)
    }
}

/// Codes, without their scale and bias.
impl CacheElement for u8 {
    const ZERO: Self = 0;

    #[inline(always)]
    fn lanes<S: Simd>(simd: S, values: &[Self; LANES]) -> S::Vector {
        simd.bytes(values)
    }

    #[inline(always)]
    fn value(self) -> f32 {
        f32::from(self)
    }
}

/// [`CachedRows`] of a known kind.
#[derive(Clone, Copy)]
pub(crate) struct TypedRows<'a, K> {
    pub(crate) values: &'a [K],
    pub(crate) n_rows: usize,
    pub(crate) row_len: usize,
    pub(crate) stride: usize,
}

impl<'a, K> TypedRows<'a, K> {
    #[inline(always)]
    pub(crate) fn new(rows: &CachedRows<'_>, values: &'a [K]) -> Self {
        Self { values, n_rows: rows.n_rows, row_len: rows.row_len, stride: rows.stride }
    }

    #[inline(always)]
    pub(crate) fn row(&self, row_idx: usize) -> &'a [K] {
        &self.values[row_idx * self.stride..][..self.row_len]
    }
}

#[inline(always)]
pub(crate) fn scores<S: Simd>(simd: S, scores: &ScoreInputs<'_>, out: &mut [f32]) {
    for (part_idx, part) in scores.parts.iter().enumerate() {
        let initial = if part_idx == 0 { InitialSum::Zero } else { InitialSum::Out };
        let part = (part, scores.next.filter(|_| part_idx == 0));
        match part.0.keys.values {
            CachedValues::F32(values) => {
                score_part(simd, part, &TypedRows::new(&part.0.keys, values), (initial, out));
            }
            CachedValues::F16(values) => {
                score_part(simd, part, &TypedRows::new(&part.0.keys, values), (initial, out));
            }
            CachedValues::Codes { .. } => {}
        }
    }
}

/// Initial value of a sum.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InitialSum {
    Zero,
    Out,
}

#[inline(always)]
fn score_part<S: Simd, K: CacheElement>(
    simd: S,
    (part, next): (&ScorePart<'_>, Option<CachedRows<'_>>),
    keys: &TypedRows<'_, K>,
    (initial, out): (InitialSum, &mut [f32]),
) {
    let n_queries = part.queries.n_rows;
    let n_chunks = keys.row_len.div_ceil(LANES);
    let n_steps = n_queries.div_ceil(S::SQUARE) * (keys.n_rows / 4) * n_chunks;
    let mut prefetcher = Prefetcher::new(next.as_ref(), n_steps);
    for first in (0..keys.n_rows).step_by(PASS_POSITIONS) {
        let positions = first..keys.n_rows.min(first + PASS_POSITIONS);
        let pass = ScorePass { queries: &part.queries, keys, positions, initial };
        let mut query = 0;
        while S::SQUARE >= 4 && query + 4 <= n_queries {
            pass.run::<S, 4, 4>(simd, query, (&mut prefetcher, out));
            query += 4;
        }
        while query + 2 <= n_queries {
            if S::SQUARE >= 4 {
                pass.run::<S, 2, 4>(simd, query, (&mut prefetcher, out));
            } else {
                pass.run::<S, 2, 2>(simd, query, (&mut prefetcher, out));
            }
            query += 2;
        }
        if query < n_queries {
            pass.run::<S, 1, 4>(simd, query, (&mut prefetcher, out));
        }
    }
}

/// A pass of some positions over all queries.
struct ScorePass<'a, K> {
    queries: &'a StridedRows<'a>,
    keys: &'a TypedRows<'a, K>,
    positions: Range<usize>,
    initial: InitialSum,
}

impl<K: CacheElement> ScorePass<'_, K> {
    /// Scores `Q` queries from `first_query`, `P` positions at a time.
    #[inline(always)]
    fn run<S: Simd, const Q: usize, const P: usize>(
        &self,
        simd: S,
        first_query: usize,
        (prefetcher, out): (&mut Prefetcher, &mut [f32]),
    ) {
        let queries: [&[f32]; Q] = std::array::from_fn(|r| self.queries.row(first_query + r));
        let out = &mut out[first_query * BLOCK_POSITIONS..];
        let Range { start: mut position, end } = self.positions;
        while position + P <= end {
            let keys: [&[K]; P] = std::array::from_fn(|p| self.keys.row(position + p));
            let sums = dots(simd, &queries, &keys, prefetcher);
            self.put(&sums, position, out);
            position += P;
        }
        while position < end {
            let sums = dots(simd, &queries, &[self.keys.row(position)], prefetcher);
            self.put(&sums, position, out);
            position += 1;
        }
    }

    #[inline(always)]
    fn put<const Q: usize, const P: usize>(
        &self,
        sums: &[[f32; P]; Q],
        position: usize,
        out: &mut [f32],
    ) {
        for (sums, out) in sums.iter().zip(out.chunks_exact_mut(BLOCK_POSITIONS)) {
            for (sum, out) in sums.iter().zip(&mut out[position..][..P]) {
                *out = if self.initial == InitialSum::Out { *out + sum } else { *sum };
            }
        }
    }
}

/// Returns the dot product of each query with each key.
#[inline(always)]
fn dots<S: Simd, K: CacheElement, const Q: usize, const P: usize>(
    simd: S,
    queries: &[&[f32]; Q],
    keys: &[&[K]; P],
    prefetcher: &mut Prefetcher,
) -> [[f32; P]; Q] {
    let zero = simd.splat(0.0);
    let mut lanes = [[zero; P]; Q];
    let n_chunks = queries[0].len() / LANES;
    let q: [&[Lanes]; Q] = std::array::from_fn(|r| &queries[r].as_chunks().0[..n_chunks]);
    let k: [&[[K; LANES]]; P] = std::array::from_fn(|p| &keys[p].as_chunks().0[..n_chunks]);
    for c in 0..n_chunks {
        prefetcher.step();
        let k: [S::Vector; P] = std::array::from_fn(|p| K::lanes(simd, &k[p][c]));
        for r in 0..Q {
            let q = simd.load(&q[r][c]);
            for p in 0..P {
                lanes[r][p] = simd.fma(q, k[p], lanes[r][p]);
            }
        }
    }
    let rest = n_chunks * LANES;
    if rest < queries[0].len() {
        let k: [S::Vector; P] = std::array::from_fn(|p| K::lanes(simd, &filled(&keys[p][rest..])));
        for r in 0..Q {
            let q = simd.load(&padded(&queries[r][rest..]));
            for p in 0..P {
                lanes[r][p] = simd.fma(q, k[p], lanes[r][p]);
            }
        }
    }
    let mut sums = [[0.0; P]; Q];
    let lanes = lanes.as_flattened();
    for (i, sums) in sums.as_flattened_mut().chunks_mut(4).enumerate() {
        let quad = std::array::from_fn(|j| lanes.get(4 * i + j).copied().unwrap_or(zero));
        let quad = simd.store4(simd.reduce4(quad));
        for (sum, value) in sums.iter_mut().zip(quad) {
            *sum = value;
        }
    }
    sums
}

/// Pads at most 16 values with zeros.
#[inline(always)]
pub(crate) fn filled<K: CacheElement>(values: &[K]) -> [K; LANES] {
    let mut lanes = [K::ZERO; LANES];
    lanes[..values.len()].copy_from_slice(values);
    lanes
}

#[inline(always)]
pub(crate) fn update_softmax<S: Simd>(simd: S, update: &mut SoftmaxUpdate<'_>) {
    let SoftmaxUpdate { scores, n_positions, scale, states, factors } = update;
    for (query, state) in states.iter_mut().enumerate() {
        let scores = &mut scores[query * BLOCK_POSITIONS..][..*n_positions];
        let max = larger(scale_and_max(simd, scores, *scale), state.max);
        factors[query] = state.max - max;
        state.max = max;
    }
    exp_shifted(simd, factors, 0.0);
    for (query, state) in states.iter_mut().enumerate() {
        let scores = &mut scores[query * BLOCK_POSITIONS..][..*n_positions];
        let sum = exp_shifted(simd, scores, state.max);
        state.sum = state.sum * factors[query] + sum;
    }
}

/// Scales the scores and returns the largest; NaN is ignored.
#[inline(always)]
fn scale_and_max<S: Simd>(simd: S, scores: &mut [f32], scale: f32) -> f32 {
    let (chunks, rest) = scores.as_chunks_mut::<LANES>();
    let mut largest = simd.splat(f32::NEG_INFINITY);
    for chunk in chunks {
        let scaled = simd.mul(simd.load(chunk), simd.splat(scale));
        simd.store(scaled, chunk);
        largest = simd.max(scaled, largest);
    }
    let mut lanes = [0.0; LANES];
    simd.store(largest, &mut lanes);
    for step in [8, 4, 2, 1] {
        for j in 0..step {
            lanes[j] = larger(lanes[j + step], lanes[j]);
        }
    }
    rest.iter_mut().fold(lanes[0], |max, score| {
        *score *= scale;
        larger(*score, max)
    })
}
