//! Doubly linked lists of slots, without an allocation per change.
//!
//! **Invariant:** a slot is in at most one of the lists that share a [`Links`].

use moeflux_io::SlotIdx;

const NONE: usize = usize::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    older: usize,
    newer: usize,
}

/// Who stands beside whom, for all lists over the same slots.
#[derive(Debug, Default)]
pub(super) struct Links(Vec<Link>);

/// One list, from old to new.
#[derive(Debug)]
pub(super) struct List {
    oldest: usize,
    newest: usize,
}

impl Links {
    /// Slots that may be in a list.
    pub(super) fn resize(&mut self, n_slots: usize) {
        self.0.resize(n_slots, Link { older: NONE, newer: NONE });
    }
}

impl List {
    /// Without slots.
    pub(super) const fn new() -> Self {
        Self { oldest: NONE, newest: NONE }
    }

    /// Puts a slot that is in no list at the new end.
    pub(super) fn push(&mut self, links: &mut Links, slot: SlotIdx) {
        links.0[slot.0] = Link { older: self.newest, newer: NONE };
        match self.newest {
            NONE => self.oldest = slot.0,
            newest => links.0[newest].newer = slot.0,
        }
        self.newest = slot.0;
    }

    /// Takes a slot of this list out.
    pub(super) fn remove(&mut self, links: &mut Links, slot: SlotIdx) {
        let Link { older, newer } = links.0[slot.0];
        match older {
            NONE => self.oldest = newer,
            older => links.0[older].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => links.0[newer].older = older,
        }
    }

    /// The slot that has been here longest.
    pub(super) fn oldest(&self) -> Option<SlotIdx> {
        (self.oldest != NONE).then_some(SlotIdx(self.oldest))
    }

    /// The slot that came after `slot`.
    pub(super) fn newer(&self, links: &Links, slot: SlotIdx) -> Option<SlotIdx> {
        let newer = links.0[slot.0].newer;
        (newer != NONE).then_some(SlotIdx(newer))
    }
}
