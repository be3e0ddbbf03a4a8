//! A model's tokens in the form for llguidance: their bytes in a trie, and the model's tokenizer.
//!
//! **Invariant:** special tokens are stored under a byte that no text contains, so only a grammar
//! that names them allows them; an id without a token, or whose bytes no text can contain, has no
//! bytes. This module is independent of grammars.

use std::fmt;
use std::sync::Arc;

use llguidance::toktrie::{SimpleVob, TokRxInfo, TokTrie, TokenizerEnv};
use moeflux::{ModelText, TokenId, Tokenizer};

/// Stands for the end token of models without one.
const NO_TOKEN: u32 = u32::MAX;

/// The tokens of one model.
pub(crate) struct Vocabulary {
    text: Arc<ModelText>,
    trie: TokTrie,
    /// The ids that have a token.
    known: SimpleVob,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("n_known", &self.known.num_set()).finish_non_exhaustive()
    }
}

impl Vocabulary {
    pub(crate) fn new(text: Arc<ModelText>) -> Self {
        let tokenizer = text.tokenizer();
        let n_ids = u32::try_from(tokenizer.vocab_size()).expect("ids have 32 bits");
        let mut known = SimpleVob::alloc(tokenizer.vocab_size());
        let mut words = Vec::with_capacity(tokenizer.vocab_size());
        for id in 0..n_ids {
            let bytes = tokenizer.token_bytes(TokenId(id));
            if !bytes.is_empty() {
                known.allow_token(id);
            }
            words.push(marked(tokenizer, TokenId(id), bytes));
        }
        let trie = TokTrie::from(&TokRxInfo::new(n_ids, NO_TOKEN), &words);
        let ends: Vec<u32> =
            text.end_tokens().iter().map(|it| it.0).filter(|id| *id < n_ids).collect();
        let trie = if ends.is_empty() { trie } else { trie.with_eos_tokens(&ends) };
        Self { text, trie, known }
    }

    /// Returns whether the model has a token that ends an answer.
    pub(crate) fn has_end(&self) -> bool {
        self.trie.eos_token() != NO_TOKEN
    }

    /// Forbids all tokens but those that end an answer.
    pub(crate) fn forbid_all_but_ends(&self, logits: &mut [f32]) {
        let ends = self.text.end_tokens().iter().filter_map(|token| {
            let logit = *logits.get(token.0 as usize)?;
            Some((*token, logit.max(f32::MIN)))
        });
        let ends: Vec<(TokenId, f32)> = ends.collect();
        logits.fill(f32::NEG_INFINITY);
        for (token, logit) in ends {
            logits[token.0 as usize] = logit;
        }
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        self.text.tokenizer()
    }

    pub(crate) fn trie(&self) -> &TokTrie {
        &self.trie
    }

    /// Forbids the ids that have no token.
    pub(crate) fn forbid_padding(&self, logits: &mut [f32]) {
        let n_known = self.known.len().min(logits.len());
        self.known.iter_unset_entries(|id| {
            if let Some(logit) = logits.get_mut(id) {
                *logit = f32::NEG_INFINITY;
            }
        });
        logits[n_known..].fill(f32::NEG_INFINITY);
    }

    /// Returns the text of a token in bytes, including special ones.
    pub(crate) fn bytes(&self, token: TokenId) -> &[u8] {
        if token.0 as usize >= self.trie.vocab_size() {
            return &[];
        }
        let bytes = self.trie.token(token.0);
        bytes.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]).unwrap_or(bytes)
    }

    /// Encodes a text that the program itself writes into an answer. Text that spells a special
    /// token becomes that token only if `is_marker` is set.
    pub(crate) fn encode(&self, text: &str, is_marker: bool) -> Vec<TokenId> {
        let tokenizer = self.tokenizer();
        let tokens = tokenizer.encode(text).unwrap_or_default();
        if is_marker || !tokens.iter().any(|it| tokenizer.is_special(*it)) {
            return tokens;
        }
        tokenizer.encode_plain(text).unwrap_or_default()
    }
}

/// Returns the bytes of a token as stored in the trie.
fn marked(tokenizer: &Tokenizer, token: TokenId, mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.is_empty() {
        return bytes;
    }
    if tokenizer.is_special(token) {
        bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
        return bytes;
    }
    // The byte does not occur in UTF-8, and would be read as the mark of a special token.
    if bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER) { Vec::new() } else { bytes }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// Falls back to the longest tokens that spell the bytes if the tokenizer changes the text, by
    /// normalisation or by a leading space; a grammar would not accept such tokens.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let tokens = self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            self.encode(text, false).into_iter().map(|it| it.0).collect()
        });
        let is_faithful = self.trie.decode_raw(&tokens) == bytes;
        if is_faithful { tokens } else { self.trie.greedy_tokenize(bytes) }
    }
}
