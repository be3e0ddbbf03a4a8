//! Compares the table with a reference that keeps everything in plain lists, and tests single
//! cases.

use super::*;

const N_EXPERTS: [usize; 4] = [0, 6, 0, 9];

fn table(n_slots: usize) -> SlotTable {
    SlotTable::new(TableShape { n_experts: &N_EXPERTS, n_uses_per_row: 4, n_slots })
}

fn demands(experts: &[usize]) -> Vec<Demand> {
    experts.iter().map(|&expert| Demand { expert: ExpertIdx(expert), n_uses: 1 }).collect()
}

/// Xorshift; the same seed gives the same sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % n
    }

    /// Returns a random subset of a layer's experts.
    fn subset(&mut self, n_experts: usize) -> Vec<usize> {
        let share = 1 + self.below(4);
        (0..n_experts).filter(|_| self.below(4) < share).collect()
    }
}

#[derive(Clone, Copy, Debug)]
struct ExpectedSlot {
    layer: usize,
    expert: usize,
    state: FillState,
    n_leases: usize,
}

/// The expected state of each slot; slots from `n_open` on are closing.
struct ReferenceTable {
    slots: Vec<Option<ExpectedSlot>>,
    n_open: usize,
}

impl ReferenceTable {
    fn find(&self, layer: usize, expert: usize) -> Option<usize> {
        self.slots.iter().position(|slot| {
            let matches = |it: &ExpectedSlot| (it.layer, it.expert) == (layer, expert);
            slot.is_some_and(|it| matches(&it) && it.state != FillState::Failed)
        })
    }

    fn is_idle(&self, slot: usize) -> bool {
        self.slots[slot]
            .is_some_and(|it| it.n_leases == 0 && matches!(it.state, FillState::Ready(_)))
    }

    /// Returns the number of guesses that no demand has used.
    fn n_unused_guesses(&self) -> usize {
        let is_guess = |it: &&Option<ExpectedSlot>| {
            it.is_some_and(|it| {
                matches!(
                    it.state,
                    FillState::Loading(Cause::Guess) | FillState::Ready(Cause::Guess)
                )
            })
        };
        self.slots.iter().filter(is_guess).count()
    }

    /// Returns the number of slots that a demand can fill.
    fn n_available(&self) -> usize {
        (0..self.n_open).filter(|&slot| self.slots[slot].is_none() || self.is_idle(slot)).count()
    }

    fn acquire(&mut self, table: &mut SlotTable, layer: usize, experts: &[usize], n_max: usize) {
        let mut left = demands(experts);
        let mut leases = Vec::new();
        for &expert in experts {
            if let Some(slot) = self.find(layer, expert) {
                let expected_slot = self.slots[slot].as_mut().unwrap();
                expected_slot.n_leases += 1;
            }
        }
        let n_available = self.n_available().min(n_max);
        let present = experts.iter().filter(|&&expert| self.find(layer, expert).is_some());
        let n_present = present.count();
        table.acquire(LayerIdx(layer), &mut left, n_max, &mut leases);
        assert!(leases.is_sorted_by(|a, b| a.expert < b.expert));
        assert_eq!(leases.len(), n_present + n_available.min(experts.len() - n_present));
        for &SlotLease { expert, slot, lookup } in &leases {
            match (self.find(layer, expert.0), lookup) {
                (None, Lookup::ToRead) => {
                    assert!(slot.0 < self.n_open);
                    assert!(
                        self.slots[slot.0].is_none() || self.is_idle(slot.0),
                        "the slot is in use"
                    );
                    let state = FillState::Loading(Cause::Demand);
                    let expected_slot =
                        ExpectedSlot { layer, expert: expert.0, state, n_leases: 1 };
                    self.slots[slot.0] = Some(expected_slot);
                }
                (Some(at), Lookup::InMemory | Lookup::Loading) => {
                    assert_eq!(at, slot.0);
                    let expected_slot = self.slots[at].as_mut().unwrap();
                    let is_ready = matches!(expected_slot.state, FillState::Ready(_));
                    assert_eq!(is_ready, lookup == Lookup::InMemory);
                    let used = if is_ready { FillState::Ready } else { FillState::Loading };
                    expected_slot.state = used(Cause::Demand);
                }
                other => unreachable!("{other:?}"),
            }
        }
        let rest = experts.iter().filter(|&&it| leases.iter().all(|lease| lease.expert.0 != it));
        assert_eq!(left, demands(&rest.copied().collect::<Vec<_>>()));
    }

