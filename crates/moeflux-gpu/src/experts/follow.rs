//! Lets what lies near follow what is used: reads the counts of kernels back now and then, and
//! exchanges experts between the device's memory and the host's by commands.
//!
//! **Invariant:** nobody waits for counts; copies and tables change between two steps, in the order
//! of the queue, so that each step finds each expert once, with the same bytes.

use moeflux::provider::backend::TierStats;
use moeflux::provider::error::Result;
use moeflux::provider::ids::LayerIdx;

use super::bank::{Bank, Tier};
use super::heat::{Heat, Swap};
use crate::device::mapping::Mapping;
use crate::device::staging::Flow;
use crate::memory::STORAGE;

/// Steps from one look at the counts to the next.
const N_STEPS: u32 = 32;

/// Counts that the host reads.
const READ_BACK: wgpu::BufferUsages =
    wgpu::BufferUsages::MAP_READ.union(wgpu::BufferUsages::COPY_DST);

/// How far a look at the counts is.
#[derive(Debug)]
enum Look {
    /// So many steps until the next one.
    In(u32),
    /// A copy of them was recorded for this submission.
    Recorded(u64),
    /// They come when it is done.
    Mapping(Mapping),
}

/// A layer that has experts far away.
#[derive(Clone, Copy, Debug)]
struct Followed {
    layer: LayerIdx,
    /// Where its counts begin, in words.
    uses_at: usize,
    n_experts: usize,
}

/// What is known of the uses of experts.
#[derive(Debug)]
pub(super) struct Follow {
    layers: Vec<Followed>,
    look: Look,
    heat: Heat,
    /// Counts on their way to the host.
    counts: Option<wgpu::Buffer>,
    /// An expert on its way.
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

    /// Follows one more layer, whose counts begin at a word.
    pub(super) fn add(&mut self, layer: LayerIdx, uses_at: usize, n_experts: usize) {
        self.layers.push(Followed { layer, uses_at, n_experts });
    }

    /// Uses that were near and all of them, and how many experts came near, up to the last look.
    pub(super) fn stats(&self, [near_bytes, far_bytes]: [u64; 2]) -> TierStats {
        let ([near_uses, uses], swaps) = (self.n_uses, self.n_swaps);
        TierStats { near_bytes, far_bytes, near_uses, uses, swaps }
    }

    /// A step begins: looks at the counts, if it is time. What shall be exchanged comes out.
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
