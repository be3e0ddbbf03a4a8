//! The number of slots: derived from a number of bytes, and changed while the model runs.
//!
//! **Invariant:** memory is allocated and freed in slabs; a slab is freed only when none of its
//! slots is in use. The number of slots affects what must be read, never the results.

use moeflux_io::{Caching, FileIdx, SLOT_ALIGN, SlabIdx, SlotState, Wait, lay_out};

use crate::error::{Error, Remedy, Result};
use crate::experts::stream::ExpertStream;
use crate::ids::ExpertIdx;
use crate::weights::{ExpertBank, FileExtent};

/// Bytes of a slab where slots are many: the granularity in which memory is freed.
const SLAB_BYTES: usize = 32 << 20;

/// Slot size for a model's experts, and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotShape {
    /// Bytes that the largest expert needs.
    pub slot_bytes: usize,
    /// Distance from one slot to the next.
    pub stride_bytes: usize,
    /// Experts of all layers.
    pub n_experts: usize,
}

impl SlotShape {
    /// Returns the number of slots that fit in `n_bytes`, at most the number of experts.
    #[must_use]
    pub fn n_slots(&self, n_bytes: u64) -> usize {
        let n_slots = n_bytes / self.stride_bytes.max(1) as u64;
        usize::try_from(n_slots).unwrap_or(usize::MAX).min(self.n_experts)
    }

    /// Returns the bytes of `n_slots` slots.
    #[must_use]
    pub fn bytes(&self, n_slots: usize) -> u64 {
        n_slots as u64 * self.stride_bytes as u64
    }
}

/// Returns the slot size for the experts of `banks`, read in blocks of `block_bytes`.
#[must_use]
pub fn slot_shape(banks: &[ExpertBank], block_bytes: usize) -> SlotShape {
    let run_of = |extent: FileExtent| {
        let len_bytes = usize::try_from(extent.len_bytes).expect("a part fits memory");
        (FileIdx(0), extent.offset_bytes, len_bytes)
    };
    let of_expert = |bank: &ExpertBank, expert: ExpertIdx| match &bank.records {
        Some(records) => records.record_bytes,
        None => {
            let extents = bank.parts.iter().map(|part| run_of(part.extent(expert)));
            lay_out(extents, block_bytes).slot_bytes()
        }
    };
    let sizes = banks
        .iter()
        .flat_map(|bank| (0..bank.n_experts).map(move |expert| of_expert(bank, ExpertIdx(expert))));
    let slot_bytes = sizes.max().unwrap_or(1);
    let n_experts = banks.iter().map(|bank| bank.n_experts).sum();
    SlotShape { slot_bytes, stride_bytes: slot_bytes.next_multiple_of(SLOT_ALIGN), n_experts }
}

/// Returns the slot size for the experts of `banks` once `moeflux pack` has written them.
#[must_use]
pub(crate) fn record_shape(banks: &[ExpertBank]) -> SlotShape {
    let slot_bytes = banks.iter().map(|bank| bank.layout.record_bytes()).max().unwrap_or(1);
    let n_experts = banks.iter().map(|bank| bank.n_experts).sum();
    SlotShape { slot_bytes, stride_bytes: slot_bytes.next_multiple_of(SLOT_ALIGN), n_experts }
}

/// Returns the slab size for `n_slots` slots, such that rounding does not enlarge a small pool
/// much.
pub(crate) fn slab_bytes(stride_bytes: usize, n_slots: usize) -> usize {
    (stride_bytes * n_slots / 8).clamp(stride_bytes, SLAB_BYTES.max(stride_bytes))
}

impl ExpertStream {
    /// Sets the number of slots. More are available at once; fewer as soon as those in use are
    /// released.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if memory cannot be allocated; the number of slots is unchanged.
    pub fn resize(&mut self, n_slots: usize) -> Result<()> {
        self.n_slots_owned = n_slots;
        let least = self.pressure.n_slots_least().min(n_slots);
        let n_slots = n_slots.saturating_sub(self.n_slots_lent).max(least);
        self.pressure.set_most(n_slots);
        self.change(n_slots)
    }

