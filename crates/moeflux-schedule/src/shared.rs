//! State shared by the scheduler's thread and its users.
//!
//! **Invariant:** a flag that was set stays set until the thread has done what it asks for. A
//! reader may see it late, never wrong.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::job::Progress;
use crate::stats::Stats;

/// State of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// The model is being loaded.
    Loading,
    /// The model is in memory.
    Ready,
    /// The model was idle and its memory was freed. The next job loads it again.
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
    /// All jobs are to end.
    pub(crate) is_cancelled: AtomicBool,
    /// The thread is to end.
    pub(crate) is_stopped: AtomicBool,
    /// A caller has read the counters and will read them again soon.
    is_watched: AtomicBool,
}

impl SharedState {
    pub(crate) fn new() -> Self {
        Self {
            stats: Mutex::default(),
            state: Mutex::new(State::Loading),
            n_open: AtomicUsize::new(0),
            n_waiting: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
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
