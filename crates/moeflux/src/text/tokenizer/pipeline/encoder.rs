//! Encodes a text from beginning to end, one piece at a time.
//!
//! The library stores every piece of a text until all are encoded, which takes some hundred bytes
//! for each byte. **Invariant:** the tokens are those of the library. Memory besides the tokens is
//! that of the normalised text and of its form in the byte alphabet, a small multiple of the text's
//! length, and at most the limit of `words` for one piece.

use std::collections::BTreeMap;

use tokenizers::AddedToken;
use tokenizers::models::bpe::BPE;

use crate::ids::TokenId;
use crate::text::limit::TextLimit;
use crate::text::tokenizer::pattern::StepBudget;
use crate::text::tokenizer::pipeline::finder::{Finder, TextSection};
use crate::text::tokenizer::pipeline::normalizer::TextChanges;
use crate::text::tokenizer::pipeline::pre_tokenizer::{PreTokenizers, TextPart};
use crate::text::tokenizer::pipeline::words::{CharacterPairs, EncodeError, WordEncoder};

/// Number of tokens between checks for cancellation.
const TOKENS_BETWEEN_CHECKS: usize = 1_024;

/// All steps before the model.
#[derive(Debug)]
pub(in crate::text) struct Encoder {
    finders: [Finder; 2],
    changes: TextChanges,
    splits: Option<PreTokenizers>,
    pairs: CharacterPairs,
}

/// The treatment of text that looks like an added token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text) enum Markers {
    /// It becomes the token.
    Tokens,
    /// It is text.
    Text,
}

impl Encoder {
    /// Creates an encoder from its parts.
    ///
    /// # Errors
    /// If the added tokens cannot be searched for.
    pub(in crate::text) fn new(
        added: &BTreeMap<u32, AddedToken>,
        changes: TextChanges,
        splits: Option<PreTokenizers>,
    ) -> Result<Self, String> {
        let finders = Finder::pair(added, &changes)?;
        Ok(Self { finders, changes, splits, pairs: CharacterPairs::default() })
    }

    /// Encodes a text.
    pub(in crate::text) fn encode(
        &self,
        bpe: &BPE,
        (text, markers): (&str, Markers),
        limit: &TextLimit,
    ) -> Result<Vec<TokenId>, EncodeError> {
        let words = WordEncoder::new(bpe, &self.pairs);
        let mut run = EncodingRun {
            encoder: self,
            words,
            budget: StepBudget::new(),
            limit,
            tokens: Vec::new(),
            check_at: TOKENS_BETWEEN_CHECKS,
        };
        match markers {
            Markers::Text => {
                run.splits(&TextPart { text: &self.changes.apply(text), is_first: true })?;
            }
            Markers::Tokens => {
                let [before, _] = &self.finders;
                before.sections(text, &mut |section| match section {
                    TextSection::Token(id) => run.token(id),
                    TextSection::Text(start, end) => run.normalized(text, (start, end)),
                })?;
            }
        }
        Ok(run.tokens)
    }
}

/// The state of encoding one text.
struct EncodingRun<'a> {
    encoder: &'a Encoder,
    words: WordEncoder<'a>,
    budget: StepBudget,
    limit: &'a TextLimit,
    tokens: Vec<TokenId>,
    check_at: usize,
}

impl EncodingRun<'_> {
    fn token(&mut self, id: u32) -> Result<(), EncodeError> {
        self.tokens.push(TokenId(id));
        check(&self.tokens, (self.limit, &mut self.check_at))
    }

    /// Encodes a section without tokens that are matched before normalisation.
    fn normalized(&mut self, text: &str, (start, end): (usize, usize)) -> Result<(), EncodeError> {
        let [_, afterwards] = &self.encoder.finders;
        let normal = self.encoder.changes.apply(&text[start..end]);
        let is_first = start == 0;
        afterwards.sections(&normal, &mut |section| match section {
            TextSection::Token(id) => self.token(id),
            TextSection::Text(start, end) => {
                let is_first = is_first && start == 0;
                self.splits(&TextPart { text: &normal[start..end], is_first })
            }
        })
    }

    fn splits(&mut self, part: &TextPart<'_>) -> Result<(), EncodeError> {
        self.budget.add_bytes(part.text.len());
        let (words, tokens) = (&mut self.words, &mut self.tokens);
        let (limit, check_at) = (self.limit, &mut self.check_at);
        let mut piece = |piece: &str| {
            words.encode(piece, tokens, &mut |tokens| check(tokens, (limit, check_at)))
        };
        match &self.encoder.splits {
            Some(splits) => splits.split(*part, &self.budget, &mut piece),
            None => piece(part.text),
        }
    }
}

fn check(
    tokens: &[TokenId],
    (limit, check_at): (&TextLimit, &mut usize),
) -> Result<(), EncodeError> {
    if tokens.len() > limit.n_tokens_max {
        return Err(EncodeError::TooMany);
    }
    if tokens.len() < *check_at {
        return Ok(());
    }
    *check_at = tokens.len() + TOKENS_BETWEEN_CHECKS;
    if limit.cancel.is_cancelled() { Err(EncodeError::Cancelled) } else { Ok(()) }
}
