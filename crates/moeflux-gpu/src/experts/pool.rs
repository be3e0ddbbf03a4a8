//! Slots for streamed experts: the assignment of experts to slots, and eviction.
//!
//! **Invariant:** a slot is reassigned only after the group it was last used for was recorded
//! completely; commands that still read it precede the one that overwrites it.

use std::collections::HashMap;

use moeflux::provider::error::Result;
use moeflux::provider::ids::{ExpertIdx, LayerIdx};

use super::UseCounters;
use crate::device::Gpu;
use crate::memory::STORAGE;

/// Slots of the first buffer of a pool; each further buffer doubles the pool.
const N_SLOTS_FIRST: usize = 32;

/// Location of an expert: a buffer of its pool, and a slot there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotAddress {
    pub(super) buffer_idx: usize,
    pub(super) slot: u32,
}

/// A buffer of slots as kernels see it.
#[derive(Debug)]
pub(super) struct SlotBuffer {
    pub(super) buffer: wgpu::Buffer,
    pub(super) bind_group: wgpu::BindGroup,
}

/// A slot of a pool, and the expert in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolSlot {
    pub(super) address: SlotAddress,
    key: Option<(LayerIdx, ExpertIdx)>,
    /// Number of the group it was last used for, counted over all groups.
    pub(super) last_group: u64,
}

/// Slots of one size.
#[derive(Debug)]
pub(super) struct SlotPool {
    pub(super) slot_bytes: u64,
    pub(super) buffers: Vec<SlotBuffer>,
    pub(super) slots: Vec<PoolSlot>,
    by_key: HashMap<(LayerIdx, ExpertIdx), usize>,
}

/// Context for allocating the buffers of a pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolGrowth<'a> {
    pub(super) gpu: &'a Gpu,
    /// Bytes that this pool may still allocate.
    pub(super) room_bytes: u64,
    /// Upper bound on the bytes of one buffer.
    pub(super) buffer_bytes_max: u64,
    pub(super) uses: &'a UseCounters,
}

impl SlotPool {
    pub(super) fn new(slot_bytes: u64) -> Self {
        let (buffers, slots, by_key) = (Vec::new(), Vec::new(), HashMap::new());
        Self { slot_bytes, buffers, slots, by_key }
    }

    /// Returns the bytes of all its buffers.
    pub(super) fn n_bytes(&self) -> u64 {
        self.buffers.iter().map(|it| it.buffer.size()).sum()
    }

    /// Returns a slot for an expert, and whether the expert is already there; `None` if all slots
    /// belong to this group.
    pub(super) fn slot_for(
        &mut self,
        growth: &PoolGrowth<'_>,
        group: u64,
        key: (LayerIdx, ExpertIdx),
    ) -> Result<Option<(usize, bool)>> {
        if let Some(&slot_idx) = self.by_key.get(&key) {
            return Ok(Some((slot_idx, true)));
        }
        let free = |slots: &[PoolSlot]| slots.iter().position(|slot| slot.key.is_none());
        if let Some(slot_idx) = free(&self.slots) {
            return Ok(Some((slot_idx, false)));
        }
        if self.grow(growth)? {
            return Ok(free(&self.slots).map(|slot_idx| (slot_idx, false)));
        }
        let oldest = self.slots.iter().enumerate().min_by_key(|(_, slot)| slot.last_group);
        let leaving = oldest.filter(|(_, slot)| slot.last_group < group);
        Ok(leaving.map(|(slot_idx, _)| (slot_idx, false)))
    }

    /// Adds a buffer, if memory allows.
    fn grow(&mut self, growth: &PoolGrowth<'_>) -> Result<bool> {
        let PoolGrowth { gpu, room_bytes, buffer_bytes_max, uses } = *growth;
        let wanted = self.slots.len().max(N_SLOTS_FIRST) as u64;
        let n_room = room_bytes / self.slot_bytes;
        let n_bound = buffer_bytes_max / self.slot_bytes;
        // There is always at least one slot: without it nothing could be computed.
        let n_least = u64::from(self.slots.is_empty());
        let n_slots = wanted.min(n_room).min(n_bound).max(n_least);
        if n_slots == 0 {
            return Ok(false);
        }
        let buffer = gpu.buffer("slots of experts", n_slots * self.slot_bytes, STORAGE)?;
        let bind_group = uses.bind(gpu, [&buffer, &buffer], 0);
        let buffer_idx = self.buffers.len();
        self.buffers.push(SlotBuffer { buffer, bind_group });
        let n_slots = u32::try_from(n_slots).expect("a binding has fewer slots than words");
        self.slots.extend((0..n_slots).map(|slot| PoolSlot {
            address: SlotAddress { buffer_idx, slot },
            key: None,
            last_group: 0,
        }));
        Ok(true)
    }

    /// Assigns a slot to an expert.
    pub(super) fn assign(&mut self, slot_idx: usize, key: (LayerIdx, ExpertIdx)) {
        if let Some(leaving) = self.slots[slot_idx].key.replace(key) {
            self.by_key.remove(&leaving);
        }
        self.by_key.insert(key, slot_idx);
    }
}
