//! Reads through io_uring: one thread has many reads in flight, without a system call for each.
//!
//! **Invariant:** a piece stays in `entries` from the moment its read is queued until the kernel
//! has reported its completion. Dropping the drive waits for all of them; if that is impossible
//! (the ring itself fails), their memory is leaked rather than freed. Slabs are registered with the
//! kernel if it allows that; a registered slab is held, so that its memory cannot be unmapped under
//! a registration.

use std::collections::VecDeque;
use std::fmt;
use std::io;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use crate::drives::block::{BlockRead, FileIdx, ReadCompletion, ReadOutcome, ReadRequest, Wait};
use crate::drives::uring::registered::RegisteredSlabs;
use crate::files::direct::{Caching, DriveFile, FileFacts};
use crate::files::identity::FileChange;
use crate::memory::slots::{Piece, Slab};

mod registered;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::drive_or_typed_refusal;

/// Upper bound on the reads in flight that any drive benefits from; the kernel's queue holds twice
/// as many.
pub const DEPTH_MAX: usize = 1024;

/// Attempts to submit to a kernel that refuses, with no completion to wait for.
const N_REFUSALS_MAX: u32 = 1000;
/// User data of a cancel's own completion; no read has it.
const CANCEL_MARK: u64 = u64::MAX;

/// The reason why there is no ring; callers then read by other means.
#[derive(Debug)]
#[non_exhaustive]
pub enum UringRefused {
    /// The kernel has no io_uring, or lacks a required feature (Linux 5.11).
    Unsupported,
    /// io_uring is forbidden: by a container's filter or `kernel.io_uring_disabled`.
    Forbidden,
    /// Another error, such as no free descriptors or memory.
    Failed(io::Error),
}

impl From<io::Error> for UringRefused {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOSYS | libc::EOPNOTSUPP) => Self::Unsupported,
            Some(libc::EPERM | libc::EACCES) => Self::Forbidden,
            _ => Self::Failed(error),
        }
    }
}

impl fmt::Display for UringRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported => write!(f, "io_uring needs Linux 5.11"),
            Self::Forbidden => write!(
                f,
                "io_uring is forbidden here: see the container's system call filter and \
                 /proc/sys/kernel/io_uring_disabled"
            ),
            Self::Failed(source) => write!(f, "io_uring failed: {source}"),
        }
    }
}

impl std::error::Error for UringRefused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(source) => Some(source),
            _ => None,
        }
    }
}

/// An entry for a read in flight.
struct ReadEntry {
    /// Number of uses of this entry, so that a late cancel cannot affect the next read.
    generation: u32,
    read: Option<(u64, Piece)>,
}

/// A drive that reads with io_uring.
pub struct UringDrive {
    ring: IoUring,
    files: Vec<DriveFile>,
    depth: usize,
    entries: Vec<ReadEntry>,
    free: Vec<u32>,
    /// Queued, but not yet in the kernel's ring.
    backlog: VecDeque<squeue::Entry>,
    /// Completions to return with the next call: reads cancelled before they reached the kernel,
    /// and completions taken out of the ring to make room.
    undelivered: Vec<ReadCompletion>,
    registered: RegisteredSlabs,
}

impl UringDrive {
    /// Creates a ring for `depth` reads in flight from `files`.
    ///
    /// # Errors
    ///
    /// The reason why the kernel provides no ring.
    ///
    /// # Panics
    ///
    /// If `depth` is 0 or above [`DEPTH_MAX`].
    pub fn new(files: Vec<DriveFile>, depth: usize) -> Result<Self, UringRefused> {
        assert!((1..=DEPTH_MAX).contains(&depth), "a depth of 1 to {DEPTH_MAX}");
        let n_entries = u32::try_from(depth).expect("at most the limit");
        // Twice as many: each read may be cancelled once.
        let ring = IoUring::new((2 * n_entries).next_power_of_two())?;
        let parameters = ring.params();
        if !(parameters.is_feature_ext_arg() && parameters.is_feature_nodrop()) {
            return Err(UringRefused::Unsupported);
        }
        let entry = |_| ReadEntry { generation: 0, read: None };
        Ok(Self {
            ring,
            files,
            depth,
            entries: (0..depth).map(entry).collect(),
            free: (0..n_entries).rev().collect(),
            backlog: VecDeque::with_capacity(2 * depth),
            undelivered: Vec::with_capacity(depth),
            registered: RegisteredSlabs::default(),
        })
    }

