//! Encodes text to token ids and decodes them, as defined by `tokenizer.json`.
//!
//! **Invariant:** every id returned is below the model's number of embedding rows, and every added
//! token has the id in its file. There are usually fewer tokens than rows, because checkpoints pad
//! their vocabulary. This module knows no chat template and no stream.

pub(super) mod byte_level;
mod pattern;
pub(super) mod pipeline;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tokenizers::AddedToken;

use crate::error::{Error, Result};
use crate::format::read_file_if_there;
use crate::ids::TokenId;
use crate::text::files::one_line;
use crate::text::limit::TextLimit;
use crate::text::special::SpecialTokens;
use crate::text::tokenizer::byte_level::byte_of;
use crate::text::tokenizer::pipeline::{
    AddedTokens, DeclaredToken, EncodeError, Encoder, LibraryTokenizer, Markers, SurroundingTokens,
    TokenizerPipeline,
};

/// Maximum bytes of `tokenizer.json`; the largest published ones have about 35 MB.
pub(crate) const TOKENIZER_BYTES_MAX: u64 = 64 << 20;
/// Maximum bytes of a text after normalisation: far above any context, and a bound on the
/// tokenizer's own tables.
pub(crate) const TEXT_BYTES_MAX: usize = 64 << 20;

/// Returns an upper bound on the memory of a tokenizer with `n_tokens` tokens, for published files:
/// texts by id, ids by text, and up to 2.3 merges per token. Tables have a power-of-two capacity
/// and are at most seven eighths full; a short text takes the allocator's minimum.
#[must_use]
pub fn tokenizer_bytes(n_tokens: usize) -> u64 {
    const TEXT_BYTES: u64 = 32;
    const TEXT_PLACE_BYTES: u64 = 33;
    const MERGE_PLACE_BYTES: u64 = 17;
    let n_tokens = n_tokens as u64;
    let n_places = |n_entries: u64| (n_entries * 8).div_ceil(7).next_power_of_two();
    let n_merges = n_tokens * 23 / 10;
    2 * (n_tokens * TEXT_BYTES + n_places(n_tokens) * TEXT_PLACE_BYTES)
        + n_places(n_merges) * MERGE_PLACE_BYTES
}

/// A checkpoint's tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    path: PathBuf,
    inner: LibraryTokenizer,
    encoder: Encoder,
    surrounding: SurroundingTokens,
    special: SpecialTokens,
    is_special: HashMap<u32, bool>,
    vocab_size: usize,
    is_byte_level: bool,
    text_bytes_max: usize,
}

impl Tokenizer {
    /// Reads a `tokenizer.json` with any name. `special` has the roles from other files.
    ///
    /// # Errors
    /// If the file is missing, too long or malformed; if an added token does not get the id in its
    /// file; if an id has no embedding row.
    pub fn open_file(path: &Path, special: SpecialTokens, vocab_rows: usize) -> Result<Self> {
        let tokenizer = Self::of_json(path, || Ok(special), vocab_rows)?;
        tokenizer.ok_or_else(|| Error::malformed(path, "missing"))
    }

    /// Reads the file if it exists. `special` is called only then.
    pub(super) fn of_json(
        path: &Path,
        special: impl FnOnce() -> Result<SpecialTokens>,
        vocab_rows: usize,
    ) -> Result<Option<Self>> {
        let Some(bytes) = read_file_if_there(path, TOKENIZER_BYTES_MAX)? else { return Ok(None) };
        let special = special()?;
        let pipeline = TokenizerPipeline::parse(path, bytes)?;
        Self::of_pipeline(path, pipeline, special, vocab_rows).map(Some)
    }

    /// Creates a tokenizer from a pipeline that was read from `path`.
    pub(super) fn of_pipeline(
        path: &Path,
        pipeline: TokenizerPipeline,
        special: SpecialTokens,
        vocab_rows: usize,
    ) -> Result<Self> {
        let TokenizerPipeline { mut inner, changes, splits, added, .. } = pipeline;
        let TokenizerPipeline { surrounding, is_byte_level, growth, largest_id, .. } = pipeline;
        let listed = add_listed(&mut inner, &special)?;
        let known = inner.get_added_tokens_decoder().into_iter().collect();
        let encoder = Encoder::new(&known, changes, splits).map_err(|problem| {
            Error::malformed(path, one_line(&format!("added tokens: {problem}")))
        })?;
        let added: Vec<&DeclaredToken> = added.iter().chain(listed.iter()).collect();
        let largest_id = added.iter().map(|token| token.id).fold(largest_id, u32::max);
        let vocab_size = usize::try_from(largest_id).map_or(usize::MAX, |id| id.saturating_add(1));
        if vocab_size > vocab_rows {
            return Err(Error::malformed(
                path,
                format!(
                    "the largest token id is {largest_id}, but the model has {vocab_rows} \
                     embedding rows: this tokenizer belongs to another model"
                ),
            ));
        }
        let is_special = added.iter().map(|it| (it.id, it.token.special)).collect();
        Ok(Self {
            path: path.to_owned(),
            inner,
            encoder,
            surrounding,
            special,
            is_special,
            vocab_size,
            is_byte_level,
            text_bytes_max: TEXT_BYTES_MAX / growth,
        })
    }

