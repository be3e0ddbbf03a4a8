//! What is wanted: parts of files, each at its place in a slot.
//!
//! **Invariant:** parts lie in the slot in ascending order, and their whole blocks do not overlap;
//! a part's place in the slot and in its file are the same within a block. So whole blocks around
//! a part can be read straight to where it belongs.

use std::ops::Range;

use crate::block::FileIdx;
use crate::loader::error::LoadError;
use crate::slots::{Filling, Piece};

/// An expert in place consists of at most so many extents: three matrices with scales and biases.
pub const N_PARTS_MAX: usize = 9;

/// The caller's name for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// How urgent a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Somebody waits for it.
    Demand,
    /// Somebody may come to want it.
    Guess,
}

/// Which drives a job may be read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The faster at the time; the other where one fails.
    Any,
    /// The first only.
    Primary,
    /// The second only.
    Mirror,
}

/// One extent of a file, and where its first byte belongs in the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The file.
    pub file: FileIdx,
    /// Where it begins in the file.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: usize,
    /// Where it begins in the slot.
    pub slot_offset_bytes: usize,
}

impl Part {
    const NONE: Self =
        Self { file: FileIdx(0), offset_bytes: 0, len_bytes: 0, slot_offset_bytes: 0 };

    /// Its bytes in the file.
    #[must_use]
    pub fn file_range(&self) -> Range<u64> {
        self.offset_bytes..self.offset_bytes + self.len_bytes as u64
    }

    /// How many bytes of its first block lie before it.
    fn lead_bytes(&self, block_bytes: usize) -> usize {
        let lead = self.offset_bytes % block_bytes as u64;
        usize::try_from(lead).expect("less than a block")
    }

    /// What its whole blocks take in the slot.
    ///
    /// # Panics
    ///
    /// If its place in the slot is not that in its file, within a block.
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

/// Parts with their places in a slot.
#[derive(Clone, Copy, Debug)]
pub struct Laid {
    parts: [Part; N_PARTS_MAX],
    n_parts: usize,
    slot_bytes: usize,
}

impl Laid {
    /// The parts, in the order of their extents.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts[..self.n_parts]
    }

    /// What they need of a slot.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// The same parts at other places of their slot, in the order of their extents.
    ///
    /// # Panics
    ///
    /// If there are fewer places than parts.
    #[must_use]
    pub fn moved(mut self, places: impl IntoIterator<Item = usize>) -> Self {
        let mut places = places.into_iter();
        for part in &mut self.parts[..self.n_parts] {
            part.slot_offset_bytes = places.next().expect("a place for each part");
            self.slot_bytes = self.slot_bytes.max(part.slot_offset_bytes + part.len_bytes);
        }
        self
    }
}

/// Places for `extents` (file, offset, length) in a slot, one after the other.
///
/// # Panics
///
/// If there are more than [`N_PARTS_MAX`].
#[must_use]
pub fn lay_out(
    extents: impl IntoIterator<Item = (FileIdx, u64, usize)>,
    block_bytes: usize,
) -> Laid {
    let mut laid = Laid { parts: [Part::NONE; N_PARTS_MAX], n_parts: 0, slot_bytes: 0 };
    for (file, offset_bytes, len_bytes) in extents {
        assert!(laid.n_parts < N_PARTS_MAX, "at most {N_PARTS_MAX} parts");
        let part = Part { file, offset_bytes, len_bytes, slot_offset_bytes: laid.slot_bytes };
        let slot_offset_bytes = laid.slot_bytes + part.lead_bytes(block_bytes);
        let part = Part { slot_offset_bytes, ..part };
        laid.slot_bytes = part.slot_span(block_bytes).end.next_multiple_of(block_bytes);
        laid.parts[laid.n_parts] = part;
        laid.n_parts += 1;
    }
    laid
}

/// Fill a slot with parts of files.
#[derive(Debug)]
pub struct Job {
    /// The caller's name for it, unlike that of any other job under way.
    pub id: JobId,
    /// How urgent it is.
    pub class: Class,
    /// Where it may be read from.
    pub source: Source,
    /// How often its slot was filled in vain: its bytes were not what they should be.
    pub n_rereads: u32,
    /// The slot.
    pub filling: Filling,
    parts: [Part; N_PARTS_MAX],
    n_parts: usize,
}

impl Job {
    /// A job from any drive, read for the first time.
    ///
    /// # Panics
    ///
    /// If there are more than [`N_PARTS_MAX`] parts.
    #[must_use]
    pub fn new(id: JobId, class: Class, filling: Filling, parts: &[Part]) -> Self {
        assert!(parts.len() <= N_PARTS_MAX, "at most {N_PARTS_MAX} parts");
        let mut own = [Part::NONE; N_PARTS_MAX];
        own[..parts.len()].copy_from_slice(parts);
        let n_parts = parts.len();
        Self { id, class, source: Source::Any, n_rereads: 0, filling, parts: own, n_parts }
    }

    /// The same for the `n_rereads`th time, from `source`: what was read before was not what it
    /// should be.
    #[must_use]
    pub fn again(self, source: Source, n_rereads: u32) -> Self {
        Self { source, n_rereads, ..self }
    }
}

/// How a job ended.
#[derive(Debug)]
pub enum Outcome {
    /// All of its bytes are in the slot.
    Ready,
    /// It was cancelled; the slot holds nothing of value.
    Cancelled,
    /// It could not be done; the slot holds nothing of value.
    Failed(LoadError),
}

/// A job that is over, with the slot that it was given.
#[derive(Debug)]
pub struct Finished {
    /// As submitted.
    pub id: JobId,
    /// As submitted: to be finished, abandoned, or given to another job.
    pub filling: Filling,
    /// How it ended.
    pub outcome: Outcome,
}

/// A job under way.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) job: Job,
    /// Why nothing more is to be read, if so.
    pub(super) verdict: Option<Outcome>,
    /// Reads that were begun and are not over.
    pub(super) n_open: usize,
    /// Lanes that brought some of it.
    pub(super) is_lane_used: [bool; 2],
    next_part: usize,
    /// What of the next part's whole blocks is under way already.
    begun_bytes: usize,
}

/// The next read of a job.
#[derive(Debug)]
pub(super) struct Next {
    pub(super) file: FileIdx,
    pub(super) offset_bytes: u64,
    pub(super) piece: Piece,
}

impl Active {
    pub(super) fn new(mut job: Job, block_bytes: usize) -> Self {
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
            Self { job, verdict: None, n_open: 0, is_lane_used, next_part: 0, begun_bytes: 0 };
        active.skip_empty();
        active
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.job.parts[..self.job.n_parts]
    }

    /// Whether all of its reads have begun.
    pub(super) fn is_exhausted(&self) -> bool {
        self.next_part == self.job.n_parts
    }

    /// The length of its next read: a part is divided evenly, so that no small rest remains.
    pub(super) fn next_bytes(&self, block_bytes: usize, read_bytes: usize) -> usize {
        let span_bytes = self.job.parts[self.next_part].slot_span(block_bytes).len();
        let n_reads = span_bytes.div_ceil(read_bytes);
        let even = span_bytes.div_ceil(n_reads).next_multiple_of(block_bytes);
        even.min(span_bytes - self.begun_bytes)
    }

    /// Begins its next read.
    pub(super) fn begin_next(&mut self, block_bytes: usize, read_bytes: usize) -> Next {
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
        Next { file: part.file, offset_bytes, piece }
    }

    fn skip_empty(&mut self) {
        while !self.is_exhausted() && self.job.parts[self.next_part].len_bytes == 0 {
            self.next_part += 1;
        }
    }
}
