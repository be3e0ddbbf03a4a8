//! Spreads the values of a vector over its columns, by a Walsh-Hadamard transform of its blocks.
//!
//! The keys of some models have a few columns with far larger values than the others. Rounded to
//! codes, their range determines the error of a whole group. Spread over a block, they add little
//! to the range. **Invariant:** the transform is orthogonal but for its factor, so that the product
//! of a spread query with a spread key is that of the query with the key. Every value is the result
//! of the same additions, subtractions and one multiplication on every CPU.

/// Values of the largest block: heads are rarely longer.
const BLOCK_MAX: usize = 256;

/// The transform of a vector: see [`crate::RowOp::Spread`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Values of a block: the largest power of two that divides the columns, at most 256.
    block: usize,
    /// Applied last. A power of two, so that it rounds nothing; those of key and query together
    /// are `1 / block`.
    factor: f32,
}

impl Spread {
    /// Returns the transform of keys, before they are rounded.
    #[must_use]
    pub const fn of_key(n_cols: usize) -> Self {
        let block = block_of(n_cols);
        Self { block, factor: inverse_power(block.ilog2().div_ceil(2)) }
    }

    /// Returns the transform of queries, before their product with spread keys.
    #[must_use]
    pub const fn of_query(n_cols: usize) -> Self {
        let block = block_of(n_cols);
        Self { block, factor: inverse_power(block.ilog2() / 2) }
    }

    pub(crate) fn check(&self, n: usize) {
        assert!(n.is_multiple_of(self.block), "{n} values are whole blocks of {}", self.block);
    }

    #[inline(always)]
    pub(crate) fn apply(self, values: &mut [f32]) {
        let mut scratch = [0.0; BLOCK_MAX];
        let scratch = &mut scratch[..self.block];
        for values in values.chunks_exact_mut(self.block) {
            let mut n = 1;
            while 4 * n <= self.block {
                add_and_subtract(values, scratch);
                add_and_subtract(scratch, values);
                n *= 4;
            }
            if n < self.block {
                add_and_subtract(values, scratch);
                values.copy_from_slice(scratch);
            }
        }
        values.iter_mut().for_each(|it| *it *= self.factor);
    }
}

/// Returns the values of a block of a vector.
const fn block_of(n_cols: usize) -> usize {
    let block = 1 << n_cols.trailing_zeros();
    if block < BLOCK_MAX { block } else { BLOCK_MAX }
}

/// Returns `2^-exponent`.
const fn inverse_power(exponent: u32) -> f32 {
    f32::from_bits((127 - exponent) << 23)
}

/// One of the transform's equal steps. Compilers vectorise it; with pairs at distances of 1, 2, 4,
/// .. the transform takes twice as long.
#[inline(always)]
fn add_and_subtract(from: &[f32], to: &mut [f32]) {
    let (firsts, seconds) = from.split_at(from.len() / 2);
    let (pairs, _) = to.as_chunks_mut::<2>();
    for ((a, b), pair) in firsts.iter().zip(seconds).zip(pairs) {
        *pair = [a + b, a - b];
    }
}

#[cfg(test)]
mod tests {
    use moeflux_testing::random::Rng;

    use super::*;
    use crate::tests::{NMSE_MAX, nmse, same_bits, scalar};
    use crate::{RowOp, available};

    /// Columns, and the block that they are transformed in.
    const SHAPES: [(usize, usize); 8] =
        [(1, 1), (2, 2), (12, 4), (32, 32), (96, 32), (64, 64), (128, 128), (512, 256)];

    fn spread(spread: Spread, values: &[f32]) -> Vec<f32> {
        let mut out = values.to_vec();
        scalar().apply(&RowOp::Spread(spread), &mut out);
        out
    }

    /// Returns the product of a block with the Hadamard matrix, whose elements are -1 where row
    /// and column have an odd number of common bits, and 1 elsewhere.
    fn by_matrix(values: &[f32]) -> Vec<f64> {
        let is_odd = |row: usize, col: usize| (row & col).count_ones() % 2 == 1;
        let term = |row, (col, &x): (usize, &f32)| f64::from(if is_odd(row, col) { -x } else { x });
        (0..values.len())
            .map(|row| values.iter().enumerate().map(|it| term(row, it)).sum())
            .collect()
    }

    #[test]
    fn the_transform_is_as_stated() {
        let mut rng = Rng::new(26);
        for (n, block) in SHAPES {
            let x = rng.units(n);
            let mut stated = x.clone();
            for values in stated.chunks_exact_mut(block) {
                for _ in 0..block.ilog2() {
                    let pair = |i| [values[i], values[i + block / 2]];
                    let pairs = (0..block / 2).map(pair).map(|[a, b]| [a + b, a - b]);
                    let pairs: Vec<_> = pairs.flatten().collect();
                    values.copy_from_slice(&pairs);
                }
            }
            for of_one in [Spread::of_key(n), Spread::of_query(n)] {
                let mut stated = stated.clone();
                stated.iter_mut().for_each(|it| *it *= of_one.factor);
                for table in available() {
                    let mut out = x.clone();
                    table.apply(&RowOp::Spread(of_one), &mut out);
                    same_bits(&out, &stated, &format!("{}, {n} values", table.name()));
                }
                let exact = x.chunks(block).flat_map(by_matrix);
                let exact: Vec<f64> = exact.map(|it| it * f64::from(of_one.factor)).collect();
                let error = nmse(&stated, &exact);
                assert!(error <= NMSE_MAX, "{n} values in blocks of {block}: {error:e}");
            }
        }
    }

    #[test]
    fn products_stay_and_large_values_are_spread() {
        let dot = |a: &[f32], b: &[f32]| {
            a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>()
        };
        let mut rng = Rng::new(27);
        for n in [32, 64, 96, 128, 160, 192, 256, 320, 512, 576] {
            let (query, mut key) = (rng.units(n), rng.units(n));
            key[n / 2] = 1000.0;
            let spread_key = spread(Spread::of_key(n), &key);
            let actual = dot(&spread(Spread::of_query(n), &query), &spread_key);
            let error = (actual - dot(&query, &key)).abs();
            assert!(error <= 1e-6 * 1000.0 * dot(&query, &query).sqrt(), "{n}: {error:e}");
            let largest = spread_key.iter().fold(0.0_f32, |max, it| max.max(it.abs()));
            assert!(largest <= 1000.0 / 32.0_f32.sqrt() * 1.5, "{n}: {largest}");
        }
    }

    #[test]
    fn broken_values_reach_their_whole_block() {
        for broken in [f32::NAN, f32::INFINITY] {
            let mut x = vec![1.0; 96];
            x[40] = broken;
            let out = spread(Spread::of_key(96), &x);
            assert!(out[32..64].iter().all(|it| !it.is_finite()));
            assert!(out[..32].iter().chain(&out[64..]).all(|it| it.is_finite()));
        }
    }

    #[test]
    #[should_panic(expected = "whole blocks")]
    fn blocks_are_whole() {
        scalar().apply(&RowOp::Spread(Spread::of_key(64)), &mut [1.0; 96]);
    }
}
