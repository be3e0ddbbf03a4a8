//! The number of slots that there should be: what the owner wants, less what is lent and what other
//! processes need.

use std::time::Duration;

use moeflux_io::MemoryWatch;

use crate::experts::stream::slots::pressure::Pressure;

/// Decides the number of slots. Its caller allocates and frees them.
#[derive(Debug)]
pub(in crate::experts::stream) struct SlotTarget {
    /// Number of slots wanted, including those lent.
    n_owned: usize,
    n_lent: usize,
    pressure: Pressure,
    watch: MemoryWatch,
}

impl SlotTarget {
    /// Creates the target of `n_slots`, of which at least `n_slots_least` stay.
    pub(in crate::experts::stream) fn new(n_slots_least: usize, n_slots: usize) -> Self {
        let pressure = Pressure::new(n_slots_least, n_slots);
        Self { n_owned: n_slots, n_lent: 0, pressure, watch: MemoryWatch::open() }
    }

    /// Sets the number wanted. Returns the number that there should be.
    pub(in crate::experts::stream) fn own(&mut self, n_slots: usize) -> usize {
        self.n_owned = n_slots;
        let least = self.pressure.n_slots_least().min(n_slots);
        let n_slots = n_slots.saturating_sub(self.n_lent).max(least);
        self.pressure.set_most(n_slots);
        n_slots
    }

    /// Lends `n_lent` slots in all, where there are `n_slots` beside those lent so far. Returns the
    /// number that there should be; `None` if too few would remain.
    pub(in crate::experts::stream) fn lend(
        &mut self,
        n_lent: usize,
        n_slots: usize,
    ) -> Option<usize> {
        let n_slots = (n_slots + self.n_lent).min(self.n_owned);
        if n_lent > 0 && n_slots < n_lent + self.pressure.n_slots_least() {
            return None;
        }
        self.n_lent = n_lent;
        self.pressure.set_most(self.n_owned.saturating_sub(n_lent));
        Some(n_slots - n_lent)
    }

    /// Keeps at least `n_slots`, however short memory is.
    pub(in crate::experts::stream) fn reserve(&mut self, n_slots: usize) {
        self.pressure.set_least(n_slots);
    }

    /// Returns the number that there should be instead of `n_slots`, as memory is short or not;
    /// `None` until the next reading is due.
    pub(in crate::experts::stream) fn follow_pressure(
        &mut self,
        n_slots: usize,
        now: Duration,
    ) -> Option<usize> {
        let is_due = self.pressure.is_due(now);
        is_due.then(|| self.pressure.decide(n_slots, self.watch.sample(), now))
    }
}
