//! The ops of gated DeltaNet: convolution over time, gates, and the recurrence.
//!
//! **Invariant:** always token by token, so that a state does not depend on how tokens were cut
//! into steps.

use moeflux_kernels::DeltaStep;

use crate::backend::cpu::attention::segment_of;
use crate::backend::cpu::elementwise::{COLS_PER_PART, sigmoid, silu};
use crate::backend::cpu::split::Parts;
use crate::backend::cpu::{Inputs, Machine, grown};
use crate::backend::host::LayerMemory;
use crate::ops::{Batch, CausalConv, DeltaGates, GatedDelta, Heads};

/// Above it, softplus is its argument, as in PyTorch.
const SOFTPLUS_LINEAR_FROM: f64 = 20.0;

impl Machine {
    pub(super) fn causal_conv(&mut self, op: &CausalConv, batch: &Batch<'_>) {
        assert_ne!(op.x.buffer, op.out.buffer, "a convolution reads another buffer");
        let (n_rows, n_cols, n_kept) = (batch.rows.len(), op.x.head_dim, op.n_taps - 1);
        let mut out = self.buffers.take(op.out.buffer);
        let weight = self.common.weights.vector(op.weight);
        assert_eq!(weight.len(), n_cols * op.n_taps, "taps of the convolution");
        let (buffers, states) = (&self.buffers, &self.states);
        let parts = Parts::columns(&op.out, COLS_PER_PART).with_cost(16 * COLS_PER_PART);
        self.common.split.parts(&mut out, n_rows, &parts, &|row_idx, part_idx, out| {
            let segment = segment_of(batch, row_idx);
            let LayerMemory::Recurrent { conv, .. } = states.layer(segment.state, op.layer) else {
                unreachable!("a convolution keeps its last inputs");
            };
            let first_col = part_idx * COLS_PER_PART;
            out.fill(0.0);
            for tap_idx in 0..op.n_taps {
                // Kept inputs and the segment's rows are one sequence.
                let at = row_idx - segment.rows.start + tap_idx;
                let source = match at.checked_sub(n_kept) {
                    None => &conv[at * n_cols..][..n_cols],
                    Some(i) => buffers.head(&op.x, segment.rows.start + i, 0),
                };
                let taps = weight[first_col * op.n_taps + tap_idx..].iter().step_by(op.n_taps);
                for ((out, &x), &tap) in out.iter_mut().zip(&source[first_col..]).zip(taps) {
                    *out += tap * x;
                }
            }
            out.iter_mut().for_each(|it| *it = silu(*it));
        });
        self.buffers.put(op.out.buffer, out);
        self.keep_conv_inputs(op, batch);
    }

    /// Leaves the last inputs of each segment in its state.
    fn keep_conv_inputs(&mut self, op: &CausalConv, batch: &Batch<'_>) {
        let (n_cols, n_kept) = (op.x.head_dim, op.n_taps - 1);
        for segment in batch.segments {
            let memory = self.states.layer_mut(segment.state, op.layer);
            let LayerMemory::Recurrent { conv, .. } = memory else {
                unreachable!("a convolution keeps its last inputs");
            };
            for kept_idx in 0..n_kept {
                let at = segment.rows.len() + kept_idx;
                match at.checked_sub(n_kept) {
                    None => conv.copy_within(at * n_cols..(at + 1) * n_cols, kept_idx * n_cols),
                    Some(i) => {
                        let source = self.buffers.head(&op.x, segment.rows.start + i, 0);
                        conv[kept_idx * n_cols..][..n_cols].copy_from_slice(source);
                    }
                }
            }
        }
    }

