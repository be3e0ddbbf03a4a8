//! Reads of experts that have not been requested yet, and the slots they may use.
//!
//! **Invariant:** a guess gets a free slot, that of an older unused guess, or that of the policy's
//! next victim; never one that is leased, loading or guessed in the same round.

use moeflux_io::SlotIdx;

use super::{Cause, FillState, GuessedExpert, SlotTable};
use crate::experts::policy::KeyIdx;
use crate::ids::{ExpertIdx, LayerIdx};

impl SlotTable {
    /// Assigns slots to up to `n_max` of the experts that a layer may request next, most likely
    /// first. Experts in memory or on their way need none. The caller begins to read those in
    /// `guesses`.
    ///
    /// # Panics
    ///
    /// If the layer does not have these experts.
    pub(crate) fn guess(
        &mut self,
        layer: LayerIdx,
        ranked: &[ExpertIdx],
        n_max: usize,
        guesses: &mut Vec<GuessedExpert>,
    ) {
        guesses.clear();
        self.guess_round += 1;
        for &expert in ranked {
            if let Some(slot) = self.slot_of[self.keys.key(layer, expert).0] {
                self.slots[slot.0].guess_round = self.guess_round;
            }
        }
        for &expert in ranked {
            let key = self.keys.key(layer, expert);
            if guesses.len() == n_max {
                break;
            }
            if self.slot_of[key.0].is_some() {
                continue;
            }
            let Some(slot) = self.room_for_guess() else { break };
            self.fill(slot, key, Cause::Guess);
            self.slots[slot.0].guess_round = self.guess_round;
            self.n_guessed += 1;
            self.counters.guesses += 1;
            guesses.push(GuessedExpert { expert, slot });
        }
        // These are the coldest, and guessed: they become idle again as if just used.
        while let Some(slot) = self.passed.pop() {
            self.policy.unpin(slot);
        }
    }

    /// Assigns a slot to an expert that is certain to be requested: a free one, or that of an
    /// expert that is needed later. Returns `None` if the expert is in memory or on its way, or if
    /// there is no such slot. The caller begins to read it.
    ///
    /// # Panics
    ///
    /// If the layer does not have this expert.
    pub(crate) fn read_ahead(&mut self, layer: LayerIdx, expert: ExpertIdx) -> Option<SlotIdx> {
        let key = self.keys.key(layer, expert);
        if self.slot_of[key.0].is_some() {
            return None;
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let victim = self.policy.victim_for(key)?;
                self.evict(victim);
                victim
            }
        };
        self.fill(slot, key, Cause::Demand);
        self.policy.admit(slot, key, 0);
        Some(slot)
    }

    fn room_for_guess(&mut self) -> Option<SlotIdx> {
        let is_below_half = 2 * (self.n_guessed + 1) <= self.n_open;
        let free = if is_below_half { self.free.pop() } else { None };
        if free.is_some() {
            return free;
        }
        let slot = self.stale_guess().or_else(|| self.coldest().filter(|_| is_below_half))?;
        self.evict(slot);
        Some(slot)
    }

    /// Returns the oldest unused guess that is not guessed again.
    fn stale_guess(&self) -> Option<SlotIdx> {
        let mut slot = self.unused.oldest()?;
        while self.slots[slot.0].guess_round == self.guess_round {
            slot = self.unused.newer(&self.links, slot)?;
        }
        Some(slot)
    }

    /// Returns the policy's first victim that is not guessed.
    fn coldest(&mut self) -> Option<SlotIdx> {
        loop {
            let slot = self.policy.victim()?;
            if self.slots[slot.0].guess_round != self.guess_round {
                return Some(slot);
            }
            self.policy.pin(slot);
            self.passed.push(slot);
        }
    }

    /// Turns a guess into a demand.
    pub(super) fn use_guess(&mut self, slot: SlotIdx, key: KeyIdx, n_uses: u32) {
        debug_assert!(self.slots[slot.0].state != FillState::Free, "a guess is in its slot");
        self.n_guessed -= 1;
        self.counters.guesses_used += 1;
        self.policy.admit(slot, key, n_uses);
    }

    /// Counts a guess that leaves unused.
    pub(super) fn waste(&mut self) {
        self.n_guessed -= 1;
        self.counters.guesses_wasted += 1;
    }
}
