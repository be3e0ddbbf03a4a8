//! Loads all experts into memory on a background thread, while steps run.
//!
//! Experts that a step waits for come first; the rest follows layer by layer, beginning with the
//! layer that the step will request next. **Invariant:** each filling is returned once for each
//! time it was handed in, with bytes that were checked, or with the reason for the failure; the
//! drive has work as long as there is any. Ends when all experts are loaded or the receiver is
//! gone.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Duration;

use moeflux_io::{
    DriveChoice, Filling, FinishedLoad, LoadId, LoadJob, LoadOutcome, LoadPriority, Loader,
    N_JOBS_USUAL, SlotIdx, Wait,
};

use crate::error::{Error, Result};
use crate::experts::stream::{N_REREADS_MAX, ReadFault, StreamBank};
use crate::format::{CheckpointSums, ShardFile};
use crate::ids::ExpertIdx;

/// Interval at which requests are polled while the drive is busy.
const POLL_INTERVAL: Duration = Duration::from_micros(300);

/// Experts that a step waits for, to be read first.
#[derive(Debug)]
pub(super) struct LoadRequest {
    pub(super) bank_idx: usize,
    /// With a filling where reading failed before.
    pub(super) experts: Vec<(ExpertIdx, Option<Filling>)>,
}

/// A report of the loader: a result for one expert, or for all.
#[derive(Debug)]
pub(super) enum LoadEvent {
    Ready {
        bank_idx: usize,
        filling: Filling,
    },
    Failed {
        bank_idx: usize,
        filling: Filling,
        problem: String,
    },
    /// All experts are loaded; an error if their files changed meanwhile.
    Complete(Result<()>),
    /// Nothing more can be read.
    DriveFailed(String),
}

/// State of the thread that loads all experts.
#[derive(Debug)]
pub(super) struct BackgroundLoader {
    pub(super) banks: Vec<StreamBank>,
    pub(super) files: Vec<ShardFile>,
    pub(super) sums: Option<Arc<CheckpointSums>>,
    pub(super) loader: Loader,
    /// By bank and expert: fillings whose read has not begun.
    pub(super) waiting: Vec<Vec<Option<Filling>>>,
    /// Per bank: no expert before this one is waiting.
    pub(super) first_waiting: Vec<usize>,
    /// The bank to read while there are no requests.
    pub(super) next_bank_idx: usize,
    pub(super) n_left: usize,
    /// How often each faulty read was repeated.
    pub(super) n_rereads: HashMap<LoadId, u32>,
    pub(super) requests: Receiver<LoadRequest>,
    pub(super) events: Sender<LoadEvent>,
}

impl BackgroundLoader {
    /// Reads until all experts are loaded or the receiver is gone.
    pub(super) fn run(mut self) {
        let mut finished = Vec::with_capacity(N_JOBS_USUAL);
        while self.handle_requests() {
            self.submit_waiting();
            if self.n_left == 0 {
                let unchanged = self.files.iter().try_for_each(ShardFile::check_unchanged);
                // This fails if the model was dropped.
                self.events.send(LoadEvent::Complete(unchanged)).ok();
                return;
            }
            if self.loader.n_jobs() == 0 {
                // The remaining experts could not be read: they are retried when one is requested.
                let Ok(request) = self.requests.recv() else { return };
                self.begin(request);
            }
            let waited = self.loader.wait(Wait::AtMost(POLL_INTERVAL), &mut finished);
            if !finished.drain(..).all(|finished| self.settle(finished)) {
                return;
            }
            if let Err(error) = waited {
                self.events.send(LoadEvent::DriveFailed(error.to_string())).ok();
                return;
            }
        }
    }

