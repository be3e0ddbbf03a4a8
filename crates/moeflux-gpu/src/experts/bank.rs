//! All experts of a layer: near, in device memory, or far, in host memory, where kernels also read
//! them, only slower.
//!
//! **Invariant:** each expert has one slot, recorded in the tables. Buffers are bound in pairs, one
//! of each memory; an expert is in the table of the pair that its slot's buffer belongs to.

use moeflux::provider::error::Result;
use moeflux::provider::ids::ExpertIdx;

use super::{ABSENT, Bound};
use crate::device::Gpu;
use crate::memory::{HOST_STORAGE, STORAGE};
use crate::params::narrow;

/// Marks slots in host memory in tables: see `stored_in_tiers.wgsl`.
const FAR_SLOT: u32 = 1 << 31;

/// Upper bound on buffer size: kernels compute offsets in words, and use one bit to mark far slots.
pub(super) const BUFFER_BYTES_MAX: u64 = 1 << 32;

/// A memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tier {
    /// Device memory.
    Near,
    /// Host memory.
    Far,
}

/// A slot, indexed among all slots of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TierSlot {
    pub(super) tier: Tier,
    pub(super) idx: usize,
}

/// Division of a layer's experts between the memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Division {
    pub(super) n_experts: usize,
    /// Experts in device memory; the rest is far.
    pub(super) n_near: usize,
    pub(super) slot_bytes: u64,
    /// Upper bound on the slots of a buffer.
    n_per_buffer: usize,
}

impl Division {
    /// Places as many experts near as fit in `near_bytes`, or all if `None`.
    pub(super) fn new(
        n_experts: usize,
        slot_bytes: u64,
        (near_bytes, n_per_buffer): (Option<u64>, u64),
    ) -> Self {
        let whole = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).min(n_experts);
        let n_near = near_bytes.map_or(n_experts, |n_bytes| whole(n_bytes / slot_bytes));
        Self { n_experts, n_near, slot_bytes, n_per_buffer: whole(n_per_buffer) }
    }

    /// Returns the number of slots of each buffer of a memory.
    fn buffers(&self, tier: Tier) -> impl Iterator<Item = usize> {
        let n_slots = match tier {
            Tier::Near => self.n_near,
            Tier::Far => self.n_experts - self.n_near,
        };
        let n_per_buffer = self.n_per_buffer;
        (0..n_slots).step_by(n_per_buffer.max(1)).map(move |at| n_per_buffer.min(n_slots - at))
    }

    /// Returns the initial slot of an expert.
    const fn first_slot(&self, expert: ExpertIdx) -> TierSlot {
        match expert.0.checked_sub(self.n_near) {
            None => TierSlot { tier: Tier::Near, idx: expert.0 },
            Some(idx) => TierSlot { tier: Tier::Far, idx },
        }
    }

    /// Returns the buffer pair of a slot, and its entry in tables.
    fn entry(&self, slot: TierSlot) -> (usize, u32) {
        let mark = if slot.tier == Tier::Far { FAR_SLOT } else { 0 };
        (slot.idx / self.n_per_buffer, narrow(slot.idx % self.n_per_buffer) | mark)
    }
}

/// All experts of a layer.
#[derive(Debug)]
pub(super) struct Bank {
    division: Division,
    near: Vec<wgpu::Buffer>,
    far: Vec<wgpu::Buffer>,
    /// Slot of each expert.
    slots: Vec<TierSlot>,
    pub(super) bound: Vec<Bound>,
}

