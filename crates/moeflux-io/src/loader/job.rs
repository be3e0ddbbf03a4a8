//! Jobs: parts of files, each with its offset in a slot.
//!
//! **Invariant:** parts are in ascending order in the slot, and their whole blocks do not overlap.
//! A part has the same offset within a block in the slot and in its file. So the whole blocks
//! around a part can be read directly into place.

use std::ops::Range;

use crate::drives::block::FileIdx;
use crate::loader::error::LoadError;
use crate::memory::slots::{Filling, Piece};

/// Maximum number of extents of an expert: three matrices with scales and biases.
pub const N_PARTS_MAX: usize = 9;

/// Identifier of a job, chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoadId(pub u64);

/// How urgent a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadPriority {
    /// The caller is waiting for it.
    Demand,
    /// The caller may need it later.
    Prefetch,
}

/// The drives that a job may be read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriveChoice {
    /// The faster one at the time; the other if one fails.
    Any,
    /// Only the first.
    Primary,
    /// Only the second.
    Mirror,
}

/// An extent of a file, and the offset of its first byte in the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePart {
    /// The file.
    pub file: FileIdx,
    /// Offset in the file.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: usize,
    /// Offset in the slot.
    pub slot_offset_bytes: usize,
}

impl FilePart {
    const NONE: Self =
        Self { file: FileIdx(0), offset_bytes: 0, len_bytes: 0, slot_offset_bytes: 0 };

    /// Returns its range in the file.
    #[must_use]
    pub fn file_range(&self) -> Range<u64> {
        self.offset_bytes..self.offset_bytes + self.len_bytes as u64
    }

    /// Returns the number of bytes before it in its first block.
    fn lead_bytes(&self, block_bytes: usize) -> usize {
        let lead = self.offset_bytes % block_bytes as u64;
        usize::try_from(lead).expect("less than a block")
    }

    /// Returns the range in the slot of its whole blocks.
    ///
    /// # Panics
    ///
    /// If its offsets within a block differ between slot and file.
    #[must_use]
    pub fn slot_span(&self, block_bytes: usize) -> Range<usize> {
        if self.len_bytes == 0 {
            return self.slot_offset_bytes..self.slot_offset_bytes;
        }
        let lead_bytes = self.lead_bytes(block_bytes);
        assert!(
            self.slot_offset_bytes % block_bytes == lead_bytes,
            "{self:?}: slot and file agree within blocks of {block_bytes}"
        );
        let start = self.slot_offset_bytes - lead_bytes;
        let end = self.slot_offset_bytes + self.len_bytes;
        start..end.next_multiple_of(block_bytes)
    }
}

/// Parts with their offsets in a slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotLayout {
    parts: [FilePart; N_PARTS_MAX],
    n_parts: usize,
    slot_bytes: usize,
}

impl SlotLayout {
    /// Returns the parts, in the order of their extents.
    #[must_use]
    pub fn parts(&self) -> &[FilePart] {
        &self.parts[..self.n_parts]
    }

    /// Returns the bytes that they need in a slot.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Moves the parts to other offsets in the slot, given in the order of their extents.
    ///
    /// # Panics
    ///
    /// If there are fewer offsets than parts.
    #[must_use]
    pub fn moved(mut self, slot_offsets: impl IntoIterator<Item = usize>) -> Self {
        let mut slot_offsets = slot_offsets.into_iter();
        for part in &mut self.parts[..self.n_parts] {
            part.slot_offset_bytes = slot_offsets.next().expect("a place for each part");
            self.slot_bytes = self.slot_bytes.max(part.slot_offset_bytes + part.len_bytes);
        }
        self
    }
}

/// Assigns consecutive offsets in a slot to `extents` (file, offset, length).
///
/// # Panics
///
/// If there are more than [`N_PARTS_MAX`] extents.
#[must_use]
pub fn lay_out(
    extents: impl IntoIterator<Item = (FileIdx, u64, usize)>,
    block_bytes: usize,
) -> SlotLayout {
    let mut layout = SlotLayout { parts: [FilePart::NONE; N_PARTS_MAX], n_parts: 0, slot_bytes: 0 };
    for (file, offset_bytes, len_bytes) in extents {
        assert!(layout.n_parts < N_PARTS_MAX, "at most {N_PARTS_MAX} parts");
        let part = FilePart { file, offset_bytes, len_bytes, slot_offset_bytes: layout.slot_bytes };
        let slot_offset_bytes = layout.slot_bytes + part.lead_bytes(block_bytes);
        let part = FilePart { slot_offset_bytes, ..part };
        layout.slot_bytes = part.slot_span(block_bytes).end.next_multiple_of(block_bytes);
        layout.parts[layout.n_parts] = part;
        layout.n_parts += 1;
    }
    layout
}

