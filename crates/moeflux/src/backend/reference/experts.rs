//! Routed experts: computes each arrived expert over the rows that chose it, then the weighted sum.
//!
//! **Invariant:** a partial is stored at the expert's rank in its row, so the order of the sum does
//! not depend on the order of arrival.

use std::ops::Range;

use super::{ReferenceBackend, decode, dot, pointwise, rounded, sigmoid, store, widened};
use crate::ids::{ExpertIdx, VectorId};
use crate::ops::{Combine, ExpertBiases, ExpertDown, ExpertFfn, ExpertUp, Heads};
use crate::weights::ExpertView;
use moeflux_kernels::Matrix;

impl ReferenceBackend {
    pub(super) fn expert_ffn(&mut self, op: &ExpertFfn, expert: ExpertIdx, view: &ExpertView<'_>) {
        let inner = self.inner_of((&op.x, op.limit, op.biases), (expert, view), (0, None));
        let bias = op.biases.map(|biases| (biases.down, op.sum.head_dim));
        let outputs = self.products((&view.down, bias, 0), expert, &inner);
        self.keep_partials(expert, &outputs, (0, op.sum.head_dim));
    }

    pub(super) fn expert_up(&mut self, op: &ExpertUp, expert: ExpertIdx, view: &ExpertView<'_>) {
        let share = (op.rows.start, Some(op.n_inner));
        let values = self.inner_of((&op.x, op.limit, op.biases), (expert, view), share);
        for (use_idx, values) in self.uses_in_chunk(expert).zip(values) {
            self.inner[use_idx][op.rows.clone()].copy_from_slice(&values);
        }
    }

    pub(super) fn expert_down(
        &mut self,
        op: &ExpertDown,
        expert: ExpertIdx,
        view: &ExpertView<'_>,
    ) {
        // Exchanged values are f32.
        let rounded = |row: &Vec<f64>| row.iter().map(|it| f64::from(rounded(*it))).collect();
        let inner: Vec<Vec<f64>> =
            self.uses_in_chunk(expert).map(|use_idx| rounded(&self.inner[use_idx])).collect();
        let bias = op.biases.map(|biases| (biases.down, op.n_hidden));
        let outputs = self.products((&view.down, bias, op.rows.start), expert, &inner);
        self.keep_partials(expert, &outputs, (op.rows.start, op.n_hidden));
    }

    /// Returns the indices of an expert's uses in the chunk.
    fn uses_in_chunk(&self, expert: ExpertIdx) -> Range<usize> {
        let before = self.chunk.iter().take_while(|it| **it < expert);
        let first = before.map(|it| self.routes.uses_of(*it).count()).sum();
        first..first + self.routes.uses_of(expert).count()
    }

