//! Experts that are in memory and may be computed now, whichever memory that is.
//!
//! **Invariant:** experts that were handed out do not change while they are borrowed. A view is
//! made on request, so handing out a group allocates nothing.

use moeflux_io::{SlotIdx, SlotMemory};

use crate::experts::Order;
use crate::experts::resident::ResidentBank;
use crate::experts::stream::{Group, SeenSlot};
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
    fn seen(&self, place: usize) -> Option<SeenSlot<'a>> {
        let slot = self.slots[place].1;
        let slab = self.memory.slab(self.memory.slab_of(slot))?;
        Some(SeenSlot { slab, place: slot.0 % self.memory.n_slots_per_slab() })
    }

    fn view(&self, place: usize) -> ExpertView<'a> {
        self.layout.view(self.memory.bytes(self.slots[place].1))
    }
}

/// Some experts of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    order: Order,
    source: Source<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Source<'a> {
    Views(&'a [ArrivedExpert<'a>]),
    Bank(&'a ResidentBank, &'a [ExpertIdx]),
    Group(Group<'a>),
    Slots(SlotExperts<'a>),
}

impl<'a> Arrived<'a> {
    /// Creates a group from the caller's views; its experts follow those of the groups before.
    #[must_use]
    pub fn ascending(experts: &'a [ArrivedExpert<'a>]) -> Self {
        Self { order: Order::Ascending, source: Source::Views(experts) }
    }

    /// Creates a group from the caller's views.
    #[must_use]
    pub fn in_any_order(experts: &'a [ArrivedExpert<'a>]) -> Self {
        Self { order: Order::Any, source: Source::Views(experts) }
    }

    /// Creates a group from the caller's slots; its experts follow those of the groups before.
    #[must_use]
    pub fn in_slots(experts: SlotExperts<'a>) -> Self {
        Self { order: Order::Ascending, source: Source::Slots(experts) }
    }

    pub(super) fn of_bank(
        (bank, experts): (&'a ResidentBank, &'a [ExpertIdx]),
        order: Order,
    ) -> Self {
        Self { order, source: Source::Bank(bank, experts) }
    }

    pub(super) fn of_group(group: Group<'a>, order: Order) -> Self {
        Self { order, source: Source::Group(group) }
    }

    /// Returns the number of experts.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.source {
            Source::Views(experts) => experts.len(),
            Source::Bank(_, experts) => experts.len(),
            Source::Group(group) => group.len(),
            Source::Slots(experts) => experts.slots.len(),
        }
    }

    /// Returns whether there are no experts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the order in which the groups of this layer come.
    #[must_use]
    pub fn order(&self) -> Order {
        self.order
    }

    /// Returns the index in its layer of the expert at `place`.
    #[must_use]
    pub fn expert(&self, place: usize) -> ExpertIdx {
        match self.source {
            Source::Views(experts) => experts[place].expert,
            Source::Bank(_, experts) => experts[place],
            Source::Group(group) => group.expert(place),
            Source::Slots(experts) => experts.slots[place].0,
        }
    }

    /// Returns where a device may read the expert at `place` until the next layer is requested;
    /// `None` if it may not.
    #[must_use]
    pub fn seen(&self, place: usize) -> Option<SeenSlot<'a>> {
        match self.source {
            Source::Views(_) | Source::Bank(..) => None,
            Source::Group(group) => group.seen(place),
            Source::Slots(experts) => experts.seen(place),
        }
    }

    /// Returns the place in the device's own memory of the expert at `place`; `None` if it is not
    /// there. An expert that is there has no view.
    #[must_use]
    pub fn near(&self, place: usize) -> Option<usize> {
        match self.source {
            Source::Views(_) | Source::Bank(..) | Source::Slots(_) => None,
            Source::Group(group) => group.near(place),
        }
    }

    /// Returns the matrices of the expert at `place`.
    #[must_use]
    pub fn view(&self, place: usize) -> ExpertView<'a> {
        match self.source {
            Source::Views(experts) => experts[place].view,
            Source::Bank(bank, experts) => bank.view(experts[place]),
            Source::Group(group) => group.view(place),
            Source::Slots(experts) => experts.view(place),
        }
    }
}
