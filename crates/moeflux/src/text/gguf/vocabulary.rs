//! Builds a model and its added tokens from the lists of tokens, types, merges and scores.
//!
//! **Invariant:** a token keeps the id in its file. Padding entries, which fill the list up to a
//! round number, are omitted.

use std::collections::HashSet;

use tokenizers::AddedToken;

use crate::error::Result;
use crate::ids::TokenId;
use crate::text::files::shortened;
use crate::text::gguf::keys::TextKeys;
use crate::text::gguf::merges::{SplittableToken, TieOrder, merges};
use crate::text::gguf::recipes::{Merging, Recipe};
use crate::text::tokenizer::pipeline::{
    AddedTokens, BpeModel, DeclaredToken, Merges, VocabularyMap, merge_of,
};

pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
pub(super) const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";

/// The purpose of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// Text, or a byte without another token.
    Text,
    /// Matched before a text is split; marks structure.
    Control,
    /// Matched before a text is split; is text.
    UserDefined,
    /// An entry without a token.
    Unused,
}

/// The tokens of a file by id.
#[derive(Clone, Debug)]
pub(super) struct TokenList<'a> {
    keys: TextKeys<'a>,
    texts: &'a [String],
    kinds: Vec<TokenKind>,
}

impl<'a> TokenList<'a> {
    pub(super) fn read(keys: TextKeys<'a>) -> Result<Self> {
        let texts = keys.texts(TOKENS)?.ok_or_else(|| keys.missing(TOKENS))?;
        let Some(types) = keys.integers(TOKEN_TYPE)? else {
            return Ok(Self { keys, texts, kinds: vec![TokenKind::Text; texts.len()] });
        };
        keys.check_len(TOKEN_TYPE, types.len(), texts.len())?;
        let mut kinds = Vec::with_capacity(texts.len());
        for (id, (text, number)) in texts.iter().zip(types).enumerate() {
            kinds.push(match number {
                _ if text.is_empty() || is_padding(text, id) => TokenKind::Unused,
                1 | 6 => TokenKind::Text,
                2 | 3 => TokenKind::Control,
                4 => TokenKind::UserDefined,
                5 => TokenKind::Unused,
                _ => {
                    let problem = format!("token {id} has type {number}; types 1 to 6 are known");
                    return Err(keys.refused(TOKEN_TYPE, problem));
                }
            });
        }
        Ok(Self { keys, texts, kinds })
    }

    fn n_tokens(&self) -> usize {
        self.texts.len()
    }

    /// Returns the tokens that are matched before a text is split, with their ids.
    pub(super) fn added(&self) -> impl Iterator<Item = (u32, &'a str, TokenKind)> {
        self.all().filter(|(.., kind)| matches!(kind, TokenKind::Control | TokenKind::UserDefined))
    }

    /// Returns the token that a key names.
    pub(super) fn token(&self, key: &str) -> Result<Option<(TokenId, &'a str)>> {
        let id = self.keys.token(key, self.n_tokens())?;
        let token = id.and_then(|id| Some((u32::try_from(id).ok()?, id)));
        let token = token.filter(|(_, id)| self.kinds[*id] != TokenKind::Unused);
        Ok(token.map(|(token, id)| (TokenId(token), self.texts[id].as_str())))
    }

    fn all(&self) -> impl Iterator<Item = (u32, &'a str, TokenKind)> {
        let texts = self.texts.iter().zip(&self.kinds);
        (0..=u32::MAX).zip(texts).map(|(id, (text, kind))| (id, text.as_str(), *kind))
    }

    /// Builds the model of a byte-level vocabulary.
    pub(super) fn byte_model(&self, recipe: &Recipe) -> Result<BpeModel> {
        let (is_ranked, ignores_merges) =
            (recipe.merging == Merging::Ranks, recipe.merging != Merging::Listed);
        let listed = match is_ranked {
            true => &[],
            false => self.keys.texts(MERGES)?.ok_or_else(|| self.keys.missing(MERGES))?,
        };
        let end = match ignores_merges {
            true => self.end_of_vocabulary(listed),
            false => self.n_tokens(),
        };
        let vocabulary = self.vocabulary(end)?;
        let merges = match is_ranked {
            true => {
                let priority = |id: u32| -f64::from(id);
                let splittable = self.splittable(priority);
                merges(&splittable, &vocabulary, TieOrder::ById)
                    .map_err(|problem| self.keys.refused(TOKENS, problem))?
            }
            false => self.listed_merges(listed)?,
        };
        Ok(BpeModel::of_bytes(vocabulary, merges, ignores_merges))
    }

