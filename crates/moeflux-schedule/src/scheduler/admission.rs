//! Decides which job begins next, and with which session.
//!
//! The job with the least to read is next, except that a job that was overtaken often enough goes
//! first. **Invariant:** one session slot stays with prompts that are being read, and each
//! job is overtaken a bounded number of times.

use moeflux::step::LongerSteps;
use moeflux::{Error, Session};

use super::Scheduler;
use super::session_search::SessionRequest;
use crate::job::Job;
use crate::prefill::{Outline, Prefill, Terms};
use crate::saved::SavedSessions;
use crate::session_cache::n_shared;
use crate::tracked::{Beginning, SubmittedJob};

/// A prompt with at most this many tokens left is short. Where experts are in memory, short prompts
/// share a step of at most this many rows; longer ones gain nothing from sharing, and would wait
/// for each other. Read in pieces between the layers of other steps, a short prompt takes less than
/// twice as long as in its own step: 4 times 16 rows choose 1.8 times as many of 256 experts as 64
/// rows.
pub(super) const N_ROWS_SHORT: usize = 64;

/// A job waits for a prompt that is being read if that saves it at least this many tokens.
const N_WAITED_FOR: usize = 64;

/// Upper bound on the number of later jobs that begin before a waiting one.
pub(super) const N_OVERTAKEN_MAX: usize = 32;

/// A prompt overtakes another that has at least this many times as much left to read.
const TIMES_LONGER: usize = 4;

/// The state that determines which job can begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AdmissionSnapshot {
    n_pushed: u64,
    n_ended: u64,
    n_running: usize,
    n_prefills: usize,
}

