//! Ops that process each row independently: selection, norms, rope, activations, sums.
//!
//! **Invariant:** a head is read whole before it is written, so outputs may be inputs.

use super::{ReferenceBackend, dot, sigmoid, silu, widened};
use crate::ops::{Add, Batch, L2Norm, LayerNorm, RmsNorm, Rope, SelectRows, SwiGlu};
use crate::spec::{GateFunction, Pairing};

/// Factor inside gpt_oss's sigmoid.
const LIMITED_SIGMOID_FACTOR: f64 = 1.702;

impl ReferenceBackend {
    pub(super) fn select_rows(&mut self, op: &SelectRows, batch: &Batch<'_>) {
        for (output_idx, &row_idx) in batch.outputs.iter().enumerate() {
            let values = self.head(&op.x, row_idx, 0);
            self.set_head(&op.out, output_idx, 0, &values);
        }
    }

    pub(super) fn rms_norm(&mut self, op: &RmsNorm, n_rows: usize) {
        let gains = widened(self.weights.vector(op.gain.vector()));
        for row_idx in 0..n_rows {
            for head_idx in 0..op.x.n_heads {
                let x = self.head(&op.x, row_idx, head_idx);
                let mean_square = dot(&x, &x) / x.len() as f64;
                let root = (mean_square + f64::from(op.epsilon)).sqrt();
                let gain = &gains[op.gain.first_of(head_idx, x.len())..][..x.len()];
                let factors = match &op.gate {
                    None => vec![1.0; x.len()],
                    Some(gate) => {
                        let function = match gate.function {
                            GateFunction::Silu => silu,
                            GateFunction::Sigmoid => sigmoid,
                        };
                        self.head(&gate.x, row_idx, head_idx).into_iter().map(function).collect()
                    }
                };
                let normed = x.iter().zip(gain).map(|(x, gain)| x / root * gain);
                let out: Vec<f64> = normed.zip(&factors).map(|(x, factor)| x * factor).collect();
                self.set_head(&op.out, row_idx, head_idx, &out);
            }
        }
    }

