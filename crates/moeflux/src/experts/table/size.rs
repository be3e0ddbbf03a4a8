//! More slots and fewer, while work goes on.
//!
//! **Invariant:** a slot that is given up keeps its expert until nobody uses it; from then on it is
//! not used again before the table grows.

use moeflux_io::SlotIdx;

use super::{Slot, SlotTable, State};
use crate::experts::policy::KeyIdx;

impl SlotTable {
    /// Slots that may be used.
    #[must_use]
    pub(crate) fn n_slots(&self) -> usize {
        self.n_open
    }

    /// Slots that were given up and are still in use: their memory must stay.
    #[must_use]
    pub(crate) fn n_closing(&self) -> usize {
        self.n_closing
    }

    /// From now on there are `n_slots`, the new ones free. Slots being given up are used again.
    ///
    /// # Panics
    ///
    /// If these are fewer than before.
    pub(crate) fn grow(&mut self, n_slots: usize) {
        assert!(n_slots >= self.n_open, "{n_slots} slots are fewer than {}", self.n_open);
        if n_slots > self.slots.len() {
            let key = KeyIdx(0);
            let free = Slot { state: State::Free, n_leases: 0, key, guess_round: 0 };
            self.slots.resize(n_slots, free);
            self.links.resize(n_slots);
            self.free.reserve(n_slots - self.free.len());
            self.passed.reserve(n_slots);
        }
        if n_slots > self.n_policy_slots {
            self.policy.resize(n_slots);
            self.n_policy_slots = n_slots;
        }
        // Popped from the end: the lowest first.
        for slot_idx in (self.n_open..n_slots).rev() {
            if self.slots[slot_idx].state == State::Free {
                self.free.push(SlotIdx(slot_idx));
            } else {
                self.n_closing -= 1;
            }
        }
        self.n_open = n_slots;
        self.settle();
    }

    /// From now on only the first `n_slots` are used. What is idle in the others leaves at once,
    /// what is leased or on its way later: [`SlotTable::n_closing`] says how many are left.
    ///
    /// # Panics
    ///
    /// If none would be left, or these are more than before.
    pub(crate) fn shrink(&mut self, n_slots: usize) {
        assert!(n_slots > 0, "an expert is computed from a slot");
        assert!(n_slots <= self.n_open, "{n_slots} slots are more than {}", self.n_open);
        self.free.retain(|slot| slot.0 < n_slots);
        let closed = n_slots..self.n_open;
        self.n_open = n_slots;
        // All are counted before the first is emptied: when none is left the policy is told.
        let is_full = |&slot_idx: &usize| self.slots[slot_idx].state != State::Free;
        self.n_closing += closed.clone().filter(is_full).count();
        closed.for_each(|slot_idx| self.close(SlotIdx(slot_idx)));
        self.settle();
    }

    /// Empties a slot that is given up, if it is idle.
    pub(super) fn close(&mut self, slot: SlotIdx) {
        let Slot { state, n_leases, .. } = self.slots[slot.0];
        if slot.0 >= self.n_open && n_leases == 0 && matches!(state, State::Ready(_)) {
            self.evict(slot);
            self.closed();
        }
    }

    /// One slot less is being given up.
    pub(super) fn closed(&mut self) {
        self.n_closing -= 1;
        self.settle();
    }

    /// The policy hears of fewer slots when the last of the others is empty.
    fn settle(&mut self) {
        if self.n_closing == 0 && self.n_policy_slots > self.n_open {
            self.policy.resize(self.n_open);
            self.n_policy_slots = self.n_open;
        }
    }
}
