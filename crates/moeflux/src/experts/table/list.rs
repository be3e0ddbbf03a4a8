//! Doubly linked lists of slots, without an allocation per change.
//!
//! **Invariant:** a slot is in at most one of the lists that share a [`SlotLinks`].

use moeflux_io::SlotIdx;

const NONE: usize = usize::MAX;

#[derive(Clone, Copy, Debug)]
struct SlotLink {
    older: usize,
    newer: usize,
}

/// The neighbours of each slot, for all lists over the same slots.
#[derive(Debug, Default)]
pub(super) struct SlotLinks(Vec<SlotLink>);

/// One list, from oldest to newest.
#[derive(Debug)]
pub(super) struct SlotList {
    oldest: usize,
    newest: usize,
}

impl SlotLinks {
    /// Sets the number of slots that may be in a list.
    pub(super) fn resize(&mut self, n_slots: usize) {
        self.0.resize(n_slots, SlotLink { older: NONE, newer: NONE });
    }
}

impl SlotList {
    /// Creates an empty list.
    pub(super) const fn new() -> Self {
        Self { oldest: NONE, newest: NONE }
    }

    /// Appends a slot that is in no list, as the newest.
    pub(super) fn push(&mut self, links: &mut SlotLinks, slot: SlotIdx) {
        links.0[slot.0] = SlotLink { older: self.newest, newer: NONE };
        match self.newest {
            NONE => self.oldest = slot.0,
            newest => links.0[newest].newer = slot.0,
        }
        self.newest = slot.0;
    }

    /// Removes a slot of this list.
    pub(super) fn remove(&mut self, links: &mut SlotLinks, slot: SlotIdx) {
        let SlotLink { older, newer } = links.0[slot.0];
        match older {
            NONE => self.oldest = newer,
            older => links.0[older].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => links.0[newer].older = older,
        }
    }

    /// Returns the slot that has been in the list longest.
    pub(super) fn oldest(&self) -> Option<SlotIdx> {
        (self.oldest != NONE).then_some(SlotIdx(self.oldest))
    }

    /// Returns the slot that was appended after `slot`.
    pub(super) fn newer(&self, links: &SlotLinks, slot: SlotIdx) -> Option<SlotIdx> {
        let newer = links.0[slot.0].newer;
        (newer != NONE).then_some(SlotIdx(newer))
    }
}
