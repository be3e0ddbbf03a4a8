//! The slots of a model: their memory, which expert is in which of them, and its layout there.
//!
//! ```text
//! location          where one requested expert is
//! shape             bytes of a slot, and the slots in a number of bytes
//! mapped            slots that a device reads in place
//! target, pressure  how many slots there should be
//! ```
//!
//! **Invariant:** memory and table agree: a slot is filled only for an expert that the table
//! assigned to it. Memory is allocated and freed in slabs; a slab is freed only when none of its
//! slots is in use.

pub(super) mod location;
pub(super) mod shape;
pub(super) mod mapped;
mod pressure;
pub(super) mod target;

use std::sync::Arc;

use moeflux_io::{Filling, Loader, SlabIdx, SlotIdx, SlotMemory, SlotState};

use crate::error::{Error, Remedy, Result};
use crate::experts::stream::slots::location::LocatedExpert;
use crate::experts::stream::slots::mapped::{MappedSlot, SlotMapping};
use crate::experts::stream::slots::shape::{SlotShape, slab_bytes};
use crate::experts::table::{SlotTable, TableShape};
use crate::ids::ExpertIdx;
use crate::weights::{ExpertLayout, ExpertView};

/// Bytes that a prompt has under way, in at least `N_PROMPT_EXPERTS_MIN` experts.
const PROMPT_READ_BYTES: usize = 40 << 20;
const N_PROMPT_EXPERTS_MIN: usize = 8;

/// Slots and their contents.
#[derive(Debug)]
pub(super) struct ExpertSlots {
    memory: SlotMemory,
    pub(super) table: SlotTable,
    /// Per slot: the layout of its matrices.
    layouts: Vec<ExpertLayout>,
    /// Stands in `layouts` for slots that nothing was read into.
    layout_before: ExpertLayout,
    /// A device that reads slots in place.
    mapping: Option<Arc<dyn SlotMapping>>,
}

/// Experts that are handed out together, in leased slots or on a device.
#[derive(Clone, Copy, Debug)]
pub(in crate::experts) struct SlotGroup<'a> {
    pub(super) slots: &'a ExpertSlots,
    pub(super) experts: &'a [LocatedExpert],
    /// Whether they stay valid until the next layer is requested.
    pub(super) is_lasting: bool,
}

impl<'a> SlotGroup<'a> {
    pub(in crate::experts) fn len(&self) -> usize {
        self.experts.len()
    }

    pub(in crate::experts) fn expert(&self, idx: usize) -> ExpertIdx {
        self.experts[idx].expert
    }

    pub(in crate::experts) fn view(&self, idx: usize) -> ExpertView<'a> {
        let slot = self.experts[idx].slot().expect("what is on the device has no slot to look at");
        self.slots.view(slot)
    }

    pub(in crate::experts) fn device_slot(&self, idx: usize) -> Option<usize> {
        self.experts[idx].device_slot()
    }

    pub(in crate::experts) fn mapped_slot(&self, idx: usize) -> Option<MappedSlot<'a>> {
        let slot = self.experts[idx].slot().filter(|_| self.is_lasting)?;
        self.slots.mapped_slot(slot)
    }
}

impl ExpertSlots {
    /// Creates a table without memory, which [`ExpertSlots::resize`] adds. Slabs are as large as
    /// suits `n_slots` slots; `layout_before` may be that of any expert.
    pub(super) fn new(
        (shape, n_slots): (SlotShape, usize),
        table: TableShape<'_>,
        layout_before: ExpertLayout,
    ) -> Self {
        let slab_bytes = slab_bytes(shape.stride_bytes, n_slots);
        Self {
            memory: SlotMemory::new(shape.slot_bytes, slab_bytes),
            table: SlotTable::new(table),
            layouts: Vec::new(),
            layout_before,
            mapping: None,
        }
    }

    /// Lets a device read slots in place.
    pub(super) fn share_with_device(&mut self, mapping: Arc<dyn SlotMapping>) {
        self.mapping = Some(mapping);
    }

    pub(super) fn are_shared(&self) -> bool {
        self.mapping.is_some()
    }

    pub(super) fn slot_bytes(&self) -> usize {
        self.memory.slot_bytes()
    }

    pub(super) fn n_slots_per_slab(&self) -> usize {
        self.memory.n_slots_per_slab()
    }

    /// Returns the experts that a prompt should have under way: just enough for the drive, since
    /// each takes a slot from the experts that are kept.
    pub(super) fn n_prompt_reads(&self) -> usize {
        let n_slots = PROMPT_READ_BYTES.div_ceil(self.slot_bytes());
        n_slots.max(N_PROMPT_EXPERTS_MIN).min(self.table.n_prompt_reads())
    }