/// A request to fill a slot with parts of files.
#[derive(Debug)]
pub struct LoadJob {
    /// Its identifier, unique among the jobs in progress.
    pub id: LoadId,
    /// How urgent it is.
    pub priority: LoadPriority,
    /// The drives it may be read from.
    pub drives: DriveChoice,
    /// How often its slot was filled before with wrong bytes.
    pub n_rereads: u32,
    /// The slot.
    pub filling: Filling,
    parts: [FilePart; N_PARTS_MAX],
    n_parts: usize,
}

impl LoadJob {
    /// Creates a job that may be read from any drive, for the first time.
    ///
    /// # Panics
    ///
    /// If there are more than [`N_PARTS_MAX`] parts.
    #[must_use]
    pub fn new(id: LoadId, priority: LoadPriority, filling: Filling, parts: &[FilePart]) -> Self {
        assert!(parts.len() <= N_PARTS_MAX, "at most {N_PARTS_MAX} parts");
        let mut own = [FilePart::NONE; N_PARTS_MAX];
        own[..parts.len()].copy_from_slice(parts);
        let n_parts = parts.len();
        Self { id, priority, drives: DriveChoice::Any, n_rereads: 0, filling, parts: own, n_parts }
    }

    /// Marks the job as a repetition number `n_rereads`, from `drives`, because wrong bytes were
    /// read before.
    #[must_use]
    pub fn again(self, drives: DriveChoice, n_rereads: u32) -> Self {
        Self { drives, n_rereads, ..self }
    }
}

/// The outcome of a job.
#[derive(Debug)]
pub enum LoadOutcome {
    /// All of its bytes are in the slot.
    Ready,
    /// It was cancelled; the slot's contents are unspecified.
    Cancelled,
    /// It failed; the slot's contents are unspecified.
    Failed(LoadError),
}

/// A job that is over, with its slot.
#[derive(Debug)]
pub struct FinishedLoad {
    /// The identifier of the job.
    pub id: LoadId,
    /// The filling of the job: to be finished, abandoned, or passed to another job.
    pub filling: Filling,
    /// The outcome.
    pub outcome: LoadOutcome,
}

/// A job in progress.
#[derive(Debug)]
pub(super) struct ActiveLoad {
    pub(super) job: LoadJob,
    /// Set if no more is to be read.
    pub(super) decided: Option<LoadOutcome>,
    /// Number of reads that have begun and are not over.
    pub(super) n_open: usize,
    /// Lanes that were used for it.
    pub(super) is_lane_used: [bool; 2],
    next_part: usize,
    /// Bytes of the next part's whole blocks whose reads have begun.
    begun_bytes: usize,
}

/// The next read of a job.
#[derive(Debug)]
pub(super) struct NextRead {
    pub(super) file: FileIdx,
    pub(super) offset_bytes: u64,
    pub(super) piece: Piece,
}

impl ActiveLoad {
    pub(super) fn new(mut job: LoadJob, block_bytes: usize) -> Self {
        job.filling.restart();
        let mut end = 0;
        for part in &job.parts[..job.n_parts] {
            let span = part.slot_span(block_bytes);
            assert!(span.start >= end, "parts follow one another in the slot");
            end = span.end;
        }
        assert!(end <= job.filling.len_bytes(), "the parts fit the slot");
        let is_lane_used = [false; 2];
        let mut active =
            Self { job, decided: None, n_open: 0, is_lane_used, next_part: 0, begun_bytes: 0 };
        active.skip_empty();
        active
    }

    pub(super) fn parts(&self) -> &[FilePart] {
        &self.job.parts[..self.job.n_parts]
    }

    /// Returns whether all of its reads have begun.
    pub(super) fn is_exhausted(&self) -> bool {
        self.next_part == self.job.n_parts
    }

    /// Returns the length of its next read. A part is divided evenly, so that no small rest
    /// remains.
    pub(super) fn next_bytes(&self, block_bytes: usize, read_bytes: usize) -> usize {
        let span_bytes = self.job.parts[self.next_part].slot_span(block_bytes).len();
        let n_reads = span_bytes.div_ceil(read_bytes);
        let even = span_bytes.div_ceil(n_reads).next_multiple_of(block_bytes);
        even.min(span_bytes - self.begun_bytes)
    }

    /// Begins its next read.
    pub(super) fn begin_next(&mut self, block_bytes: usize, read_bytes: usize) -> NextRead {
        let len_bytes = self.next_bytes(block_bytes, read_bytes);
        let part = self.job.parts[self.next_part];
        let span = part.slot_span(block_bytes);
        let start = span.start + self.begun_bytes;
        let piece = self.job.filling.take(start..start + len_bytes);
        let first_block = part.offset_bytes - part.lead_bytes(block_bytes) as u64;
        let offset_bytes = first_block + self.begun_bytes as u64;
        self.begun_bytes += len_bytes;
        self.n_open += 1;
        if self.begun_bytes == span.len() {
            self.next_part += 1;
            self.begun_bytes = 0;
            self.skip_empty();
        }
        NextRead { file: part.file, offset_bytes, piece }
    }

    fn skip_empty(&mut self) {
        while !self.is_exhausted() && self.job.parts[self.next_part].len_bytes == 0 {
            self.next_part += 1;
        }
    }
}
