//! Finds sessions: the one that already holds most of some tokens, with memory for the rest.
//!
//! **Invariant:** a session holds tokens of its own owner only.

use moeflux::{Error, Result, Session, TokenId};
use moeflux_prefix::Holding;

use super::Scheduler;
use crate::answers::Answers;
use crate::found::{LookupFacts, NearestText, PromptLookup, PromptOutcome};
use crate::job::{Job, Missed, Owner};
use crate::miss_rows::LookedUpPrompt;
use crate::prefill::Prefill;
use crate::session_cache::{PrefixMatch, SessionOrigin, fork_at, longest_match};
use crate::tracked::SubmittedJob;

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

    /// Returns the conversation in memory that shares most of the tokens.
    pub(super) fn nearest(&self, request: SessionRequest<'_>) -> Option<NearestText> {
        let whole = |owner: Owner, text| (owner, text, usize::MAX);
        let Answers { session_cache, jobs, .. } = &self.answers;
        let answers = self.answers.sessions().map(|(owner, it)| whole(owner, it.tokens()));
        let prefills = self.prefills.iter();
        let prefills = prefills.map(|it| whole(jobs.owner(it.job), &it.outline.prompt));
        let in_step = self.under_way.iter().map(|it| whole(it.owner, &it.outline.prompt));
        let all = session_cache.texts().chain(answers).chain(prefills).chain(in_step);
        let own = all.filter(|(owner, ..)| *owner == request.owner);
        NearestText::of(own.map(|(_, text, continues_from)| (text, continues_from)), request.tokens)
    }

    /// Decides what a prompt has found, unless that was done before or its tokens are scored.
    pub(super) fn look_up(
        &mut self,
        submitted: &SubmittedJob,
        (n_cached, n_loaded): (usize, Option<usize>),
        missed: Option<Missed>,
    ) -> Option<PromptLookup> {
        let SubmittedJob { job: Job { owner, prompt, scores_prompt, .. }, nearest, .. } = submitted;
        if *scores_prompt || submitted.has_begun {
            return None;
        }
        let nearest = nearest.as_ref();
        let holding = self.saved.as_ref().map_or(Holding::Nothing, |it| it.holding(*owner));
        let is_missed = missed.is_some();
        let facts = LookupFacts { n_cached, n_loaded, is_missed, nearest, holding };
        let outcome = PromptOutcome::of(facts);
        let looked_up = LookedUpPrompt {
            owner: *owner,
            n_tokens: prompt.len(),
            n_cached,
            outcome,
            nearest,
            is_comparable: nearest.is_some() || holding == Holding::Objects,
        };
        let row = self.miss_rows.count(&looked_up, self.context.clock.now());
        let (n_shared, n_nearest) = nearest.map_or((0, 0), |it| (it.n_shared, it.n_tokens));
        Some(PromptLookup { outcome, n_shared, n_nearest, row })
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
