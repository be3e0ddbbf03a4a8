//! Encodes pieces of a text into tokens.
//!
//! The library's encoder takes up to 130 bytes for each byte of a piece. **Invariant:** it never
//! gets more than `WORD_BYTES_MAX` at once. A longer piece is cut between two characters that are
//! not adjacent in any token of the vocabulary, so that nothing merges across the cut.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, OnceLock, PoisonError};

use tokenizers::Model as _;
use tokenizers::models::bpe::BPE;

use crate::ids::TokenId;

/// Length from which pieces are cut if possible.
const CUT_BYTES: usize = 2 << 10;
/// Maximum length of a piece that cannot be cut: the encoder takes 17 MB for it.
const WORD_BYTES_MAX: usize = 128 << 10;
/// Length from which pieces are encoded one at a time, across all threads.
const LONG_BYTES: usize = 16 << 10;
/// Maximum pairs of characters in a vocabulary; a large one has some 100,000. A vocabulary with
/// more is treated as having every pair.
const PAIRS_MAX: usize = 1 << 20;
/// Maximum words whose tokens are cached while a text is encoded, and the longest of them.
const CACHED_WORDS_MAX: usize = 4_096;
const CACHED_WORD_BYTES_MAX: usize = 32;

/// The reason why a text was not encoded.
#[derive(Debug)]
pub(in crate::text) enum EncodeError {
    /// It has more tokens than allowed.
    TooMany,
    /// It was cancelled.
    Cancelled,
    /// A word of it is so long that encoding it would take too much memory.
    WordTooLong {
        /// Its length in bytes.
        n_bytes: usize,
        /// The maximum.
        n_bytes_max: usize,
    },
    /// It cannot be encoded.
    Refused(String),
}

impl From<String> for EncodeError {
    fn from(problem: String) -> Self {
        Self::Refused(problem)
    }
}

/// The adjacent characters in a vocabulary's tokens, shared by texts that are encoded
/// concurrently.
#[derive(Debug, Default)]
pub(in crate::text) struct CharacterPairs {
    /// Pairs of adjacent characters in tokens, collected when the first long piece is cut.
    pairs: OnceLock<Option<HashSet<(char, char)>>>,
    /// Held while a very long piece is encoded.
    long: Mutex<()>,
}

impl CharacterPairs {
    /// Returns whether nothing merges across the boundary between these characters: no token has
    /// them adjacent, and each is a token, so that it is neither split into bytes nor part of an
    /// unknown run.
    fn can_cut_between(&self, bpe: &BPE, (before, after): (char, char)) -> bool {
        let pairs = self.pairs.get_or_init(|| adjacent_pairs(bpe));
        let is_token = |it: char| bpe.token_to_id(it.encode_utf8(&mut [0; 4])).is_some();
        pairs.as_ref().is_some_and(|pairs| !pairs.contains(&(before, after)))
            && is_token(before)
            && is_token(after)
    }
}

fn adjacent_pairs(bpe: &BPE) -> Option<HashSet<(char, char)>> {
    let mut pairs = HashSet::new();
    let (mut id, mut n_left) = (0, bpe.get_vocab_size());
    while n_left > 0 {
        if let Some(text) = bpe.id_to_token(id) {
            n_left -= 1;
            pairs.extend(text.chars().zip(text.chars().skip(1)));
        }
        if pairs.len() > PAIRS_MAX {
            return None;
        }
        id += 1;
    }
    Some(pairs)
}

/// The encoder of one text, with a cache.
pub(in crate::text) struct WordEncoder<'a> {
    bpe: &'a BPE,
    pairs: &'a CharacterPairs,
    cache: HashMap<Box<str>, Box<[TokenId]>>,
}

impl<'a> WordEncoder<'a> {
    pub(in crate::text) fn new(bpe: &'a BPE, pairs: &'a CharacterPairs) -> Self {
        Self { bpe, pairs, cache: HashMap::new() }
    }

    /// Appends the tokens of a piece, word by word, and calls `go_on` after each.
    ///
    /// # Errors
    /// If a piece is too long; an error of the library or of `go_on`.
    pub(in crate::text) fn encode(
        &mut self,
        piece: &str,
        tokens: &mut Vec<TokenId>,
        go_on: &mut dyn FnMut(&[TokenId]) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let mut rest = piece;
        while rest.len() > CUT_BYTES {
            let end = self.cut(rest).unwrap_or(rest.len());
            self.word(&rest[..end], tokens)?;
            go_on(tokens)?;
            rest = &rest[end..];
        }
        self.word(rest, tokens)?;
        go_on(tokens)
    }

    /// Returns the first place for a cut after a minimum length.
    fn cut(&self, text: &str) -> Option<usize> {
        let mut characters = text.char_indices().skip_while(|(at, _)| *at < CUT_BYTES / 2);
        let (_, mut before) = characters.next()?;
        for (at, after) in characters {
            if self.pairs.can_cut_between(self.bpe, (before, after)) {
                return Some(at);
            }
            before = after;
        }
        None
    }

    fn word(&mut self, word: &str, tokens: &mut Vec<TokenId>) -> Result<(), EncodeError> {
        if let Some(cached) = self.cache.get(word) {
            tokens.extend_from_slice(cached);
            return Ok(());
        }
        if word.len() > WORD_BYTES_MAX {
            return Err(EncodeError::WordTooLong {
                n_bytes: word.len(),
                n_bytes_max: WORD_BYTES_MAX,
            });
        }
        let long = (word.len() > LONG_BYTES).then_some(&self.pairs.long);
        let _long = long.map(|long| long.lock().unwrap_or_else(PoisonError::into_inner));
        let n_before = tokens.len();
        let found = self.bpe.tokenize(word).map_err(|error| error.to_string())?;
        tokens.extend(found.iter().map(|token| TokenId(token.id)));
        if word.len() <= CACHED_WORD_BYTES_MAX && self.cache.len() < CACHED_WORDS_MAX {
            self.cache.insert(word.into(), tokens[n_before..].into());
        }
        Ok(())
    }
}
