//! Ops that treat every row alone: selection, norms, rope, activations, sums.
//!
//! **Invariant:** a head is read whole before it is written, so outputs may be inputs.

use super::{ReferenceBackend, dot, sigmoid, silu, widened};
use crate::ops::{Add, Batch, L2Norm, RmsNorm, Rope, SelectRows, SwiGlu};
use crate::spec::Pairing;

/// Sharpness of gpt_oss's sigmoid.
const LIMITED_SIGMOID_FACTOR: f64 = 1.702;

impl ReferenceBackend {
    pub(super) fn select_rows(&mut self, op: &SelectRows, batch: &Batch<'_>) {
        for (output_idx, &row_idx) in batch.outputs.iter().enumerate() {
            let values = self.head(&op.x, row_idx, 0);
            self.set_head(&op.out, output_idx, 0, &values);
        }
    }

    pub(super) fn rms_norm(&mut self, op: &RmsNorm, n_rows: usize) {
        let gain = widened(self.weights.vector(op.gain));
        for row_idx in 0..n_rows {
            for head_idx in 0..op.x.n_heads {
                let x = self.head(&op.x, row_idx, head_idx);
                let mean_square = dot(&x, &x) / x.len() as f64;
                let root = (mean_square + f64::from(op.epsilon)).sqrt();
                let mut out: Vec<f64> =
                    x.iter().zip(&gain).map(|(x, gain)| x / root * gain).collect();
                if let Some(gate) = &op.gate {
                    let gate = self.head(gate, row_idx, head_idx);
                    for (out, &gate) in out.iter_mut().zip(&gate) {
                        *out *= silu(gate);
                    }
                }
                self.set_head(&op.out, row_idx, head_idx, &out);
            }
        }
    }

    pub(super) fn l2_norm(&mut self, op: &L2Norm, n_rows: usize) {
        for row_idx in 0..n_rows {
            for head_idx in 0..op.x.n_heads {
                let x = self.head(&op.x, row_idx, head_idx);
                let root = (dot(&x, &x) + f64::from(op.epsilon)).sqrt();
                let out: Vec<f64> = x.iter().map(|x| x / root * f64::from(op.factor)).collect();
                self.set_head(&op.x, row_idx, head_idx, &out);
            }
        }
    }

    pub(super) fn rope(&mut self, op: &Rope, batch: &Batch<'_>) {
        let frequencies = self.weights.vector(op.frequencies).to_vec();
        let n_pairs = op.x.head_dim / 2;
        assert_eq!(frequencies.len(), n_pairs, "a frequency per pair");
        let amplitude = f64::from(op.amplitude);
        for (row_idx, row) in batch.rows.iter().enumerate() {
            for head_idx in 0..op.x.n_heads {
                let mut x = self.head(&op.x, row_idx, head_idx);
                for (pair_idx, &frequency) in frequencies.iter().enumerate() {
                    let (a_idx, b_idx) = match op.pairing {
                        Pairing::Halves => (pair_idx, pair_idx + n_pairs),
                        Pairing::Neighbours => (2 * pair_idx, 2 * pair_idx + 1),
                    };
                    // The product is f32 in transformers: at position 100,000 its rounding
                    // turns the pair by up to 0.004 and belongs to the model.
                    let angle = f64::from(row.position.0 as f32 * frequency);
                    let (sin, cos) = (angle.sin() * amplitude, angle.cos() * amplitude);
                    let (a, b) = (x[a_idx], x[b_idx]);
                    x[a_idx] = a * cos - b * sin;
                    x[b_idx] = a * sin + b * cos;
                }
                self.set_head(&op.x, row_idx, head_idx, &x);
            }
        }
    }

    pub(super) fn swiglu(&mut self, op: &SwiGlu, n_rows: usize) {
        for row_idx in 0..n_rows {
            for head_idx in 0..op.gate.n_heads {
                let gate = self.head(&op.gate, row_idx, head_idx);
                let up = self.head(&op.up, row_idx, head_idx);
                self.set_head(&op.out, row_idx, head_idx, &swiglu(&gate, &up, op.limit));
            }
        }
    }

    pub(super) fn add(&mut self, op: &Add, n_rows: usize) {
        for row_idx in 0..n_rows {
            for head_idx in 0..op.x.n_heads {
                let x = self.head(&op.x, row_idx, head_idx);
                let y = self.head(&op.y, row_idx, head_idx);
                let out: Vec<f64> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
                self.set_head(&op.out, row_idx, head_idx, &out);
            }
        }
    }
}

/// `silu(gate) * up`, or gpt_oss's form under a limit.
pub(super) fn swiglu(gate: &[f64], up: &[f64], limit: Option<f32>) -> Vec<f64> {
    assert_eq!(gate.len(), up.len(), "a gate per value");
    let pairs = gate.iter().zip(up);
    match limit.map(f64::from) {
        None => pairs.map(|(&gate, &up)| silu(gate) * up).collect(),
        Some(limit) => pairs
            .map(|(&gate, &up)| {
                let gate = gate.min(limit);
                let up = up.clamp(-limit, limit);
                gate * sigmoid(LIMITED_SIGMOID_FACTOR * gate) * (up + 1.0)
            })
            .collect(),
    }
}
