//! Which expert is in which slot. The table decides; its caller reads.
//!
//! Requested experts are mapped to slots: in memory, on their way, or to be read now.
//! **Invariant:** an expert is in at most one slot; a slot with a lease or a read under way keeps
//! its expert; guesses give way to demands and hold at most half of the slots. Pure: the same calls
//! give the same results. Calls allocate nothing once the caller's lists have grown. Knows slots
//! and indices, never bytes or files.

mod guess;
mod keys;
mod list;
mod size;

use moeflux_io::SlotIdx;

use crate::experts::policy::{KeyIdx, Lfu, PolicyShape};
use crate::ids::{ExpertIdx, LayerIdx};

use keys::Keys;
use list::{Links, List};

/// A prompt's reads under way take one slot in this many; the rest keep the experts it uses most.
const WAVE_SHARE: usize = 8;

/// Lower bound: fewer reads leave a drive idle. With 16, the short chats of the bundled model lost
/// up to 4 hits of 100 during prefill.
const N_WAVE_READS_MIN: usize = 8;

/// Upper bound: more reads make no drive faster.
const N_WAVE_READS_MAX: usize = 64;

/// An expert chosen by rows of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Its index in the layer.
    pub expert: ExpertIdx,
    /// Rows that chose it: the experts that a prompt used most are the ones to stay.
    pub n_uses: u32,
}

/// Where a requested expert was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It may be computed at once.
    InMemory,
    /// A read that began earlier will bring it. That read serves a demand from now on.
    OnItsWay,
    /// The caller must begin to read it.
    ToRead,
}

/// An expert with a lease on its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Its index in the layer.
    pub expert: ExpertIdx,
    /// The slot where it is or will be.
    pub slot: SlotIdx,
    /// What the caller has to wait for.
    pub found: Found,
}

/// An expert to be read before it is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guess {
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
enum State {
    Free,
    Loading(Cause),
    Ready(Cause),
    /// The read failed; the slot is free once it has no leases.
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    state: State,
    n_leases: usize,
    /// Its expert; unspecified where the slot is free.
    key: KeyIdx,
    /// The last round of guessing that named this expert.
    guess_round: u64,
}

/// The slots of a model.
#[derive(Debug)]
pub(crate) struct SlotTable {
    keys: Keys,
    /// Per key: its slot.
    slot_of: Vec<Option<SlotIdx>>,
    slots: Vec<Slot>,
    /// Slots from here on are given up as soon as they are unused.
    n_open: usize,
    /// Slots from `n_open` on that are not free yet.
    n_closing: usize,
    free: Vec<SlotIdx>,
    policy: Lfu,
    /// Slots that the policy knows: more than `n_open` until the last closing slot is given up.
    n_policy_slots: usize,
    links: Links,
    /// Ready guesses that have not been used.
    unused: List,
    /// All unused guesses, including those whose read is under way.
    n_guessed: usize,
    guess_round: u64,
    /// Slots passed over while a guess looks for room.
    passed: Vec<SlotIdx>,
    counters: TableCounters,
}

