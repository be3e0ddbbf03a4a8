//! Where an expert lies that was asked for.

use moeflux_io::SlotIdx;

use crate::ids::ExpertIdx;

/// A place in one of two memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A slot, which is leased.
    Slot(SlotIdx),
    /// A place in the device's own memory: no slot.
    Device(usize),
}

/// An expert of the layer at hand that has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) expert: ExpertIdx,
    pub(super) place: Place,
}

impl Placed {
    /// Its slot; `None` on the device.
    pub(super) const fn slot(self) -> Option<SlotIdx> {
        match self.place {
            Place::Slot(slot) => Some(slot),
            Place::Device(_) => None,
        }
    }

    /// Its place on the device; `None` in a slot.
    pub(super) const fn near(self) -> Option<usize> {
        match self.place {
            Place::Slot(_) => None,
            Place::Device(place) => Some(place),
        }
    }
}
