//! An answer as an iterator over its parts, for one session.
//!
//! **Invariant:** the parts that any other program gets of the same tokens.

use std::collections::VecDeque;

use moeflux::sample::SamplerConfig;
use moeflux::{AnswerTokens, Generated, Result, Session};

use crate::answer::{Answer, AnswerPart, FinishedAnswer};
use crate::chat::Chat;
use crate::prepared::PreparedPrompt;

/// An answer while it is made: see [`Chat::answer`]. Behind an error there is nothing more.
#[derive(Debug)]
pub struct AnswerParts<'a> {
    tokens: AnswerTokens<'a>,
    answer: Answer,
    ready: VecDeque<AnswerPart>,
}

impl Chat {
    /// An iterator over the answer to a prompt in a session of its own, of at most `n_tokens_max`
    /// tokens. Each call of `next` computes until there is a part. Dropping it ends the answer.
    ///
    /// # Errors
    ///
    /// A value of `sampling` that is out of its range.
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
    /// What was said so far; at the end of the iterator, all of it.
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
