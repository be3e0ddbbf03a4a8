//! Tokens with fixed ids that are matched in a text before it is split.
//!
//! **Invariant:** after `check`, contents and ids are unique, and an id in the vocabulary has the
//! same text there. The library numbers these tokens itself; `add_to` compares the result.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tokenizers::{AddedToken, NormalizedString, Normalizer};

use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::text::files::{one_line, shortened};
use crate::text::tokenizer::pipeline::LibraryTokenizer;
use crate::text::tokenizer::pipeline::model::{TOKEN_BYTES_MAX, TOKEN_ID_MAX, VocabularyMap};

/// Maximum added tokens. Most files have a few dozen; those with image codes have thousands.
const ADDED_TOKENS_MAX: usize = 1 << 16;
/// Maximum bytes of their contents together: the matching automaton has a state for each.
const ADDED_BYTES_MAX: usize = 1 << 20;

/// A token and its id in the file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(in crate::text) struct DeclaredToken {
    pub(in crate::text) id: u32,
    #[serde(flatten)]
    pub(in crate::text) token: AddedToken,
}

/// The added tokens of a file, in ascending order of ids.
#[derive(Clone, Debug, Default)]
pub(in crate::text) struct AddedTokens {
    tokens: Vec<DeclaredToken>,
    ids: HashMap<String, TokenId>,
}

impl AddedTokens {
    /// Checks the tokens without a vocabulary: number, sizes, and uniqueness.
    pub(in crate::text) fn new(
        tokens: impl IntoIterator<Item = DeclaredToken>,
    ) -> std::result::Result<Self, String> {
        let mut added = Self::default();
        let mut n_bytes = 0;
        for token in tokens {
            let text = &token.token.content;
            n_bytes += text.len();
            if text.is_empty() {
                return Err(format!("token {} has no text", token.id));
            }
            if text.len() > TOKEN_BYTES_MAX || token.id > TOKEN_ID_MAX {
                return Err(format!(
                    "token {} has {} bytes; the limits are {TOKEN_BYTES_MAX}, and \
                     {TOKEN_ID_MAX} for an id",
                    token.id,
                    text.len()
                ));
            }
            if added.tokens.len() >= ADDED_TOKENS_MAX || n_bytes > ADDED_BYTES_MAX {
                return Err(format!(
                    "more than {ADDED_TOKENS_MAX} tokens, or {ADDED_BYTES_MAX} bytes of them"
                ));
            }
            added.ids.insert(text.clone(), TokenId(token.id));
            added.tokens.push(token);
        }
        added.tokens.sort_by_key(|token| token.id);
        added.tokens.dedup();
        for pair in added.tokens.windows(2) {
            if pair[0].id == pair[1].id {
                return Err(format!(
                    "`{}` and `{}` have the same id {}",
                    shortened(&pair[0].token.content),
                    shortened(&pair[1].token.content),
                    pair[0].id
                ));
            }
        }
        if added.ids.len() < added.tokens.len() {
            return Err("the same text has two ids".to_owned());
        }
        Ok(added)
    }

    pub(in crate::text) fn id_of(&self, text: &str) -> Option<TokenId> {
        self.ids.get(text).copied()
    }

    pub(in crate::text) fn iter(&self) -> impl Iterator<Item = &DeclaredToken> {
        self.tokens.iter()
    }

    /// Checks the tokens against the vocabulary.
    pub(super) fn check(&self, vocabulary: &VocabularyMap) -> std::result::Result<(), String> {
        for DeclaredToken { id, token } in &self.tokens {
            let same_text = vocabulary.id_of(&token.content);
            if same_text.is_some_and(|known| known.0 != *id)
                || same_text.is_none() && vocabulary.has_id(TokenId(*id))
            {
                return Err(format!(
                    "token `{}` has id {id}, but the vocabulary has another",
                    shortened(&token.content)
                ));
            }
        }
        Ok(())
    }

    /// Adds the tokens that the library does not have yet, and checks the ids that they get.
    pub(in crate::text) fn add_to(&self, path: &Path, inner: &mut LibraryTokenizer) -> Result<()> {
        let refused = |problem: String| Error::malformed(path, one_line(&problem));
        let mut found = HashMap::new();
        for DeclaredToken { id, token } in &self.tokens {
            let text = found_text(token, inner)
                .map_err(|problem| refused(format!("added token {id}: {problem}")))?;
            if let Some(other) = found.insert((text, token.normalized), id) {
                return Err(refused(format!(
                    "added tokens {other} and {id} are the same text when they are normalized"
                )));
            }
        }
        inner
            .add_tokens(self.tokens.iter().map(|declared| declared.token.clone()))
            .map_err(|error| refused(format!("added tokens: {error}")))?;
        for DeclaredToken { id, token } in &self.tokens {
            let got = inner.token_to_id(&token.content);
            if got != Some(*id) {
                return Err(refused(format!(
                    "added token `{}` should have id {id}, but its place in the vocabulary gives \
                     {}; the file's ids have gaps or repeat",
                    shortened(&token.content),
                    got.map_or_else(|| "none".to_owned(), |got| got.to_string())
                )));
            }
        }
        Ok(())
    }
}

/// Returns the text that the library will search for. Refuses a text that cannot be found, or that
/// would be searched for repeatedly in the same spaces.
fn found_text(token: &AddedToken, inner: &LibraryTokenizer) -> std::result::Result<String, String> {
    let mut text = NormalizedString::from(token.content.as_str());
    if let Some(normalizer) = inner.get_normalizer().filter(|_| token.normalized) {
        normalizer.normalize(&mut text).map_err(|error| error.to_string())?;
    }
    if text.get().is_empty() {
        return Err("nothing is left of it when it is normalized".to_owned());
    }
    if (token.lstrip || token.rstrip) && text.get().chars().all(char::is_whitespace) {
        return Err("it consists of spaces, and also takes the spaces next to it".to_owned());
    }
    Ok(text.get().to_owned())
}

impl<'de> Deserialize<'de> for AddedTokens {
    fn deserialize<D: Deserializer<'de>>(json: D) -> std::result::Result<Self, D::Error> {
        json.deserialize_seq(AddedTokensVisitor)
    }
}

struct AddedTokensVisitor;

impl<'de> Visitor<'de> for AddedTokensVisitor {
    type Value = AddedTokens;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of added tokens")
    }

    fn visit_seq<A: SeqAccess<'de>>(
        self,
        mut list: A,
    ) -> std::result::Result<AddedTokens, A::Error> {
        let mut tokens: Vec<DeclaredToken> = Vec::new();
        while let Some(token) = list.next_element()? {
            if tokens.len() > ADDED_TOKENS_MAX {
                break;
            }
            tokens.push(token);
        }
        AddedTokens::new(tokens)
            .map_err(|problem| A::Error::custom(format!("`added_tokens`: {problem}")))
    }
}
