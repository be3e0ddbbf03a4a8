//! The ops of gated DeltaNet: convolution over time, gates, and the recurrence.
//!
//! **Invariant:** tokens are always processed one by one, so a state does not depend on how tokens
//! were cut into steps.

use std::ops::Range;

use moeflux_kernels::{DeltaRun, RowOp, StridedRows};

use crate::backend::cpu::attention::segment_of;
use crate::backend::cpu::elementwise::{COLS_PER_PART, EXP_COST, HeadsOf};
use crate::backend::cpu::split::RowParts;
use crate::backend::cpu::{Common, InPlaceSource, PlanExecutor, grown};
use crate::backend::host::Buffers;
use crate::ops::{Batch, CausalConv, DeltaGates, DeltaShape, GatedDelta, Heads, Segment};

/// Cost of a value of the convolution, in values read.
const CONV_COST: usize = 8;

/// Tokens whose queries and keys are packed together: 64 KiB for 128 keys.
const BLOCK_TOKENS: usize = 64;

/// A session's recurrent state of at least this size has left the cache by the next token, because
/// the model's weights have passed through the cache in between.
const LARGE_STATE_BYTES: u64 = 4 << 20;

/// Minimum tasks per thread for the delta rule, if the state can be divided that far.
const TASKS_PER_THREAD: usize = 4;

impl PlanExecutor {
    pub(super) fn causal_conv(&mut self, op: &CausalConv, batch: &Batch<'_>) {
        assert_ne!(op.x.buffer, op.out.buffer, "a convolution reads another buffer");
        let (n_rows, n_cols, n_kept) = (batch.rows.len(), op.x.head_dim, op.n_kept());
        let mut out = self.buffers.take(op.out.buffer);
        let Self { common, buffers, states, scratch, .. } = self;
        let taps = scratch.taps.entry(op.weight).or_insert_with(|| {
            let weight = common.weights.vector(op.weight);
            assert_eq!(weight.len(), n_cols * op.n_taps, "taps of the convolution");
            let taps = |tap_idx| weight.iter().skip(tap_idx).step_by(op.n_taps);
            (0..op.n_taps).flat_map(taps).copied().collect()
        });
        let table = common.table;
        let parts = RowParts::columns(&op.out, COLS_PER_PART).with_cost(CONV_COST * COLS_PER_PART);
        common.split.parts(&mut out, n_rows, &parts, &|row_idx, part_idx, out| {
            let segment = segment_of(batch, row_idx);
            let conv = &states.recurrent(segment.state, op.layer).conv[op.kept.first..];
            let (first_col, row_len) = (part_idx * COLS_PER_PART, out.len());
            // Kept inputs and the segment's rows form one sequence: this row's inputs begin at
            // `at`.
            let at = row_idx - segment.rows.start;
            let n_old = n_kept.saturating_sub(at).div_ceil(op.dilation);
            let rows = |values, n_rows, stride| StridedRows { values, n_rows, row_len, stride };
            let old = if n_old == 0 { &[][..] } else { &conv[at * n_cols + first_col..] };
            let x = buffers.get(op.x.buffer);
            let first_row = segment.rows.start + at + n_old * op.dilation - n_kept;
            let new = &x.values[first_row * x.n_cols + op.x.first_col + first_col..];
            let convolution = RowOp::Convolution {
                kept: rows(old, n_old, op.dilation * n_cols),
                new: rows(new, op.n_taps - n_old, op.dilation * x.n_cols),
                taps: rows(&taps[first_col..], op.n_taps, n_cols),
            };
            table.apply(&convolution, out);
        });
        self.buffers.put(op.out.buffer, out);
        self.keep_conv_inputs(op, batch);
    }

