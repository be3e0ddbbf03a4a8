//! Experts that are in memory and may be computed now, whichever memory that is.
//!
//! **Invariant:** experts that were handed out do not change while they are borrowed. A view is
//! made on request, so handing out a group allocates nothing.

use moeflux_io::{SlotIdx, SlotMemory};

use crate::experts::ArrivalOrder;
use crate::experts::resident::ResidentBank;
use crate::experts::stream::{MappedSlot, SlotGroup};
use crate::ids::ExpertIdx;
use crate::weights::{ExpertLayout, ExpertView};

/// An expert with its matrices.
#[derive(Clone, Copy, Debug)]
pub struct ArrivedExpert<'a> {
    /// Its index in the layer.
    pub expert: ExpertIdx,
    /// Its matrices.
    pub view: ExpertView<'a>,
}

/// Experts in slots that the caller has filled, all in one layout.
#[derive(Clone, Copy, Debug)]
pub struct SlotExperts<'a> {
    /// The slots.
    pub memory: &'a SlotMemory,
    /// Layout of an expert in its slot.
    pub layout: &'a ExpertLayout,
    /// Each expert and its slot; the slots are ready.
    pub slots: &'a [(ExpertIdx, SlotIdx)],
}

impl<'a> SlotExperts<'a> {
    fn mapped_slot(&self, idx: usize) -> Option<MappedSlot<'a>> {
        MappedSlot::new(self.memory, self.slots[idx].1)
    }

    fn view(&self, idx: usize) -> ExpertView<'a> {
        self.layout.view(self.memory.bytes(self.slots[idx].1))
    }
}

/// Some experts of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    order: ArrivalOrder,
    source: ArrivedSource<'a>,
}

#[derive(Clone, Copy, Debug)]
enum ArrivedSource<'a> {
    Views(&'a [ArrivedExpert<'a>]),
    Bank(&'a ResidentBank, &'a [ExpertIdx]),
    Group(SlotGroup<'a>),
    Slots(SlotExperts<'a>),
}

impl<'a> Arrived<'a> {
    /// Creates a group from the caller's views; its experts follow those of the groups before.
    #[must_use]
    pub fn ascending(experts: &'a [ArrivedExpert<'a>]) -> Self {
        Self { order: ArrivalOrder::Ascending, source: ArrivedSource::Views(experts) }
    }

    /// Creates a group from the caller's views.
    #[must_use]
    pub fn in_any_order(experts: &'a [ArrivedExpert<'a>]) -> Self {
        Self { order: ArrivalOrder::Any, source: ArrivedSource::Views(experts) }
    }

    /// Creates a group from the caller's slots; its experts follow those of the groups before.
    #[must_use]
    pub fn in_slots(experts: SlotExperts<'a>) -> Self {
        Self { order: ArrivalOrder::Ascending, source: ArrivedSource::Slots(experts) }
    }

    pub(super) fn of_bank(
        (bank, experts): (&'a ResidentBank, &'a [ExpertIdx]),
        order: ArrivalOrder,
    ) -> Self {
        Self { order, source: ArrivedSource::Bank(bank, experts) }
    }

    pub(super) fn of_group(group: SlotGroup<'a>, order: ArrivalOrder) -> Self {
        Self { order, source: ArrivedSource::Group(group) }
    }

    /// Returns the number of experts.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.source {
            ArrivedSource::Views(experts) => experts.len(),
            ArrivedSource::Bank(_, experts) => experts.len(),
            ArrivedSource::Group(group) => group.len(),
            ArrivedSource::Slots(experts) => experts.slots.len(),
        }
    }

    /// Returns whether there are no experts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the order in which the groups of this layer come.
    #[must_use]
    pub fn order(&self) -> ArrivalOrder {
        self.order
    }

    /// Returns the index in its layer of the expert at index `idx` of this group.
    #[must_use]
    pub fn expert(&self, idx: usize) -> ExpertIdx {
        match self.source {
            ArrivedSource::Views(experts) => experts[idx].expert,
            ArrivedSource::Bank(_, experts) => experts[idx],
            ArrivedSource::Group(group) => group.expert(idx),
            ArrivedSource::Slots(experts) => experts.slots[idx].0,
        }
    }

    /// Returns where a device may read the expert at `idx` until the next layer is requested;
    /// `None` if it may not.
    #[must_use]
    pub fn mapped_slot(&self, idx: usize) -> Option<MappedSlot<'a>> {
        match self.source {
            ArrivedSource::Views(_) | ArrivedSource::Bank(..) => None,
            ArrivedSource::Group(group) => group.mapped_slot(idx),
            ArrivedSource::Slots(experts) => experts.mapped_slot(idx),
        }
    }

    /// Returns the slot in the device's own memory of the expert at `idx`; `None` if it is not
    /// there. An expert that is there has no view.
    #[must_use]
    pub fn device_slot(&self, idx: usize) -> Option<usize> {
        match self.source {
            ArrivedSource::Views(_) | ArrivedSource::Bank(..) | ArrivedSource::Slots(_) => None,
            ArrivedSource::Group(group) => group.device_slot(idx),
        }
    }

    /// Returns the matrices of the expert at `idx`.
    #[must_use]
    pub fn view(&self, idx: usize) -> ExpertView<'a> {
        match self.source {
            ArrivedSource::Views(experts) => experts[idx].view,
            ArrivedSource::Bank(bank, experts) => bank.view(experts[idx]),
            ArrivedSource::Group(group) => group.view(idx),
            ArrivedSource::Slots(experts) => experts.view(idx),
        }
    }
}
