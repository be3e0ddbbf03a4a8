//! The hits of a policy that knows the future: Belady's MIN over unions.
//!
//! Keeps the experts that are needed soonest. A decode block demands all its experts together: if
//! they fit, all are in slots while the block is computed, so none of them makes room for another.
//! Among experts next needed by the same block, it does not matter which leaves. **Invariant:** an
//! upper bound for every order of work: in a prompt's block, or one that needs more slots than
//! there are, all experts in memory are hit, and those needed soonest stay.

use std::collections::BinaryHeap;

use super::Replayed;
use crate::experts::trace::{StepKind, Trace, TraceBlock};

/// Marks an expert that no later block needs.
const NEVER: usize = usize::MAX;

/// Returns the most that any policy could hit from an empty table.
///
/// # Panics
///
/// If there are no slots.
#[must_use]
pub fn bound(trace: &Trace, n_slots: usize) -> Replayed {
    assert!(n_slots > 0, "an expert is computed from a slot");
    let blocks: Vec<TraceBlock<'_>> = trace.blocks().collect();
    let keys = keys(trace, &blocks);
    let next_blocks = next_blocks(&keys, trace.header().n_experts());
    let mut cache = BeladyCache::new(trace.header().n_experts());
    let mut replayed = Replayed::default();
    for (block_idx, block) in blocks.iter().enumerate() {
        let mut n_misses = 0;
        for (&key, &next_block) in keys[block_idx].iter().zip(&next_blocks[block_idx]) {
            n_misses += u64::from(!cache.has(key));
            cache.keep(key, (block_idx, next_block));
        }
        replayed.add(trace, block, n_misses);
        let is_whole = block.kind == StepKind::Decode && block.uses.len() <= n_slots;
        let held = if is_whole { block_idx } else { NEVER };
        cache.shrink(n_slots, held);
    }
    replayed
}

/// Returns the experts of each block, numbered over all layers.
fn keys(trace: &Trace, blocks: &[TraceBlock<'_>]) -> Vec<Vec<usize>> {
    let mut n_keys = 0;
    let starts = trace.header().layers.iter().map(|layer| {
        n_keys += layer.n_experts;
        n_keys - layer.n_experts
    });
    let starts: Vec<usize> = starts.collect();
    let of_block = |block: &TraceBlock<'_>| {
        let start = starts[block.layer.0];
        block.uses.iter().map(|it| start + it.expert as usize).collect()
    };
    blocks.iter().map(of_block).collect()
}

/// Returns, for each use of an expert, the block of its next use.
fn next_blocks(keys: &[Vec<usize>], n_keys: usize) -> Vec<Vec<usize>> {
    let mut seen = vec![NEVER; n_keys];
    let mut next_blocks: Vec<Vec<usize>> = Vec::with_capacity(keys.len());
    for (block_idx, keys) in keys.iter().enumerate().rev() {
        let next = keys.iter().map(|&key| std::mem::replace(&mut seen[key], block_idx));
        next_blocks.push(next.collect());
    }
    next_blocks.reverse();
    next_blocks
}

#[derive(Clone, Copy)]
struct Use {
    last_block: usize,
    next_block: usize,
}

struct BeladyCache {
    /// Per key, if it is held.
    held: Vec<Option<Use>>,
    n_held: usize,
    /// The next block of each held key, farthest first; outdated entries of a key remain.
    farthest: BinaryHeap<(usize, usize)>,
}

impl BeladyCache {
    fn new(n_keys: usize) -> Self {
        Self { held: vec![None; n_keys], n_held: 0, farthest: BinaryHeap::new() }
    }

    fn has(&self, key: usize) -> bool {
        self.held[key].is_some()
    }

    fn keep(&mut self, key: usize, (last_block, next_block): (usize, usize)) {
        let before = self.held[key].replace(Use { last_block, next_block });
        self.n_held += usize::from(before.is_none());
        self.farthest.push((next_block, key));
    }

    /// Evicts the keys needed last, except those of `held_block`.
    fn shrink(&mut self, n_slots: usize, held_block: usize) {
        let mut passed = Vec::new();
        while self.n_held > n_slots {
            let entry = self.farthest.pop().expect("each held key has an entry");
            let (next_block, key) = entry;
            let Some(found) = self.held[key].filter(|it| it.next_block == next_block) else {
                continue;
            };
            if found.last_block == held_block {
                passed.push(entry);
            } else {
                self.held[key] = None;
                self.n_held -= 1;
            }
        }
        self.farthest.extend(passed);
    }
}
