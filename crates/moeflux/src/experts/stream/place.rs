//! Where a requested expert lies.

use moeflux_io::SlotIdx;

use crate::ids::ExpertIdx;

/// A place in one of two memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A leased slot.
    Slot(SlotIdx),
    /// A place in the device's own memory; needs no slot.
    Device(usize),
}

/// An expert of the current layer and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) expert: ExpertIdx,
    pub(super) place: Place,
}

impl Placed {
    /// Returns its slot; `None` on the device.
    pub(super) const fn slot(self) -> Option<SlotIdx> {
        match self.place {
            Place::Slot(slot) => Some(slot),
            Place::Device(_) => None,
        }
    }

    /// Returns its place on the device; `None` in a slot.
    pub(super) const fn near(self) -> Option<usize> {
        match self.place {
            Place::Slot(_) => None,
            Place::Device(place) => Some(place),
        }
    }
}