    /// Returns the number of registered slabs.
    #[must_use]
    pub fn n_registered_slabs(&self) -> usize {
        self.registered.len()
    }

    fn describe(&self, read: &ReadRequest, user_data: u64) -> squeue::Entry {
        let file = &self.files[read.file.0 as usize];
        let descriptor = Fd(file.descriptor());
        let address = read.piece.rest_address();
        // A longer read returns fewer bytes, as any read of this size does.
        let len_bytes = u32::try_from(read.piece.rest_bytes()).unwrap_or(1 << 30);
        let entry = match self.registered.find(address, read.piece.rest_bytes()) {
            Some(index) => opcode::ReadFixed::new(descriptor, address, len_bytes, index)
                .offset(read.offset_bytes)
                .build(),
            None => {
                opcode::Read::new(descriptor, address, len_bytes).offset(read.offset_bytes).build()
            }
        };
        // Without `ASYNC`, the caller would copy data from the page cache within `flush`, although
        // it has other work. The kernel's workers copy it just as fast.
        let flags = match file.caching() {
            Caching::Direct => squeue::Flags::empty(),
            Caching::PageCache => squeue::Flags::ASYNC,
        };
        entry.user_data(user_data).flags(flags)
    }

    /// Moves the backlog into the ring, as far as there is room.
    fn push_backlog(&mut self) {
        let mut queue = self.ring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: the entry's memory is that of a piece in `entries`, which stays there until
            // the kernel has reported that the read is over (or it is a cancel and has none); its
            // descriptor belongs to `files`, which lives as long as the ring.
            if unsafe { queue.push(entry) }.is_err() {
                break;
            }
            self.backlog.pop_front();
        }
    }

    /// Takes completions out of the ring.
    fn reap(&mut self, done: &mut Vec<ReadCompletion>) {
        done.append(&mut self.undelivered);
        for entry in self.ring.completion() {
            if entry.user_data() == CANCEL_MARK {
                continue;
            }
            let index = entry_index(entry.user_data());
            let ReadEntry { generation, read } = &mut self.entries[index as usize];
            let (tag, piece) = read.take().expect("the kernel completes a read once");
            *generation = generation.wrapping_add(1);
            self.free.push(index);
            let outcome = match usize::try_from(entry.result()) {
                Ok(n_bytes) => ReadOutcome::Read(n_bytes),
                Err(_) if entry.result() == -libc::ECANCELED => ReadOutcome::Cancelled,
                Err(_) => ReadOutcome::Failed(io::Error::from_raw_os_error(-entry.result())),
            };
            done.push(ReadCompletion { tag, piece, outcome });
        }
    }

    /// Enters the kernel: submits the entries in the ring, and waits as specified for one
    /// completion. May do neither if the kernel is short of memory or was interrupted.
    fn enter(&self, wait: Wait) -> io::Result<()> {
        let submitter = self.ring.submitter();
        let entered = match wait {
            Wait::Poll => submitter.submit(),
            Wait::Any => submitter.submit_and_wait(1),
            Wait::AtMost(limit) => {
                let limit = Timespec::from(limit);
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&limit))
            }
        };
        let Err(error) = entered else { return Ok(()) };
        let passes = [libc::ETIME, libc::EINTR, libc::EAGAIN, libc::EBUSY];
        if passes.iter().any(|&it| error.raw_os_error() == Some(it)) { Ok(()) } else { Err(error) }
    }

    /// Submits all of the backlog. May take out completions to make room.
    fn submit_backlog(&mut self) -> io::Result<()> {
        let mut n_refusals = 0;
        while !(self.backlog.is_empty() && self.ring.submission().is_empty()) {
            self.push_backlog();
            let n_queued = self.ring.submission().len();
            self.enter(Wait::Poll)?;
            if self.ring.submission().len() < n_queued {
                continue;
            }
            n_refusals += 1;
            if n_refusals == N_REFUSALS_MAX {
                return Err(io::Error::from_raw_os_error(libc::EAGAIN));
            }
            let mut done = std::mem::take(&mut self.undelivered);
            self.reap(&mut done);
            self.undelivered = done;
            std::thread::yield_now();
        }
        Ok(())
    }

    fn cancel_in_backlog(&mut self, index: u32, user_data: u64) -> bool {
        let is_it = |entry: &squeue::Entry| entry.get_user_data() == user_data;
        let Some(at) = self.backlog.iter().position(is_it) else { return false };
        self.backlog.remove(at);
        let ReadEntry { generation, read } = &mut self.entries[index as usize];
        *generation = generation.wrapping_add(1);
        let (tag, piece) = read.take().expect("what is queued has its read");
        self.free.push(index);
        self.undelivered.push(ReadCompletion { tag, piece, outcome: ReadOutcome::Cancelled });
        true
    }
}

