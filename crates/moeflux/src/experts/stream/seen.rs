//! Slots that a device reads in place.
//!
//! **Invariant:** in such slots, all experts of a layer have the same layout, with each part
//! aligned so that a device can load sixteen bytes at once. An expert read in another layout is
//! rearranged before it is used.

use std::fmt;

use moeflux_io::{Filling, Slab, SlotIdx};

use crate::experts::stream::bank::StreamBank;
use crate::experts::stream::near::DeviceCache;
use crate::experts::stream::{ArrivalOrder, CurrentRequest, ExpertStream, slot_shape};
use crate::ids::LayerIdx;
use crate::weights::{ExpertBank, ExpertLayout};

/// Bytes that devices load at once.
const PART_ALIGN: usize = 16;

/// A device reads a prompt's experts in place if they take at most one slot in this many.
const LASTING_SHARE: usize = 2;

/// A device's access to slabs, each mapped on first use.
pub trait SlotMapping: fmt::Debug + Send + Sync {
    /// Releases a slab that is no longer needed. Returns whether the device has released it: if
    /// not, submitted work may still read there.
    fn unmap(&self, slab: &Slab) -> bool;

    /// Returns the number of experts that the device keeps in its own memory, each laid out as in a
    /// slot: see [`crate::experts::stream::DeviceMove`].
    fn n_device_slots(&self) -> usize;
}

/// Layout of slots for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedSlots {
    /// By layer, where all of its experts can have the same layout.
    pub layouts: Vec<(LayerIdx, ExpertLayout)>,
    /// Distance from one slot of a slab to the next.
    pub stride_bytes: usize,
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
    pub(super) fn mapped_layout(&self, block_bytes: usize) -> Option<ExpertLayout> {
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

impl ExpertStream {
    /// Lets a device read slots in place, as [`MappedSlots`] describes. Called before anything is
    /// read.
    pub fn share_with_device(&mut self, mapping: std::sync::Arc<dyn SlotMapping>) {
        let block_bytes = self.loader.block_bytes();
        for bank in &mut self.banks {
            bank.mapped_layout = bank.mapped_layout(block_bytes);
        }
        let n_experts = self.bank_of_layer.iter().map(|bank| match bank {
            Some(bank_idx) => self.banks[*bank_idx].bank.n_experts,
            None => 0,
        });
        self.device_cache = DeviceCache::new(mapping.n_device_slots(), n_experts);
        self.mapping = Some(mapping);
    }

    /// Returns whether a device reads slots of this layer in place. Waiting for slots must not mean
    /// waiting for the device as well, so there have to be enough for all that the layer requests.
    pub(super) fn is_lasting(&self) -> bool {
        let CurrentRequest { layer, order, n_uses, demands, .. } = &self.request;
        if self.mapping.is_none() || self.bank(*layer).mapped_layout.is_none() {
            return false;
        }
        match order {
            ArrivalOrder::Any => demands.is_empty(),
            ArrivalOrder::Ascending => {
                let n_experts = n_uses.iter().filter(|n_uses| **n_uses > 0).count();
                n_experts * LASTING_SHARE <= self.table.n_slots()
            }
        }
    }

    /// Rearranges the parts that were read into the layout for a device.
    pub(super) fn rearrange_parts(
        &mut self,
        filling: &mut Filling,
        mapped_layout: Option<ExpertLayout>,
    ) {
        let SlotIdx(slot_idx) = filling.slot();
        let from = self.layouts[slot_idx];
        let Some(to) = mapped_layout.filter(|to| *to != from) else { return };
        filling.restart();
        let mut piece = filling.take(0..filling.len_bytes());
        let bytes = piece.rest_mut();
        for (to, from) in to.parts().zip(from.parts()) {
            bytes.copy_within(from, to.start);
        }
        self.layouts[slot_idx] = to;
    }
}
