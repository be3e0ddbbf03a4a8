//! Moves frequently used experts to device memory: periodically reads back the counts of kernels,
//! and exchanges experts between device and host memory by commands.
//!
//! **Invariant:** nothing waits for counts. Copies and tables change between two steps, in queue
//! order, so that each step finds each expert once, with the same bytes.

use moeflux::provider::backend::TierStats;
use moeflux::provider::error::Result;
use moeflux::provider::ids::LayerIdx;

use super::bank::{Bank, Tier};
use super::use_stats::{Swap, UseStats};
use crate::device::mapping::Mapping;
use crate::device::recorder::CommandRecorder;
use crate::memory::STORAGE;

/// Steps between two readings of the counts.
const N_STEPS: u32 = 32;

/// Usage of the buffer through which the host reads counts.
const READ_BACK: wgpu::BufferUsages =
    wgpu::BufferUsages::MAP_READ.union(wgpu::BufferUsages::COPY_DST);

/// State of a reading of the counts.
#[derive(Debug)]
enum CountReading {
    /// Steps until the next reading.
    DueIn(u32),
    /// A copy of the counts was recorded for this submission.
    Recorded(u64),
    /// The copy was submitted; the mapping completes when it is done.
    Mapping(Mapping),
}

/// A layer with experts in both memories.
#[derive(Clone, Copy, Debug)]
struct TieredLayer {
    layer: LayerIdx,
    /// Offset of its counts, in words.
    uses_at: usize,
    n_experts: usize,
}

/// Balances experts between the memories by their uses.
#[derive(Debug)]
pub(super) struct TierBalancer {
    layers: Vec<TieredLayer>,
    reading: CountReading,
    stats: UseStats,
    /// Buffer of the counts being read back.
    counts: Option<wgpu::Buffer>,
    /// Temporary space of an expert being exchanged.
    swap_buffer: Option<wgpu::Buffer>,
    n_uses: [u64; 2],
    n_swaps: u64,
}

impl TierBalancer {
    pub(super) fn new() -> Self {
        Self {
            layers: Vec::new(),
            reading: CountReading::DueIn(N_STEPS),
            stats: UseStats::default(),
            counts: None,
            swap_buffer: None,
            n_uses: [0; 2],
            n_swaps: 0,
        }
    }

    /// Adds a layer, whose counts begin at word `uses_at`.
    pub(super) fn add(&mut self, layer: LayerIdx, uses_at: usize, n_experts: usize) {
        self.layers.push(TieredLayer { layer, uses_at, n_experts });
    }

    /// Returns the uses of experts in device memory, all uses, and the number of experts moved
    /// there, up to the last reading.
    pub(super) fn stats(&self, [near_bytes, far_bytes]: [u64; 2]) -> TierStats {
        let ([near_uses, uses], swaps) = (self.n_uses, self.n_swaps);
        TierStats { near_bytes, far_bytes, near_uses, uses, swaps }
    }

    /// Begins a step: reads the counts, if due. Returns the swaps to make.
    pub(super) fn begin_step<'a>(
        &mut self,
        recorder: &mut CommandRecorder,
        (uses, n_words): (&wgpu::Buffer, usize),
        bank_of: impl Fn(LayerIdx) -> &'a Bank,
    ) -> Result<Vec<(LayerIdx, Swap)>> {
        if self.layers.is_empty() {
            return Ok(Vec::new());
        }
        let n_bytes = (n_words * 4) as u64;
        let counts = match &self.counts {
            Some(counts) => counts,
            None => {
                self.counts.insert(recorder.gpu().buffer("uses of experts", n_bytes, READ_BACK)?)
            }
        };
        match &mut self.reading {
            CountReading::DueIn(0) => {
                recorder.encoder().copy_buffer_to_buffer(uses, 0, counts, 0, n_bytes);
                self.reading = CountReading::Recorded(recorder.submission());
            }
            CountReading::DueIn(n_steps) => *n_steps -= 1,
            CountReading::Recorded(submission) if *submission < recorder.submission() => {
                self.reading = CountReading::Mapping(Mapping::begin(counts, wgpu::MapMode::Read));
            }
            CountReading::Mapping(mapping) if mapping.is_done(recorder.gpu())? => {
                let view = counts.get_mapped_range(..);
                let view = view.map_err(|e| {
                    recorder.gpu().error(&format!("cannot read the counts of uses: {e}"))
                })?;
                let words: Vec<u32> = bytemuck::pod_collect_to_vec(&view);
                drop(view);
                counts.unmap();
                self.reading = CountReading::DueIn(N_STEPS);
                return Ok(self.round(&words, bank_of));
            }
            CountReading::Recorded(_) | CountReading::Mapping(_) => {}
        }
        Ok(Vec::new())
    }

    fn round<'a>(
        &mut self,
        words: &[u32],
        bank_of: impl Fn(LayerIdx) -> &'a Bank,
    ) -> Vec<(LayerIdx, Swap)> {
        let tiers: Vec<Vec<Tier>> =
            self.layers.iter().map(|it| bank_of(it.layer).tiers().collect()).collect();
        let counts = self.layers.iter().map(|it| &words[it.uses_at..][..it.n_experts]);
        let round = self.stats.round(counts.zip(tiers.iter().map(Vec::as_slice)));
        self.n_uses[0] += round.uses[0];
        self.n_uses[1] += round.uses[1];
        self.n_swaps += round.swaps.len() as u64;
        round.swaps.iter().map(|swap| (self.layers[swap.layer].layer, *swap)).collect()
    }

    /// Records the exchange of two experts' bytes.
    pub(super) fn exchange(
        &mut self,
        recorder: &mut CommandRecorder,
        [promoted, demoted]: [(&wgpu::Buffer, u64); 2],
        slot_bytes: u64,
    ) -> Result<()> {
        let between = match &self.swap_buffer {
            Some(between) if between.size() >= slot_bytes => between,
            _ => {
                let buffer = recorder.gpu().buffer("an expert on its way", slot_bytes, STORAGE)?;
                self.swap_buffer.insert(buffer)
            }
        };
        let encoder = recorder.encoder();
        encoder.copy_buffer_to_buffer(demoted.0, demoted.1, between, 0, slot_bytes);
        encoder.copy_buffer_to_buffer(promoted.0, promoted.1, demoted.0, demoted.1, slot_bytes);
        encoder.copy_buffer_to_buffer(between, 0, promoted.0, promoted.1, slot_bytes);
        Ok(())
    }
}
