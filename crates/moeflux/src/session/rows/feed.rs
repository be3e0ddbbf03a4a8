//! Tokens for one session, as part of a step.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::ops::RowKind;
use crate::session::Session;

/// The tokens whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// No logits: the tokens only extend the session.
    None,
    /// Logits of the last token.
    Last,
    /// Logits of every token.
    All,
}

/// Tokens for one session, as part of a step, and the outcome.
#[derive(Debug)]
pub struct Feed<'a> {
    pub(in crate::session) session: &'a mut Session,
    pub(in crate::session) tokens: &'a [TokenId],
    pub(in crate::session) kind: RowKind,
    pub(in crate::session) wanted: Wanted,
    pub(in crate::session) n_best: Option<usize>,
    pub(in crate::session) marks: &'a [usize],
    pub(in crate::session) cancel: Option<&'a AtomicBool>,
    pub(in crate::session) failure: Option<Error>,
}

impl<'a> Feed<'a> {
    /// Creates a feed of known tokens: a prompt, or part of one. No logits are wanted.
    pub fn prompt(session: &'a mut Session, tokens: &'a [TokenId]) -> Self {
        let (kind, wanted) = (RowKind::Prefill, Wanted::None);
        let (n_best, marks, cancel, failure) = (None, &[][..], None, None);
        Self { session, tokens, kind, wanted, n_best, marks, cancel, failure }
    }

    /// Creates a feed of the newest token of an answer. Its logits are wanted.
    pub fn answer(session: &'a mut Session, token: &'a TokenId) -> Self {
        Self::answer_run(session, std::slice::from_ref(token))
    }

    /// Creates a feed of the newest tokens of an answer, if several are known at once. The logits
    /// of the last one are wanted.
    pub fn answer_run(session: &'a mut Session, tokens: &'a [TokenId]) -> Self {
        Self { kind: RowKind::Decode, wanted: Wanted::Last, ..Self::prompt(session, tokens) }
    }

    /// Sets which logits are returned.
    #[must_use]
    pub fn wanting(self, wanted: Wanted) -> Self {
        Self { wanted, ..self }
    }

    /// Allows only the `n_best` largest logits to be returned if all would have to be fetched from
    /// a device: see [`crate::sample::Sampler::n_best_needed`].
    #[must_use]
    pub fn best(self, n_best: Option<usize>) -> Self {
        Self { n_best, ..self }
    }

    /// Makes checkpoints at these positions of the session. They must ascend, and be after its
    /// current end and at most at the end of this feed.
    #[must_use]
    pub fn checkpoints(self, positions: &'a [usize]) -> Self {
        Self { marks: positions, ..self }
    }

    /// Leaves the session unchanged once the flag, if any, is set. It is checked between layers.
    #[must_use]
    pub fn cancelled_by(self, flag: Option<&'a AtomicBool>) -> Self {
        Self { cancel: flag, ..self }
    }

    /// Returns why the tokens were not fed, once the step is over. The session is then as it was
    /// before.
    #[must_use]
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Takes the failure out and returns it as a result.
    ///
    /// # Errors
    ///
    /// The reason why the tokens were not fed; [`Error::Cancelled`] if the flag was set.
    pub fn outcome(&mut self) -> Result<()> {
        self.failure.take().map_or(Ok(()), Err)
    }

    pub(in crate::session) fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// Fails if the feed is invalid.
    pub(in crate::session) fn check(&self) -> Result<()> {
        check_tokens(self.session, self.tokens, self.wanted)?;
        let n_held = self.session.tokens.len();
        let end = n_held + self.tokens.len();
        let is_ascending = self.marks.is_sorted_by(|a, b| a < b);
        if !is_ascending || self.marks.iter().any(|it| *it <= n_held || *it > end) {
            return Err(Error::Input(format!(
                "invalid checkpoint positions {:?}: must ascend within {} to {end}",
                self.marks,
                n_held + 1
            )));
        }
        Ok(())
    }
}

/// Fails if the session cannot take these tokens.
pub(in crate::session) fn check_tokens(
    session: &Session,
    tokens: &[TokenId],
    wanted: Wanted,
) -> Result<()> {
    let spec = &session.runtime.model().spec;
    if tokens.is_empty() && wanted != Wanted::None {
        return Err(Error::Input("no tokens to feed: the prompt is empty".into()));
    }
    check_context(session, tokens.len())?;
    match tokens.iter().position(|token| token.0 as usize >= spec.vocab) {
        None => Ok(()),
        Some(at) => Err(Error::Input(format!(
            "token {} at index {at} is not in the vocabulary of {}",
            tokens[at].0, spec.vocab
        ))),
    }
}

/// Fails if `n_new` more tokens do not fit the session.
pub(in crate::session) fn check_context(session: &Session, n_new: usize) -> Result<()> {
    let spec = &session.runtime.model().spec;
    let context_max = spec.context_max;
    let (n_held, context) = (session.tokens.len(), session.context);
    if n_new <= context - n_held {
        return Ok(());
    }
    let way_out = if n_new <= context_max - n_held {
        format!("contexts of up to {context_max} are possible")
    } else {
        format!("this model takes {context_max} at most: shorten the text")
    };
    Err(Error::Input(format!(
        "{n_held} tokens in the session and {n_new} more do not fit a context of {context}; \
         {way_out}"
    )))
}
