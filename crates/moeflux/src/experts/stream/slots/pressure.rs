//! Chooses the number of slots while other processes also need memory.
//!
//! **Invariant:** pure: times and memory readings are arguments. Slots are given up at once when
//! memory is short, and come back one step at a time after it has been plentiful for a while; their
//! number stays between the minimum and the initial maximum.

use std::time::Duration;

use moeflux_io::MemoryPressure;

/// Interval between memory readings.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Available memory below which the system begins to reclaim memory from all processes.
const AVAILABLE_BYTES_LOW: u64 = 192 << 20;

/// Available memory from which slots may come back.
const AVAILABLE_BYTES_HIGH: u64 = 2 * AVAILABLE_BYTES_LOW;

/// Shares of time in which some task waits for memory, in hundredths of a percent. From the first
/// on, memory is short; below the second, it is plentiful.
const STALLED_E4_HIGH: u32 = 1000;
const STALLED_E4_LOW: u32 = 100;

/// Time for which memory must be plentiful before slots come back.
const CALM: Duration = Duration::from_secs(5);

/// A step is one part in this many of the maximum number of slots.
const STEP_SHARE: usize = 8;

/// Decides the number of slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pressure {
    n_slots_most: usize,
    n_slots_least: usize,
    looked_at: Duration,
    short_at: Duration,
}

impl Pressure {
    /// Creates a controller for this range of slots.
    pub(super) fn new(n_slots_least: usize, n_slots_most: usize) -> Self {
        let n_slots_least = n_slots_least.min(n_slots_most);
        let (looked_at, short_at) = (Duration::ZERO, Duration::ZERO);
        Self { n_slots_most, n_slots_least, looked_at, short_at }
    }

    /// Sets the maximum, and lowers the minimum to it if needed.
    pub(super) fn set_most(&mut self, n_slots: usize) {
        self.n_slots_most = n_slots;
        self.n_slots_least = self.n_slots_least.min(n_slots);
    }

    /// Raises the minimum to `n_slots`, but not above the maximum.
    pub(super) fn set_least(&mut self, n_slots: usize) {
        self.n_slots_least = self.n_slots_least.max(n_slots).min(self.n_slots_most);
    }

    /// Returns the minimum.
    pub(super) fn n_slots_least(&self) -> usize {
        self.n_slots_least
    }

    /// Returns whether the next memory reading is due.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        now.saturating_sub(self.looked_at) >= LOOK_EVERY
    }

    /// Returns the number of slots that there should be, given `n_slots` now.
    pub(super) fn decide(&mut self, n_slots: usize, look: MemoryPressure, now: Duration) -> usize {
        self.looked_at = now;
        let step = (self.n_slots_most / STEP_SHARE).max(1);
        let is_short = look.available_bytes.is_some_and(|it| it < AVAILABLE_BYTES_LOW)
            || look.stalled_e4.is_some_and(|it| it >= STALLED_E4_HIGH);
        if is_short {
            self.short_at = now;
            return n_slots.saturating_sub(step).max(self.n_slots_least);
        }
        let is_calm = look.available_bytes.is_none_or(|it| it >= AVAILABLE_BYTES_HIGH)
            && look.stalled_e4.is_none_or(|it| it < STALLED_E4_LOW);
        if !is_calm {
            self.short_at = now;
        }
        if n_slots >= self.n_slots_most || now.saturating_sub(self.short_at) < CALM {
            return n_slots;
        }
        self.short_at = now;
        (n_slots + step).min(self.n_slots_most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(available_mib: u64, stalled_e4: u32) -> MemoryPressure {
        let available_bytes = Some(available_mib << 20);
        MemoryPressure { available_bytes, stalled_e4: Some(stalled_e4) }
    }

    #[test]
    fn slots_go_at_once_and_come_back_after_a_calm() {
        let seconds = Duration::from_secs;
        let mut pressure = Pressure::new(10, 80);
        assert_eq!(pressure.decide(80, look(1000, 0), seconds(1)), 80);
        assert_eq!(pressure.decide(80, look(100, 0), seconds(2)), 70);
        assert_eq!(pressure.decide(70, look(1000, 1000), seconds(3)), 60);
        // Neither short nor plentiful: nothing changes, and the calm period restarts.
        assert_eq!(pressure.decide(60, look(300, 0), seconds(7)), 60);
        assert_eq!(pressure.decide(60, look(1000, 0), seconds(11)), 60);
        assert_eq!(pressure.decide(60, look(1000, 0), seconds(12)), 70);
        assert_eq!(pressure.decide(70, look(1000, 0), seconds(13)), 70);
        assert_eq!(pressure.decide(70, look(1000, 0), seconds(17)), 80);
        assert_eq!(pressure.decide(80, look(9000, 0), seconds(60)), 80);
    }

    #[test]
    fn the_least_stays_whatever_happens() {
        let mut pressure = Pressure::new(10, 80);
        let mut n_slots = 80;
        for second in 1..30 {
            n_slots = pressure.decide(n_slots, look(0, 10_000), Duration::from_secs(second));
        }
        assert_eq!(n_slots, 10);
        assert_eq!(Pressure::new(10, 3).decide(3, look(0, 0), Duration::from_secs(1)), 3);
    }

    #[test]
    fn a_system_without_figures_counts_as_calm() {
        let mut pressure = Pressure::new(1, 8);
        assert_eq!(pressure.decide(4, MemoryPressure::default(), Duration::from_secs(6)), 5);
    }
}
