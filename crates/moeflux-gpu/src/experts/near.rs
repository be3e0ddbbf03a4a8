//! Places for streamed experts in the device's own memory, each as large as a slot of the host's.
//!
//! **Invariant:** the engine says who is where; what fills a place is a command behind those that
//! read what was there before.

use moeflux::provider::error::Result;

use super::bank::BUFFER_BYTES_MAX;
use crate::device::Gpu;
use crate::memory::STORAGE;
use crate::memory::weights::bind;
use crate::params::narrow;

/// All places.
#[derive(Debug, Default)]
pub(super) struct NearPlaces {
    slot_bytes: u64,
    n_per_buffer: usize,
    buffers: Vec<(wgpu::Buffer, wgpu::BindGroup)>,
    pub(super) n_places: usize,
}

impl NearPlaces {
    /// As many places as `n_bytes` hold, in buffers of at most `buffer_bytes_max`.
    pub(super) fn new(
        gpu: &Gpu,
        slot_bytes: u64,
        (n_bytes, buffer_bytes_max): (u64, u64),
    ) -> Result<Self> {
        let whole = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let n_per_buffer = whole(buffer_bytes_max.min(BUFFER_BYTES_MAX) / slot_bytes);
        let n_places = if n_per_buffer == 0 { 0 } else { whole(n_bytes / slot_bytes) };
        let mut buffers = Vec::new();
        for first in (0..n_places).step_by(n_per_buffer.max(1)) {
            let n_slots = n_per_buffer.min(n_places - first) as u64;
            let buffer = gpu.buffer("places of experts", n_slots * slot_bytes, STORAGE)?;
            let bind_group = bind(gpu, &buffer);
            buffers.push((buffer, bind_group));
        }
        Ok(Self { slot_bytes, n_per_buffer, buffers, n_places })
    }

    /// A place: its buffer, and its first byte there.
    pub(super) fn place(&self, idx: usize) -> (&wgpu::Buffer, u64) {
        let begin = (idx % self.n_per_buffer) as u64 * self.slot_bytes;
        (&self.buffers[idx / self.n_per_buffer].0, begin)
    }

    /// What kernels that read a place are bound to, and its slot there.
    pub(super) fn bound(&self, idx: usize) -> (wgpu::BindGroup, u32) {
        let bind_group = self.buffers[idx / self.n_per_buffer].1.clone();
        (bind_group, narrow(idx % self.n_per_buffer))
    }
}
