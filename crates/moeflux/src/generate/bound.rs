//! The mask of an answer, the tokens it forces, and its permission to end.
//!
//! **Invariant:** the mask receives every accepted token once, in order, except a token that ends
//! the answer.

use std::collections::VecDeque;

use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::sample::{Choice, LogitMask, Sampler};
use crate::text::EndTokens;

/// A mask with the tokens that it forces.
pub(super) struct ForcingMask<'a> {
    mask: Box<dyn LogitMask + 'a>,
    /// Forced tokens that have not been taken yet.
    forced: VecDeque<TokenId>,
    scratch: Vec<TokenId>,
}

/// A mask that forbids end tokens until the answer may end.
struct EndTokenMask<'m> {
    mask: &'m mut dyn LogitMask,
    end_tokens: &'m EndTokens,
}

impl LogitMask for EndTokenMask<'_> {
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

impl<'a> ForcingMask<'a> {
    pub(super) fn new(mask: Box<dyn LogitMask + 'a>) -> Self {
        Self { mask, forced: VecDeque::new(), scratch: Vec::new() }
    }

    /// Takes the next token if the mask leaves no choice.
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

    /// Chooses a token that the mask allows, and accepts it.
    pub(super) fn choose<'s>(
        &mut self,
        (sampler, end_tokens): (&'s mut Sampler, &EndTokens),
        logits: &[f32],
        history: &[TokenId],
    ) -> Result<Choice<'s>> {
        let mut end_token_mask = EndTokenMask { mask: &mut *self.mask, end_tokens };
        let choice = sampler.sample(logits, history, Some(&mut end_token_mask));
        if let Ok(choice) = choice
            && !end_tokens.contains(choice.token)
        {
            self.mask.accept(choice.token);
        }
        // The mask's own error explains why no token is left; the sampler's only says so.
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
