//! Traces written as text: `a b*3 | c` is two blocks of one layer, `b` being chosen by three rows.
//! In the output, hits are capitals.

use super::*;
use crate::experts::trace::{LayerShape, TraceHeader, TraceUse};
use crate::ids::LayerIdx;

fn trace(text: &str) -> Trace {
    let layer = LayerShape { n_experts: 26, top_k: 1, record_bytes: 10 };
    let mut trace = Trace::empty(TraceHeader { fingerprint: 0, layers: vec![layer] });
    for block in text.split('|') {
        let uses = block.split_whitespace().map(|word| {
            let (name, n_uses) = word.split_once('*').unwrap_or((word, "1"));
            let expert = u32::from(name.as_bytes()[0] - b'a');
            TraceUse { expert, n_uses: n_uses.parse().unwrap() }
        });
        let uses: Vec<_> = uses.collect();
        let layer = LayerIdx(0);
        trace.push(TraceBlock { kind: StepKind::Decode, n_rows: 1, layer, uses: &uses });
    }
    trace
}

/// Replays a trace over a table that begins at most `n_reads_max` reads at a time; hits are
/// capitals.
fn hits((n_slots, n_reads_max): (usize, usize), text: &str) -> String {
    let shape = TableShape { n_experts: &[26], n_uses_per_row: 1, n_slots };
    let mut table = SlotTable::new(shape);
    let mut blocks = Vec::new();
    for block in trace(text).blocks() {
        table.begin_step(1);
        let uses = block.uses.iter();
        let mut demands: Vec<_> = uses
            .map(|it| Demand { expert: ExpertIdx(it.expert as usize), n_uses: it.n_uses })
            .collect();
        let (mut leases, mut all) = (Vec::new(), Vec::new());
        while !demands.is_empty() {
            table.acquire(LayerIdx(0), &mut demands, n_reads_max, &mut leases);
            serve(&mut table, &leases);
            all.extend_from_slice(&leases);
        }
        all.sort_by_key(|lease| lease.expert);
        let words = all.iter().map(|lease| {
            let letter = char::from(b'a' + u8::try_from(lease.expert.0).unwrap());
            let is_hit = lease.lookup == Lookup::InMemory;
            if is_hit { letter.to_uppercase().to_string() } else { letter.to_string() }
        });
        blocks.push(words.collect::<Vec<_>>().join(" "));
    }
    blocks.join(" | ")
}

#[track_caller]
fn check(n_slots: usize, text: &str, expected: &str) {
    let found = hits((n_slots, usize::MAX), text);
    assert_eq!(found, expected, "{n_slots} slots");
}

#[test]
fn experts_that_fit_are_kept() {
    check(3, "a b c | a b c | b", "a b c | A B C | B");
    check(1, "a | a | b | a", "a | A | b | a");
    // A union larger than the pool is read in batches; experts in memory are hit first.
    check(2, "c d | a b c d", "c d | a b C D");
}

#[test]
fn lfu_keeps_the_frequent_and_remembers_those_that_left() {
    check(2, "a | a | b | c | a | d | a", "a | A | b | c | A | d | A");
    // c was used twice when b, used once, is compared with it.
    check(1, "a | b | a | b | a", "a | b | a | b | a");
    check(2, "a*9 | b | c | b | c | a", "a | b | c | b | c | A");
    // An expert that a chunk used often stays; one used once leaves first.
    let found = hits((3, 1), "a*9 b c*9 d | a c");
    assert_eq!(found, "a b c d | A C");
}

#[test]
fn the_bound_knows_the_future() {
    for (n_slots, text, n_hits) in [
        (2, "a | b | c | a | b | c", 2),
        (2, "a | b | a | c | a | b", 2),
        (1, "a | a | b | a", 1),
        // All experts of a block are held at once: a cannot stay beside b and c.
        (2, "a | b c | a", 0),
        (3, "a | b c | a", 1),
        // d e f need more slots than there are; a stays beside the slot that they take in turn.
        (2, "a | d e f | a", 1),
        (2, "a b | a b c | a b", 4),
    ] {
        let found = bound(&trace(text), n_slots).decode;
        assert_eq!(found.n_hits, n_hits, "{n_slots} slots: {text}");
        assert_eq!(found.read_bytes, 10 * found.n_misses);
    }
}