    fn guess(&mut self, table: &mut SlotTable, layer: usize, ranked: &[usize], n_max: usize) {
        let experts: Vec<_> = ranked.iter().copied().map(ExpertIdx).collect();
        let mut guesses = Vec::new();
        let n_before = self.n_unused_guesses();
        table.guess(LayerIdx(layer), &experts, n_max, &mut guesses);
        assert!(guesses.len() <= n_max);
        for &GuessedExpert { expert, slot } in &guesses {
            assert!(ranked.contains(&expert.0) && self.find(layer, expert.0).is_none());
            let evicted = self.slots[slot.0];
            assert!(slot.0 < self.n_open && (evicted.is_none() || self.is_idle(slot.0)));
            let is_ranked =
                evicted.is_some_and(|it| it.layer == layer && ranked.contains(&it.expert));
            assert!(!is_ranked, "a guess evicts another expert of the same list");
            let state = FillState::Loading(Cause::Guess);
            self.slots[slot.0] = Some(ExpectedSlot { layer, expert: expert.0, state, n_leases: 0 });
        }
        assert!(
            self.n_unused_guesses() <= n_before.max(self.n_open / 2),
            "more than half are guesses"
        );
    }

    /// Empties a slot if its read failed and its leases ended, or if it is closing and idle.
    fn settle(&mut self, slot: usize) {
        let is_done = match self.slots[slot] {
            Some(ExpectedSlot { state: FillState::Failed, n_leases: 0, .. }) => true,
            _ => slot >= self.n_open && self.is_idle(slot),
        };
        if is_done {
            self.slots[slot] = None;
        }
    }

    fn resize(&mut self, n_slots: usize) {
        self.n_open = n_slots;
        self.slots.resize(n_slots.max(self.slots.len()), None);
        (0..self.slots.len()).for_each(|slot| self.settle(slot));
    }

    fn check(&self, table: &SlotTable) {
        for (slot, expected_slot) in self.slots.iter().enumerate() {
            let expected = expected_slot.filter(|it| it.state != FillState::Failed);
            let expected = expected.map(|it| (LayerIdx(it.layer), ExpertIdx(it.expert)));
            assert_eq!(table.expert_in(SlotIdx(slot)), expected, "slot {slot}");
            if let Some((layer, expert)) = expected {
                assert_eq!(table.slot_of(layer, expert), Some(SlotIdx(slot)));
            }
        }
        assert_eq!(table.n_slots(), self.n_open);
        assert_eq!(table.n_guessed, self.n_unused_guesses());
        let n_closing = self.slots[self.n_open..].iter().flatten().count();
        assert_eq!(table.n_closing(), n_closing);
        let TableCounters { guesses, guesses_used, guesses_wasted, .. } = table.counters();
        assert_eq!(guesses, guesses_used + guesses_wasted + self.n_unused_guesses() as u64);
    }

    /// Runs one random operation.
    fn step(&mut self, table: &mut SlotTable, random: &mut Random) {
        let layer = [1, 3][random.below(2)];
        let slot = random.below(self.slots.len());
        match (random.below(12), self.slots[slot]) {
            (0, _) => table.begin_step(1 + random.below(600)),
            (1 | 2, _) => {
                let experts = random.subset(N_EXPERTS[layer]);
                let n_max = [2, usize::MAX][random.below(2)];
                self.acquire(table, layer, &experts, n_max);
            }
            (3, _) => {
                let mut ranked = random.subset(N_EXPERTS[layer]);
                let middle = random.below(ranked.len() + 1);
                ranked.rotate_left(middle);
                self.guess(table, layer, &ranked, random.below(5));
            }
            (4, _) if random.below(8) == 0 => {
                let n_slots = 1 + random.below(20);
                if n_slots < self.n_open {
                    table.shrink(n_slots);
                } else {
                    table.grow(n_slots);
                }
                self.resize(n_slots);
            }
            (5..=8, Some(ExpectedSlot { state: FillState::Loading(cause), n_leases, .. })) => {
                let failed = random.below(6) == 0;
                if failed {
                    table.failed(SlotIdx(slot));
                } else {
                    table.loaded(SlotIdx(slot));
                }
                let state = if failed { FillState::Failed } else { FillState::Ready(cause) };
                let expected_slot = self.slots[slot].as_mut().unwrap();
                (expected_slot.state, expected_slot.n_leases) = (state, n_leases);
                self.settle(slot);
            }
            (9.., Some(ExpectedSlot { n_leases: 1.., .. })) => {
                table.release(SlotIdx(slot));
                self.slots[slot].as_mut().unwrap().n_leases -= 1;
                self.settle(slot);
            }
            _ => {}
        }
    }
}

#[test]
fn random_operations_agree_with_plain_lists() {
    for seed in 1..=60 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let n_slots = 1 + random.below(16);
        let mut table = table(n_slots);
        let mut reference = ReferenceTable { slots: vec![None; n_slots], n_open: n_slots };
        for step_idx in 0..400 {
            reference.step(&mut table, &mut random);
            let checked = std::panic::AssertUnwindSafe(|| reference.check(&table));
            let is_sound = std::panic::catch_unwind(checked).is_ok();
            assert!(is_sound, "seed {seed}, step {step_idx}");
        }
    }
}

