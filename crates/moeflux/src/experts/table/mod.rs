//! Which expert is in which slot. The table decides; its caller reads.
//!
//! Requested experts are mapped to slots: in memory, on their way, or to be read now.
//! **Invariant:** an expert is in at most one slot; a slot with a lease or a read under way keeps
//! its expert; guesses give way to demands and hold at most half of the slots. Pure: the same calls
//! give the same results. Calls allocate nothing once the caller's lists have grown. This module
//! knows slots and indices, never bytes or files.

mod guess;
mod keys;
mod list;
mod size;

use moeflux_io::SlotIdx;

use crate::experts::policy::{KeyIdx, Lfu, PolicyShape};
use crate::ids::{ExpertIdx, LayerIdx};

use keys::ExpertKeys;
use list::{SlotLinks, SlotList};

/// A prompt's reads under way take one slot in this many; the rest keep the experts it uses most.
const PROMPT_READS_SHARE: usize = 8;

/// Lower bound: fewer reads leave a drive idle. With 16, the short chats of the bundled model lost
/// up to 4 hits of 100 during prefill.
const N_PROMPT_READS_MIN: usize = 8;

/// Upper bound: more reads make no drive faster.
const N_PROMPT_READS_MAX: usize = 64;

/// An expert chosen by rows of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Its index in the layer.
    pub expert: ExpertIdx,
    /// Rows that chose it: the experts that a prompt used most are the ones to stay.
    pub n_uses: u32,
}

/// Where a requested expert was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// It may be computed at once.
    InMemory,
    /// A read that began earlier will bring it. That read serves a demand from now on.
    Loading,
    /// The caller must begin to read it.
    ToRead,
}

/// An expert with a lease on its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotLease {
    /// Its index in the layer.
    pub expert: ExpertIdx,
    /// The slot where it is or will be.
    pub slot: SlotIdx,
    /// Where the expert was found.
    pub lookup: Lookup,
}

/// An expert to be read before it is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuessedExpert {
    /// Its index in the layer.
    pub expert: ExpertIdx,
    /// The slot where it will be.
    pub slot: SlotIdx,
}

/// Event counts since the table was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableCounters {
    /// Experts that were in memory when they were requested, including guessed ones.
    pub hits: u64,
    /// Experts whose read was under way when they were requested.
    pub on_their_way: u64,
    /// Experts that had to be read.
    pub misses: u64,
    /// Experts read as guesses.
    pub guesses: u64,
    /// Guessed experts that were requested later.
    pub guesses_used: u64,
    /// Guessed experts that left before they were requested, including failed and cancelled reads.
    pub guesses_wasted: u64,
    /// Experts evicted from a slot.
    pub evictions: u64,
    /// Reads that failed or were cancelled.
    pub failures: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Demand,
    Guess,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FillState {
    Free,
    Loading(Cause),
    Ready(Cause),
    /// The read failed; the slot is free once it has no leases.
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct TableSlot {
    state: FillState,
    n_leases: usize,
    /// Its expert; unspecified where the slot is free.
    key: KeyIdx,
    /// The last round of guessing that named this expert.
    guess_round: u64,
}

/// The slots of a model.
#[derive(Debug)]
pub(crate) struct SlotTable {
    keys: ExpertKeys,
    /// Per key: its slot.
    slot_of: Vec<Option<SlotIdx>>,
    slots: Vec<TableSlot>,
    /// Slots from here on are given up as soon as they are unused.
    n_open: usize,
    /// Slots from `n_open` on that are not free yet.
    n_closing: usize,
    free: Vec<SlotIdx>,
    policy: Lfu,
    /// Slots that the policy knows: more than `n_open` until the last closing slot is given up.
    n_policy_slots: usize,
    links: SlotLinks,
    /// Ready guesses that have not been used.
    unused: SlotList,
    /// All unused guesses, including those whose read is under way.
    n_guessed: usize,
    guess_round: u64,
    /// Slots passed over while a guess looks for room.
    passed: Vec<SlotIdx>,
    counters: TableCounters,
}

/// The sizes that a table is created for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableShape<'a> {
    /// Routed experts of each layer; none in dense layers.
    pub n_experts: &'a [usize],
    /// Experts that one token uses, over all layers.
    pub n_uses_per_row: usize,
    /// Initial number of slots.
    pub n_slots: usize,
}

