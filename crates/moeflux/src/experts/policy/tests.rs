//! Compares the policy with plain lists that are searched linearly.

use moeflux_io::SlotIdx;

use super::*;

const N_KEYS: usize = 40;

/// Xorshift; the same seed gives the same sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % n
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum PolicySlot {
    Outside,
    Pinned(usize),
    Idle(usize),
}

/// A model of the policy that derives scores from the whole history.
struct ReferencePolicy {
    slots: Vec<PolicySlot>,
    /// Per key: its uses, each with the rows of all steps begun by then and the rows that used it.
    uses: Vec<Vec<(usize, u32)>>,
    n_rows: usize,
}

impl ReferencePolicy {
    fn score(&self, slot: SlotIdx) -> f64 {
        let (PolicySlot::Pinned(key) | PolicySlot::Idle(key)) = self.slots[slot.0] else {
            unreachable!()
        };
        let weights = self.uses[key].iter().map(|&(at_row, n_uses)| {
            // With one use per row on average, a half-life is four times as many rows as keys.
            let half_lives = (self.n_rows - at_row) as f64 / (4.0 * N_KEYS as f64);
            f64::from(n_uses) * (-half_lives).exp2()
        });
        weights.sum()
    }
}

/// For prompts that use all experts about equally, layer by layer, nearly as many experts as there
/// are slots are hit in the next round.
#[test]
fn long_steps_evict_experts_that_they_have_used_first() {
    const N_SLOTS: usize = 16;
    let shape = PolicyShape { n_slots: N_SLOTS, n_keys: N_KEYS, n_uses_per_row: 4 };
    let mut policy = Lfu::new(shape);
    let mut random = Random(77);
    let mut slots: Vec<Option<usize>> = vec![None; N_SLOTS];
    let mut n_hits = 0;
    for round in 0..20 {
        policy.begin_step(200);
        for key in 0..N_KEYS {
            let n_uses = 15 + u32::try_from(random.below(11)).unwrap();
            if let Some(slot) = slots.iter().position(|it| *it == Some(key)) {
                n_hits += usize::from(round > 0);
                policy.pin(SlotIdx(slot));
                policy.hit(SlotIdx(slot), n_uses);
                policy.unpin(SlotIdx(slot));
                continue;
            }
            let free = slots.iter().position(Option::is_none).map(SlotIdx);
            let slot = free.unwrap_or_else(|| {
                let victim = policy.victim().unwrap();
                policy.remove(victim);
                victim
            });
            slots[slot.0] = Some(key);
            policy.admit(slot, KeyIdx(key), n_uses);
            policy.unpin(slot);
        }
    }
    let n_most = 19 * N_SLOTS;
    assert!(10 * n_hits > 7 * n_most, "{n_hits} hits of {n_most}");
}

/// Runs random operations on a policy; `check` receives each victim.
fn run(seed: u64, check: impl Fn(&ReferencePolicy, Option<SlotIdx>)) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
    let n_slots = 1 + random.below(12);
    let shape = PolicyShape { n_slots, n_keys: N_KEYS, n_uses_per_row: 1 };
    let mut policy = Lfu::new(shape);
    let mut reference = ReferencePolicy {
        slots: vec![PolicySlot::Outside; n_slots],
        uses: vec![Vec::new(); N_KEYS],
        n_rows: 0,
    };
    for _ in 1..3000 {
        let slot = SlotIdx(random.below(n_slots));
        let n_uses = 1 + u32::try_from(random.below(3)).unwrap();
        match (random.below(8), reference.slots[slot.0]) {
            (0, _) => {
                // Long enough now and then for weights to be scaled down.
                let n_rows = [1, 60][usize::from(random.below(10) == 0)];
                policy.begin_step(n_rows);
                reference.n_rows += n_rows;
            }
            (1..=3, PolicySlot::Outside) => {
                let key = random.below(N_KEYS);
                let key_in = |slot: &PolicySlot| match slot {
                    PolicySlot::Pinned(key) | PolicySlot::Idle(key) => Some(*key),
                    PolicySlot::Outside => None,
                };
                if !reference.slots.iter().any(|slot| key_in(slot) == Some(key)) {
                    policy.admit(slot, KeyIdx(key), n_uses);
                    reference.uses[key].push((reference.n_rows, n_uses));
                    reference.slots[slot.0] = PolicySlot::Pinned(key);
                }
            }
            (1..=3, PolicySlot::Pinned(key)) => {
                policy.unpin(slot);
                reference.slots[slot.0] = PolicySlot::Idle(key);
            }
            (4, PolicySlot::Pinned(key)) => {
                policy.hit(slot, n_uses);
                reference.uses[key].push((reference.n_rows, n_uses));
            }
            (4, PolicySlot::Idle(key)) => {
                policy.pin(slot);
                policy.hit(slot, n_uses);
                reference.uses[key].push((reference.n_rows, n_uses));
                reference.slots[slot.0] = PolicySlot::Pinned(key);
            }
            (5, PolicySlot::Pinned(_) | PolicySlot::Idle(_)) if random.below(4) == 0 => {
                policy.remove(slot);
                reference.slots[slot.0] = PolicySlot::Outside;
            }
            (6, _) => {
                let victim = policy.victim();
                check(&reference, victim);
                if let Some(slot) = victim {
                    policy.remove(slot);
                    reference.slots[slot.0] = PolicySlot::Outside;
                }
            }
            _ => {}
        }
    }
}