impl Scheduler<'_> {
    /// Begins the next job if there is a session slot. Returns whether there was a job, and memory
    /// for it.
    pub(super) fn admit_one(&mut self) -> bool {
        self.admit(usize::MAX)
    }

    /// Begins jobs that are short compared to the prompts being read, with at most `n_left_max`
    /// tokens to read, even if prompts hold all session slots: one of those waits meanwhile.
    pub(super) fn admit_short(&mut self, n_left_max: usize) {
        let seen = (self.admission_snapshot(), n_left_max);
        if self.waiting.is_empty() || self.short_searched == Some(seen) {
            return;
        }
        loop {
            let n_left_max = match (self.n_taken() < self.limits.n_sessions, self.n_left_most()) {
                (true, _) => n_left_max,
                (false, Some(n_left)) if self.can_overtake() => {
                    n_left_max.min(n_left / TIMES_LONGER)
                }
                _ => break,
            };
            if !self.admit(n_left_max) {
                break;
            }
        }
        self.short_searched = Some((self.admission_snapshot(), n_left_max));
    }

    fn admission_snapshot(&self) -> AdmissionSnapshot {
        AdmissionSnapshot {
            n_pushed: self.n_pushed,
            n_ended: self.answers.jobs.n_ended(),
            n_running: self.answers.n_running(),
            n_prefills: self.n_prefills(),
        }
    }

    /// Returns the number of prompts that are being read, inside or outside the current step.
    pub(super) fn n_prefills(&self) -> usize {
        self.prefills.len() + self.under_way.len()
    }

    /// Returns the number of occupied session slots, which exceeds the limit after short prompts
    /// have overtaken others.
    fn n_taken(&self) -> usize {
        self.n_prefills() + self.loads.len() + self.answers.n_running()
    }

    /// Whether there is a free session slot. Parks an answer whose client takes no tokens to make
    /// one.
    pub(super) fn has_session_slot(&mut self) -> bool {
        self.n_taken() < self.limits.n_sessions
            || (self.answers.wants_session_slot() || !self.waiting.is_empty())
                && self.answers.park_one()
    }

    /// Whether an answer to a prompt that was read may have a session slot: one is reserved for
    /// prompts that are being read.
    pub(super) fn has_session_slot_for_answer(&self) -> bool {
        self.answers.n_running() + self.n_prefills().min(1) < self.limits.n_sessions
    }

    /// Whether one prompt more than there are session slots may be read.
    fn can_overtake(&self) -> bool {
        self.answers.n_running() + 1 < self.limits.n_sessions
            && self.n_taken() + 1 < 2 * self.limits.n_sessions
    }

    /// Returns the tokens left to read of the longest prompt.
    fn n_left_most(&self) -> Option<usize> {
        let in_step = self.under_way.iter().map(|it| it.n_left);
        self.prefills.iter().map(Prefill::n_left).chain(in_step).max()
    }

    /// Whether there was no memory for the next job, and none was freed since.
    pub(super) fn is_full(&self) -> bool {
        self.full_at == Some(self.memory_epoch()) && self.is_working()
    }

    /// Returns counters that change when memory may have been freed.
    pub(super) fn memory_epoch(&self) -> (u64, usize) {
        (self.answers.jobs.n_ended(), self.answers.n_paused())
    }

    /// Whether any job holds memory.
    pub(super) fn is_working(&self) -> bool {
        self.answers.jobs.len() + self.loads.len() > 0
    }

    /// Begins the next job if it has at most `n_left_max` tokens to read. Returns whether there was
    /// one, and memory for it.
    fn admit(&mut self, n_left_max: usize) -> bool {
        if self.is_full() {
            return false;
        }
        let next = self.next_waiting(n_left_max);
        let Some(idx) = next.filter(|_| !self.is_outdated()) else { return false };
        let mut submitted = self.waiting.remove(idx).expect("its place was just found");
        // The session that is chosen may be cut.
        submitted.nearest = self.nearest(SessionRequest::prompt_of(&submitted.job));
        match self.session_for(SessionRequest::prompt_of(&submitted.job)) {
            Ok(session) => {
                self.waiting.iter_mut().take(idx).for_each(|it| it.n_overtaken += 1);
                self.load_or_begin(submitted, session);
            }
            // Other jobs will end and leave room.
            Err(Error::NoRoom { .. }) if self.is_working() => {
                self.waiting.insert(idx, submitted);
                self.full_at = Some(self.memory_epoch());
                return false;
            }
            Err(error) => submitted.drop_waiting(Some(error), self.context.shared),
        }
        true
    }

    /// Returns the index of the next job if it has at most `n_left_max` tokens to read.
    fn next_waiting(&self, n_left_max: usize) -> Option<usize> {
        // Jobs of about the same length begin in the order of arrival.
        let length = |n_left: usize| n_left.div_ceil(N_ROWS_SHORT);
        let mut best = None;
        for (idx, submitted) in self.waiting.iter().enumerate() {
            let n_left = self.n_left_of(&submitted.job);
            let is_wanted = !submitted.flags.are_all_cancelled();
            if !is_wanted || self.is_deferred(&submitted.job, n_left) {
                continue;
            }
            if submitted.n_overtaken >= N_OVERTAKEN_MAX {
                return (n_left <= n_left_max).then_some(idx);
            }
            if best.is_none_or(|(_, of_best)| length(n_left) < length(of_best)) {
                best = Some((idx, n_left));
            }
        }
        best.filter(|(_, n_left)| *n_left <= n_left_max).map(|(idx, _)| idx)
    }

    /// Returns the number of a prompt's tokens that no session holds.
    fn n_left_of(&self, job: &Job) -> usize {
        let found = self.find_session(SessionRequest::prompt_of(job));
        job.prompt.len() - found.map_or(0, |(_, found)| found.n_tokens)
    }

    /// Whether the model's files have changed. Checked before a job begins, because it would read
    /// experts of another model.
    fn is_outdated(&mut self) -> bool {
        if self.outdated.is_none() {
            self.outdated = self.context.engine.check_files().err();
        }
        self.outdated.is_some()
    }

    /// Whether a job should wait for a prompt with the same start, so that it has less to read.
    fn is_deferred(&self, job: &Job, n_left: usize) -> bool {
        if job.scores_prompt {
            return false;
        }
        let n_tokens_now = job.prompt.len() - n_left;
        let is_recurrent = self.context.engine.is_recurrent();
        let gains = |outline: &Outline| {
            let n_shared = n_shared(&outline.prompt, &job.prompt).min(job.prompt.len() - 1);
            let n_tokens_then = outline.n_forkable(n_shared, is_recurrent);
            (n_tokens_then >= n_tokens_now + N_WAITED_FOR).then_some(n_tokens_then)
        };
        let prefills = self.prefills.iter();
        let mut own = prefills.filter(|it| self.answers.jobs.owner(it.job) == job.owner);
        // The part of a prompt that is read in a step becomes available when the step is over.
        let mut in_step = self.under_way.iter().filter(|it| it.owner == job.owner);
        own.any(|it| gains(&it.outline).is_some_and(|n_tokens_then| it.n_done() < n_tokens_then))
            || in_step.any(|it| gains(&it.outline).is_some())
    }

    /// Begins a job, after its session was loaded if the drive has more of its prompt.
    fn load_or_begin(&mut self, submitted: SubmittedJob, mut session: Session) {
        let Job { owner, prompt, scores_prompt, .. } = &submitted.job;
        while let Some(saved) = self.saved.as_ref().filter(|_| !scores_prompt) {
            let (back, is_short) = match saved.load(*owner, prompt, session) {
                Ok(load) => {
                    self.loads.push((submitted, load));
                    return;
                }
                Err(refused) => refused,
            };
            session = back;
            if !is_short || !self.evict_one() {
                break;
            }
        }
        self.begin(submitted, session, None);
    }

    /// Begins a job with a session, `n_loaded` of whose tokens were loaded from a drive; `None` if
    /// there was nothing to load.
    pub(super) fn begin(
        &mut self,
        submitted: SubmittedJob,
        session: Session,
        n_loaded: Option<usize>,
    ) {
        let Job { owner, prompt, scores_prompt, .. } = &submitted.job;
        let n_cached = session.tokens().len();
        let session_cache = &mut self.answers.session_cache;
        let missed =
            if *scores_prompt { None } else { session_cache.missed(*owner, prompt, n_cached) };
        let terms = self.terms(self.n_best(&submitted.job), prompt.len() - n_cached);
        let lookup = self.look_up(&submitted, (n_cached, n_loaded), missed);
        let beginning = Beginning {
            n_cached_tokens: n_cached,
            n_cached_drive_tokens: n_loaded.unwrap_or(0),
            missed,
            lookup,
            at: self.context.clock.now(),
            drive_bytes_before: self.context.drive_bytes(),
        };
        let id = self.answers.jobs.begin(submitted, beginning, self.context.shared);
        self.prefills.push(Prefill::new(id, self.answers.jobs.of(id), session, terms));
    }

    /// Returns the terms of reading tokens of which `n_left` are left.
    pub(super) fn terms(&self, n_best: Option<usize>, n_left: usize) -> Terms {
        let begun_at = self.context.clock.now();
        let mark_every = self.saved.as_ref().map(SavedSessions::mark_every);
        Terms { n_best, longer: self.longer_steps(n_left), mark_every, begun_at }
    }

    /// Returns how many of the best logits suffice for the first tokens of a job's answers; `None`:
    /// all are needed. Scores need the logits of other tokens, too.
    fn n_best(&self, job: &Job) -> Option<usize> {
        // A generation that cannot be created fails later, where the answers begin.
        let generation = self.context.generation(job, 0).ok();
        generation.filter(|_| !job.scores_prompt).and_then(|it| it.n_best_needed())
    }

    /// Requests longer steps for a long prompt where experts are streamed: it then reads them less
    /// often.
    fn longer_steps(&self, n_tokens: usize) -> Option<LongerSteps> {
        if !self.is_streaming || n_tokens <= self.context.engine.n_rows_max() {
            return None;
        }
        // The prompt can also be read without longer steps.
        self.context.engine.longer_steps(n_tokens).ok().flatten()
    }
}