    pub(super) fn layer_norm(&mut self, op: &LayerNorm, n_rows: usize) {
        let gain = widened(self.weights.vector(op.gain));
        let bias = widened(self.weights.vector(op.bias));
        for row_idx in 0..n_rows {
            for head_idx in 0..op.x.n_heads {
                let x = self.head(&op.x, row_idx, head_idx);
                let mean = x.iter().sum::<f64>() / x.len() as f64;
                let x: Vec<f64> = x.iter().map(|x| x - mean).collect();
                let root = (dot(&x, &x) / x.len() as f64 + f64::from(op.epsilon)).sqrt();
                let normed = x.iter().zip(&gain).map(|(x, gain)| x / root * gain);
                let out: Vec<f64> = normed.zip(&bias).map(|(x, bias)| x + bias).collect();
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
                    // In transformers the product is f32: at position 100,000 its rounding changes
                    // the angle by up to 0.004, and that is part of the model.
                    let position = row.position.0 - row.position.0 % op.block;
                    let angle = f64::from(position as f32 * frequency);
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

/// Returns `silu(gate) * up`, or gpt_oss's form under a limit.
pub(super) fn swiglu(gate: &[f64], up: &[f64], limit: Option<f32>) -> Vec<f64> {
    assert_eq!(gate.len(), up.len(), "a gate per value");
    let pairs = gate.iter().zip(up);
    match limit.map(f64::from) {
        None => pairs.map(|(&gate, &up)| silu(gate) * up).collect(),
        Some(limit) => pairs
            .map(|(&gate, &up)| {
                // Comparisons propagate NaN; `min` would not.
                let gate = if gate > limit { limit } else { gate };
                let up = up.clamp(-limit, limit);
                gate * sigmoid(LIMITED_SIGMOID_FACTOR * gate) * (up + 1.0)
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::reference::fixture::{Fixture, assert_close};
    use crate::ops::{Gain, NormGate, Op};

    #[test]
    fn rms_norm_per_head_with_gate() {
        let mut fixture = Fixture::default();
        let x = fixture.input("x", &[&[1.0, 7.0, 30.0, 40.0]]).split(2);
        let gate = fixture.input("gate", &[&[0.0, 1.0, -1.0, 2.0]]).split(2);
        let gain = Gain::Shared(fixture.vector(&[1.0, 2.0]));
        // Mean squares 25 and 1250: roots 5 and 35.355.
        let plain = RmsNorm { x, gain, gate: None, out: x, epsilon: 0.0 };
        let rows = fixture.run(Op::RmsNorm(plain.clone()), x);
        assert_close(&rows[0], &[0.2, 2.8, 0.848_528, 2.262_742]);
        // silu: 0, 0.731059, -0.268941, 1.761594.
        let silu = Some(NormGate { x: gate, function: GateFunction::Silu });
        let rows = fixture.run(Op::RmsNorm(RmsNorm { gate: silu, ..plain }), x);
        assert_close(&rows[0], &[0.0, 2.046_964, -0.228_204, 3.986_033]);
        // sigmoid: 0.5, 0.731059, 0.268941, 0.880797.
        let sigmoid = Some(NormGate { x: gate, function: GateFunction::Sigmoid });
        let rows = fixture.run(Op::RmsNorm(RmsNorm { gate: sigmoid, ..plain }), x);
        assert_close(&rows[0], &[0.1, 2.046_964, 0.228_204, 1.993_016]);
        let gain = Gain::PerHead(fixture.vector(&[1.0, 2.0, 10.0, 100.0]));
        let rows = fixture.run(Op::RmsNorm(RmsNorm { gain, ..plain }), x);
        assert_close(&rows[0], &[0.2, 2.8, 8.485_281, 113.137_085]);
        // Epsilon stands inside the root: 25 + 11 = 36.
        let rows = fixture.run(Op::RmsNorm(RmsNorm { epsilon: 11.0, ..plain }), x);
        assert_close(&rows[0][..2], &[1.0 / 6.0, 14.0 / 6.0]);
    }

    #[test]
    fn layer_norm_subtracts_the_mean_and_adds_a_bias() {
        let mut fixture = Fixture::default();
        let x = fixture.input("x", &[&[1.0, 7.0, 40.0, 30.0]]).split(2);
        let gain = fixture.vector(&[1.0, 2.0]);
        let bias = fixture.vector(&[0.5, -1.0]);
        // Means 4 and 35, deviations 3 and 5; epsilon stands inside the root: 9 + 7 and 25 + 7.
        let norm = LayerNorm { x, gain, bias, out: x, epsilon: 0.0 };
        let rows = fixture.run(Op::LayerNorm(norm.clone()), x);
        assert_close(&rows[0], &[-0.5, 1.0, 1.5, -3.0]);
        let rows = fixture.run(Op::LayerNorm(LayerNorm { epsilon: 7.0, ..norm }), x);
        assert_close(&rows[0][..2], &[-0.25, 0.5]);
    }

    #[test]
    fn l2_norm_adds_epsilon_to_the_sum() {
        let mut fixture = Fixture::default();
        let x = fixture.input("x", &[&[3.0, 4.0, 0.0, 0.0]]).split(2);
        let rows = fixture.run(Op::L2Norm(L2Norm { x, epsilon: 11.0, factor: 0.5 }), x);
        assert_close(&rows[0], &[0.25, 1.0 / 3.0, 0.0, 0.0]);
    }

    #[test]
    fn rope_turns_halves_and_neighbours() {
        let mut fixture = Fixture::at(1);
        let x = fixture.input("x", &[&[1.0, 2.0, 3.0, 4.0]; 2]);
        // Position 1: pair 0 rotates by a quarter turn, pair 1 not at all; position 2: half a turn.
        let frequencies = fixture.vector(&[std::f32::consts::FRAC_PI_2, 0.0]);
        let halves = Rope { x, frequencies, pairing: Pairing::Halves, amplitude: 1.0, block: 1 };
        let rows = fixture.run(Op::Rope(halves.clone()), x);
        assert_close(&rows[0], &[-3.0, 2.0, 1.0, 4.0]);
        assert_close(&rows[1], &[-1.0, 2.0, -3.0, 4.0]);
        // In blocks of two positions, row 0 is turned as at position 0.
        let in_blocks = Rope { block: 2, ..halves };
        let rows = fixture.run(Op::Rope(in_blocks), x);
        assert_close(&rows[0], &[1.0, 2.0, 3.0, 4.0]);
        assert_close(&rows[1], &[-1.0, 2.0, -3.0, 4.0]);
        let neighbours = Rope { pairing: Pairing::Neighbours, amplitude: 2.0, ..halves };
        let rows = fixture.run(Op::Rope(neighbours), x);
        assert_close(&rows[0], &[-4.0, 2.0, 6.0, 8.0]);
    }

    #[test]
    fn rope_leaves_channels_outside_its_view() {
        let mut fixture = Fixture::at(1);
        let x = fixture.input("x", &[&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]);
        let frequencies = fixture.vector(&[std::f32::consts::PI]);
        let turned = x.split(2).narrow(1, 2);
        let pairing = Pairing::Halves;
        let op = Rope { x: turned, frequencies, pairing, amplitude: 1.0, block: 1 };
        let rows = fixture.run(Op::Rope(op), x);
        assert_close(&rows[0], &[1.0, -2.0, -3.0, 4.0, -5.0, -6.0]);
    }

    #[test]
    fn the_angle_of_a_rope_is_f32() {
        let frequency = 0.1_f32;
        let position = 1_000_003;
        let mut fixture = Fixture::at(position);
        let x = fixture.input("x", &[&[1.0, 0.0]]);
        let frequencies = fixture.vector(&[frequency]);
        let op = Rope { x, frequencies, pairing: Pairing::Halves, amplitude: 1.0, block: 1 };
        let rows = fixture.run(Op::Rope(op), x);
        // 100000.3015 in exact arithmetic; the nearest f32 is 100000.3046875.
        let angle = 100_000.304_687_5_f64;
        assert_close(&rows[0], &[angle.cos(), angle.sin()]);
    }

    #[test]
    fn swiglu_with_and_without_limit() {
        let close = |values: Vec<f64>, expected: &[f64]| {
            let values: Vec<f32> = values.into_iter().map(super::super::rounded).collect();
            assert_close(&values, expected);
        };
        close(swiglu(&[0.0, 1.0, -1.0], &[5.0, 2.0, 2.0], None), &[0.0, 1.462_117, -0.537_883]);
        // Gate is clamped from above only: 7 and -9 stay, 8 becomes 7. Up is clamped on both sides.
        let limited = swiglu(&[8.0, -9.0, 0.0], &[8.0, -8.0, 1.0], Some(7.0));
        let low = -9.0 / (1.0 + (1.702_f64 * 9.0).exp()) * -6.0;
        close(limited, &[56.0 / (1.0 + (-1.702_f64 * 7.0).exp()), low, 0.0]);
    }

    #[test]
    fn sums_may_be_written_over_a_term() {
        let mut fixture = Fixture::default();
        let x = fixture.input("x", &[&[1.0, 2.0]]);
        let y = fixture.input("y", &[&[10.0, 0.5]]);
        assert_eq!(fixture.run(Op::Add(Add { x, y, out: y }), y), [[11.0, 2.5]]);
    }
}
