//! All experts of a layer, in device memory or in host memory. Kernels read both, host memory more
//! slowly.
//!
//! **Invariant:** each expert has one slot, recorded in the tables. Buffers are bound in pairs, one
//! of each memory; an expert is in the table of the pair that its slot's buffer belongs to.

use moeflux::provider::error::Result;
use moeflux::provider::ids::ExpertIdx;

use super::tables::{ABSENT, ExpertBinding};
use crate::device::Gpu;
use crate::memory::{HOST_STORAGE, STORAGE};
use crate::params::narrow;

/// Marks slots in host memory in tables: see `stored_in_tiers.wgsl`.
const FAR_SLOT: u32 = 1 << 31;

/// Upper bound on buffer size: kernels compute offsets in words, and use one bit to mark slots in
/// host memory.
pub(super) const BUFFER_BYTES_MAX: u64 = 1 << 32;

/// The memory that holds an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tier {
    /// Device memory.
    Device,
    /// Host memory.
    Host,
}

/// A slot, indexed among all slots of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TierSlot {
    pub(super) tier: Tier,
    pub(super) idx: usize,
}

/// Division of a layer's experts between device memory and host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TierSplit {
    pub(super) n_experts: usize,
    /// Experts in device memory; the rest is in host memory.
    pub(super) n_on_device: usize,
    pub(super) slot_bytes: u64,
    /// Upper bound on the slots of a buffer.
    n_per_buffer: usize,
}

impl TierSplit {
    /// Puts as many experts in device memory as fit in `device_bytes`, or all if `None`.
    pub(super) fn new(
        n_experts: usize,
        slot_bytes: u64,
        (device_bytes, n_per_buffer): (Option<u64>, u64),
    ) -> Self {
        let whole = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).min(n_experts);
        let n_on_device = device_bytes.map_or(n_experts, |n_bytes| whole(n_bytes / slot_bytes));
        Self { n_experts, n_on_device, slot_bytes, n_per_buffer: whole(n_per_buffer) }
    }

    /// Returns the number of slots of each buffer of a memory.
    fn buffers(&self, tier: Tier) -> impl Iterator<Item = usize> {
        let n_slots = match tier {
            Tier::Device => self.n_on_device,
            Tier::Host => self.n_experts - self.n_on_device,
        };
        let n_per_buffer = self.n_per_buffer;
        (0..n_slots).step_by(n_per_buffer.max(1)).map(move |at| n_per_buffer.min(n_slots - at))
    }

    /// Returns the initial slot of an expert.
    const fn first_slot(&self, expert: ExpertIdx) -> TierSlot {
        match expert.0.checked_sub(self.n_on_device) {
            None => TierSlot { tier: Tier::Device, idx: expert.0 },
            Some(idx) => TierSlot { tier: Tier::Host, idx },
        }
    }

    /// Returns the buffer pair of a slot, and its entry in tables.
    fn entry(&self, slot: TierSlot) -> (usize, u32) {
        let mark = if slot.tier == Tier::Host { FAR_SLOT } else { 0 };
        (slot.idx / self.n_per_buffer, narrow(slot.idx % self.n_per_buffer) | mark)
    }
}

/// All experts of a layer.
#[derive(Debug)]
pub(super) struct Bank {
    split: TierSplit,
    device_buffers: Vec<wgpu::Buffer>,
    host_buffers: Vec<wgpu::Buffer>,
    /// Slot of each expert.
    slots: Vec<TierSlot>,
    pub(super) bindings: Vec<ExpertBinding>,
}

impl Bank {
    /// Allocates space for all experts; `bind` binds a pair of buffers and assigns an offset to its
    /// table.
    pub(super) fn new(
        gpu: &Gpu,
        split: TierSplit,
        bind: &mut dyn FnMut([&wgpu::Buffer; 2]) -> Result<ExpertBinding>,
    ) -> Result<Self> {
        let make = |tier: Tier, usage: wgpu::BufferUsages| {
            let buffers = split.buffers(tier).map(|n_slots| {
                let n_bytes = n_slots as u64 * split.slot_bytes;
                gpu.buffer("the routed experts of a layer", n_bytes, usage)
            });
            buffers.collect::<Result<Vec<_>>>()
        };
        let (device_buffers, host_buffers) =
            (make(Tier::Device, STORAGE)?, make(Tier::Host, HOST_STORAGE)?);
        let mut bindings = Vec::new();
        for pair in 0..device_buffers.len().max(host_buffers.len()) {
            // A missing buffer is replaced by the other one; no table refers to it there.
            let stand_ins = [
                device_buffers.get(pair).or_else(|| host_buffers.get(pair)),
                host_buffers.get(pair),
            ];
            let [Some(first), second] = stand_ins else { continue };
            bindings.push(bind([first, second.unwrap_or(first)])?);
        }
        let slots = (0..split.n_experts).map(|it| split.first_slot(ExpertIdx(it))).collect();
        Ok(Self { split, device_buffers, host_buffers, slots, bindings })
    }

