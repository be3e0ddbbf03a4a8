//! A hand goes round the slots: who was used since it last passed stays for another round.
//!
//! Corbato's second chance: LRU's memory of one bit. It costs less and forgets sooner; in a pool
//! smaller than the circle of layers it is a little better than LRU, because it does not keep the
//! order that fails there.

use moeflux_io::SlotIdx;

use super::{KeyIdx, Policy, PolicyShape};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Outside,
    Held,
    Idle,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    place: Place,
    was_used: bool,
}

/// Second chance.
#[derive(Debug)]
pub(super) struct Clock {
    entries: Vec<Entry>,
    hand: usize,
    n_idle: usize,
}

impl Clock {
    pub(super) fn new(shape: PolicyShape) -> Self {
        let mut clock = Self { entries: Vec::new(), hand: 0, n_idle: 0 };
        clock.resize(shape.n_slots);
        clock
    }
}

impl Policy for Clock {
    fn begin_step(&mut self, _n_rows: usize) {}

    fn admit(&mut self, slot: SlotIdx, _key: KeyIdx, _n_uses: u32) {
        self.entries[slot.0] = Entry { place: Place::Held, was_used: false };
    }

    fn hit(&mut self, slot: SlotIdx, _n_uses: u32) {
        self.entries[slot.0].was_used = true;
    }

    fn hold(&mut self, slot: SlotIdx) {
        self.entries[slot.0].place = Place::Held;
        self.n_idle -= 1;
    }

    fn let_go(&mut self, slot: SlotIdx) {
        self.entries[slot.0].place = Place::Idle;
        self.n_idle += 1;
    }

    fn victim(&mut self) -> Option<SlotIdx> {
        if self.n_idle == 0 {
            return None;
        }
        // One round may take all second chances, the next finds the victim.
        loop {
            let slot = SlotIdx(self.hand);
            let entry = &mut self.entries[self.hand];
            if entry.place == Place::Idle && !entry.was_used {
                return Some(slot);
            }
            if entry.place == Place::Idle {
                entry.was_used = false;
            }
            self.hand = (self.hand + 1) % self.entries.len();
        }
    }

    fn remove(&mut self, slot: SlotIdx) {
        let entry = &mut self.entries[slot.0];
        self.n_idle -= usize::from(entry.place == Place::Idle);
        entry.place = Place::Outside;
        // A new expert in its place is not looked at before all others.
        if self.hand == slot.0 {
            self.hand = (self.hand + 1) % self.entries.len();
        }
    }

    fn resize(&mut self, n_slots: usize) {
        self.entries.resize(n_slots, Entry { place: Place::Outside, was_used: false });
        self.hand %= n_slots.max(1);
    }
}
