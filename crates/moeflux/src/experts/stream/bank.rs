//! Where a layer's experts lie in files and in a slot, and checks of the bytes that were read.
//!
//! **Invariant:** an expert's parts keep their order; a packed record has the same layout in its
//! slot as in its file, and is compared with its checksum.

use std::hash::Hasher as _;
use std::path::PathBuf;
use std::sync::Arc;

use moeflux_io::{FileIdx, FilePart, SlotLayout, lay_out};
use twox_hash::XxHash3_64;

use crate::error::{Error, Result};
use crate::format::{CheckpointSums, SumUnit};
use crate::ids::ExpertIdx;
use crate::weights::{ExpertBank, ExpertLayout, FileExtent};

/// The experts of one layer on a drive.
#[derive(Debug)]
pub(in crate::experts) struct StreamBank {
    pub(in crate::experts) bank: ExpertBank,
    /// Checksums to compare with; `None` where none are known or none are to be compared.
    sums: Option<Arc<CheckpointSums>>,
    /// Layout of the experts for a device that reads slots in place.
    pub(super) mapped_layout: Option<ExpertLayout>,
}

/// A fault in an expert that was read.
#[derive(Debug)]
pub(in crate::experts) enum ReadFault {
    /// The bytes are not those that were written; another drive or another read may give the right
    /// ones.
    Sum { file_idx: usize, unit: SumUnit, found: u64 },
    /// The stored data is invalid.
    Stored(Error),
}

impl StreamBank {
    /// Wraps the experts of `bank`, to be compared with `sums` if there are any.
    pub(in crate::experts) fn new(bank: ExpertBank, sums: Option<Arc<CheckpointSums>>) -> Self {
        Self { sums, bank, mapped_layout: None }
    }

    /// Returns the parts of an expert and their places in a slot.
    pub(super) fn lay_out(&self, expert: ExpertIdx, block_bytes: usize) -> SlotLayout {
        assert!(expert.0 < self.bank.n_experts, "layer {} has no {expert:?}", self.bank.layer.0);
        let file_idx = |it: usize| FileIdx(u32::try_from(it).expect("files are counted in u32"));
        let run_of = |extent: FileExtent| {
            let len_bytes = usize::try_from(extent.len_bytes).expect("a part fits memory");
            (file_idx(extent.file_idx), extent.offset_bytes, len_bytes)
        };
        match &self.bank.records {
            Some(records) => lay_out([run_of(records.extent(expert))], block_bytes),
            None => {
                let extents = self.bank.parts.iter().map(|part| run_of(part.extent(expert)));
                lay_out(extents, block_bytes)
            }
        }
    }

    /// Returns the parts of an expert and their places in its record, laid out as in memory, for
    /// drives without blocks.
    pub(in crate::experts) fn lay_out_record(&self, expert: ExpertIdx) -> SlotLayout {
        match &self.bank.records {
            Some(_) => self.lay_out(expert, 1),
            None => {
                let starts = self.bank.parts.iter().map(|part| part.record_at);
                self.lay_out(expert, 1).moved(starts)
            }
        }
    }

    /// Returns the layout of the matrices in a slot with these parts.
    pub(super) fn layout(&self, slot_layout: &SlotLayout) -> ExpertLayout {
        match &self.bank.records {
            Some(_) => self.bank.layout,
            None => {
                let mut starts = slot_layout.parts().iter().map(|part| part.slot_offset_bytes);
                self.bank.layout.moved(&mut starts)
            }
        }
    }

    /// Returns the runs that have a checksum and belong to this expert only in part, with their
    /// files.
    pub(in crate::experts) fn shared_units(&self, expert: ExpertIdx) -> Vec<(usize, SumUnit)> {
        let slot_layout = self.lay_out(expert, 1);
        let mut shared = Vec::new();
        for part in slot_layout.parts() {
            let file_idx = part.file.0 as usize;
            let range = part.file_range();
            let units = self.sums.iter().flat_map(|sums| sums.overlapping(file_idx, &range));
            let units = units.filter(|unit| !covers(&slot_layout, part.file, unit));
            shared.extend(units.map(|unit| (file_idx, *unit)));
        }
        shared
    }

