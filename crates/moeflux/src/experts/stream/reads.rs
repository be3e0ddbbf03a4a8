//! Reads into slots: submitted, checked when they complete, repeated where that may help.
//!
//! **Invariant:** an expert is ready only when its bytes were checked; each read that ends makes
//! its slot ready or free, or is followed by another.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use moeflux_io::{
    Caching, Clock, DriveChoice, Filling, FinishedLoad, LoadId, LoadJob, LoadOutcome, LoadPriority,
    Loader, LoaderSettings, N_JOBS_USUAL, SlotIdx, Wait,
};

use crate::error::{Error, Result};
use crate::experts::stream::bank::ReadFault;
use crate::experts::stream::files::ExpertFiles;
use crate::experts::stream::request::CurrentRequest;
use crate::experts::stream::slots::ExpertSlots;
use crate::experts::stream::{Drives, GUESS_BYTES, READ_BYTES};
use crate::ids::{ExpertIdx, LayerIdx};

/// Upper bound on rereads of a record whose checksum is wrong. A bit flipped in transfer is right
/// the next time; one flipped on the medium is right on the mirror.
pub(in crate::experts) const N_REREADS_MAX: u32 = 3;

/// The reads of experts: those under way, and what became of the others.
#[derive(Debug)]
pub(super) struct ExpertReads {
    pub(super) loader: Loader,
    pub(super) caching: Caching,
    has_mirror: bool,
    /// How often each faulty read was repeated.
    n_rereads: HashMap<LoadId, u32>,
    finished: Vec<FinishedLoad>,
    /// Why a requested expert was not read.
    failure: Option<Error>,
    /// Set when a drive as a whole has failed.
    is_broken: bool,
    clock: Arc<dyn Clock>,
    /// Reads that were repeated.
    pub(super) n_repeated: u64,
    /// Time spent comparing checksums or searching for NaN.
    pub(super) check: Duration,
}

impl ExpertReads {
    pub(super) fn new(drives: Drives) -> Self {
        let Drives { primary, mirror, caching, clock } = drives;
        let has_mirror = mirror.is_some();
        let settings = LoaderSettings { read_bytes: READ_BYTES, prefetch_bytes_max: GUESS_BYTES };
        Self {
            loader: Loader::new(primary, mirror, settings, Arc::clone(&clock)),
            caching,
            has_mirror,
            n_rereads: HashMap::new(),
            finished: Vec::with_capacity(N_JOBS_USUAL),
            failure: None,
            is_broken: false,
            clock,
            n_repeated: 0,
            check: Duration::ZERO,
        }
    }

    /// Checks that the drives still work.
    pub(super) fn check_alive(&self) -> Result<()> {
        if self.is_broken {
            let problem = "reading from the drive has failed permanently: open the model again";
            return Err(Error::Drive(problem.to_owned()));
        }
        Ok(())
    }

    /// Begins to read an expert into a slot that the table assigned.
    pub(super) fn begin(
        &mut self,
        (files, slots): (&ExpertFiles, &mut ExpertSlots),
        expert: (LayerIdx, ExpertIdx),
        slot: SlotIdx,
        priority: LoadPriority,
    ) {
        self.n_rereads.remove(&job_of(slot));
        let filling = slots.begin_fill(slot);
        self.submit((files, slots), expert, filling, priority);
    }

    fn submit(
        &mut self,
        (files, slots): (&ExpertFiles, &mut ExpertSlots),
        expert: (LayerIdx, ExpertIdx),
        filling: Filling,
        priority: LoadPriority,
    ) {
        let slot = filling.slot();
        let slot_layout = files.lay_out(expert);
        slots.set_layout(slot, files.bank(expert.0).layout(&slot_layout));
        let n_rereads = self.n_rereads(slot);
        let drives = match (n_rereads, self.has_mirror) {
            (0, _) | (_, false) => DriveChoice::Any,
            (_, true) if n_rereads % 2 == 1 => DriveChoice::Mirror,
            (_, true) => DriveChoice::Primary,
        };
        let job = LoadJob::new(job_of(slot), priority, filling, slot_layout.parts());
        self.loader.submit(job.again(drives, n_rereads));
    }

    /// Makes the read of a slot one that the caller waits for.
    pub(super) fn promote(&mut self, slot: SlotIdx) {
        let _ = self.loader.promote(job_of(slot));
    }

