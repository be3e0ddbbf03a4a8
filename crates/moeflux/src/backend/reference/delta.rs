//! Gated DeltaNet: convolution over time, gates, and the delta rule token by token.
//!
//! **Invariant:** a layer's state is f32 and rounded once per token, so the values do not depend on
//! how a session is cut into steps.

use std::ops::Range;

use super::{ReferenceBackend, dot, rounded, sigmoid, silu, widened};
use crate::backend::host::RecurrentState;
use crate::ids::StateId;
use crate::ops::{Batch, CausalConv, DeltaGates, DeltaShape, GatedDelta, Segment};

impl ReferenceBackend {
    pub(super) fn causal_conv(&mut self, op: &CausalConv, batch: &Batch<'_>) {
        let n_channels = op.x.head_dim;
        let taps = widened(self.weights.vector(op.weight));
        assert_eq!(taps.len(), n_channels * op.n_taps, "taps of every channel");
        let n_values = n_channels * op.n_kept();
        for (segment, part_idx, rows) in parts(batch) {
            let place = (part_idx, segment.marks.len());
            let (before, after) =
                self.states.state_before_and_after(segment.state, op.layer, place);
            let kept = op.kept.first..op.kept.first + n_values;
            after.conv[kept.clone()].copy_from_slice(&before.conv[kept.clone()]);
            for row_idx in rows {
                let newest = self.buffers.head(&op.x, row_idx, 0).to_vec();
                let (_, RecurrentState { conv, .. }) =
                    self.states.state_before_and_after(segment.state, op.layer, place);
                assert_eq!(conv.len(), op.kept.n_of_layer, "inputs kept");
                let conv = &mut conv[kept.clone()];
                // [n_kept + 1, channels], oldest first.
                let inputs: Vec<f32> = conv.iter().chain(&newest).copied().collect();
                conv.copy_from_slice(&inputs[n_channels..]);
                let out: Vec<f64> = (0..n_channels)
                    .map(|channel| {
                        let at = |tap| f64::from(inputs[tap * op.dilation * n_channels + channel]);
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
        for (segment, part_idx, rows) in parts(batch) {
            let place = (part_idx, segment.marks.len());
            let (before, after) =
                self.states.state_before_and_after(segment.state, op.layer, place);
            after.delta.copy_from_slice(&before.delta);
            for row_idx in rows {
                for head_idx in 0..op.v.n_heads {
                    self.delta_head(op, (segment.state, place), (row_idx, head_idx));
                }
            }
        }
    }

    /// Computes one value head of one token, in the state of a part of a step.
    fn delta_head(
        &mut self,
        op: &GatedDelta,
        (state, place): (StateId, (usize, usize)),
        (row_idx, head_idx): (usize, usize),
    ) {
        let key_head_idx = op.order.key_head(head_idx, op.v.n_heads, op.k.n_heads);
        let q = self.head(&op.q, row_idx, key_head_idx);
        let k = self.head(&op.k, row_idx, key_head_idx);
        let v = self.head(&op.v, row_idx, head_idx);
        let decay = self.head(&op.decay, row_idx, 0)[head_idx];
        let beta = self.head(&op.beta, row_idx, 0)[head_idx];
        let (_, RecurrentState { delta: memory, .. }) =
            self.states.state_before_and_after(state, op.layer, place);
        let (key_dim, value_dim) = (k.len(), v.len());
        assert_eq!(memory.len(), op.v.n_heads * value_dim * key_dim, "a state per value head");
        let stored = &mut memory[head_idx * value_dim * key_dim..][..value_dim * key_dim];
        let shape = DeltaShape { key_dim, value_dim };
        let mut out = vec![0.0; value_dim];
        for (value_idx, (out, &v)) in out.iter_mut().zip(&v).enumerate() {
            let at = |key_idx| f64::from(stored[shape.index(value_idx, key_idx)]);
            let mut row: Vec<f64> = (0..key_dim).map(|key_idx| at(key_idx) * decay).collect();
            let delta = (v - dot(&row, &k)) * beta;
            for (s, k) in row.iter_mut().zip(&k) {
                *s += delta * k;
            }
            for (key_idx, &s) in row.iter().enumerate() {
                stored[shape.index(value_idx, key_idx)] = rounded(s);
            }
            *out = dot(&row, &q);
        }
        self.set_head(&op.out, row_idx, head_idx, &out);
    }
}

/// Yields the parts between marks of all segments, each with its index in its segment.
fn parts<'a>(batch: &Batch<'a>) -> impl Iterator<Item = (&'a Segment, usize, Range<usize>)> {
    let of = |segment: &'a Segment| {
        segment.parts().enumerate().map(move |(part_idx, rows)| (segment, part_idx, rows))
    };
    batch.segments.iter().flat_map(of)
}

/// Computes `ln(1 + exp(x))` in a form whose exponential cannot overflow: the same function, not a
/// guard.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::reference::fixture::{Fixture, assert_close, read};
    use crate::ids::LayerIdx;
    use crate::ops::{KeptInputs, LayerState, Op};

    #[test]
    fn a_convolution_starts_with_zeros_and_remembers() {
        let mut fixture = Fixture::default();
        fixture.state.layers = vec![LayerState::Recurrent { conv_values: 4, delta_values: 0 }];
        let x = fixture.input("x", &[&[1.0, 10.0], &[2.0, 20.0]]);
        let out = fixture.workspace.buffer("out", 2);
        let weight = fixture.vector(&[0.25, 0.5, 1.0, 0.0, 1.0, -1.0]);
        let (layer, kept) = (LayerIdx(0), KeptInputs::alone(4));
        let conv = CausalConv { layer, kept, x, weight, n_taps: 3, dilation: 1, out };
        let op = Op::CausalConv(conv);
        let (mut backend, state) = fixture.backend();
        fixture.step(&mut backend, state, op.clone());
        let rows = [read(&mut backend, out, 0), read(&mut backend, out, 1)];
        assert_close(&rows[0], &[silu(1.0), silu(-10.0)]);
        assert_close(&rows[1], &[silu(2.5), silu(-10.0)]);
        fixture.step(&mut backend, state, op);
        let rows = [read(&mut backend, out, 0), read(&mut backend, out, 1)];
        assert_close(&rows[0], &[silu(0.25 + 1.0 + 1.0), silu(10.0)]);
        assert_close(&rows[1], &[silu(0.5 + 0.5 + 2.0), silu(-10.0)]);
    }

    #[test]
    fn a_convolution_may_skip_rows_and_has_a_place_of_its_own() {
        let mut fixture = Fixture::default();
        // Three values of another convolution come first.
        fixture.state.layers = vec![LayerState::Recurrent { conv_values: 5, delta_values: 0 }];
        let x = fixture.input("x", &[&[1.0], &[2.0], &[4.0]]);
        let out = fixture.workspace.buffer("out", 1);
        let weight = fixture.vector(&[0.5, 1.0]);
        let (layer, kept) = (LayerIdx(0), KeptInputs { first: 3, n_of_layer: 5 });
        let conv = CausalConv { layer, kept, x, weight, n_taps: 2, dilation: 2, out };
        let (mut backend, state) = fixture.backend();
        for expected in [[1.0, 2.0, 4.5], [2.0, 4.0, 4.5]] {
            fixture.step(&mut backend, state, Op::CausalConv(conv.clone()));
            for (row_idx, sum) in expected.into_iter().enumerate() {
                assert_close(&read(&mut backend, out, row_idx), &[silu(sum)]);
            }
        }
    }

    #[test]
    fn gates_at_hand_checked_points() {
        let mut fixture = Fixture::default();
        let a = fixture.input("a", &[&[0.0, 99.0, -200.0, 1.0]]);
        let b = fixture.input("b", &[&[0.0, 1000.0, -1000.0, 1.098_612_3]]);
        let decay = fixture.workspace.buffer("decay", 4);
        let beta = fixture.workspace.buffer("beta", 4);
        let a_log = fixture.vector(&[0.0, 0.0, 0.0, std::f32::consts::LN_2]);
        let dt_bias = fixture.vector(&[0.0, 1.0, 0.0, -1.0]);
        let op = Op::DeltaGates(DeltaGates { a, b, a_log, dt_bias, decay, beta });
        // exp(-ln 2); exp(-100); no decay; exp(-2 ln 2).
        assert_close(&fixture.run(op.clone(), decay)[0], &[0.5, 0.0, 1.0, 0.25]);
        assert_close(&fixture.run(op, beta)[0], &[0.5, 1.0, 0.0, 0.75]);
    }

    #[test]
    fn softplus_overflows_nowhere() {
        assert_eq!(rounded_bits(softplus(1e30)), rounded_bits(1e30));
        assert_eq!(rounded_bits(softplus(-1e30)), rounded_bits(0.0));
        assert_eq!(rounded_bits(softplus(0.0)), rounded_bits(std::f64::consts::LN_2));
    }

    fn rounded_bits(value: f64) -> u32 {
        rounded(value).to_bits()
    }

    /// One key head of two channels, two value heads of one channel.
    fn delta_rows(decay: [f32; 3], beta: f32) -> Vec<Vec<f32>> {
        let mut fixture = Fixture::default();
        fixture.state.layers = vec![LayerState::Recurrent { conv_values: 0, delta_values: 4 }];
        let q = fixture.input("q", &[&[1.0, 2.0]; 3]);
        let k = fixture.input("k", &[&[1.0, 0.0], &[0.0, 1.0], &[1.0, 0.0]]);
        let v = fixture.input("v", &[&[8.0, -8.0], &[4.0, 0.0], &[2.0, 2.0]]).split(2);
        let decays = decay.map(|decay| [decay, decay]);
        let decay = fixture.input("decay", &[&decays[0], &decays[1], &decays[2]]);
        let beta = fixture.input("beta", &[&[beta, beta]; 3]);
        let out = fixture.workspace.buffer("out", 2).split(2);
        let op = GatedDelta {
            layer: LayerIdx(0),
            q,
            k,
            v,
            decay,
            beta,
            out,
            order: crate::spec::HeadOrder::Grouped,
        };
        fixture.run(Op::GatedDelta(op), out)
    }

    #[test]
    fn the_delta_rule_replaces_the_value_of_a_key() {
        // Head 0: S = [8, 0], then [4, 0] + 4 k = [4, 4], then [2, 2] + (2 - 2) k.
        // Head 1: S = [-8, 0], then [-4, 0], then [-2, 0] + (2 + 2) k = [2, 0].
        let rows = delta_rows([0.5; 3], 1.0);
        assert_eq!(rows, [[8.0, -8.0], [12.0, -4.0], [6.0, 2.0]]);
        // Half of each difference is applied: [4, 0]; [4, 2]; [4, 2] + (2 - 4) / 2 k = [3, 2].
        let rows = delta_rows([1.0; 3], 0.5);
        assert_eq!(rows, [[4.0, -4.0], [8.0, -4.0], [7.0, -1.0]]);
    }

    #[test]
    fn a_decay_of_exactly_zero_forgets_all() {
        let rows = delta_rows([1.0, 0.0, 0.0], 1.0);
        assert_eq!(rows, [[8.0, -8.0], [8.0, 0.0], [2.0, 2.0]]);
    }
}
