//! Tokens for one session, as a part of a step.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::ops::RowKind;
use crate::session::Session;

/// Whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// None: the tokens are only remembered.
    None,
    /// The last token's.
    Last,
    /// Every token's.
    All,
}

/// Tokens for one session, as a part of a step, and what becomes of them.
#[derive(Debug)]
pub struct Feed<'a> {
    pub(super) session: &'a mut Session,
    pub(super) tokens: &'a [TokenId],
    pub(super) kind: RowKind,
    pub(super) wanted: Wanted,
    pub(super) n_best: Option<usize>,
    pub(super) marks: &'a [usize],
    pub(super) cancel: Option<&'a AtomicBool>,
    pub(super) failure: Option<Error>,
}

impl<'a> Feed<'a> {
    /// Tokens that were there before the answer: a prompt, or a part of one. No logits are wanted.
    pub fn prompt(session: &'a mut Session, tokens: &'a [TokenId]) -> Self {
        let (kind, wanted) = (RowKind::Prompt, Wanted::None);
        let (n_best, marks, cancel, failure) = (None, &[][..], None, None);
        Self { session, tokens, kind, wanted, n_best, marks, cancel, failure }
    }

    /// The newest token of an answer. The logits of the next one are wanted.
    pub fn answer(session: &'a mut Session, token: &'a TokenId) -> Self {
        Self::answer_run(session, std::slice::from_ref(token))
    }

    /// The newest tokens of an answer, where several are known at once. The logits behind the last
    /// are wanted.
    pub fn answer_run(session: &'a mut Session, tokens: &'a [TokenId]) -> Self {
        Self { kind: RowKind::Answer, wanted: Wanted::Last, ..Self::prompt(session, tokens) }
    }

    /// Which logits come back.
    #[must_use]
    pub fn wanting(self, wanted: Wanted) -> Self {
        Self { wanted, ..self }
    }

    /// At least this many of the best logits are enough, where the others would have to be fetched
    /// from a device: see [`crate::sample::Sampler::n_best_needed`].
    #[must_use]
    pub fn best(self, n_best: Option<usize>) -> Self {
        Self { n_best, ..self }
    }

    /// Makes checkpoints at these positions of the session, which are ascending and reached by this
    /// feed.
    #[must_use]
    pub fn checkpoints(self, positions: &'a [usize]) -> Self {
        Self { marks: positions, ..self }
    }

    /// Leaves the session as it is once the flag is set, if there is one. It is looked at between
    /// layers.
    #[must_use]
    pub fn cancelled_by(self, flag: Option<&'a AtomicBool>) -> Self {
        Self { cancel: flag, ..self }
    }

    /// Why the tokens were not fed, once the step is over: the session is then as it was before.
    #[must_use]
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// The same as a result, which is forgotten here.
    ///
    /// # Errors
    ///
    /// What kept the tokens from being fed; [`Error::Cancelled`] if that was the flag.
    pub fn outcome(&mut self) -> Result<()> {
        self.failure.take().map_or(Ok(()), Err)
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// Refuses what cannot be fed.
    pub(super) fn check(&self) -> Result<()> {
        check_tokens(self.session, self.tokens, self.wanted)?;
        let n_held = self.session.tokens.len();
        let end = n_held + self.tokens.len();
        let is_ascending = self.marks.is_sorted_by(|a, b| a < b);
        if !is_ascending || self.marks.iter().any(|it| *it <= n_held || *it > end) {
            return Err(Error::Input(format!(
                "cannot keep positions {:?}: they have to ascend from {} to {end}",
                self.marks,
                n_held + 1
            )));
        }
        Ok(())
    }
}

/// Refuses tokens that a session cannot take.
pub(super) fn check_tokens(session: &Session, tokens: &[TokenId], wanted: Wanted) -> Result<()> {
    let spec = &session.runtime.model().spec;
    if tokens.is_empty() && wanted != Wanted::None {
        return Err(Error::Input("no tokens to feed: the prompt is empty".into()));
    }
    check_context(session, tokens.len())?;
    match tokens.iter().position(|token| token.0 as usize >= spec.vocab) {
        None => Ok(()),
        Some(at) => Err(Error::Input(format!(
            "token {} at place {at} is not in the vocabulary of {}",
            tokens[at].0, spec.vocab
        ))),
    }
}

/// Refuses so many tokens more that they do not fit a session.
pub(super) fn check_context(session: &Session, n_new: usize) -> Result<()> {
    let spec = &session.runtime.model().spec;
    let (context_max, limit) = (spec.context_max, spec.context_limit);
    let (n_held, context) = (session.tokens.len(), session.context);
    if n_new <= context - n_held {
        return Ok(());
    }
    let way_out = if n_new <= context_max - n_held {
        format!("a context of up to {context_max} can be asked for")
    } else {
        format!("this model takes {context_max} at most{}: shorten the text", limit.reason())
    };
    Err(Error::Input(format!(
        "{n_held} tokens in the session and {n_new} more do not fit a context of {context}; \
         {way_out}"
    )))
}
