//! State shared by the scheduler's thread and its users.
//!
//! **Invariant:** a flag that was set stays set until the thread has done what it asks for. A
//! reader may see it late, never wrong.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use moeflux::Engine;
use moeflux::stats::{LayerExperts, StepTimes};

use crate::job::Progress;
use crate::stats::Stats;

/// Upper bound on callers that wait for the uses of experts. A further one displaces the oldest.
const N_ASKING_MAX: usize = 16;

/// The engine's report of its experts.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ExpertsReport {
    /// The experts of each layer.
    pub layers: Vec<LayerExperts>,
    /// The times of the last step of an answer.
    pub last_step: Option<StepTimes>,
}

impl ExpertsReport {
    /// Asks the engine.
    pub(crate) fn of(engine: &Engine) -> Self {
        let (layers, last_step) = engine.layer_experts();
        Self { layers, last_step }
    }
}

/// Receives a report. It is called on the engine's thread, or dropped.
pub type ExpertsReply = Box<dyn FnOnce(Arc<ExpertsReport>) + Send>;

/// State of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// The model is being loaded.
    Loading,
    /// The model is in memory.
    Ready,
    /// The memory of the model was freed, because it was idle or on request. The next job loads
    /// the model again.
    Unloaded,
    /// The model could not be loaded, and the next job tries again; or the thread has panicked, and
    /// the service accepts no more jobs.
    Broken,
    /// The service was stopped: there are no more jobs.
    Closed,
}

impl State {
    /// Returns the name, for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Ready => "ready",
            Self::Unloaded => "unloaded",
            Self::Broken => "broken",
            Self::Closed => "closed",
        }
    }
}

/// The state of all jobs, shared by the thread and its users.
#[derive(Debug)]
pub(crate) struct SharedState {
    stats: Mutex<Stats>,
    state: Mutex<State>,
    /// Jobs that were accepted and have not ended.
    pub(crate) n_open: AtomicUsize,
    /// The jobs among them that have not begun.
    pub(crate) n_waiting: AtomicUsize,
    pub(crate) is_closed: AtomicBool,
    /// Jobs are refused for some time.
    pub(crate) is_paused: AtomicBool,
    /// All jobs are to end.
    pub(crate) is_cancelled: AtomicBool,
    /// The memory of the model is to be freed as soon as no job is left.
    pub(crate) is_unload_wanted: AtomicBool,
    /// The thread is to end.
    pub(crate) is_stopped: AtomicBool,
    /// A caller has read the counters and will read them again soon.
    is_watched: AtomicBool,
    experts: ExpertsQueue,
}

/// Callers that wait for the uses of experts.
#[derive(Default)]
struct ExpertsQueue {
    /// Set while there are any.
    is_asked: AtomicBool,
    asking: Mutex<VecDeque<ExpertsReply>>,
}

impl fmt::Debug for ExpertsQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpertsQueue").field("is_asked", &self.is_asked).finish_non_exhaustive()
    }
}

impl SharedState {
    pub(crate) fn new() -> Self {
        Self {
            stats: Mutex::default(),
            state: Mutex::new(State::Loading),
            n_open: AtomicUsize::new(0),
            n_waiting: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            is_paused: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
            is_unload_wanted: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
            experts: ExpertsQueue::default(),
        }
    }

