//! Softmax attention over a session's cache: grouped heads, and the latent form.
//!
//! **Invariant:** positions come in blocks of 64 counted from position 0, ascending; a row's
//! result depends on its position alone, not on which rows share its step.

use moeflux_kernels::{KernelTable, Rows};

use crate::backend::cpu::elementwise::sigmoid;
use crate::backend::cpu::split::Parts;
use crate::backend::cpu::{Inputs, Machine};
use crate::backend::host::{LayerMemory, States};
use crate::ids::LayerIdx;
use crate::ops::{Attention, Batch, Heads, MlaAttention, Segment};

/// Positions of one block.
const BLOCK: usize = 64;

/// Heads that one task takes at most: they share a block of the cache while it is near.
const HEADS_PER_TASK_MAX: usize = 8;

/// The softmax over the positions seen so far.
#[derive(Clone, Copy)]
struct Running {
    max: f32,
    sum: f32,
}

impl Running {
    const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };

    /// Takes in scores: turns them into weights under the new maximum, and `out`, the weighted sum
    /// so far, to the same measure.
    fn admit(&mut self, table: &KernelTable, scores: &mut [f32], out: &mut [f32]) {
        let max = scores.iter().fold(self.max, |max, &it| if it > max { it } else { max });
        let mut kept = [self.max];
        table.exp_shifted(&mut kept, max);
        let [kept] = kept;
        self.sum = self.sum * kept + table.exp_shifted(scores, max);
        if max > self.max {
            out.iter_mut().for_each(|it| *it *= kept);
        }
        self.max = max;
    }
}

/// The segment that a row belongs to.
pub(super) fn segment_of<'a>(batch: &Batch<'a>, row_idx: usize) -> &'a Segment {
    let segments = batch.segments;
    &segments[segments.partition_point(|segment| segment.rows.end <= row_idx)]
}

/// Positions of the cache, from `first`, as two tables.
fn cache<'a>(memory: &'a LayerMemory, (first, n): (usize, usize)) -> [Table<'a>; 2] {
    let LayerMemory::Positions { first_cols, first: firsts, second_cols, second } = memory else {
        unreachable!("attention keeps positions");
    };
    [
        Table { values: &firsts[first * first_cols..], stride: *first_cols, n },
        Table { values: &second[first * second_cols..], stride: *second_cols, n },
    ]
}

/// Some positions of one table of the cache.
#[derive(Clone, Copy)]
struct Table<'a> {
    values: &'a [f32],
    stride: usize,
    n: usize,
}

impl<'a> Table<'a> {
    fn rows(&self, first_col: usize, row_len: usize) -> Rows<'a> {
        Rows { values: &self.values[first_col..], n_rows: self.n, row_len, stride: self.stride }
    }
}

/// Copies the rows' new entries to their sessions' caches.
fn append(
    states: &mut States,
    layer: LayerIdx,
    (first_view, second_view): (&Heads, &Heads),
    batch: &Batch<'_>,
    inputs: &Inputs<'_>,
) {
    for segment in batch.segments {
        let memory = states.layer_mut(segment.state, layer);
        let LayerMemory::Positions { first_cols, first, second_cols, second } = memory else {
            unreachable!("attention keeps positions");
        };
        for row_idx in segment.rows.clone() {
            let position = batch.rows[row_idx].position.0;
            let firsts = &mut first[position * *first_cols..][..*first_cols];
            copy_heads(inputs, first_view, row_idx, firsts);
            let seconds = &mut second[position * *second_cols..][..*second_cols];
            copy_heads(inputs, second_view, row_idx, seconds);
        }
    }
}

fn copy_heads(inputs: &Inputs<'_>, heads: &Heads, row_idx: usize, target: &mut [f32]) {
    assert_eq!(target.len(), heads.n_heads * heads.head_dim, "columns of the cache");
    for (head_idx, target) in target.chunks_exact_mut(heads.head_dim).enumerate() {
        target.copy_from_slice(inputs.head(heads, row_idx, head_idx));
    }
}

impl Machine {
    /// Heads per task: as many as let every thread have some.
    fn heads_per_task(&self, n_rows: usize, n_heads: usize) -> usize {
        let n_tasks = 2 * self.common.split.n_threads;
        (n_rows * n_heads / n_tasks).clamp(1, HEADS_PER_TASK_MAX).min(n_heads)
    }

    pub(super) fn attention(&mut self, op: &Attention, batch: &Batch<'_>) {
        let n_rows = batch.rows.len();
        let reads = [op.q, op.k, op.v, op.gate.unwrap_or(op.q)];
        let mut out = self.take_output(op.out.buffer, &reads, n_rows);
        let inputs = Inputs {
            buffers: &self.buffers,
            written: op.out.buffer,
            snapshot: &self.scratch.snapshot,
        };
        append(&mut self.states, op.layer, (&op.k, &op.v), batch, &inputs);

        let heads_per_task = self.heads_per_task(n_rows, op.q.n_heads);
        let sinks = op.sinks.map(|sinks| self.common.weights.vector(sinks));
        let task = AttentionTask { op, sinks, inputs, table: self.common.table };
        let states = &self.states;
        let longest = batch.rows.iter().map(|row| row.position.0).max().unwrap_or(0) + 1;
        let cost = 2 * longest * heads_per_task * op.q.head_dim;
        let parts = Parts::heads(&op.out, heads_per_task).with_cost(cost);
        self.common.split.parts(&mut out, n_rows, &parts, &|row_idx, part_idx, out| {
            let memory = states.layer(segment_of(batch, row_idx).state, op.layer);
            let position = batch.rows[row_idx].position.0;
            let first_head = part_idx * heads_per_task;
            task.run((row_idx, position, first_head), memory, out);
        });
        self.buffers.put(op.out.buffer, out);
    }

