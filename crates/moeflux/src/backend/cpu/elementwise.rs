//! Norms, rope, gates and sums: ops whose outputs each depend on few values.
//!
//! **Invariant:** sin and cos are those of the `libm` crate, in f64 and rounded once, so results do
//! not depend on a platform's library. Everything else is computed by the kernels.

use moeflux_kernels::{RopePairs, RowOp};

use crate::backend::cpu::split::RowParts;
use crate::backend::cpu::{Common, InPlaceSource, PlanExecutor};
use crate::backend::host::Buffer;
use crate::ids::Position;
use crate::ops::{Add, Batch, Heads, L2Norm, LayerNorm, RmsNorm, Rope, Row, SelectRows, SwiGlu};
use crate::spec::{GateFunction, Pairing};

/// Minimum columns of a plain row per task.
pub(super) const COLS_PER_PART: usize = 512;

/// Minimum values of adjacent heads per call, if there are enough.
const VALUES_PER_PART: usize = 2048;

/// Cost of an exponential, in values read.
pub(super) const EXP_COST: usize = 4;

/// Cost of norms and rotations, in values read.
const NORM_COST: usize = 2;

impl PlanExecutor {
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

    pub(super) fn rms_norm(&mut self, op: &RmsNorm, n_rows: usize) {
        let mut out = self.take_in_place((&op.x, &op.out), &[op.gate.map(|it| it.x)], n_rows);
        let inputs = self.inputs(op.out.buffer);
        let source = InPlaceSource::new(inputs, &op.x, &op.out);
        let table = self.common.table;
        let gains = self.common.weights.vector(op.gain.vector());
        let cost = if op.gate.is_some() { NORM_COST + EXP_COST } else { NORM_COST };
        let heads = HeadsOf { view: &op.out, n_rows, cost };
        self.common.each_head(&mut out, heads, &|row_idx, head_idx, out| {
            source.copy_into((row_idx, head_idx, 0), out);
            let gain = &gains[op.gain.first_of(head_idx, out.len())..][..out.len()];
            table.apply(&RowOp::RmsNorm { gain, epsilon: op.epsilon }, out);
            if let Some(gate) = &op.gate {
                let values = inputs.head(&gate.x, row_idx, head_idx);
                let gate = match gate.function {
                    GateFunction::Silu => RowOp::MulSilu { gate: values },
                    GateFunction::Sigmoid => RowOp::MulSigmoid { gate: values },
                };
                table.apply(&gate, out);
            }
        });
        self.buffers.put(op.out.buffer, out);
    }

    pub(super) fn layer_norm(&mut self, op: &LayerNorm, n_rows: usize) {
        let mut out = self.take_in_place((&op.x, &op.out), &[], n_rows);
        let inputs = self.inputs(op.out.buffer);
        let source = InPlaceSource::new(inputs, &op.x, &op.out);
        let table = self.common.table;
        let bias = self.common.weights.vector(op.bias);
        let norm =
            RowOp::RmsNorm { gain: self.common.weights.vector(op.gain), epsilon: op.epsilon };
        let heads = HeadsOf { view: &op.out, n_rows, cost: 2 * NORM_COST };
        self.common.each_head(&mut out, heads, &|row_idx, head_idx, out| {
            source.copy_into((row_idx, head_idx, 0), out);
            let mean = mean_of(out);
            out.iter_mut().for_each(|value| *value -= mean);
            table.apply(&norm, out);
            table.axpy(1.0, bias, out);
        });
        self.buffers.put(op.out.buffer, out);
    }

    pub(super) fn l2_norm(&mut self, op: &L2Norm, n_rows: usize) {
        let mut out = self.buffers.take(op.x.buffer);
        let table = self.common.table;
        let norm = RowOp::L2Norm { epsilon: op.epsilon, factor: op.factor };
        let heads = HeadsOf { view: &op.x, n_rows, cost: NORM_COST };
        self.common.each_head(&mut out, heads, &|_, _, x| table.apply(&norm, x));
        self.buffers.put(op.x.buffer, out);
    }

