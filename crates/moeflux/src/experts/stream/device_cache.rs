//! Experts that a device keeps in its own memory and that need no slot here.
//!
//! Used experts are moved there while there is room; later, one that is used much more replaces the
//! one used least. **Invariant:** an expert is in one memory only: its slot is free as soon as the
//! device has copied it, and an expert that leaves the device is read from the drive again.

use moeflux_io::SlotIdx;

use crate::experts::stream::request::CurrentRequest;
use crate::experts::stream::slots::ExpertSlots;
use crate::experts::stream::slots::mapped::MappedSlot;
use crate::experts::table::SlotTable;
use crate::ids::{ExpertIdx, LayerIdx};
use crate::weights::ExpertView;

/// Upper bound on moves per layer: a copy delays the work submitted after it.
const N_MOVES_MAX: usize = 2;

/// Lead in uses that an expert needs to replace another: a smaller one may be chance.
const GAIN_MIN: u32 = 8;

/// Use counts are halved after this many layer requests.
const N_LAYERS_HALF: u32 = 4096;

/// An expert to be moved to the device's memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMove<'a> {
    /// The slot to copy from.
    pub from: MappedSlot<'a>,
    /// Its matrices there.
    pub view: ExpertView<'a>,
    /// Its layer.
    pub layer: LayerIdx,
    /// The slot on the device to copy it to.
    pub to: usize,
}

/// The experts in the device's own memory, and how much every expert is used.
#[derive(Debug, Default)]
pub(super) struct DeviceCache {
    /// Per slot on the device: the expert there.
    slots: Vec<Option<(LayerIdx, ExpertIdx)>>,
    n_free: usize,
    /// By layer and expert.
    experts: Vec<Vec<ExpertUsage>>,
    n_layers_left: u32,
    n_moves_left: usize,
    /// Experts being copied: their slots stay leased until the device has finished the layer.
    moving: Vec<(ExpertIdx, SlotIdx)>,
    pub(super) hits: u64,
}

/// The slot of an expert on the device, if it has one, and its use count.
#[derive(Clone, Copy, Debug, Default)]
struct ExpertUsage {
    slot: Option<usize>,
    n_uses: u32,
}

impl DeviceCache {
    /// Creates `n_slots` free slots on the device, for layers of `n_experts` experts each.
    pub(super) fn new(n_slots: usize, n_experts: impl Iterator<Item = usize>) -> Self {
        Self {
            slots: vec![None; n_slots],
            n_free: n_slots,
            experts: n_experts.map(|n| vec![ExpertUsage::default(); n]).collect(),
            n_layers_left: N_LAYERS_HALF,
            ..Self::default()
        }
    }

