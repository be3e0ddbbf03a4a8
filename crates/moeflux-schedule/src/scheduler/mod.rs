//! Decides which jobs run and what the engine computes next.
//!
//! Prompts are read chunk by chunk; the one with the least left to read comes first. Between the
//! layers of a chunk, short prompts are read, and answers take steps for as much time as the
//! prompts have used. An answer whose client takes no tokens is parked, and resumes when the client
//! takes tokens again. **Invariant:** no more sessions run than are allowed, and a job's tokens
//! depend on no other job.

mod session_search;
mod saving;
mod admission;
mod steps;

pub(crate) use crate::scheduler::saving::SavableId;

use std::collections::VecDeque;
use std::time::Duration;

use moeflux::step::StepOutput;
use moeflux::{Error, SessionRoom};

use crate::answers::parked::{RecomputeRequest, Unparked};
use crate::answers::{Answers, Context};
use crate::job::{Job, Owner};
use crate::miss_rows::MissRows;
use crate::prefill::chunk::Balance;
use crate::prefill::precedence::Precedence;
use crate::prefill::{Outline, Prefill, PrefillId};
use crate::saved::SavedSessions;
use crate::saved::load::{LoadProgress, SessionLoad};
use crate::scheduler::admission::AdmissionSnapshot;
use crate::scheduler::saving::SavePace;
use crate::scheduler::session_search::SessionRequest;
use crate::session_cache::{KeptLimits, SessionCache, SessionOrigin};
use crate::tracked::SubmittedJob;

/// Upper bound on the rows of answers in one step while no prompt is read.
const N_ROWS_OF_ANSWERS: usize = 512;

/// Limits of a scheduler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SchedulerLimits {
    pub(crate) n_sessions: usize,
    pub(crate) context: usize,
    pub(crate) kept: KeptLimits,
}

/// Returns jobs that have arrived since the last call.
pub(crate) type JobSource<'i> = dyn FnMut() -> Option<SubmittedJob> + 'i;

/// A prompt whose session is in a step.
struct PrefillInStep {
    id: PrefillId,
    owner: Owner,
    outline: Outline,
    n_left: usize,
    service: Duration,
}

/// Schedules jobs on one engine.
pub(crate) struct Scheduler<'e> {
    context: Context<'e>,
    limits: SchedulerLimits,
    is_streaming: bool,
    waiting: VecDeque<SubmittedJob>,
    saved: Option<SavedSessions<'e, SavableId>>,
    save_pace: SavePace,
    /// Jobs whose sessions are being loaded from a drive.
    loads: Vec<(SubmittedJob, SessionLoad)>,
    miss_rows: MissRows,
    n_pushed: u64,
    /// Prompts outside the running step, oldest first.
    prefills: Vec<Prefill>,
    /// Prompts in the running step.
    under_way: Vec<PrefillInStep>,
    precedence: Precedence,
    answers: Answers<'e>,
    balance: Balance,
    output: StepOutput,
    /// Output of steps between the layers of another.
    output_beside: StepOutput,
    /// Time for one row of a prompt in one layer, from the last step.
    row_time: Duration,
    /// Number of ended answers when the answers without memory last tried again.
    n_ended: u64,
    /// Numbers of ended and of paused answers when there was no memory for the next job; it waits
    /// for either to change.
    full_at: Option<(u64, usize)>,
    /// State and length limit at the last search for short jobs, which found none.
    short_searched: Option<(AdmissionSnapshot, usize)>,
    /// The error because of which the engine's files are outdated. No job begins while it is set.
    outdated: Option<Error>,
    /// Whether a job is next where jobs and further answers of running jobs compete for sessions.
    is_turn_of_jobs: bool,
}

impl<'e> Scheduler<'e> {
    /// `saved` are the conversations on a drive.
    pub(crate) fn new(
        context: Context<'e>,
        limits: SchedulerLimits,
        saved: Option<SavedSessions<'e, SavableId>>,
    ) -> Self {
        let engine = context.engine;
        Self {
            context,
            limits,
            is_streaming: engine.stream_stats().is_some(),
            waiting: VecDeque::new(),
            saved,
            save_pace: SavePace::default(),
            loads: Vec::new(),
            miss_rows: MissRows::default(),
            n_pushed: 0,
            prefills: Vec::new(),
            under_way: Vec::new(),
            precedence: Precedence::default(),
            answers: Answers::new(context, SessionCache::new(limits.kept, engine)),
            balance: Balance::default(),
            output: StepOutput::default(),
            output_beside: StepOutput::default(),
            row_time: Duration::ZERO,
            n_ended: 0,
            full_at: None,
            short_searched: None,
            outdated: None,
            is_turn_of_jobs: false,
        }
    }

    /// Queues a job.
    pub(crate) fn push(&mut self, submitted: SubmittedJob) {
        self.waiting.push_back(submitted);
        self.n_pushed += 1;
        // It may be smaller than the one for which there was no memory.
        self.full_at = None;
    }

