//! Derives merges that a file omits from the texts and priorities of its tokens.
//!
//! Two tokens merge if their concatenation is a token. Tokens of equal priority are ordered as in
//! transformers, so that the list matches that of a `tokenizer.json`. **Invariant:** the number of
//! bytes looked up is bounded, whatever the lengths of tokens.

use std::cmp::Reverse;
use std::ops::Range;

use crate::text::tokenizer::pipeline::{MERGES_MAX, Merges, VocabularyMap};

/// Maximum bytes looked up: the sum of the squares of all lengths. For gpt-oss, which has runs of
/// 256 characters, these are 32 MB.
const LOOKED_UP_BYTES_MAX: usize = 1 << 28;

/// A token that may be split in two.
#[derive(Clone, Copy, Debug)]
pub(in crate::text) struct SplittableToken<'a> {
    pub(in crate::text) text: &'a str,
    /// Priority: the greatest first.
    pub(in crate::text) priority: f64,
}

/// A split of a token.
struct TokenSplit<'a> {
    token: &'a SplittableToken<'a>,
    ids: (u32, u32),
    /// Bytes and characters before the split; characters after it.
    at: usize,
    n_chars: (usize, usize),
}

/// The order of splits of tokens with equal priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text) enum TieOrder {
    /// By token, then by the ids of the parts.
    ById,
    /// Long parts first, the left part before the right one; then as above.
    LongPartsFirst,
}

/// Returns the merges of all tokens, which must be in ascending order of ids.
pub(in crate::text) fn merges(
    tokens: &[SplittableToken<'_>],
    vocabulary: &VocabularyMap,
    ties: TieOrder,
) -> Result<Merges, String> {
    let mut splits = Vec::new();
    let mut n_bytes: usize = 0;
    for token in tokens {
        n_bytes = n_bytes.saturating_add(token.text.len().saturating_mul(token.text.len()));
        if n_bytes > LOOKED_UP_BYTES_MAX {
            return Err("tokens that are too long to split at every position".to_owned());
        }
        let from = splits.len();
        push_splits(token, vocabulary, &mut splits);
        if splits.len() > MERGES_MAX {
            return Err(format!("tokens that have more than {MERGES_MAX} splits"));
        }
        splits[from..].sort_by_key(|split: &TokenSplit<'_>| split.ids);
    }
    match ties {
        TieOrder::ById => splits.sort_by(|a, b| b.token.priority.total_cmp(&a.token.priority)),
        TieOrder::LongPartsFirst => splits.sort_by(|a, b| {
            let order = b.token.priority.total_cmp(&a.token.priority);
            order.then_with(|| Reverse(a.n_chars).cmp(&Reverse(b.n_chars)))
        }),
    }
    let mut merges = Merges::default();
    for TokenSplit { token, at, .. } in splits {
        let (left, right) = token.text.split_at(at);
        merges.push(left.to_owned(), right.to_owned())?;
    }
    Ok(merges)
}

fn push_splits<'a>(
    token: &'a SplittableToken<'a>,
    vocabulary: &VocabularyMap,
    splits: &mut Vec<TokenSplit<'a>>,
) {
    let n_chars = token.text.chars().count();
    for (n_before, (at, _)) in token.text.char_indices().enumerate().skip(1) {
        let id_of = |range: Range<usize>| vocabulary.id_of(&token.text[range]).map(|id| id.0);
        let Some(left) = id_of(0..at) else { continue };
        let Some(right) = id_of(at..token.text.len()) else { continue };
        let n_chars = (n_before, n_chars - n_before);
        splits.push(TokenSplit { token, ids: (left, right), at, n_chars });
    }
}
