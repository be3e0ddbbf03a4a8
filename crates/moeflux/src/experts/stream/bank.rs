//! Where a layer's experts lie in files, where in a slot, and whether what came is what was stored.
//!
//! **Invariant:** an expert's parts keep their order; a packed record lies in its slot as in its
//! file, and is checked against its sum.

use std::hash::Hasher as _;
use std::path::PathBuf;
use std::sync::Arc;

use moeflux_io::{FileIdx, Laid, Part, lay_out};
use twox_hash::XxHash3_64;

use crate::error::{Error, Result};
use crate::format::{SumUnit, Sums};
use crate::ids::ExpertIdx;
use crate::weights::{ExpertBank, ExpertLayout, Extent};

/// The experts of one layer on a drive.
#[derive(Debug)]
pub(in crate::experts) struct StreamBank {
    pub(in crate::experts) bank: ExpertBank,
    /// What bytes are compared with; none where none are known, or none shall be compared.
    sums: Option<Arc<Sums>>,
    /// How they lie for a device that reads slots.
    pub(super) seen: Option<ExpertLayout>,
}

/// What is wrong with an expert that was read.
#[derive(Debug)]
pub(in crate::experts) enum Flaw {
    /// Not the bytes that were written: they may be right elsewhere, or the next time.
    Sum { file_idx: usize, unit: SumUnit, found: u64 },
    /// As it is stored.
    Stored(Error),
}

impl StreamBank {
    /// The experts of `bank`, to be compared with these sums, if any.
    pub(in crate::experts) fn new(bank: ExpertBank, sums: Option<Arc<Sums>>) -> Self {
        Self { sums, bank, seen: None }
    }

    /// The parts of an expert and their places in a slot.
    pub(super) fn lay_out(&self, expert: ExpertIdx, block_bytes: usize) -> Laid {
        assert!(expert.0 < self.bank.n_experts, "layer {} has no {expert:?}", self.bank.layer.0);
        let file_idx = |it: usize| FileIdx(u32::try_from(it).expect("files are counted in u32"));
        let place = |extent: Extent| {
            let len_bytes = usize::try_from(extent.len_bytes).expect("a part fits memory");
            (file_idx(extent.file_idx), extent.offset_bytes, len_bytes)
        };
        match &self.bank.records {
            Some(records) => lay_out([place(records.extent(expert))], block_bytes),
            None => {
                let extents = self.bank.parts.iter().map(|part| place(part.extent(expert)));
                lay_out(extents, block_bytes)
            }
        }
    }

    /// The parts of an expert and their places in its record, as it lies in memory: for drives
    /// without blocks.
    pub(in crate::experts) fn lay_out_record(&self, expert: ExpertIdx) -> Laid {
        match &self.bank.records {
            Some(_) => self.lay_out(expert, 1),
            None => {
                let starts = self.bank.parts.iter().map(|part| part.record_at);
                self.lay_out(expert, 1).moved(starts)
            }
        }
    }

    /// How the matrices lie in a slot with these parts.
    pub(super) fn layout(&self, laid: &Laid) -> ExpertLayout {
        match &self.bank.records {
            Some(_) => self.bank.layout,
            None => {
                let mut starts = laid.parts().iter().map(|part| part.slot_offset_bytes);
                self.bank.layout.moved(&mut starts)
            }
        }
    }

    /// Runs that have a sum and only some of whose bytes are this expert's, with their files.
    pub(in crate::experts) fn shared_units(&self, expert: ExpertIdx) -> Vec<(usize, SumUnit)> {
        let laid = self.lay_out(expert, 1);
        let mut shared = Vec::new();
        for part in laid.parts() {
            let file_idx = part.file.0 as usize;
            let range = part.file_range();
            let units = self.sums.iter().flat_map(|sums| sums.overlapping(file_idx, &range));
            let units = units.filter(|unit| !covers(&laid, part.file, unit));
            shared.extend(units.map(|unit| (file_idx, *unit)));
        }
        shared
    }

    /// Whether the bytes of a slot are the expert, whose parts lie there like this.
    pub(in crate::experts) fn check(
        &self,
        (expert, laid): (ExpertIdx, &Laid),
        bytes: &[u8],
    ) -> std::result::Result<(), Flaw> {
        if let Some(sums) = &self.sums {
            check_sums(sums, laid, bytes)?;
        }
        let checked: Result<()> = match self.bank.records {
            // What has its sum is what was packed, and that was searched.
            Some(_) if self.sums.is_some() => Ok(()),
            Some(_) => self.bank.parts.iter().try_for_each(|part| {
                let bytes = &bytes[part.record_at..][..part.len_bytes];
                self.bank.check_finite(part, (expert, 0), bytes)
            }),
            None => self.bank.parts.iter().zip(laid.parts()).try_for_each(|(part, at)| {
                let bytes = &bytes[at.slot_offset_bytes..][..at.len_bytes];
                self.bank.check_finite(part, (expert, 0), bytes)
            }),
        };
        checked.map_err(Flaw::Stored)
    }
}

impl Flaw {
    /// What to say of it, behind so many reads.
    pub(in crate::experts) fn describe(
        &self,
        paths: &[PathBuf],
        sums: Option<&Sums>,
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

/// Compares all runs whose bytes are in a slot. A run of which a slot has only some, which a sum of
/// many small slices is, cannot be compared.
fn check_sums(sums: &Sums, laid: &Laid, bytes: &[u8]) -> std::result::Result<(), Flaw> {
    for part in laid.parts() {
        let file_idx = part.file.0 as usize;
        let range = part.file_range();
        let begun = sums.overlapping(file_idx, &range).iter();
        for unit in begun.filter(|unit| range.contains(&unit.first_bytes)) {
            match sum_of(unit, part, laid, bytes) {
                Some(found) if found != unit.sum => {
                    return Err(Flaw::Sum { file_idx, unit: *unit, found });
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// The sum of a run, which begins in a part and goes on in those that follow it in the file.
fn sum_of(unit: &SumUnit, first: &Part, laid: &Laid, bytes: &[u8]) -> Option<u64> {
    // Nearly always, and without an allocation.
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
        let part = part_at(laid, first.file, at)?;
        let range = part.file_range();
        let skipped = usize::try_from(at - range.start).ok()?;
        let n_bytes = usize::try_from(unit.end_bytes().min(range.end) - at).ok()?;
        hash.write(&bytes[part.slot_offset_bytes + skipped..][..n_bytes]);
        at += n_bytes as u64;
    }
    Some(hash.finish())
}

/// The part that has a byte of a file.
fn part_at(laid: &Laid, file: FileIdx, at: u64) -> Option<&Part> {
    let has_it = |part: &&Part| part.file == file && part.file_range().contains(&at);
    laid.parts().iter().find(has_it)
}

/// Whether all bytes of a run are those of parts.
fn covers(laid: &Laid, file: FileIdx, unit: &SumUnit) -> bool {
    let mut at = unit.first_bytes;
    while at < unit.end_bytes() {
        let Some(part) = part_at(laid, file, at) else { return false };
        at = part.file_range().end;
    }
    true
}
