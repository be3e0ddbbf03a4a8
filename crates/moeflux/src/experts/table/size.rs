//! Grows and shrinks the table while work goes on.
//!
//! **Invariant:** a slot that is given up keeps its expert until it is unused; from then on it is
//! not used again before the table grows.

use moeflux_io::SlotIdx;

use super::{FillState, SlotTable, TableSlot};
use crate::experts::policy::KeyIdx;

impl SlotTable {
    /// Returns the number of slots that may be used.
    #[must_use]
    pub(crate) fn n_slots(&self) -> usize {
        self.n_open
    }

    /// Returns the number of slots that were given up and are still in use: their memory must stay.
    #[must_use]
    pub(crate) fn n_closing(&self) -> usize {
        self.n_closing
    }

    /// Grows the table to `n_slots`; new slots are free. Slots being given up are used again.
    ///
    /// # Panics
    ///
    /// If `n_slots` is below the current number.
    pub(crate) fn grow(&mut self, n_slots: usize) {
        assert!(n_slots >= self.n_open, "{n_slots} slots are fewer than {}", self.n_open);
        if n_slots > self.slots.len() {
            let key = KeyIdx(0);
            let free = TableSlot { state: FillState::Free, n_leases: 0, key, guess_round: 0 };
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
            if self.slots[slot_idx].state == FillState::Free {
                self.free.push(SlotIdx(slot_idx));
            } else {
                self.n_closing -= 1;
            }
        }
        self.n_open = n_slots;
        self.settle();
    }

    /// Restricts the table to the first `n_slots`. Idle experts in the other slots are evicted at
    /// once, those leased or on their way later: [`SlotTable::n_closing`] tells how many slots
    /// remain.
    ///
    /// # Panics
    ///
    /// If `n_slots` is 0 or above the current number.
    pub(crate) fn shrink(&mut self, n_slots: usize) {
        assert!(n_slots > 0, "an expert is computed from a slot");
        assert!(n_slots <= self.n_open, "{n_slots} slots are more than {}", self.n_open);
        self.free.retain(|slot| slot.0 < n_slots);
        let closed = n_slots..self.n_open;
        self.n_open = n_slots;
        // All are counted before the first is emptied: the policy is resized when the count reaches
        // zero.
        let is_full = |&slot_idx: &usize| self.slots[slot_idx].state != FillState::Free;
        self.n_closing += closed.clone().filter(is_full).count();
        closed.for_each(|slot_idx| self.close(SlotIdx(slot_idx)));
        self.settle();
    }

    /// Empties a slot that is given up, if it is idle.
    pub(super) fn close(&mut self, slot: SlotIdx) {
        let TableSlot { state, n_leases, .. } = self.slots[slot.0];
        if slot.0 >= self.n_open && n_leases == 0 && matches!(state, FillState::Ready(_)) {
            self.evict(slot);
            self.closed();
        }
    }

    /// Counts one closing slot less.
    pub(super) fn closed(&mut self) {
        self.n_closing -= 1;
        self.settle();
    }

    /// Resizes the policy once the last closing slot is empty.
    fn settle(&mut self) {
        if self.n_closing == 0 && self.n_policy_slots > self.n_open {
            self.policy.resize(self.n_open);
            self.n_policy_slots = self.n_open;
        }
    }
}
