//! Slots for streamed experts: the assignment of experts to slots, and eviction.
//!
//! **Invariant:** a slot is reassigned only after the group it was last used for was recorded
//! completely; commands that still read it precede the one that overwrites it.

use std::collections::HashMap;

use moeflux::provider::error::Result;
use moeflux::provider::experts::Arrived;
use moeflux::provider::ids::{ExpertIdx, LayerIdx};

use super::ExpertLimits;
use super::layout::fill;
use super::tables::PlacedGroup;
use super::uses::UseCounters;
use crate::compiler::ExpertSlotLayout;
use crate::device::Gpu;
use crate::device::recorder::CommandRecorder;
use crate::device::staging::Staging;
use crate::memory::STORAGE;

/// Slots of the first buffer of a pool; each further buffer doubles the pool.
const N_SLOTS_FIRST: usize = 32;

/// Location of an expert: a buffer of its pool, and a slot there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlotAddress {
    buffer_idx: usize,
    slot: u32,
}

/// A buffer of slots as kernels see it.
#[derive(Debug)]
struct SlotBuffer {
    buffer: wgpu::Buffer,
    bind_group: wgpu::BindGroup,
}

/// A slot of a pool, and the expert in it.
#[derive(Clone, Copy, Debug)]
struct PoolSlot {
    address: SlotAddress,
    key: Option<(LayerIdx, ExpertIdx)>,
    /// Number of the group it was last used for, counted over all groups.
    last_group: u64,
}

/// The pools of all slot sizes.
#[derive(Debug, Default)]
pub(super) struct SlotPools {
    pools: Vec<SlotPool>,
    n_groups: u64,
    n_uploaded: u64,
}

impl SlotPools {
    /// Returns the number of experts copied to slots so far.
    pub(super) const fn n_uploaded(&self) -> u64 {
        self.n_uploaded
    }

    /// Copies experts of a group to slots, from index `first` on, as many as fit at once. Returns
    /// none if the recorded commands must be submitted first.
    pub(super) fn bring(
        &mut self,
        (staging, recorder): (&mut Staging, &mut CommandRecorder),
        (layer, slot_layout): (LayerIdx, &ExpertSlotLayout),
        (arrived, first): (&Arrived<'_>, usize),
        (limits, uses): (ExpertLimits, &UseCounters),
    ) -> Result<PlacedGroup> {
        let pool_idx = self.pool_of(slot_layout.n_bytes());
        self.n_groups += 1;
        let mut addresses = Vec::new();
        for at in first..arrived.len() {
            if arrived.device_slot(at).is_some() {
                break;
            }
            let key = (layer, arrived.expert(at));
            let room_bytes = limits.bytes_max.saturating_sub(self.n_bytes());
            let (gpu, buffer_bytes_max) = (recorder.gpu(), limits.buffer_bytes_max);
            let growth = PoolGrowth { gpu, room_bytes, buffer_bytes_max, uses };
            let pool = &mut self.pools[pool_idx];
            let found = pool.slot_for(&growth, self.n_groups, key)?;
            let Some((slot_idx, is_there)) = found else { break };
            if !is_there {
                let target = pool.location(slot_idx);
                let expert = (&arrived.view(at), slot_layout);
                if !fill((&mut *staging, &mut *recorder), target, expert)? {
                    break;
                }
                self.n_uploaded += 1;
                pool.assign(slot_idx, key);
            }
            pool.slots[slot_idx].last_group = self.n_groups;
            addresses.push((key.1, pool.slots[slot_idx].address));
        }
        // The order of buffers is that of dispatches.
        addresses.sort_by_key(|(_, address)| address.buffer_idx);
        let mut group = PlacedGroup::default();
        for (expert, SlotAddress { buffer_idx, slot }) in addresses {
            let bind_group = self.pools[pool_idx].buffers[buffer_idx].bind_group.clone();
            group.add(bind_group, (expert, slot));
        }
        Ok(group)
    }

    /// Returns the bytes of all pools.
    fn n_bytes(&self) -> u64 {
        self.pools.iter().map(SlotPool::n_bytes).sum()
    }

    fn pool_of(&mut self, slot_bytes: u64) -> usize {
        let known = self.pools.iter().position(|pool| pool.slot_bytes == slot_bytes);
        known.unwrap_or_else(|| {
            self.pools.push(SlotPool::new(slot_bytes));
            self.pools.len() - 1
        })
    }
}

/// Slots of one size.
#[derive(Debug)]
struct SlotPool {
    slot_bytes: u64,
    buffers: Vec<SlotBuffer>,
    slots: Vec<PoolSlot>,
    by_key: HashMap<(LayerIdx, ExpertIdx), usize>,
}

/// Context for allocating the buffers of a pool.
#[derive(Clone, Copy, Debug)]
struct PoolGrowth<'a> {
    gpu: &'a Gpu,
    /// Bytes that this pool may still allocate.
    room_bytes: u64,
    /// Upper bound on the bytes of one buffer.
    buffer_bytes_max: u64,
    uses: &'a UseCounters,
}

impl SlotPool {
    fn new(slot_bytes: u64) -> Self {
        let (buffers, slots, by_key) = (Vec::new(), Vec::new(), HashMap::new());
        Self { slot_bytes, buffers, slots, by_key }
    }

    /// Returns the bytes of all its buffers.
    fn n_bytes(&self) -> u64 {
        self.buffers.iter().map(|it| it.buffer.size()).sum()
    }

    /// Returns a slot for an expert, and whether the expert is already there; `None` if all slots
    /// belong to this group.
    fn slot_for(
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

    /// Returns the location of a slot: its buffer, and the offset of its first byte.
    fn location(&self, slot_idx: usize) -> (&wgpu::Buffer, u64) {
        let SlotAddress { buffer_idx, slot } = self.slots[slot_idx].address;
        (&self.buffers[buffer_idx].buffer, u64::from(slot) * self.slot_bytes)
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
    fn assign(&mut self, slot_idx: usize, key: (LayerIdx, ExpertIdx)) {
        if let Some(leaving) = self.slots[slot_idx].key.replace(key) {
            self.by_key.remove(&leaving);
        }
        self.by_key.insert(key, slot_idx);
    }
}