/// What a table is created for.
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
        let keys = Keys::new(n_experts);
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
            links: Links::default(),
            unused: List::new(),
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

    /// Leases slots for the experts of `wanted` (ascending, each once) and lists them in `taken`,
    /// ascending. Experts in memory or on their way are always leased. Of the others, up to
    /// `n_reads_max` get slots, in ascending order, as long as there is room. Leased experts are
    /// removed from `wanted`: if some remain, the caller computes and releases what it has and
    /// calls again. If nothing was leased, all slots are held by other leases and reads.
    ///
    /// A step of few rows takes all it can get. A prompt takes [`SlotTable::n_wave_reads`] at a
    /// time: experts that few of its rows use then pass through few slots, and those that many use
    /// stay.
    ///
    /// # Panics
    ///
    /// If the experts do not ascend, or the layer does not have them.
    pub(crate) fn acquire(
        &mut self,
        layer: LayerIdx,
        wanted: &mut Vec<Wanted>,
        n_reads_max: usize,
        taken: &mut Vec<Taken>,
    ) {
        assert!(wanted.is_sorted_by(|a, b| a.expert < b.expert), "experts ascend, each once");
        taken.clear();
        // First, so that no miss takes the slot of an expert that is also wanted.
        wanted.retain(|&wanted| {
            let key = self.keys.key(layer, wanted.expert);
            let Some(slot) = self.slot_of[key.0] else { return true };
            let found = self.lease(slot, wanted.n_uses);
            taken.push(Taken { expert: wanted.expert, slot, found });
            false
        });
        let n_given = wanted.iter().take(n_reads_max).take_while(|wanted| {
            let Some(slot) = self.room() else { return false };
            let key = self.keys.key(layer, wanted.expert);
            self.fill(slot, key, Cause::Demand);
            self.slots[slot.0].n_leases = 1;
            self.policy.admit(slot, key, wanted.n_uses);
            self.counters.misses += 1;
            taken.push(Taken { expert: wanted.expert, slot, found: Found::ToRead });
            true
        });
        let n_given = n_given.count();
        wanted.drain(..n_given);
        taken.sort_unstable_by_key(|taken| taken.expert);
    }

    /// Returns the reads that a prompt should have under way at a time.
    #[must_use]
    pub(crate) fn n_wave_reads(&self) -> usize {
        (self.n_open / WAVE_SHARE).clamp(N_WAVE_READS_MIN, N_WAVE_READS_MAX)
    }

    /// Marks the expert of a slot as arrived.
    ///
    /// # Panics
    ///
    /// If the slot was not loading.
    pub(crate) fn loaded(&mut self, slot: SlotIdx) {
        let State::Loading(cause) = self.slots[slot.0].state else {
            unreachable!("{slot:?} was loading")
        };
        self.slots[slot.0].state = State::Ready(cause);
        if cause == Cause::Guess {
            self.unused.push(&mut self.links, slot);
        } else if self.slots[slot.0].n_leases == 0 {
            self.policy.let_go(slot);
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
        let Slot { state, n_leases, key, .. } = self.slots[slot.0];
        let State::Loading(cause) = state else { unreachable!("{slot:?} was loading") };
        self.slot_of[key.0] = None;
        self.counters.failures += 1;
        match cause {
            Cause::Demand => self.policy.remove(slot),
            Cause::Guess => self.waste(),
        }
        self.slots[slot.0].state = State::Failed;
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
        let found = &mut self.slots[slot.0];
        found.n_leases = found.n_leases.checked_sub(1).expect("a lease is given back once");
        match (found.n_leases, found.state) {
            (0, State::Ready(_)) => {
                self.policy.let_go(slot);
                self.close(slot);
            }
            (0, State::Failed) => self.set_free(slot),
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
        if matches!(self.slots[slot.0].state, State::Ready(_)) {
            self.evict(slot);
            self.set_free(slot);
        }
    }

    /// Returns the expert in a slot or on its way there.
    #[must_use]
    pub(crate) fn expert_in(&self, slot: SlotIdx) -> Option<(LayerIdx, ExpertIdx)> {
        let found = self.slots.get(slot.0)?;
        matches!(found.state, State::Loading(_) | State::Ready(_))
            .then(|| self.keys.expert(found.key))
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

    fn lease(&mut self, slot: SlotIdx, n_uses: u32) -> Found {
        let Slot { state, n_leases, key, .. } = self.slots[slot.0];
        let found = &mut self.slots[slot.0];
        found.n_leases += 1;
        match state {
            State::Ready(Cause::Demand) => {
                if n_leases == 0 {
                    self.policy.hold(slot);
                }
                self.policy.hit(slot, n_uses);
            }
            State::Loading(Cause::Demand) => self.policy.hit(slot, n_uses),
            State::Ready(Cause::Guess) => {
                found.state = State::Ready(Cause::Demand);
                self.unused.remove(&mut self.links, slot);
                self.use_guess(slot, key, n_uses);
            }
            State::Loading(Cause::Guess) => {
                found.state = State::Loading(Cause::Demand);
                self.use_guess(slot, key, n_uses);
            }
            State::Free | State::Failed => unreachable!("{slot:?} holds nothing"),
        }
        if matches!(state, State::Ready(_)) {
            self.counters.hits += 1;
            Found::InMemory
        } else {
            self.counters.on_their_way += 1;
            Found::OnItsWay
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
        let Slot { state, n_leases, key, .. } = self.slots[slot.0];
        assert!(n_leases == 0, "{slot:?} has {n_leases} leases and is no victim");
        match state {
            State::Ready(Cause::Demand) => self.policy.remove(slot),
            State::Ready(Cause::Guess) => {
                self.unused.remove(&mut self.links, slot);
                self.waste();
            }
            _ => unreachable!("{slot:?} is {state:?} and no victim"),
        }
        self.slot_of[key.0] = None;
        self.slots[slot.0].state = State::Free;
        self.counters.evictions += 1;
    }

    fn fill(&mut self, slot: SlotIdx, key: KeyIdx, cause: Cause) {
        let found = &mut self.slots[slot.0];
        assert!(found.state == State::Free, "{slot:?} is {:?} and not free", found.state);
        (found.state, found.key) = (State::Loading(cause), key);
        self.slot_of[key.0] = Some(slot);
    }

    fn set_free(&mut self, slot: SlotIdx) {
        self.slots[slot.0].state = State::Free;
        if slot.0 < self.n_open {
            self.free.push(slot);
        } else {
            self.closed();
        }
    }
}

#[cfg(test)]
mod tests;
