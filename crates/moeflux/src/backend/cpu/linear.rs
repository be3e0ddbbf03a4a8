//! Products with resident matrices, and the embedding.
//!
//! Rows of a step go by in panels, so that scratch stays small. **Invariant:** an output belongs
//! to one row of the matrix and one row of the step; neither panel nor thread changes its sum.

use std::ops::Range;

use moeflux_kernels::{Activations, Matrix, Product, Rows, TransposedProduct, decode_row};

use crate::backend::cpu::split::Items;
use crate::backend::cpu::{Common, Inputs, Machine, grown};
use crate::backend::host::Buffer;
use crate::ops::{Batch, Embed, HeadMatMul, Heads, MatMul, Orientation};

/// Rows of a step that meet a matrix at a time: enough to make unpacking weights cheap, few enough
/// that a block of them stays in the second cache.
pub(super) const PANEL_ROWS: usize = 64;

/// Matrix rows are cut at multiples of what a kernel takes at once.
pub(super) const MATRIX_ROWS_ALIGN: usize = 4;

/// Columns that a scatter moves at a time: one cache line of the target.
const SCATTER_COLS: usize = 16;

impl Machine {
    pub(super) fn embed(&mut self, op: &Embed, batch: &Batch<'_>) {
        let table = self.common.weights.matrix(op.table);
        let out = self.buffers.get_mut(op.out.buffer);
        for (row_idx, row) in batch.rows.iter().enumerate() {
            let token_idx = usize::try_from(row.token.0).expect("a token fits an index");
            decode_row(&table, token_idx, &mut out.row_mut(row_idx)[op.out.cols(0)]);
        }
    }

