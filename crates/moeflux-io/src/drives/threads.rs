//! Reads with a pool of threads, one positional system read each. For systems without `io_uring`,
//! where it is forbidden, and where copying from the page cache is the actual work.
//!
//! **Invariant:** a read is in exactly one place: not yet flushed, waiting, with one thread, or
//! done. Threads end with the drive.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use crate::drives::block::{BlockRead, FileIdx, ReadCompletion, ReadOutcome, ReadRequest, Wait};
use crate::files::direct::{DriveFile, FileFacts};
use crate::files::identity::FileChange;
use crate::memory::slots::Slab;

/// Upper bound on the threads that any drive benefits from.
pub const N_THREADS_MAX: usize = 256;

/// A drive that reads with threads.
pub struct ThreadsDrive {
    shared: Arc<DriveState>,
    threads: Vec<JoinHandle<()>>,
    depth: usize,
    n_in_flight: usize,
    unflushed: Vec<ReadRequest>,
}

struct DriveState {
    files: Vec<DriveFile>,
    queues: Mutex<ReadQueues>,
    /// Signals that there is work, or that the threads are to end.
    has_work: Condvar,
    /// Signals a completion.
    has_done: Condvar,
}

struct ReadQueues {
    waiting: VecDeque<ReadRequest>,
    done: Vec<ReadCompletion>,
    is_ending: bool,
}

impl DriveState {
    fn queues(&self) -> MutexGuard<'_, ReadQueues> {
        // No code that holds the lock can panic half-way.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ThreadsDrive {
    /// Creates a drive with `n_threads` threads for `depth` reads in flight from `files`. If
    /// `depth` is larger than the number of threads, they stay busy between two calls.
    ///
    /// # Errors
    ///
    /// If the system cannot create a thread.
    ///
    /// # Panics
    ///
    /// If `n_threads` is 0 or above [`N_THREADS_MAX`], or `depth` is below `n_threads`.
    pub fn new(files: Vec<DriveFile>, n_threads: usize, depth: usize) -> io::Result<Self> {
        assert!((1..=N_THREADS_MAX).contains(&n_threads), "1 to {N_THREADS_MAX} threads");
        assert!(depth >= n_threads, "work for every thread");
        let waiting = VecDeque::with_capacity(depth);
        let queues = ReadQueues { waiting, done: Vec::with_capacity(depth), is_ending: false };
        let shared = DriveState {
            files,
            queues: Mutex::new(queues),
            has_work: Condvar::new(),
            has_done: Condvar::new(),
        };
        let unflushed = Vec::with_capacity(depth);
        let shared = Arc::new(shared);
        let mut drive = Self { shared, threads: Vec::new(), depth, n_in_flight: 0, unflushed };
        for number in 0..n_threads {
            let shared = Arc::clone(&drive.shared);
            let builder = Builder::new().name(format!("moeflux-read-{number}"));
            drive.threads.push(builder.spawn(move || work(&shared))?);
        }
        Ok(drive)
    }
}

/// The main loop of a thread.
fn work(shared: &DriveState) {
    let mut queues = shared.queues();
    loop {
        if queues.is_ending {
            return;
        }
        let Some(read) = queues.waiting.pop_front() else {
            queues = shared.has_work.wait(queues).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        drop(queues);
        let ReadRequest { tag, file, offset_bytes, mut piece, .. } = read;
        let result = shared.files[file.0 as usize].read_at(offset_bytes, piece.rest_mut());
        let outcome = match result {
            Ok(n_bytes) => ReadOutcome::Read(n_bytes),
            Err(error) => ReadOutcome::Failed(error),
        };
        queues = shared.queues();
        queues.done.push(ReadCompletion { tag, piece, outcome });
        shared.has_done.notify_one();
    }
}

impl BlockRead for ThreadsDrive {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn n_in_flight(&self) -> usize {
        self.n_in_flight
    }

    fn n_files(&self) -> usize {
        self.shared.files.len()
    }

    fn file(&self, file: FileIdx) -> FileFacts<'_> {
        self.shared.files[file.0 as usize].facts()
    }

    fn check_unchanged(&self, file: FileIdx) -> Result<(), FileChange> {
        self.shared.files[file.0 as usize].check_unchanged()
    }

    fn submit(&mut self, read: ReadRequest) {
        assert!(self.n_in_flight < self.depth, "at most `depth` reads are in flight");
        self.n_in_flight += 1;
        self.unflushed.push(read);
    }

    fn flush(&mut self) -> io::Result<()> {
        let n_new = self.unflushed.len();
        if n_new > 0 {
            self.shared.queues().waiting.extend(self.unflushed.drain(..));
        }
        for _ in 0..n_new.min(self.threads.len()) {
            self.shared.has_work.notify_one();
        }
        Ok(())
    }

    fn complete(&mut self, wait: Wait, done: &mut Vec<ReadCompletion>) -> io::Result<()> {
        self.flush()?;
        let is_empty = |queues: &mut ReadQueues| queues.done.is_empty();
        let queues = self.shared.queues();
        let mut queues = match wait {
            Wait::Poll => queues,
            Wait::Any if self.n_in_flight == 0 => queues,
            Wait::Any => {
                let waited = self.shared.has_done.wait_while(queues, is_empty);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
            Wait::AtMost(limit) => {
                let waited = self.shared.has_done.wait_timeout_while(queues, limit, is_empty);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        self.n_in_flight -= queues.done.len();
        done.append(&mut queues.done);
        Ok(())
    }

    fn cancel(&mut self, tag: u64) {
        let mut queues = self.shared.queues();
        let in_queue = queues.waiting.iter().position(|read| read.tag == tag);
        let read = match in_queue {
            Some(at) => queues.waiting.remove(at),
            None => {
                let unflushed = self.unflushed.iter().position(|read| read.tag == tag);
                unflushed.map(|at| self.unflushed.remove(at))
            }
        };
        if let Some(ReadRequest { tag, piece, .. }) = read {
            queues.done.push(ReadCompletion { tag, piece, outcome: ReadOutcome::Cancelled });
        }
    }

    fn slab_added(&mut self, _: &Slab) {}

    fn slab_removed(&mut self, _: &Slab) {}
}

impl fmt::Debug for ThreadsDrive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_threads = self.threads.len();
        write!(f, "ThreadsDrive({n_threads} threads, {} in flight)", self.n_in_flight)
    }
}

impl Drop for ThreadsDrive {
    fn drop(&mut self) {
        self.shared.queues().is_ending = true;
        self.shared.has_work.notify_all();
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            debug_assert!(ended.is_ok(), "a thread that only reads");
        }
    }
}
