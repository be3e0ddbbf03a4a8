//! Softmax attention over a session's cache: grouped heads, and the latent form.
//!
//! **The order of sums**, separately for each row and query head: positions are divided into spans
//! of 512 counted from position 0, and each span into blocks of 64 counted likewise. A block
//! contributes the positions that the row sees; its scores, exponentials and weighted values are
//! summed as `moeflux_kernels` states. A span starts empty and takes its blocks in ascending order.
//! Then the spans are merged in ascending order, and a sink comes last. If a row attends to chosen
//! positions, spans and blocks are counted in its list, so a list of all positions changes no bit.
//! **Invariant:** a result depends only on the row's position, not on the division into jobs. So a
//! long context spreads over many threads, and many queries share each block that is read.

mod merge;
mod jobs;
mod rounded;
mod task;

use std::ops::Range;

use moeflux_kernels::{CodeShape, KernelTable, RowOp, Spread};

use crate::backend::cpu::attention::jobs::AttentionJobs;
use crate::backend::cpu::attention::task::AttentionTask;
use crate::backend::cpu::split::{RowParts, SplitItems};
use crate::backend::cpu::{Inputs, PlanExecutor, grown};
use crate::backend::host::{HostLayerState, HostStates};
use crate::ids::{LayerIdx, VectorId};
use crate::ops::{Attention, Batch, ChosenPositions, Heads, MlaAttention, Segment};

pub(super) use crate::backend::cpu::attention::task::TaskScratch;

/// Positions per span: enough that merging is comparatively cheap.
const SPAN: usize = 512;

/// Scratch of one op; grows to the largest use and is kept.
#[derive(Debug, Default)]
pub(super) struct AttentionScratch {
    jobs: AttentionJobs,
    /// Results of all jobs, placed by [`jobs::AttentionJob::offset`].
    results: Vec<f32>,
    /// A key to be rounded.
    spread: Vec<f32>,
}

/// What both forms of attention have in common: their tables, views and factors.
struct AttentionForm<'a> {
    layer: LayerIdx,
    /// Queries multiplied by the first and by the second table of the cache.
    queries: [Option<&'a Heads>; 2],
    /// New entries of the two tables.
    entries: [&'a Heads; 2],
    /// Index of the table that holds the values.
    values: usize,
    out: &'a Heads,
    scale: f32,
    window: Option<usize>,
    chosen: Option<ChosenPositions>,
}

impl<'a> AttentionForm<'a> {
    fn grouped(op: &'a Attention) -> Self {
        Self {
            layer: op.layer,
            queries: [Some(&op.q), None],
            entries: [&op.k, &op.v],
            values: 1,
            out: &op.out,
            scale: op.scale,
            window: op.window,
            chosen: None,
        }
    }

    fn latent(op: &'a MlaAttention) -> Self {
        Self {
            layer: op.layer,
            queries: [Some(&op.q_latent), Some(&op.q_rope)],
            entries: [&op.latent, &op.k_rope],
            values: 0,
            out: &op.out,
            scale: op.scale,
            window: None,
            chosen: op.chosen,
        }
    }

    /// Returns the number of query heads that share a cache head.
    fn n_sharing_heads(&self) -> usize {
        self.out.n_heads / self.entries[0].n_heads
    }

    /// Returns whether the vectors of a table are spread before they are rounded to codes: those
    /// of keys, but not latents, whose weighted sum is an output.
    fn is_spread(&self, table_idx: usize) -> bool {
        table_idx != self.values
    }

    /// Returns the positions that a row sees, or the part of its list that it attends to.
    fn seen(&self, position: usize) -> Range<usize> {
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        first..self.chosen.map_or(position + 1, |chosen| chosen.n_of(position))
    }

    /// Returns the list of a row, unless the row sees all positions that the list has room for.
    fn list_of(&self, position: usize) -> Option<Heads> {
        let chosen = self.chosen.filter(|chosen| !chosen.is_all(position));
        chosen.map(|chosen| chosen.list)
    }
}

/// Returns the segment of a row.
pub(super) fn segment_of<'a>(batch: &Batch<'a>, row_idx: usize) -> &'a Segment {
    let segments = batch.segments;
    &segments[segments.partition_point(|segment| segment.rows.end <= row_idx)]
}