    pub(super) fn matmul(&mut self, op: &MatMul, n_rows: usize) {
        assert_ne!(op.x.buffer, op.out.buffer, "a product reads another buffer than it writes");
        let mut out = self.take_output(op.out.buffer, &[], n_rows);
        let matrix = self.common.weights.matrix(op.weight);
        let bias = op.bias.map(|bias| self.common.weights.vector(bias));
        let scratch = &mut self.scratch;
        let inputs =
            Inputs { buffers: &self.buffers, written: op.out.buffer, snapshot: &scratch.snapshot };
        for first in (0..n_rows).step_by(PANEL_ROWS) {
            let rows = first..n_rows.min(first + PANEL_ROWS);
            let x = &mut scratch.activations;
            prepare(&self.common, x, &matrix, rows.len(), &|i| {
                inputs.head(&op.x, rows.start + i, 0)
            });
            let product = PanelProduct { matrix, bias, x, picks: identity(&mut scratch.identity) };
            let cols = op.out.cols(0);
            if rows.len() == 1 {
                product.run(&self.common, &mut out.row_mut(rows.start)[cols]);
            } else {
                let values = grown(&mut scratch.values, cols.len() * rows.len(), 0.0);
                product.run(&self.common, values);
                scatter(&self.common, values, &mut out, (rows, cols));
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
        let panel_values = op.out.n_heads * op.out.head_dim * PANEL_ROWS.min(n_rows);
        let values = grown(&mut scratch.values, panel_values, 0.0);
        let picks = identity(&mut scratch.identity);
        for first in (0..n_rows).step_by(PANEL_ROWS) {
            let rows = first..n_rows.min(first + PANEL_ROWS);
            let panel = HeadPanel { op, matrix, x, rows: rows.clone(), picks };
            let head_values = op.out.head_dim * rows.len();
            let cost = op.n_rows * matrix.layout().n_cols;
            let place = |head_idx| head_idx * head_values;
            let items = Items { n_items: op.out.n_heads, align: 1, cost, place };
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

/// Makes rows of activations ready for products with `matrix`.
pub(super) fn prepare<'a>(
    common: &Common,
    target: &mut Activations,
    matrix: &Matrix<'_>,
    n_rows: usize,
    source: &(impl Fn(usize) -> &'a [f32] + Sync),
) {
    let layout = matrix.layout();
    target.reshape(layout.kind, n_rows, layout.n_cols);
    let (shape, values, sums) = target.rows_mut();
    common.split.pairs((values, sums), n_rows, shape.stride, &|row_idx, values, sums| {
        shape.fill(common.table, source(row_idx), values, sums);
    });
}

/// 0, 1, 2, .. of a panel's rows.
fn identity(indices: &mut Vec<usize>) -> &[usize] {
    if indices.is_empty() {
        indices.extend(0..PANEL_ROWS);
    }
    indices
}

/// A product with all rows of a matrix and a panel of activations.
struct PanelProduct<'a> {
    matrix: Matrix<'a>,
    bias: Option<&'a [f32]>,
    x: &'a Activations,
    picks: &'a [usize],
}

impl PanelProduct<'_> {
    /// `out[matrix row][panel row]`.
    fn run(&self, common: &Common, out: &mut [f32]) {
        let layout = self.matrix.layout();
        let n_picks = self.x.n_rows();
        let place = |row_idx| row_idx * n_picks;
        let items =
            Items { n_items: layout.n_rows, align: MATRIX_ROWS_ALIGN, cost: layout.n_cols, place };
        assert_eq!(out.len(), layout.n_rows * n_picks, "outputs of a product");
        common.split.ranges(out, &items, &|rows, out| {
            let picks = &self.picks[..n_picks];
            let product = Product { matrix: self.matrix, rows: rows.clone(), x: self.x, picks };
            common.table.matmul(&product, out);
            let Some(bias) = self.bias else { return };
            for (out, &bias) in out.chunks_exact_mut(n_picks).zip(&bias[rows]) {
                out.iter_mut().for_each(|it| *it += bias);
            }
        });
    }
}

/// Turns `values[column][row]` into rows of a buffer.
fn scatter(
    common: &Common,
    values: &[f32],
    out: &mut Buffer,
    (rows, cols): (Range<usize>, Range<usize>),
) {
    let (n_cols, n_rows) = (out.n_cols, rows.len());
    let place = |i| i * n_cols;
    let items = Items { n_items: n_rows, align: 1, cost: cols.len(), place };
    common.split.ranges(&mut out.values[rows.start * n_cols..], &items, &|range, out| {
        for first in (0..cols.len()).step_by(SCATTER_COLS) {
            let block = first..cols.len().min(first + SCATTER_COLS);
            for (row_idx, out) in range.clone().zip(out.chunks_exact_mut(n_cols)) {
                let out = &mut out[cols.start + block.start..][..block.len()];
                for (out, column) in out.iter_mut().zip(block.clone()) {
                    *out = values[column * n_rows + row_idx];
                }
            }
        }
    });
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
                let x = &mut worker.activations;
                x.reshape(layout.kind, self.rows.len(), layout.n_cols);
                for (i, row_idx) in self.rows.clone().enumerate() {
                    x.fill(common.table, i, head(self.x, &self.op.x, row_idx, head_idx));
                }
                let picks = &self.picks[..self.rows.len()];
                common.table.matmul(&Product { matrix: self.matrix, rows, x, picks }, out);
            }
            Orientation::RowsFromIn => {
                let first = self.rows.start * self.x.n_cols + self.op.x.cols(head_idx).start;
                let x = Rows {
                    values: &self.x.values[first..],
                    n_rows: self.rows.len(),
                    row_len: self.op.x.head_dim,
                    stride: self.x.n_cols,
                };
                let cols = 0..layout.n_cols;
                let product = TransposedProduct { matrix: self.matrix, rows, cols, x };
                common.table.matmul_transposed(&product, out);
            }
        }
    }

    /// Copies the outputs of all heads to where they belong.
    fn put(&self, common: &Common, values: &[f32], out: &mut Buffer) {
        let (n_cols, n_rows, op) = (out.n_cols, self.rows.len(), self.op);
        let place = |i| i * n_cols;
        let cost = op.out.n_heads * op.out.head_dim;
        let items = Items { n_items: n_rows, align: 1, cost, place };
        common.split.ranges(&mut out.values[self.rows.start * n_cols..], &items, &|range, out| {
            for (head_idx, values) in values.chunks_exact(op.out.head_dim * n_rows).enumerate() {
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
        Orientation::RowsToOut => {
            for (out, values) in out.iter_mut().zip(values.chunks_exact(n_rows)) {
                *out = values[row_idx];
            }
        }
        Orientation::RowsFromIn => {
            out.copy_from_slice(&values[row_idx * out.len()..][..out.len()]);
        }
    }
}

fn head<'a>(buffer: &'a Buffer, heads: &Heads, row_idx: usize, head_idx: usize) -> &'a [f32] {
    &buffer.row(row_idx)[heads.cols(head_idx)]
}