    /// Checks that `bytes`, a slot whose parts are laid out as `slot_layout`, are the expert's.
    pub(in crate::experts) fn check(
        &self,
        (expert, slot_layout): (ExpertIdx, &SlotLayout),
        bytes: &[u8],
    ) -> std::result::Result<(), ReadFault> {
        if let Some(sums) = &self.sums {
            check_sums(sums, slot_layout, bytes)?;
        }
        let checked: Result<()> = match self.bank.records {
            // A matching checksum proves the record as packed, and it was checked for NaN then.
            Some(_) if self.sums.is_some() => Ok(()),
            Some(_) => self.bank.parts.iter().try_for_each(|part| {
                let bytes = &bytes[part.record_at..][..part.len_bytes];
                self.bank.check_finite(part, (expert, 0), bytes)
            }),
            None => self.bank.parts.iter().zip(slot_layout.parts()).try_for_each(|(part, at)| {
                let bytes = &bytes[at.slot_offset_bytes..][..at.len_bytes];
                self.bank.check_finite(part, (expert, 0), bytes)
            }),
        };
        checked.map_err(ReadFault::Stored)
    }
}

impl ReadFault {
    /// Returns the message for this fault after `n_reads` reads.
    pub(in crate::experts) fn describe(
        &self,
        paths: &[PathBuf],
        sums: Option<&CheckpointSums>,
        n_reads: u32,
    ) -> String {
        match (self, sums) {
            (&Self::Sum { file_idx, unit, found }, Some(sums)) => {
                let path = paths[file_idx].display();
                format!("{path}: {}", sums.mismatch(&unit, found, n_reads))
            }
            (Self::Sum { .. }, None) => unreachable!("sums were compared"),
            (Self::Stored(error), _) => error.to_string(),
        }
    }
}

/// Compares all runs whose bytes are in a slot. A run only part of which is in the slot, such as
/// one sum over many small slices, cannot be compared.
fn check_sums(
    sums: &CheckpointSums,
    slot_layout: &SlotLayout,
    bytes: &[u8],
) -> std::result::Result<(), ReadFault> {
    for part in slot_layout.parts() {
        let file_idx = part.file.0 as usize;
        let range = part.file_range();
        let begun = sums.overlapping(file_idx, &range).iter();
        for unit in begun.filter(|unit| range.contains(&unit.first_bytes)) {
            match sum_of(unit, part, slot_layout, bytes) {
                Some(found) if found != unit.sum => {
                    return Err(ReadFault::Sum { file_idx, unit: *unit, found });
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Returns the checksum of a run that begins in a part and continues in the parts that follow it in
/// the file; `None` if the slot does not hold all of it.
fn sum_of(unit: &SumUnit, first: &FilePart, slot_layout: &SlotLayout, bytes: &[u8]) -> Option<u64> {
    // The usual case, without an allocation.
    let range = first.file_range();
    if unit.end_bytes() <= range.end {
        let skipped = usize::try_from(unit.first_bytes - range.start).ok()?;
        let n_bytes = usize::try_from(unit.len_bytes).ok()?;
        let own = &bytes[first.slot_offset_bytes + skipped..][..n_bytes];
        return Some(XxHash3_64::oneshot(own));
    }
    let mut hash = XxHash3_64::new();
    let mut at = unit.first_bytes;
    while at < unit.end_bytes() {
        let part = part_at(slot_layout, first.file, at)?;
        let range = part.file_range();
        let skipped = usize::try_from(at - range.start).ok()?;
        let n_bytes = usize::try_from(unit.end_bytes().min(range.end) - at).ok()?;
        hash.write(&bytes[part.slot_offset_bytes + skipped..][..n_bytes]);
        at += n_bytes as u64;
    }
    Some(hash.finish())
}

/// Returns the part that contains a byte of a file.
fn part_at(slot_layout: &SlotLayout, file: FileIdx, at: u64) -> Option<&FilePart> {
    let has_it = |part: &&FilePart| part.file == file && part.file_range().contains(&at);
    slot_layout.parts().iter().find(has_it)
}

/// Returns whether the parts cover all bytes of a run.
fn covers(slot_layout: &SlotLayout, file: FileIdx, unit: &SumUnit) -> bool {
    let mut at = unit.first_bytes;
    while at < unit.end_bytes() {
        let Some(part) = part_at(slot_layout, file, at) else { return false };
        at = part.file_range().end;
    }
    true
}