    /// Whether there is no job at all.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.loads.is_empty() && self.answers.jobs.len() == 0
    }

    /// Does the next piece of work. Returns whether there was any. Jobs that arrive meanwhile are
    /// taken from `job_source`.
    pub(crate) fn turn(&mut self, job_source: &mut JobSource<'_>) -> bool {
        let begun_at = self.context.clock.now();
        let has_dropped = self.drop_cancelled() | self.advance_loads();
        self.note_ended();
        self.relieve();
        self.give_sessions();
        let is_alone = self.prefills.is_empty();
        let has_worked = if is_alone {
            self.step_answers()
        } else {
            self.read_chunk(job_source);
            true
        };
        let has_copied = self.save_some(self.context.clock.now().saturating_sub(begun_at));
        self.keep_to_limits();
        self.answers.yield_to_experts(self.saved.is_some());
        if self.answers.is_stopped {
            let problem = "the engine failed during a step and is being reopened";
            self.fail_all(&Error::Stopped(problem.to_owned()));
        }
        self.answers.publish(self.answers.jobs.len(), is_alone);
        has_worked || has_dropped || has_copied
    }

    fn step_answers(&mut self) -> bool {
        let n_rows = N_ROWS_OF_ANSWERS.min(self.context.engine.n_rows_max());
        self.answers.step(n_rows.max(1))
    }

    /// Whether the engine no longer works.
    pub(crate) fn is_stopped(&self) -> bool {
        self.answers.is_stopped
    }

    /// Returns the waiting jobs if the files are outdated and no job runs on this engine; an engine
    /// of the new files is to run them. Ends parked answers.
    pub(crate) fn take_waiting(&mut self) -> Option<Vec<SubmittedJob>> {
        let error = self.outdated.as_ref()?;
        if self.answers.n_running() > 0 || !(self.prefills.is_empty() && self.loads.is_empty()) {
            return None;
        }
        self.answers.fail_all(error);
        Some(self.waiting.drain(..).collect())
    }

    /// Resets the published counters, because the engine is closed.
    pub(crate) fn close(self) {
        let mut stats = self.context.shared.stats();
        (stats.n_running, stats.n_kept, stats.n_parked, stats.stream) = (0, 0, 0, None);
        (stats.kept_bytes, stats.room, stats.tiers) = (0, SessionRoom::default(), None);
        stats.rows = None;
    }

    /// Ends all jobs with an error.
    pub(crate) fn fail_all(&mut self, error: &Error) {
        for submitted in std::mem::take(&mut self.waiting) {
            submitted.drop_waiting(Some(error.clone()), self.context.shared);
        }
        for (submitted, _) in std::mem::take(&mut self.loads) {
            submitted.drop_waiting(Some(error.clone()), self.context.shared);
        }
        for prefill in std::mem::take(&mut self.prefills) {
            self.fail_prefill(&prefill, error.clone());
        }
        self.answers.fail_all(error);
        self.answers.publish(0, false);
    }

    /// Removes cancelled jobs. Returns whether there were any. The part of their prompts that was
    /// read is kept, so that a repeated request continues from there.
    fn drop_cancelled(&mut self) -> bool {
        let shared = self.context.shared;
        let n_before = self.waiting.len();
        for submitted in std::mem::take(&mut self.waiting) {
            if submitted.flags.are_all_cancelled() {
                submitted.drop_waiting(None, shared);
            } else {
                self.waiting.push_back(submitted);
            }
        }
        let cancelled = self.prefills.extract_if(.., |it| it.is_cancelled());
        let cancelled: Vec<Prefill> = cancelled.collect();
        let is_cancelled = |(it, _): &mut (SubmittedJob, _)| it.flags.are_all_cancelled();
        let loads: Vec<_> = self.loads.extract_if(.., is_cancelled).collect();
        let has_any = self.waiting.len() < n_before || !cancelled.is_empty() || !loads.is_empty();
        for (submitted, load) in loads {
            // What it held before is of use to others.
            let Job { owner, split_points, .. } = &submitted.job;
            let origin = SessionOrigin { owner: *owner, split_points, n_reused: 0 };
            self.answers.session_cache.put(load.give_up(), origin);
            submitted.drop_waiting(None, shared);
        }
        if self.waiting.len() < n_before {
            // The next waiting job may be smaller.
            self.full_at = None;
        }
        for prefill in cancelled {
            self.answers.keep(prefill.job, prefill.session);
            // An answer that was to resume ends below, with the other answers.
            if prefill.resumes.is_none() {
                self.answers.jobs.cancel_whole(prefill.job, shared);
            }
        }
        self.answers.drop_cancelled() || has_any
    }

    /// Lets answers without memory try again after something has ended.
    fn note_ended(&mut self) {
        let n_ended = self.answers.jobs.n_ended();
        if n_ended != self.n_ended {
            self.n_ended = n_ended;
            self.answers.try_again();
        }
    }

    /// Takes what was loaded from the drive, and begins the jobs whose sessions are complete.
    /// Returns whether there were any.
    fn advance_loads(&mut self) -> bool {
        let mut has_any = false;
        for (submitted, mut load) in std::mem::take(&mut self.loads) {
            match load.advance() {
                LoadProgress::Waits => self.loads.push((submitted, load)),
                LoadProgress::Took => {
                    has_any = true;
                    self.loads.push((submitted, load));
                }
                LoadProgress::Ended { session, n_loaded } => {
                    has_any = true;
                    self.begin(submitted, session, Some(n_loaded));
                }
            }
        }
        has_any
    }

    /// Makes room for answers that cannot continue without: drops sessions that do not run, then
    /// puts the newest prompt back. Other answers will end; if none can continue, one fails.
    fn relieve(&mut self) {
        if !self.answers.has_shortage() {
            return;
        }
        if self.evict_one() {
            self.answers.try_again();
        } else if self.put_back_newest() {
            self.answers.try_again();
            // Before the prompt claims the same memory again.
            self.step_answers();
        } else if !self.answers.is_any_ready() {
            self.answers.fail_one_short();
        }
    }

    /// Puts the newest prompt back. Returns whether there was one.
    fn put_back_newest(&mut self) -> bool {
        let Some(prefill) = self.prefills.pop() else { return false };
        self.put_back(&prefill);
        true
    }

    /// Returns a prefill to the state of waiting.
    fn put_back(&mut self, prefill: &Prefill) {
        match prefill.resumes {
            None => {
                let back = self.answers.jobs.take_back(prefill.job, self.context.shared);
                self.waiting.push_front(back);
            }
            Some(answer_idx) => self.answers.put_back((prefill.job, answer_idx)),
        }
    }

    /// Fails a prefill.
    fn fail_prefill(&mut self, prefill: &Prefill, error: Error) {
        match prefill.resumes {
            None => self.answers.jobs.fail_whole(prefill.job, error, self.context.shared),
            Some(answer_idx) => self.answers.fail_parked((prefill.job, answer_idx), error),
        }
    }

    /// Gives free sessions to answers of prompts that were read, and to jobs. Jobs and further
    /// answers of a job alternate, so that many answers to one job do not starve others.
    fn give_sessions(&mut self) {
        self.start_answers();
        while self.has_session_slot() {
            let is_read = !self.prefills.is_empty();
            if self.resume_one() || self.answers.start_first(is_read) {
                continue;
            }
            let is_job = self.is_turn_of_jobs && self.admit_one();
            let is_further = !is_job && self.answers.start_further(is_read);
            if !(is_job || is_further || self.admit_one()) {
                break;
            }
            self.is_turn_of_jobs = is_further;
        }
        self.admit_short(usize::MAX);
    }

    /// Starts the answers to prompts that were read, as far as there are session slots.
    fn start_answers(&mut self) {
        let is_read = self.n_prefills() > 0;
        while self.has_session_slot_for_answer() && self.answers.start_first(is_read) {}
    }

    /// Resumes a parked answer. Returns whether one resumed.
    fn resume_one(&mut self) -> bool {
        if self.is_full() {
            return false;
        }
        match self.answers.unpark() {
            None => false,
            Some(Unparked::WithSession(whole)) => {
                let (decode, session) = *whole;
                self.answers.resume_with_session(decode, session);
                true
            }
            Some(Unparked::Recompute(recompute)) => self.recompute_parked(recompute),
        }
    }

    /// Reads the tokens of a parked answer again. Returns whether there was memory.
    fn recompute_parked(
        &mut self,
        RecomputeRequest { of, tokens, n_best }: RecomputeRequest,
    ) -> bool {
        let Job { owner, split_points, .. } = &self.answers.jobs.of(of.0).job;
        let (owner, split_points) = (*owner, split_points.clone());
        let request = SessionRequest {
            owner,
            tokens: &tokens,
            split_points: &split_points,
            is_scored: false,
        };
        match self.session_for(request) {
            Ok(session) => {
                let n_left = tokens.len() - session.tokens().len();
                let terms = self.terms(n_best, n_left);
                let running_job = self.answers.jobs.of(of.0);
                self.prefills.push(Prefill::again(of, running_job, (tokens, session), terms));
                true
            }
            Err(Error::NoRoom { .. }) if self.is_working_beside_parked() => {
                self.answers.put_back(of);
                self.full_at = Some(self.memory_epoch());
                false
            }
            Err(error) => {
                self.answers.fail_parked(of, error);
                true
            }
        }
    }

    /// Whether running work will eventually free memory.
    fn is_working_beside_parked(&self) -> bool {
        self.answers.n_running() > 0 || !self.prefills.is_empty()
    }
}

#[cfg(test)]
mod tests;
