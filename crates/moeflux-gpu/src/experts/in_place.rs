//! Slots of streamed experts that kernels read in place: slabs in host memory, and a cache in
//! device memory with slots of the same size.
//!
//! **Invariant:** the engine assigns experts to slots of both; nothing is copied here.

use std::sync::Arc;

use moeflux::provider::error::Result;
use moeflux::provider::experts::Arrived;
use moeflux::provider::experts::stream::SlotMapping;
use moeflux_io::Slab;

use super::ExpertLimits;
use super::device_cache::DeviceCacheSlots;
use super::slab_imports::{SlabBinding, SlabImports};
use super::tables::PlacedGroup;
use crate::device::Gpu;
use crate::params::narrow;

/// Slots of the pool reserved for prompts.
const N_SLOTS_OF_PROMPT: u64 = 32;

/// Slots that kernels read in place; none unless the engine maps its slots.
#[derive(Debug, Default)]
pub(super) struct InPlaceSlots {
    /// Slabs of slots in host memory.
    imports: Option<Arc<SlabImports>>,
    /// Cache of streamed experts in device memory, which need no slot in host memory.
    cache: DeviceCacheSlots,
}

impl InPlaceSlots {
    /// Lets kernels read slots of this size, and allocates a cache of such slots within limits.
    pub(super) fn new(gpu: &Arc<Gpu>, slot_bytes: u64, limits: ExpertLimits) -> Result<Self> {
        // If too few of a prompt's experts are in memory, they go through slots of the pool.
        let n_bytes = limits.bytes_max.saturating_sub(N_SLOTS_OF_PROMPT * slot_bytes);
        let cache = DeviceCacheSlots::new(gpu, slot_bytes, (n_bytes, limits.buffer_bytes_max))?;
        let imports = Some(Arc::new(SlabImports::new(gpu, cache.n_slots)));
        Ok(Self { imports, cache })
    }

    /// Returns the number of slots of the cache.
    pub(super) const fn n_cached(&self) -> usize {
        self.cache.n_slots
    }

    /// Returns the location of a slot of the cache: its buffer, and the offset of its first byte.
    pub(super) fn cache_slot(&self, idx: usize) -> (&wgpu::Buffer, u64) {
        self.cache.slot_at(idx)
    }

    /// Returns a slab of host memory, imported on first use; `None` if slabs are not imported.
    pub(super) fn import(&self, slab: &Slab) -> Option<SlabBinding> {
        self.imports.as_ref()?.import(slab)
    }

    pub(super) fn slot_mapping(&self) -> Option<Arc<dyn SlotMapping>> {
        self.imports.clone().map(|imports| imports as Arc<dyn SlotMapping>)
    }

    /// Returns the first experts of a group, from index `first` on, that need no copy.
    pub(super) fn group(&self, arrived: &Arrived<'_>, first: usize) -> PlacedGroup {
        let mut group = PlacedGroup::default();
        if self.imports.is_none() {
            return group;
        }
        for at in first..arrived.len() {
            let found = match (arrived.device_slot(at), arrived.mapped_slot(at)) {
                (Some(place), _) => Some(self.cache.binding(place)),
                (None, Some(slot)) => {
                    self.import(slot.slab).map(|it| (it.bind_group, narrow(slot.idx_in_slab)))
                }
                (None, None) => None,
            };
            let Some((bind_group, slot)) = found else { break };
            group.add(bind_group, (arrived.expert(at), slot));
        }
        group
    }
}
