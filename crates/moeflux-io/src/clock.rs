//! Clocks as parameters: the machine's clock, and one that moves only on request.
//!
//! **Invariant:** a clock never goes back. Its zero is the moment of its creation.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A source of time.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Returns the time since the clock's zero.
    fn now(&self) -> Duration;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug)]
pub struct RealClock {
    zero: Instant,
}

impl RealClock {
    /// Creates a clock that starts now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the clock that others are given")]
    pub fn new() -> Self {
        Self { zero: Instant::now() }
    }
}

impl Default for RealClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for RealClock {
    fn now(&self) -> Duration {
        self.zero.elapsed()
    }
}

/// A clock for simulations. Clones share the same time, which [`VirtualClock::advance_to`] sets.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock {
    now_ns: Arc<AtomicU64>,
}

impl VirtualClock {
    /// Advances to `time`; an earlier time changes nothing.
    pub fn advance_to(&self, time: Duration) {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.now_ns.fetch_max(time_ns, Ordering::Relaxed);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_clock_moves_on_and_never_back() {
        let clock = VirtualClock::default();
        let same = clock.clone();
        clock.advance_to(Duration::from_millis(5));
        clock.advance_to(Duration::from_millis(3));
        assert_eq!(same.now(), Duration::from_millis(5));
    }

    #[test]
    fn the_machines_clock_never_goes_back() {
        let clock = RealClock::new();
        let earlier = clock.now();
        assert!(clock.now() >= earlier);
    }
}
