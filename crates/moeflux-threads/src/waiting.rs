//! Waits for an imminent action of another thread: a short, bounded spin.
//!
//! **Invariant:** it ends after [`SPIN`], whatever the other thread does; the caller decides what
//! follows.

use std::hint::spin_loop;
use std::thread::yield_now;
use std::time::{Duration, Instant};

/// How long a thread spins before it parks. Parking and waking cost 10 microseconds or more on an
/// idle core; the gap between the sections of a step is rarely that long.
const SPIN: Duration = Duration::from_micros(50);

/// Checks between two readings of the clock.
const CHECKS_PER_CLOCK_READ: usize = 32;

/// A value alone on its cache lines. Aligned to 128 bytes, because `x86_64` fetches lines in pairs,
/// and lines of some `aarch64` processors have this length.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);

/// How to spin.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spin {
    /// There is a core for each thread: check as often as possible.
    Alone,
    /// There are fewer cores than threads: yield after each check, because the work may be on a
    /// waiting thread.
    Crowded,
}

impl Spin {
    /// Spins until `is_ready` returns true, for a limited time. Returns whether it did.
    #[expect(clippy::disallowed_methods, reason = "bounds a wait; no result depends on it")]
    pub(crate) fn until(self, is_ready: impl Fn() -> bool) -> bool {
        let mut start = None;
        loop {
            for _ in 0..CHECKS_PER_CLOCK_READ {
                if is_ready() {
                    return true;
                }
                match self {
                    Self::Alone => spin_loop(),
                    Self::Crowded => yield_now(),
                }
            }
            let now = Instant::now();
            if now - *start.get_or_insert(now) > SPIN {
                return false;
            }
            // If other programs occupy the other cores, the thread with the work may be queued
            // behind this one. Without yielding, next to two compilers, waking a worker for an
            // empty section took the caller 56 microseconds instead of 5 to 10.
            yield_now();
        }
    }
}
