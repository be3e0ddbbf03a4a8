//! Parses `model` into the library's byte-pair encoder.
//!
//! Settings for training, such as `dropout`, are ignored: they would make encoding random.
//! **Invariant:** every text of the vocabulary has a unique id, and the result of every merge is in
//! the vocabulary.

use std::fmt;

use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tokenizers::models::bpe::{BPE, Vocab};

use crate::ids::TokenId;
use crate::text::files::shortened;

/// Maximum tokens of a vocabulary; the largest published ones have 262,144.
const TOKENS_MAX: usize = 1 << 19;
/// Maximum id. It keeps a bit table over all ids small.
pub(super) const TOKEN_ID_MAX: u32 = (1 << 22) - 1;
/// Maximum bytes of a token; published runs of spaces and dashes have up to 1,024. A model that
/// repeats the longest token writes that much at each step.
pub(super) const TOKEN_BYTES_MAX: usize = 4096;
/// Maximum merges; the largest published files have 514,906.
pub(in crate::text) const MERGES_MAX: usize = 1 << 20;

/// The model in its JSON form.
#[derive(Deserialize)]
pub(in crate::text) struct BpeModel {
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: VocabularyMap,
    merges: Merges,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
}

/// Token ids by text.
#[derive(Default)]
pub(in crate::text) struct VocabularyMap {
    ids: Vocab,
    used: Vec<u64>,
}

/// Pairs of tokens that merge, in order of priority.
#[derive(Default)]
pub(in crate::text) struct Merges(Vec<(String, String)>);

struct Merge(Option<(String, String)>);

impl BpeModel {
    /// Creates a model whose tokens are written in the byte alphabet. If `ignores_merges`, a piece
    /// that is a token becomes that token, regardless of the merges.
    pub(in crate::text) fn of_bytes(
        vocab: VocabularyMap,
        merges: Merges,
        ignores_merges: bool,
    ) -> Self {
        Self {
            kind: None,
            vocab,
            merges,
            unk_token: None,
            continuing_subword_prefix: None,
            end_of_word_suffix: None,
            fuse_unk: None,
            byte_fallback: None,
            ignore_merges: Some(ignores_merges),
        }
    }

    /// Creates a model whose tokens are written in characters. A character without a token becomes
    /// its bytes if these have tokens (`<0xE4>`); otherwise a run of such characters becomes
    /// `unknown`.
    pub(in crate::text) fn of_characters(
        vocab: VocabularyMap,
        merges: Merges,
        unknown: Option<String>,
    ) -> Self {
        let model = Self::of_bytes(vocab, merges, false);
        Self { unk_token: unknown, fuse_unk: Some(true), byte_fallback: Some(true), ..model }
    }

    pub(super) fn vocabulary(&self) -> &VocabularyMap {
        &self.vocab
    }

    /// Builds the library's model.
    pub(super) fn build(self) -> Result<BPE, String> {
        if let Some(kind) = self.kind.filter(|kind| kind != "BPE") {
            return Err(format!("type `{}` is not supported; BPE is", shortened(&kind)));
        }
        let affixes = [&self.continuing_subword_prefix, &self.end_of_word_suffix];
        if affixes.into_iter().flatten().any(|affix| !affix.is_empty()) {
            return Err("a prefix or suffix of subwords is not supported".to_owned());
        }
        let ids = self.vocab.ids;
        if ids.is_empty() {
            return Err("a vocabulary without tokens".to_owned());
        }
        if let Some(unknown) = self.unk_token.as_ref().filter(|text| !ids.contains_key(*text)) {
            return Err(format!(
                "`unk_token` is `{}`, which the vocabulary does not have",
                shortened(unknown)
            ));
        }
        let has_byte = |byte: u8| ids.contains_key(format!("<0x{byte:02X}>").as_str());
        if self.byte_fallback == Some(true)
            && self.unk_token.is_none()
            && !(0..=u8::MAX).all(has_byte)
        {
            return Err("`byte_fallback` without a token for every byte, `<0x00>` to `<0xFF>`: \
                        some characters would vanish"
                .to_owned());
        }
        let longest = ids.keys().map(String::len).max().unwrap_or(0);
        let too_long = |(left, right): &(String, String)| left.len() + right.len() > longest;
        if let Some(place) = self.merges.0.iter().position(too_long) {
            return Err(format!(
                "merge {} makes a token that the vocabulary does not have",
                place + 1
            ));
        }
        let mut builder = BPE::builder()
            .vocab_and_merges(ids, self.merges.0)
            // The library's cache would keep up to 84 MB per thread, for words chosen to fill it.
            .cache_capacity(0)
            .fuse_unk(self.fuse_unk.unwrap_or(false))
            .byte_fallback(self.byte_fallback.unwrap_or(false))
            .ignore_merges(self.ignore_merges.unwrap_or(false));
        if let Some(unknown) = self.unk_token {
            builder = builder.unk_token(unknown);
        }
        builder.build().map_err(|error| error.to_string())
    }
}