    /// Lends the memory of `n_slots` slots; see [`crate::experts::Experts::lend`].
    pub(in crate::experts) fn lend(&mut self, n_slots: usize) -> Result<bool> {
        if self.caching == Caching::PageCache {
            // The page cache shrinks by itself.
            return Ok(true);
        }
        let n_before = self.n_slots_lent;
        let n_now = (self.table.n_slots() + n_before).min(self.n_slots_owned);
        if n_slots > 0 && n_now < n_slots + self.pressure.n_slots_least() {
            return Ok(false);
        }
        self.n_slots_lent = n_slots;
        self.pressure.set_most(self.n_slots_owned.saturating_sub(n_slots));
        self.change(n_now - n_slots)?;
        // Reads into closing slots would keep their memory.
        while self.table.n_closing() > 0 && self.loader.n_jobs() > 0 {
            self.poll(Wait::Any)?;
        }
        self.free_unused_slabs();
        Ok(true)
    }

    /// Returns whether the system caches what is read.
    #[must_use]
    pub fn caching(&self) -> Caching {
        self.caching
    }

    /// Returns the number of slots whose memory is allocated and freed together.
    #[must_use]
    pub fn n_slots_per_slab(&self) -> usize {
        self.memory.n_slots_per_slab()
    }

    fn change(&mut self, n_slots: usize) -> Result<()> {
        if n_slots < self.table.n_slots() {
            self.table.shrink(n_slots);
            self.free_unused_slabs();
            return Ok(());
        }
        while self.memory.n_slots() < n_slots {
            let slab_idx = self.memory.grow().ok_or_else(|| {
                let needed_bytes = n_slots as u64 * self.memory.slot_bytes() as u64;
                let what = format!("{n_slots} experts in memory");
                Error::no_room(what, needed_bytes, Remedy::SmallerBudget)
            })?;
            let slab = self.memory.slab(slab_idx).expect("the slab was made just now");
            self.loader.slab_added(slab);
        }
        let n_places = n_slots.max(self.layouts.len());
        self.layouts.resize(n_places, self.banks[0].bank.layout);
        self.n_rereads.resize(n_places, 0);
        self.table.grow(n_slots);
        Ok(())
    }

    /// Gives slots up or adds some, as memory is short or not. Failing to allocate more is no
    /// error: the number of slots then stays the same.
    pub(super) fn follow_pressure(&mut self) {
        let now = self.clock.now();
        if !self.pressure.is_due(now) {
            return;
        }
        let n_slots = self.table.n_slots();
        let n_slots_due = self.pressure.decide(n_slots, self.watch.sample(), now);
        if n_slots_due != n_slots {
            let resized = self.change(n_slots_due);
            debug_assert!(resized.is_ok() || n_slots_due > n_slots, "slots can be given up");
        }
        self.free_unused_slabs();
    }

    /// Frees the unused slabs after the last slot.
    pub(super) fn free_unused_slabs(&mut self) {
        while self.memory.n_slots() >= self.table.n_slots() + self.memory.n_slots_per_slab() {
            let slab_idx = SlabIdx(self.memory.n_slabs() - 1);
            let mut slots = self.memory.slots_of(slab_idx).map(moeflux_io::SlotIdx);
            let is_used = slots.any(|slot| {
                self.memory.state(slot) == SlotState::Filling
                    || self.table.expert_in(slot).is_some()
            });
            if is_used {
                return;
            }
            let slab = self.memory.slab(slab_idx).expect("the last slab is there");
            if self.mapping.as_ref().is_some_and(|mapping| !mapping.unmap(slab)) {
                return;
            }
            self.loader.slab_removed(slab);
            self.memory.shrink(slab_idx);
        }
    }
}
