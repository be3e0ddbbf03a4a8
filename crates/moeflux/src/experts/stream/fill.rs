//! Reads into slots: submitted, checked when they complete, repeated where that may help.

use moeflux_io::{
    DriveChoice, Filling, FinishedLoad, LoadJob, LoadOutcome, LoadPriority, SlotIdx, Wait,
};

use crate::error::{Error, Result};
use crate::experts::stream::bank::ReadFault;
use crate::experts::stream::{ExpertStream, job_of};
use crate::ids::{ExpertIdx, LayerIdx};

/// Upper bound on rereads of a record whose checksum is wrong. A bit flipped in transfer is right
/// the next time; one flipped on the medium is right on the mirror.
pub(in crate::experts) const N_REREADS_MAX: u32 = 3;

impl ExpertStream {
    /// Begins to read an expert into a slot that the table assigned.
    pub(super) fn begin_fill(
        &mut self,
        layer: LayerIdx,
        expert: ExpertIdx,
        slot: SlotIdx,
        priority: LoadPriority,
    ) {
        self.n_rereads[slot.0] = 0;
        let filling = self.memory.begin_fill(slot);
        self.submit((layer, expert), filling, priority);
    }

    fn submit(
        &mut self,
        (layer, expert): (LayerIdx, ExpertIdx),
        filling: Filling,
        priority: LoadPriority,
    ) {
        let slot = filling.slot();
        let bank = self.bank(layer);
        let slot_layout = bank.lay_out(expert, self.loader.block_bytes());
        let layout = bank.layout(&slot_layout);
        self.layouts[slot.0] = layout;
        let n_rereads = self.n_rereads[slot.0];
        let drives = match (n_rereads, self.has_mirror) {
            (0, _) | (_, false) => DriveChoice::Any,
            (_, true) if n_rereads % 2 == 1 => DriveChoice::Mirror,
            (_, true) => DriveChoice::Primary,
        };
        let job = LoadJob::new(job_of(slot), priority, filling, slot_layout.parts());
        self.loader.submit(job.again(drives, n_rereads));
    }

    /// Handles finished reads, after waiting as `wait` says.
    pub(super) fn poll(&mut self, wait: Wait) -> Result<()> {
        let mut finished = std::mem::take(&mut self.finished);
        let polled = self.loader.wait(wait, &mut finished);
        for finished in finished.drain(..) {
            self.settle(finished);
        }
        self.finished = finished;
        if let Err(error) = polled {
            self.is_broken = true;
            return Err(Error::Drive(error.to_string()));
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    fn settle(&mut self, finished: FinishedLoad) {
        let FinishedLoad { id, mut filling, outcome } = finished;
        let slot = filling.slot();
        let Some((layer, expert)) = self.table.expert_in(slot) else {
            unreachable!("{id:?} filled a slot that was not requested")
        };
        let is_wanted = self.request.pending.iter().any(|it| it.slot() == Some(slot));
        let problem = match outcome {
            LoadOutcome::Ready => {
                let began = self.clock.now();
                let bank = self.bank(layer);
                let slot_layout = bank.lay_out(expert, self.loader.block_bytes());
                let checked = bank.check((expert, &slot_layout), filling.bytes());
                self.stats.check += self.clock.now().saturating_sub(began);
                match checked {
                    Ok(()) => {
                        let mapped_layout = self.bank(layer).mapped_layout;
                        self.rearrange_parts(&mut filling, mapped_layout);
                        self.memory.finish(filling);
                        self.table.loaded(slot);
                        return;
                    }
                    Err(ReadFault::Sum { .. }) if self.n_rereads[slot.0] < N_REREADS_MAX => {
                        self.read_again((layer, expert), filling);
                        return;
                    }
                    Err(fault) => {
                        fault.describe(&self.paths, self.sums.as_deref(), N_REREADS_MAX + 1)
                    }
                }
            }
            // It was requested after it had been cancelled.
            LoadOutcome::Cancelled if is_wanted => {
                self.submit((layer, expert), filling, LoadPriority::Demand);
                return;
            }
            LoadOutcome::Cancelled => String::new(),
            // One drive gave a wrong checksum and the other failed: the first may be right next
            // time.
            LoadOutcome::Failed(_) if self.has_other_drive(slot) => {
                self.read_again((layer, expert), filling);
                return;
            }
            LoadOutcome::Failed(error) => error.to_string(),
        };
        self.memory.abandon(filling);
        self.table.failed(slot);
        if is_wanted {
            self.failure = Some(Error::Expert { layer: layer.0, expert: expert.0, problem });
        }
    }

    fn read_again(&mut self, expert: (LayerIdx, ExpertIdx), filling: Filling) {
        self.n_rereads[filling.slot().0] += 1;
        self.stats.rereads += 1;
        self.submit(expert, filling, LoadPriority::Demand);
    }

    /// Returns whether another reread would use the other drive.
    fn has_other_drive(&self, slot: SlotIdx) -> bool {
        self.has_mirror && (1..N_REREADS_MAX).contains(&self.n_rereads[slot.0])
    }
}