impl VocabularyMap {
    pub(in crate::text) fn id_of(&self, text: &str) -> Option<TokenId> {
        self.ids.get(text).copied().map(TokenId)
    }

    pub(super) fn has_id(&self, id: TokenId) -> bool {
        let (word, bit) = place(id.0);
        self.used.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Returns the largest id; zero for an empty vocabulary, of which no model is built.
    pub(super) fn largest_id(&self) -> u32 {
        self.ids.values().copied().max().unwrap_or(0)
    }

    /// Adds a token.
    ///
    /// # Errors
    /// If there are too many tokens, a token or an id exceeds its limit, or one is a duplicate.
    pub(in crate::text) fn insert(&mut self, text: String, id: u32) -> Result<(), String> {
        if self.ids.len() >= TOKENS_MAX {
            return Err(format!("a vocabulary of more than {TOKENS_MAX} tokens"));
        }
        if text.len() > TOKEN_BYTES_MAX || id > TOKEN_ID_MAX {
            return Err(format!(
                "token {id} has {} bytes; the limits are {TOKEN_BYTES_MAX}, and {TOKEN_ID_MAX} for \
                 an id",
                text.len()
            ));
        }
        if self.has_id(TokenId(id)) {
            return Err(format!("two tokens have id {id}, `{}` is one of them", shortened(&text)));
        }
        let (word, bit) = place(id);
        if self.used.len() <= word {
            self.used.resize(word + 1, 0);
        }
        self.used[word] |= bit;
        match self.ids.insert(text, id) {
            None => Ok(()),
            Some(other) => Err(format!("one text has ids {other} and {id}")),
        }
    }
}

impl Merges {
    /// Adds a merge with the lowest priority so far.
    ///
    /// # Errors
    /// If there are too many.
    pub(in crate::text) fn push(&mut self, left: String, right: String) -> Result<(), String> {
        if self.0.len() >= MERGES_MAX {
            return Err(format!("more than {MERGES_MAX}"));
        }
        self.0.push((left, right));
        Ok(())
    }
}

/// Splits a merge that is written as one text into its two tokens.
pub(in crate::text) fn merge_of(text: &str) -> Option<(String, String)> {
    let mut words = text.split(' ');
    match (words.next(), words.next(), words.next()) {
        (Some(left), Some(right), None) => Some((left.to_owned(), right.to_owned())),
        _ => None,
    }
}

/// Returns word and bit of an id in a bit table.
fn place(id: u32) -> (usize, u64) {
    (usize::try_from(id / 64).unwrap_or(usize::MAX), 1 << (id % 64))
}

impl<'de> Deserialize<'de> for VocabularyMap {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(VocabularyVisitor)
    }
}

struct VocabularyVisitor;

impl<'de> Visitor<'de> for VocabularyVisitor {
    type Value = VocabularyMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the vocabulary of a BPE model: ids by text")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VocabularyMap, A::Error> {
        let mut vocabulary = VocabularyMap::default();
        while let Some((text, id)) = map.next_entry()? {
            vocabulary
                .insert(text, id)
                .map_err(|problem| A::Error::custom(format!("`vocab`: {problem}")))?;
        }
        Ok(vocabulary)
    }
}

impl<'de> Deserialize<'de> for Merges {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_seq(MergesVisitor)
    }
}

struct MergesVisitor;

impl<'de> Visitor<'de> for MergesVisitor {
    type Value = Merges;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of merges")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merges, A::Error> {
        let mut merges = Merges::default();
        while let Some(Merge(merge)) = list.next_element()? {
            let Some((left, right)) = merge else { continue };
            merges
                .push(left, right)
                .map_err(|problem| A::Error::custom(format!("`merges`: {problem}")))?;
        }
        Ok(merges)
    }
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_any(MergeVisitor)
    }
}

struct MergeVisitor;

impl<'de> Visitor<'de> for MergeVisitor {
    type Value = Merge;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a merge: \"a b\" or [\"a\", \"b\"]")
    }

    fn visit_str<E: serde::de::Error>(self, pair: &str) -> Result<Merge, E> {
        // The first line of a merges file, which some converters keep.
        if pair.starts_with("#version") {
            return Ok(Merge(None));
        }
        let merge = merge_of(pair).ok_or_else(|| E::custom("a merge must have two tokens"))?;
        Ok(Merge(Some(merge)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Merge, A::Error> {
        let (left, right, end) =
            (pair.next_element()?, pair.next_element()?, pair.next_element::<String>()?);
        match (left, right, end) {
            (Some(left), Some(right), None) => Ok(Merge(Some((left, right)))),
            _ => Err(A::Error::custom("a merge must have two tokens")),
        }
    }
}