    /// Stores the last inputs of each segment in its state.
    fn keep_conv_inputs(&mut self, op: &CausalConv, batch: &Batch<'_>) {
        let (n_cols, n_kept) = (op.x.head_dim, op.n_kept());
        let kept = op.kept.first..op.kept.first + n_kept * n_cols;
        for segment in batch.segments {
            for (part_idx, rows) in segment.parts().enumerate() {
                let place = (part_idx, segment.marks.len());
                let (before, after) =
                    self.states.state_before_and_after(segment.state, op.layer, place);
                let (before, after) = (&before.conv[kept.clone()], &mut after.conv[kept.clone()]);
                for (kept_idx, after) in after.chunks_exact_mut(n_cols).enumerate() {
                    let at = rows.len() + kept_idx;
                    after.copy_from_slice(match at.checked_sub(n_kept) {
                        None => &before[at * n_cols..][..n_cols],
                        Some(i) => self.buffers.head(&op.x, rows.start + i, 0),
                    });
                }
            }
        }
    }

    pub(super) fn delta_gates(&mut self, op: &DeltaGates, n_rows: usize) {
        let weights = self.common.weights.clone();
        let (a_log, dt_bias) = (weights.vector(op.a_log), weights.vector(op.dt_bias));
        // `beta` comes first: when `decay` overwrites `a`, `b` has already been read.
        let decay = RowOp::Decay { a_log, dt_bias };
        self.each_gate((&op.b, &op.beta), n_rows, &RowOp::Sigmoid);
        self.each_gate((&op.a, &op.decay), n_rows, &decay);
    }

    /// Computes `out = gate(x)`, row by row.
    fn each_gate(&mut self, (x, out_view): (&Heads, &Heads), n_rows: usize, gate: &RowOp<'_>) {
        let mut out = self.take_in_place((x, out_view), &[], n_rows);
        let source = InPlaceSource::new(self.inputs(out_view.buffer), x, out_view);
        let table = self.common.table;
        let heads = HeadsOf { view: out_view, n_rows, cost: 4 * EXP_COST };
        self.common.each_head(&mut out, heads, &|row_idx, head_idx, out| {
            source.copy_into((row_idx, head_idx, 0), out);
            table.apply(gate, out);
        });
        self.buffers.put(out_view.buffer, out);
    }

    pub(super) fn gated_delta(&mut self, op: &GatedDelta, batch: &Batch<'_>) {
        let Self { common, buffers, states, scratch, .. } = self;
        let (n_heads, v_dim, k_dim) = (op.v.n_heads, op.v.head_dim, op.k.head_dim);
        let n_parts = parts_per_head(n_heads, v_dim, common.split.n_threads);
        let n_values = v_dim / n_parts;
        let row_values = n_heads * v_dim;
        // Per segment [head, part, token, value]: heads are computed whole, then rows written
        // whole.
        let outputs = grown(&mut scratch.values, batch.rows.len() * row_values, 0.0);
        let walks = batch.segments.iter().flat_map(|segment| {
            segment.parts().enumerate().map(move |(part_idx, rows)| (segment, part_idx, rows))
        });
        for (segment, part_idx, rows) in walks {
            let place = (part_idx, segment.marks.len());
            let is_large = states.fixed_bytes(segment.state) >= LARGE_STATE_BYTES;
            let (before, after) = states.state_before_and_after(segment.state, op.layer, place);
            assert_eq!(after.delta.len(), row_values * k_dim, "state of the delta rule");
            let n_tokens = rows.len();
            let outputs = &mut outputs[rows.start * row_values..][..n_tokens * row_values];
            let cost = 4 * n_tokens * n_values * k_dim;
            let both = (&mut *after.delta, outputs);
            common.split.pairs(both, n_heads * n_parts, cost, &|item, state, out| {
                let (head_idx, first_value) = (item / n_parts, item % n_parts * n_values);
                let part = HeadSlice { op, buffers, head_idx, first_value, n_values, is_large };
                let before = &before.delta[item * n_values * k_dim..][..n_values * k_dim];
                part.run(common, rows.clone(), (before, state, out));
            });
        }
        let mut out = buffers.take(op.out.buffer);
        let heads = HeadsOf { view: &op.out, n_rows: batch.rows.len(), cost: 1 };
        common.each_head(&mut out, heads, &|row_idx, head_idx, out| {
            let rows = part_of(segment_of(batch, row_idx), row_idx);
            let outputs = &outputs[rows.start * row_values..];
            for (part_idx, out) in out.chunks_exact_mut(n_values).enumerate() {
                let run = (head_idx * n_parts + part_idx) * rows.len();
                let place = (run + row_idx - rows.start) * n_values;
                out.copy_from_slice(&outputs[place..][..n_values]);
            }
        });
        buffers.put(op.out.buffer, out);
    }
}

