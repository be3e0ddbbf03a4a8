//! Replays a trace over a table of slots, to find the hits of another budget.
//!
//! Each block of a trace requests its union at once, as a layer does. Prompts, and blocks that need
//! more slots than there are, are served in batches. Reads finish at once and guesses are off, so
//! hits depend on the policy alone. **Invariant:** never more hits than [`bound()`].

mod bound;

use crate::experts::table::{Demand, Lookup, SlotLease, SlotTable, TableShape};
use crate::experts::trace::{StepKind, Trace, TraceBlock};
use crate::ids::ExpertIdx;

pub use bound::bound;

/// Demands of one kind of step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Experts that were in memory.
    pub n_hits: u64,
    /// Experts that had to be read.
    pub n_misses: u64,
    /// Bytes of these reads.
    pub read_bytes: u64,
}

impl Tally {
    /// Returns the share of demands that were hits; `None` where there were no demands.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts, for display")]
    pub fn hit_rate(&self) -> Option<f64> {
        let n_demands = self.n_hits + self.n_misses;
        (n_demands > 0).then(|| self.n_hits as f64 / n_demands as f64)
    }

    fn add(&mut self, n_demands: usize, n_misses: u64, record_bytes: u64) {
        self.n_hits += n_demands as u64 - n_misses;
        self.n_misses += n_misses;
        self.read_bytes = self.read_bytes.saturating_add(n_misses.saturating_mul(record_bytes));
    }
}

/// Demands of a trace with a given number of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Demands of prefill.
    pub prefill: Tally,
    /// Demands of decoding.
    pub decode: Tally,
}

impl Replayed {
    /// Returns the demands of one kind of step.
    #[must_use]
    pub fn tally(&self, kind: StepKind) -> &Tally {
        match kind {
            StepKind::Prefill => &self.prefill,
            StepKind::Decode => &self.decode,
        }
    }

    fn add(&mut self, trace: &Trace, block: &TraceBlock<'_>, n_misses: u64) {
        let tally = match block.kind {
            StepKind::Prefill => &mut self.prefill,
            StepKind::Decode => &mut self.decode,
        };
        let record_bytes = trace.header().layers[block.layer.0].record_bytes;
        tally.add(block.uses.len(), n_misses, record_bytes);
    }
}

/// Replays a trace over a table that is empty at first.
///
/// # Panics
///
/// If there are no slots.
#[must_use]
pub fn replay(trace: &Trace, n_slots: usize) -> Replayed {
    let n_experts: Vec<usize> = trace.header().layers.iter().map(|it| it.n_experts).collect();
    let n_uses_per_row = trace.header().n_uses_per_row();
    let shape = TableShape { n_experts: &n_experts, n_uses_per_row, n_slots };
    let mut table = SlotTable::new(shape);
    let (mut demands, mut leases) = (Vec::new(), Vec::new());
    let mut replayed = Replayed::default();
    let first_layer = trace.blocks().next().map(|block| block.layer);
    for block in trace.blocks() {
        if Some(block.layer) == first_layer {
            table.begin_step(block.n_rows);
        }
        demands.extend(
            block
                .uses
                .iter()
                .map(|it| Demand { expert: ExpertIdx(it.expert as usize), n_uses: it.n_uses }),
        );
        let n_reads_max = match block.kind {
            StepKind::Prefill => table.n_prompt_reads(),
            StepKind::Decode => usize::MAX,
        };
        let n_misses_before = table.counters().misses;
        while !demands.is_empty() {
            table.acquire(block.layer, &mut demands, n_reads_max, &mut leases);
            serve(&mut table, &leases);
        }
        replayed.add(trace, &block, table.counters().misses - n_misses_before);
    }
    replayed
}

/// Marks all as loaded, then releases them.
fn serve(table: &mut SlotTable, leases: &[SlotLease]) {
    for lease in leases.iter().filter(|lease| lease.lookup == Lookup::ToRead) {
        table.loaded(lease.slot);
    }
    leases.iter().for_each(|lease| table.release(lease.slot));
}

#[cfg(test)]
mod tests;