    /// Ends the read of a slot early.
    pub(super) fn cancel(&mut self, slot: SlotIdx) {
        let _ = self.loader.cancel(job_of(slot));
    }

    /// Returns whether the read of a slot has begun and not ended.
    pub(super) fn is_reading(&self, slot: SlotIdx) -> bool {
        self.loader.is_reading(job_of(slot))
    }

    /// Handles finished reads, after waiting as `wait` says.
    pub(super) fn poll(
        &mut self,
        wait: Wait,
        (files, slots): (&ExpertFiles, &mut ExpertSlots),
        request: &CurrentRequest,
    ) -> Result<()> {
        let mut finished = std::mem::take(&mut self.finished);
        let polled = self.loader.wait(wait, &mut finished);
        for finished in finished.drain(..) {
            self.settle(finished, (files, slots), request);
        }
        self.finished = finished;
        if let Err(error) = polled {
            self.is_broken = true;
            return Err(Error::Drive(error.to_string()));
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Forgets why an expert was not read: the request for it is given up.
    pub(super) fn forget_failure(&mut self) {
        self.failure = None;
    }

    fn settle(
        &mut self,
        finished: FinishedLoad,
        (files, slots): (&ExpertFiles, &mut ExpertSlots),
        request: &CurrentRequest,
    ) {
        let FinishedLoad { id, filling, outcome } = finished;
        let slot = filling.slot();
        let Some((layer, expert)) = slots.table.expert_in(slot) else {
            unreachable!("{id:?} filled a slot that was not requested")
        };
        let is_wanted = request.waits_for(slot);
        let problem = match outcome {
            LoadOutcome::Ready => match self.check(files, (layer, expert), filling.bytes()) {
                Ok(()) => {
                    slots.finish(filling, files.mapped_layout(layer));
                    return;
                }
                Err(ReadFault::Sum { .. }) if self.n_rereads(slot) < N_REREADS_MAX => {
                    self.read_again((files, slots), (layer, expert), filling);
                    return;
                }
                Err(fault) => files.describe(&fault, N_REREADS_MAX + 1),
            },
            // It was requested after it had been cancelled.
            LoadOutcome::Cancelled if is_wanted => {
                self.submit((files, slots), (layer, expert), filling, LoadPriority::Demand);
                return;
            }
            LoadOutcome::Cancelled => String::new(),
            // One drive gave a wrong checksum and the other failed: the first may be right next
            // time.
            LoadOutcome::Failed(_) if self.has_other_drive(slot) => {
                self.read_again((files, slots), (layer, expert), filling);
                return;
            }
            LoadOutcome::Failed(error) => error.to_string(),
        };
        slots.abandon(filling);
        if is_wanted {
            self.failure = Some(Error::Expert { layer: layer.0, expert: expert.0, problem });
        }
    }

    /// Checks the bytes that were read, and measures how long that takes.
    fn check(
        &mut self,
        files: &ExpertFiles,
        (layer, expert): (LayerIdx, ExpertIdx),
        bytes: &[u8],
    ) -> std::result::Result<(), ReadFault> {
        let began = self.clock.now();
        let slot_layout = files.lay_out((layer, expert));
        let checked = files.bank(layer).check((expert, &slot_layout), bytes);
        self.check += self.clock.now().saturating_sub(began);
        checked
    }

    fn read_again(
        &mut self,
        (files, slots): (&ExpertFiles, &mut ExpertSlots),
        expert: (LayerIdx, ExpertIdx),
        filling: Filling,
    ) {
        *self.n_rereads.entry(job_of(filling.slot())).or_default() += 1;
        self.n_repeated += 1;
        self.submit((files, slots), expert, filling, LoadPriority::Demand);
    }

    /// Returns how often the current read of a slot was repeated.
    fn n_rereads(&self, slot: SlotIdx) -> u32 {
        self.n_rereads.get(&job_of(slot)).copied().unwrap_or(0)
    }

    /// Returns whether another reread would use the other drive.
    fn has_other_drive(&self, slot: SlotIdx) -> bool {
        self.has_mirror && (1..N_REREADS_MAX).contains(&self.n_rereads(slot))
    }
}

/// Returns the job id of a slot, which at most one job fills at a time.
fn job_of(slot: SlotIdx) -> LoadId {
    LoadId(slot.0 as u64)
}
