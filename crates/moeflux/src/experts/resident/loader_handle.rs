//! Handle of the thread that loads experts into memory.
//!
//! **Invariant:** the thread is joined when this is dropped; a failure on it is kept until an
//! affected expert is requested.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::{Builder, JoinHandle, panicking};
use std::time::Duration;

use moeflux_io::{Clock, Filling, Loader, LoaderSettings, SlotIdx, Wait};

use crate::error::{Error, Result};
use crate::experts::resident::ResidentBank;
use crate::experts::resident::background_loader::{BackgroundLoader, LoadEvent, LoadRequest};
use crate::experts::stream::{Drives, READ_BYTES, StreamBank};
use crate::format::{Checkpoint, CheckpointSums};
use crate::ids::ExpertIdx;
use crate::weights::ExpertBank;

/// Experts that no step waits for are submitted as long as fewer bytes are in flight.
const BACKGROUND_BYTES: usize = 4 << 20;

/// The thread and its reports.
#[derive(Debug)]
pub(super) struct LoaderHandle {
    /// `None` once the thread is to end.
    requests: Option<Sender<LoadRequest>>,
    events: Receiver<LoadEvent>,
    thread: Option<JoinHandle<()>>,
    /// Experts that could not be read.
    failed: Vec<FailedExpert>,
    /// Why no expert can be loaded any more.
    failure: Option<LoaderFailure>,
    clock: Arc<dyn Clock>,
    began_at: Duration,
}

/// An expert that could not be read.
#[derive(Debug)]
struct FailedExpert {
    bank_idx: usize,
    expert: ExpertIdx,
    problem: String,
}

/// Why the loader has stopped.
#[derive(Debug)]
enum LoaderFailure {
    Drive(String),
    Stopped(String),
}

/// Summary of the reports received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LoadSummary {
    /// Experts that have arrived.
    pub(super) n_ready: usize,
    /// Their stored bytes.
    pub(super) n_bytes: u64,
    /// Whether all experts are loaded and their files are unchanged.
    pub(super) is_complete: bool,
}

impl LoaderHandle {
    /// Begins to read the experts of `banks` into these fillings, by bank and expert.
    ///
    /// # Errors
    ///
    /// [`Error::Machine`] if the system cannot create a thread.
    pub(super) fn begin(
        banks: &[ExpertBank],
        (checkpoint, sums): (&Checkpoint, Option<&Arc<CheckpointSums>>),
        drives: Drives,
        fillings: Vec<Vec<Option<Filling>>>,
    ) -> Result<Self> {
        assert_eq!(drives.block_bytes(), 1, "records lie anywhere");
        let (requests, request_receiver) = channel();
        let (event_sender, events) = channel();
        let settings =
            LoaderSettings { read_bytes: READ_BYTES, prefetch_bytes_max: BACKGROUND_BYTES };
        // Caching the mirror too would take twice the page cache.
        let Drives { primary, clock, .. } = drives;
        let loader = BackgroundLoader {
            banks: banks.iter().map(|it| StreamBank::new(it.clone(), sums.cloned())).collect(),
            files: checkpoint.files.clone(),
            sums: sums.cloned(),
            loader: Loader::new(primary, None, settings, Arc::clone(&clock)),
            waiting: fillings,
            first_waiting: vec![0; banks.len()],
            next_bank_idx: 0,
            n_left: banks.iter().map(|bank| bank.n_experts).sum(),
            n_rereads: HashMap::new(),
            requests: request_receiver,
            events: event_sender,
        };
        let began_at = clock.now();
        let thread = Builder::new().name("moeflux-follow".to_owned());
        let thread = thread.spawn(move || loader.run()).map_err(|error| {
            Error::Machine(format!("cannot start the thread that loads experts: {error}"))
        })?;
        let (requests, thread, failed, failure) = (Some(requests), Some(thread), Vec::new(), None);
        Ok(Self { requests, events, thread, failed, failure, clock, began_at })
    }

    /// Returns the time since loading began.
    pub(super) fn time(&self) -> Duration {
        self.clock.now().saturating_sub(self.began_at)
    }