    /// Returns one more than the largest token id.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Returns the tokens with a role.
    #[must_use]
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special
    }

    /// Encodes a text in which special tokens are written out, as in the output of a chat template.
    /// Nothing is added at either end.
    ///
    /// # Errors
    /// If the text is too long, or the tokenizer refuses it.
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>> {
        self.encode_within(text, &TextLimit::default())
    }

    /// Encodes a text like [`Self::encode`], within a limit.
    ///
    /// # Errors
    /// As [`Self::encode`]; [`Error::TooManyTokens`], [`Error::Cancelled`].
    pub fn encode_within(&self, text: &str, limit: &TextLimit) -> Result<Vec<TokenId>> {
        self.encode_as((text, Markers::Tokens), limit)
    }

    /// Encodes a bare prompt: like [`Self::encode`], with the tokens that the model expects around
    /// every text.
    ///
    /// # Errors
    /// If the text is too long, or the tokenizer refuses it.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<TokenId>> {
        self.encode_prompt_within(text, &TextLimit::default())
    }

    /// Encodes a prompt like [`Self::encode_prompt`]. The limit counts the tokens of `text` only.
    ///
    /// # Errors
    /// As [`Self::encode_within`].
    pub fn encode_prompt_within(&self, text: &str, limit: &TextLimit) -> Result<Vec<TokenId>> {
        let mut ids = self.surrounding.before.clone();
        ids.append(&mut self.encode_within(text, limit)?);
        ids.extend_from_slice(&self.surrounding.after);
        let bos = self.special.role("bos_token").and_then(|text| self.id_of(text));
        if let Some(bos) = bos.filter(|bos| self.special.add_bos && ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// Encodes a text from an untrusted source: special tokens in it are treated as text.
    ///
    /// # Errors
    /// If the text is too long, or the tokenizer refuses it.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<TokenId>> {
        self.encode_as((text, Markers::Text), &TextLimit::default())
    }

    fn encode_as(
        &self,
        (text, markers): (&str, Markers),
        limit: &TextLimit,
    ) -> Result<Vec<TokenId>> {
        self.check_length(text)?;
        let tokens = self.encoder.encode(self.inner.get_model(), (text, markers), limit);
        tokens.map_err(|stopped| match stopped {
            EncodeError::TooMany => Error::TooManyTokens { n_tokens_max: limit.n_tokens_max },
            EncodeError::Cancelled => Error::Cancelled,
            EncodeError::WordTooLong { n_bytes, n_bytes_max } => Error::Input(format!(
                "a word of {n_bytes} bytes that cannot be split is too long; the limit is \
                 {n_bytes_max}"
            )),
            EncodeError::Refused(problem) => self.refused(&problem),
        })
    }

    fn check_length(&self, text: &str) -> Result<()> {
        if text.len() <= self.text_bytes_max {
            return Ok(());
        }
        Err(Error::Input(format!(
            "a text of {} bytes is too long; the limit is {}",
            text.len(),
            self.text_bytes_max
        )))
    }

    fn refused(&self, problem: &str) -> Error {
        Error::malformed(&self.path, one_line(&format!("cannot encode this text: {problem}")))
    }

    /// Decodes tokens, including special ones. Ids without a token have no text; bytes that are not
    /// UTF-8 become U+FFFD.
    #[must_use]
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        let ids: Vec<u32> = tokens.iter().map(|token| token.0).collect();
        // The decoders of published tokenizers cannot fail. If one does, its raw pieces are better
        // than no text.
        self.inner
            .decode(&ids, false)
            .unwrap_or_else(|_| ids.iter().filter_map(|id| self.inner.id_to_token(*id)).collect())
    }

    /// Returns the text of a single token, or `None` if the id has no token.
    #[must_use]
    pub fn token_text(&self, token: TokenId) -> Option<String> {
        self.inner.id_to_token(token.0)?;
        Some(self.decode(&[token]))
    }

    /// Returns the id of a token by its exact text in the vocabulary: `<|im_end|>`.
    #[must_use]
    pub fn id_of(&self, text: &str) -> Option<TokenId> {
        self.inner.token_to_id(text).map(TokenId)
    }

    /// Returns whether the token marks structure and is usually hidden.
    #[must_use]
    pub fn is_special(&self, token: TokenId) -> bool {
        self.is_special.get(&token.0).copied().unwrap_or(false)
    }

    /// Returns the bytes of a token, which need not be whole characters; none if the id has no
    /// token.
    #[must_use]
    pub fn token_bytes(&self, token: TokenId) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.is_byte_level {
            self.append_bytes(token, &mut bytes);
            return bytes;
        }
        let Some(piece) = self.inner.id_to_token(token.0) else { return bytes };
        // The SentencePiece format: a byte as `<0xE4>`, a space as U+2581.
        let digits = piece.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend(piece.replace('\u{2581}', " ").bytes()),
        }
        bytes
    }

    /// Returns whether each token stands for the same bytes in any context.
    pub(super) fn is_byte_level(&self) -> bool {
        self.is_byte_level
    }

    /// Appends the bytes of a byte-level token. As in the library, a token with a character outside
    /// the alphabet stands for its own text.
    pub(super) fn append_bytes(&self, token: TokenId, bytes: &mut Vec<u8>) {
        let Some(piece) = self.inner.id_to_token(token.0) else { return };
        if piece.chars().all(|character| byte_of(character).is_some()) {
            bytes.extend(piece.chars().filter_map(byte_of));
        } else {
            bytes.extend_from_slice(piece.as_bytes());
        }
    }
}

