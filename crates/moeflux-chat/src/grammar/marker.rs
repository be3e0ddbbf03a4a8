//! Finds a marker in text that arrives token by token, wherever the token boundaries are.
//!
//! **Invariant:** the state is the longest suffix of the text that begins the marker, so every
//! marker is found. Handles tokens as bytes.

use moeflux::TokenId;

use crate::grammar::vocabulary::Vocabulary;

/// A marker, with the tokens that may complete it.
#[derive(Debug)]
pub(crate) struct Marker {
    bytes: Vec<u8>,
    /// For each number of matched bytes, the number to continue with if the next byte differs.
    fallbacks: Vec<usize>,
    /// Tokens that contain the whole marker.
    whole: Vec<TokenId>,
    /// Tokens that contain its last byte.
    candidates: Vec<TokenId>,
}

/// The number of bytes of a marker that the text ends with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Matched(usize);

impl Marker {
    pub(crate) fn new(text: &str, vocabulary: &Vocabulary) -> Self {
        let bytes = text.as_bytes().to_vec();
        let last = *bytes.last().expect("a marker has bytes");
        let n_ids = u32::try_from(vocabulary.trie().vocab_size()).expect("ids have 32 bits");
        let has_last = |token: &TokenId| vocabulary.bytes(*token).contains(&last);
        let candidates: Vec<TokenId> = (0..n_ids).map(TokenId).filter(has_last).collect();
        let mut marker =
            Self { fallbacks: fallbacks(&bytes), bytes, whole: Vec::new(), candidates };
        let is_whole =
            |token: &TokenId| marker.end_in(Matched::default(), vocabulary.bytes(*token)).is_some();
        marker.whole = marker.candidates.iter().copied().filter(is_whole).collect();
        marker
    }

    /// Takes more text. Returns the offset after the marker if the marker ends in it.
    pub(crate) fn push(&self, matched: &mut Matched, bytes: &[u8]) -> Option<usize> {
        for (at, byte) in bytes.iter().enumerate() {
            while matched.0 > 0 && self.bytes[matched.0] != *byte {
                matched.0 = self.fallbacks[matched.0];
            }
            if self.bytes[matched.0] == *byte {
                matched.0 += 1;
            }
            if matched.0 == self.bytes.len() {
                *matched = Matched::default();
                return Some(at + 1);
            }
        }
        None
    }

    fn end_in(&self, mut matched: Matched, bytes: &[u8]) -> Option<usize> {
        self.push(&mut matched, bytes)
    }

    /// Returns the tokens that complete the marker here, each with its remaining bytes.
    pub(crate) fn completions<'v>(
        &'v self,
        matched: Matched,
        vocabulary: &'v Vocabulary,
    ) -> impl Iterator<Item = (TokenId, &'v [u8])> {
        let tokens = if matched == Matched::default() { &self.whole } else { &self.candidates };
        tokens.iter().filter_map(move |token| {
            let bytes = vocabulary.bytes(*token);
            let end = self.end_in(matched, bytes)?;
            Some((*token, &bytes[end..]))
        })
    }
}

/// Returns, for each number of matched bytes, the length of their longest proper suffix that begins
/// the marker.
fn fallbacks(bytes: &[u8]) -> Vec<usize> {
    let mut fallbacks = vec![0; bytes.len()];
    let mut n_matched = 0;
    for at in 1..bytes.len() {
        fallbacks[at] = n_matched;
        while n_matched > 0 && bytes[n_matched] != bytes[at] {
            n_matched = fallbacks[n_matched];
        }
        if bytes[n_matched] == bytes[at] {
            n_matched += 1;
        }
    }
    fallbacks
}
