//! Norms, rope, gates and sums: ops whose outputs each depend on few values.
//!
//! **Invariant:** exp, ln, sin and cos are computed in f64 and rounded once, so that platforms
//! with different libraries agree.

use crate::backend::cpu::Machine;
use crate::backend::cpu::split::Parts;
use crate::ops::{Add, Batch, Heads, L2Norm, RmsNorm, Rope, SelectRows, SwiGlu};
use crate::spec::Pairing;

/// Columns of a plain row that one task takes at least.
pub(super) const COLS_PER_PART: usize = 512;

/// An exponential counts as much as reading so many values.
const EXP_COST: usize = 16;

/// `1 / (1 + exp(-x))`.
#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
pub(super) fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(x)).exp())) as f32
}

/// `x * sigmoid(x)`.
#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
pub(super) fn silu(x: f32) -> f32 {
    (f64::from(x) / (1.0 + (-f64::from(x)).exp())) as f32
}

/// One value of [`SwiGlu`].
pub(super) fn swiglu(gate: f32, up: f32, limit: Option<f32>) -> f32 {
    let Some(limit) = limit else { return silu(gate) * up };
    let gate = gate.min(limit);
    let up = up.clamp(-limit, limit);
    gate * sigmoid(1.702 * gate) * (up + 1.0)
}

impl Machine {
    pub(super) fn select_rows(&mut self, op: &SelectRows, batch: &Batch<'_>) {
        let mut out = self.take_output(op.out.buffer, &[op.x], batch.rows.len());
        let inputs = self.inputs(op.out.buffer);
        for (out_idx, &row_idx) in batch.outputs.iter().enumerate() {
            for head_idx in 0..op.x.n_heads {
                out.row_mut(out_idx)[op.out.cols(head_idx)]
                    .copy_from_slice(inputs.head(&op.x, row_idx, head_idx));
            }
        }
        self.buffers.put(op.out.buffer, out);
    }

    #[expect(clippy::cast_precision_loss, reason = "a head has far fewer than 2^24 columns")]
    pub(super) fn rms_norm(&mut self, op: &RmsNorm, n_rows: usize) {
        let reads = [op.x, op.gate.unwrap_or(op.x)];
        let mut out = self.take_output(op.out.buffer, &reads, n_rows);
        let inputs = self.inputs(op.out.buffer);
        let table = self.common.table;
        let gain = self.common.weights.vector(op.gain);
        let parts = Parts::heads(&op.out, 1);
        self.common.split.parts(&mut out, n_rows, &parts, &|row_idx, head_idx, out| {
            let x = inputs.head(&op.x, row_idx, head_idx);
            let mean = table.dot(x, x) / x.len() as f32;
            let factor = 1.0 / (mean + op.epsilon).sqrt();
            for ((out, &x), &gain) in out.iter_mut().zip(x).zip(gain) {
                *out = x * factor * gain;
            }
            if let Some(gate) = &op.gate {
                for (out, &gate) in out.iter_mut().zip(inputs.head(gate, row_idx, head_idx)) {
                    *out *= silu(gate);
                }
            }
        });
        self.buffers.put(op.out.buffer, out);
    }

    pub(super) fn l2_norm(&mut self, op: &L2Norm, n_rows: usize) {
        let mut out = self.take_output(op.x.buffer, &[], n_rows);
        let table = self.common.table;
        let parts = Parts::heads(&op.x, 1);
        self.common.split.parts(&mut out, n_rows, &parts, &|_, _, x| {
            let factor = 1.0 / (table.dot(x, x) + op.epsilon).sqrt();
            for x in x {
                *x = *x * factor * op.factor;
            }
        });
        self.buffers.put(op.x.buffer, out);
    }

    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
    #[expect(clippy::cast_precision_loss, reason = "positions are below 2^24")]
    pub(super) fn rope(&mut self, op: &Rope, batch: &Batch<'_>) {
        let frequencies = self.common.weights.vector(op.frequencies);
        let n_pairs = frequencies.len();
        assert_eq!(op.x.head_dim, 2 * n_pairs, "a rope turns its whole view");
        // Per row: cosines, then sines.
        self.scratch.values.clear();
        for row in batch.rows {
            let position = row.position.0 as f32;
            // The product is rounded to f32, as the models were trained.
            let angles = frequencies.iter().map(|it| f64::from(position * it));
            let cosines = angles.clone().map(|angle| angle.cos() as f32 * op.amplitude);
            let sines = angles.map(|angle| angle.sin() as f32 * op.amplitude);
            self.scratch.values.extend(cosines.chain(sines));
        }
        let turns = &self.scratch.values;
        let mut out = self.buffers.take(op.x.buffer);
        let parts = Parts::heads(&op.x, 1);
        self.common.split.parts(&mut out, batch.rows.len(), &parts, &|row_idx, _, x| {
            let (cosines, sines) = turns[row_idx * 2 * n_pairs..][..2 * n_pairs].split_at(n_pairs);
            for (pair_idx, (&cos, &sin)) in cosines.iter().zip(sines).enumerate() {
                let (a_idx, b_idx) = match op.pairing {
                    Pairing::Halves => (pair_idx, pair_idx + n_pairs),
                    Pairing::Neighbours => (2 * pair_idx, 2 * pair_idx + 1),
                };
                let (a, b) = (x[a_idx], x[b_idx]);
                x[a_idx] = a * cos - b * sin;
                x[b_idx] = a * sin + b * cos;
            }
        });
        self.buffers.put(op.x.buffer, out);
    }

    pub(super) fn swiglu(&mut self, op: &SwiGlu, n_rows: usize) {
        self.two_inputs((&op.gate, &op.up, &op.out), n_rows, EXP_COST, &|gate, up| {
            swiglu(gate, up, op.limit)
        });
    }

    pub(super) fn add(&mut self, op: &Add, n_rows: usize) {
        self.two_inputs((&op.x, &op.y, &op.out), n_rows, 1, &|x, y| x + y);
    }

    /// `out = f(x, y)`, value by value; `cost` is that of one value.
    fn two_inputs(
        &mut self,
        (x, y, out_view): (&Heads, &Heads, &Heads),
        n_rows: usize,
        cost: usize,
        f: &(impl Fn(f32, f32) -> f32 + Sync),
    ) {
        let mut out = self.take_output(out_view.buffer, &[*x, *y], n_rows);
        let inputs = self.inputs(out_view.buffer);
        let compute = |out: &mut [f32], x: &[f32], y: &[f32]| {
            for ((out, &x), &y) in out.iter_mut().zip(x).zip(y) {
                *out = f(x, y);
            }
        };
        let split = &self.common.split;
        if out_view.n_heads == 1 {
            let parts = Parts::columns(out_view, COLS_PER_PART).with_cost(cost * COLS_PER_PART);
            split.parts(&mut out, n_rows, &parts, &|row_idx, part_idx, out| {
                let first = part_idx * COLS_PER_PART;
                let x = &inputs.head(x, row_idx, 0)[first..][..out.len()];
                compute(out, x, &inputs.head(y, row_idx, 0)[first..][..out.len()]);
            });
        } else {
            let parts = Parts::heads(out_view, 1).with_cost(cost * out_view.head_dim);
            split.parts(&mut out, n_rows, &parts, &|row_idx, head_idx, out| {
                compute(out, inputs.head(x, row_idx, head_idx), inputs.head(y, row_idx, head_idx));
            });
        }
        self.buffers.put(out_view.buffer, out);
    }
}
