//! Moves frequently used experts near: periodically reads back the counts of kernels, and exchanges
//! experts between device and host memory by commands.
//!
//! **Invariant:** nothing waits for counts. Copies and tables change between two steps, in queue
//! order, so that each step finds each expert once, with the same bytes.

use moeflux::provider::backend::TierStats;
use moeflux::provider::error::Result;
use moeflux::provider::ids::LayerIdx;

use super::bank::{Bank, Tier};
use super::heat::{Heat, Swap};
use crate::device::mapping::Mapping;
use crate::device::staging::Flow;
use crate::memory::STORAGE;

/// Steps between two readings of the counts.
const N_STEPS: u32 = 32;

/// Usage of the buffer through which the host reads counts.
const READ_BACK: wgpu::BufferUsages =
    wgpu::BufferUsages::MAP_READ.union(wgpu::BufferUsages::COPY_DST);

/// State of a reading of the counts.
#[derive(Debug)]
enum Look {
    /// Steps until the next reading.
    In(u32),
    /// A copy of the counts was recorded for this submission.
    Recorded(u64),
    /// The copy was submitted; the mapping completes when it is done.
    Mapping(Mapping),
}

/// A layer with far experts.
#[derive(Clone, Copy, Debug)]
struct Followed {
    layer: LayerIdx,
    /// Offset of its counts, in words.
    uses_at: usize,
    n_experts: usize,
}

/// Statistics of expert uses.
#[derive(Debug)]
pub(super) struct Follow {
    layers: Vec<Followed>,
    look: Look,
    heat: Heat,
    /// Buffer of the counts being read back.
    counts: Option<wgpu::Buffer>,
    /// Temporary space of an expert being exchanged.
    spare: Option<wgpu::Buffer>,
    n_uses: [u64; 2],
    n_swaps: u64,
}

impl Follow {
    pub(super) fn new() -> Self {
        Self {
            layers: Vec::new(),
            look: Look::In(N_STEPS),
            heat: Heat::default(),
            counts: None,
            spare: None,
            n_uses: [0; 2],
            n_swaps: 0,
        }
    }

    /// Follows one more layer, whose counts begin at word `uses_at`.
    pub(super) fn add(&mut self, layer: LayerIdx, uses_at: usize, n_experts: usize) {
        self.layers.push(Followed { layer, uses_at, n_experts });
    }

    /// Returns the near uses, all uses, and the number of experts moved near, up to the last
    /// reading.
    pub(super) fn stats(&self, [near_bytes, far_bytes]: [u64; 2]) -> TierStats {
        let ([near_uses, uses], swaps) = (self.n_uses, self.n_swaps);
        TierStats { near_bytes, far_bytes, near_uses, uses, swaps }
    }

    /// Begins a step: reads the counts, if due. Returns the swaps to make.
    pub(super) fn begin_step<'a>(
        &mut self,
        flow: &mut Flow<'_>,
        (uses, n_words): (&wgpu::Buffer, usize),
        bank_of: impl Fn(LayerIdx) -> &'a Bank,
    ) -> Result<Vec<(LayerIdx, Swap)>> {
        if self.layers.is_empty() {
            return Ok(Vec::new());
        }
        let n_bytes = (n_words * 4) as u64;
        let counts = match &self.counts {
            Some(counts) => counts,
            None => self.counts.insert(flow.gpu.buffer("uses of experts", n_bytes, READ_BACK)?),
        };
        match &mut self.look {
            Look::In(0) => {
                flow.recorder.encoder().copy_buffer_to_buffer(uses, 0, counts, 0, n_bytes);
                self.look = Look::Recorded(flow.submission);
            }
            Look::In(n_steps) => *n_steps -= 1,
            Look::Recorded(submission) if *submission < flow.submission => {
                self.look = Look::Mapping(Mapping::begin(counts, wgpu::MapMode::Read));
            }
            Look::Mapping(mapping) if mapping.is_done(flow.gpu)? => {
                let view = counts.get_mapped_range(..);
                let view = view
                    .map_err(|e| flow.gpu.error(&format!("cannot read the counts of uses: {e}")))?;
                let words: Vec<u32> = bytemuck::pod_collect_to_vec(&view);
                drop(view);
                counts.unmap();
                self.look = Look::In(N_STEPS);
                return Ok(self.round(&words, bank_of));
            }
            Look::Recorded(_) | Look::Mapping(_) => {}
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
        let round = self.heat.round(counts.zip(tiers.iter().map(Vec::as_slice)));
        self.n_uses[0] += round.uses[0];
        self.n_uses[1] += round.uses[1];
        self.n_swaps += round.swaps.len() as u64;
        round.swaps.iter().map(|swap| (self.layers[swap.layer].layer, *swap)).collect()
    }

    /// Records the exchange of two experts' bytes.
    pub(super) fn exchange(
        &mut self,
        flow: &mut Flow<'_>,
        [arrives, leaves]: [(&wgpu::Buffer, u64); 2],
        slot_bytes: u64,
    ) -> Result<()> {
        let spare = match &self.spare {
            Some(spare) if spare.size() >= slot_bytes => spare,
            _ => self.spare.insert(flow.gpu.buffer("an expert on its way", slot_bytes, STORAGE)?),
        };
        let encoder = flow.recorder.encoder();
        encoder.copy_buffer_to_buffer(leaves.0, leaves.1, spare, 0, slot_bytes);
        encoder.copy_buffer_to_buffer(arrives.0, arrives.1, leaves.0, leaves.1, slot_bytes);
        encoder.copy_buffer_to_buffer(spare, 0, arrives.0, arrives.1, slot_bytes);
        Ok(())
    }
}