/// Returns the fewest misses over all choices of victims, by exhaustive search.
fn fewest_misses(blocks: &[u32], held: u32, n_slots: u32) -> u32 {
    let Some((&block, rest)) = blocks.split_first() else { return 0 };
    let n_misses = (block & !held).count_ones();
    let after = block | held;
    // Try each set that keeps the block and fits.
    let mut best = u32::MAX;
    let mut kept = after;
    loop {
        if kept & block == block && kept.count_ones() <= n_slots {
            best = best.min(fewest_misses(rest, kept, n_slots));
        }
        if kept == 0 {
            return n_misses + best;
        }
        kept = (kept - 1) & after;
    }
}

/// Xorshift; the same seed gives the same sequence.
fn random_bits(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed >> 20
}

#[test]
fn the_bound_is_the_best_of_all_choices_and_the_policy_is_not_better() {
    let mut seed = 0x2545_f491_4f6c_dd1d;
    for round in 0..400 {
        let n_slots = 2 + random_bits(&mut seed) % 3;
        let n_experts = 4 + random_bits(&mut seed) % 3;
        let blocks: Vec<u32> = (0..7)
            .map(|_| {
                let mut block = 0_u32;
                for _ in 0..1 + random_bits(&mut seed) % n_slots {
                    block |= 1 << (random_bits(&mut seed) % n_experts);
                }
                block
            })
            .collect();
        let words = blocks.iter().map(|block| {
            let letters = (0..26_u8).filter(|it| block >> it & 1 == 1);
            letters.map(|it| char::from(b'a' + it).to_string()).collect::<Vec<_>>().join(" ")
        });
        let text = words.collect::<Vec<_>>().join(" | ");
        let n_misses = bound(&trace(&text), usize::try_from(n_slots).unwrap()).decode.n_misses;
        let best = fewest_misses(&blocks, 0, u32::try_from(n_slots).unwrap());
        assert_eq!(n_misses, u64::from(best), "round {round}: {n_slots} slots: {text}");
        let found = replay(&trace(&text), usize::try_from(n_slots).unwrap());
        assert!(found.decode.n_misses >= n_misses, "{text}");
    }
}

#[test]
fn prompts_and_answers_are_counted_apart() {
    let layer = LayerShape { n_experts: 4, top_k: 2, record_bytes: 7 };
    let mut trace = Trace::empty(TraceHeader { fingerprint: 0, layers: vec![layer; 2] });
    for (kind, n_rows) in [(StepKind::Prefill, 5), (StepKind::Decode, 1)] {
        for layer in [0, 1].map(LayerIdx) {
            let uses = [0, 3].map(|expert| TraceUse { expert, n_uses: 1 });
            trace.push(TraceBlock { kind, n_rows, layer, uses: &uses });
        }
    }
    for replayed in [replay(&trace, 4), bound(&trace, 4)] {
        assert_eq!(replayed.prefill, Tally { n_hits: 0, n_misses: 4, read_bytes: 28 });
        assert_eq!(replayed.decode, Tally { n_hits: 4, n_misses: 0, read_bytes: 0 });
        assert_eq!(replayed.decode.hit_rate(), Some(1.0));
    }
    assert_eq!(Tally::default().hit_rate(), None);
}

/// Generates routes of 8 layers of 32 experts, 4 per token, in which low indices are far more
/// frequent; each layer permutes them differently.
fn skewed(seed: &mut u64, n_steps: usize) -> Trace {
    let layer = LayerShape { n_experts: 32, top_k: 4, record_bytes: 1 };
    let mut trace = Trace::empty(TraceHeader { fingerprint: 0, layers: vec![layer; 8] });
    for _ in 0..n_steps {
        for layer_idx in 0..8_u64 {
            let mut chosen = 0_u32;
            while chosen.count_ones() < 4 {
                let (a, b) = (random_bits(seed) % 32, random_bits(seed) % 32);
                // An odd factor permutes the experts.
                chosen |= 1 << ((a * b / 32 * (2 * layer_idx + 1)) % 32);
            }
            let experts = (0..32).filter(|it| chosen >> it & 1 == 1);
            let uses: Vec<_> = experts.map(|expert| TraceUse { expert, n_uses: 1 }).collect();
            let layer = LayerIdx(usize::try_from(layer_idx).unwrap());
            trace.push(TraceBlock { kind: StepKind::Decode, n_rows: 1, layer, uses: &uses });
        }
    }
    trace
}

#[test]
fn the_policy_is_near_the_bound_on_skewed_routes() {
    let trace = skewed(&mut 0x1234_5678_9abc_def1, 1500);
    for n_slots in [32, 64, 128] {
        let rate = replay(&trace, n_slots).decode.hit_rate().unwrap();
        let bound = bound(&trace, n_slots).decode.hit_rate().unwrap();
        assert!(rate > bound - 0.2 && rate <= bound, "{n_slots}: {rate}, {bound}");
    }
}
