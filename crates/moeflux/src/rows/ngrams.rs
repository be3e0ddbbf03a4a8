//! From tokens to rows of a table: hashes of n-grams in 64 bits.
//!
//! A token and those before it are multiplied by an odd number each; the products are combined with
//! exclusive or, and the remainder by a head's prime is a row of that head. An n-gram ends at an
//! end token: earlier ones, and those before the first token, count as end tokens.
//!
//! **Invariant:** rows depend on the shape and the last [`NgramHash::n_earlier`] tokens only, and
//! are those of transformers' `qwen4_exp`. This module knows no bytes of the table.

use crate::ids::TokenId;
use crate::spec::NgramShape;

/// Increment and multipliers of SplitMix64.
const SPLITMIX: [u64; 3] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];

/// Distance of the seeds of two tables.
const SEED_STEP: u64 = 10_007;

/// The hashes of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NgramHash {
    shape: NgramShape,
    /// By distance from the token.
    multipliers: Vec<i64>,
    /// By head: its number of rows, a prime.
    n_rows_of_heads: Vec<i64>,
    /// By head: the first of its rows.
    first_rows: Vec<i64>,
}

/// The numbers of a hash that checkpoints store as tensors of I64.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NgramConstants<'a> {
    /// `layer_multipliers`.
    pub(crate) multipliers: &'a [i64],
    /// `ngram_heads_vocab_sizes`.
    pub(crate) n_rows_of_heads: &'a [i64],
    /// `ngram_heads_offsets`.
    pub(crate) first_rows: &'a [i64],
}

impl NgramHash {
    /// Computes the constants of a table.
    ///
    /// # Panics
    ///
    /// If the shape was not checked.
    #[must_use]
    pub(crate) fn new(shape: &NgramShape) -> Self {
        assert_eq!(shape.check(), Ok(()), "the shape was checked");
        let n_heads = shape.n_heads();
        // The tables of a model have consecutive primes.
        let primes = (shape.n_rows_min..).filter(|number| is_prime(*number));
        let primes = primes.skip(shape.table_idx * n_heads).take(n_heads);
        let primes = primes.map(|prime| i64::try_from(prime).expect("primes follow a bound"));
        let n_rows_of_heads: Vec<i64> = primes.collect();
        let mut next = 0;
        let first_rows = n_rows_of_heads.iter().map(|n_rows| {
            let first = next;
            next += n_rows;
            first
        });
        let first_rows = first_rows.collect();
        Self { shape: *shape, multipliers: multipliers(shape), n_rows_of_heads, first_rows }
    }

    /// Returns the numbers that checkpoints store.
    #[must_use]
    pub(crate) fn constants(&self) -> NgramConstants<'_> {
        let Self { multipliers, n_rows_of_heads, first_rows, .. } = self;
        NgramConstants { multipliers, n_rows_of_heads, first_rows }
    }

    /// Returns the rows of the table, including those that only fill it up.
    #[must_use]
    pub(crate) fn n_rows(&self) -> usize {
        let n_used: i64 = self.n_rows_of_heads.iter().sum();
        let n_rows = n_used.unsigned_abs().next_multiple_of(self.shape.divisor);
        usize::try_from(n_rows).unwrap_or(usize::MAX)
    }

    /// Returns how many rows a token needs.
    #[must_use]
    pub(crate) fn n_heads(&self) -> usize {
        self.n_rows_of_heads.len()
    }

    /// Returns how many tokens before a token affect its rows.
    #[must_use]
    pub(crate) fn n_earlier(&self) -> usize {
        self.shape.n_tokens_max - 1
    }

    /// Appends the rows that each of `tokens` needs: `[n_tokens, n_heads]`. `earlier` are the
    /// tokens before them; of these, the last [`NgramHash::n_earlier`] suffice.
    pub(crate) fn rows(&self, earlier: &[TokenId], tokens: &[TokenId], rows: &mut Vec<u64>) {
        for (token_idx, token) in tokens.iter().enumerate() {
            let before = tokens[..token_idx].iter().rev().chain(earlier.iter().rev()).copied();
            self.rows_of(*token, before, rows);
        }
    }

    /// Appends the rows of one token. `before` yields the tokens before it, last first.
    fn rows_of(
        &self,
        token: TokenId,
        mut before: impl Iterator<Item = TokenId>,
        rows: &mut Vec<u64>,
    ) {
        let NgramShape { n_heads_each, end, .. } = self.shape;
        let product = |token: TokenId, multiplier: i64| i64::from(token.0).wrapping_mul(multiplier);
        let mut mixed = product(token, self.multipliers[0]);
        let mut has_ended = false;
        for (length_idx, multiplier) in self.multipliers[1..].iter().enumerate() {
            let other = if has_ended { end } else { before.next().unwrap_or(end) };
            has_ended |= other == end;
            mixed ^= product(other, *multiplier);
            for head in length_idx * n_heads_each..(length_idx + 1) * n_heads_each {
                let in_head = mixed.rem_euclid(self.n_rows_of_heads[head]);
                rows.push((self.first_rows[head] + in_head).unsigned_abs());
            }
        }
    }
}

