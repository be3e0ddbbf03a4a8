//! Slots that a device reads where they lie.
//!
//! **Invariant:** in such slots all experts of a layer lie alike, each part where a device can load
//! sixteen bytes at once. What was read in another way is moved before anybody sees it.

use std::fmt;

use moeflux_io::{Filling, Slab, SlotIdx};

use crate::experts::stream::bank::StreamBank;
use crate::experts::stream::near::Near;
use crate::experts::stream::{Current, Order, Stream, slot_shape};
use crate::ids::LayerIdx;
use crate::weights::{ExpertBank, ExpertLayout};

/// Devices load so many bytes at once.
const PART_ALIGN: usize = 16;

/// Of so many slots one at most is kept for a device that reads a prompt's experts where they lie.
const LASTING_SHARE: usize = 2;

/// A device's sight of slabs, which it takes as it needs them.
pub trait SlotSight: fmt::Debug + Send + Sync {
    /// Nobody wants what lies in a slab any more. Whether the device does without it from now on:
    /// if not, work that was given to it may still read there.
    fn forget(&self, slab: &Slab) -> bool;

    /// Experts that the device keeps in its own memory, each as it lies in a slot: see
    /// [`crate::experts::stream::Move`].
    fn n_near(&self) -> usize;
}

/// How slots look to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenSlots {
    /// By layer, where all of its experts can lie alike.
    pub layouts: Vec<(LayerIdx, ExpertLayout)>,
    /// From one slot of a slab to the next.
    pub stride_bytes: usize,
}

impl SeenSlots {
    /// Slots for the experts of `banks`, read in blocks of `block_bytes`.
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
    /// How experts lie in slots that a device reads; `None` if it cannot.
    pub(super) fn seen_layout(&self, block_bytes: usize) -> Option<ExpertLayout> {
        let packed = self.bank.layout;
        if self.bank.records.is_some() {
            return Some(packed);
        }
        // A device's kernels find rows of a matrix one after the other.
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
        // Parts move to the front, the first one first.
        let can_move = |from: &ExpertLayout| {
            packed.parts().zip(from.parts()).all(|(to, from)| to.start <= from.start)
        };
        layouts.iter().all(can_move).then_some(packed)
    }
}

impl Stream {
    /// Lets a device read slots where they lie, as [`SeenSlots`] says. Before anything is read.
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

    /// Whether a device reads slots of this layer where they lie. Who waits for slots must not wait
    /// for a device too: then there have to be enough for all that the layer asks for.
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

    /// What was read lies as a device wants it, from now on.
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
