//! Functions of values, and sums over residual streams.
//!
//! **Invariant:** a value of a sum takes the streams in ascending order, by `fma` from +0.

use moeflux_kernels::{AddedProducts, RowOp};

use crate::backend::cpu::elementwise::{COLS_PER_PART, EXP_COST, HeadsOf};
use crate::backend::cpu::split::RowParts;
use crate::backend::cpu::{InPlaceSource, PlanExecutor};
use crate::ops::{Activate, HeadDot, Heads, StreamBase, StreamRead, StreamWeights, StreamWrite};

impl PlanExecutor {
    pub(super) fn activate(&mut self, op: &Activate, n_rows: usize) {
        let mut out = self.take_in_place((&op.x, &op.out), &[], n_rows);
        let source = InPlaceSource::new(self.inputs(op.out.buffer), &op.x, &op.out);
        let (table, function) = (self.common.table, RowOp::Function(op.function));
        if op.out.n_heads == 1 {
            let parts = RowParts::columns(&op.out, COLS_PER_PART);
            let parts = parts.with_cost(EXP_COST * COLS_PER_PART);
            self.common.split.parts(&mut out, n_rows, &parts, &|row_idx, part_idx, out| {
                source.copy_into((row_idx, 0, part_idx * COLS_PER_PART), out);
                table.apply(&function, out);
            });
        } else {
            let heads = HeadsOf { view: &op.out, n_rows, cost: EXP_COST };
            self.common.each_head(&mut out, heads, &|row_idx, head_idx, out| {
                source.copy_into((row_idx, head_idx, 0), out);
                table.apply(&function, out);
            });
        }
        self.buffers.put(op.out.buffer, out);
    }

    pub(super) fn head_dot(&mut self, op: &HeadDot, n_rows: usize) {
        assert_eq!(op.x.n_heads, op.out.head_dim, "a value per head");
        let mut out = self.take_apart(&op.out, &[op.x, op.y], n_rows);
        let (table, inputs) = (self.common.table, self.inputs(op.out.buffer));
        let heads = HeadsOf { view: &op.out, n_rows, cost: 2 * op.x.head_dim };
        self.common.each_head(&mut out, heads, &|row_idx, _, out| {
            for (head_idx, out) in out.iter_mut().enumerate() {
                let [x, y] = [&op.x, &op.y].map(|heads| inputs.head(heads, row_idx, head_idx));
                *out = table.dot(x, y) * op.factor;
            }
        });
        self.buffers.put(op.out.buffer, out);
    }

    pub(super) fn stream_read(&mut self, op: &StreamRead, n_rows: usize) {
        let mut out = self.take_apart(&op.out, &[op.streams, op.weights.heads()], n_rows);
        let (table, inputs) = (self.common.table, self.inputs(op.out.buffer));
        let n_streams = op.streams.n_heads;
        let parts = RowParts::columns(&op.out, COLS_PER_PART);
        let parts = parts.with_cost(2 * n_streams * COLS_PER_PART);
        self.common.split.parts(&mut out, n_rows, &parts, &|row_idx, part_idx, out| {
            let (first_col, row_len) = (part_idx * COLS_PER_PART, out.len());
            let part = |heads: &Heads, stream_idx| {
                &inputs.head(heads, row_idx, stream_idx)[first_col..][..row_len]
            };
            out.fill(0.0);
            for stream_idx in 0..n_streams {
                let second = part(&op.streams, stream_idx);
                match &op.weights {
                    StreamWeights::PerValue(weights) => {
                        let first = part(weights, stream_idx);
                        table.apply(&RowOp::AddProducts(AddedProducts { first, second }), out);
                    }
                    StreamWeights::PerStream(weights) => {
                        table.axpy(inputs.head(weights, row_idx, 0)[stream_idx], second, out);
                    }
                }
            }
        });
        self.buffers.put(op.out.buffer, out);
    }

    pub(super) fn stream_write(&mut self, op: &StreamWrite, n_rows: usize) {
        assert_eq!(op.beta.head_dim, op.out.n_heads, "a factor per stream");
        let others = [Some(op.beta), Some(op.x)];
        let mut out = match &op.base {
            StreamBase::Streams(streams) => self.take_in_place((streams, &op.out), &others, n_rows),
            StreamBase::Nothing => self.take_output(op.out.buffer, &[op.beta, op.x], n_rows),
            StreamBase::Mixed { streams, mix } => {
                self.take_output(op.out.buffer, &[*streams, *mix, op.beta, op.x], n_rows)
            }
        };
        let (table, inputs) = (self.common.table, self.inputs(op.out.buffer));
        let n_terms = if matches!(op.base, StreamBase::Mixed { .. }) { op.out.n_heads } else { 1 };
        let heads = HeadsOf { view: &op.out, n_rows, cost: 2 * n_terms };
        self.common.each_head(&mut out, heads, &|row_idx, stream_idx, out| {
            match &op.base {
                StreamBase::Nothing => out.fill(0.0),
                StreamBase::Streams(streams) => {
                    let source = InPlaceSource::new(inputs, streams, &op.out);
                    source.copy_into((row_idx, stream_idx, 0), out);
                }
                StreamBase::Mixed { streams, mix } => {
                    out.fill(0.0);
                    for from_idx in 0..streams.n_heads {
                        let weight = inputs.head(mix, row_idx, from_idx)[stream_idx];
                        table.axpy(weight, inputs.head(streams, row_idx, from_idx), out);
                    }
                }
            }
            let beta = inputs.head(&op.beta, row_idx, 0)[stream_idx];
            table.axpy(beta, inputs.head(&op.x, row_idx, 0), out);
        });
        self.buffers.put(op.out.buffer, out);
    }

    /// Takes the buffer of an output that shares none with its inputs.
    fn take_apart(
        &mut self,
        out: &Heads,
        inputs: &[Heads],
        n_rows: usize,
    ) -> crate::backend::host::Buffer {
        let is_apart = inputs.iter().all(|it| it.buffer != out.buffer);
        assert!(is_apart, "a sum reads other buffers than it writes");
        self.take_output(out.buffer, &[], n_rows)
    }
}