fn user_data(index: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(index)
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is wanted")]
fn entry_index(user_data: u64) -> u32 {
    user_data as u32
}

impl BlockRead for UringDrive {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn n_in_flight(&self) -> usize {
        self.depth - self.free.len() + self.undelivered.len()
    }

    fn n_files(&self) -> usize {
        self.files.len()
    }

    fn file(&self, file: FileIdx) -> FileFacts<'_> {
        self.files[file.0 as usize].facts()
    }

    fn check_unchanged(&self, file: FileIdx) -> Result<(), FileChange> {
        self.files[file.0 as usize].check_unchanged()
    }

    fn submit(&mut self, read: ReadRequest) {
        let &index = self.free.last().expect("at most `depth` reads are in flight");
        let user_data = user_data(index, self.entries[index as usize].generation);
        // An invalid file index panics here, before anything has changed.
        let description = self.describe(&read, user_data);
        self.free.pop();
        self.entries[index as usize].read = Some((read.tag, read.piece));
        self.backlog.push_back(description);
    }

    fn flush(&mut self) -> io::Result<()> {
        self.submit_backlog()
    }

    fn complete(&mut self, wait: Wait, done: &mut Vec<ReadCompletion>) -> io::Result<()> {
        let n_before = done.len();
        self.submit_backlog()?;
        self.reap(done);
        if done.len() > n_before {
            return Ok(());
        }
        match wait {
            Wait::Poll => {}
            Wait::Any => {
                while done.len() == n_before && self.n_in_flight() > 0 {
                    self.enter(wait)?;
                    self.reap(done);
                }
            }
            Wait::AtMost(_) => {
                self.enter(wait)?;
                self.reap(done);
            }
        }
        Ok(())
    }

    fn cancel(&mut self, tag: u64) {
        let is_it = |entry: &ReadEntry| matches!(entry.read, Some((it, _)) if it == tag);
        let Some(at) = self.entries.iter().position(is_it) else { return };
        let index = u32::try_from(at).expect("at most the depth");
        let user_data = user_data(index, self.entries[at].generation);
        if !self.cancel_in_backlog(index, user_data) {
            let cancel = opcode::AsyncCancel::new(user_data).build().user_data(CANCEL_MARK);
            self.backlog.push_back(cancel);
        }
    }

    fn slab_added(&mut self, slab: &Slab) {
        self.registered.add(&self.ring, slab);
    }

    fn slab_removed(&mut self, slab: &Slab) {
        self.registered.remove(&self.ring, slab);
    }
}

impl fmt::Debug for UringDrive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UringDrive({} of {} in flight)", self.n_in_flight(), self.depth)
    }
}

impl Drop for UringDrive {
    fn drop(&mut self) {
        for entry in std::mem::take(&mut self.backlog) {
            if entry.get_user_data() != CANCEL_MARK {
                let index = entry_index(entry.get_user_data());
                self.entries[index as usize].read = None;
                self.free.push(index);
            }
        }
        let mut done = Vec::with_capacity(self.depth);
        let mut is_drained = self.enter(Wait::Poll).is_ok();
        while is_drained && self.free.len() < self.depth {
            self.reap(&mut done);
            is_drained = self.free.len() == self.depth || self.enter(Wait::Any).is_ok();
        }
        if is_drained {
            // The kernel dismantles a ring some time after it is closed, and keeps its pages until
            // then.
            self.registered.remove_all(&self.ring);
        } else {
            // The kernel may still write to these pieces, so their slabs must never be freed.
            Box::leak(std::mem::take(&mut self.entries).into_boxed_slice());
        }
    }
}
