//! Finds sessions: the one that already holds most of some tokens, with memory for the rest.
//!
//! **Invariant:** a session holds tokens of its own owner only.

use moeflux::{Error, Result, Session, TokenId};

use super::Scheduler;
use crate::job::{Job, Owner};
use crate::kept::{Found, best, fork_at};
use crate::reading::Reading;

/// Tokens that need a session.
#[derive(Clone, Copy)]
pub(super) struct Sought<'t> {
    pub(super) owner: Owner,
    pub(super) tokens: &'t [TokenId],
    /// Positions to which later prompts may want to go back.
    pub(super) split_points: &'t [usize],
    /// Whether all tokens have to be computed.
    pub(super) is_scored: bool,
}

impl<'t> Sought<'t> {
    pub(super) fn prompt_of(job: &'t Job) -> Self {
        let Job { owner, prompt: tokens, split_points, scores_prompt: is_scored, .. } = job;
        Self { owner: *owner, tokens, split_points, is_scored: *is_scored }
    }
}

/// The kind of place that holds a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Kept,
    Answer,
    Reading,
}

impl Scheduler<'_> {
    /// Finds the session that holds most of the tokens.
    pub(super) fn find(&self, sought: Sought<'_>) -> Option<(Place, Found)> {
        let Sought { owner, tokens, is_scored, .. } = sought;
        if is_scored {
            return None;
        }
        let kept = self.answers.kept.best(owner, tokens).map(|found| (Place::Kept, found));
        let answers = best(self.answers.sessions(), owner, tokens);
        let answers = answers.map(|it| (Place::Answer, it));
        let of = |reading: &Reading| self.answers.jobs.owner(reading.job);
        let sessions = self.readings.iter().map(|reading| (of(reading), &reading.session));
        let readings = best(sessions, owner, tokens).map(|it| (Place::Reading, it));
        let found = [kept, answers, readings].into_iter().flatten();
        found.reduce(|best, it| if it.1.n_tokens > best.1.n_tokens { it } else { best })
    }

    /// Returns a session with room for the tokens, possibly with some of them in it. If there is no
    /// room, drops sessions that do not run, where that can help.
    pub(super) fn session_for(&mut self, sought: Sought<'_>) -> Result<Session> {
        loop {
            let error = match self.session_now(sought) {
                Err(error @ Error::NoRoom { .. }) => error,
                done => return done,
            };
            if !self.can_giving_up_help(&error) || !self.answers.give_up_one() {
                return Err(error);
            }
        }
    }

    /// Does the same with the memory that is free now.
    fn session_now(&mut self, sought: Sought<'_>) -> Result<Session> {
        let found = self.find(sought);
        let mut session = self.start_of(found)?;
        let n_left = sought.tokens.len() - session.tokens().len();
        if let Err(error) = session.reserve(n_left) {
            // A fork of a running session can be made again.
            if matches!(found, Some((Place::Kept, _))) {
                self.answers.kept.put(sought.owner, session, sought.split_points);
            }
            return Err(error);
        }
        Ok(session)
    }

    /// Whether dropping sessions that do not run would free enough memory. Without a job at work,
    /// the answer is always yes.
    fn can_giving_up_help(&self, error: &Error) -> bool {
        let Error::NoRoom { needed_bytes, available_bytes, .. } = error else { return false };
        let missing_bytes = needed_bytes.saturating_sub(available_bytes.unwrap_or(0));
        !self.is_working() || self.answers.bytes_to_give_up() >= missing_bytes
    }

    fn start_of(&mut self, found: Option<(Place, Found)>) -> Result<Session> {
        let session = match found {
            Some((Place::Kept, found)) => self.answers.kept.take(found),
            Some((Place::Answer, found)) => {
                fork_at(self.answers.session_mut(found.idx), found.n_tokens)
            }
            Some((Place::Reading, found)) => {
                fork_at(&mut self.readings[found.idx].session, found.n_tokens)
            }
            None => self.context.engine.session(self.limits.context),
        };
        let mut session = session?;
        session.set_checkpoints_max(self.limits.kept.n_states + 2);
        Ok(session)
    }
}
