//! Slots that a device reads in place.
//!
//! **Invariant:** in such slots, all experts of a layer have the same layout, with each part
//! aligned so that a device can load sixteen bytes at once. An expert read in another layout is
//! rearranged before it is used.

use std::fmt;

use moeflux_io::{Filling, Slab, SlotIdx};

use crate::experts::stream::bank::StreamBank;
use crate::experts::stream::near::Near;
use crate::experts::stream::{Current, Order, Stream, slot_shape};
use crate::ids::LayerIdx;
use crate::weights::{ExpertBank, ExpertLayout};

/// Bytes that devices load at once.
const PART_ALIGN: usize = 16;

/// A device reads a prompt's experts in place if they take at most one slot in this many.
const LASTING_SHARE: usize = 2;

/// A device's access to slabs, each mapped on first use.
pub trait SlotSight: fmt::Debug + Send + Sync {
    /// Releases a slab that is no longer needed. Returns whether the device has released it: if
    /// not, submitted work may still read there.
    fn forget(&self, slab: &Slab) -> bool;

    /// Returns the number of experts that the device keeps in its own memory, each laid out as in a
    /// slot: see [`crate::experts::stream::Move`].
    fn n_near(&self) -> usize;
}

/// Layout of slots for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenSlots {
    /// By layer, where all of its experts can have the same layout.
    pub layouts: Vec<(LayerIdx, ExpertLayout)>,
    /// Distance from one slot of a slab to the next.
    pub stride_bytes: usize,
}

impl SeenSlots {
    /// Computes the layout of slots for the experts of `banks`, read in blocks of `block_bytes`.
    #[must_use]
    pub fn new(banks: &[ExpertBank], block_bytes: usize) -> Self {
        let seen = |bank: &ExpertBank| {
            let layout = StreamBank::new(bank.clone(), None).seen_layout(block_bytes);
            layout.map(|layout| (bank.layer, layout))
        };
        let stride_bytes = slot_shape(banks, block_bytes).stride_bytes;
        Self { layouts: banks.iter().filter_map(seen).collect(), stride_bytes }
    }
}

impl StreamBank {
    /// Returns the layout of experts in slots that a device reads; `None` if it cannot.
    pub(super) fn seen_layout(&self, block_bytes: usize) -> Option<ExpertLayout> {
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

impl Stream {
    /// Lets a device read slots in place, as [`SeenSlots`] describes. Called before anything is
    /// read.
    pub fn show_to(&mut self, sight: std::sync::Arc<dyn SlotSight>) {
        let block_bytes = self.loader.block_bytes();
        for bank in &mut self.banks {
            bank.seen = bank.seen_layout(block_bytes);
        }
        let n_experts = self.bank_of_layer.iter().map(|bank| match bank {
            Some(bank_idx) => self.banks[*bank_idx].bank.n_experts,
            None => 0,
        });
        self.near = Near::new(sight.n_near(), n_experts);
        self.sight = Some(sight);
    }

    /// Returns whether a device reads slots of this layer in place. Waiting for slots must not mean
    /// waiting for the device as well, so there have to be enough for all that the layer requests.
    pub(super) fn is_lasting(&self) -> bool {
        let Current { layer, order, n_uses, wanted, .. } = &self.request;
        if self.sight.is_none() || self.bank(*layer).seen.is_none() {
            return false;
        }
        match order {
            Order::Any => wanted.is_empty(),
            Order::Ascending => {
                let n_experts = n_uses.iter().filter(|n_uses| **n_uses > 0).count();
                n_experts * LASTING_SHARE <= self.table.n_slots()
            }
        }
    }

    /// Rearranges the parts that were read into the layout for a device.
    pub(super) fn settle_parts(&mut self, filling: &mut Filling, seen: Option<ExpertLayout>) {
        let SlotIdx(slot_idx) = filling.slot();
        let from = self.layouts[slot_idx];
        let Some(to) = seen.filter(|to| *to != from) else { return };
        filling.restart();
        let mut piece = filling.take(0..filling.len_bytes());
        let bytes = piece.rest_mut();
        for (to, from) in to.parts().zip(from.parts()) {
            bytes.copy_within(from, to.start);
        }
        self.layouts[slot_idx] = to;
    }
}
