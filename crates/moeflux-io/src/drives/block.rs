//! The interface between code that needs blocks of files and drives that read them: submit and
//! complete.
//!
//! **Invariant:** every submitted read returns as one completion, with its piece, in any order.
//! This includes short reads, errors and cancelled reads. Dropping a drive first waits for what the
//! system is still writing.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::files::direct::FileFacts;
use crate::files::identity::FileChange;
use crate::memory::slots::{Piece, Slab};

/// Index of a file among those that a drive was created with, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileIdx(pub u32);

/// A request: fill the rest of `piece` from `offset_bytes` of `file`.
#[derive(Debug)]
pub struct ReadRequest {
    /// Returned with the completion; no two reads in flight have the same tag.
    pub tag: u64,
    /// The file to read.
    pub file: FileIdx,
    /// Offset in the file of the first byte to be written.
    pub offset_bytes: u64,
    /// How often these bytes were requested before; simulated faults depend on it.
    pub attempt: u32,
    /// The memory to fill.
    pub piece: Piece,
}

/// A completed read.
#[derive(Debug)]
pub struct ReadCompletion {
    /// The tag of the request.
    pub tag: u64,
    /// The piece of the request. The caller records how much of it to keep.
    pub piece: Piece,
    /// The outcome.
    pub outcome: ReadOutcome,
}

/// The outcome of a read.
#[derive(Debug)]
pub enum ReadOutcome {
    /// This many bytes were written; 0 if the file ends before them.
    Read(usize),
    /// The system's error; the piece's contents are unspecified.
    Failed(io::Error),
    /// The read was cancelled before it took place.
    Cancelled,
}

/// How long to wait for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    Poll,
    /// Until there is one; not at all if nothing is in flight.
    Any,
    /// At most this long, even if nothing is in flight.
    AtMost(Duration),
}

/// A drive: takes reads, returns completions.
pub trait BlockRead: fmt::Debug + Send {
    /// Returns the kind of drive, for reports.
    fn name(&self) -> &'static str;

    /// Returns the maximum number of reads in flight.
    fn depth(&self) -> usize;

    /// Returns the number of reads in flight.
    fn n_in_flight(&self) -> usize;

    /// Returns the number of files.
    fn n_files(&self) -> usize;

    /// Returns path, length and block size of a file.
    ///
    /// # Panics
    ///
    /// If there is no such file.
    fn file(&self, file: FileIdx) -> FileFacts<'_>;

    /// Checks that a file has not changed since it was opened.
    ///
    /// # Errors
    ///
    /// The change.
    fn check_unchanged(&self, file: FileIdx) -> Result<(), FileChange>;

    /// Accepts a read. It may start at once, and has started when [`BlockRead::flush`] returns.
    ///
    /// # Panics
    ///
    /// If `depth` reads are in flight already.
    fn submit(&mut self, read: ReadRequest);

    /// Passes all submitted reads to the system.
    ///
    /// # Errors
    ///
    /// If the drive has failed for good; reads in flight may never complete.
    fn flush(&mut self) -> io::Result<()>;

    /// Flushes, waits as specified, and appends completions to `done`. May return early without
    /// any.
    ///
    /// # Errors
    ///
    /// As [`BlockRead::flush`].
    fn complete(&mut self, wait: Wait, done: &mut Vec<ReadCompletion>) -> io::Result<()>;

    /// Requests that the read with `tag` ends soon. It completes in any case, possibly as if it had
    /// not been cancelled.
    fn cancel(&mut self, tag: u64);

    /// Announces memory that reads will fill.
    fn slab_added(&mut self, slab: &Slab);

    /// Announces that no more reads will fill `slab`: the drive releases its handle.
    fn slab_removed(&mut self, slab: &Slab);
}
