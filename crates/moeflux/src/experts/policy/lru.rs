//! The expert that was used longest ago leaves.
//!
//! The simplest rule, here as a measure: a model walks its layers in a circle, and a pool smaller
//! than the circle never holds what comes next (hit rate 0 where one token needs more than there
//! are slots).

use moeflux_io::SlotIdx;

use super::{KeyIdx, Links, List, Policy, PolicyShape};

/// Least recently used. Held slots are in no list.
#[derive(Debug)]
pub(super) struct Lru {
    links: Links,
    idle: List,
    is_idle: Vec<bool>,
}

impl Lru {
    pub(super) fn new(shape: PolicyShape) -> Self {
        let mut lru = Self { links: Links::default(), idle: List::new(), is_idle: Vec::new() };
        lru.resize(shape.n_slots);
        lru
    }
}

impl Policy for Lru {
    fn begin_step(&mut self, _n_rows: usize) {}

    fn admit(&mut self, _slot: SlotIdx, _key: KeyIdx, _n_uses: u32) {}

    fn hit(&mut self, _slot: SlotIdx, _n_uses: u32) {}

    fn hold(&mut self, slot: SlotIdx) {
        self.idle.remove(&mut self.links, slot);
        self.is_idle[slot.0] = false;
    }

    fn let_go(&mut self, slot: SlotIdx) {
        self.idle.push(&mut self.links, slot);
        self.is_idle[slot.0] = true;
    }

    fn victim(&mut self) -> Option<SlotIdx> {
        self.idle.oldest()
    }

    fn remove(&mut self, slot: SlotIdx) {
        if self.is_idle[slot.0] {
            self.hold(slot);
        }
    }

    fn resize(&mut self, n_slots: usize) {
        self.links.resize(n_slots);
        self.is_idle.resize(n_slots, false);
    }
}
