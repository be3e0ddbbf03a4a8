//! Gated DeltaNet: the convolution over time, the gates, and the delta rule token by token.
//!
//! **Invariant:** a layer's state is f32 and rounded once per token, so that a session cut into
//! steps anywhere gives the same values.

use super::{ReferenceBackend, dot, sigmoid, silu, store, widened};
use crate::backend::host::LayerMemory;
use crate::ids::StateId;
use crate::ops::{Batch, CausalConv, DeltaGates, GatedDelta};

impl ReferenceBackend {
    pub(super) fn causal_conv(&mut self, op: &CausalConv, batch: &Batch<'_>) {
        let n_channels = op.x.head_dim;
        let taps = widened(self.weights.vector(op.weight));
        assert_eq!(taps.len(), n_channels * op.n_taps, "taps of every channel");
        for segment in batch.segments {
            for row_idx in segment.rows.clone() {
                let newest = self.buffers.head(&op.x, row_idx, 0).to_vec();
                let LayerMemory::Recurrent { conv, .. } =
                    self.states.layer_mut(segment.state, op.layer)
                else {
                    unreachable!("a convolution runs on recurrent layers");
                };
                assert_eq!(conv.len(), n_channels * (op.n_taps - 1), "inputs kept");
                // [n_taps, channels], oldest first.
                let inputs: Vec<f32> = conv.iter().chain(&newest).copied().collect();
                conv.copy_from_slice(&inputs[n_channels..]);
                let out: Vec<f64> = (0..n_channels)
                    .map(|channel| {
                        let at = |tap| f64::from(inputs[tap * n_channels + channel]);
                        let history: Vec<f64> = (0..op.n_taps).map(at).collect();
                        silu(dot(&taps[channel * op.n_taps..][..op.n_taps], &history))
                    })
                    .collect();
                self.set_head(&op.out, row_idx, 0, &out);
            }
        }
    }

    pub(super) fn delta_gates(&mut self, op: &DeltaGates, n_rows: usize) {
        let a_log = widened(self.weights.vector(op.a_log));
        let dt_bias = widened(self.weights.vector(op.dt_bias));
        for row_idx in 0..n_rows {
            let a = self.head(&op.a, row_idx, 0);
            let b = self.head(&op.b, row_idx, 0);
            let decay: Vec<f64> = (0..a.len())
                .map(|idx| (-a_log[idx].exp() * softplus(a[idx] + dt_bias[idx])).exp())
                .collect();
            let beta: Vec<f64> = b.iter().map(|&b| sigmoid(b)).collect();
            self.set_head(&op.decay, row_idx, 0, &decay);
            self.set_head(&op.beta, row_idx, 0, &beta);
        }
    }

    pub(super) fn gated_delta(&mut self, op: &GatedDelta, batch: &Batch<'_>) {
        assert_eq!(op.q.n_heads, op.k.n_heads, "a query per key");
        assert!(op.v.n_heads.is_multiple_of(op.k.n_heads), "values share keys evenly");
        for segment in batch.segments {
            for row_idx in segment.rows.clone() {
                for head_idx in 0..op.v.n_heads {
                    self.delta_head(op, segment.state, row_idx, head_idx);
                }
            }
        }
    }

    /// One value head of one token.
    fn delta_head(&mut self, op: &GatedDelta, state: StateId, row_idx: usize, head_idx: usize) {
        let key_head_idx = head_idx / (op.v.n_heads / op.k.n_heads);
        let q = self.head(&op.q, row_idx, key_head_idx);
        let k = self.head(&op.k, row_idx, key_head_idx);
        let v = self.head(&op.v, row_idx, head_idx);
        let decay = self.head(&op.decay, row_idx, 0)[head_idx];
        let beta = self.head(&op.beta, row_idx, 0)[head_idx];
        let LayerMemory::Recurrent { delta: memory, .. } = self.states.layer_mut(state, op.layer)
        else {
            unreachable!("the delta rule runs on recurrent layers");
        };
        let (key_dim, value_dim) = (k.len(), v.len());
        assert_eq!(memory.len(), op.v.n_heads * value_dim * key_dim, "a state per value head");
        let mut out = vec![0.0; value_dim];
        for (value_idx, (out, &v)) in out.iter_mut().zip(&v).enumerate() {
            let at = (head_idx * value_dim + value_idx) * key_dim;
            let stored = &mut memory[at..][..key_dim];
            let mut row: Vec<f64> = widened(stored).iter().map(|s| s * decay).collect();
            let delta = (v - dot(&row, &k)) * beta;
            for (s, k) in row.iter_mut().zip(&k) {
                *s += delta * k;
            }
            store(stored, &row);
            *out = dot(&row, &q);
        }
        self.set_head(&op.out, row_idx, head_idx, &out);
    }
}

/// `ln(1 + exp(x))`, in a form whose exponential cannot overflow: the same function, not a guard.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
