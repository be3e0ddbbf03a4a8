//! Slots that a device reads in place.
//!
//! **Invariant:** in such slots, all experts of a layer have the same layout, with each part
//! aligned so that a device can load sixteen bytes at once. An expert read in another layout is
//! rearranged before it is used.

use std::fmt;

use moeflux_io::{Slab, SlotIdx, SlotMemory};

use crate::experts::stream::bank::StreamBank;
use crate::experts::stream::slots::shape::slot_shape;
use crate::ids::LayerIdx;
use crate::weights::{ExpertBank, ExpertLayout};

/// Bytes that devices load at once.
const PART_ALIGN: usize = 16;

/// A device's access to slabs, each mapped on first use.
pub trait SlotMapping: fmt::Debug + Send + Sync {
    /// Releases a slab that is no longer needed. Returns whether the device has released it: if
    /// not, submitted work may still read there.
    fn unmap(&self, slab: &Slab) -> bool;

    /// Returns the number of experts that the device keeps in its own memory, each laid out as in a
    /// slot: see [`crate::experts::stream::DeviceMove`].
    fn n_device_slots(&self) -> usize;
}

/// A slot that a device reads in place. It does not change until the next layer is requested.
#[derive(Clone, Copy, Debug)]
pub struct MappedSlot<'a> {
    /// The slab that contains it.
    pub slab: &'a Slab,
    /// Its index in the slab.
    pub idx_in_slab: usize,
}

/// Layout of slots for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedSlots {
    /// By layer, where all of its experts can have the same layout.
    pub layouts: Vec<(LayerIdx, ExpertLayout)>,
    /// Distance from one slot of a slab to the next.
    pub stride_bytes: usize,
}

impl<'a> MappedSlot<'a> {
    /// Finds a slot in its slab; `None` if it has no memory.
    pub(in crate::experts) fn new(memory: &'a SlotMemory, slot: SlotIdx) -> Option<Self> {
        let slab = memory.slab(memory.slab_of(slot))?;
        Some(Self { slab, idx_in_slab: slot.0 % memory.n_slots_per_slab() })
    }
}

impl MappedSlots {
    /// Computes the layout of slots for the experts of `banks`, read in blocks of `block_bytes`.
    #[must_use]
    pub fn new(banks: &[ExpertBank], block_bytes: usize) -> Self {
        let mapped_layout = |bank: &ExpertBank| {
            let layout = StreamBank::new(bank.clone(), None).mapped_layout(block_bytes);
            layout.map(|layout| (bank.layer, layout))
        };
        let stride_bytes = slot_shape(banks, block_bytes).stride_bytes;
        Self { layouts: banks.iter().filter_map(mapped_layout).collect(), stride_bytes }
    }
}

impl StreamBank {
    /// Returns the layout of experts in slots that a device reads; `None` if it cannot.
    pub(in crate::experts::stream) fn mapped_layout(
        &self,
        block_bytes: usize,
    ) -> Option<ExpertLayout> {
        let packed = self.bank.layout;
        if self.bank.records.is_some() {
            return Some(packed);
        }
        // Device kernels expect the rows of a matrix one after the other.
        if packed.is_interleaved() {
            return None;
        }
        let experts = (0..self.bank.n_experts).map(crate::ids::ExpertIdx);
        let layouts = experts.map(|expert| self.layout(&self.lay_out(expert, block_bytes)));
        let layouts: Vec<ExpertLayout> = layouts.collect();
        let first = *layouts.first()?;
        let is_aligned = first.parts().all(|part| part.start.is_multiple_of(PART_ALIGN));
        if is_aligned && layouts.iter().all(|it| *it == first) {
            return Some(first);
        }
        // Parts only move towards the front, the first part first.
        let can_move = |from: &ExpertLayout| {
            packed.parts().zip(from.parts()).all(|(to, from)| to.start <= from.start)
        };
        layouts.iter().all(can_move).then_some(packed)
    }
}
