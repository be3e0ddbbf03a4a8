//! Which expert is in which slot: decides, and leaves reading to its caller.
//!
//! Experts that are asked for become slots: found in memory, on their way, or to be read now.
//! **Invariant:** an expert is in one slot at most; a slot with a lease or a read under way keeps
//! its expert; guesses give way to demands, and hold at most half of the slots. Pure, the same for
//! the same calls; allocates nothing per call once the caller's lists have grown. Knows slots and
//! indices, never bytes or files.

mod guess;
mod keys;
mod list;
mod size;

use moeflux_io::SlotIdx;

use crate::experts::policy::{KeyIdx, Lfu, PolicyShape};
use crate::ids::{ExpertIdx, LayerIdx};

use keys::Keys;
use list::{Links, List};

/// A prompt's reads under way take one slot of so many: the rest keeps what it uses most.
const WAVE_SHARE: usize = 8;

/// Fewer reads leave a drive idle; in the pool of the model in the box 16 cost its short chats up
/// to 4 hits of 100 while reading.
const N_WAVE_READS_MIN: usize = 8;

/// More reads make no drive faster.
const N_WAVE_READS_MAX: usize = 64;

/// An expert that the rows of a step chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Which of its layer.
    pub expert: ExpertIdx,
    /// Rows that chose it: what a prompt used most is what stays.
    pub n_uses: u32,
}

/// How an expert that was asked for was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It may be computed at once.
    InMemory,
    /// A read that began earlier will bring it: a demand's from now on.
    OnItsWay,
    /// The caller must begin to read it.
    ToRead,
}

/// An expert with a lease on its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Which of its layer.
    pub expert: ExpertIdx,
    /// Where it is or will be.
    pub slot: SlotIdx,
    /// What the caller waits for.
    pub found: Found,
}

/// An expert to be read although nobody has asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guess {
    /// Which of its layer.
    pub expert: ExpertIdx,
    /// Where it will be.
    pub slot: SlotIdx,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableCounters {
    /// Experts that were in memory when they were asked for, guessed ones too.
    pub hits: u64,
    /// Experts whose read was under way when they were asked for.
    pub on_their_way: u64,
    /// Experts that had to be read.
    pub misses: u64,
    /// Experts read by guess.
    pub guesses: u64,
    /// Of these, asked for later.
    pub guesses_used: u64,
    /// Of these, gone before anybody asked.
    pub guesses_wasted: u64,
    /// Experts that left for another.
    pub evictions: u64,
    /// Reads that failed.
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
    /// The read failed; free when nobody holds a lease.
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    state: State,
    n_leases: usize,
    /// Whose; meaningless where the slot is free.
    key: KeyIdx,
    /// The last round of guessing that wanted this expert.
    guess_round: u64,
}

/// The slots of a model.
#[derive(Debug)]
pub(crate) struct SlotTable {
    keys: Keys,
    /// Per key.
    slot_of: Vec<Option<SlotIdx>>,
    slots: Vec<Slot>,
    /// Slots from here on are given up as soon as nobody uses them.
    n_open: usize,
    /// Slots from `n_open` on that are not free yet.
    n_closing: usize,
    free: Vec<SlotIdx>,
    policy: Lfu,
    /// Slots that the policy knows: more than `n_open` until the last is given up.
    n_policy_slots: usize,
    links: Links,
    /// Ready guesses that nobody has used.
    unused: List,
    /// These and the guesses under way.
    n_guessed: usize,
    guess_round: u64,
    /// Slots that are passed over while a guess looks for room.
    passed: Vec<SlotIdx>,
    counters: TableCounters,
}

/// What a table is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableShape<'a> {
    /// Routed experts of each layer; none in dense layers.
    pub n_experts: &'a [usize],
    /// Experts that one token asks for, over all layers.
    pub n_uses_per_row: usize,
    /// Slots to begin with.
    pub n_slots: usize,
}

impl SlotTable {
    /// A table of free slots.
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

    /// A step of so many rows begins: its layers follow in order.
    pub(crate) fn begin_step(&mut self, n_rows: usize) {
        self.policy.begin_step(n_rows);
    }

    /// Leases slots for the experts of `wanted` (ascending, each once); `taken` gets them,
    /// ascending. What is in memory or on its way is always given out; of the others up to
    /// `n_reads_max` get slots, in ascending order, as long as there are any. Experts given out
    /// leave `wanted`: if some stay, the caller computes and releases what it has, and asks again.
    /// If nothing was given out, others hold all slots.
    ///
    /// A step of few rows takes all it can get. A prompt takes [`SlotTable::n_wave_reads`] at a
    /// time: then what few of its rows use passes through few slots, and what many use stays.
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
        // First, so that no miss takes the slot of an expert that is wanted too.
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

    /// Reads that a prompt should begin at a time.
    #[must_use]
    pub(crate) fn n_wave_reads(&self) -> usize {
        (self.n_open / WAVE_SHARE).clamp(N_WAVE_READS_MIN, N_WAVE_READS_MAX)
    }

    /// The expert of a slot has arrived.
    ///
    /// # Panics
    ///
    /// If none was on its way.
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

    /// The expert of a slot will not arrive: reading failed, or a guess was called off. Who asks
    /// for it next begins anew. The slot is free when its leases are released.
    ///
    /// # Panics
    ///
    /// If none was on its way.
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

    /// Gives a lease back.
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
            // Others use it, or it is still on its way.
            _ => {}
        }
    }

    /// Nobody needs the expert of an idle slot here any more: the slot is free.
    ///
    /// # Panics
    ///
    /// If it is in use.
    pub(crate) fn forget(&mut self, slot: SlotIdx) {
        // One that was given up is empty already.
        if matches!(self.slots[slot.0].state, State::Ready(_)) {
            self.evict(slot);
            self.set_free(slot);
        }
    }

    /// The expert in a slot or on its way there.
    #[must_use]
    pub(crate) fn expert_in(&self, slot: SlotIdx) -> Option<(LayerIdx, ExpertIdx)> {
        let found = self.slots.get(slot.0)?;
        matches!(found.state, State::Loading(_) | State::Ready(_))
            .then(|| self.keys.expert(found.key))
    }

    /// Where an expert is or will be.
    #[must_use]
    pub(crate) fn slot_of(&self, layer: LayerIdx, expert: ExpertIdx) -> Option<SlotIdx> {
        self.slot_of[self.keys.key(layer, expert).0]
    }

    /// What has happened so far.
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

    /// An empty slot for a demand.
    fn room(&mut self) -> Option<SlotIdx> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let slot = self.unused.oldest().or_else(|| self.policy.victim())?;
        self.evict(slot);
        Some(slot)
    }

    /// Takes the expert out of an idle slot, which belongs to nobody then.
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
