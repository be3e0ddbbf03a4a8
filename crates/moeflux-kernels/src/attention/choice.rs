//! Scores by which a row chooses keys: the weighted sum of its heads' positive products with a key.
//!
//! Heads lie in the lanes, so that a key is read once for sixteen of them, and a product needs no
//! sum over lanes. **Invariant:** a score depends on its key and on the queries alone. This module
//! knows neither positions nor how many are chosen.

use crate::attention::{BLOCK_POSITIONS, CacheElement, TypedRows, filled};
use crate::cached::{CachedRows, CachedValues};
use crate::lanes::vector::StridedRows;
use crate::lanes::{LANES, Lanes, Simd};

/// The queries of a row and the weights of their heads, in the order of the kernels: for each
/// sixteen heads their weights, then a column of their queries after the other. Heads that are
/// missing from the last sixteen are zeros.
#[derive(Clone, Copy, Debug)]
pub struct ChoiceQueries<'a> {
    packed: &'a [Lanes],
    n_cols: usize,
}

impl<'a> ChoiceQueries<'a> {
    /// Returns the number of packed values.
    #[must_use]
    pub const fn n_values(n_heads: usize, n_cols: usize) -> usize {
        n_heads.div_ceil(LANES) * (1 + n_cols) * LANES
    }

    /// Packs queries; without weights, all of them are 1.
    ///
    /// # Panics
    ///
    /// If the number of values or of weights is wrong.
    pub fn pack(queries: &StridedRows<'_>, weights: Option<&[f32]>, packed: &mut [f32]) {
        let (n_heads, n_cols) = (queries.n_rows, queries.row_len);
        assert_eq!(packed.len(), Self::n_values(n_heads, n_cols), "packed values");
        assert!(weights.is_none_or(|weights| weights.len() == n_heads), "a weight for each head");
        packed.fill(0.0);
        let (packed, _) = packed.as_chunks_mut::<LANES>();
        for (chunk, packed) in packed.chunks_exact_mut(1 + n_cols).enumerate() {
            let heads = chunk * LANES..n_heads.min((chunk + 1) * LANES);
            for (lane, head) in heads.enumerate() {
                packed[0][lane] = weights.map_or(1.0, |weights| weights[head]);
                for (packed, value) in packed[1..].iter_mut().zip(queries.row(head)) {
                    packed[lane] = *value;
                }
            }
        }
    }

    /// Returns packed queries of `n_cols` columns.
    ///
    /// # Panics
    ///
    /// If they are not whole chunks of heads.
    #[must_use]
    pub fn new(packed: &'a [f32], n_cols: usize) -> Self {
        let (packed, rest) = packed.as_chunks();
        assert!(rest.is_empty() && packed.len().is_multiple_of(1 + n_cols), "chunks of heads");
        Self { packed, n_cols }
    }

    /// Returns the weights and the columns of each sixteen heads.
    #[inline(always)]
    fn chunks(&self) -> impl Iterator<Item = (&'a Lanes, &'a [Lanes])> {
        self.packed.chunks_exact(1 + self.n_cols).map(|chunk| (&chunk[0], &chunk[1..]))
    }
}

/// Queries and the keys that they score: see [`crate::KernelTable::choice_scores`].
#[derive(Clone, Copy, Debug)]
pub struct ChoiceInputs<'a> {
    /// Queries of one row.
    pub queries: ChoiceQueries<'a>,
    /// Keys, at most [`BLOCK_POSITIONS`].
    pub keys: CachedRows<'a>,
}

impl ChoiceInputs<'_> {
    pub(crate) fn check(&self, out: &[f32]) {
        self.keys.check(BLOCK_POSITIONS);
        let are_codes = matches!(self.keys.values, CachedValues::Codes { .. });
        assert!(!are_codes, "keys of a choice are not rounded to codes");
        assert_eq!(self.queries.n_cols, self.keys.row_len, "a query is as long as a key");
        assert_eq!(out.len(), self.keys.n_rows, "a score for each key");
    }
}

#[inline(always)]
pub(crate) fn choice_scores<S: Simd>(simd: S, inputs: &ChoiceInputs<'_>, out: &mut [f32]) {
    let ChoiceInputs { queries, keys } = inputs;
    match keys.values {
        CachedValues::F32(values) => {
            score_keys(simd, queries, &TypedRows::new(keys, values), out);
        }
        CachedValues::F16(values) => {
            score_keys(simd, queries, &TypedRows::new(keys, values), out);
        }
        CachedValues::Codes { .. } => {}
    }
}

#[inline(always)]
fn score_keys<S: Simd, K: CacheElement>(
    simd: S,
    queries: &ChoiceQueries<'_>,
    keys: &TypedRows<'_, K>,
    out: &mut [f32],
) {
    let mut idx = 0;
    while S::SQUARE >= 4 && idx + 8 <= keys.n_rows {
        score_tile::<S, K, 8>(simd, queries, (keys, idx), &mut out[idx..idx + 8]);
        idx += 8;
    }
    while idx + 4 <= keys.n_rows {
        score_tile::<S, K, 4>(simd, queries, (keys, idx), &mut out[idx..idx + 4]);
        idx += 4;
    }
    while idx < keys.n_rows {
        score_tile::<S, K, 1>(simd, queries, (keys, idx), &mut out[idx..=idx]);
        idx += 1;
    }
}

/// Scores `P` keys from `first` on.
#[inline(always)]
fn score_tile<S: Simd, K: CacheElement, const P: usize>(
    simd: S,
    queries: &ChoiceQueries<'_>,
    (keys, first): (&TypedRows<'_, K>, usize),
    out: &mut [f32],
) {
    let keys: [&[K]; P] = std::array::from_fn(|p| keys.row(first + p));
    let zero = simd.splat(0.0);
    let mut sums = [zero; P];
    for (weights, columns) in queries.chunks() {
        let products = products(simd, columns, &keys);
        let weights = simd.load(weights);
        for p in 0..P {
            // Of zero and NaN, `max` returns the second.
            sums[p] = simd.fma(weights, simd.max(zero, products[p]), sums[p]);
        }
    }
    for (sums, out) in sums.chunks(4).zip(out.chunks_mut(4)) {
        let quad = std::array::from_fn(|j| sums.get(j).copied().unwrap_or(zero));
        let quad = simd.store4(simd.reduce4(quad));
        out.iter_mut().zip(quad).for_each(|(out, score)| *out = score);
    }
}

/// Returns the products of sixteen heads with each key.
#[inline(always)]
fn products<S: Simd, K: CacheElement, const P: usize>(
    simd: S,
    columns: &[Lanes],
    keys: &[&[K]; P],
) -> [S::Vector; P] {
    let mut sums = [simd.splat(0.0); P];
    let mut wide = [[0.0; LANES]; P];
    let (whole, rest) = columns.as_chunks::<LANES>();
    for (chunk, columns) in whole.iter().enumerate() {
        for p in 0..P {
            simd.store(K::lanes(simd, &keys[p].as_chunks().0[chunk]), &mut wide[p]);
        }
        for col in 0..LANES {
            let column = simd.load(&columns[col]);
            for p in 0..P {
                sums[p] = simd.fma(column, simd.splat(wide[p][col]), sums[p]);
            }
        }
    }
    let first = whole.len() * LANES;
    for p in 0..P {
        simd.store(K::lanes(simd, &filled(&keys[p][first..])), &mut wide[p]);
    }
    for (col, column) in rest.iter().enumerate().take(LANES) {
        let column = simd.load(column);
        for p in 0..P {
            sums[p] = simd.fma(column, simd.splat(wide[p][col]), sums[p]);
        }
    }
    sums
}