impl SlotTable {
    /// Creates a table of free slots.
    ///
    /// # Panics
    ///
    /// If there are no slots: computing an expert takes one.
    #[must_use]
    pub(crate) fn new(shape: TableShape<'_>) -> Self {
        let TableShape { n_experts, n_uses_per_row, n_slots } = shape;
        assert!(n_slots > 0, "an expert is computed from a slot");
        let keys = ExpertKeys::new(n_experts);
        let n_keys = keys.n_keys();
        let mut table = Self {
            slot_of: vec![None; n_keys],
            keys,
            slots: Vec::new(),
            n_open: 0,
            n_closing: 0,
            free: Vec::new(),
            policy: Lfu::new(PolicyShape { n_slots: 0, n_keys, n_uses_per_row }),
            n_policy_slots: 0,
            links: SlotLinks::default(),
            unused: SlotList::new(),
            n_guessed: 0,
            guess_round: 0,
            passed: Vec::new(),
            counters: TableCounters::default(),
        };
        table.grow(n_slots);
        table
    }

    /// Begins a step of `n_rows` rows; its layers follow in order.
    pub(crate) fn begin_step(&mut self, n_rows: usize) {
        self.policy.begin_step(n_rows);
    }

    /// Leases slots for the experts of `demands` (ascending, each once) and lists them in `leases`,
    /// ascending. Experts in memory or on their way are always leased. Of the others, up to
    /// `n_reads_max` get slots, in ascending order, as long as there is room. Leased experts are
    /// removed from `demands`: if some remain, the caller computes and releases what it has and
    /// calls again. If nothing was leased, all slots are held by other leases and reads.
    ///
    /// A step of few rows takes all it can get. A prompt takes [`SlotTable::n_prompt_reads`] at a
    /// time: experts that few of its rows use then pass through few slots, and those that many use
    /// stay.
    ///
    /// # Panics
    ///
    /// If the experts do not ascend, or the layer does not have them.
    pub(crate) fn acquire(
        &mut self,
        layer: LayerIdx,
        demands: &mut Vec<Demand>,
        n_reads_max: usize,
        leases: &mut Vec<SlotLease>,
    ) {
        assert!(demands.is_sorted_by(|a, b| a.expert < b.expert), "experts ascend, each once");
        leases.clear();
        // First, so that no miss takes the slot of an expert that is also requested.
        demands.retain(|&demand| {
            let key = self.keys.key(layer, demand.expert);
            let Some(slot) = self.slot_of[key.0] else { return true };
            let lookup = self.lease(slot, demand.n_uses);
            leases.push(SlotLease { expert: demand.expert, slot, lookup });
            false
        });
        let n_leased = demands.iter().take(n_reads_max).take_while(|demand| {
            let Some(slot) = self.room() else { return false };
            let key = self.keys.key(layer, demand.expert);
            self.fill(slot, key, Cause::Demand);
            self.slots[slot.0].n_leases = 1;
            self.policy.admit(slot, key, demand.n_uses);
            self.counters.misses += 1;
            leases.push(SlotLease { expert: demand.expert, slot, lookup: Lookup::ToRead });
            true
        });
        let n_leased = n_leased.count();
        demands.drain(..n_leased);
        leases.sort_unstable_by_key(|lease| lease.expert);
    }

    /// Returns the reads that a prompt should have under way at a time.
    #[must_use]
    pub(crate) fn n_prompt_reads(&self) -> usize {
        (self.n_open / PROMPT_READS_SHARE).clamp(N_PROMPT_READS_MIN, N_PROMPT_READS_MAX)
    }

    /// Marks the expert of a slot as arrived.
    ///
    /// # Panics
    ///
    /// If the slot was not loading.
    pub(crate) fn loaded(&mut self, slot: SlotIdx) {
        let FillState::Loading(cause) = self.slots[slot.0].state else {
            unreachable!("{slot:?} was loading")
        };
        self.slots[slot.0].state = FillState::Ready(cause);
        if cause == Cause::Guess {
            self.unused.push(&mut self.links, slot);
        } else if self.slots[slot.0].n_leases == 0 {
            self.policy.unpin(slot);
        }
        self.close(slot);
    }

    /// Marks the read of a slot as failed or its guess as cancelled. The next request for the
    /// expert begins a new read. The slot is free once its leases are released.
    ///
    /// # Panics
    ///
    /// If the slot was not loading.
    pub(crate) fn failed(&mut self, slot: SlotIdx) {
        let TableSlot { state, n_leases, key, .. } = self.slots[slot.0];
        let FillState::Loading(cause) = state else { unreachable!("{slot:?} was loading") };
        self.slot_of[key.0] = None;
        self.counters.failures += 1;
        match cause {
            Cause::Demand => self.policy.remove(slot),
            Cause::Guess => self.waste(),
        }
        self.slots[slot.0].state = FillState::Failed;
        if n_leases == 0 {
            self.set_free(slot);
        }
    }