    /// Builds the model of a SentencePiece vocabulary.
    pub(super) fn piece_model(&self) -> Result<BpeModel> {
        let vocabulary = self.vocabulary(self.n_tokens())?;
        let merges = match self.keys.texts(MERGES)? {
            Some(listed) => self.listed_merges(listed)?,
            None => {
                let scores = self.keys.floats(SCORES)?.ok_or_else(|| self.keys.missing(SCORES))?;
                self.keys.check_len(SCORES, scores.len(), self.n_tokens())?;
                let score = |id: u32| usize::try_from(id).map_or(0.0, |id| scores[id]);
                let splittable = self.splittable(score);
                merges(&splittable, &vocabulary, TieOrder::LongPartsFirst)
                    .map_err(|problem| self.keys.refused(SCORES, problem))?
            }
        };
        let unknown = self.token(UNKNOWN)?.map(|(_, text)| text.to_owned());
        Ok(BpeModel::of_characters(vocabulary, merges, unknown))
    }

    /// Returns the added tokens of this vocabulary.
    pub(super) fn added_tokens(&self) -> Result<AddedTokens> {
        AddedTokens::new(self.added().map(|(id, text, kind)| DeclaredToken {
            id,
            // Matched in the original text, not in the normalised one.
            token: AddedToken::from(text, kind == TokenKind::Control).normalized(false),
        }))
        .map_err(|problem| self.keys.refused(TOKENS, problem))
    }

    fn vocabulary(&self, end: usize) -> Result<VocabularyMap> {
        let mut vocabulary = VocabularyMap::default();
        for (id, text, _) in self.all().take(end).filter(|(.., kind)| *kind != TokenKind::Unused) {
            vocabulary
                .insert(text.to_owned(), id)
                .map_err(|problem| self.keys.refused(TOKENS, problem))?;
        }
        Ok(vocabulary)
    }

    /// Returns the tokens that can be merged from others.
    fn splittable(&self, priority: impl Fn(u32) -> f64) -> Vec<SplittableToken<'a>> {
        let texts = self.all().filter(|(.., kind)| *kind == TokenKind::Text);
        texts.map(|(id, text, _)| SplittableToken { text, priority: priority(id) }).collect()
    }

    fn listed_merges(&self, listed: &[String]) -> Result<Merges> {
        let mut merges = Merges::default();
        for (place, text) in listed.iter().enumerate() {
            let merge = merge_of(text).ok_or_else(|| {
                let problem =
                    format!("merge {place}, `{}`, does not have two tokens", shortened(text));
                self.keys.refused(MERGES, problem)
            })?;
            merges.push(merge.0, merge.1).map_err(|problem| self.keys.refused(MERGES, problem))?;
        }
        Ok(merges)
    }

    /// Returns the end of a vocabulary in which whole pieces become tokens without merges. Added
    /// tokens at the end of the list are excluded: otherwise a piece with the text of one would
    /// become it, even in a text in which special tokens must not be recognised. Added tokens
    /// before the end, or after gaps in the ids, must be included, because the library would
    /// renumber them.
    fn end_of_vocabulary(&self, listed: &[String]) -> usize {
        let is_text = |kind: &TokenKind| *kind == TokenKind::Text;
        let end = self.kinds.iter().rposition(is_text).map_or(0, |last| last + 1);
        let after = &self.kinds[end..];
        let n_added = after.iter().take_while(|kind| **kind != TokenKind::Unused).count();
        let has_gaps = self.kinds[..end].contains(&TokenKind::Unused)
            || after[n_added..].iter().any(|kind| *kind != TokenKind::Unused);
        let added = &self.texts[end..end + n_added];
        if has_gaps || are_needed(added, listed) {
            return self.n_tokens();
        }
        end
    }
}

/// Returns whether the vocabulary needs one of these tokens, because it is a single character or
/// the result of a merge.
fn are_needed(tokens: &[String], merges: &[String]) -> bool {
    let wanted: HashSet<&str> = tokens.iter().map(String::as_str).collect();
    let firsts: HashSet<char> = tokens.iter().filter_map(|token| token.chars().next()).collect();
    let mut made = String::new();
    tokens.iter().any(|token| token.chars().nth(1).is_none())
        || merges.iter().any(|merge| {
            let is_near = merge.starts_with(|first| firsts.contains(&first));
            let Some((left, right)) = merge.split_once(' ').filter(|_| is_near) else {
                return false;
            };
            made.clear();
            made.push_str(left);
            made.push_str(right);
            wanted.contains(made.as_str())
        })
}

/// Returns whether an entry is padding. Converters fill rows without tokens with it; older ones set
/// no type.
fn is_padding(text: &str, id: usize) -> bool {
    let number = text.strip_prefix("[PAD").and_then(|rest| rest.strip_suffix(']'));
    number.and_then(|number| number.parse().ok()) == Some(id)
}
