//! Experts that are in memory and may be computed now, wherever that memory is.
//!
//! **Invariant:** what is handed out stays as it is while it is borrowed. A view is made when it is
//! asked for, so that handing out a group allocates nothing.

use moeflux_io::{SlotIdx, SlotMemory};

use crate::experts::Order;
use crate::experts::resident::ResidentBank;
use crate::experts::stream::{Group, SeenSlot};
use crate::ids::ExpertIdx;
use crate::weights::{ExpertLayout, ExpertView};

/// An expert with its matrices.
#[derive(Clone, Copy, Debug)]
pub struct ArrivedExpert<'a> {
    /// Which of its layer.
    pub expert: ExpertIdx,
    /// Its matrices.
    pub view: ExpertView<'a>,
}

/// Experts in slots that their caller has filled, all in one layout.
#[derive(Clone, Copy, Debug)]
pub struct SlotExperts<'a> {
    /// The slots.
    pub memory: &'a SlotMemory,
    /// How an expert lies in its slot.
    pub layout: &'a ExpertLayout,
    /// Which expert is in which slot; these are ready.
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
    /// Experts of which the caller has views, behind those of the groups before.
    #[must_use]
    pub fn ascending(experts: &'a [ArrivedExpert<'a>]) -> Self {
        Self { order: Order::Ascending, source: Source::Views(experts) }
    }

    /// Experts of which the caller has views.
    #[must_use]
    pub fn in_any_order(experts: &'a [ArrivedExpert<'a>]) -> Self {
        Self { order: Order::Any, source: Source::Views(experts) }
    }

    /// Experts in slots of the caller, behind those of the groups before.
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

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.source {
            Source::Views(experts) => experts.len(),
            Source::Bank(_, experts) => experts.len(),
            Source::Group(group) => group.len(),
            Source::Slots(experts) => experts.slots.len(),
        }
    }

    /// Whether these are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// In which order the groups of this layer come.
    #[must_use]
    pub fn order(&self) -> Order {
        self.order
    }

    /// Which of its layer the expert at a place is.
    #[must_use]
    pub fn expert(&self, place: usize) -> ExpertIdx {
        match self.source {
            Source::Views(experts) => experts[place].expert,
            Source::Bank(_, experts) => experts[place],
            Source::Group(group) => group.expert(place),
            Source::Slots(experts) => experts.slots[place].0,
        }
    }

    /// Where a device may read the expert at a place, if it may: until the next layer is asked for.
    #[must_use]
    pub fn seen(&self, place: usize) -> Option<SeenSlot<'a>> {
        match self.source {
            Source::Views(_) | Source::Bank(..) => None,
            Source::Group(group) => group.seen(place),
            Source::Slots(experts) => experts.seen(place),
        }
    }

    /// The place on the device that has the expert at a place in its own memory, if it has: then
    /// there is no view of it.
    #[must_use]
    pub fn near(&self, place: usize) -> Option<usize> {
        match self.source {
            Source::Views(_) | Source::Bank(..) | Source::Slots(_) => None,
            Source::Group(group) => group.near(place),
        }
    }

    /// The matrices of the expert at a place.
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
