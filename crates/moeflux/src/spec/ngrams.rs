//! The shape of a table whose rows are found by hashes of the last tokens.

use crate::ids::TokenId;

/// Upper bound on the tokens of an n-gram; published models have 3.
pub(crate) const N_NGRAM_TOKENS_MAX: usize = 8;

/// Upper bound on the rows that a token needs from one table; published models have 16.
pub(crate) const N_NGRAM_HEADS_MAX: usize = 64;

/// Upper bound on the least number of rows of a head, so that primes are found at once; published
/// models have 20 million.
pub(crate) const N_NGRAM_ROWS_MAX: u64 = 1 << 32;

/// Upper bound on the divisor of a table's number of rows; published models have 128.
pub(crate) const NGRAM_DIVISOR_MAX: u64 = 1 << 20;

/// Upper bound on the tables of a model, each of which has its own primes; published models have
/// one.
pub(crate) const N_NGRAM_TABLES_MAX: usize = 16;

/// The shape of a table of n-grams. For each length from 2 to `n_tokens_max` it has several heads,
/// which hash into their own rows of the table: as many as the next free prime from `n_rows_min`
/// on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NgramShape {
    /// Entries of the vocabulary.
    pub(crate) vocab: usize,
    /// Tokens of the longest n-gram.
    pub(crate) n_tokens_max: usize,
    /// Heads for each length.
    pub(crate) n_heads_each: usize,
    /// Lower bound on the rows of a head.
    pub(crate) n_rows_min: u64,
    /// The number of rows of the table is a multiple of this.
    pub(crate) divisor: u64,
    /// Seed of the multipliers.
    pub(crate) seed: i64,
    /// Index of the table among those of the model.
    pub(crate) table_idx: usize,
    /// The token after which n-grams begin anew. It stands for missing tokens, too.
    pub(crate) end: TokenId,
}

impl NgramShape {
    /// Returns the number of rows that a token needs.
    pub(crate) fn n_heads(&self) -> usize {
        self.n_tokens_max.saturating_sub(1).saturating_mul(self.n_heads_each)
    }

    /// Checks all numbers. Returns what is wrong with the first that is out of bounds.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { vocab, n_tokens_max, n_rows_min, divisor, table_idx, end, .. } = *self;
        let n_heads = self.n_heads();
        if !(2..=N_NGRAM_TOKENS_MAX).contains(&n_tokens_max) {
            return Err(format!(
                "n-grams of {n_tokens_max} tokens; 2 to {N_NGRAM_TOKENS_MAX} are supported"
            ));
        }
        if !(1..=N_NGRAM_HEADS_MAX).contains(&n_heads) {
            return Err(format!(
                "{n_heads} rows of n-grams for each token; 1 to {N_NGRAM_HEADS_MAX} are supported"
            ));
        }
        if !(1..=N_NGRAM_ROWS_MAX).contains(&n_rows_min) {
            return Err(format!(
                "{n_rows_min} rows for each head of n-grams; 1 to {N_NGRAM_ROWS_MAX} are supported"
            ));
        }
        if !(1..=NGRAM_DIVISOR_MAX).contains(&divisor) {
            return Err(format!(
                "a multiple of {divisor} as the rows of a table of n-grams; 1 to \
                 {NGRAM_DIVISOR_MAX} are supported"
            ));
        }
        if table_idx >= N_NGRAM_TABLES_MAX {
            return Err(format!(
                "{} tables of n-grams; {N_NGRAM_TABLES_MAX} are supported",
                table_idx + 1
            ));
        }
        if end.0 as usize >= vocab {
            return Err(format!(
                "token {} ends n-grams, but the vocabulary has {vocab} tokens",
                end.0
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        let sound = NgramShape {
            vocab: 100,
            n_tokens_max: 3,
            n_heads_each: 8,
            n_rows_min: 20_000_000,
            divisor: 128,
            seed: 1234,
            table_idx: 0,
            end: TokenId(99),
        };
        assert_eq!(sound.check(), Ok(()));
        for (wrong, problem) in [
            (NgramShape { n_tokens_max: 1, ..sound }, "n-grams of 1 tokens"),
            (NgramShape { n_tokens_max: 9, ..sound }, "n-grams of 9 tokens"),
            (NgramShape { n_heads_each: 0, ..sound }, "0 rows of n-grams"),
            (NgramShape { n_heads_each: 33, ..sound }, "66 rows of n-grams"),
            (NgramShape { n_heads_each: usize::MAX, ..sound }, "rows of n-grams"),
            (NgramShape { n_rows_min: 0, ..sound }, "0 rows for each head"),
            (NgramShape { n_rows_min: u64::MAX, ..sound }, "rows for each head"),
            (NgramShape { divisor: 0, ..sound }, "a multiple of 0"),
            (NgramShape { divisor: 1 << 21, ..sound }, "a multiple of 2097152"),
            (NgramShape { table_idx: 16, ..sound }, "17 tables"),
            (NgramShape { end: TokenId(100), ..sound }, "token 100 ends n-grams"),
        ] {
            let found = wrong.check().unwrap_err();
            assert!(found.contains(problem), "{found}");
        }
    }
}