    pub(super) fn delta_gates(&mut self, op: &DeltaGates, n_rows: usize) {
        let weights = self.common.weights.clone();
        let (a_log, dt_bias) = (weights.vector(op.a_log), weights.vector(op.dt_bias));
        // `beta` first: where `decay` takes the place of `a`, `b` is still whole.
        self.each_gate((&op.b, &op.beta), n_rows, &|_, b| sigmoid(b));
        self.each_gate((&op.a, &op.decay), n_rows, &|head_idx, a| {
            decay(a, a_log[head_idx], dt_bias[head_idx])
        });
    }

    /// `out[head] = f(head, x[head])`.
    fn each_gate(
        &mut self,
        (x, out_view): (&Heads, &Heads),
        n_rows: usize,
        f: &(impl Fn(usize, f32) -> f32 + Sync),
    ) {
        let mut out = self.take_output(out_view.buffer, &[*x], n_rows);
        let inputs = self.inputs(out_view.buffer);
        let parts = Parts::columns(out_view, out_view.head_dim).with_cost(32 * out_view.head_dim);
        self.common.split.parts(&mut out, n_rows, &parts, &|row_idx, _, out| {
            let x = inputs.head(x, row_idx, 0);
            for (head_idx, (out, &x)) in out.iter_mut().zip(x).enumerate() {
                *out = f(head_idx, x);
            }
        });
        self.buffers.put(out_view.buffer, out);
    }

    pub(super) fn gated_delta(&mut self, op: &GatedDelta, batch: &Batch<'_>) {
        let n_rows = batch.rows.len();
        let reads = [op.q, op.k, op.v, op.decay, op.beta];
        let mut out = self.take_output(op.out.buffer, &reads, n_rows);
        let inputs = Inputs {
            buffers: &self.buffers,
            written: op.out.buffer,
            snapshot: &self.scratch.snapshot,
        };
        let (n_heads, v_dim, k_dim) = (op.v.n_heads, op.v.head_dim, op.k.head_dim);
        let values_per_key = n_heads / op.k.n_heads;
        let table = self.common.table;
        for segment in batch.segments {
            let memory = self.states.layer_mut(segment.state, op.layer);
            let LayerMemory::Recurrent { delta, .. } = memory else {
                unreachable!("the delta rule folds its history");
            };
            assert_eq!(delta.len(), n_heads * v_dim * k_dim, "state of the delta rule");
            let n_tokens = segment.rows.len();
            // [head, token, value]
            let values = grown(&mut self.scratch.values, n_heads * n_tokens * v_dim, 0.0);
            let cost = 4 * n_tokens * v_dim * k_dim;
            let both = (&mut **delta, &mut *values);
            self.common.split.pairs(both, n_heads, cost, &|head_idx, state, out| {
                let key_head_idx = head_idx / values_per_key;
                let tokens = segment.rows.clone().zip(out.chunks_exact_mut(v_dim));
                for (row_idx, out) in tokens {
                    let step = DeltaStep {
                        q: inputs.head(&op.q, row_idx, key_head_idx),
                        k: inputs.head(&op.k, row_idx, key_head_idx),
                        v: inputs.head(&op.v, row_idx, head_idx),
                        decay: inputs.head(&op.decay, row_idx, 0)[head_idx],
                        beta: inputs.head(&op.beta, row_idx, 0)[head_idx],
                    };
                    table.delta_step(&step, state, out);
                }
            });
            for (head_idx, values) in values.chunks_exact(n_tokens * v_dim).enumerate() {
                for (row_idx, values) in segment.rows.clone().zip(values.chunks_exact(v_dim)) {
                    out.row_mut(row_idx)[op.out.cols(head_idx)].copy_from_slice(values);
                }
            }
        }
        self.buffers.put(op.out.buffer, out);
    }
}

/// `exp(-exp(a_log) * softplus(a + dt_bias))`.
#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
fn decay(a: f32, a_log: f32, dt_bias: f32) -> f32 {
    let x = f64::from(a + dt_bias);
    let softplus = if x > SOFTPLUS_LINEAR_FROM { x } else { x.exp().ln_1p() };
    (-f64::from(a_log).exp() * softplus).exp() as f32
}
