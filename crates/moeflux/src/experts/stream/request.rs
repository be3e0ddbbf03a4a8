//! The experts that a layer requested, from the choice to the release of their slots. Each of them
//! is in one list at a time:
//!
//! ```text
//!             leased               arrived                    next group
//! demands -------------> pending ------------> last_group ------------------> released
//!    |                      ^                   |      |                         ^
//!    +----------------------+     is being      |      | is_lasting              | next layer, or
//!      a device has it            copied to <---+      v                         | the chunk ends
//!                                 a device          earlier_groups --------------+
//! ```
//!
//! **Invariant:** an expert with a lease keeps its slot until it is released. A request that is
//! given up releases all.

use moeflux_io::SlotIdx;

use crate::experts::stream::slots::location::{ExpertLocation, LocatedExpert};
use crate::experts::stream::slots::{ExpertSlots, SlotGroup};
use crate::experts::table::{Demand, SlotLease, SlotTable};
use crate::experts::{ArrivalOrder, ExpertRequest};
use crate::ids::{ExpertIdx, LayerIdx};

/// Upper bound on the experts of a group while others are on their way: new reads begin between
/// groups.
const N_GROUP_EXPERTS: usize = 8;

/// The current request.
#[derive(Debug, Default)]
pub(super) struct CurrentRequest {
    pub(super) layer: LayerIdx,
    pub(super) order: ArrivalOrder,
    /// Per expert of the layer: rows that chose it.
    n_uses: Vec<u32>,
    /// Experts neither in memory nor being read; ascending.
    pub(super) demands: Vec<Demand>,
    /// The first of these, while the table is asked for slots.
    window: Vec<Demand>,
    /// The leases that the table gave for these.
    pub(super) leases: Vec<SlotLease>,
    /// Experts with a lease, not yet handed out; ascending.
    pending: Vec<LocatedExpert>,
    /// The group handed out last.
    pub(super) last_group: Vec<LocatedExpert>,
    /// Whether that group stays valid until the next layer is requested.
    pub(super) is_lasting: bool,
    /// Experts handed out earlier and still in use.
    earlier_groups: Vec<LocatedExpert>,
    /// Experts from this one on are not handed out; `None`: all may be.
    chunk_end: Option<ExpertIdx>,
}

impl CurrentRequest {
    /// Begins a request for a layer of `n_experts` experts.
    pub(super) fn begin(&mut self, request: &ExpertRequest<'_>, n_experts: usize) {
        let ExpertRequest { layer, chosen, is_small } = *request;
        assert!(self.pending.is_empty() && self.last_group.is_empty(), "one layer at a time");
        self.layer = layer;
        self.order = if is_small { ArrivalOrder::Any } else { ArrivalOrder::Ascending };
        self.n_uses.clear();
        self.n_uses.resize(n_experts, 0);
        chosen.iter().for_each(|expert| self.n_uses[expert.0] += 1);
        let uses = self.n_uses.iter().enumerate().filter(|(_, n_uses)| **n_uses > 0);
        let demand =
            |(expert, &n_uses): (usize, &u32)| Demand { expert: ExpertIdx(expert), n_uses };
        self.demands.clear();
        self.demands.extend(uses.map(demand));
    }

    /// Returns whether a row chose an expert of the layer.
    pub(super) fn has_chosen(&self, expert: ExpertIdx) -> bool {
        self.n_uses[expert.0] > 0
    }

    /// Returns the number of different experts that were chosen.
    pub(super) fn n_experts_chosen(&self) -> usize {
        self.n_uses.iter().filter(|n_uses| **n_uses > 0).count()
    }

    /// Returns the number of choices, over all rows.
    pub(super) fn n_choices(&self) -> usize {
        self.n_uses.iter().map(|&it| it as usize).sum()
    }

    /// Moves demanded experts for which `find` knows a place on the device to the pending ones.
    pub(super) fn find_on_device(&mut self, mut find: impl FnMut(ExpertIdx) -> Option<usize>) {
        let Self { demands, pending, .. } = self;
        demands.retain(|demand| {
            let Some(slot) = find(demand.expert) else { return true };
            let location = ExpertLocation::Device(slot);
            pending.push(LocatedExpert { expert: demand.expert, location });
            false
        });
    }

