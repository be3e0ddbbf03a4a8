//! Finds sessions: the one that already holds most of some tokens, with memory for the rest.
//!
//! **Invariant:** a session holds tokens of its own owner only.

use moeflux::{Error, Result, Session, TokenId};

use super::Scheduler;
use crate::job::{Job, Owner};
use crate::prefill::Prefill;
use crate::session_cache::{PrefixMatch, SessionOrigin, fork_at, longest_match};

/// A request for a session: tokens, of which it may hold the first already.
#[derive(Clone, Copy)]
pub(super) struct SessionRequest<'t> {
    pub(super) owner: Owner,
    pub(super) tokens: &'t [TokenId],
    /// Positions to which later prompts may want to go back.
    pub(super) split_points: &'t [usize],
    /// Whether all tokens have to be computed.
    pub(super) is_scored: bool,
}

impl<'t> SessionRequest<'t> {
    pub(super) fn prompt_of(job: &'t Job) -> Self {
        let Job { owner, prompt: tokens, split_points, scores_prompt: is_scored, .. } = job;
        Self { owner: *owner, tokens, split_points, is_scored: *is_scored }
    }
}

/// Where a session with the first tokens of a prompt was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionSource {
    Cache,
    Answer,
    Prefill,
}

impl Scheduler<'_> {
    /// Finds the session that holds most of the tokens.
    pub(super) fn find_session(
        &self,
        request: SessionRequest<'_>,
    ) -> Option<(SessionSource, PrefixMatch)> {
        let SessionRequest { owner, tokens, is_scored, .. } = request;
        if is_scored {
            return None;
        }
        let cached = self
            .answers
            .session_cache
            .longest_match(owner, tokens)
            .map(|found| (SessionSource::Cache, found));
        let answers = longest_match(self.answers.sessions(), owner, tokens);
        let answers = answers.map(|it| (SessionSource::Answer, it));
        let of = |prefill: &Prefill| self.answers.jobs.owner(prefill.job);
        let sessions = self.prefills.iter().map(|prefill| (of(prefill), &prefill.session));
        let prefills =
            longest_match(sessions, owner, tokens).map(|it| (SessionSource::Prefill, it));
        let found = [cached, answers, prefills].into_iter().flatten();
        found.reduce(|best, it| if it.1.n_tokens > best.1.n_tokens { it } else { best })
    }

    /// Returns a session with room for the tokens, possibly with some of them in it. If there is no
    /// room, drops sessions that do not run, where that can help.
    pub(super) fn session_for(&mut self, request: SessionRequest<'_>) -> Result<Session> {
        loop {
            let error = match self.session_now(request) {
                Err(error @ Error::NoRoom { .. }) => error,
                done => return done,
            };
            if !self.can_eviction_help(&error) || !self.evict_one() {
                return Err(error);
            }
        }
    }

    /// Does the same with the memory that is free now.
    fn session_now(&mut self, request: SessionRequest<'_>) -> Result<Session> {
        let found = self.find_session(request);
        let mut session = self.start_of(found)?;
        let n_left = request.tokens.len() - session.tokens().len();
        if let Err(error) = session.reserve(n_left) {
            // A fork of a running session can be made again.
            if matches!(found, Some((SessionSource::Cache, _))) {
                let SessionRequest { owner, split_points, .. } = request;
                let origin = SessionOrigin { owner, split_points, n_reused: 0 };
                self.answers.session_cache.put(session, origin);
            }
            return Err(error);
        }
        Ok(session)
    }

    /// Whether dropping sessions that do not run would free enough memory. Without a job at work,
    /// the answer is always yes.
    fn can_eviction_help(&self, error: &Error) -> bool {
        let Error::NoRoom { needed_bytes, available_bytes, .. } = error else { return false };
        let missing_bytes = needed_bytes.saturating_sub(available_bytes.unwrap_or(0));
        !self.is_working() || self.answers.evictable_bytes() >= missing_bytes
    }

    fn start_of(&mut self, found: Option<(SessionSource, PrefixMatch)>) -> Result<Session> {
        let session = match found {
            Some((SessionSource::Cache, found)) => self.answers.session_cache.take(found),
            Some((SessionSource::Answer, found)) => {
                fork_at(self.answers.session_mut(found.idx), found.n_tokens)
            }
            Some((SessionSource::Prefill, found)) => {
                fork_at(&mut self.prefills[found.idx].session, found.n_tokens)
            }
            None => self.context.engine.session(self.limits.context),
        };
        let mut session = session?;
        session.set_checkpoints_max(self.limits.kept.n_states + 2);
        Ok(session)
    }
}
