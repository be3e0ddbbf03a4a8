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
use crate::text::pattern::Steps;
use crate::text::pipeline::finder::{Finder, Section};
use crate::text::pipeline::normalizer::Changes;
use crate::text::pipeline::pre_tokenizer::{Part, PreTokenizers};
use crate::text::pipeline::words::{Pairs, Stopped, Words};

/// Number of tokens between checks for cancellation.
const TOKENS_BETWEEN_QUESTIONS: usize = 1_024;

/// All steps before the model.
#[derive(Debug)]
pub(in crate::text) struct Encoder {
    finders: [Finder; 2],
    changes: Changes,
    splits: Option<PreTokenizers>,
    pairs: Pairs,
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
        changes: Changes,
        splits: Option<PreTokenizers>,
    ) -> Result<Self, String> {
        let finders = Finder::pair(added, &changes)?;
        Ok(Self { finders, changes, splits, pairs: Pairs::default() })
    }

    /// Encodes a text.
    pub(in crate::text) fn encode(
        &self,
        bpe: &BPE,
        (text, markers): (&str, Markers),
        limit: &TextLimit,
    ) -> Result<Vec<TokenId>, Stopped> {
        let words = Words::new(bpe, &self.pairs);
        let mut run = Run {
            encoder: self,
            words,
            steps: Steps::new(),
            limit,
            tokens: Vec::new(),
            ask_at: TOKENS_BETWEEN_QUESTIONS,
        };
        match markers {
            Markers::Text => {
                run.splits(&Part { text: &self.changes.apply(text), is_first: true })?;
            }
            Markers::Tokens => {
                let [before, _] = &self.finders;
                before.sections(text, &mut |section| match section {
                    Section::Token(id) => run.token(id),
                    Section::Text(start, end) => run.normalized(text, (start, end)),
                })?;
            }
        }
        Ok(run.tokens)
    }
}

/// The state of encoding one text.
struct Run<'a> {
    encoder: &'a Encoder,
    words: Words<'a>,
    steps: Steps,
    limit: &'a TextLimit,
    tokens: Vec<TokenId>,
    ask_at: usize,
}

impl Run<'_> {
    fn token(&mut self, id: u32) -> Result<(), Stopped> {
        self.tokens.push(TokenId(id));
        check(&self.tokens, (self.limit, &mut self.ask_at))
    }

    /// Encodes a section without tokens that are matched before normalisation.
    fn normalized(&mut self, text: &str, (start, end): (usize, usize)) -> Result<(), Stopped> {
        let [_, afterwards] = &self.encoder.finders;
        let normal = self.encoder.changes.apply(&text[start..end]);
        let is_first = start == 0;
        afterwards.sections(&normal, &mut |section| match section {
            Section::Token(id) => self.token(id),
            Section::Text(start, end) => {
                let is_first = is_first && start == 0;
                self.splits(&Part { text: &normal[start..end], is_first })
            }
        })
    }

    fn splits(&mut self, part: &Part<'_>) -> Result<(), Stopped> {
        self.steps.add_bytes(part.text.len());
        let (words, tokens) = (&mut self.words, &mut self.tokens);
        let (limit, ask_at) = (self.limit, &mut self.ask_at);
        let mut piece =
            |piece: &str| words.encode(piece, tokens, &mut |tokens| check(tokens, (limit, ask_at)));
        match &self.encoder.splits {
            Some(splits) => splits.split(*part, &self.steps, &mut piece),
            None => piece(part.text),
        }
    }
}

fn check(tokens: &[TokenId], (limit, ask_at): (&TextLimit, &mut usize)) -> Result<(), Stopped> {
    if tokens.len() > limit.n_tokens_max {
        return Err(Stopped::TooMany);
    }
    if tokens.len() < *ask_at {
        return Ok(());
    }
    *ask_at = tokens.len() + TOKENS_BETWEEN_QUESTIONS;
    if limit.cancel.is_cancelled() { Err(Stopped::Unwanted) } else { Ok(()) }
}