    /// Leases slots for the demanded experts, as far as there is room, and lists the leases. Up to
    /// `n_reads_max` of these have to be read.
    pub(super) fn lease(&mut self, n_reads_max: usize, table: &mut SlotTable) {
        let Self { layer, order, demands, window, leases, pending, .. } = self;
        let handed_out = self.earlier_groups.iter().chain(&self.last_group);
        let n_leased = pending.iter().chain(handed_out).filter(|it| it.slot().is_some()).count();
        // In ascending order, an expert in memory may have to wait for one that is not, so no more
        // are leased than there are slots.
        let n_window = match order {
            ArrivalOrder::Any => demands.len(),
            ArrivalOrder::Ascending => demands.len().min(table.n_slots().saturating_sub(n_leased)),
        };
        window.clear();
        window.extend(demands.drain(..n_window));
        table.acquire(*layer, window, n_reads_max, leases);
        demands.splice(0..0, window.drain(..));
        for &SlotLease { expert, slot, .. } in &*leases {
            pending.push(LocatedExpert { expert, location: ExpertLocation::Slot(slot) });
        }
        pending.sort_unstable_by_key(|located| located.expert);
    }

    /// Returns whether the expert of a slot was requested and not yet handed out.
    pub(super) fn waits_for(&self, slot: SlotIdx) -> bool {
        self.pending.iter().any(|it| it.slot() == Some(slot))
    }

    /// Returns the number of requested experts that are being read.
    pub(super) fn n_reading(&self, slots: &ExpertSlots) -> usize {
        self.pending.iter().filter(|it| !slots.has(it)).count()
    }

    /// Moves experts that may be computed now to `last_group`.
    pub(super) fn take_group(&mut self, slots: &ExpertSlots) {
        let Self { order, demands, pending, last_group, chunk_end, .. } = self;
        let is_open = |it: &LocatedExpert| chunk_end.is_none_or(|end| it.expert < end);
        let is_ready = |it: &LocatedExpert| is_open(it) && slots.has(it);
        match order {
            ArrivalOrder::Any => {
                last_group.extend(pending.iter().filter(|it| is_ready(it)));
                pending.retain(|it| !is_ready(it));
            }
            ArrivalOrder::Ascending => {
                let next = demands.first().map_or(usize::MAX, |it| it.expert.0);
                let is_next = |it: &&LocatedExpert| it.expert.0 < next && is_ready(it);
                let n = pending.iter().take(N_GROUP_EXPERTS).take_while(is_next).count();
                last_group.extend(pending.drain(..n));
            }
        }
    }

    /// Returns the group handed out last.
    pub(super) fn group<'a>(&'a self, slots: &'a ExpertSlots) -> SlotGroup<'a> {
        SlotGroup { slots, experts: &self.last_group, is_lasting: self.is_lasting }
    }

    /// Ends the group handed out last: it is released, or kept if it is lasting.
    pub(super) fn end_group(&mut self, slots: &mut ExpertSlots) {
        if self.is_lasting {
            self.earlier_groups.append(&mut self.last_group);
        }
        slots.release(&mut self.last_group);
    }

    /// Releases the groups that were kept.
    pub(super) fn release_earlier_groups(&mut self, slots: &mut ExpertSlots) {
        slots.release(&mut self.earlier_groups);
    }

    /// Begins a chunk: only experts before `end` are handed out.
    pub(super) fn begin_chunk(&mut self, end: ExpertIdx) {
        self.chunk_end = Some(end);
    }

    pub(super) fn is_in_chunk(&self) -> bool {
        self.chunk_end.is_some()
    }

    /// Returns all experts handed out in this chunk.
    pub(super) fn chunk<'a>(&'a mut self, slots: &'a ExpertSlots) -> SlotGroup<'a> {
        self.earlier_groups.append(&mut self.last_group);
        SlotGroup { slots, experts: &self.earlier_groups, is_lasting: false }
    }

    /// Releases the experts of the chunk.
    pub(super) fn end_chunk(&mut self, slots: &mut ExpertSlots) {
        self.chunk_end = None;
        slots.release(&mut self.last_group);
        slots.release(&mut self.earlier_groups);
    }

    /// Returns whether no expert that may be handed out is demanded or on its way.
    pub(super) fn is_over(&self) -> bool {
        let Self { pending, demands, chunk_end, .. } = self;
        let pending = pending.iter().map(|it| it.expert);
        let mut experts = pending.chain(demands.iter().map(|it| it.expert));
        !experts.any(|expert| chunk_end.is_none_or(|end| expert < end))
    }

    /// Drops the request.
    pub(super) fn give_up(&mut self, slots: &mut ExpertSlots) {
        self.end_chunk(slots);
        slots.release(&mut self.pending);
        self.demands.clear();
    }
}
