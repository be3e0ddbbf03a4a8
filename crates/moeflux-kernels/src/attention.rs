//! Attention over stored keys: scores of a block of positions and their softmax.
//!
//! Several queries are multiplied by a block together, so that its data is read once for all of
//! them. **Invariant:** a query's results do not depend on the other queries: every sum has the
//! order stated in the crate's documentation. Knows neither heads, windows nor the number of
//! positions.

use std::ops::Range;

use crate::kept::{Kept, KeptRows};
use crate::lanes::{LANES, Lanes, Simd, larger, padded};
use crate::rounding::from_f16;
use crate::upcoming::Upcoming;
use crate::vector::{Rows, exp_shifted};

/// Positions of one block: the length of a row of scores.
pub const BLOCK_POSITIONS: usize = 64;

/// Positions that all queries are multiplied by before the next ones. Keys of up to 256 columns
/// stay in the first-level cache meanwhile, and queries are loaded once per pass.
const PASS_POSITIONS: usize = 16;

/// Queries and the keys they are multiplied by.
#[derive(Clone, Copy, Debug)]
pub struct ScorePart<'a> {
    /// `[n_queries, key dim]`.
    pub queries: Rows<'a>,
    /// `[n_positions, key dim]`.
    pub keys: KeptRows<'a>,
}

/// All products of a score: see [`crate::KernelTable::scores`].
#[derive(Clone, Copy, Debug)]
pub struct Scores<'a> {
    /// Parts, summed in this order.
    pub parts: &'a [ScorePart<'a>],
    /// Rows to prefetch for the next call.
    pub next: Option<KeptRows<'a>>,
}

/// State of an online softmax over the positions seen so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Running {
    /// Largest score.
    pub max: f32,
    /// Sum of `exp(score - max)`.
    pub sum: f32,
}

impl Running {
    /// State before any position.
    pub const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };

    /// Returns whether no position was seen. After any position the largest contributes 1 to the
    /// sum.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sum == 0.0
    }
}

/// Scores that a softmax takes in: see [`crate::KernelTable::admit`].
#[derive(Debug)]
pub struct Admission<'a> {
    /// `[n_queries, BLOCK_POSITIONS]`: scores, then weights.
    pub scores: &'a mut [f32],
    /// Valid positions of each row.
    pub n_positions: usize,
    /// Factor applied to the scores first.
    pub scale: f32,
    /// `[n_queries]`.
    pub running: &'a mut [Running],
    /// `[n_queries]`: factor for the previous sums.
    pub factors: &'a mut [f32],
}

impl ScorePart<'_> {
    pub(crate) fn check(&self, out: &[f32]) {
        let Rows { values, n_rows, row_len, stride } = self.queries;
        self.keys.check(BLOCK_POSITIONS);
        let are_codes = matches!(self.keys.values, Kept::Codes { .. });
        assert!(!are_codes, "scores of codes are products with a matrix");
        assert_eq!(row_len, self.keys.row_len, "a query is as long as a key");
        assert_eq!(out.len(), n_rows * BLOCK_POSITIONS, "a row of scores per query");
        let end = n_rows.checked_sub(1).map_or(0, |last| last * stride + row_len);
        assert!(end <= values.len(), "all queries");
    }
}

impl Admission<'_> {
    pub(crate) fn check(&self) {
        let n_queries = self.running.len();
        assert!(self.n_positions <= BLOCK_POSITIONS, "{} positions in a block", self.n_positions);
        assert_eq!(self.scores.len(), n_queries * BLOCK_POSITIONS, "a row of scores per query");
        assert_eq!(self.factors.len(), n_queries, "a factor per query");
    }
}

/// Storage type of cached values.
pub(crate) trait Stored: Copy {
    const ZERO: Self;

    fn lanes<S: Simd>(simd: S, values: &[Self; LANES]) -> S::Vector;

    fn value(self) -> f32;
}

impl Stored for f32 {
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
impl Stored for u16 {
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
impl Stored for u8 {
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

/// [`KeptRows`] of a known kind.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a, K> {
    pub(crate) values: &'a [K],
    pub(crate) n_rows: usize,
    pub(crate) row_len: usize,
    pub(crate) stride: usize,
}

impl<'a, K> Table<'a, K> {
    #[inline(always)]
    pub(crate) fn new(rows: &KeptRows<'_>, values: &'a [K]) -> Self {
        Self { values, n_rows: rows.n_rows, row_len: rows.row_len, stride: rows.stride }
    }

