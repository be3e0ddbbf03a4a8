//! The queue of work for several connections.
//!
//! **Invariant:** files are begun in order, and the pieces of open files are fetched before another
//! file is begun; an idle connection waits until there is work or all is done.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::BlobJob;
use super::download::Download;
use crate::error::Error;
use crate::stop::StopFlag;

/// The interval at which waiting connections check the stop flag.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The next step of a connection.
#[derive(Debug)]
pub(super) enum ConnectionStep {
    Begin(BlobJob),
    Fetch(Arc<Download>, usize),
}

/// The files of a download that are not finished, shared by its connections.
#[derive(Debug)]
pub(super) struct WorkQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug)]
struct QueueState {
    waiting: VecDeque<BlobJob>,
    open: Vec<Arc<Download>>,
    n_unfinished: usize,
    n_workers: usize,
    failure: Option<Error>,
}

impl WorkQueue {
    pub(super) fn new(jobs: Vec<BlobJob>, n_workers: usize) -> Self {
        let n_unfinished = jobs.len();
        let (waiting, open) = (jobs.into(), Vec::new());
        let state = QueueState { waiting, open, n_unfinished, n_workers, failure: None };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next step; `None` at the end.
    pub(super) fn next(&self, stop: &StopFlag) -> Option<ConnectionStep> {
        let mut state = self.state();
        loop {
            if stop.is_set() || state.n_unfinished == 0 {
                return None;
            }
            let piece = state.open.iter().find_map(|it| Some((Arc::clone(it), it.claim_piece()?)));
            if let Some((download, idx)) = piece {
                return Some(ConnectionStep::Fetch(download, idx));
            }
            if let Some(job) = state.waiting.pop_front() {
                return Some(ConnectionStep::Begin(job));
            }
            let waited = self.changed.wait_timeout(state, STOP_POLL_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Puts back a file that another process has locked.
    pub(super) fn requeue(&self, job: BlobJob) {
        self.state().waiting.push_back(job);
        self.changed.notify_all();
    }

    /// Adds a file whose pieces can be fetched.
    pub(super) fn opened(&self, download: Download) -> Arc<Download> {
        let download = Arc::new(download);
        self.state().open.push(Arc::clone(&download));
        self.changed.notify_all();
        download
    }

    /// Wakes waiting connections, because there may be more work.
    pub(super) fn changed(&self) {
        self.changed.notify_all();
    }

    /// Removes a file that needs no more pieces.
    pub(super) fn closed(&self, download: &Download) {
        self.state().open.retain(|it| !std::ptr::eq(it.as_ref(), download));
        self.finished();
    }

    /// Counts a file as finished.
    pub(super) fn finished(&self) {
        self.state().n_unfinished -= 1;
        self.changed.notify_all();
    }

    /// Records an error; the first one counts, but any other replaces a cancellation.
    pub(super) fn record_failure(&self, error: Error) {
        let mut state = self.state();
        if state.failure.is_none() || matches!(state.failure, Some(Error::Cancelled)) {
            state.failure = Some(error);
        }
    }

    pub(super) fn take_failure(&self) -> Option<Error> {
        self.state().failure.take()
    }

    /// Counts a connection as ended.
    pub(super) fn connection_ended(&self) {
        self.state().n_workers -= 1;
        self.changed.notify_all();
    }

    /// Waits until all connections have ended, at most for this time. Returns whether they have.
    pub(super) fn wait_for_end(&self, time: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.state(), time, |it| it.n_workers > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.n_workers == 0
    }
}
