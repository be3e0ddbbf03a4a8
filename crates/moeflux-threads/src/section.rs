//! A parallel section: tasks that any thread may claim, and the number of unfinished ones.
//!
//! **Invariant:** while a thread holds a claimed task that it has not reported, `unfinished` is
//! above 0, the section's caller waits, and the closure and everything it borrows stay valid. A
//! late worker finds nothing to claim and accesses nothing. So the caller waits only for threads
//! that hold tasks, never for a thread that has not begun.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::waiting::{CachePadded, Spin};

/// A section's closure with its type erased.
#[derive(Clone, Copy, Debug)]
struct ErasedClosure {
    data: *const (),
    call: unsafe fn(*const (), usize, usize),
    n_tasks: usize,
}

/// Calls the closure that `data` points to.
///
/// # Safety
///
/// `data` points to an `F` that lives until the call returns.
unsafe fn call<F: Fn(usize, usize) + Sync>(data: *const (), thread_idx: usize, task_idx: usize) {
    // SAFETY: the caller promises a living `F`; it is only shared, and `F` is `Sync`.
    let f = unsafe { &*data.cast::<F>() };
    f(thread_idx, task_idx);
}

/// Written by the caller between sections, read by threads that hold a task.
#[derive(Debug)]
struct ClosureCell(UnsafeCell<ErasedClosure>);

// SAFETY: the target of `data` is `Sync` (`Section::run` requires it), so any thread may use it.
unsafe impl Send for ClosureCell {}

// SAFETY: `Section` orders every read after the write before it and before the next write.
unsafe impl Sync for ClosureCell {}

/// The state shared by the caller and the workers; reused for one section after another.
#[derive(Debug)]
pub(crate) struct Section {
    /// Unclaimed tasks. Only the caller increases this.
    unclaimed: CachePadded<AtomicUsize>,
    /// Tasks not yet reported as done.
    unfinished: CachePadded<AtomicUsize>,
    closure: ClosureCell,
    has_panicked: AtomicBool,
    payloads: Mutex<Vec<Box<dyn Any + Send>>>,
    /// Whether the caller is parked, or about to be.
    caller_waits: AtomicBool,
    caller_gate: Mutex<()>,
    finished: Condvar,
}

impl Section {
    pub(crate) fn new() -> Self {
        Self {
            unclaimed: CachePadded(AtomicUsize::new(0)),
            unfinished: CachePadded(AtomicUsize::new(0)),
            closure: ClosureCell(UnsafeCell::new(ErasedClosure {
                data: ptr::null(),
                call: call::<fn(usize, usize)>,
                n_tasks: 0,
            })),
            has_panicked: AtomicBool::new(false),
            payloads: Mutex::default(),
            caller_waits: AtomicBool::new(false),
            caller_gate: Mutex::default(),
            finished: Condvar::new(),
        }
    }

    /// Returns whether there are tasks to claim.
    ///
    /// `SeqCst` for a worker about to park: see [`Section::run`].
    pub(crate) fn has_work(&self) -> bool {
        self.unclaimed.0.load(Ordering::SeqCst) != 0
    }

    /// Returns whether another thread could take a task besides the calling one. A hint, so
    /// `Relaxed`.
    pub(crate) fn has_more_work(&self) -> bool {
        self.unclaimed.0.load(Ordering::Relaxed) > 1
    }

