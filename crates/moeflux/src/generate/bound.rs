//! An answer's mask, what it forces, and when the answer may end.
//!
//! **Invariant:** the mask hears of every token that is taken, once and in order, and of no token
//! that ends the answer.

use std::collections::VecDeque;

use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::sample::{Choice, LogitMask, Sampler};
use crate::text::EndTokens;

/// A mask that binds an answer.
pub(super) struct Bound<'a> {
    mask: Box<dyn LogitMask + 'a>,
    /// Tokens that the mask forces and that were not taken yet.
    forced: VecDeque<TokenId>,
    scratch: Vec<TokenId>,
}

/// A mask that does not let an answer end before it may.
struct Unfinished<'m> {
    mask: &'m mut dyn LogitMask,
    end_tokens: &'m EndTokens,
}

impl LogitMask for Unfinished<'_> {
    fn apply(&mut self, logits: &mut [f32]) {
        self.mask.apply(logits);
        if !self.mask.may_end() {
            for token in self.end_tokens.tokens() {
                if let Some(logit) = logits.get_mut(token.0 as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
}

impl<'a> Bound<'a> {
    pub(super) fn new(mask: Box<dyn LogitMask + 'a>) -> Self {
        Self { mask, forced: VecDeque::new(), scratch: Vec::new() }
    }

    /// Takes the token that has to come next, if the mask leaves no choice.
    pub(super) fn take_forced(&mut self) -> Result<Option<TokenId>> {
        if self.forced.is_empty() {
            self.scratch.clear();
            self.mask.forced(&mut self.scratch);
            self.forced.extend(&self.scratch);
        }
        let token = self.forced.pop_front();
        if let Some(token) = token {
            self.mask.accept(token);
        }
        self.check()?;
        Ok(token)
    }

    /// Chooses a token that the mask allows, and takes it.
    pub(super) fn choose<'s>(
        &mut self,
        (sampler, end_tokens): (&'s mut Sampler, &EndTokens),
        logits: &[f32],
        history: &[TokenId],
    ) -> Result<Choice<'s>> {
        let mut unfinished = Unfinished { mask: &mut *self.mask, end_tokens };
        let choice = sampler.sample(logits, history, Some(&mut unfinished));
        if let Ok(choice) = choice
            && !end_tokens.contains(choice.token)
        {
            self.mask.accept(choice.token);
        }
        // It explains why no token was left, which is all that the sampler can say.
        self.check()?;
        choice
    }

    fn check(&self) -> Result<()> {
        match self.mask.failure() {
            None => Ok(()),
            Some(problem) => Err(Error::Input(problem.to_owned())),
        }
    }
}