/// Adds tokens that only `tokenizer_config.json` lists, in order of their ids as in transformers.
fn add_listed(inner: &mut LibraryTokenizer, special: &SpecialTokens) -> Result<AddedTokens> {
    let missing = special.listed.iter().filter(|it| inner.token_to_id(&it.content).is_none());
    let missing = missing.map(|it| DeclaredToken {
        id: it.id.0,
        token: AddedToken::from(it.content.clone(), it.special),
    });
    let added = AddedTokens::new(missing).map_err(|problem| {
        Error::malformed(&special.path, one_line(&format!("`added_tokens_decoder`: {problem}")))
    })?;
    added.add_to(&special.path, inner)?;
    Ok(added)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::text::tests::TokenizerFolder;

    #[test]
    fn bytes_of_tokens_are_the_bytes_of_the_text() {
        let folder = TokenizerFolder::new(300, &["<|im_end|>"]);
        let tokenizer = Tokenizer::open(folder.path(), 300).unwrap();
        let text = "h\u{e9} \u{1f600}<|im_end|>\n";
        let tokens = tokenizer.encode(text).unwrap();
        let bytes: Vec<u8> = tokens.iter().flat_map(|it| tokenizer.token_bytes(*it)).collect();
        assert_eq!(bytes, text.as_bytes());
        assert!(tokenizer.token_bytes(TokenId(299)).is_empty());

        let model = json!({"type": "BPE", "vocab": {"\u{2581}ab": 0, "<0xE4>": 1}, "merges": []});
        let decoder = json!({"type": "Metaspace", "replacement": "\u{2581}",
            "prepend_scheme": "always", "split": true});
        let pieces = json!({"version": "1.0", "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": decoder, "model": model});
        folder.write("tokenizer.json", &pieces.to_string());
        folder.write("tokenizer_config.json", "{}");
        let tokenizer = Tokenizer::open(folder.path(), 300).unwrap();
        assert_eq!(tokenizer.token_bytes(TokenId(0)), b" ab");
        assert_eq!(tokenizer.token_bytes(TokenId(1)), [0xe4]);
    }

    #[test]
    fn a_text_is_encoded_as_far_as_its_limit() {
        let folder = TokenizerFolder::new(300, &["<|im_end|>"]);
        let tokenizer = Tokenizer::open(folder.path(), 300).unwrap();
        let limit = TextLimit { n_tokens_max: 10, ..TextLimit::default() };
        assert_eq!(tokenizer.encode_within("0123456789", &limit).unwrap().len(), 10);
        for text in ["0123456789a", "012345678<|im_end|><|im_end|>", &"a".repeat(1 << 20)] {
            let error = tokenizer.encode_within(text, &limit).unwrap_err();
            assert!(matches!(error, Error::TooManyTokens { n_tokens_max: 10 }), "{error}");
        }
        let limit = TextLimit::default();
        limit.cancel.cancel();
        let error = tokenizer.encode_within(&"a".repeat(1 << 20), &limit).unwrap_err();
        assert!(matches!(error, Error::Cancelled), "{error}");
    }

    #[test]
    fn long_words_are_cut_where_nothing_merges() {
        let folder = TokenizerFolder::new(300, &[]);
        let model = json!({"type": "BPE", "vocab": {"a": 0, "b": 1, "aa": 2}, "merges": ["a a"]});
        let whole = json!({"version": "1.0", "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": null, "model": model});
        folder.write("tokenizer.json", &whole.to_string());
        folder.write("tokenizer_config.json", "{}");
        let tokenizer = Tokenizer::open(folder.path(), 300).unwrap();
        let tokens = tokenizer.encode(&"aab".repeat(200_000)).unwrap();
        assert!(tokens.iter().map(|it| it.0).eq([2, 1].repeat(200_000)));
        // If a cut fell inside `aa`, the odd number of bytes between two cuts would show it.
        let run = 128 << 10;
        assert_eq!(tokenizer.encode(&"a".repeat(run)).unwrap(), vec![TokenId(2); run / 2]);
        let error = tokenizer.encode(&"a".repeat(run + 1)).unwrap_err().to_string();
        assert!(error.contains("a word of 131073 bytes"), "{error}");
    }
}
