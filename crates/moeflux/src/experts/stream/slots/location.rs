//! Where a requested expert is: in host memory or on a device.

use moeflux_io::SlotIdx;

use crate::ids::ExpertIdx;

/// Where an expert is, in one of two memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experts::stream) enum ExpertLocation {
    /// A leased slot.
    Slot(SlotIdx),
    /// A slot in the device's own memory; needs none here.
    Device(usize),
}

/// An expert of the current layer and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experts::stream) struct LocatedExpert {
    pub(in crate::experts::stream) expert: ExpertIdx,
    pub(in crate::experts::stream) location: ExpertLocation,
}

impl LocatedExpert {
    /// Returns its slot; `None` on the device.
    pub(in crate::experts::stream) const fn slot(self) -> Option<SlotIdx> {
        match self.location {
            ExpertLocation::Slot(slot) => Some(slot),
            ExpertLocation::Device(_) => None,
        }
    }

    /// Returns its slot on the device; `None` in a slot here.
    pub(in crate::experts::stream) const fn device_slot(self) -> Option<usize> {
        match self.location {
            ExpertLocation::Slot(_) => None,
            ExpertLocation::Device(slot) => Some(slot),
        }
    }
}
