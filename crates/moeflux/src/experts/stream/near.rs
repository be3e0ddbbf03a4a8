//! Experts that a device keeps in its own memory and that need no slot here.
//!
//! Used experts are moved there while there is room; later, one that is used much more replaces the
//! one used least. **Invariant:** an expert is in one memory only: its slot is free as soon as the
//! device has copied it, and an expert that leaves the device is read from the drive again.

use moeflux_io::SlotIdx;

use crate::experts::stream::place::{Place, Placed};
use crate::experts::stream::{SeenSlot, Stream};
use crate::ids::{ExpertIdx, LayerIdx};
use crate::weights::ExpertView;

/// Upper bound on moves per layer: a copy delays the work submitted after it.
const N_MOVES_MAX: usize = 2;

/// Lead in uses that an expert needs to replace another: a smaller one may be chance.
const GAIN_MIN: u32 = 8;

/// Use counts are halved after this many layer requests.
const N_LAYERS_HALF: u32 = 4096;

/// An expert to be copied to the device's memory.
#[derive(Clone, Copy, Debug)]
pub struct Move<'a> {
    /// The slot to copy from.
    pub from: SeenSlot<'a>,
    /// Its matrices there.
    pub view: ExpertView<'a>,
    /// Its layer.
    pub layer: LayerIdx,
    /// Its place on the device.
    pub to: usize,
}

/// All places in the device's memory.
#[derive(Debug, Default)]
pub(super) struct Near {
    /// Per place: the expert there.
    places: Vec<Option<(LayerIdx, ExpertIdx)>>,
    n_free: usize,
    /// By layer and expert.
    experts: Vec<Vec<Known>>,
    n_layers_left: u32,
    n_moves_left: usize,
    /// Experts being copied: their slots stay leased until the device has finished the layer.
    moving: Vec<(ExpertIdx, SlotIdx)>,
    pub(super) hits: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    place: Option<usize>,
    n_uses: u32,
}

impl Near {
    /// Creates `n_places` free places, for layers of `n_experts` experts each.
    pub(super) fn new(n_places: usize, n_experts: impl Iterator<Item = usize>) -> Self {
        Self {
            places: vec![None; n_places],
            n_free: n_places,
            experts: n_experts.map(|n| vec![Known::default(); n]).collect(),
            n_layers_left: N_LAYERS_HALF,
            ..Self::default()
        }
    }

    pub(super) fn n_places(&self) -> usize {
        self.places.len()
    }

    pub(super) fn has(&self, layer: LayerIdx, expert: ExpertIdx) -> bool {
        self.place(layer, expert).is_some()
    }

    fn place(&self, layer: LayerIdx, expert: ExpertIdx) -> Option<usize> {
        self.experts.get(layer.0)?.get(expert.0)?.place
    }

    /// Counts a request for a layer.
    fn begin_layer(&mut self) {
        if self.places.is_empty() {
            return;
        }
        self.n_moves_left = N_MOVES_MAX;
        self.n_layers_left -= 1;
        if self.n_layers_left == 0 {
            self.n_layers_left = N_LAYERS_HALF;
            self.experts.iter_mut().flatten().for_each(|it| it.n_uses /= 2);
        }
    }

    /// Counts a use of an expert; returns its place, if it has one.
    fn ask(&mut self, layer: LayerIdx, expert: ExpertIdx) -> Option<usize> {
        let known = self.experts.get_mut(layer.0)?.get_mut(expert.0)?;
        known.n_uses = known.n_uses.saturating_add(1);
        self.hits += u64::from(known.place.is_some());
        known.place
    }

    /// Forgets the moves under way: a device that failed has done some of them or none. Later
    /// requests do not find the experts there, and their slots stay leased until the next layer is
    /// requested.
    pub(super) fn give_up(&mut self, layer: LayerIdx) {
        for (expert, _) in &self.moving {
            let Some(place) = self.experts[layer.0][expert.0].place.take() else { continue };
            self.places[place] = None;
            self.n_free += 1;
        }
    }

    /// Returns a place for an expert, if it is used enough for one.
    fn take(&mut self, (layer, expert): (LayerIdx, ExpertIdx)) -> Option<usize> {
        let place = if self.n_free > 0 {
            self.n_free -= 1;
            self.places.iter().position(Option::is_none).expect("some place is free")
        } else {
            let n_uses =
                |(layer, expert): (LayerIdx, ExpertIdx)| self.experts[layer.0][expert.0].n_uses;
            let whole = self.places.iter().enumerate();
            let used = whole.filter_map(|(place, it)| it.map(|it| (n_uses(it), place)));
            let (least, place) = used.min()?;
            if n_uses((layer, expert)) < least.saturating_add(GAIN_MIN) {
                return None;
            }
            place
        };
        if let Some((layer, expert)) = self.places[place].replace((layer, expert)) {
            self.experts[layer.0][expert.0].place = None;
        }
        self.experts[layer.0][expert.0].place = Some(place);
        Some(place)
    }
}

