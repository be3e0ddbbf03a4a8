//! Compares slots with a naive model, and checks that every misuse is caught.
#![expect(clippy::cast_possible_truncation, reason = "small rng")]

use std::collections::HashMap;
use std::sync::Arc;

use moeflux_testing::random::Rng;

use super::*;

fn memory_of(n_slabs: usize) -> SlotMemory {
    let mut memory = SlotMemory::new(1000, 3 * SLOT_ALIGN);
    for _ in 0..n_slabs {
        memory.grow().unwrap();
    }
    memory
}

fn fill(memory: &mut SlotMemory, slot: SlotIdx, value: u8) {
    let mut filling = memory.begin_fill(slot);
    filling.take(0..1000).rest_mut().fill(value);
    memory.finish(filling);
}

#[test]
fn slots_are_aligned_and_hold_the_written_bytes() {
    let mut memory = memory_of(2);
    assert_eq!((memory.n_slots_per_slab(), memory.n_slots()), (3, 6));
    for slot in 0..6 {
        fill(&mut memory, SlotIdx(slot), slot as u8 + 1);
    }
    for slot in 0..6 {
        let bytes = memory.bytes(SlotIdx(slot));
        assert_eq!(bytes, [slot as u8 + 1; 1000]);
        assert!(bytes.as_ptr().addr().is_multiple_of(SLOT_ALIGN));
    }
}

#[test]
fn a_slab_as_large_as_a_slot_at_least() {
    let memory = SlotMemory::new(100_000, 1);
    assert_eq!((memory.n_slots_per_slab(), memory.slab_bytes()), (1, 2 << 20));
    let memory = SlotMemory::new(SLOT_ALIGN, 64 << 20);
    assert_eq!(memory.n_slots_per_slab(), 4096);
}

#[test]
fn slots_without_gaps_use_no_more_memory_than_their_bytes() {
    let mut memory = SlotMemory::without_gaps(1001, 5);
    memory.grow().unwrap();
    assert_eq!((memory.slab_bytes(), memory.n_slots(), memory.n_slots_per_slab()), (5005, 5, 5));
    for slot in [3, 0, 4, 1, 2] {
        let mut filling = memory.begin_fill(SlotIdx(slot));
        assert_eq!(filling.len_bytes(), 1001);
        filling.take(0..1001).rest_mut().fill(slot as u8 + 1);
        memory.finish(filling);
    }
    for slot in 0..5 {
        assert_eq!(memory.bytes(SlotIdx(slot)), [slot as u8 + 1; 1001]);
    }
}

/// Runs random operations; after each, all states and bytes must agree with the model.
#[test]
fn any_sequence_of_steps_agrees_with_a_plain_table() {
    let n_seeds = if cfg!(miri) { 2 } else { 40 };
    for seed in 0..n_seeds {
        run_against_model(seed);
    }
}

#[derive(Default)]
struct ReferenceSlots {
    slabs: Vec<bool>,
    ready: HashMap<usize, u8>,
    filling: HashMap<usize, (Filling, u8)>,
}

fn run_against_model(seed: u64) {
    let mut rng = Rng::new(seed << 32);
    let mut memory = memory_of(0);
    let mut model = ReferenceSlots::default();
    for _ in 0..if cfg!(miri) { 60 } else { 400 } {
        step(&mut memory, &mut model, &mut rng);
        check(&memory, &model, seed);
    }
}

fn step(memory: &mut SlotMemory, model: &mut ReferenceSlots, rng: &mut Rng) {
    let n_indices = model.slabs.len();
    let slot = rng.below(3 * n_indices.max(1));
    let is_there = model.slabs.get(slot / 3) == Some(&true);
    match rng.below(10) {
        0 if n_indices < 8 || model.slabs.contains(&false) => {
            let slab_idx = memory.grow().unwrap().0;
            let expected = model.slabs.iter().position(|it| !it).unwrap_or(n_indices);
            assert_eq!(slab_idx, expected);
            model.slabs.resize(n_indices.max(slab_idx + 1), true);
            model.slabs[slab_idx] = true;
        }
        1 if is_there => {
            let slab_idx = SlabIdx(slot / 3);
            let slots = memory.slots_of(slab_idx);
            if slots.clone().all(|it| !model.filling.contains_key(&it)) {
                memory.shrink(slab_idx);
                model.slabs[slab_idx.0] = false;
                model.ready.retain(|it, _| !slots.contains(it));
            }
        }
        2..=5 if is_there && !model.filling.contains_key(&slot) => {
            let mut filling = memory.begin_fill(SlotIdx(slot));
            let value = rng.bits() as u8;
            let cut = rng.below(1001);
            let mut second = None;
            for range in [0..cut, cut..1000] {
                let mut piece = filling.take(range);
                piece.rest_mut().fill(value);
                piece.keep(piece.len_bytes() / 2);
                second = Some(piece);
            }
            drop(second);
            model.ready.remove(&slot);
            model.filling.insert(slot, (filling, value));
        }
        6..=9 => {
            if let Some((filling, value)) = model.filling.remove(&slot) {
                assert_eq!(filling.bytes()[..1000], [value; 1000]);
                if rng.below(4) == 0 {
                    memory.abandon(filling);
                } else {
                    memory.finish(filling);
                    model.ready.insert(slot, value);
                }
            }
        }
        _ => {}
    }
}