    /// Returns the location of an expert: its buffer, and the offset of its first byte.
    pub(super) fn location(&self, expert: ExpertIdx) -> (&wgpu::Buffer, u64) {
        self.location_of(self.slots[expert.0])
    }

    /// Returns the memory of each expert, in order.
    pub(super) fn tiers(&self) -> impl Iterator<Item = Tier> {
        self.slots.iter().map(|slot| slot.tier)
    }

    pub(super) const fn slot_bytes(&self) -> u64 {
        self.split.slot_bytes
    }

    /// Exchanges the slots of two experts.
    pub(super) fn swap(&mut self, one: ExpertIdx, other: ExpertIdx) {
        self.slots.swap(one.0, other.0);
    }

    fn location_of(&self, slot: TierSlot) -> (&wgpu::Buffer, u64) {
        let n_per_buffer = self.split.n_per_buffer;
        let buffers = match slot.tier {
            Tier::Device => &self.device_buffers,
            Tier::Host => &self.host_buffers,
        };
        let begin = (slot.idx % n_per_buffer) as u64 * self.split.slot_bytes;
        (&buffers[slot.idx / n_per_buffer], begin)
    }

    /// Returns the table of each pair of buffers, with its offset.
    pub(super) fn tables(&self) -> Vec<(u32, Vec<u32>)> {
        let table = |it: &ExpertBinding| (it.table_at, vec![ABSENT; self.split.n_experts]);
        let mut tables: Vec<_> = self.bindings.iter().map(table).collect();
        for (expert, slot) in self.slots.iter().enumerate() {
            let (pair, entry) = self.split.entry(*slot);
            tables[pair].1[expert] = entry;
        }
        tables
    }

    /// Returns the bytes in device memory and in host memory.
    pub(super) fn n_bytes(&self) -> [u64; 2] {
        let sum = |buffers: &[wgpu::Buffer]| buffers.iter().map(wgpu::Buffer::size).sum();
        [sum(&self.device_buffers), sum(&self.host_buffers)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(n_experts: usize, n_on_device: usize, n_per_buffer: usize) -> TierSplit {
        TierSplit { n_experts, n_on_device, slot_bytes: 256, n_per_buffer }
    }

    #[test]
    fn every_expert_has_one_slot_of_its_own() {
        for (n_experts, n_on_device, n_per_buffer) in
            [(8, 8, 8), (8, 2, 8), (8, 0, 8), (9, 4, 3), (7, 7, 2), (5, 1, 1)]
        {
            let it = split(n_experts, n_on_device, n_per_buffer);
            let counts =
                [Tier::Device, Tier::Host].map(|tier| it.buffers(tier).collect::<Vec<_>>());
            assert_eq!(counts.iter().flatten().sum::<usize>(), n_experts);
            let mut entries = Vec::new();
            for expert in 0..n_experts {
                let slot = it.first_slot(ExpertIdx(expert));
                let (pair, entry) = it.entry(slot);
                let is_on_host = usize::from(entry & FAR_SLOT != 0);
                assert_eq!(is_on_host == 1, expert >= n_on_device);
                let n_slots = counts[is_on_host][pair];
                assert!(((entry & !FAR_SLOT) as usize) < n_slots, "{it:?}: expert {expert}");
                entries.push((pair, entry));
            }
            entries.sort_unstable();
            entries.dedup();
            assert_eq!(entries.len(), n_experts, "{it:?}");
        }
    }

    #[test]
    fn kernels_mark_host_slots_with_the_same_bit() {
        let text = include_str!("../kernels/shared/stored_in_tiers.wgsl");
        assert!(text.contains(&format!("const FAR_SLOT: u32 = {FAR_SLOT:#x}u;")));
    }
}