impl Stream {
    /// Removes from `wanted` the experts that the device has.
    pub(super) fn ask_near(&mut self) {
        let Self { near, request, .. } = self;
        let (layer, pending) = (request.layer, &mut request.pending);
        near.begin_layer();
        request.wanted.retain(|wanted| {
            let Some(place) = near.ask(layer, wanted.expert) else { return true };
            pending.push(Placed { expert: wanted.expert, place: Place::Device(place) });
            false
        });
    }

    /// Returns the next expert of the last group that the device should copy to its own memory.
    pub(in crate::experts) fn next_move(&mut self) -> Option<Move<'_>> {
        let Self { near, request, memory, layouts, .. } = self;
        if !request.is_lasting || near.n_moves_left == 0 {
            return None;
        }
        near.n_moves_left -= 1;
        let layer = request.layer;
        let given = request.given.iter().enumerate();
        let given = given.filter_map(|(at, it)| Some((at, it.expert, it.slot()?)));
        let most = given.max_by_key(|(_, expert, _)| near.experts[layer.0][expert.0].n_uses);
        let (at, expert, slot) = most?;
        let Some(to) = near.take((layer, expert)) else {
            near.n_moves_left = 0;
            return None;
        };
        request.given.remove(at);
        near.moving.push((expert, slot));
        let slab = memory.slab(memory.slab_of(slot))?;
        let from = SeenSlot { slab, place: slot.0 % memory.n_slots_per_slab() };
        let view = layouts[slot.0].view(memory.bytes(slot));
        Some(Move { from, view, layer, to })
    }

    /// Frees the slots of completed moves.
    pub(super) fn end_moves(&mut self) {
        for (_, slot) in self.near.moving.drain(..) {
            self.table.release(slot);
            self.table.forget(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYER: LayerIdx = LayerIdx(1);

    fn near(n_places: usize) -> Near {
        Near::new(n_places, [0, 8].into_iter())
    }

    fn who(near: &Near) -> Vec<usize> {
        (0..8).filter(|it| near.has(LAYER, ExpertIdx(*it))).collect()
    }

    #[test]
    fn places_are_taken_until_all_are_and_then_by_what_is_used_much_more() {
        let mut near = near(2);
        for expert in [3, 5] {
            assert_eq!(near.ask(LAYER, ExpertIdx(expert)), None);
            assert!(near.take((LAYER, ExpertIdx(expert))).is_some());
        }
        assert_eq!(who(&near), [3, 5]);
        near.ask(LAYER, ExpertIdx(5));
        assert_eq!(near.hits, 1);
        for n_uses in 1..=GAIN_MIN + 1 {
            assert_eq!(near.ask(LAYER, ExpertIdx(6)), None);
            // Expert 3 was used once.
            let taken = near.take((LAYER, ExpertIdx(6)));
            assert_eq!(taken.is_some(), n_uses == 1 + GAIN_MIN, "after {n_uses} uses");
        }
        assert_eq!(who(&near), [5, 6]);
        assert_eq!(near.ask(LAYER, ExpertIdx(6)), near.place(LAYER, ExpertIdx(6)));
        assert!(near.ask(LAYER, ExpertIdx(6)).is_some());
    }

    #[test]
    fn uses_are_forgotten_by_and_by() {
        let mut near = near(1);
        assert!((0..40).all(|_| near.ask(LAYER, ExpertIdx(2)).is_none()));
        assert_eq!(near.take((LAYER, ExpertIdx(2))), Some(0));
        (0..2 * N_LAYERS_HALF).for_each(|_| near.begin_layer());
        assert!((0..=10 + GAIN_MIN).all(|_| near.ask(LAYER, ExpertIdx(1)).is_none()));
        assert_eq!(near.take((LAYER, ExpertIdx(1))), Some(0));
        assert_eq!(who(&near), [1]);
    }

    #[test]
    fn without_places_nothing_is_near() {
        let mut near = Near::default();
        near.begin_layer();
        assert_eq!(near.ask(LAYER, ExpertIdx(0)), None);
        assert_eq!((near.n_places(), near.hits), (0, 0));
    }
}
