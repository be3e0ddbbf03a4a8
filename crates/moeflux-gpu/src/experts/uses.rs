//! Counters of expert uses in device memory, and the bind groups of slots that contain them.
//!
//! **Invariant:** the counters of a layer have a fixed place. They exist if some experts are in
//! host memory.

use moeflux::provider::error::Result;

use super::tables::N_RESIDENT_WORDS_MAX;
use crate::config::Tiers;
use crate::device::Gpu;
use crate::memory::STORAGE;
use crate::memory::weights::{bind, bind_tiers};

/// Alignment of a layer's counters, as bindings require.
const USES_ALIGN_WORDS: usize = 64;

/// Counters of expert uses, allocated if some experts are in host memory.
#[derive(Debug)]
pub(super) struct UseCounters {
    counts: Option<wgpu::Buffer>,
    /// Words assigned to layers.
    n_words: usize,
}

impl UseCounters {
    pub(super) fn new(gpu: &Gpu, tiers: Tiers) -> Result<Self> {
        let n_bytes = (N_RESIDENT_WORDS_MAX * 4) as u64;
        let counts = match tiers {
            Tiers::Device => None,
            Tiers::DeviceAndHost => Some(gpu.buffer("uses of experts", n_bytes, STORAGE)?),
        };
        Ok(Self { counts, n_words: 0 })
    }

    /// Returns the counters and the number of words in use, if uses are counted.
    pub(super) fn counts(&self) -> Option<(&wgpu::Buffer, usize)> {
        self.counts.as_ref().map(|counts| (counts, self.n_words))
    }

    /// Assigns the counters of a layer, and returns the offset of the first; `None` if there is no
    /// room.
    pub(super) const fn add(&mut self, n_experts: usize) -> Option<usize> {
        let uses_at = self.n_words;
        self.n_words += n_experts.next_multiple_of(USES_ALIGN_WORDS);
        if self.n_words <= N_RESIDENT_WORDS_MAX { Some(uses_at) } else { None }
    }

    /// Binds slots, and the counters of expert uses from word `at` on.
    pub(super) fn bind(&self, gpu: &Gpu, pair: [&wgpu::Buffer; 2], at: usize) -> wgpu::BindGroup {
        match &self.counts {
            None => bind(gpu, pair[0]),
            Some(counts) => bind_tiers(gpu, pair, (counts, (at * 4) as u64)),
        }
    }
}
