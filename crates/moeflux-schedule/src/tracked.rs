//! Jobs that have begun: their sinks and their counters.
//!
//! **Invariant:** a job is present until its last answer has ended, and each answer ends once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use moeflux::{Error, Finish};

use crate::found::{NearestText, PromptLookup};
use crate::job::{Event, Job, Missed, Owner, Scored, Sink, Times};
use crate::session_cache::SessionOrigin;
use crate::shared::{JobFlags, SharedState};

/// A prompt is saved before it was answered if this many tokens of it were computed.
const N_UNSAVED_MAX: usize = 1024;

/// The same if the place where its answer begins is probably of no further use.
const N_UNSAVED_MAX_OF_ANSWERS: usize = 8192;

/// Identifies a job; ids follow the order in which jobs begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct JobId(pub(crate) u64);

/// The sink of a job that has not ended. If the thread panics, dropping it reports a failure.
pub(crate) struct SinkGuard(pub(crate) Box<dyn Sink>);

impl Drop for SinkGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let problem = "internal error in the scheduler: please report it";
            self.0.put(Event::Failed(Error::Stopped(problem.to_owned())));
        }
    }
}

/// A job on its way to the thread, or waiting for its turn.
pub(crate) struct SubmittedJob {
    pub(crate) job: Job,
    pub(crate) sink: SinkGuard,
    pub(crate) flags: Arc<JobFlags>,
    /// When it was submitted.
    pub(crate) at: Duration,
    /// It had begun before, and was put back in favour of others.
    pub(crate) has_begun: bool,
    /// Scores of its prompt that were reported then.
    pub(crate) n_scores_reported: usize,
    /// Later jobs that began before it.
    pub(crate) n_overtaken: usize,
    /// The conversation that was most like its prompt when its session was chosen.
    pub(crate) nearest: Option<NearestText>,
}

/// A job that has begun.
pub(crate) struct RunningJob {
    pub(crate) job: Job,
    pub(crate) flags: Arc<JobFlags>,
    sink: SinkGuard,
    submitted_at: Duration,
    begun_at: Duration,
    /// Tokens of its prompt that were not computed.
    n_reused: usize,
    /// Whether the prompt's session is to be saved on a drive before the answers have ended.
    is_prompt_due: bool,
    first_token_at: Option<Duration>,
    /// Bytes that had been read from drives when it began.
    drive_bytes_before: u64,
    n_open: usize,
    n_scores_reported: usize,
    /// Scores that were already reported and are computed again, as its prompt is read again.
    n_scores_repeated: usize,
    /// No more events are reported.
    is_silent: bool,
}

/// How a job begins.
pub(crate) struct Beginning {
    pub(crate) n_cached_tokens: usize,
    pub(crate) n_cached_drive_tokens: usize,
    pub(crate) missed: Option<Missed>,
    /// `None` if it was looked up before, or not at all.
    pub(crate) lookup: Option<PromptLookup>,
    pub(crate) at: Duration,
    /// Bytes that have been read from drives.
    pub(crate) drive_bytes_before: u64,
}

/// All jobs that have begun.
#[derive(Default)]
pub(crate) struct RunningJobs {
    jobs: BTreeMap<JobId, RunningJob>,
    n_begun: u64,
    n_ended: u64,
}

/// How an answer ended.
pub(crate) struct EndedAnswer {
    pub(crate) answer_idx: usize,
    pub(crate) finish: Finish,
    pub(crate) stopped: Option<String>,
    pub(crate) rest: String,
    pub(crate) n_tokens: usize,
}