impl Bank {
    /// Allocates space for all experts; `bind` binds a pair of buffers and assigns an offset to its
    /// table.
    pub(super) fn new(
        gpu: &Gpu,
        division: Division,
        bind: &mut dyn FnMut([&wgpu::Buffer; 2]) -> Result<Bound>,
    ) -> Result<Self> {
        let make = |tier: Tier, usage: wgpu::BufferUsages| {
            let buffers = division.buffers(tier).map(|n_slots| {
                let n_bytes = n_slots as u64 * division.slot_bytes;
                gpu.buffer("the routed experts of a layer", n_bytes, usage)
            });
            buffers.collect::<Result<Vec<_>>>()
        };
        let (near, far) = (make(Tier::Near, STORAGE)?, make(Tier::Far, HOST_STORAGE)?);
        let mut bound = Vec::new();
        for pair in 0..near.len().max(far.len()) {
            // A missing second buffer is replaced by one that no table names.
            let stand_ins = [near.get(pair).or_else(|| far.get(pair)), far.get(pair)];
            let [Some(first), second] = stand_ins else { continue };
            bound.push(bind([first, second.unwrap_or(first)])?);
        }
        let slots = (0..division.n_experts).map(|it| division.first_slot(ExpertIdx(it))).collect();
        Ok(Self { division, near, far, slots, bound })
    }

    /// Returns the location of an expert: its buffer, and the offset of its first byte.
    pub(super) fn place(&self, expert: ExpertIdx) -> (&wgpu::Buffer, u64) {
        self.place_of(self.slots[expert.0])
    }

    /// Returns the memory of each expert, in order.
    pub(super) fn tiers(&self) -> impl Iterator<Item = Tier> {
        self.slots.iter().map(|slot| slot.tier)
    }

    pub(super) const fn slot_bytes(&self) -> u64 {
        self.division.slot_bytes
    }

    /// Exchanges the slots of two experts.
    pub(super) fn swap(&mut self, one: ExpertIdx, other: ExpertIdx) {
        self.slots.swap(one.0, other.0);
    }

    fn place_of(&self, slot: TierSlot) -> (&wgpu::Buffer, u64) {
        let n_per_buffer = self.division.n_per_buffer;
        let buffers = match slot.tier {
            Tier::Near => &self.near,
            Tier::Far => &self.far,
        };
        let begin = (slot.idx % n_per_buffer) as u64 * self.division.slot_bytes;
        (&buffers[slot.idx / n_per_buffer], begin)
    }

    /// Returns the table of each pair of buffers.
    pub(super) fn tables(&self) -> Vec<Vec<u32>> {
        let mut tables = vec![vec![ABSENT; self.division.n_experts]; self.bound.len()];
        for (expert, slot) in self.slots.iter().enumerate() {
            let (pair, entry) = self.division.entry(*slot);
            tables[pair][expert] = entry;
        }
        tables
    }

    /// Returns the bytes in device memory and in host memory.
    pub(super) fn n_bytes(&self) -> [u64; 2] {
        let sum = |buffers: &[wgpu::Buffer]| buffers.iter().map(wgpu::Buffer::size).sum();
        [sum(&self.near), sum(&self.far)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn division(n_experts: usize, n_near: usize, n_per_buffer: usize) -> Division {
        Division { n_experts, n_near, slot_bytes: 256, n_per_buffer }
    }

    #[test]
    fn every_expert_has_one_slot_of_its_own() {
        for (n_experts, n_near, n_per_buffer) in
            [(8, 8, 8), (8, 2, 8), (8, 0, 8), (9, 4, 3), (7, 7, 2), (5, 1, 1)]
        {
            let it = division(n_experts, n_near, n_per_buffer);
            let counts = [Tier::Near, Tier::Far].map(|tier| it.buffers(tier).collect::<Vec<_>>());
            assert_eq!(counts.iter().flatten().sum::<usize>(), n_experts);
            let mut seen = Vec::new();
            for expert in 0..n_experts {
                let slot = it.first_slot(ExpertIdx(expert));
                let (pair, entry) = it.entry(slot);
                let is_far = usize::from(entry & FAR_SLOT != 0);
                assert_eq!(is_far == 1, expert >= n_near);
                let n_slots = counts[is_far][pair];
                assert!(((entry & !FAR_SLOT) as usize) < n_slots, "{it:?}: expert {expert}");
                seen.push((pair, entry));
            }
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), n_experts, "{it:?}");
        }
    }

    #[test]
    fn the_text_of_kernels_knows_the_mark() {
        let text = include_str!("../kernels/stored_in_tiers.wgsl");
        assert!(text.contains(&format!("const FAR_SLOT: u32 = {FAR_SLOT:#x}u;")));
    }
}