    pub(super) fn n_slots(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn has(&self, layer: LayerIdx, expert: ExpertIdx) -> bool {
        self.slot(layer, expert).is_some()
    }

    fn slot(&self, layer: LayerIdx, expert: ExpertIdx) -> Option<usize> {
        self.experts.get(layer.0)?.get(expert.0)?.slot
    }

    /// Counts a request for a layer.
    fn begin_layer(&mut self) {
        if self.slots.is_empty() {
            return;
        }
        self.n_moves_left = N_MOVES_MAX;
        self.n_layers_left -= 1;
        if self.n_layers_left == 0 {
            self.n_layers_left = N_LAYERS_HALF;
            self.experts.iter_mut().flatten().for_each(|it| it.n_uses /= 2);
        }
    }

    /// Counts a use of an expert; returns its slot on the device, if it has one.
    fn look_up(&mut self, layer: LayerIdx, expert: ExpertIdx) -> Option<usize> {
        let usage = self.experts.get_mut(layer.0)?.get_mut(expert.0)?;
        usage.n_uses = usage.n_uses.saturating_add(1);
        self.hits += u64::from(usage.slot.is_some());
        usage.slot
    }

    /// Forgets the moves under way: a device that failed has done some of them or none. Later
    /// requests do not find the experts there, and their slots stay leased until the next layer is
    /// requested.
    pub(super) fn give_up(&mut self, layer: LayerIdx) {
        for (expert, _) in &self.moving {
            let Some(slot) = self.experts[layer.0][expert.0].slot.take() else { continue };
            self.slots[slot] = None;
            self.n_free += 1;
        }
    }

    /// Assigns a slot on the device to an expert, if it is used enough for one.
    fn assign(&mut self, (layer, expert): (LayerIdx, ExpertIdx)) -> Option<usize> {
        let slot = if self.n_free > 0 {
            self.n_free -= 1;
            self.slots.iter().position(Option::is_none).expect("some place is free")
        } else {
            let n_uses =
                |(layer, expert): (LayerIdx, ExpertIdx)| self.experts[layer.0][expert.0].n_uses;
            let whole = self.slots.iter().enumerate();
            let used = whole.filter_map(|(slot, it)| it.map(|it| (n_uses(it), slot)));
            let (least, slot) = used.min()?;
            if n_uses((layer, expert)) < least.saturating_add(GAIN_MIN) {
                return None;
            }
            slot
        };
        if let Some((layer, expert)) = self.slots[slot].replace((layer, expert)) {
            self.experts[layer.0][expert.0].slot = None;
        }
        self.experts[layer.0][expert.0].slot = Some(slot);
        Some(slot)
    }

    /// Finds the experts that the device has: they need no slot.
    pub(super) fn find(&mut self, request: &mut CurrentRequest) {
        self.begin_layer();
        let layer = request.layer;
        request.find_on_device(|expert| self.look_up(layer, expert));
    }

    /// Returns the next expert of the last group that the device should copy to its own memory.
    pub(super) fn next_move<'a>(
        &mut self,
        request: &mut CurrentRequest,
        slots: &'a ExpertSlots,
    ) -> Option<DeviceMove<'a>> {
        if !request.is_lasting || self.n_moves_left == 0 {
            return None;
        }
        self.n_moves_left -= 1;
        let layer = request.layer;
        let in_slots = request.last_group.iter().enumerate();
        let in_slots = in_slots.filter_map(|(at, it)| Some((at, it.expert, it.slot()?)));
        let n_uses = |expert: ExpertIdx| self.experts[layer.0][expert.0].n_uses;
        let most = in_slots.max_by_key(|(_, expert, _)| n_uses(*expert));
        let (at, expert, slot) = most?;
        // Before a slot on the device is assigned, to which nothing would be copied.
        let from = slots.mapped_slot(slot)?;
        let Some(to) = self.assign((layer, expert)) else {
            self.n_moves_left = 0;
            return None;
        };
        request.last_group.remove(at);
        self.moving.push((expert, slot));
        Some(DeviceMove { from, view: slots.view(slot), layer, to })
    }

    /// Frees the slots of completed moves.
    pub(super) fn end_moves(&mut self, table: &mut SlotTable) {
        for (_, slot) in self.moving.drain(..) {
            table.release(slot);
            table.forget(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use moeflux_io::SLOT_ALIGN;
    use moeflux_kernels::{FloatKind, MatrixKind, MatrixLayout};

    use super::*;
    use crate::experts::stream::slots::location::{ExpertLocation, LocatedExpert};
    use crate::experts::stream::slots::shape::SlotShape;
    use crate::experts::table::TableShape;
    use crate::weights::ExpertLayout;

    const LAYER: LayerIdx = LayerIdx(1);

    fn cache(n_slots: usize) -> DeviceCache {
        DeviceCache::new(n_slots, [0, 8].into_iter())
    }

    fn who(cache: &DeviceCache) -> Vec<usize> {
        (0..8).filter(|it| cache.has(LAYER, ExpertIdx(*it))).collect()
    }

    #[test]
    fn full_caches_exchange_experts_only_for_much_more_used_ones() {
        let mut cache = cache(2);
        for expert in [3, 5] {
            assert_eq!(cache.look_up(LAYER, ExpertIdx(expert)), None);
            assert!(cache.assign((LAYER, ExpertIdx(expert))).is_some());
        }
        assert_eq!(who(&cache), [3, 5]);
        cache.look_up(LAYER, ExpertIdx(5));
        assert_eq!(cache.hits, 1);
        for n_uses in 1..=GAIN_MIN + 1 {
            assert_eq!(cache.look_up(LAYER, ExpertIdx(6)), None);
            // Expert 3 was used once.
            let assigned = cache.assign((LAYER, ExpertIdx(6)));
            assert_eq!(assigned.is_some(), n_uses == 1 + GAIN_MIN, "after {n_uses} uses");
        }
        assert_eq!(who(&cache), [5, 6]);
        assert_eq!(cache.look_up(LAYER, ExpertIdx(6)), cache.slot(LAYER, ExpertIdx(6)));
        assert!(cache.look_up(LAYER, ExpertIdx(6)).is_some());
    }

    #[test]
    fn uses_are_forgotten_by_and_by() {
        let mut cache = cache(1);
        assert!((0..40).all(|_| cache.look_up(LAYER, ExpertIdx(2)).is_none()));
        assert_eq!(cache.assign((LAYER, ExpertIdx(2))), Some(0));
        (0..2 * N_LAYERS_HALF).for_each(|_| cache.begin_layer());
        assert!((0..=10 + GAIN_MIN).all(|_| cache.look_up(LAYER, ExpertIdx(1)).is_none()));
        assert_eq!(cache.assign((LAYER, ExpertIdx(1))), Some(0));
        assert_eq!(who(&cache), [1]);
    }

    #[test]
    fn without_slots_nothing_is_on_the_device() {
        let mut cache = DeviceCache::default();
        cache.begin_layer();
        assert_eq!(cache.look_up(LAYER, ExpertIdx(0)), None);
        assert_eq!((cache.n_slots(), cache.hits), (0, 0));
    }

    #[test]
    fn an_expert_whose_slot_has_no_memory_stays_where_it_is() {
        let kind = MatrixKind::Float(FloatKind::F32);
        let matrix = MatrixLayout { kind, n_rows: 4, n_cols: 4 };
        let layout = ExpertLayout::new(matrix, matrix, matrix);
        let slot_bytes = layout.record_bytes();
        let shape = SlotShape { slot_bytes, stride_bytes: SLOT_ALIGN, n_experts: 8 };
        let table = TableShape { n_experts: &[0, 8], n_uses_per_row: 1, n_slots: 1 };
        let slots = ExpertSlots::new((shape, 1), table, layout);

        let location = ExpertLocation::Slot(SlotIdx(0));
        let located = LocatedExpert { expert: ExpertIdx(3), location };
        let mut request = CurrentRequest::default();
        (request.layer, request.is_lasting) = (LAYER, true);
        request.last_group.push(located);

        let mut cache = cache(1);
        cache.begin_layer();
        assert!(cache.next_move(&mut request, &slots).is_none());
        assert!(who(&cache).is_empty() && cache.moving.is_empty());
        assert_eq!(request.last_group, [located]);
    }
}
