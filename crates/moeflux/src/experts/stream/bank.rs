//! Where a layer's experts lie in files, where in a slot, and whether what came is what was stored.
//!
//! **Invariant:** an expert's parts keep their order; a packed record lies in its slot as in its
//! file, and is checked against its sum.

use moeflux_io::{FileIdx, Laid, lay_out};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::ids::ExpertIdx;
use crate::weights::{ExpertBank, ExpertLayout, Extent, Records};

/// The experts of one layer on a drive.
#[derive(Debug)]
pub(super) struct StreamBank {
    pub(super) bank: ExpertBank,
    /// Of each whole record; none where none are stored, or none shall be compared.
    sums: Option<Vec<u64>>,
    /// How they lie for a device that reads slots.
    pub(super) seen: Option<ExpertLayout>,
}

/// What is wrong with an expert that was read.
#[derive(Debug)]
pub(super) enum Flaw {
    /// Not the bytes that were written: they may be right elsewhere, or the next time.
    Sum { found: u64, expected: u64 },
    /// As it is stored.
    Stored(Error),
}

impl StreamBank {
    /// The experts of `bank`, to be compared with these bytes of its records' sums, if any.
    pub(super) fn new(bank: ExpertBank, sums: Option<&[u8]>) -> Self {
        let sum = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, &it| sum << 8 | u64::from(it));
        let sums = sums.map(|sums| {
            assert_eq!(sums.len(), bank.n_experts * size_of::<u64>(), "a sum for each record");
            sums.chunks_exact(size_of::<u64>()).map(sum).collect()
        });
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

    /// Whether the bytes of a slot are the expert.
    pub(super) fn check(
        &self,
        expert: ExpertIdx,
        bytes: &[u8],
        block_bytes: usize,
    ) -> std::result::Result<(), Flaw> {
        if let Some(Records { record_bytes, .. }) = self.bank.records {
            let Some(sums) = &self.sums else { return Ok(()) };
            let (found, expected) = (xxh3_64(&bytes[..record_bytes]), sums[expert.0]);
            return if found == expected { Ok(()) } else { Err(Flaw::Sum { found, expected }) };
        }
        let laid = self.lay_out(expert, block_bytes);
        let parts = self.bank.parts.iter().zip(laid.parts());
        let checked: Result<()> = parts.into_iter().try_for_each(|(part, at)| {
            let bytes = &bytes[at.slot_offset_bytes..][..at.len_bytes];
            self.bank.check_finite(part, expert, bytes)
        });
        checked.map_err(Flaw::Stored)
    }
}