    /// Releases a lease.
    ///
    /// # Panics
    ///
    /// If the slot has none.
    pub(crate) fn release(&mut self, slot: SlotIdx) {
        let entry = &mut self.slots[slot.0];
        entry.n_leases = entry.n_leases.checked_sub(1).expect("a lease is given back once");
        match (entry.n_leases, entry.state) {
            (0, FillState::Ready(_)) => {
                self.policy.unpin(slot);
                self.close(slot);
            }
            (0, FillState::Failed) => self.set_free(slot),
            // Still leased by others, or still on its way.
            _ => {}
        }
    }

    /// Evicts the expert of an idle slot, which is then free.
    ///
    /// # Panics
    ///
    /// If the slot is leased.
    pub(crate) fn forget(&mut self, slot: SlotIdx) {
        // A slot that was given up is already empty.
        if matches!(self.slots[slot.0].state, FillState::Ready(_)) {
            self.evict(slot);
            self.set_free(slot);
        }
    }

    /// Returns the expert in a slot or on its way there.
    #[must_use]
    pub(crate) fn expert_in(&self, slot: SlotIdx) -> Option<(LayerIdx, ExpertIdx)> {
        let entry = self.slots.get(slot.0)?;
        matches!(entry.state, FillState::Loading(_) | FillState::Ready(_))
            .then(|| self.keys.expert(entry.key))
    }

    /// Returns the slot where an expert is or will be.
    #[must_use]
    pub(crate) fn slot_of(&self, layer: LayerIdx, expert: ExpertIdx) -> Option<SlotIdx> {
        self.slot_of[self.keys.key(layer, expert).0]
    }

    /// Returns the counters.
    #[must_use]
    pub(crate) fn counters(&self) -> TableCounters {
        self.counters
    }

    fn lease(&mut self, slot: SlotIdx, n_uses: u32) -> Lookup {
        let TableSlot { state, n_leases, key, .. } = self.slots[slot.0];
        let entry = &mut self.slots[slot.0];
        entry.n_leases += 1;
        match state {
            FillState::Ready(Cause::Demand) => {
                if n_leases == 0 {
                    self.policy.pin(slot);
                }
                self.policy.hit(slot, n_uses);
            }
            FillState::Loading(Cause::Demand) => self.policy.hit(slot, n_uses),
            FillState::Ready(Cause::Guess) => {
                entry.state = FillState::Ready(Cause::Demand);
                self.unused.remove(&mut self.links, slot);
                self.use_guess(slot, key, n_uses);
            }
            FillState::Loading(Cause::Guess) => {
                entry.state = FillState::Loading(Cause::Demand);
                self.use_guess(slot, key, n_uses);
            }
            FillState::Free | FillState::Failed => unreachable!("{slot:?} holds nothing"),
        }
        if matches!(state, FillState::Ready(_)) {
            self.counters.hits += 1;
            Lookup::InMemory
        } else {
            self.counters.on_their_way += 1;
            Lookup::Loading
        }
    }

    /// Returns an empty slot for a demand, evicting an expert if needed.
    fn room(&mut self) -> Option<SlotIdx> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let slot = self.unused.oldest().or_else(|| self.policy.victim())?;
        self.evict(slot);
        Some(slot)
    }

    /// Evicts the expert of an idle slot and leaves the slot to the caller.
    fn evict(&mut self, slot: SlotIdx) {
        let TableSlot { state, n_leases, key, .. } = self.slots[slot.0];
        assert!(n_leases == 0, "{slot:?} has {n_leases} leases and is no victim");
        match state {
            FillState::Ready(Cause::Demand) => self.policy.remove(slot),
            FillState::Ready(Cause::Guess) => {
                self.unused.remove(&mut self.links, slot);
                self.waste();
            }
            _ => unreachable!("{slot:?} is {state:?} and no victim"),
        }
        self.slot_of[key.0] = None;
        self.slots[slot.0].state = FillState::Free;
        self.counters.evictions += 1;
    }

    fn fill(&mut self, slot: SlotIdx, key: KeyIdx, cause: Cause) {
        let entry = &mut self.slots[slot.0];
        assert!(entry.state == FillState::Free, "{slot:?} is {:?} and not free", entry.state);
        (entry.state, entry.key) = (FillState::Loading(cause), key);
        self.slot_of[key.0] = Some(slot);
    }

    fn set_free(&mut self, slot: SlotIdx) {
        self.slots[slot.0].state = FillState::Free;
        if slot.0 < self.n_open {
            self.free.push(slot);
        } else {
            self.closed();
        }
    }
}

#[cfg(test)]
mod tests;