impl RunningJobs {
    /// Begins a job.
    pub(crate) fn begin(
        &mut self,
        submitted: SubmittedJob,
        beginning: Beginning,
        shared: &SharedState,
    ) -> JobId {
        let Beginning { n_cached_tokens, n_cached_drive_tokens, missed, lookup, .. } = beginning;
        let now = beginning.at;
        let SubmittedJob { job, mut sink, flags, at, has_begun, n_scores_reported, .. } = submitted;
        shared.n_waiting.fetch_sub(1, Ordering::Relaxed);
        let (n_prompt_tokens, n_open) = (job.prompt.len(), job.n_answers);
        flags.set_progress(n_cached_tokens, None);
        if !has_begun {
            let mut stats = shared.stats();
            stats.n_prompt_tokens += n_prompt_tokens as u64;
            stats.n_cached_tokens += n_cached_tokens as u64;
            stats.n_cached_drive_tokens += n_cached_drive_tokens as u64;
            missed.inspect(|it| stats.n_missed[it.reason as usize] += 1);
            lookup.iter().for_each(|it| stats.n_outcomes[it.outcome as usize] += 1);
            stats.queued.add_time(now.saturating_sub(at));
            stats.prompt_tokens.add_count(n_prompt_tokens);
            drop(stats);
            sink.0.put(Event::Begun { n_cached_tokens, n_cached_drive_tokens, missed, lookup });
        }
        let (submitted_at, begun_at, first_token_at) = (at, now, None);
        let id = JobId(self.n_begun);
        self.n_begun += 1;
        let mut running_job = RunningJob {
            job,
            flags,
            sink,
            submitted_at,
            begun_at,
            n_reused: n_cached_tokens,
            is_prompt_due: false,
            first_token_at,
            drive_bytes_before: beginning.drive_bytes_before,
            n_open,
            n_scores_reported,
            n_scores_repeated: n_scores_reported,
            is_silent: false,
        };
        let n_unsaved = n_prompt_tokens.saturating_sub(n_cached_tokens);
        running_job.is_prompt_due = match running_job.origin().continues_answer() {
            true => n_unsaved >= N_UNSAVED_MAX_OF_ANSWERS,
            false => n_unsaved >= N_UNSAVED_MAX,
        };
        self.jobs.insert(id, running_job);
        id
    }

    pub(crate) fn len(&self) -> usize {
        self.jobs.len()
    }

    pub(crate) fn of(&self, id: JobId) -> &RunningJob {
        &self.jobs[&id]
    }

    pub(crate) fn owner(&self, id: JobId) -> Owner {
        self.of(id).job.owner
    }

    fn of_mut(&mut self, id: JobId) -> &mut RunningJob {
        self.jobs.get_mut(&id).expect("a job is there until its last answer has ended")
    }

    /// Records that a prompt is not to be saved before it was answered.
    pub(crate) fn set_prompt_saved(&mut self, id: JobId) {
        if let Some(running_job) = self.jobs.get_mut(&id) {
            running_job.is_prompt_due = false;
        }
    }

    /// Returns the number of ended answers and of prompts that were put back: each left some
    /// memory.
    pub(crate) fn n_ended(&self) -> u64 {
        self.n_ended
    }

    /// Reports scores of a prompt, without those that were reported before it was put back.
    pub(crate) fn scored(&mut self, id: JobId, mut scores: Vec<Scored>) {
        let running_job = self.of_mut(id);
        let n_again = running_job.n_scores_repeated.min(scores.len());
        scores.drain(..n_again);
        running_job.n_scores_repeated -= n_again;
        running_job.n_scores_reported += scores.len();
        if !scores.is_empty() {
            running_job.put(Event::PromptScores(scores));
        }
    }

    /// Reports a token.
    pub(crate) fn token(&mut self, id: JobId, event: Event, now: Duration, shared: &SharedState) {
        let running_job = self.of_mut(id);
        if running_job.first_token_at.is_none() {
            running_job.first_token_at = Some(now);
            let mut stats = shared.stats();
            stats.first_token.add_time(now.saturating_sub(running_job.submitted_at));
            stats.prompt.add_time(now.saturating_sub(running_job.begun_at));
        }
        running_job.put(event);
    }

    /// Reports the token that ends an answer.
    pub(crate) fn end_token(&mut self, id: JobId, event: Event) {
        self.of_mut(id).put(event);
    }

