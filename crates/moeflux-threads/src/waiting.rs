//! Waiting for something that another thread is about to do: a short, bounded spin.
//!
//! **Invariant:** it ends after [`SPIN`], whatever the other thread does; what comes then is up to
//! the caller.

use std::hint::spin_loop;
use std::thread::yield_now;
use std::time::{Duration, Instant};

/// How long a thread spins before it parks. Parking and waking cost some 10 microseconds and
/// more on an idle core; between the sections of a step there is rarely as much.
const SPIN: Duration = Duration::from_micros(50);

/// Looks between two readings of the clock.
const LOOKS_PER_READING: usize = 32;

/// A value alone on its cache lines: 128 bytes, since lines are fetched in pairs on `x86_64`, and
/// are as long as that on some `aarch64`.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// How to spin.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spin {
    /// A core per thread: look as often as possible.
    Alone,
    /// Fewer cores than threads: after each look let others run, one of them has the work.
    Crowded,
}

impl Spin {
    /// Spins until `is_ready`, or until it has been long; whether it is ready.
    #[expect(clippy::disallowed_methods, reason = "bounds a wait; no result depends on it")]
    pub(crate) fn until(self, is_ready: impl Fn() -> bool) -> bool {
        let mut start = None;
        loop {
            for _ in 0..LOOKS_PER_READING {
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
            // Where other programs have the other cores, the thread that has the work may be
            // queued behind this one: without yielding, waking a worker for an empty section took
            // the caller 56 microseconds instead of 5 to 10 beside two compilers.
            yield_now();
        }
    }
}
