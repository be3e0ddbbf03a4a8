//! The sessions of answers and of their prompts: kept when they end, dropped for others, and saved
//! while answers run.

use moeflux::{Error, Session};

use super::{Answers, RunningAnswer, UnstartedAnswers};
use crate::answers::decode::DecodeState;
use crate::session_cache::UnsavedSession;
use crate::session_cache::worth::MissingSlots;
use crate::tracked::JobId;

impl<'e> Answers<'e> {
    /// Returns the session of a prompt that is being answered, and is to be saved before the
    /// answers have ended: up to its last token but one, so that the same prompt finds it.
    pub(crate) fn unsaved_prompt(&self) -> Option<UnsavedSession<'_, JobId>> {
        let is_recurrent = self.context.engine.is_recurrent();
        let unstarted = self.unstarted.iter().map(|it| (it.job, &it.prompt_session));
        let first = self.running.iter().filter(|it| it.decode.answer_idx == 0);
        let running = first.map(|it| (it.decode.job, &it.session));
        unstarted.chain(running).find_map(|(id, session)| {
            let running_job = self.jobs.of(id);
            let n_tokens = running_job.job.prompt.len() - 1;
            let has_state = !is_recurrent || session.checkpoints().contains(&n_tokens);
            let origin = running_job.origin();
            (running_job.is_prompt_due() && has_state).then_some(UnsavedSession {
                id,
                session,
                origin,
                n_tokens,
            })
        })
    }

    /// Returns that session of a job.
    pub(crate) fn prompt_session_mut(&mut self, job: JobId) -> Option<&mut Session> {
        let unstarted = self.unstarted.iter_mut().find(|it| it.job == job);
        if let Some(unstarted) = unstarted {
            return Some(&mut unstarted.prompt_session);
        }
        let is_first =
            |it: &&mut RunningAnswer<'_>| it.decode.job == job && it.decode.answer_idx == 0;
        self.running.iter_mut().find(is_first).map(|it| &mut it.session)
    }

    /// Drops a session whose tokens can be read again: a kept one, that of a parked answer, or that
    /// of an answer that waits for its client. Returns whether there was one.
    pub(crate) fn evict_one(&mut self) -> bool {
        self.session_cache.evict_one()
            || self.parked.evict_session()
            || self.park_one() && self.parked.evict_session()
            || self.evict_prompt_session()
    }

    /// Drops the session of a prompt whose answers wait for their client.
    fn evict_prompt_session(&mut self) -> bool {
        let jobs = &self.jobs;
        let is_paused = |it: &UnstartedAnswers<'_>| !jobs.of(it.job).is_ready();
        let Some(idx) = self.unstarted.iter().position(is_paused) else { return false };
        let UnstartedAnswers { prompt_session, decodes, .. } = self.unstarted.remove(idx);
        for decode in decodes {
            self.parked.put_tokens(decode, prompt_session.tokens().to_vec());
        }
        true
    }

    /// Returns the number of answers with session slots whose clients take no tokens.
    pub(crate) fn n_paused(&self) -> usize {
        self.running.iter().filter(|it| !self.jobs.of(it.decode.job).is_ready()).count()
    }

    /// Returns the bytes of the sessions that [`Self::evict_one`] can drop.
    pub(crate) fn evictable_bytes(&self) -> u64 {
        let is_paused = |job| !self.jobs.of(job).is_ready();
        let running = self.running.iter().filter(|it| is_paused(it.decode.job));
        let prompt_sessions =
            self.unstarted.iter().filter(|it| is_paused(it.job)).map(|it| &it.prompt_session);
        let sessions =
            running.map(|it| &it.session).chain(prompt_sessions).chain(self.parked.sessions());
        self.session_cache.bytes() + self.session_cache.bytes_of(sessions)
    }

    /// Keeps the sessions of answers and of their prompts, and ends the answers with an error.
    pub(crate) fn stop_all(&mut self, error: &Error) {
        let mut decodes = Vec::new();
        for RunningAnswer { decode, session, .. } in std::mem::take(&mut self.running) {
            self.keep_answer(&decode, session);
            decodes.push(decode);
        }
        for unstarted in std::mem::take(&mut self.unstarted) {
            self.keep(unstarted.job, unstarted.prompt_session);
            decodes.extend(unstarted.decodes);
        }
        for decode in decodes {
            self.jobs.fail(decode.job, error.clone(), self.context.shared);
        }
        self.fail_all(error);
    }

    /// Keeps the session of a job's first answer: of several answers to a prompt, that is the one
    /// that conversations continue.
    pub(super) fn keep_answer(&mut self, decode: &DecodeState<'e>, session: Session) {
        if decode.answer_idx == 0 {
            self.keep(decode.job, session);
        }
    }

    /// Drops kept sessions while their memory is worth more to experts. With `are_saved`, those
    /// that are still to be saved on a drive stay until they are.
    pub(crate) fn yield_to_experts(&mut self, are_saved: bool) {
        let engine = self.context.engine;
        while self.session_cache.n_sessions() > 0 && engine.session_room().n_slots_lent > 0 {
            let Some(stream) = engine.stream_stats() else { return };
            let n_missing = stream.n_experts.saturating_sub(stream.n_slots);
            let slots = MissingSlots { slot_bytes: stream.slot_bytes, n_missing };
            if !self.session_cache.evict_for(slots, are_saved) {
                return;
            }
        }
    }

    /// Keeps a session of a job that has not ended.
    pub(crate) fn keep(&mut self, job: JobId, session: Session) {
        self.session_cache.put(session, self.jobs.of(job).origin());
    }
}