fn check(memory: &SlotMemory, model: &ReferenceSlots, seed: u64) {
    let n_slabs = model.slabs.iter().filter(|&&it| it).count();
    assert_eq!((memory.n_slabs(), memory.n_slots()), (n_slabs, 3 * n_slabs), "seed {seed}");
    assert_eq!(memory.slabs().count(), n_slabs);
    for slot in 0..30 {
        let is_there = model.slabs.get(slot / 3) == Some(&true);
        let expected = match (model.ready.get(&slot), model.filling.get(&slot)) {
            _ if !is_there => SlotState::Absent,
            (Some(_), _) => SlotState::Ready,
            (_, Some(_)) => SlotState::Filling,
            _ => SlotState::Empty,
        };
        assert_eq!(memory.state(SlotIdx(slot)), expected, "seed {seed}, slot {slot}");
        if let Some(&value) = model.ready.get(&slot) {
            assert!(memory.bytes(SlotIdx(slot)).iter().all(|&it| it == value), "seed {seed}");
        }
    }
}

/// Only the counter of pieces shows that the other threads have written.
#[test]
fn pieces_are_written_elsewhere_while_other_slots_are_read() {
    let mut memory = memory_of(1);
    fill(&mut memory, SlotIdx(0), 7);
    for round in 0..if cfg!(miri) { 4 } else { 50 } {
        let mut filling = memory.begin_fill(SlotIdx(1));
        let pieces = [filling.take(0..400), filling.take(400..1000)];
        std::thread::scope(|scope| {
            let spawn = |mut piece: Piece| scope.spawn(move || piece.rest_mut().fill(round));
            let writers = pieces.map(spawn);
            assert_eq!(memory.bytes(SlotIdx(0)), [7; 1000]);
            while filling.n_pieces() > 0 {
                std::thread::yield_now();
            }
            assert_eq!(filling.bytes()[..1000], [round; 1000]);
            memory.finish(filling);
            assert_eq!(memory.bytes(SlotIdx(1)), [round; 1000]);
            // ThreadSanitizer recognises a join, but not that a scope waits for its threads.
            writers.into_iter().for_each(|it| it.join().unwrap());
        });
    }
}

#[test]
fn kept_bytes_of_a_piece_are_not_offered_again() {
    let mut memory = memory_of(1);
    let mut filling = memory.begin_fill(SlotIdx(2));
    let mut piece = filling.take(100..300);
    piece.rest_mut().fill(1);
    piece.keep(150);
    assert_eq!((piece.rest_bytes(), piece.kept_bytes(), piece.len_bytes()), (50, 150, 200));
    piece.rest_mut().fill(2);
    drop(piece);
    assert_eq!(filling.bytes()[100..300], [vec![1; 150], vec![2; 50]].concat());
    filling.restart();
    filling.take(0..0);
    memory.abandon(filling);
}

#[test]
fn a_piece_keeps_its_slab() {
    let mut memory = memory_of(1);
    let mut filling = memory.begin_fill(SlotIdx(0));
    let mut piece = filling.take(0..1000);
    let weak = Arc::downgrade(&memory.slab(SlabIdx(0)).unwrap().0);
    drop(memory);
    drop(filling);
    piece.rest_mut().fill(3);
    assert!(weak.upgrade().is_some());
    drop(piece);
    assert!(weak.upgrade().is_none());
}

#[test]
#[should_panic(expected = "is Filling")]
fn a_slot_that_is_being_filled_cannot_be_read() {
    let mut memory = memory_of(1);
    fill(&mut memory, SlotIdx(0), 1);
    let _filling = memory.begin_fill(SlotIdx(0));
    let _ = memory.bytes(SlotIdx(0));
}

#[test]
#[should_panic(expected = "is Filling")]
fn a_slot_is_filled_by_one() {
    let mut memory = memory_of(1);
    let _first = memory.begin_fill(SlotIdx(0));
    let _second = memory.begin_fill(SlotIdx(0));
}

#[test]
#[should_panic(expected = "is Absent")]
fn a_slot_without_memory_cannot_be_filled() {
    let _filling = memory_of(1).begin_fill(SlotIdx(3));
}

#[test]
#[should_panic(expected = "still out")]
fn a_slot_is_not_ready_while_a_piece_is_out() {
    let mut memory = memory_of(1);
    let mut filling = memory.begin_fill(SlotIdx(0));
    let _piece = filling.take(0..1);
    memory.finish(filling);
}

#[test]
#[should_panic(expected = "front to back")]
fn pieces_do_not_overlap() {
    let mut filling = memory_of(1).begin_fill(SlotIdx(0));
    let _first = filling.take(0..101);
    let _second = filling.take(100..200);
}

#[test]
#[should_panic(expected = "a piece of the slot")]
fn pieces_end_with_the_slot() {
    let mut filling = memory_of(1).begin_fill(SlotIdx(0));
    let _piece = filling.take(0..SLOT_ALIGN + 1);
}

#[test]
#[should_panic(expected = "its pieces can be counted")]
fn the_count_of_pieces_does_not_wrap() {
    let mut filling = memory_of(1).begin_fill(SlotIdx(0));
    filling.memory.n_pieces().store(u32::MAX, Ordering::Relaxed);
    let _piece = filling.take(0..0);
}

#[test]
#[should_panic(expected = "of this memory")]
fn a_filling_belongs_to_its_memory() {
    let mut memory = memory_of(1);
    let filling = memory_of(1).begin_fill(SlotIdx(0));
    memory.finish(filling);
}

#[test]
#[should_panic(expected = "being filled")]
fn a_slab_with_a_filling_is_not_given_back() {
    let mut memory = memory_of(1);
    let _filling = memory.begin_fill(SlotIdx(1));
    memory.shrink(SlabIdx(0));
}

#[test]
#[should_panic(expected = "holds the slab")]
fn a_slab_that_a_drive_holds_is_not_given_back() {
    let mut memory = memory_of(1);
    let _held = memory.slab(SlabIdx(0)).unwrap().clone();
    memory.shrink(SlabIdx(0));
}
