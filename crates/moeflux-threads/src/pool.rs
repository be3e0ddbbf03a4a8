//! The worker threads: they wait for sections, work on them, and park when none comes for a while.
//!
//! **Invariant:** only speed depends on a worker being awake: the caller claims tasks too, and runs
//! all of them if no worker does. Waking costs the caller at most one system call per section: a
//! woken worker wakes the next.

use std::io;
use std::num::NonZeroUsize;
#[cfg(test)]
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle, Thread, ThreadId, available_parallelism, current, park};

use crate::section::Section;
use crate::waiting::{CachePadded, Spin};

/// Stack size of a compute thread, as large as that of a process's main thread: unoptimised kernels
/// keep every intermediate sum on the stack.
pub const STACK_BYTES: usize = 8 << 20;

/// Threads for parallel sections. Dropping it ends and joins them.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<PoolState>,
    workers: Vec<JoinHandle<()>>,
    /// Of the workers, in the order of their indices.
    worker_ids: Vec<ThreadId>,
    /// Whether a section is running.
    is_busy: AtomicBool,
}

impl Pool {
    /// Creates a pool of `n_threads` threads, including the one that will call [`Pool::run`]. It
    /// starts one less, named `moeflux-cpu-1` and so on.
    ///
    /// # Errors
    ///
    /// If the system refuses a thread.
    ///
    /// # Panics
    ///
    /// If `n_threads` is 0.
    pub fn new(n_threads: usize) -> io::Result<Self> {
        assert_ne!(n_threads, 0, "the caller is a thread of the pool");
        let n_cores = available_parallelism().map_or(1, NonZeroUsize::get);
        let shared = Arc::new(PoolState {
            section: Section::new(),
            spin: if n_threads > n_cores { Spin::Crowded } else { Spin::Alone },
            n_parked: CachePadded(AtomicUsize::new(0)),
            park_states: (1..n_threads).map(|_| CachePadded(ParkState::default())).collect(),
            is_ending: AtomicBool::new(false),
        });
        let is_busy = AtomicBool::new(false);
        // If a thread does not start, dropping the pool joins those that have started.
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

    /// Returns the number of threads, including the caller.
    #[must_use]
    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Returns how many workers are parked at this moment, or about to be. For tests and
    /// measurements.
    #[must_use]
    pub fn n_parked(&self) -> usize {
        self.shared.n_parked.0.load(Ordering::SeqCst)
    }

    /// Returns the calling thread's index as tasks receive it: 0 for all but the workers of this
    /// pool.
    #[must_use]
    pub fn thread_idx(&self) -> usize {
        let id = current().id();
        self.worker_ids.iter().position(|&it| it == id).map_or(0, |worker_idx| worker_idx + 1)
    }

    /// Returns a handle that tells whether any part of the pool still exists.
    #[cfg(test)]
    pub(crate) fn watch(&self) -> Weak<impl Sized + use<>> {
        Arc::downgrade(&self.shared)
    }

    /// Calls `f(thread_idx, task_idx)` once for each task, and returns when all are done. No two
    /// tasks run with the same thread index at the same time; the caller's is 0.
    ///
    /// # Panics
    ///
    /// With the panic of a task, after all running tasks have ended; tasks that had not begun are
    /// skipped. If a section is already running, from a task of this pool or by another thread.
    pub fn run(&self, n_tasks: usize, f: &(impl Fn(usize, usize) + Sync)) {
        let _guard = BusyGuard::new(&self.is_busy);
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
        // `SeqCst`, and never reset: a worker that checked too early finds the token of `unpark`.
        self.shared.is_ending.store(true, Ordering::SeqCst);
        for worker in &self.workers {
            worker.thread().unpark();
        }
        for worker in self.workers.drain(..) {
            // A task's panic went to its caller; a worker has nothing to report.
            drop(worker.join());
        }
    }
}

/// The right to run a section.
struct BusyGuard<'a>(&'a AtomicBool);

impl<'a> BusyGuard<'a> {
    /// `Acquire` and `Release`: the effects of the last section are visible to the next, on any
    /// thread.
    fn new(is_busy: &'a AtomicBool) -> Self {
        let was_busy = is_busy.swap(true, Ordering::Acquire);
        assert!(!was_busy, "a pool runs one section at a time, and none inside another");
        Self(is_busy)
    }
}

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// State shared by the pool's owner and the workers.
#[derive(Debug)]
struct PoolState {
    section: Section,
    spin: Spin,
    /// Parked workers: each worker increments this itself; the thread that clears
    /// `ParkState::is_parked` decrements it.
    n_parked: CachePadded<AtomicUsize>,
    park_states: Box<[CachePadded<ParkState>]>,
    is_ending: AtomicBool,
}

/// Parking state of a worker.
#[derive(Debug, Default)]
struct ParkState {
    /// Whether the worker is parked, or about to be.
    is_parked: AtomicBool,
    /// Set before `is_parked` is set for the first time.
    thread: OnceLock<Thread>,
}

impl PoolState {
    /// The main loop of a worker.
    fn serve(&self, thread_idx: usize) {
        let park_state = &self.park_states[thread_idx - 1].0;
        park_state.thread.get_or_init(current);
        // `Relaxed`: no other read depends on it.
        while !self.is_ending.load(Ordering::Relaxed) {
            if !self.spin.until(|| self.section.has_work()) {
                self.park(park_state);
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
    fn park(&self, park_state: &ParkState) {
        // First increment the count, then check for work: `Section::run` does these in the opposite
        // order.
        self.n_parked.0.fetch_add(1, Ordering::SeqCst);
        park_state.is_parked.store(true, Ordering::SeqCst);
        while !self.section.has_work() && !self.is_ending.load(Ordering::SeqCst) {
            if !park_state.is_parked.load(Ordering::SeqCst) {
                return;
            }
            park();
        }
        self.mark_awake(park_state);
    }

    /// Wakes a parked worker, if there is one. Only one thread wakes each worker.
    fn wake_one(&self) {
        for CachePadded(park_state) in &self.park_states {
            // Check before swapping: a load leaves the cache line shared.
            if park_state.is_parked.load(Ordering::SeqCst) && self.mark_awake(park_state) {
                if let Some(thread) = park_state.thread.get() {
                    thread.unpark();
                }
                return;
            }
        }
    }

    /// Marks a worker as not parked. Returns whether it was marked as parked.
    fn mark_awake(&self, park_state: &ParkState) -> bool {
        let was_parked = park_state.is_parked.swap(false, Ordering::SeqCst);
        if was_parked {
            self.n_parked.0.fetch_sub(1, Ordering::SeqCst);
        }
        was_parked
    }
}