/// Copies the rows' new entries to their sessions' caches.
fn append(
    (states, scratch): (&mut HostStates, &mut Vec<f32>),
    form: &AttentionForm<'_>,
    batch: &Batch<'_>,
    inputs: &Inputs<'_>,
    kernels: &KernelTable,
) {
    for segment in batch.segments {
        let memory = states.layer_mut(segment.state, form.layer);
        let HostLayerState::Positions { first, second, .. } = memory else {
            unreachable!("attention keeps positions");
        };
        for (i, table) in [first, second].into_iter().enumerate() {
            let heads = form.entries[i];
            assert_eq!(table.shape(), (heads.n_heads, heads.head_dim), "heads of the cache");
            let spread = table.code_shape().filter(|_| form.is_spread(i));
            for row_idx in segment.rows.clone() {
                let position = batch.rows[row_idx].position.0;
                for head_idx in 0..heads.n_heads {
                    let values = inputs.head(heads, row_idx, head_idx);
                    let stored = match spread {
                        Some(shape) => spread_key(kernels, shape, values, scratch),
                        None => values,
                    };
                    table.put(head_idx, position, stored);
                }
            }
        }
    }
}

/// Returns a key to be rounded to codes.
fn spread_key<'a>(
    kernels: &KernelTable,
    shape: CodeShape,
    values: &[f32],
    scratch: &'a mut Vec<f32>,
) -> &'a [f32] {
    scratch.clear();
    scratch.extend_from_slice(values);
    scratch.resize(shape.n_cols, 0.0);
    kernels.apply(&RowOp::Spread(Spread::of_key(shape.n_cols)), scratch);
    scratch
}

impl PlanExecutor {
    pub(super) fn attention(&mut self, op: &Attention, batch: &Batch<'_>) {
        let reads = [op.q, op.k, op.v, op.gate.unwrap_or(op.q)];
        let epilogue = AttentionEpilogue { sinks: op.sinks, gate: op.gate.as_ref() };
        self.attend(&AttentionForm::grouped(op), &reads, &epilogue, batch);
    }

    pub(super) fn mla_attention(&mut self, op: &MlaAttention, batch: &Batch<'_>) {
        let list = op.chosen.map_or(op.q_latent, |chosen| chosen.list);
        let reads = [op.q_latent, op.q_rope, op.latent, op.k_rope, list];
        let epilogue = AttentionEpilogue { sinks: None, gate: None };
        self.attend(&AttentionForm::latent(op), &reads, &epilogue, batch);
    }

    fn attend(
        &mut self,
        form: &AttentionForm<'_>,
        reads: &[Heads],
        epilogue: &AttentionEpilogue<'_>,
        batch: &Batch<'_>,
    ) {
        let n_rows = batch.rows.len();
        let mut out = self.take_output(form.out.buffer, reads, n_rows);
        let inputs = Inputs {
            buffers: &self.buffers,
            written: form.out.buffer,
            snapshot: &self.scratch.snapshot,
        };
        let common = &self.common;
        let AttentionScratch { jobs, results, spread } = &mut self.scratch.attention;
        append((&mut self.states, spread), form, batch, &inputs, common.table);
        jobs.cut(form, batch, common.split.n_threads);
        let results = grown(results, jobs.n_values(), 0.0);
        let task = AttentionTask { form, batch, inputs, states: &self.states, table: common.table };
        let items = SplitItems {
            n_items: jobs.all().len(),
            align: 1,
            cost: jobs.cost(form),
            offset: |job_idx| jobs.offset(job_idx),
        };
        common.split.ranges(results, &items, &|range, values| {
            let mut worker = common.worker();
            let base = jobs.offset(range.start);
            for job_idx in range {
                let offsets = jobs.offset(job_idx) - base..jobs.offset(job_idx + 1) - base;
                task.run(&jobs.all()[job_idx], &mut worker.attention, &mut values[offsets]);
            }
        });

        let results = &*results;
        let sinks = epilogue.sinks.map(|sinks| common.weights.vector(sinks));
        let parts = RowParts::heads(form.out, 1).with_cost(jobs.merge_cost(form));
        common.split.parts(&mut out, n_rows, &parts, &|row_idx, head_idx, out| {
            let mut parts = jobs.parts(form, row_idx, head_idx, results);
            let sink = sinks.map(|sinks| sinks[head_idx]);
            merge::finish(common.table, &mut parts, sink, out);
            if let Some(gate) = epilogue.gate {
                let gate = inputs.head(gate, row_idx, head_idx);
                common.table.apply(&RowOp::MulSigmoid { gate }, out);
            }
            let list = form.list_of(batch.rows[row_idx].position.0);
            if list.is_some_and(|list| inputs.head(&list, row_idx, 0)[0].is_nan()) {
                out.fill(f32::NAN);
            }
        });
        self.buffers.put(form.out.buffer, out);
    }
}

/// The steps after the sum over all positions: sinks and gate.
struct AttentionEpilogue<'a> {
    sinks: Option<VectorId>,
    gate: Option<&'a Heads>,
}
