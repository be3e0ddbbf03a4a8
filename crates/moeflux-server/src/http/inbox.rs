//! What a scheduler tells of the jobs of one request, on its way to the task that serves it.
//!
//! **Invariant:** the scheduler never waits. Beyond a number of events that were not taken, the
//! request's jobs are asked to pause; once few are left, they go on.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use moeflux_schedule::{Event, Service, Sink};
use tokio::sync::mpsc;

/// Events that are not taken yet, when jobs pause: about a second of answers from memory.
const N_PENDING_MAX: usize = 64;
/// The same, when they go on.
const N_PENDING_LOW: usize = 32;

/// The end of the task.
#[derive(Debug)]
pub(crate) struct Inbox {
    receiver: mpsc::UnboundedReceiver<(usize, Event)>,
    sender: mpsc::UnboundedSender<(usize, Event)>,
    n_pending: Arc<AtomicUsize>,
    service: Arc<Service>,
}

impl Inbox {
    /// An inbox for jobs of this service.
    pub(crate) fn new(service: Arc<Service>) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self { receiver, sender, n_pending: Arc::default(), service }
    }

    /// The scheduler's end, for the job with this number.
    pub(crate) fn sink(&self, job_idx: usize) -> Box<dyn Sink> {
        let (sender, n_pending) = (self.sender.clone(), Arc::clone(&self.n_pending));
        Box::new(ToInbox { job_idx, sender, n_pending, is_paused: Cell::new(false) })
    }

    /// What happened next to which job. It may be dropped at any time and loses nothing.
    pub(crate) async fn next(&mut self) -> (usize, Event) {
        let event = self.receiver.recv().await;
        self.count(event).expect("the inbox itself can send")
    }

    /// The same, if it happened already.
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

#[derive(Debug)]
struct ToInbox {
    job_idx: usize,
    sender: mpsc::UnboundedSender<(usize, Event)>,
    n_pending: Arc<AtomicUsize>,
    /// Whether its job was told to pause, and not to go on yet.
    is_paused: Cell<bool>,
}

impl Sink for ToInbox {
    fn put(&mut self, event: Event) {
        self.n_pending.fetch_add(1, Ordering::AcqRel);
        // Whoever does not listen any more has dropped the job's ticket.
        self.sender.send((self.job_idx, event)).ok();
    }

    fn is_ready(&self) -> bool {
        let n_max = if self.is_paused.get() { N_PENDING_LOW } else { N_PENDING_MAX };
        let is_ready = self.n_pending.load(Ordering::Acquire) < n_max;
        self.is_paused.set(!is_ready);
        is_ready
    }
}
