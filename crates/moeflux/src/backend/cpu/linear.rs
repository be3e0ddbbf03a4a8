//! Products with resident matrices, and the embedding.
//!
//! Rows of a step are processed in panels, so that scratch stays small. **Invariant:** an output
//! belongs to one row of the matrix and one row of the step; neither panel nor thread changes its
//! sum.

use std::ops::Range;

use moeflux_kernels::{
    IntScratch, KernelTable, Matrix, ROWS_PER_BLOCK, StridedRows, TransposedProduct, decode_row,
};

use crate::backend::cpu::product::{PANEL_ROWS, Picked, n_blocks};
use crate::backend::cpu::split::SplitItems;
use crate::backend::cpu::{Common, PlanExecutor, Worker, grown};
use crate::backend::host::Buffer;
use crate::ops::{Batch, Embed, HeadMatMul, MatMul, Orientation};

/// Blocks of matrix rows computed before their outputs, in the L2 cache, are copied to their rows.
pub(super) const BLOCKS_AT_ONCE: usize = 8;

impl PlanExecutor {
    pub(super) fn embed(&mut self, op: &Embed, batch: &Batch<'_>) {
        let table = self.common.weights.matrix(op.table);
        let out = self.buffers.get_mut(op.out.buffer);
        for (row_idx, row) in batch.rows.iter().enumerate() {
            let token_idx = usize::try_from(row.token.0).expect("a token fits an index");
            let (values, first) = (out.row_mut(row_idx), op.out.cols(0));
            decode_row(&table, token_idx, &mut values[first.clone()]);
            for head_idx in 1..op.out.n_heads {
                values.copy_within(first.clone(), op.out.cols(head_idx).start);
            }
        }
    }

    pub(super) fn matmul(&mut self, op: &MatMul, n_rows: usize) {
        assert_ne!(op.x.buffer, op.out.buffer, "a product reads another buffer than it writes");
        let mut out = self.take_output(op.out.buffer, &[], n_rows);
        let Self { common, buffers, prepared, .. } = self;
        let matrix = common.weights.matrix(op.weight);
        let bias = op.bias.map(|bias| common.weights.vector(bias));
        let x = prepared.of(common, (buffers, &op.x), matrix.layout(), n_rows);
        for first in (0..n_rows).step_by(PANEL_ROWS) {
            let rows = first..n_rows.min(first + PANEL_ROWS);
            let x = x.panel(first / PANEL_ROWS, n_rows);
            let product = PanelProduct { matrix, bias, x, n_rows: rows.len() };
            let (n_cols, cols) = (out.n_cols, op.out.cols(0));
            if rows.len() == 1 && cols.len().is_multiple_of(ROWS_PER_BLOCK) {
                product.run_one(common, &mut out.row_mut(rows.start)[cols]);
            } else {
                let values = &mut out.values[rows.start * n_cols..rows.end * n_cols];
                product.run(common, (values, n_cols), cols.start);
            }
        }
        self.buffers.put(op.out.buffer, out);
    }

    pub(super) fn head_matmul(&mut self, op: &HeadMatMul, n_rows: usize) {
        assert_ne!(op.x.buffer, op.out.buffer, "a product reads another buffer than it writes");
        assert_eq!(op.x.n_heads, op.out.n_heads, "a matrix per head");
        let mut out = self.take_output(op.out.buffer, &[], n_rows);
        let matrix = self.common.weights.matrix(op.weight);
        let scratch = &mut self.scratch;
        let x = self.buffers.get(op.x.buffer);
        let head_cols = n_blocks(op.out.head_dim) * ROWS_PER_BLOCK;
        let panel_values = op.out.n_heads * head_cols * PANEL_ROWS.min(n_rows);
        let values = grown(&mut scratch.values, panel_values, 0.0);
        let picks = identity(&mut scratch.identity, PANEL_ROWS);
        for first in (0..n_rows).step_by(PANEL_ROWS) {
            let rows = first..n_rows.min(first + PANEL_ROWS);
            let panel = HeadPanel { op, matrix, x, rows: rows.clone(), picks };
            let head_values = head_cols * rows.len();
            let cost = op.n_rows * matrix.layout().n_cols;
            let offset = |head_idx| head_idx * head_values;
            let items = SplitItems { n_items: op.out.n_heads, align: 1, cost, offset };
            self.common.split.ranges(values, &items, &|heads, values| {
                for (head_idx, values) in heads.zip(values.chunks_exact_mut(head_values)) {
                    panel.run(&self.common, head_idx, values);
                }
            });
            panel.put(&self.common, &values[..op.out.n_heads * head_values], &mut out);
        }
        self.buffers.put(op.out.buffer, out);
    }
}