    pub(super) fn is_ready(&self, slot: SlotIdx) -> bool {
        self.memory.state(slot) == SlotState::Ready
    }

    pub(super) fn is_filling(&self, slot: SlotIdx) -> bool {
        self.memory.state(slot) == SlotState::Filling
    }

    /// Returns whether an expert may be computed now.
    pub(super) fn has(&self, located: &LocatedExpert) -> bool {
        located.slot().is_none_or(|slot| self.is_ready(slot))
    }

    pub(super) fn view(&self, slot: SlotIdx) -> ExpertView<'_> {
        self.layouts[slot.0].view(self.memory.bytes(slot))
    }

    /// Returns where a device may read a slot; `None` if the slot has no memory.
    pub(super) fn mapped_slot(&self, slot: SlotIdx) -> Option<MappedSlot<'_>> {
        MappedSlot::new(&self.memory, slot)
    }

    /// Ends the leases of `experts`.
    pub(super) fn release(&mut self, experts: &mut Vec<LocatedExpert>) {
        while let Some(located) = experts.pop() {
            located.slot().into_iter().for_each(|slot| self.table.release(slot));
        }
    }

    /// Begins to fill a slot that the table assigned.
    pub(super) fn begin_fill(&mut self, slot: SlotIdx) -> Filling {
        self.memory.begin_fill(slot)
    }

    /// Notes the layout of the matrices that are read into a slot.
    pub(super) fn set_layout(&mut self, slot: SlotIdx, layout: ExpertLayout) {
        self.layouts[slot.0] = layout;
    }

    /// Ends a filling that is complete. Its parts are rearranged into `mapped_layout`, if there is
    /// one.
    pub(super) fn finish(&mut self, mut filling: Filling, mapped_layout: Option<ExpertLayout>) {
        let slot = filling.slot();
        if let Some(layout) = mapped_layout {
            rearrange(&mut filling, &self.layouts[slot.0], &layout);
            self.layouts[slot.0] = layout;
        }
        self.memory.finish(filling);
        self.table.loaded(slot);
    }

    /// Ends a filling that failed or was cancelled.
    pub(super) fn abandon(&mut self, filling: Filling) {
        let slot = filling.slot();
        self.memory.abandon(filling);
        self.table.failed(slot);
    }

    /// Sets the number of slots. More are available at once; fewer as soon as those in use are
    /// released. The drives of `loader` learn which slabs there are.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if memory cannot be allocated; the number of slots is unchanged.
    pub(super) fn resize(&mut self, n_slots: usize, loader: &mut Loader) -> Result<()> {
        if n_slots < self.table.n_slots() {
            self.table.shrink(n_slots);
            self.free_unused_slabs(loader);
            return Ok(());
        }
        while self.memory.n_slots() < n_slots {
            let slab_idx = self.memory.grow().ok_or_else(|| {
                let needed_bytes = n_slots as u64 * self.memory.slot_bytes() as u64;
                let what = format!("{n_slots} experts in memory");
                Error::no_room(what, needed_bytes, Remedy::SmallerBudget)
            })?;
            let slab = self.memory.slab(slab_idx).expect("the slab was made just now");
            loader.slab_added(slab);
        }
        self.layouts.resize(n_slots.max(self.layouts.len()), self.layout_before);
        self.table.grow(n_slots);
        Ok(())
    }

    /// Frees the unused slabs after the last slot.
    pub(super) fn free_unused_slabs(&mut self, loader: &mut Loader) {
        while self.memory.n_slots() >= self.table.n_slots() + self.memory.n_slots_per_slab() {
            let slab_idx = SlabIdx(self.memory.n_slabs() - 1);
            let mut slots = self.memory.slots_of(slab_idx).map(SlotIdx);
            if slots.any(|slot| self.is_filling(slot) || self.table.expert_in(slot).is_some()) {
                return;
            }
            let slab = self.memory.slab(slab_idx).expect("the last slab is there");
            if self.mapping.as_ref().is_some_and(|mapping| !mapping.unmap(slab)) {
                return;
            }
            loader.slab_removed(slab);
            self.memory.shrink(slab_idx);
        }
    }
}

/// Moves the parts that were read to where another layout has them.
fn rearrange(filling: &mut Filling, from: &ExpertLayout, to: &ExpertLayout) {
    if from == to {
        return;
    }
    filling.restart();
    let mut piece = filling.take(0..filling.len_bytes());
    let bytes = piece.rest_mut();
    for (to, from) in to.parts().zip(from.parts()) {
        bytes.copy_within(from, to.start);
    }
}
