//! The threads: they wait for sections, work on them, and park when none comes for a while.
//!
//! **Invariant:** nothing but speed depends on a worker being awake: the caller claims tasks too,
//! and does them all if nobody comes. Waking costs the caller one system call per section at most:
//! a woken worker wakes the next.

use std::io;
use std::num::NonZeroUsize;
#[cfg(test)]
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle, Thread, ThreadId, available_parallelism, current, park};

use crate::section::Section;
use crate::waiting::{Padded, Spin};

/// Stack of a thread that computes, as the first thread of a process has: kernels that were not
/// optimised keep every step of their sums there.
pub const STACK_BYTES: usize = 8 << 20;

/// Threads for parallel sections; dropping it ends and joins them.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Of the workers, in the order of their indices.
    worker_ids: Vec<ThreadId>,
    /// Whether a section runs.
    is_busy: AtomicBool,
}

impl Pool {
    /// A pool of `n_threads`, the one that will call [`Pool::run`] included: it starts one less,
    /// named `moeflux-cpu-1` and so on.
    ///
    /// # Errors
    ///
    /// If the system refuses a thread.
    ///
    /// # Panics
    ///
    /// For no threads at all.
    pub fn new(n_threads: usize) -> io::Result<Self> {
        assert_ne!(n_threads, 0, "the caller is a thread of the pool");
        let n_cores = available_parallelism().map_or(1, NonZeroUsize::get);
        let shared = Arc::new(Shared {
            section: Section::new(),
            spin: if n_threads > n_cores { Spin::Crowded } else { Spin::Alone },
            n_parked: Padded(AtomicUsize::new(0)),
            beds: (1..n_threads).map(|_| Padded(Bed::default())).collect(),
            is_ending: AtomicBool::new(false),
        });
        let is_busy = AtomicBool::new(false);
        // Dropping it joins those that have started, if one does not.
        let mut pool = Self { shared, workers: Vec::new(), worker_ids: Vec::new(), is_busy };
        for thread_idx in 1..n_threads {
            let shared = pool.shared.clone();
            let name = format!("moeflux-cpu-{thread_idx}");
            let builder = Builder::new().name(name).stack_size(STACK_BYTES);
            let worker = builder.spawn(move || shared.serve(thread_idx))?;
            pool.worker_ids.push(worker.thread().id());
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads, the caller included.
    #[must_use]
    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Workers that are parked at this moment, or about to be: for tests and measurements.
    #[must_use]
    pub fn n_parked(&self) -> usize {
        self.shared.n_parked.0.load(Ordering::SeqCst)
    }

    /// The calling thread's index as tasks get it: 0 for all but the workers of this pool.
    #[must_use]
    pub fn thread_idx(&self) -> usize {
        let id = current().id();
        self.worker_ids.iter().position(|&it| it == id).map_or(0, |worker_idx| worker_idx + 1)
    }

    /// Whether anything of the pool is left.
    #[cfg(test)]
    pub(crate) fn watch(&self) -> Weak<impl Sized + use<>> {
        Arc::downgrade(&self.shared)
    }

    /// Calls `f(thread_idx, task_idx)` once for each task, and returns when all are done. No two
    /// tasks have the same thread index at the same time; the caller's is 0.
    ///
    /// # Panics
    ///
    /// With the panic of a task, after all tasks have stopped; those that had not begun are left
    /// out. If a section runs already: from a task of this pool, or by another thread.
    pub fn run(&self, n_tasks: usize, f: &(impl Fn(usize, usize) + Sync)) {
        let _busy = Busy::new(&self.is_busy);
        if self.workers.is_empty() || n_tasks <= 1 {
            (0..n_tasks).for_each(|task_idx| f(0, task_idx));
            return;
        }
        let shared = &*self.shared;
        let n_wanted = (n_tasks - 1).min(self.workers.len());
        shared.section.run(n_tasks, f, shared.spin, || {
            // `SeqCst`: see `Section::run`.
            let n_parked = shared.n_parked.0.load(Ordering::SeqCst);
            if self.workers.len() - n_parked < n_wanted {
                shared.wake_one();
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // `SeqCst`, and sticky: a worker that looked too early finds the token of `unpark`.
        self.shared.is_ending.store(true, Ordering::SeqCst);
        for worker in &self.workers {
            worker.thread().unpark();
        }
        for worker in self.workers.drain(..) {
            // A task's panic went to its caller: a worker has nothing to say.
            drop(worker.join());
        }
    }
}

/// The right to run a section.
struct Busy<'a>(&'a AtomicBool);

impl<'a> Busy<'a> {
    /// `Acquire` and `Release`: what the last section did is visible to the next, on any thread.
    fn new(is_busy: &'a AtomicBool) -> Self {
        let was_busy = is_busy.swap(true, Ordering::Acquire);
        assert!(!was_busy, "a pool runs one section at a time, and none inside another");
        Self(is_busy)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// What the pool's owner and the workers share.
#[derive(Debug)]
struct Shared {
    section: Section,
    spin: Spin,
    /// Workers in bed: raised by themselves, lowered by whoever clears `Bed::is_taken`.
    n_parked: Padded<AtomicUsize>,
    beds: Box<[Padded<Bed>]>,
    is_ending: AtomicBool,
}

/// Where a worker parks.
#[derive(Debug, Default)]
struct Bed {
    /// Whether its worker is parked, or about to be.
    is_taken: AtomicBool,
    /// Set before the first time that the bed is taken.
    thread: OnceLock<Thread>,
}

impl Shared {
    /// A worker's life.
    fn serve(&self, thread_idx: usize) {
        let bed = &self.beds[thread_idx - 1].0;
        bed.thread.get_or_init(current);
        // `Relaxed`: nothing else is read on the word of it.
        while !self.is_ending.load(Ordering::Relaxed) {
            if !self.spin.until(|| self.section.has_work()) {
                self.park(bed);
                if self.section.has_more_work() {
                    self.wake_one();
                }
            }
            let n_tasks = self.section.work(thread_idx);
            if n_tasks != 0 {
                self.section.report(n_tasks);
            }
        }
    }

    /// Parks until there is work or the pool ends.
    fn park(&self, bed: &Bed) {
        // First the count, then the look at the work: `Section::run` has them the other way round.
        self.n_parked.0.fetch_add(1, Ordering::SeqCst);
        bed.is_taken.store(true, Ordering::SeqCst);
        while !self.section.has_work() && !self.is_ending.load(Ordering::SeqCst) {
            if !bed.is_taken.load(Ordering::SeqCst) {
                return;
            }
            park();
        }
        self.leave(bed);
    }

    /// Wakes a parked worker, if there is one. Each is woken by one thread only.
    fn wake_one(&self) {
        for Padded(bed) in &self.beds {
            // A look first: it leaves the line where it is.
            if bed.is_taken.load(Ordering::SeqCst) && self.leave(bed) {
                if let Some(thread) = bed.thread.get() {
                    thread.unpark();
                }
                return;
            }
        }
    }

    /// Marks a bed as left; whether it was taken.
    fn leave(&self, bed: &Bed) -> bool {
        let was_taken = bed.is_taken.swap(false, Ordering::SeqCst);
        if was_taken {
            self.n_parked.0.fetch_sub(1, Ordering::SeqCst);
        }
        was_taken
    }
}