    /// Ends an answer.
    pub(crate) fn end(
        &mut self,
        id: JobId,
        ended: EndedAnswer,
        (now, drive_bytes): (Duration, u64),
        shared: &SharedState,
    ) {
        let running_job = self.of_mut(id);
        let EndedAnswer { answer_idx, finish, stopped, rest, n_tokens } = ended;
        let first_token_at = running_job.first_token_at.unwrap_or(now);
        let times = Times {
            queued: running_job.begun_at.saturating_sub(running_job.submitted_at),
            prompt: first_token_at.saturating_sub(running_job.begun_at),
            answer: now.saturating_sub(first_token_at),
            drive_bytes: drive_bytes.saturating_sub(running_job.drive_bytes_before),
        };
        {
            let mut stats = shared.stats();
            stats.count_end(finish);
            if finish != Finish::Cancelled {
                stats.answer.add_time(times.answer);
                stats.whole.add_time(now.saturating_sub(running_job.submitted_at));
                stats.answer_tokens.add_count(n_tokens);
            }
        }
        if finish != Finish::Cancelled {
            running_job.put(Event::Finished { answer_idx, finish, stopped, rest, times });
        }
        self.close_one(id, shared);
    }

    /// Fails an answer, and with it the job: its other answers report nothing more.
    pub(crate) fn fail(&mut self, id: JobId, error: Error, shared: &SharedState) {
        let running_job = self.of_mut(id);
        if !running_job.is_silent {
            shared.stats().n_failed += 1;
            running_job.put(Event::Failed(error));
            running_job.is_silent = true;
            running_job.flags.cancel();
        }
        self.close_one(id, shared);
    }

    /// Fails a job none of whose answers has begun.
    pub(crate) fn fail_whole(&mut self, id: JobId, error: Error, shared: &SharedState) {
        self.of_mut(id).n_open = 1;
        self.fail(id, error, shared);
    }

    /// Ends a cancelled job none of whose answers has begun.
    pub(crate) fn cancel_whole(&mut self, id: JobId, shared: &SharedState) {
        self.of_mut(id).n_open = 1;
        shared.stats().n_cancelled += 1;
        self.close_one(id, shared);
    }

    fn close_one(&mut self, id: JobId, shared: &SharedState) {
        self.n_ended += 1;
        let running_job = self.of_mut(id);
        running_job.n_open -= 1;
        if running_job.n_open == 0 {
            self.jobs.remove(&id);
            shared.n_open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns a job whose prompt was not read completely to the queue.
    pub(crate) fn take_back(&mut self, id: JobId, shared: &SharedState) -> SubmittedJob {
        let running_job = self.jobs.remove(&id).expect("a job is there until it is taken back");
        self.n_ended += 1;
        shared.n_waiting.fetch_add(1, Ordering::Relaxed);
        let RunningJob { job, flags, sink, submitted_at: at, n_scores_reported, .. } = running_job;
        let back = SubmittedJob::new(job, sink, flags, at);
        SubmittedJob { has_begun: true, n_scores_reported, ..back }
    }
}

impl RunningJob {
    /// Returns what is known of its sessions.
    pub(crate) fn origin(&self) -> SessionOrigin<'_> {
        let Job { owner, split_points, .. } = &self.job;
        SessionOrigin { owner: *owner, split_points, n_reused: self.n_reused }
    }

    /// Whether its prompt is to be saved before it was answered.
    pub(crate) fn is_prompt_due(&self) -> bool {
        self.is_prompt_due
    }

    /// Whether its sink takes tokens now.
    pub(crate) fn is_ready(&self) -> bool {
        self.sink.0.is_ready()
    }

    fn put(&mut self, event: Event) {
        if !self.is_silent && !self.flags.is_cancelled() {
            self.sink.0.put(event);
        }
    }
}

impl SubmittedJob {
    /// A job that was never begun.
    pub(crate) fn new(job: Job, sink: SinkGuard, flags: Arc<JobFlags>, at: Duration) -> Self {
        let (has_begun, n_scores_reported, n_overtaken, nearest) = (false, 0, 0, None);
        Self { job, sink, flags, at, has_begun, n_scores_reported, n_overtaken, nearest }
    }

    /// Drops a waiting job: without an error it was cancelled, with one it failed.
    pub(crate) fn drop_waiting(mut self, error: Option<Error>, shared: &SharedState) {
        shared.n_waiting.fetch_sub(1, Ordering::Relaxed);
        shared.n_open.fetch_sub(1, Ordering::Relaxed);
        match error {
            None => shared.stats().n_cancelled += 1,
            Some(error) => {
                shared.stats().n_failed += 1;
                self.sink.0.put(Event::Failed(error));
            }
        }
    }
}