/// Returns the range of rows between marks that contains a row.
fn part_of(segment: &Segment, row_idx: usize) -> Range<usize> {
    let part = segment.parts().find(|rows| rows.contains(&row_idx));
    part.expect("every row of a segment is in a part")
}

/// Returns the number of parts that a head's state is divided into: several if there are few heads.
/// A part is at least two strips wide.
fn parts_per_head(n_heads: usize, v_dim: usize, n_threads: usize) -> usize {
    let mut n_parts = 1;
    while n_heads * n_parts < TASKS_PER_THREAD * n_threads
        && v_dim.is_multiple_of(4 * DeltaShape::STRIP * n_parts)
    {
        n_parts *= 2;
    }
    n_parts
}

/// Some values of one head's state.
struct HeadSlice<'a> {
    op: &'a GatedDelta,
    buffers: &'a Buffers,
    head_idx: usize,
    first_value: usize,
    n_values: usize,
    is_large: bool,
}

impl HeadSlice<'_> {
    fn run(
        &self,
        common: &Common,
        rows: Range<usize>,
        (before, state, out): (&[f32], &mut [f32], &mut [f32]),
    ) {
        let Self { op, buffers, head_idx, is_large, .. } = *self;
        let key_head_idx = op.order.key_head(head_idx, op.v.n_heads, op.k.n_heads);
        let k_dim = op.k.head_dim;
        let v = buffers.get(op.v.buffer);
        let first_col = op.v.cols(head_idx).start + self.first_value;
        let mut worker = common.worker();
        // Queries and keys of a block are packed side by side: they are read once per strip of the
        // state.
        let packed = grown(&mut worker.values, BLOCK_TOKENS * (2 * k_dim + 2), 0.0);
        let (q, packed) = packed.split_at_mut(BLOCK_TOKENS * k_dim);
        let (k, packed) = packed.split_at_mut(BLOCK_TOKENS * k_dim);
        let (decay, beta) = packed.split_at_mut(BLOCK_TOKENS);
        for (block_idx, out) in out.chunks_mut(BLOCK_TOKENS * self.n_values).enumerate() {
            let first_row = rows.start + block_idx * BLOCK_TOKENS;
            let n_rows = out.len() / self.n_values;
            for i in 0..n_rows {
                let head = |heads, head_idx| buffers.head(heads, first_row + i, head_idx);
                q[i * k_dim..][..k_dim].copy_from_slice(head(&op.q, key_head_idx));
                k[i * k_dim..][..k_dim].copy_from_slice(head(&op.k, key_head_idx));
                decay[i] = head(&op.decay, 0)[head_idx];
                beta[i] = head(&op.beta, 0)[head_idx];
            }
            let v = &v.values[first_row * v.n_cols + first_col..];
            let stride = buffers.get(op.v.buffer).n_cols;
            let keys = |values| StridedRows { values, n_rows, row_len: k_dim, stride: k_dim };
            let run = DeltaRun {
                q: keys(q),
                k: keys(k),
                v: StridedRows { values: v, n_rows, row_len: self.n_values, stride },
                decay: &decay[..n_rows],
                beta: &beta[..n_rows],
                before: (block_idx == 0).then_some(before),
                is_large,
            };
            common.table.delta_rule(&run, state, out);
        }
    }
}