    /// Gives these experts priority. Those that could not be read are read again.
    pub(super) fn request(
        &mut self,
        (bank_idx, bank): (usize, &mut ResidentBank),
        experts: &[ExpertIdx],
    ) {
        let failed = &mut self.failed;
        let missing = experts.iter().filter(|expert| !bank.has(**expert)).copied();
        let missing: Vec<ExpertIdx> = missing.collect();
        if missing.is_empty() {
            return;
        }
        let with_filling = missing.into_iter().map(|expert| {
            let is_it = |it: &FailedExpert| it.bank_idx == bank_idx && it.expert == expert;
            let failure = failed.iter().position(is_it).map(|at| failed.swap_remove(at));
            (expert, failure.map(|_| bank.memory.begin_fill(SlotIdx(expert.0))))
        });
        let request = LoadRequest { bank_idx, experts: with_filling.collect() };
        // If the thread has ended, it has reported why, or `receive` notices that it did not.
        if let Some(requests) = &self.requests {
            requests.send(request).ok();
        }
    }

    /// Reads all failed experts again.
    pub(super) fn retry_failed(&mut self, banks: &mut [ResidentBank]) {
        let failed: Vec<_> = self.failed.iter().map(|it| (it.bank_idx, it.expert)).collect();
        for (bank_idx, expert) in failed {
            self.request((bank_idx, &mut banks[bank_idx]), &[expert]);
        }
    }

    /// Checks that none of these experts, or none at all if `of` is `None`, has failed since it was
    /// last requested.
    ///
    /// # Errors
    ///
    /// [`Error::Expert`] for the first failure.
    pub(super) fn check(
        &self,
        banks: &[ResidentBank],
        of: Option<(usize, &[ExpertIdx])>,
    ) -> Result<()> {
        let concerns = |it: &&FailedExpert| {
            of.is_none_or(|(bank_idx, experts)| {
                it.bank_idx == bank_idx && experts.contains(&it.expert)
            })
        };
        let Some(failure) = self.failed.iter().find(concerns) else { return Ok(()) };
        let (layer, expert) = (banks[failure.bank_idx].layer.0, failure.expert.0);
        Err(Error::Expert { layer, expert, problem: failure.problem.clone() })
    }

    /// Moves experts that have arrived into `banks`, after waiting as `wait` says.
    ///
    /// # Errors
    ///
    /// [`Error::Drive`] or [`Error::Stopped`] once nothing can be read any more.
    pub(super) fn receive(
        &mut self,
        wait: Wait,
        banks: &mut [ResidentBank],
    ) -> Result<LoadSummary> {
        let mut summary = LoadSummary::default();
        let mut next = match wait {
            Wait::Poll => self.poll(),
            Wait::Any => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Wait::AtMost(limit) => self.events.recv_timeout(limit),
        };
        while self.failure.is_none() {
            match next {
                Ok(events) => self.take(events, banks, &mut summary),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) if summary.is_complete => break,
                Err(RecvTimeoutError::Disconnected) => {
                    let problem = "the thread that loads experts has ended: open the model again";
                    self.failure = Some(LoaderFailure::Stopped(problem.to_owned()));
                }
            }
            next = self.poll();
        }
        match &self.failure {
            None => Ok(summary),
            Some(LoaderFailure::Drive(problem)) => Err(Error::Drive(problem.clone())),
            Some(LoaderFailure::Stopped(problem)) => Err(Error::Stopped(problem.clone())),
        }
    }

    fn poll(&self) -> std::result::Result<LoadEvent, RecvTimeoutError> {
        self.events.try_recv().map_err(|error| match error {
            TryRecvError::Empty => RecvTimeoutError::Timeout,
            TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
        })
    }

    fn take(&mut self, events: LoadEvent, banks: &mut [ResidentBank], summary: &mut LoadSummary) {
        match events {
            LoadEvent::Ready { bank_idx, filling } => {
                let bank = &mut banks[bank_idx];
                bank.memory.finish(filling);
                summary.n_ready += 1;
                summary.n_bytes += bank.layout.stored_bytes();
            }
            LoadEvent::Failed { bank_idx, filling, problem } => {
                let SlotIdx(expert_idx) = filling.slot();
                banks[bank_idx].memory.abandon(filling);
                self.failed.push(FailedExpert { bank_idx, expert: ExpertIdx(expert_idx), problem });
            }
            LoadEvent::Complete(Ok(())) => summary.is_complete = true,
            LoadEvent::Complete(Err(error)) => {
                self.failure = Some(LoaderFailure::Stopped(error.to_string()));
            }
            LoadEvent::DriveFailed(problem) => self.failure = Some(LoaderFailure::Drive(problem)),
        }
    }
}

impl Drop for LoaderHandle {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            debug_assert!(ended.is_ok() || panicking(), "a thread that only reads");
        }
    }
}
