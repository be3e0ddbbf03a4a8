//! A cache of streamed experts in device memory, in slots as large as those in host memory.
//!
//! **Invariant:** the engine assigns experts to slots. A slot is filled by a command that follows
//! those that read its previous contents.

use moeflux::provider::error::Result;

use super::bank::BUFFER_BYTES_MAX;
use crate::device::Gpu;
use crate::memory::STORAGE;
use crate::memory::weights::bind;
use crate::params::narrow;

/// All slots of the cache.
#[derive(Debug, Default)]
pub(super) struct DeviceCacheSlots {
    slot_bytes: u64,
    n_per_buffer: usize,
    buffers: Vec<(wgpu::Buffer, wgpu::BindGroup)>,
    pub(super) n_slots: usize,
}

impl DeviceCacheSlots {
    /// Allocates as many slots as fit in `n_bytes`, in buffers of at most `buffer_bytes_max`.
    pub(super) fn new(
        gpu: &Gpu,
        slot_bytes: u64,
        (n_bytes, buffer_bytes_max): (u64, u64),
    ) -> Result<Self> {
        let whole = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let n_per_buffer = whole(buffer_bytes_max.min(BUFFER_BYTES_MAX) / slot_bytes);
        let n_slots = if n_per_buffer == 0 { 0 } else { whole(n_bytes / slot_bytes) };
        let mut buffers = Vec::new();
        for first in (0..n_slots).step_by(n_per_buffer.max(1)) {
            let n_here = n_per_buffer.min(n_slots - first) as u64;
            let buffer = gpu.buffer("places of experts", n_here * slot_bytes, STORAGE)?;
            let bind_group = bind(gpu, &buffer);
            buffers.push((buffer, bind_group));
        }
        Ok(Self { slot_bytes, n_per_buffer, buffers, n_slots })
    }

    /// Returns the location of a slot: its buffer, and the offset of its first byte.
    pub(super) fn slot_at(&self, idx: usize) -> (&wgpu::Buffer, u64) {
        let begin = (idx % self.n_per_buffer) as u64 * self.slot_bytes;
        (&self.buffers[idx / self.n_per_buffer].0, begin)
    }

    /// Returns the bind group for kernels that read a slot, and the slot's index in its buffer.
    pub(super) fn binding(&self, idx: usize) -> (wgpu::BindGroup, u32) {
        let bind_group = self.buffers[idx / self.n_per_buffer].1.clone();
        (bind_group, narrow(idx % self.n_per_buffer))
    }
}