/// Returns 0, 1, 2, ..
fn identity(indices: &mut Vec<usize>, n: usize) -> &[usize] {
    indices.extend(indices.len()..n);
    &indices[..n]
}

/// A product with all rows of a matrix and a panel of activations.
struct PanelProduct<'a> {
    matrix: Matrix<'a>,
    bias: Option<&'a [f32]>,
    x: Picked<'a>,
    n_rows: usize,
}

impl PanelProduct<'_> {
    /// Computes the outputs of a single row.
    fn run_one(&self, common: &Common, out: &mut [f32]) {
        let layout = self.matrix.layout();
        let offset = |block_idx| block_idx * ROWS_PER_BLOCK;
        let cost = ROWS_PER_BLOCK * layout.n_cols;
        let items = SplitItems { n_items: n_blocks(layout.n_rows), align: 1, cost, offset };
        common.split.ranges(out, &items, &|blocks, out| {
            let scratch = &mut common.worker().product;
            let end = layout.n_rows.min(blocks.end * ROWS_PER_BLOCK);
            let rows = blocks.start * ROWS_PER_BLOCK..end;
            self.multiply((common.table, scratch), rows, out);
        });
    }

    /// Computes the outputs of all rows and writes them to columns of a matrix, from `first_col`.
    fn run(&self, common: &Common, (out, row_len): (&mut [f32], usize), first_col: usize) {
        let layout = self.matrix.layout();
        let n_rows = self.n_rows;
        let offset = |block_idx| first_col + layout.n_rows.min(block_idx * ROWS_PER_BLOCK);
        let cost = ROWS_PER_BLOCK * layout.n_cols;
        let items = SplitItems { n_items: n_blocks(layout.n_rows), align: 1, cost, offset };
        common.split.columns((out, row_len), &items, &|blocks, mut out| {
            let Worker { product: scratch, values, .. } = &mut *common.worker();
            let task_start = blocks.start * ROWS_PER_BLOCK;
            for first in blocks.clone().step_by(BLOCKS_AT_ONCE) {
                let end = blocks.end.min(first + BLOCKS_AT_ONCE);
                let rows = first * ROWS_PER_BLOCK..layout.n_rows.min(end * ROWS_PER_BLOCK);
                let n_values = (end - first) * ROWS_PER_BLOCK * n_rows;
                let values = grown(values, n_values, 0.0);
                self.multiply((common.table, &mut *scratch), rows.clone(), values);
                for row_idx in 0..n_rows {
                    let out = &mut out.row_mut(row_idx)[rows.start - task_start..][..rows.len()];
                    copy_row(values, (row_idx, n_rows), out);
                }
            }
        });
    }

    /// Computes `out[block of matrix rows][panel row][row of the block]`.
    fn multiply(
        &self,
        kernels: (&KernelTable, &mut IntScratch),
        rows: Range<usize>,
        out: &mut [f32],
    ) {
        self.x.multiply(kernels, (self.matrix, rows.clone()), out);
        let Some(bias) = self.bias else { return };
        let block_values = out.len() / n_blocks(rows.len());
        let biases = bias[rows].chunks(ROWS_PER_BLOCK);
        for (out, bias) in out.chunks_exact_mut(block_values).zip(biases) {
            for out in out.chunks_exact_mut(ROWS_PER_BLOCK) {
                out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
            }
        }
    }
}