/// Serves a whole layer, batch by batch; returns the sizes of the batches.
fn serve(table: &mut SlotTable, layer: usize, demands: Vec<Demand>) -> Vec<usize> {
    serve_by(table, layer, demands, usize::MAX)
}

fn serve_by(
    table: &mut SlotTable,
    layer: usize,
    mut demands: Vec<Demand>,
    n_reads_max: usize,
) -> Vec<usize> {
    let (mut leases, mut batches) = (Vec::new(), Vec::new());
    while !demands.is_empty() {
        table.acquire(LayerIdx(layer), &mut demands, n_reads_max, &mut leases);
        assert!(!leases.is_empty(), "a batch without experts");
        batches.push(leases.len());
        for lease in &leases {
            if lease.lookup == Lookup::ToRead {
                table.loaded(lease.slot);
            }
        }
        leases.iter().for_each(|lease| table.release(lease.slot));
    }
    batches
}

#[test]
fn demands_larger_than_the_pool_come_in_batches_that_keep_the_hits() {
    let mut table = table(4);
    serve(&mut table, 3, demands(&[1, 7, 8]));
    // The three in memory come first, with one slot for a miss; then four and one.
    assert_eq!(serve(&mut table, 3, demands(&[0, 1, 2, 3, 4, 5, 6, 7, 8])), [4, 4, 1]);
    let TableCounters { hits, misses, .. } = table.counters();
    assert_eq!((hits, misses), (3, 9));
}

#[test]
fn the_experts_that_a_prompt_used_most_stay_for_decoding() {
    let mut table = table(5);
    let of_chunk = |n_uses: &[u32]| -> Vec<Demand> {
        let uses = n_uses.iter().enumerate();
        let demands = uses.map(|(it, &n_uses)| Demand { expert: ExpertIdx(it), n_uses });
        demands.filter(|it| it.n_uses > 0).collect()
    };
    for _ in 0..2 {
        table.begin_step(64);
        serve_by(&mut table, 1, of_chunk(&[40, 1, 2, 0, 35, 50]), 1);
        serve_by(&mut table, 3, of_chunk(&[3, 2, 1, 60, 3, 2, 4, 3, 50]), 1);
    }
    // The others passed through one slot.
    let hottest = [(1, 5), (3, 3), (3, 8), (1, 0)];
    for (layer, expert) in hottest {
        let slot = table.slot_of(LayerIdx(layer), ExpertIdx(expert));
        assert!(slot.is_some(), "layer {layer} expert {expert}");
    }
}

#[test]
fn a_failed_read_is_requested_again_while_old_leases_end() {
    let mut table = table(2);
    let mut leases = Vec::new();
    table.acquire(LayerIdx(1), &mut demands(&[3]), 9, &mut leases);
    let first = leases[0].slot;
    table.failed(first);
    table.acquire(LayerIdx(1), &mut demands(&[3]), 9, &mut leases);
    assert_eq!(leases[0].lookup, Lookup::ToRead);
    assert_ne!(leases[0].slot, first, "the first slot still has a lease");
    table.release(first);
    table.loaded(leases[0].slot);
    table.release(leases[0].slot);
    assert_eq!(serve(&mut table, 3, demands(&[0, 1])), [2]);
    assert_eq!(table.counters().failures, 1);
}

#[test]
fn a_guess_in_flight_becomes_a_demand_and_an_unused_one_goes_first() {
    let mut table = table(4);
    serve(&mut table, 1, demands(&[0, 1]));
    let (mut guesses, mut leases) = (Vec::new(), Vec::new());
    let ranked = [5, 2, 0, 4].map(ExpertIdx);
    table.guess(LayerIdx(3), &ranked, 8, &mut guesses);
    assert_eq!(guesses.iter().map(|it| it.expert.0).collect::<Vec<_>>(), [5, 2], "half of 4");
    table.loaded(guesses[0].slot);
    table.acquire(LayerIdx(3), &mut demands(&[2, 3]), 9, &mut leases);
    let lookups = leases.iter().map(|it| (it.slot, it.lookup)).collect::<Vec<_>>();
    assert_eq!(lookups[0], (guesses[1].slot, Lookup::Loading));
    assert_eq!(lookups[1], (guesses[0].slot, Lookup::ToRead), "the unused guess made room");
    let TableCounters { guesses, guesses_used, guesses_wasted, evictions, .. } = table.counters();
    assert_eq!((guesses, guesses_used, guesses_wasted, evictions), (2, 1, 1, 1));
}

#[test]
#[should_panic(expected = "experts ascend")]
fn demands_out_of_order_panic() {
    table(4).acquire(LayerIdx(1), &mut demands(&[2, 1]), 9, &mut Vec::new());
}

#[test]
#[should_panic(expected = "layer 1 has no")]
fn a_demand_for_an_expert_that_the_layer_lacks_panics() {
    table(4).acquire(LayerIdx(1), &mut demands(&[6]), 9, &mut Vec::new());
}
