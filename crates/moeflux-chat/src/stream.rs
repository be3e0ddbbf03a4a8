//! An answer as an iterator over its parts, for one session.
//!
//! **Invariant:** the parts are those that any other program gets for the same tokens.

use std::collections::VecDeque;

use moeflux::sample::SamplerConfig;
use moeflux::{AnswerTokens, Generated, Result, Session};

use crate::answer::{Answer, AnswerPart, FinishedAnswer};
use crate::chat::Chat;
use crate::prepared::PreparedPrompt;

/// An answer that is being generated: see [`Chat::answer`]. The iterator ends after an error.
#[derive(Debug)]
pub struct AnswerParts<'a> {
    tokens: AnswerTokens<'a>,
    answer: Answer,
    ready: VecDeque<AnswerPart>,
}

impl Chat {
    /// Returns an iterator over the answer to a prompt, of at most `n_tokens_max` tokens, generated
    /// in `session`. Each call of `next` computes until a part is available. Dropping the iterator
    /// ends the answer.
    ///
    /// # Errors
    ///
    /// [`moeflux::Error::Input`] if a value of `sampling` is out of range, or a bias applies to a
    /// token outside the vocabulary.
    pub fn answer<'a>(
        &'a self,
        prompt: &PreparedPrompt,
        session: &'a mut Session,
        (sampling, n_tokens_max): (SamplerConfig, usize),
    ) -> Result<AnswerParts<'a>> {
        let mut generation = self.text().generation(sampling, n_tokens_max)?;
        if let Some(mask) = &prompt.mask {
            generation = generation.with_mask((**mask).clone());
        }
        let tokens = generation.stream(session, prompt.tokens.clone());
        Ok(AnswerParts { tokens, answer: prompt.answer("call"), ready: VecDeque::new() })
    }
}

impl AnswerParts<'_> {
    /// Returns the answer so far; after the end of the iterator, the whole answer.
    #[must_use]
    pub fn finished(self) -> FinishedAnswer {
        self.answer.finished()
    }
}

impl Iterator for AnswerParts<'_> {
    type Item = Result<AnswerPart>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() {
            let parts = match self.tokens.next()? {
                Err(error) => return Some(Err(error)),
                Ok(Generated::Token { token, text }) => self.answer.token(token, &text),
                Ok(Generated::End { rest, finish }) => self.answer.end(&rest, finish),
                Ok(_) => Vec::new(),
            };
            self.ready.extend(parts);
        }
        self.ready.pop_front().map(Ok)
    }
}
