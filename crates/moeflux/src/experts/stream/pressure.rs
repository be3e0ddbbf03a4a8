//! How many slots there should be while others want memory too.
//!
//! **Invariant:** pure: times and looks come in as arguments. Slots are given up at once when
//! memory is short and come back one step at a time when it has not been for a while; there are
//! never fewer than the least, nor more than there were to begin with.

use std::time::Duration;

use moeflux_io::MemoryLook;

/// Memory is looked at so often.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Less than this, and the system begins to take memory from everybody.
const AVAILABLE_BYTES_LOW: u64 = 192 << 20;

/// With so much slots may come back.
const AVAILABLE_BYTES_HIGH: u64 = 2 * AVAILABLE_BYTES_LOW;

/// Somebody waits for memory for so many hundredths of a percent of the time.
const STALLED_E4_HIGH: u32 = 1000;
const STALLED_E4_LOW: u32 = 100;

/// Memory has to be plentiful for so long before slots come back.
const CALM: Duration = Duration::from_secs(5);

/// One step is one part of so many of the slots.
const STEP_SHARE: usize = 8;

/// Decides on the number of slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pressure {
    n_slots_most: usize,
    n_slots_least: usize,
    looked_at: Duration,
    short_at: Duration,
}

impl Pressure {
    /// Between so many slots.
    pub(super) fn new(n_slots_least: usize, n_slots_most: usize) -> Self {
        let n_slots_least = n_slots_least.min(n_slots_most);
        let (looked_at, short_at) = (Duration::ZERO, Duration::ZERO);
        Self { n_slots_most, n_slots_least, looked_at, short_at }
    }

    /// There should be no more than so many from now on.
    pub(super) fn set_most(&mut self, n_slots: usize) {
        self.n_slots_most = n_slots;
        self.n_slots_least = self.n_slots_least.min(n_slots);
    }

    /// There are never fewer than so many from now on, if there are so many.
    pub(super) fn set_least(&mut self, n_slots: usize) {
        self.n_slots_least = self.n_slots_least.max(n_slots).min(self.n_slots_most);
    }

    /// There are never fewer.
    pub(super) fn n_slots_least(&self) -> usize {
        self.n_slots_least
    }

    /// Whether it is time to look.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        now.saturating_sub(self.looked_at) >= LOOK_EVERY
    }

    /// The slots that there should be, of `n_slots` now.
    pub(super) fn decide(&mut self, n_slots: usize, look: MemoryLook, now: Duration) -> usize {
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

    fn look(available_mib: u64, stalled_e4: u32) -> MemoryLook {
        let available_bytes = Some(available_mib << 20);
        MemoryLook { available_bytes, stalled_e4: Some(stalled_e4) }
    }

    #[test]
    fn slots_go_at_once_and_come_back_after_a_calm() {
        let seconds = Duration::from_secs;
        let mut pressure = Pressure::new(10, 80);
        assert_eq!(pressure.decide(80, look(1000, 0), seconds(1)), 80);
        assert_eq!(pressure.decide(80, look(100, 0), seconds(2)), 70);
        assert_eq!(pressure.decide(70, look(1000, 1000), seconds(3)), 60);
        // Neither short nor plentiful: nothing moves, and the calm begins anew.
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
    fn a_system_that_says_nothing_is_calm() {
        let mut pressure = Pressure::new(1, 8);
        assert_eq!(pressure.decide(4, MemoryLook::default(), Duration::from_secs(6)), 5);
    }
}
