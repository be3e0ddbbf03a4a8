//! Iterates over the answer of one session.
//!
//! **Invariant:** yields the tokens and texts of [`Generation::run`], in the same order.

use std::collections::VecDeque;
use std::fmt;
use std::ops::ControlFlow;

use crate::error::{Error, Result};
use crate::generate::{Chosen, Finish, Generation, is_set};
use crate::ids::TokenId;
use crate::session::{Session, StepOutput};

/// A token of an answer with its text, or the end of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Generated {
    /// A token was chosen.
    Token {
        /// The token.
        token: TokenId,
        /// The next part of the answer's text that is final.
        text: String,
    },
    /// The answer ended. This is the last item.
    End {
        /// The remaining text, which was held back.
        rest: String,
        /// Why it ended.
        finish: Finish,
    },
}

/// An answer in progress: see [`Generation::stream`]. An error is the last item.
pub struct AnswerTokens<'a> {
    generation: Generation<'a>,
    session: &'a mut Session,
    /// First the prompt, then the tokens that the session does not hold yet.
    unfed: Vec<TokenId>,
    has_begun: bool,
    is_over: bool,
    output: StepOutput,
    ready: VecDeque<Generated>,
}

impl fmt::Debug for AnswerTokens<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("AnswerTokens");
        shown.field("generation", &self.generation).field("is_over", &self.is_over);
        shown.finish_non_exhaustive()
    }
}

impl<'a> Generation<'a> {
    /// Returns an iterator over the answer to a prompt. A call of `next` computes a step if no
    /// token is ready. Dropping the iterator ends the answer; cancelling it yields
    /// [`Generated::End`] with [`Finish::Cancelled`].
    #[must_use]
    pub fn stream(self, session: &'a mut Session, prompt: Vec<TokenId>) -> AnswerTokens<'a> {
        AnswerTokens {
            generation: self,
            session,
            unfed: prompt,
            has_begun: false,
            is_over: false,
            output: StepOutput::default(),
            ready: VecDeque::new(),
        }
    }
}

impl AnswerTokens<'_> {
    fn advance(&mut self) -> Result<()> {
        let n_best = self.generation.n_best_needed();
        if self.has_begun {
            self.generation.feed(self.session, &self.unfed, &mut self.output)?;
        } else {
            self.has_begun = true;
            let cancel = self.generation.cancel;
            let watch = &mut |_| match is_set(cancel) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            };
            self.session.feed_to_choose(&self.unfed, n_best, watch, &mut self.output)?;
            if self.generation.answer.n_tokens_max == 0 {
                self.end(Finish::Length);
                return Ok(());
            }
        }
        self.unfed.clear();
        let logits = self.output.last_of(0).expect("the last row's logits are wanted");
        let chosen = self.generation.accept(logits, self.session)?;
        let mut finish = take(chosen, &mut self.unfed, &mut self.ready);
        while finish.is_none() {
            let Some(chosen) = self.generation.take_forced(self.session)? else { break };
            finish = take(chosen, &mut self.unfed, &mut self.ready);
        }
        if let Some(finish) = finish {
            self.end(finish);
        }
        Ok(())
    }

    fn end(&mut self, finish: Finish) {
        self.is_over = true;
        let rest = self.generation.rest();
        self.ready.push_back(Generated::End { rest, finish });
    }
}

/// Collects a token to be fed, unless it is an end token. Returns why the answer ends with it, if
/// it does.
fn take(
    chosen: Chosen<'_>,
    unfed: &mut Vec<TokenId>,
    ready: &mut VecDeque<Generated>,
) -> Option<Finish> {
    let Chosen { choice, text, finish } = chosen;
    if finish != Some(Finish::EndToken) {
        unfed.push(choice.token);
        ready.push_back(Generated::Token { token: choice.token, text: text.to_owned() });
    }
    finish
}

impl Iterator for AnswerTokens<'_> {
    type Item = Result<Generated>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && !self.is_over {
            match self.advance() {
                Ok(()) => {}
                Err(Error::Cancelled) => self.end(Finish::Cancelled),
                Err(error) => {
                    self.is_over = true;
                    return Some(Err(error));
                }
            }
        }
        self.ready.pop_front().map(Ok)
    }
}
