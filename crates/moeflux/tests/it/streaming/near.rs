//! Experts that a device moves to its own memory, requested as the engine does, by a device that
//! reports the moved experts itself.

use std::ops::ControlFlow;
use std::sync::Arc;

use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::experts::stream::{
    Drives, ExpertStream, N_ROWS_ANY_ORDER, SlotMapping, StreamConfig, StreamModel,
};
use moeflux::provider::experts::{ExpertRequest, Experts};
use moeflux::provider::ids::{ExpertIdx, LayerIdx};
use moeflux::provider::model::{Headers, Model};
use moeflux_io::{Caching, Slab};
use moeflux_testing::cases::GoldenCase;

/// A device that sees every slot, and has some slots of its own.
#[derive(Debug)]
struct Places(usize);

impl SlotMapping for Places {
    fn unmap(&self, _: &Slab) -> bool {
        true
    }

    fn n_device_slots(&self) -> usize {
        self.0
    }
}

/// A model whose experts are streamed, and a layer of it.
fn streamed(n_places: usize) -> (Experts, LayerIdx) {
    let case = GoldenCase::load("mlx-qwen3_moe-q2-g128-f32");
    let (Blueprint { spec, manifest, .. }, checkpoint) =
        Model::open(&case.dir).unwrap().into_parts();
    let top_k: Vec<usize> = spec.layers.iter().map(|layer| layer.ffn.top_k()).collect();
    let model = StreamModel {
        manifest: &manifest,
        checkpoint: &checkpoint,
        sums: None,
        top_k: &top_k,
        n_ranks: 0,
    };
    let config = StreamConfig { n_slots: 4, prefetches: false };
    let drives = Drives::open(&checkpoint, Caching::PageCache, None).unwrap();
    let mut stream = ExpertStream::open(&model, drives, &config).unwrap();
    stream.share_with_device(Arc::new(Places(n_places)));
    (Experts::Streaming(Box::new(stream)), manifest.banks[0].layer)
}

/// Requests two experts and moves those that should be moved, unless the device fails. Returns how
/// many were in its memory already, and how many it was told to move there.
fn ask(experts: &mut Experts, layer: LayerIdx, device: ControlFlow<()>) -> [usize; 2] {
    let chosen = [ExpertIdx(0), ExpertIdx(1)];
    experts.begin_step(1, true);
    experts.request(&ExpertRequest { layer, chosen: &chosen, is_small: true }).unwrap();
    let [mut n_near, mut n_moves] = [0; 2];
    while let Some(arrived) = experts.next_ready().unwrap() {
        n_near += (0..arrived.len()).filter(|at| arrived.device_slot(*at).is_some()).count();
        while experts.next_move().is_some() {
            n_moves += 1;
            if device.is_break() {
                experts.give_up();
                return [n_near, n_moves];
            }
        }
    }
    [n_near, n_moves]
}

#[test]
fn promoted_experts_stay_on_the_device() {
    let (mut experts, layer) = streamed(2);
    assert_eq!(ask(&mut experts, layer, ControlFlow::Continue(()))[0], 0);
    while ask(&mut experts, layer, ControlFlow::Continue(()))[1] > 0 {}
    assert_eq!(ask(&mut experts, layer, ControlFlow::Continue(())), [2, 0]);
}

/// A card without room for a copy leaves the step with an error, and whatever its place holds is
/// not the expert.
#[test]
fn an_expert_that_did_not_come_near_is_not_there() {
    let (mut experts, layer) = streamed(2);
    for _ in 0..3 {
        assert_eq!(ask(&mut experts, layer, ControlFlow::Break(())), [0, 1]);
    }
    // One of them is read again, and may arrive in a group of its own.
    while ask(&mut experts, layer, ControlFlow::Continue(()))[1] > 0 {}
    assert_eq!(ask(&mut experts, layer, ControlFlow::Continue(())), [2, 0]);
}

/// A device reads a prompt's experts where they lie, if it leaves half of the slots to others.
#[test]
fn experts_of_a_prompt_are_read_in_place_if_half_of_the_slots_remain() {
    for (chosen, is_seen) in [(&[0, 1][..], true), (&[0, 1, 2], false)] {
        let (mut experts, layer) = streamed(0);
        let chosen: Vec<ExpertIdx> = chosen.iter().copied().map(ExpertIdx).collect();
        let n_rows = N_ROWS_ANY_ORDER + 1;
        experts.begin_step(n_rows, n_rows <= 16);
        experts.request(&ExpertRequest { layer, chosen: &chosen, is_small: n_rows <= 16 }).unwrap();
        let [mut n_arrived, mut n_seen] = [0; 2];
        while let Some(arrived) = experts.next_ready().unwrap() {
            n_arrived += arrived.len();
            n_seen += (0..arrived.len()).filter(|at| arrived.mapped_slot(*at).is_some()).count();
        }
        assert_eq!(n_arrived, chosen.len());
        assert_eq!(n_seen, if is_seen { n_arrived } else { 0 });
    }
}
