//! The seam between who wants blocks of files and who brings them: submit and complete.
//!
//! **Invariant:** every read that was submitted comes back as one completion, with its piece, in
//! any order; short reads, errors and cancelled reads too. A drive that is dropped first waits for
//! what the system is still writing.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::direct::FileFacts;
use crate::identity::FileChange;
use crate::slots::{Piece, Slab};

/// One of the files that a drive was given, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileIdx(pub u32);

/// A wish: fill the rest of `piece` from `offset_bytes` of `file`.
#[derive(Debug)]
pub struct Read {
    /// Comes back with the completion; no two reads in flight have the same.
    pub tag: u64,
    /// From where.
    pub file: FileIdx,
    /// Where the first byte to be written lies in the file.
    pub offset_bytes: u64,
    /// How often these bytes were asked for before; simulated faults depend on it.
    pub attempt: u32,
    /// Where to.
    pub piece: Piece,
}

/// A read that is over.
#[derive(Debug)]
pub struct Completion {
    /// As submitted.
    pub tag: u64,
    /// As submitted: what is kept of it is for the caller to say.
    pub piece: Piece,
    /// How it went.
    pub end: End,
}

/// How a read went.
#[derive(Debug)]
pub enum End {
    /// So many bytes were written; none if the file ends before them.
    Read(usize),
    /// The system's error; what was written is unspecified.
    Failed(io::Error),
    /// It was cancelled before it had read.
    Cancelled,
}

/// How long to wait for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    Poll,
    /// Until there is one; not at all if nothing is in flight.
    Any,
    /// At most so long, even if nothing is in flight.
    AtMost(Duration),
}

/// A drive: reads in, completions out.
pub trait BlockRead: fmt::Debug + Send {
    /// What kind it is, for reports.
    fn name(&self) -> &'static str;

    /// How many reads may be in flight.
    fn depth(&self) -> usize;

    /// How many are.
    fn n_in_flight(&self) -> usize;

    /// How many files it has.
    fn n_files(&self) -> usize;

    /// What is known of one.
    ///
    /// # Panics
    ///
    /// If it has no such file.
    fn file(&self, file: FileIdx) -> FileFacts<'_>;

    /// Whether a file still is what was opened.
    ///
    /// # Errors
    ///
    /// What has become of it.
    fn check_unchanged(&self, file: FileIdx) -> Result<(), FileChange>;

    /// Takes a read. It may begin at once, and has begun after [`BlockRead::flush`].
    ///
    /// # Panics
    ///
    /// If `depth` reads are in flight already.
    fn submit(&mut self, read: Read);

    /// Hands all that was submitted to the system.
    ///
    /// # Errors
    ///
    /// The drive is beyond use; what is in flight may never complete.
    fn flush(&mut self) -> io::Result<()>;

    /// Appends what is over to `done`, after waiting for it as told. What was submitted is
    /// flushed first. May come back early with nothing.
    ///
    /// # Errors
    ///
    /// As [`BlockRead::flush`].
    fn complete(&mut self, wait: Wait, done: &mut Vec<Completion>) -> io::Result<()>;

    /// Asks for the read with `tag` to end soon. It completes in any case, perhaps as if nobody
    /// had asked.
    fn cancel(&mut self, tag: u64);

    /// Tells of memory that reads will go to.
    fn slab_added(&mut self, slab: &Slab);

    /// Tells that no more reads will go to `slab`: the drive lets go of it.
    fn slab_removed(&mut self, slab: &Slab);
}