    pub(crate) fn stats(&self) -> MutexGuard<'_, Stats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_watched(&self) {
        self.is_watched.store(true, Ordering::Relaxed);
    }

    /// Returns whether a caller that watches has read the counters since the last call. Without
    /// one, this is a load.
    pub(crate) fn take_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed) && self.is_watched.swap(false, Ordering::Relaxed)
    }

    /// Queues a caller for [`Self::answer_experts`].
    pub(crate) fn ask_experts(&self, reply: ExpertsReply) {
        let mut asking = self.experts.asking.lock().unwrap_or_else(PoisonError::into_inner);
        asking.push_back(reply);
        let displaced = if asking.len() > N_ASKING_MAX { asking.pop_front() } else { None };
        self.experts.is_asked.store(true, Ordering::Relaxed);
        drop(asking);
        drop(displaced);
    }

    /// Replies to the callers that wait for the uses of experts. Without any, this is a load.
    pub(crate) fn answer_experts(&self, report: impl FnOnce() -> ExpertsReport) {
        if !self.experts.is_asked.load(Ordering::Relaxed) {
            return;
        }
        let asking = {
            let mut asking = self.experts.asking.lock().unwrap_or_else(PoisonError::into_inner);
            self.experts.is_asked.store(false, Ordering::Relaxed);
            std::mem::take(&mut *asking)
        };
        let report = Arc::new(report());
        asking.into_iter().for_each(|reply| reply(Arc::clone(&report)));
    }

    pub(crate) fn state(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_state(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

/// State of one job.
#[derive(Debug)]
pub(crate) struct JobFlags {
    is_cancelled: AtomicBool,
    cancelled_answers: Vec<AtomicBool>,
    n_done: AtomicUsize,
    n_total: usize,
    /// Estimated time left in milliseconds; `u64::MAX` while unknown.
    left_ms: AtomicU64,
}

impl JobFlags {
    pub(crate) fn new(n_answers: usize, n_total: usize) -> Self {
        Self {
            is_cancelled: AtomicBool::new(false),
            cancelled_answers: (0..n_answers).map(|_| AtomicBool::new(false)).collect(),
            n_done: AtomicUsize::new(0),
            n_total,
            left_ms: AtomicU64::new(u64::MAX),
        }
    }

    pub(crate) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn cancel_one(&self, answer_idx: usize) {
        if let Some(flag) = self.cancelled_answers.get(answer_idx) {
            flag.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    pub(crate) fn is_answer_cancelled(&self, answer_idx: usize) -> bool {
        self.is_cancelled() || self.cancelled_answers[answer_idx].load(Ordering::Relaxed)
    }

    /// Whether every answer is cancelled.
    pub(crate) fn are_all_cancelled(&self) -> bool {
        (0..self.cancelled_answers.len()).all(|answer_idx| self.is_answer_cancelled(answer_idx))
    }

    /// Whether this answer is cancelled; with `None`, whether every answer is.
    pub(crate) fn are_cancelled(&self, answer_idx: Option<usize>) -> bool {
        match answer_idx {
            None => self.are_all_cancelled(),
            Some(answer_idx) => self.is_answer_cancelled(answer_idx),
        }
    }

    pub(crate) fn set_progress(&self, n_done: usize, left: Option<Duration>) {
        self.n_done.store(n_done, Ordering::Relaxed);
        let left_ms = left.and_then(|it| u64::try_from(it.as_millis()).ok()).unwrap_or(u64::MAX);
        self.left_ms.store(left_ms, Ordering::Relaxed);
    }

    pub(crate) fn progress(&self) -> Progress {
        let left_ms = self.left_ms.load(Ordering::Relaxed);
        Progress {
            n_done: self.n_done.load(Ordering::Relaxed),
            n_total: self.n_total,
            left: (left_ms != u64::MAX).then(|| Duration::from_millis(left_ms)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_are_read_only_for_a_caller() {
        let shared = SharedState::new();
        let answer = || shared.answer_experts(|| unreachable!("there is no caller"));
        answer();
        let n_replies = Arc::new(AtomicUsize::new(0));
        for _ in 0..N_ASKING_MAX + 3 {
            let n_replies = Arc::clone(&n_replies);
            shared.ask_experts(Box::new(move |_| {
                n_replies.fetch_add(1, Ordering::Relaxed);
            }));
        }
        let mut n_reads = 0;
        shared.answer_experts(|| {
            n_reads += 1;
            ExpertsReport::default()
        });
        assert_eq!((n_reads, n_replies.load(Ordering::Relaxed)), (1, N_ASKING_MAX));
        answer();
    }

    #[test]
    fn reads_are_published_only_for_a_caller() {
        let shared = SharedState::new();
        assert!(!shared.take_watched());
        shared.set_watched();
        assert!(shared.take_watched() && !shared.take_watched());
    }
}
