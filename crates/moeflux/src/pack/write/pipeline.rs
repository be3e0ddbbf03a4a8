//! Runs jobs on several threads and delivers their results on one, in order.
//!
//! **Invariant:** the number of jobs in flight or waiting is bounded by a window, which bounds
//! memory; results are delivered in the order of the jobs. The first failure ends the run.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use crate::error::Result;

/// Maximum results per thread that wait for an earlier one.
const WINDOW_PER_THREAD: usize = 2;

/// Computes all jobs on `n_threads` named threads. `sink` receives each job with its result on the
/// calling thread.
///
/// # Errors
///
/// The first error of a job or the sink, in order of the jobs.
pub(in crate::pack) fn in_order<J: Sync>(
    jobs: &[J],
    n_threads: usize,
    compute: &(impl Fn(&J) -> Result<Vec<u8>> + Sync),
    sink: &mut dyn FnMut(&J, Vec<u8>) -> Result<()>,
) -> Result<()> {
    let queue = JobQueue::new(jobs.len(), n_threads * WINDOW_PER_THREAD);
    std::thread::scope(|scope| {
        // On every exit waiting threads must be woken.
        let _close_on_drop = CloseOnDrop { queue: &queue, only_on_panic: false };
        let mut n_started = 0;
        for thread_idx in 0..n_threads.min(jobs.len()) {
            let work = || queue.work(|job_idx| compute(&jobs[job_idx]));
            let thread = Builder::new().name(format!("moeflux-pack-{thread_idx}"));
            n_started += usize::from(thread.spawn_scoped(scope, work).is_ok());
        }
        for (job_idx, job) in jobs.iter().enumerate() {
            // The system has no threads left: run the jobs here, which is slower.
            let result = if n_started == 0 { compute(job) } else { queue.result(job_idx) };
            sink(job, result?)?;
            queue.is_written(job_idx);
        }
        Ok(())
    })
}

/// The jobs that threads take, and their results until these are delivered.
struct JobQueue {
    n_jobs: usize,
    window: usize,
    state: Mutex<JobQueueState>,
    /// Signals that a job may be taken or that the queue is closed.
    may_take: Condvar,
    /// Signals a new result.
    has_result: Condvar,
}

/// The part of a [`JobQueue`] that its lock protects.
struct JobQueueState {
    next: usize,
    n_written: usize,
    ready: BTreeMap<usize, Result<Vec<u8>>>,
    /// The run has ended; threads must not wait any longer.
    is_closed: bool,
}

impl JobQueue {
    fn new(n_jobs: usize, window: usize) -> Self {
        let state =
            JobQueueState { next: 0, n_written: 0, ready: BTreeMap::new(), is_closed: false };
        let (may_take, has_result) = (Condvar::new(), Condvar::new());
        Self { n_jobs, window, state: Mutex::new(state), may_take, has_result }
    }

    fn lock(&self) -> MutexGuard<'_, JobQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the loop of a worker thread.
    fn work(&self, compute: impl Fn(usize) -> Result<Vec<u8>>) {
        // After a panic in a job the sink would wait for its result indefinitely.
        let _close_on_drop = CloseOnDrop { queue: self, only_on_panic: true };
        while let Some(job_idx) = self.take() {
            let result = compute(job_idx);
            self.lock().ready.insert(job_idx, result);
            self.has_result.notify_one();
        }
    }

    fn take(&self) -> Option<usize> {
        let mut state = self.lock();
        loop {
            if state.is_closed || state.next == self.n_jobs {
                return None;
            }
            if state.next < state.n_written + self.window {
                state.next += 1;
                return Some(state.next - 1);
            }
            state = self.may_take.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn result(&self, job_idx: usize) -> Result<Vec<u8>> {
        let mut state = self.lock();
        loop {
            if let Some(result) = state.ready.remove(&job_idx) {
                return result;
            }
            assert!(!state.is_closed, "a thread that packs has panicked");
            state = self.has_result.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn is_written(&self, job_idx: usize) {
        self.lock().n_written = job_idx + 1;
        self.may_take.notify_all();
    }
}

/// Closes the queue when dropped, which ends all waits.
struct CloseOnDrop<'a> {
    queue: &'a JobQueue,
    /// Close only if the dropping thread is panicking.
    only_on_panic: bool,
}

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        if self.only_on_panic && !std::thread::panicking() {
            return;
        }
        self.queue.lock().is_closed = true;
        self.queue.may_take.notify_all();
        self.queue.has_result.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::error::Error;

    #[test]
    fn results_come_in_order_and_not_too_many_at_once() {
        for n_threads in [1, 2, 7] {
            let jobs: Vec<usize> = (0..200).collect();
            let n_under_way = AtomicUsize::new(0);
            let compute = |job: &usize| {
                n_under_way.fetch_add(1, Ordering::SeqCst);
                Ok(vec![u8::try_from(*job % 251).unwrap(); job % 7])
            };
            let mut n_seen = 0;
            let mut sink = |job: &usize, bytes: Vec<u8>| {
                assert_eq!(*job, n_seen);
                assert_eq!(bytes.len(), job % 7);
                n_seen += 1;
                let n_ahead = n_under_way.load(Ordering::SeqCst).saturating_sub(n_seen);
                assert!(n_ahead <= n_threads * WINDOW_PER_THREAD, "{n_ahead} ahead");
                Ok(())
            };
            in_order(&jobs, n_threads, &compute, &mut sink).unwrap();
            assert_eq!(n_seen, 200);
        }
    }

    #[test]
    fn the_first_failure_in_order_is_returned() {
        let jobs: Vec<usize> = (0..100).collect();
        let compute = |job: &usize| match job {
            30.. => Err(Error::Input(format!("job {job}"))),
            _ => Ok(Vec::new()),
        };
        let error = in_order(&jobs, 3, &compute, &mut |_, _| Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "job 30");
        let mut sink = |job: &usize, _| match job {
            5 => Err(Error::Cancelled),
            _ => Ok(()),
        };
        let error = in_order(&jobs, 3, &compute, &mut sink).unwrap_err();
        assert!(matches!(error, Error::Cancelled));
        assert!(in_order(&[], 3, &|_: &usize| Ok(Vec::new()), &mut |_, _| Ok(())).is_ok());
    }
}
