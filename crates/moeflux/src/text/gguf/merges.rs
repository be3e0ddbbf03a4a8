//! Derives merges that a file omits from the texts and priorities of its tokens.
//!
//! Two tokens merge if their concatenation is a token. Tokens of equal priority are ordered as in
//! transformers, so that the list matches that of a `tokenizer.json`. **Invariant:** the number of
//! bytes looked up is bounded, whatever the lengths of tokens.

use std::cmp::Reverse;
use std::ops::Range;

use crate::text::pipeline::{MERGES_MAX, Merges, Vocabulary};

/// Maximum bytes looked up: the sum of the squares of all lengths. For gpt-oss, which has runs of
/// 256 characters, these are 32 MB.
const LOOKED_UP_BYTES_MAX: usize = 1 << 28;

/// A token that may be split in two.
#[derive(Clone, Copy, Debug)]
pub(in crate::text) struct Whole<'a> {
    pub(in crate::text) text: &'a str,
    /// Priority: the greatest first.
    pub(in crate::text) urgency: f64,
}

/// A split of a token.
struct Cut<'a> {
    whole: &'a Whole<'a>,
    ids: (u32, u32),
    /// Bytes and characters before the split; characters after it.
    at: usize,
    n_chars: (usize, usize),
}

/// The order of splits of tokens with equal priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text) enum Ties {
    /// By token, then by the ids of the parts.
    ById,
    /// Long parts first, the left part before the right one; then as above.
    LongPartsFirst,
}

/// Returns the merges of all tokens, which must be in ascending order of ids.
pub(in crate::text) fn merges(
    wholes: &[Whole<'_>],
    vocabulary: &Vocabulary,
    ties: Ties,
) -> Result<Merges, String> {
    let mut cuts = Vec::new();
    let mut n_bytes: usize = 0;
    for whole in wholes {
        n_bytes = n_bytes.saturating_add(whole.text.len().saturating_mul(whole.text.len()));
        if n_bytes > LOOKED_UP_BYTES_MAX {
            return Err("tokens that are too long to split at every position".to_owned());
        }
        let from = cuts.len();
        cut(whole, vocabulary, &mut cuts);
        if cuts.len() > MERGES_MAX {
            return Err(format!("tokens that have more than {MERGES_MAX} splits"));
        }
        cuts[from..].sort_by_key(|cut: &Cut<'_>| cut.ids);
    }
    match ties {
        Ties::ById => cuts.sort_by(|a, b| b.whole.urgency.total_cmp(&a.whole.urgency)),
        Ties::LongPartsFirst => cuts.sort_by(|a, b| {
            let order = b.whole.urgency.total_cmp(&a.whole.urgency);
            order.then_with(|| Reverse(a.n_chars).cmp(&Reverse(b.n_chars)))
        }),
    }
    let mut merges = Merges::default();
    for Cut { whole, at, .. } in cuts {
        let (left, right) = whole.text.split_at(at);
        merges.push(left.to_owned(), right.to_owned())?;
    }
    Ok(merges)
}

fn cut<'a>(whole: &'a Whole<'a>, vocabulary: &Vocabulary, cuts: &mut Vec<Cut<'a>>) {
    let n_chars = whole.text.chars().count();
    for (n_before, (at, _)) in whole.text.char_indices().enumerate().skip(1) {
        let id_of = |range: Range<usize>| vocabulary.id_of(&whole.text[range]).map(|id| id.0);
        let Some(left) = id_of(0..at) else { continue };
        let Some(right) = id_of(at..whole.text.len()) else { continue };
        let n_chars = (n_before, n_chars - n_before);
        cuts.push(Cut { whole, ids: (left, right), at, n_chars });
    }
}
