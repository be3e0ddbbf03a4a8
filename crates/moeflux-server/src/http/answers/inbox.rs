//! Events of one request's jobs, on their way from the scheduler to the task that serves it.
//!
//! **Invariant:** the scheduler never waits. While too many events are pending, the request's jobs
//! pause; they resume once few are left.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use moeflux_schedule::{Event, Service, Sink};
use tokio::sync::mpsc;

/// Pending events at which jobs pause: about a second of answers from memory.
const N_PENDING_MAX: usize = 64;
/// Pending events at which jobs resume.
const N_PENDING_LOW: usize = 32;

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Inbox {
    receiver: mpsc::UnboundedReceiver<(usize, Event)>,
    sender: mpsc::UnboundedSender<(usize, Event)>,
    n_pending: Arc<AtomicUsize>,
    service: Arc<Service>,
}

impl Inbox {
    /// Creates an inbox for jobs of this service.
    pub(crate) fn new(service: Arc<Service>) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self { receiver, sender, n_pending: Arc::default(), service }
    }

    /// Returns the scheduler's end for the job with this index.
    pub(crate) fn sink(&self, job_idx: usize) -> Box<dyn Sink> {
        let (sender, n_pending) = (self.sender.clone(), Arc::clone(&self.n_pending));
        Box::new(InboxSink { job_idx, sender, n_pending, is_paused: Cell::new(false) })
    }

    /// Waits for the next event and returns it with its job's index. Cancel safe: no event is lost.
    pub(crate) async fn next(&mut self) -> (usize, Event) {
        let event = self.receiver.recv().await;
        self.count(event).expect("the inbox itself can send")
    }

    /// Returns the next event if one is pending.
    pub(crate) fn next_now(&mut self) -> Option<(usize, Event)> {
        let event = self.receiver.try_recv().ok();
        self.count(event)
    }

    fn count(&self, event: Option<(usize, Event)>) -> Option<(usize, Event)> {
        if event.is_some() && self.n_pending.fetch_sub(1, Ordering::AcqRel) == N_PENDING_LOW {
            self.service.wake();
        }
        event
    }
}

/// The scheduler's end, for one job.
#[derive(Debug)]
struct InboxSink {
    job_idx: usize,
    sender: mpsc::UnboundedSender<(usize, Event)>,
    n_pending: Arc<AtomicUsize>,
    /// Whether its job was paused and has not resumed.
    is_paused: Cell<bool>,
}

impl Sink for InboxSink {
    fn put(&mut self, event: Event) {
        self.n_pending.fetch_add(1, Ordering::AcqRel);
        // A receiver that is gone has dropped the job's ticket.
        self.sender.send((self.job_idx, event)).ok();
    }

    fn is_ready(&self) -> bool {
        let n_max = if self.is_paused.get() { N_PENDING_LOW } else { N_PENDING_MAX };
        let is_ready = self.n_pending.load(Ordering::Acquire) < n_max;
        self.is_paused.set(!is_ready);
        is_ready
    }
}