    pub(super) fn mla_attention(&mut self, op: &MlaAttention, batch: &Batch<'_>) {
        let n_rows = batch.rows.len();
        let reads = [op.q_latent, op.q_rope, op.latent, op.k_rope];
        let mut out = self.take_output(op.out.buffer, &reads, n_rows);
        let inputs = Inputs {
            buffers: &self.buffers,
            written: op.out.buffer,
            snapshot: &self.scratch.snapshot,
        };
        append(&mut self.states, op.layer, (&op.latent, &op.k_rope), batch, &inputs);

        let heads_per_task = self.heads_per_task(n_rows, op.out.n_heads);
        let table = self.common.table;
        let states = &self.states;
        let longest = batch.rows.iter().map(|row| row.position.0).max().unwrap_or(0) + 1;
        let cost = 2 * longest * heads_per_task * op.out.head_dim;
        let parts = Parts::heads(&op.out, heads_per_task).with_cost(cost);
        self.common.split.parts(&mut out, n_rows, &parts, &|row_idx, part_idx, out| {
            let memory = states.layer(segment_of(batch, row_idx).state, op.layer);
            let position = batch.rows[row_idx].position.0;
            let first_head = part_idx * heads_per_task;
            let task = MlaTask { op, inputs, table };
            task.run((row_idx, position, first_head), memory, out);
        });
        self.buffers.put(op.out.buffer, out);
    }
}

/// Some heads of one row.
struct AttentionTask<'a> {
    op: &'a Attention,
    sinks: Option<&'a [f32]>,
    inputs: Inputs<'a>,
    table: &'static KernelTable,
}

impl AttentionTask<'_> {
    fn run(
        &self,
        (row_idx, position, first_head): (usize, usize, usize),
        memory: &LayerMemory,
        out: &mut [f32],
    ) {
        let op = self.op;
        let queries_per_key = op.q.n_heads / op.k.n_heads;
        let first_seen = op.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let mut running = [Running::EMPTY; HEADS_PER_TASK_MAX];
        each_head(&op.out, out, |_, out| out.fill(0.0));
        for block_idx in first_seen / BLOCK..=position / BLOCK {
            let first = first_seen.max(block_idx * BLOCK);
            let n = (position + 1).min((block_idx + 1) * BLOCK) - first;
            let [keys, values] = cache(memory, (first, n));
            each_head(&op.out, out, |i, out| {
                let head_idx = first_head + i;
                let key_head_idx = head_idx / queries_per_key;
                let q = self.inputs.head(&op.q, row_idx, head_idx);
                let keys = keys.rows(key_head_idx * op.k.head_dim, op.k.head_dim);
                let mut scores = [0.0; BLOCK];
                let scores = &mut scores[..n];
                self.table.dots(q, &keys, scores);
                scores.iter_mut().for_each(|it| *it *= op.scale);
                running[i].admit(self.table, scores, out);
                let values = values.rows(key_head_idx * op.v.head_dim, op.v.head_dim);
                self.table.weighted_sum(scores, &values, out);
            });
        }
        each_head(&op.out, out, |i, out| {
            let head_idx = first_head + i;
            if let Some(sinks) = self.sinks {
                running[i].admit(self.table, &mut [sinks[head_idx]], out);
            }
            out.iter_mut().for_each(|it| *it /= running[i].sum);
            let Some(gate) = &op.gate else { return };
            for (out, &gate) in out.iter_mut().zip(self.inputs.head(gate, row_idx, head_idx)) {
                *out *= sigmoid(gate);
            }
        });
    }
}

/// Some heads of one row, in latent space.
struct MlaTask<'a> {
    op: &'a MlaAttention,
    inputs: Inputs<'a>,
    table: &'static KernelTable,
}

impl MlaTask<'_> {
    fn run(
        &self,
        (row_idx, position, first_head): (usize, usize, usize),
        memory: &LayerMemory,
        out: &mut [f32],
    ) {
        let op = self.op;
        let mut running = [Running::EMPTY; HEADS_PER_TASK_MAX];
        each_head(&op.out, out, |_, out| out.fill(0.0));
        for block_idx in 0..=position / BLOCK {
            let first = block_idx * BLOCK;
            let n = (position + 1).min(first + BLOCK) - first;
            let [latents, ropes] = cache(memory, (first, n));
            let latents = latents.rows(0, op.latent.head_dim);
            let ropes = ropes.rows(0, op.k_rope.head_dim);
            each_head(&op.out, out, |i, out| {
                let head_idx = first_head + i;
                let (mut scores, mut rope_scores) = ([0.0; BLOCK], [0.0; BLOCK]);
                let (scores, rope_scores) = (&mut scores[..n], &mut rope_scores[..n]);
                let q_latent = self.inputs.head(&op.q_latent, row_idx, head_idx);
                self.table.dots(q_latent, &latents, scores);
                let q_rope = self.inputs.head(&op.q_rope, row_idx, head_idx);
                self.table.dots(q_rope, &ropes, rope_scores);
                for (score, rope_score) in scores.iter_mut().zip(rope_scores) {
                    *score = (*score + *rope_score) * op.scale;
                }
                running[i].admit(self.table, scores, out);
                self.table.weighted_sum(scores, &latents, out);
            });
        }
        each_head(&op.out, out, |i, out| {
            out.iter_mut().for_each(|it| *it /= running[i].sum);
        });
    }
}

/// Calls `f` with the index and values of each of the heads that `values` begins with.
fn each_head(view: &Heads, values: &mut [f32], mut f: impl FnMut(usize, &mut [f32])) {
    for (i, values) in values.chunks_mut(view.stride).enumerate() {
        f(i, &mut values[..view.head_dim]);
    }
}