#[test]
fn a_victim_is_idle_and_there_is_one_where_any_is_idle() {
    for seed in 1..40 {
        run(seed, |reference, victim| {
            let is_idle = |at: &PolicySlot| matches!(at, PolicySlot::Idle(_));
            match victim {
                Some(slot) => assert!(is_idle(&reference.slots[slot.0]), "seed {seed}"),
                None => assert!(!reference.slots.iter().any(is_idle), "seed {seed}"),
            }
        });
    }
}

#[test]
fn lfu_names_the_lowest_sum_of_faded_uses() {
    for seed in 1..40 {
        run(seed, |reference, victim| {
            let Some(victim) = victim else { return };
            let score = reference.score(victim);
            let others = (0..reference.slots.len()).map(SlotIdx);
            for other in
                others.filter(|slot| matches!(reference.slots[slot.0], PolicySlot::Idle(_)))
            {
                assert!(score <= reference.score(other) * (1.0 + 1e-9), "seed {seed}");
            }
        });
    }
}

#[test]
fn weights_that_outgrow_a_float_are_scaled_down_in_order() {
    let shape = PolicyShape { n_slots: 3, n_keys: 4, n_uses_per_row: 3 };
    let mut policy = Lfu::new(shape);
    for (slot_idx, n_uses) in [(0, 5), (1, 4), (2, 6)] {
        let slot = SlotIdx(slot_idx);
        policy.admit(slot, KeyIdx(slot_idx), n_uses);
        policy.unpin(slot);
    }
    // Half a half-life per step, however many rows: some 1,000 half-lives in all.
    for _ in 0..2000 {
        policy.begin_step(1 << 16);
        for slot in [0, 1, 2].map(SlotIdx) {
            policy.pin(slot);
            policy.hit(slot, [5, 4, 6][slot.0] * 1000);
            policy.unpin(slot);
        }
        assert_eq!(policy.victim(), Some(SlotIdx(1)));
    }
}

/// Where every token uses all experts in turn, all slots but two keep theirs, at equal distances.
#[test]
fn in_a_cycle_some_experts_stay_and_the_others_pass_through_two_slots() {
    const N_SLOTS: usize = 12;
    let shape = PolicyShape { n_slots: N_SLOTS, n_keys: N_KEYS, n_uses_per_row: N_KEYS };
    let mut policy = Lfu::new(shape);
    let mut slots: Vec<Option<usize>> = vec![None; N_SLOTS];
    for round in 0..20 {
        policy.begin_step(1);
        let mut hits = Vec::new();
        for key in 0..N_KEYS {
            if let Some(slot) = slots.iter().position(|it| *it == Some(key)) {
                hits.push(key);
                policy.pin(SlotIdx(slot));
                policy.hit(SlotIdx(slot), 1);
                policy.unpin(SlotIdx(slot));
                continue;
            }
            let free = slots.iter().position(Option::is_none).map(SlotIdx);
            let slot = free.unwrap_or_else(|| {
                let victim = policy.victim().unwrap();
                policy.remove(victim);
                victim
            });
            slots[slot.0] = Some(key);
            policy.admit(slot, KeyIdx(key), 1);
            policy.unpin(slot);
        }
        let stays = |n: usize| hits.contains(&(4 * n + 3));
        assert!(round == 0 || (0..10).all(stays), "{hits:?} in round {round}");
    }
}

#[test]
fn in_a_cycle_nothing_leaves_for_an_expert_that_is_needed_later() {
    let mut policy = Lfu::new(PolicyShape { n_slots: 2, n_keys: 4, n_uses_per_row: 4 });
    for key in [0, 1] {
        policy.admit(SlotIdx(key), KeyIdx(key), 1);
    }
    policy.unpin(SlotIdx(0));
    // 2 and 3 are needed before 0, which is needed before 1.
    assert_eq!(policy.victim_for(KeyIdx(3)), Some(SlotIdx(0)));
    assert_eq!(policy.victim_for(KeyIdx(1)), None);
    policy.unpin(SlotIdx(1));
    assert_eq!(policy.victim_for(KeyIdx(0)), Some(SlotIdx(1)));
    // An expert that is read ahead has not been used by that.
    policy.remove(SlotIdx(1));
    policy.admit(SlotIdx(1), KeyIdx(2), 0);
    policy.unpin(SlotIdx(1));
    assert_eq!(policy.victim_for(KeyIdx(3)), Some(SlotIdx(0)));
}