/// Returns odd multipliers, so small that no product with a token overflows.
fn multipliers(shape: &NgramShape) -> Vec<i64> {
    let vocab = i64::try_from(shape.vocab).unwrap_or(i64::MAX).max(1);
    let bound = (i64::MAX / vocab / 2).max(1).unsigned_abs();
    let seed = shape.seed.cast_unsigned().wrapping_add(SEED_STEP * shape.table_idx as u64);
    let numbers = (1..=shape.n_tokens_max as u64)
        .map(|number| splitmix(seed.wrapping_add(SPLITMIX[0].wrapping_mul(number))));
    numbers.map(|number| 2 * (number % bound).cast_signed() + 1).collect()
}

fn splitmix(seed: u64) -> u64 {
    let [increment, first, second] = SPLITMIX;
    let mut value = seed.wrapping_add(increment);
    value = (value ^ (value >> 30)).wrapping_mul(first);
    value = (value ^ (value >> 27)).wrapping_mul(second);
    value ^ (value >> 31)
}

fn is_prime(number: u64) -> bool {
    let mut divisors = (2..).take_while(|divisor| divisor * divisor <= number);
    number >= 2 && divisors.all(|divisor| !number.is_multiple_of(divisor))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Made by `tools/oracle/ngrams.py` with transformers 5.24.
    const CASES: &str = include_str!("../../tests/data/ngrams/cases.json");

    fn number(value: &Value, key: &str) -> usize {
        usize::try_from(value[key].as_u64().unwrap()).unwrap()
    }

    fn integers(value: &Value) -> Vec<i64> {
        value.as_array().unwrap().iter().map(|it| it.as_i64().unwrap()).collect()
    }

    fn shape_of(value: &Value) -> NgramShape {
        NgramShape {
            vocab: number(value, "vocab"),
            n_tokens_max: number(value, "n_tokens_max"),
            n_heads_each: number(value, "n_heads_each"),
            n_rows_min: value["n_rows_min"].as_u64().unwrap(),
            divisor: value["divisor"].as_u64().unwrap(),
            seed: value["seed"].as_i64().unwrap(),
            table_idx: number(value, "module_idx"),
            end: TokenId(u32::try_from(number(value, "end")).unwrap()),
        }
    }

    #[test]
    fn rows_are_those_of_transformers_in_pieces_of_any_size() {
        let cases: Vec<Value> = serde_json::from_str(CASES).unwrap();
        assert!(cases.len() >= 20);
        for case in &cases {
            let hash = NgramHash::new(&shape_of(&case["shape"]));
            let NgramConstants { multipliers, n_rows_of_heads, first_rows } = hash.constants();
            assert_eq!(multipliers, integers(&case["multipliers"]));
            assert_eq!(n_rows_of_heads, integers(&case["n_rows_of_heads"]));
            assert_eq!(first_rows, integers(&case["first_rows"]));
            assert_eq!(hash.n_rows(), number(case, "n_rows"));
            assert_eq!(hash.n_heads(), n_rows_of_heads.len());
            let tokens = integers(&case["tokens"]).into_iter();
            let tokens: Vec<TokenId> = tokens.map(|it| TokenId(it.try_into().unwrap())).collect();
            let rows = case["rows"].as_array().unwrap().iter().flat_map(integers);
            let expected: Vec<u64> = rows.map(i64::unsigned_abs).collect();
            for piece in [1, 2, 3, 7, tokens.len()] {
                let mut rows = Vec::new();
                for begin in (0..tokens.len()).step_by(piece) {
                    let end = (begin + piece).min(tokens.len());
                    let earlier = &tokens[begin.saturating_sub(hash.n_earlier())..begin];
                    hash.rows(earlier, &tokens[begin..end], &mut rows);
                }
                assert_eq!(rows, expected, "in pieces of {piece}");
            }
            assert!(expected.iter().all(|row| *row < hash.n_rows() as u64));
        }
    }

    #[test]
    fn the_largest_shape_is_computed_at_once() {
        let shape = NgramShape {
            vocab: u32::MAX as usize,
            n_tokens_max: 2,
            n_heads_each: 64,
            n_rows_min: 1 << 32,
            divisor: 1 << 20,
            seed: i64::MIN,
            table_idx: 15,
            end: TokenId(0),
        };
        let hash = NgramHash::new(&shape);
        let mut rows = Vec::new();
        hash.rows(&[], &[TokenId(u32::MAX)], &mut rows);
        assert!(rows.len() == 64 && rows.iter().all(|row| *row < hash.n_rows() as u64));
    }
}
