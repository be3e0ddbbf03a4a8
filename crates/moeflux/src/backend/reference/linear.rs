//! Products with resident weights: rows of a table, matrices, one matrix per head.
//!
//! **Invariant:** a weight's row is decoded once per op, regardless of the number of rows.

use super::{ReferenceBackend, decode, dot, rounded, store, widened};
use crate::ops::{Batch, Embed, HeadMatMul, MatMul, Orientation};

impl ReferenceBackend {
    pub(super) fn embed(&mut self, op: &Embed, batch: &Batch<'_>) {
        let table = self.weights.matrix(op.table);
        for (row_idx, row) in batch.rows.iter().enumerate() {
            let token = usize::try_from(row.token.0).expect("a token fits in an address");
            let values = decode::row(&table, token);
            for head_idx in 0..op.out.n_heads {
                self.buffers.head_mut(&op.out, row_idx, head_idx).copy_from_slice(&values);
            }
        }
    }

    pub(super) fn matmul(&mut self, op: &MatMul, n_rows: usize) {
        let weight = self.weights.matrix(op.weight);
        assert_eq!(op.out.head_dim, weight.layout().n_rows, "outputs of a product");
        let bias = op.bias.map(|bias| widened(self.weights.vector(bias)));
        let inputs: Vec<Vec<f64>> =
            (0..n_rows).map(|row_idx| self.head(&op.x, row_idx, 0)).collect();
        for out_idx in 0..op.out.head_dim {
            let weights = widened(&decode::row(&weight, out_idx));
            for (row_idx, x) in inputs.iter().enumerate() {
                let product = dot(&weights, x) + bias.as_ref().map_or(0.0, |bias| bias[out_idx]);
                self.buffers.head_mut(&op.out, row_idx, 0)[out_idx] = rounded(product);
            }
        }
    }

    pub(super) fn head_matmul(&mut self, op: &HeadMatMul, n_rows: usize) {
        assert_eq!(op.x.n_heads, op.out.n_heads, "a product per head");
        for head_idx in 0..op.x.n_heads {
            let weights = self.head_rows(op, head_idx);
            for row_idx in 0..n_rows {
                let x = self.head(&op.x, row_idx, head_idx);
                let out = match op.orientation {
                    Orientation::RowsToOut => rows_to_out(&weights, &x),
                    Orientation::RowsFromIn => rows_from_in(&weights, &x),
                };
                store(self.buffers.head_mut(&op.out, row_idx, head_idx), &out);
            }
        }
    }

    /// Returns the matrix of one head.
    fn head_rows(&self, op: &HeadMatMul, head_idx: usize) -> Vec<Vec<f64>> {
        let weight = self.weights.matrix(op.weight);
        let first_row = op.first_row + head_idx * op.row_stride;
        let rows = first_row..first_row + op.n_rows;
        rows.map(|row_idx| widened(&decode::row(&weight, row_idx))).collect()
    }
}

fn rows_to_out(weights: &[Vec<f64>], x: &[f64]) -> Vec<f64> {
    weights.iter().map(|row| dot(row, x)).collect()
}

fn rows_from_in(weights: &[Vec<f64>], x: &[f64]) -> Vec<f64> {
    assert_eq!(weights.len(), x.len(), "a row takes an input");
    let mut out = vec![0.0; weights[0].len()];
    for (row, &x) in weights.iter().zip(x) {
        for (out, &weight) in out.iter_mut().zip(row) {
            *out += weight * x;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::reference::fixture::Fixture;
    use crate::ops::Op;

    #[test]
    fn a_product_with_a_bias() {
        let mut fixture = Fixture::default();
        let x = fixture.input("x", &[&[1.0, 2.0, 3.0], &[-1.0, 0.0, 1.0]]);
        let out = fixture.workspace.buffer("out", 2);
        let weight = fixture.matrix(&[&[1.0, 10.0, 100.0], &[0.5, 0.0, -0.5]]);
        let bias = Some(fixture.vector(&[0.25, 1000.0]));
        let rows = fixture.run(Op::MatMul(MatMul { weight, bias, x, out }), out);
        assert_eq!(rows, [[321.25, 999.0], [99.25, 999.0]]);
    }

    #[test]
    fn each_head_has_its_rows() {
        let mut fixture = Fixture::default();
        let x = fixture.input("x", &[&[1.0, 2.0, 3.0, 4.0]]).split(2);
        let rows: [&[f32]; 6] =
            [&[9.0, 9.0], &[1.0, 0.0], &[0.0, 1.0], &[9.0, 9.0], &[10.0, 1.0], &[100.0, -1.0]];
        let weight = fixture.matrix(&rows);
        let out = fixture.workspace.buffer("out", 4).split(2);
        let mut op = HeadMatMul {
            weight,
            first_row: 1,
            row_stride: 3,
            n_rows: 2,
            orientation: Orientation::RowsToOut,
            x,
            out,
        };
        let rows = fixture.run(Op::HeadMatMul(op.clone()), out);
        assert_eq!(rows, [[1.0, 2.0, 34.0, 296.0]]);
        op.orientation = Orientation::RowsFromIn;
        let rows = fixture.run(Op::HeadMatMul(op), out);
        assert_eq!(rows, [[1.0, 2.0, 430.0, -1.0]]);
    }

    #[test]
    fn sums_are_not_rounded_on_the_way() {
        let mut fixture = Fixture::default();
        let x = fixture.input("x", &[&[1.0, 1.0, 1.0]]);
        let out = fixture.workspace.buffer("out", 1);
        let weight = fixture.matrix(&[&[1e8, 1.0, -1e8]]);
        let rows = fixture.run(Op::MatMul(MatMul { weight, bias: None, x, out }), out);
        assert_eq!(rows, [[1.0]]);
    }
}