    /// Runs a section as its only caller. Calls `wake` once the tasks can be claimed.
    ///
    /// # Panics
    ///
    /// With the panic of a task, after all tasks have stopped.
    pub(crate) fn run<F: Fn(usize, usize) + Sync>(
        &self,
        n_tasks: usize,
        f: &F,
        spin: Spin,
        wake: impl FnOnce(),
    ) {
        let closure = ErasedClosure { data: ptr::from_ref(f).cast(), call: call::<F>, n_tasks };
        // SAFETY: no thread reads this: a reader holds a task, so the previous section would not be
        // over. The `Release` of its readers in `report` synchronised with `Acquire` in `finish`,
        // and the pool's `Acquire` when the pool was claimed made that visible to this thread.
        unsafe { *self.closure.0.get() = closure };
        // Visible to claiming threads through the next store.
        self.unfinished.0.store(n_tasks, Ordering::Relaxed);
        // `Release`, for claiming threads: makes `closure` and `unfinished` visible to them.
        // `SeqCst`, for parking threads: a worker counts itself as parked and then loads
        // `unclaimed`; `wake` loads that count after this store. In the single order of these four
        // operations, one of the two sees the other.
        self.unclaimed.0.store(n_tasks, Ordering::SeqCst);
        wake();
        let n_taken = self.work(0);
        self.finish(n_taken, spin);
        // `Relaxed`: the store precedes its thread's report, which `finish` has acquired.
        if self.has_panicked.load(Ordering::Relaxed) {
            self.has_panicked.store(false, Ordering::Relaxed);
            let mut payloads = std::mem::take(&mut *lock(&self.payloads));
            resume_unwind(payloads.swap_remove(0));
        }
    }

    /// Runs tasks until none can be claimed. Returns how many to report.
    pub(crate) fn work(&self, thread_idx: usize) -> usize {
        let Some(mut n_left) = self.claim() else { return 0 };
        // SAFETY: this thread holds a task, so no thread writes; its claim acquired the last write.
        let closure = unsafe { *self.closure.0.get() };
        let mut n_taken = 0;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                n_taken += 1;
                // SAFETY: `data` is the `F` that `call` was created for, and `run` has not
                // returned: this thread has not reported its tasks.
                unsafe { (closure.call)(closure.data, thread_idx, closure.n_tasks - n_left) };
                // The tasks held keep the section open, so the next task is of the same section.
                let Some(n) = self.claim() else { return };
                n_left = n;
            }
        }));
        if let Err(payload) = outcome {
            lock(&self.payloads).push(payload);
            self.has_panicked.store(true, Ordering::Relaxed);
            // Unclaimed tasks are skipped. `Relaxed`: this gives access to nothing.
            n_taken += self.unclaimed.0.swap(0, Ordering::Relaxed);
        }
        n_taken
    }

    /// Claims a task. Returns how many were unclaimed, including this one.
    ///
    /// `Acquire` synchronises with the store in `run`, also through other claims: they are
    /// read-modify-writes and so continue its release sequence. A value left from an earlier
    /// section is harmless: if it happens to be equal, the claim is valid.
    fn claim(&self) -> Option<usize> {
        let mut n_left = self.unclaimed.0.load(Ordering::Relaxed);
        while n_left != 0 {
            let claimed = self.unclaimed.0.compare_exchange_weak(
                n_left,
                n_left - 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            match claimed {
                Ok(_) => return Some(n_left),
                Err(now) => n_left = now,
            }
        }
        None
    }

    /// Reports a worker's tasks as done. The closure must not be accessed afterwards.
    pub(crate) fn report(&self, n_tasks: usize) {
        // `Release`, for the caller: what the tasks wrote. `SeqCst`, with the load after it and the
        // pair in `finish`: either this thread sees that the caller waits, or the caller sees 0.
        let n_before = self.unfinished.0.fetch_sub(n_tasks, Ordering::SeqCst);
        if n_before == n_tasks && self.caller_waits.load(Ordering::SeqCst) {
            // The caller holds the gate from its check of `unfinished` until it is parked.
            drop(lock(&self.caller_gate));
            self.finished.notify_one();
        }
    }

    /// Reports the caller's tasks and waits for those of the others.
    fn finish(&self, n_taken: usize, spin: Spin) {
        // `Acquire` here and below: what the other threads' tasks wrote, through their reports.
        if self.unfinished.0.fetch_sub(n_taken, Ordering::Acquire) == n_taken {
            return;
        }
        if spin.until(|| self.unfinished.0.load(Ordering::Acquire) == 0) {
            return;
        }
        let mut gate = lock(&self.caller_gate);
        self.caller_waits.store(true, Ordering::SeqCst);
        while self.unfinished.0.load(Ordering::SeqCst) != 0 {
            gate = self.finished.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        // A report that still sees `true` notifies no thread, or a later wait, which then checks
        // again.
        self.caller_waits.store(false, Ordering::Relaxed);
    }
}

/// Locks a mutex whose holders leave nothing half done, even after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