    /// Returns `swiglu(gate . x, up . x)` for each row that chose the expert. The view's gate and
    /// up start at `first_row` of whole matrices of `n_inner` rows.
    fn inner_of(
        &self,
        (x, limit, biases): (&Heads, Option<f32>, Option<ExpertBiases>),
        (expert, view): (ExpertIdx, &ExpertView<'_>),
        (first_row, n_inner): (usize, Option<usize>),
    ) -> Vec<Vec<f64>> {
        let n_inner = n_inner.unwrap_or(view.gate.layout().n_rows);
        let uses = self.routes.uses_of(expert);
        let inputs: Vec<Vec<f64>> = uses.map(|(row_idx, _)| self.head(x, row_idx, 0)).collect();
        let [gate, up] = [
            (&view.gate, biases.map(|biases| (biases.gate, n_inner)), first_row),
            (&view.up, biases.map(|biases| (biases.up, n_inner)), first_row),
        ];
        let gates = self.products(gate, expert, &inputs);
        let ups = self.products(up, expert, &inputs);
        gates.iter().zip(&ups).map(|(gate, up)| pointwise::swiglu(gate, up, limit)).collect()
    }

    /// Stores columns from `first_col` of an expert's outputs until they are summed.
    fn keep_partials(
        &mut self,
        expert: ExpertIdx,
        outputs: &[Vec<f64>],
        (first_col, n_hidden): (usize, usize),
    ) {
        self.partials.resize(self.routes.experts.len() * n_hidden, 0.0);
        let uses: Vec<(usize, usize)> = self.routes.uses_of(expert).collect();
        for ((row_idx, rank), output) in uses.into_iter().zip(outputs) {
            let place = (row_idx * self.routes.top_k + rank) * n_hidden + first_col;
            store(&mut self.partials[place..][..output.len()], output);
        }
    }

    /// Returns the product of an expert's matrix with each input, plus bias. The matrix starts at
    /// `first_row` of the whole matrix, which has as many rows as the bias.
    fn products(
        &self,
        (matrix, bias, first_row): (&Matrix<'_>, Option<(VectorId, usize)>, usize),
        expert: ExpertIdx,
        inputs: &[Vec<f64>],
    ) -> Vec<Vec<f64>> {
        let mut outputs = products(matrix, inputs);
        if let Some((bias, n_rows)) = bias {
            let of_expert = &self.weights.vector(bias)[expert.0 * n_rows..][..n_rows];
            let bias = widened(&of_expert[first_row..][..matrix.layout().n_rows]);
            for output in &mut outputs {
                output.iter_mut().zip(&bias).for_each(|(value, bias)| *value += bias);
            }
        }
        outputs
    }

    pub(super) fn combine(&mut self, op: &Combine, n_rows: usize) {
        let top_k = self.routes.top_k;
        assert_eq!(self.routes.experts.len(), n_rows * top_k, "every row was routed");
        let n_hidden = op.sum.head_dim;
        for row_idx in 0..n_rows {
            let mut sum = vec![0.0; n_hidden];
            for rank in 0..top_k {
                let weight = f64::from(self.routes.weights[row_idx * top_k + rank]);
                let place = row_idx * top_k + rank;
                let partial = widened(&self.partials[place * n_hidden..][..n_hidden]);
                for (sum, partial) in sum.iter_mut().zip(&partial) {
                    *sum += weight * partial;
                }
            }
            if let Some(shared) = &op.shared {
                let factor = match &op.shared_gate {
                    Some(gate) => sigmoid(self.head(gate, row_idx, 0)[0]),
                    None => 1.0,
                };
                let shared = self.head(shared, row_idx, 0);
                for (sum, shared) in sum.iter_mut().zip(&shared) {
                    *sum += factor * shared;
                }
            }
            if let Some(residual) = &op.residual {
                let residual = self.head(residual, row_idx, 0);
                sum.iter_mut().zip(&residual).for_each(|(sum, x)| *sum += x);
            }
            self.set_head(&op.out, row_idx, 0, &sum);
        }
    }
}

/// Returns the product of a matrix with each input.
fn products(matrix: &Matrix<'_>, inputs: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut outputs = vec![Vec::new(); inputs.len()];
    for row_idx in 0..matrix.layout().n_rows {
        let weights = widened(&decode::row(matrix, row_idx));
        for (input, output) in inputs.iter().zip(&mut outputs) {
            output.push(dot(&weights, input));
        }
    }
    outputs
}

#[cfg(test)]
mod tests {
    use moeflux_kernels::{FloatKind, MatrixKind, MatrixLayout};

    use super::*;
    use crate::backend::Backend;
    use crate::backend::reference::fixture::{Fixture, assert_close, read};
    use crate::backend::reference::silu;
    use crate::experts::{Arrived, ArrivedExpert};
    use crate::ids::LayerIdx;
    use crate::ops::{Heads, Op, Plan, Purpose, Route, RouterKind};

    fn matrix<'a>(n_rows: usize, n_cols: usize, bytes: &'a [u8]) -> Matrix<'a> {
        let kind = MatrixKind::Float(FloatKind::F32);
        Matrix::new(MatrixLayout::new(kind, n_rows, n_cols).unwrap(), bytes, &[], &[])
    }

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// Routes two rows to two of four experts each, submits the experts in `order` and combines.
    /// Expert `e` maps `[x, _]` to `silu(x) * 10^e` and `silu(x) * 10^e * 2`.
    fn combined(order: &[usize], shared: bool) -> Vec<Vec<f32>> {
        let mut fixture = Fixture::default();
        let logits =
            fixture.input("logits", &[&[0.0, -99.0, -99.0, 0.0], &[-99.0, 0.0, -99.0, 0.0]]);
        let x = fixture.input("x", &[&[1.0, 5.0], &[2.0, 5.0]]);
        let residual = fixture.input("residual", &[&[100.0, 200.0], &[300.0, 400.0]]);
        let shared_x = fixture.input("shared", &[&[8.0, 80.0], &[8.0, 80.0]]);
        let shared_gate = fixture.input("shared_gate", &[&[0.0], &[1.098_612_3]]);
        let sum = fixture.workspace.buffer("sum", 2);
        let (mut backend, state) = fixture.backend();
        let kind = RouterKind::Softmax { renormalise: true };
        fixture.step(
            &mut backend,
            state,
            Op::Route(Route { logits, kind, top_k: 2, purpose: Purpose::Compute }),
        );

        let op = ExpertFfn { layer: LayerIdx(0), x, sum, limit: None, biases: None };
        let plan = Plan::new(vec![Op::ExpertFfn(op)]);
        for &expert_idx in order {
            let size = [1.0, 10.0, 100.0, 1000.0][expert_idx];
            let [gate, up] = [bytes(&[1.0, 0.0]), bytes(&[0.0, 0.2])];
            let down = bytes(&[size, size * 2.0]);
            let view = ExpertView {
                gate: matrix(1, 2, &gate),
                up: matrix(1, 2, &up),
                down: matrix(2, 1, &down),
            };
            let arrived = [ArrivedExpert { expert: ExpertIdx(expert_idx), view }];
            backend.submit_experts(&plan, &Arrived::in_any_order(&arrived)).unwrap();
        }
        let some = |heads: Heads| shared.then_some(heads);
        let op = Combine {
            sum,
            shared: some(shared_x),
            shared_gate: some(shared_gate),
            residual: Some(residual),
            out: residual,
        };
        // The inputs are embedded again; routes and partials remain.
        fixture.step(&mut backend, state, Op::Combine(op));
        (0..2).map(|row_idx| read(&mut backend, residual, row_idx)).collect()
    }

    #[test]
    fn experts_are_summed_by_index_whatever_their_order() {
        let rows = combined(&[0, 1, 3], false);
        let [one, two] = [silu(1.0), silu(2.0)];
        assert_close(&rows[0], &[100.0 + 500.5 * one, 200.0 + 1001.0 * one]);
        assert_close(&rows[1], &[300.0 + 505.0 * two, 400.0 + 1010.0 * two]);
        for order in [[3, 1, 0], [1, 0, 3], [0, 3, 1]] {
            assert_eq!(combined(&order, false), rows, "order {order:?}");
        }
        // An expert that no row chose changes nothing.
        assert_eq!(combined(&[2, 3, 1, 0], false), rows);
    }

    #[test]
    fn the_shared_expert_is_gated() {
        let rows = combined(&[0, 1, 3], true);
        let [one, two] = [silu(1.0), silu(2.0)];
        assert_close(&rows[0], &[104.0 + 500.5 * one, 240.0 + 1001.0 * one]);
        assert_close(&rows[1], &[306.0 + 505.0 * two, 460.0 + 1010.0 * two]);
    }
}