/// Copies one row of `n_rows` out of blocks of columns.
pub(super) fn copy_row(blocks: &[f32], (row_idx, n_rows): (usize, usize), out: &mut [f32]) {
    let (blocks, _) = blocks.as_chunks::<ROWS_PER_BLOCK>();
    let mut blocks = blocks.iter().skip(row_idx).step_by(n_rows);
    // The length of whole blocks is known at compile time, which avoids calls to memcpy.
    let (whole, rest) = out.as_chunks_mut::<ROWS_PER_BLOCK>();
    whole.iter_mut().zip(&mut blocks).for_each(|(out, block)| *out = *block);
    if let Some(block) = blocks.next() {
        rest.copy_from_slice(&block[..rest.len()]);
    }
}

/// Products of all heads for a panel of rows.
struct HeadPanel<'a> {
    op: &'a HeadMatMul,
    matrix: Matrix<'a>,
    x: &'a Buffer,
    rows: Range<usize>,
    picks: &'a [usize],
}

impl HeadPanel<'_> {
    fn matrix_rows(&self, head_idx: usize) -> Range<usize> {
        let first = self.op.first_row + head_idx * self.op.row_stride;
        first..first + self.op.n_rows
    }

    fn run(&self, common: &Common, head_idx: usize, out: &mut [f32]) {
        let rows = self.matrix_rows(head_idx);
        let layout = self.matrix.layout();
        match self.op.orientation {
            Orientation::RowsToOut => {
                let mut worker = common.worker();
                let Worker { prepared: x, repacked, product, .. } = &mut *worker;
                let cols = self.op.x.cols(head_idx);
                x.prepare_alone(common, layout, self.rows.len(), &|i, fill| {
                    fill(&self.x.row(self.rows.start + i)[cols.clone()]);
                });
                let picks = &self.picks[..self.rows.len()];
                let x = x.picked(common.table, picks, repacked);
                x.multiply((common.table, product), (self.matrix, rows), out);
            }
            Orientation::RowsFromIn => {
                let first = self.rows.start * self.x.n_cols + self.op.x.cols(head_idx).start;
                let x = StridedRows {
                    values: &self.x.values[first..],
                    n_rows: self.rows.len(),
                    row_len: self.op.x.head_dim,
                    stride: self.x.n_cols,
                };
                let cols = 0..layout.n_cols;
                let product = TransposedProduct { matrix: self.matrix, rows, cols, x };
                let n_values = self.rows.len() * layout.n_cols;
                common.table.matmul_transposed(&product, &mut out[..n_values]);
            }
        }
    }

    /// Copies the outputs of all heads to their columns.
    fn put(&self, common: &Common, values: &[f32], out: &mut Buffer) {
        let (n_cols, n_rows, op) = (out.n_cols, self.rows.len(), self.op);
        let offset = |i| i * n_cols;
        let cost = op.out.n_heads * op.out.head_dim;
        let items = SplitItems { n_items: n_rows, align: 1, cost, offset };
        let head_values = values.len() / op.out.n_heads;
        common.split.ranges(&mut out.values[self.rows.start * n_cols..], &items, &|range, out| {
            for (head_idx, values) in values.chunks_exact(head_values).enumerate() {
                for (i, out) in range.clone().zip(out.chunks_exact_mut(n_cols)) {
                    put_row(op.orientation, values, (i, n_rows), &mut out[op.out.cols(head_idx)]);
                }
            }
        });
    }
}

/// Copies one row of one head's outputs.
fn put_row(
    orientation: Orientation,
    values: &[f32],
    (row_idx, n_rows): (usize, usize),
    out: &mut [f32],
) {
    match orientation {
        Orientation::RowsToOut => copy_row(values, (row_idx, n_rows), out),
        Orientation::RowsFromIn => {
            out.copy_from_slice(&values[row_idx * out.len()..][..out.len()]);
        }
    }
}
