//! Routed experts: each arrived expert over the rows that chose it, then the weighted sum.
//!
//! **Invariant:** a partial lies at the expert's rank in its row, so that the sum's order does not
//! depend on the order of arrival.

use super::{ReferenceBackend, decode, dot, pointwise, sigmoid, store, widened};
use crate::backend::ArrivedExpert;
use crate::ops::{Combine, ExpertFfn};
use moeflux_kernels::Matrix;

impl ReferenceBackend {
    pub(super) fn expert_ffn(&mut self, op: &ExpertFfn, arrived: &ArrivedExpert<'_>) {
        let uses: Vec<(usize, usize)> = self.routes.uses_of(arrived.expert).collect();
        let inputs = uses.iter().map(|&(row_idx, _)| self.head(&op.x, row_idx, 0)).collect();
        let gates = products(&arrived.view.gate, &inputs);
        let ups = products(&arrived.view.up, &inputs);
        let inner = gates
            .iter()
            .zip(&ups)
            .map(|(gate, up)| pointwise::swiglu(gate, up, op.limit))
            .collect();
        let outputs = products(&arrived.view.down, &inner);
        let partials = op.partials.split(self.routes.top_k);
        for (&(row_idx, rank), output) in uses.iter().zip(&outputs) {
            store(self.buffers.head_mut(&partials, row_idx, rank), output);
        }
    }

    pub(super) fn combine(&mut self, op: &Combine, n_rows: usize) {
        let top_k = self.routes.top_k;
        assert_eq!(self.routes.experts.len(), n_rows * top_k, "every row was routed");
        let partials = op.partials.split(top_k);
        for row_idx in 0..n_rows {
            let mut sum = vec![0.0; partials.head_dim];
            for rank in 0..top_k {
                let weight = f64::from(self.routes.weights[row_idx * top_k + rank]);
                let partial = self.head(&partials, row_idx, rank);
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
            let residual = self.head(&op.residual, row_idx, 0);
            let out: Vec<f64> = residual.iter().zip(&sum).map(|(x, sum)| x + sum).collect();
            self.set_head(&op.out, row_idx, 0, &out);
        }
    }
}

/// The product of a matrix with each input.
fn products(matrix: &Matrix<'_>, inputs: &Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    let mut outputs = vec![Vec::new(); inputs.len()];
    for row_idx in 0..matrix.layout().n_rows {
        let weights = widened(&decode::row(matrix, row_idx));
        for (input, output) in inputs.iter().zip(&mut outputs) {
            output.push(dot(&weights, input));
        }
    }
    outputs
}