    #[inline(always)]
    pub(crate) fn row(&self, row_idx: usize) -> &'a [K] {
        &self.values[row_idx * self.stride..][..self.row_len]
    }
}

#[inline(always)]
pub(crate) fn scores<S: Simd>(simd: S, scores: &Scores<'_>, out: &mut [f32]) {
    for (part_idx, part) in scores.parts.iter().enumerate() {
        let base = if part_idx == 0 { Base::Zero } else { Base::Out };
        let part = (part, scores.next.filter(|_| part_idx == 0));
        match part.0.keys.values {
            Kept::F32(values) => {
                score_part(simd, part, &Table::new(&part.0.keys, values), (base, out));
            }
            Kept::F16(values) => {
                score_part(simd, part, &Table::new(&part.0.keys, values), (base, out));
            }
            Kept::Codes { .. } => {}
        }
    }
}

/// Initial value of a sum.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Base {
    Zero,
    Out,
}

#[inline(always)]
fn score_part<S: Simd, K: Stored>(
    simd: S,
    (part, next): (&ScorePart<'_>, Option<KeptRows<'_>>),
    keys: &Table<'_, K>,
    (base, out): (Base, &mut [f32]),
) {
    let n_queries = part.queries.n_rows;
    let n_chunks = keys.row_len.div_ceil(LANES);
    let n_steps = n_queries.div_ceil(S::SQUARE) * (keys.n_rows / 4) * n_chunks;
    let mut upcoming = Upcoming::new(next.as_ref(), n_steps);
    for first in (0..keys.n_rows).step_by(PASS_POSITIONS) {
        let positions = first..keys.n_rows.min(first + PASS_POSITIONS);
        let pass = Pass { queries: &part.queries, keys, positions, base };
        let mut query = 0;
        while S::SQUARE >= 4 && query + 4 <= n_queries {
            pass.run::<S, 4, 4>(simd, query, (&mut upcoming, out));
            query += 4;
        }
        while query + 2 <= n_queries {
            if S::SQUARE >= 4 {
                pass.run::<S, 2, 4>(simd, query, (&mut upcoming, out));
            } else {
                pass.run::<S, 2, 2>(simd, query, (&mut upcoming, out));
            }
            query += 2;
        }
        if query < n_queries {
            pass.run::<S, 1, 4>(simd, query, (&mut upcoming, out));
        }
    }
}

/// A pass of some positions over all queries.
struct Pass<'a, K> {
    queries: &'a Rows<'a>,
    keys: &'a Table<'a, K>,
    positions: Range<usize>,
    base: Base,
}

impl<K: Stored> Pass<'_, K> {
    /// Scores `Q` queries from `first_query`, `P` positions at a time.
    #[inline(always)]
    fn run<S: Simd, const Q: usize, const P: usize>(
        &self,
        simd: S,
        first_query: usize,
        (upcoming, out): (&mut Upcoming, &mut [f32]),
    ) {
        let queries: [&[f32]; Q] = std::array::from_fn(|r| self.queries.row(first_query + r));
        let out = &mut out[first_query * BLOCK_POSITIONS..];
        let Range { start: mut position, end } = self.positions;
        while position + P <= end {
            let keys: [&[K]; P] = std::array::from_fn(|p| self.keys.row(position + p));
            let sums = dots(simd, &queries, &keys, upcoming);
            self.put(&sums, position, out);
            position += P;
        }
        while position < end {
            let sums = dots(simd, &queries, &[self.keys.row(position)], upcoming);
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
                *out = if self.base == Base::Out { *out + sum } else { *sum };
            }
        }
    }
}

/// Returns the dot product of each query with each key.
#[inline(always)]
fn dots<S: Simd, K: Stored, const Q: usize, const P: usize>(
    simd: S,
    queries: &[&[f32]; Q],
    keys: &[&[K]; P],
    upcoming: &mut Upcoming,
) -> [[f32; P]; Q] {
    let zero = simd.splat(0.0);
    let mut lanes = [[zero; P]; Q];
    let n_chunks = queries[0].len() / LANES;
    let q: [&[Lanes]; Q] = std::array::from_fn(|r| &queries[r].as_chunks().0[..n_chunks]);
    let k: [&[[K; LANES]]; P] = std::array::from_fn(|p| &keys[p].as_chunks().0[..n_chunks]);
    for c in 0..n_chunks {
        upcoming.step();
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
fn filled<K: Stored>(values: &[K]) -> [K; LANES] {
    let mut lanes = [K::ZERO; LANES];
    lanes[..values.len()].copy_from_slice(values);
    lanes
}

#[inline(always)]
pub(crate) fn admit<S: Simd>(simd: S, admission: &mut Admission<'_>) {
    let Admission { scores, n_positions, scale, running, factors } = admission;
    for (query, running) in running.iter_mut().enumerate() {
        let scores = &mut scores[query * BLOCK_POSITIONS..][..*n_positions];
        let max = larger(scale_and_max(simd, scores, *scale), running.max);
        factors[query] = running.max - max;
        running.max = max;
    }
    exp_shifted(simd, factors, 0.0);
    for (query, running) in running.iter_mut().enumerate() {
        let scores = &mut scores[query * BLOCK_POSITIONS..][..*n_positions];
        let sum = exp_shifted(simd, scores, running.max);
        running.sum = running.sum * factors[query] + sum;
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