    /// Handles pending requests; returns whether the sender still exists.
    fn handle_requests(&mut self) -> bool {
        loop {
            match self.requests.try_recv() {
                Ok(request) => self.begin(request),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn begin(&mut self, request: LoadRequest) {
        let LoadRequest { bank_idx, experts } = request;
        self.next_bank_idx = (bank_idx + 1) % self.banks.len();
        for (expert, filling) in experts {
            let waiting = self.waiting[bank_idx][expert.0].take();
            match filling.or(waiting) {
                Some(filling) => {
                    self.n_rereads.remove(&job_of(bank_idx, expert));
                    self.submit((bank_idx, expert), filling, LoadPriority::Demand);
                }
                // It may have arrived meanwhile.
                None => {
                    let _ = self.loader.promote(job_of(bank_idx, expert));
                }
            }
        }
    }

    /// Submits reads of experts that no step has requested yet.
    fn submit_waiting(&mut self) {
        while self.loader.n_jobs() < N_JOBS_USUAL {
            let Some((bank_idx, expert, filling)) = self.next_waiting() else { return };
            self.submit((bank_idx, expert), filling, LoadPriority::Prefetch);
        }
    }

    fn next_waiting(&mut self) -> Option<(usize, ExpertIdx, Filling)> {
        for _ in 0..self.banks.len() {
            let bank_idx = self.next_bank_idx;
            let waiting = &mut self.waiting[bank_idx];
            let first = &mut self.first_waiting[bank_idx];
            while let Some(filling) = waiting.get_mut(*first) {
                let expert = ExpertIdx(*first);
                *first += 1;
                if let Some(filling) = filling.take() {
                    return Some((bank_idx, expert, filling));
                }
            }
            self.next_bank_idx = (bank_idx + 1) % self.banks.len();
        }
        None
    }

    fn submit(
        &mut self,
        (bank_idx, expert): (usize, ExpertIdx),
        filling: Filling,
        priority: LoadPriority,
    ) {
        let slot_layout = self.banks[bank_idx].lay_out_record(expert);
        let id = job_of(bank_idx, expert);
        let n_rereads = self.n_rereads.get(&id).copied().unwrap_or(0);
        let job = LoadJob::new(id, priority, filling, slot_layout.parts());
        self.loader.submit(job.again(DriveChoice::Any, n_rereads));
    }

    /// Reports the bytes that were read, or reads them again; returns whether the receiver still
    /// exists.
    fn settle(&mut self, finished: FinishedLoad) -> bool {
        let FinishedLoad { id, filling, outcome } = finished;
        let (bank_idx, SlotIdx(expert_idx)) = (bank_of(id), filling.slot());
        let expert = ExpertIdx(expert_idx);
        let n_rereads = self.n_rereads.get(&id).copied().unwrap_or(0);
        let problem = match outcome {
            LoadOutcome::Ready => {
                let bank = &self.banks[bank_idx];
                let slot_layout = bank.lay_out_record(expert);
                match bank.check((expert, &slot_layout), filling.bytes()) {
                    Ok(()) => {
                        self.n_left -= 1;
                        return self.events.send(LoadEvent::Ready { bank_idx, filling }).is_ok();
                    }
                    Err(ReadFault::Sum { file_idx, .. }) if n_rereads < N_REREADS_MAX => {
                        // The page cache would return the same wrong bytes.
                        let file = self.files[file_idx].open();
                        file.iter().for_each(moeflux_io::ReadFile::forget_cached);
                        self.read_again((bank_idx, expert), filling);
                        return true;
                    }
                    Err(fault) => {
                        let paths: Vec<PathBuf> =
                            self.files.iter().map(|file| file.path.clone()).collect();
                        fault.describe(&paths, self.sums.as_deref(), N_REREADS_MAX + 1)
                    }
                }
            }
            LoadOutcome::Failed(error) => error.to_string(),
            LoadOutcome::Cancelled => unreachable!("nobody cancels what all want"),
        };
        let layer = self.banks[bank_idx].bank.layer.0;
        let error = Error::Expert { layer, expert: expert_idx, problem: problem.clone() };
        tracing::warn!(%error, "failed to read an expert");
        self.events.send(LoadEvent::Failed { bank_idx, filling, problem }).is_ok()
    }

    fn read_again(&mut self, (bank_idx, expert): (usize, ExpertIdx), filling: Filling) {
        *self.n_rereads.entry(job_of(bank_idx, expert)).or_default() += 1;
        self.submit((bank_idx, expert), filling, LoadPriority::Demand);
    }
}

/// Returns the job id, which combines the bank and the expert in it.
fn job_of(bank_idx: usize, expert: ExpertIdx) -> LoadId {
    LoadId((bank_idx as u64) << 32 | expert.0 as u64)
}

fn bank_of(job: LoadId) -> usize {
    usize::try_from(job.0 >> 32).expect("a bank's number")
}