    pub(super) fn rope(&mut self, op: &Rope, batch: &Batch<'_>) {
        let Self { common, buffers, scratch, .. } = self;
        let frequencies = common.weights.vector(op.frequencies);
        let n_pairs = frequencies.len();
        assert_eq!(op.x.head_dim, 2 * n_pairs, "a rope turns its whole view");
        let rotations =
            RotationTable::of(&mut scratch.rotations, (frequencies, op.amplitude, op.block), batch);
        let pairs = match op.pairing {
            Pairing::Halves => RopePairs::Halves,
            Pairing::Neighbours => RopePairs::Neighbours,
        };
        let mut out = buffers.take(op.x.buffer);
        let table = common.table;
        let heads = HeadsOf { view: &op.x, n_rows: batch.rows.len(), cost: NORM_COST };
        common.each_head(&mut out, heads, &|row_idx, _, x| {
            let (cosines, sines) =
                rotations[row_idx * 2 * n_pairs..][..2 * n_pairs].split_at(n_pairs);
            table.apply(&RowOp::Rope { pairs, cosines, sines }, x);
        });
        buffers.put(op.x.buffer, out);
    }

    pub(super) fn swiglu(&mut self, op: &SwiGlu, n_rows: usize) {
        let table = self.common.table;
        let views = (&op.gate, &op.up, &op.out);
        self.two_inputs(views, n_rows, EXP_COST, &|gate, up| {
            table.apply(&RowOp::SwiGlu { up, limit: op.limit }, gate);
        });
    }

    pub(super) fn add(&mut self, op: &Add, n_rows: usize) {
        let table = self.common.table;
        let views = (&op.x, &op.y, &op.out);
        // With a factor of 1 this is plain addition, bit for bit.
        self.two_inputs(views, n_rows, 1, &|x, y| table.axpy(1.0, y, x));
    }

    /// Computes `out = f(x, y)` with an `f` that works in place of `x`; `cost` is per value.
    fn two_inputs(
        &mut self,
        (x, y, out_view): (&Heads, &Heads, &Heads),
        n_rows: usize,
        cost: usize,
        f: &(impl Fn(&mut [f32], &[f32]) + Sync),
    ) {
        let mut out = self.take_in_place((x, out_view), &[Some(*y)], n_rows);
        let inputs = self.inputs(out_view.buffer);
        let source = InPlaceSource::new(inputs, x, out_view);
        if out_view.n_heads == 1 {
            let parts = RowParts::columns(out_view, COLS_PER_PART).with_cost(cost * COLS_PER_PART);
            self.common.split.parts(&mut out, n_rows, &parts, &|row_idx, part_idx, out| {
                let first_col = part_idx * COLS_PER_PART;
                source.copy_into((row_idx, 0, first_col), out);
                let y = &inputs.head(y, row_idx, 0)[first_col..][..out.len()];
                f(out, y);
            });
        } else {
            let heads = HeadsOf { view: out_view, n_rows, cost };
            self.common.each_head(&mut out, heads, &|row_idx, head_idx, out| {
                source.copy_into((row_idx, head_idx, 0), out);
                f(out, inputs.head(y, row_idx, head_idx));
            });
        }
        self.buffers.put(out_view.buffer, out);
    }
}

/// Returns the mean, summed in f64 in ascending order and rounded once.
#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
fn mean_of(values: &[f32]) -> f32 {
    let sum: f64 = values.iter().map(|value| f64::from(*value)).sum();
    (sum / values.len() as f64) as f32
}

/// The heads that an op computes.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadsOf<'a> {
    pub(super) view: &'a Heads,
    pub(super) n_rows: usize,
    /// Cost per value.
    pub(super) cost: usize,
}

impl Common {
    /// Calls `f(row, head, values)` for every head; small heads are batched.
    pub(super) fn each_head(
        &self,
        buffer: &mut Buffer,
        HeadsOf { view, n_rows, cost }: HeadsOf<'_>,
        f: &(impl Fn(usize, usize, &mut [f32]) + Sync),
    ) {
        let stride = view.stride.max(view.head_dim);
        let n_per_part = (VALUES_PER_PART / stride).clamp(1, view.n_heads);
        let parts = RowParts::heads(view, n_per_part).with_cost(cost * view.head_dim * n_per_part);
        self.split.parts(buffer, n_rows, &parts, &|row_idx, part_idx, values| {
            for (i, head) in values.chunks_mut(stride).enumerate() {
                f(row_idx, part_idx * n_per_part + i, &mut head[..view.head_dim]);
            }
        });
    }
}

/// A table of cosines and sines of one rope for the rows of a step. Layers share them.
#[derive(Debug, Default)]
pub(super) struct RotationTable {
    frequencies: Vec<f32>,
    amplitude: f32,
    block: usize,
    positions: Vec<Position>,
    /// Per row: cosines, then sines.
    values: Vec<f32>,
}

impl RotationTable {
    /// Returns the table of a rope, computed anew if the positions changed since last time.
    fn of<'a>(
        known: &'a mut Vec<Self>,
        (frequencies, amplitude, block): (&[f32], f32, usize),
        batch: &Batch<'_>,
    ) -> &'a [f32] {
        let is_match = |rotations: &Self| {
            rotations.amplitude.to_bits() == amplitude.to_bits()
                && rotations.block == block
                && rotations.frequencies == frequencies
        };
        let idx = known.iter().position(is_match).unwrap_or_else(|| {
            let frequencies = frequencies.to_vec();
            known.push(Self { frequencies, amplitude, block, ..Self::default() });
            known.len() - 1
        });
        let rotations = &mut known[idx];
        if !rotations.positions.iter().eq(batch.rows.iter().map(|row| &row.position)) {
            rotations.compute(batch.rows);
        }
        &rotations.values
    }

    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
    #[expect(clippy::cast_precision_loss, reason = "positions are below 2^24")]
    fn compute(&mut self, rows: &[Row]) {
        self.positions.clear();
        self.positions.extend(rows.iter().map(|row| row.position));
        self.values.clear();
        for row in rows {
            let position = (row.position.0 - row.position.0 % self.block) as f32;
            // The product is rounded to f32, as in training.
            let first = self.values.len();
            let n_pairs = self.frequencies.len();
            self.values.resize(first + 2 * n_pairs, 0.0);
            let (cosines, sines) = self.values[first..].split_at_mut(n_pairs);
            for ((frequency, cosine), sine) in self.frequencies.iter().zip(cosines).zip(sines) {
                let (sin, cos) = libm::sincos(f64::from(position * frequency));
                *cosine = cos as f32 * self.amplitude;
                *sine = sin as f32 * self.amplitude;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TokenId;
    use crate::spec::{Pairing, RopeScaling, RopeSpec};

    /// Adds a value to an FNV-1a hash of the bits.
    fn add(hash: u64, value: f32) -> u64 {
        value
            .to_bits()
            .to_le_bytes()
            .iter()
            .fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    #[test]
    fn a_million_turns_have_the_recorded_sum() {
        let mut hash = 0xcbf2_9ce4_8422_2325;
        let mut n_values = 0;
        for theta in [1e4, 150_000.0, 1e6, 1e7] {
            let (pairing, scaling) = (Pairing::Halves, RopeScaling::None);
            let rope = RopeSpec { theta, n_rotated: 128, pairing, scaling };
            let mut rotations = RotationTable {
                frequencies: rope.frequencies(),
                amplitude: 1.0,
                block: 1,
                ..RotationTable::default()
            };
            let row = |idx: usize| Row { token: TokenId(0), position: Position(idx * 127) };
            rotations.compute(&(0..2048).map(row).collect::<Vec<_>>());
            n_values += rotations.values.len();
            hash = rotations.values.iter().fold(hash, |hash, &value| add(hash, value));
        }
        assert_eq!((n_values, hash), (1 << 20, 0x4732_677d_fd5c_0268), "{hash:#x}");
    }
}
