//! Cases of gated DeltaNet: the convolution, the gates, the rule, and all of them in one layer.

use moeflux::provider::ids::LayerIdx;
use moeflux::provider::ops::{
    CausalConv, DeltaGates, Gain, GatedDelta, Heads, KeptInputs, L2Norm, LayerState, MatMul,
    NormGate, Op, RmsNorm,
};
use moeflux::provider::spec::{GateFunction, HeadOrder};
use moeflux_kernels::{FloatKind, MatrixKind};

use super::case::{CaseBuilder, OpCase};
use super::{CaseMaker, ErrorSource};
use crate::random::Rng;

pub(super) const MAKERS: &[CaseMaker] = &[
    CaseMaker {
        op: "causal_conv",
        what: "taps and channels",
        n_cases: 16,
        error_source: ErrorSource::Pointwise,
        make: |seed| causal_conv(CaseBuilder::new(seed)),
    },
    CaseMaker {
        op: "causal_conv",
        what: "many rows",
        n_cases: 3,
        error_source: ErrorSource::Pointwise,
        make: |seed| causal_conv(CaseBuilder::with_sessions(Rng::new(seed), &[40, 1, 12])),
    },
    CaseMaker {
        op: "delta_gates",
        what: "usual values",
        n_cases: 8,
        error_source: ErrorSource::Pointwise,
        make: |seed| delta_gates(seed, 1.0),
    },
    CaseMaker {
        op: "delta_gates",
        what: "values that overflow a plain softplus",
        n_cases: 8,
        error_source: ErrorSource::Pointwise,
        make: |seed| delta_gates(seed, 100.0),
    },
    CaseMaker {
        op: "gated_delta",
        what: "grouped heads",
        n_cases: 20,
        error_source: ErrorSource::Chain,
        make: |seed| gated_delta(CaseBuilder::new(seed), shape, Rng::fraction),
    },
    CaseMaker {
        op: "gated_delta",
        what: "exact-zero decay",
        n_cases: 8,
        error_source: ErrorSource::Chain,
        make: |seed| {
            gated_delta(CaseBuilder::new(seed), shape, |rng| rng.pick(&[0.0, 0.0, 1.0, 0.9]))
        },
    },
    CaseMaker {
        op: "gated_delta",
        what: "a long history that is kept",
        n_cases: 2,
        error_source: ErrorSource::Chain,
        make: |seed| {
            let builder = CaseBuilder::with_sessions(Rng::new(seed), &[260, 70]);
            gated_delta(builder, shape, |rng| 1.0 - rng.fraction() * 0.01)
        },
    },
    CaseMaker {
        op: "gated_delta",
        what: "heads as wide as in models",
        n_cases: 2,
        error_source: ErrorSource::Chain,
        make: |seed| {
            let builder = CaseBuilder::with_sessions(Rng::new(seed), &[21, 1]);
            gated_delta(builder, |rng| (1, rng.between(1, 2), 128, 128), Rng::fraction)
        },
    },
    CaseMaker {
        op: "gated_delta",
        what: "between its convolution and its norm",
        n_cases: 8,
        error_source: ErrorSource::Chain,
        make: |seed| whole_layer(CaseBuilder::new(seed), shape),
    },
    CaseMaker {
        op: "gated_delta",
        what: "between its convolution and its norm, as wide as in models",
        n_cases: 2,
        error_source: ErrorSource::Chain,
        make: |seed| {
            let builder = CaseBuilder::with_sessions(Rng::new(seed), &[12, 2]);
            whole_layer(builder, |rng| (2, 2 * rng.between(1, 2), 128, 128))
        },
    },
    CaseMaker {
        op: "gated_delta",
        what: "after its projections",
        n_cases: 6,
        error_source: ErrorSource::Chain,
        make: |seed| after_projections(CaseBuilder::new(seed), shape),
    },
    CaseMaker {
        op: "gated_delta",
        what: "after its projections, as wide as in models",
        n_cases: 1,
        error_source: ErrorSource::Chain,
        make: |seed| {
            let builder = CaseBuilder::with_sessions(Rng::new(seed), &[7, 2]);
            after_projections(builder, |_| (2, 4, 128, 128))
        },
    },
];

fn causal_conv(mut builder: CaseBuilder) -> OpCase {
    let (n_channels, n_taps) = (builder.rng.between(1, 70), builder.rng.between(2, 5));
    let dilation = builder.rng.pick(&[1, 1, 2, 3]);
    let n_values = (n_taps - 1) * dilation * n_channels;
    // Values of other convolutions, before and after.
    let [first, n_after] = [0, 1].map(|_| builder.rng.pick(&[0, 0, 5]));
    let kept = KeptInputs { first, n_of_layer: first + n_values + n_after };
    let state = LayerState::Recurrent { conv_values: kept.n_of_layer, delta_values: 3 };
    let layer = builder.layer(state);
    let x = builder.heads("x", (1, n_channels));
    let weight = builder.normal_vector(n_channels * n_taps, 0.0);
    let out = builder.output("out", n_channels);
    let conv = CausalConv { layer, kept, x, weight, n_taps, dilation, out };
    builder.finish(vec![Op::CausalConv(conv)])
}

fn delta_gates(seed: u64, factor: f32) -> OpCase {
    let mut builder = CaseBuilder::new(seed);
    let n_heads = builder.rng.between(1, 40);
    let a = builder.input_of("a", n_heads, |rng| rng.normal() * factor);
    let b = builder.input_of("b", n_heads, |rng| rng.normal() * factor);
    let a_log: Vec<f32> = (0..n_heads).map(|_| (builder.rng.fraction() * 4.0).ln()).collect();
    let a_log = builder.vector(a_log);
    let dt_bias = builder.normal_vector(n_heads, 0.0);
    let decay = builder.output("decay", n_heads);
    let beta = builder.output("beta", n_heads);
    builder.finish(vec![Op::DeltaGates(DeltaGates { a, b, a_log, dt_bias, decay, beta })])
}

/// Makes key heads, value heads, key dimension, value dimension.
type DeltaShapeFn = fn(&mut Rng) -> (usize, usize, usize, usize);

fn shape(rng: &mut Rng) -> (usize, usize, usize, usize) {
    let n_key_heads = rng.between(1, 3);
    (n_key_heads, n_key_heads * rng.between(1, 4), rng.between(1, 40), rng.between(1, 40))
}

const ORDERS: [HeadOrder; 2] = [HeadOrder::Grouped, HeadOrder::Tiled];

fn normed(x: Heads) -> Op {
    // Keys longer than 1 would make the state grow without bound.
    Op::L2Norm(L2Norm { x, epsilon: 1e-6, factor: 1.0 })
}

fn gated_delta(
    mut builder: CaseBuilder,
    shape: DeltaShapeFn,
    decay: fn(&mut Rng) -> f32,
) -> OpCase {
    let (n_key_heads, n_heads, key_dim, value_dim) = shape(&mut builder.rng);
    let delta_values = n_heads * value_dim * key_dim;
    let layer = builder.layer(LayerState::Recurrent { conv_values: 0, delta_values });
    let q = builder.heads("q", (n_key_heads, key_dim));
    let k = builder.heads("k", (n_key_heads, key_dim));
    let v = builder.heads("v", (n_heads, value_dim));
    let decay = builder.input_of("decay", n_heads, decay);
    let beta = builder.input_of("beta", n_heads, Rng::fraction);
    let out = builder.output_heads("out", (n_heads, value_dim));
    let order = builder.rng.pick(&ORDERS);
    let op = Op::GatedDelta(GatedDelta { layer, q, k, v, decay, beta, out, order });
    builder.finish(vec![normed(k), op])
}

/// A layer from its normed inputs on: convolution and projections of one input.
fn after_projections(mut builder: CaseBuilder, shape: DeltaShapeFn) -> OpCase {
    let (n_key_heads, n_heads, key_dim, value_dim) = shape(&mut builder.rng);
    let [key_cols, value_cols] = [n_key_heads * key_dim, n_heads * value_dim];
    let conv_cols = 2 * key_cols + value_cols;
    let hidden = builder.rng.pick(&[20, 64, 96]);
    let x = builder.input("x", hidden);
    let normed = builder.input("normed", hidden);
    let gain = Gain::Shared(builder.normal_vector(hidden, 1.0));
    let norm = RmsNorm { x, gain, gate: None, out: normed, epsilon: 1e-6 };
    let mut ops = vec![Op::RmsNorm(norm)];
    let parts = [("qkv", conv_cols), ("z", value_cols), ("b", n_heads), ("a", n_heads)];
    let [qkv, z, b, a] = parts.map(|(name, n_cols)| {
        let weight = builder.matrix(MatrixKind::Float(FloatKind::F32), n_cols, hidden);
        let out = builder.output(name, n_cols);
        ops.push(Op::MatMul(MatMul { weight, bias: None, x: normed, out }));
        out
    });
    ops.extend(layer_of(&mut builder, (n_key_heads, n_heads, key_dim, value_dim), [qkv, z, b, a]));
    builder.finish(ops)
}

fn whole_layer(mut builder: CaseBuilder, shape: DeltaShapeFn) -> OpCase {
    let (n_key_heads, n_heads, key_dim, value_dim) = shape(&mut builder.rng);
    let value_cols = n_heads * value_dim;
    let x = builder.input("x", 2 * n_key_heads * key_dim + value_cols);
    let [a, b] = ["a", "b"].map(|name| builder.input(name, n_heads));
    let gate = builder.input("z", value_cols);
    let shape = (n_key_heads, n_heads, key_dim, value_dim);
    let ops = layer_of(&mut builder, shape, [x, gate, b, a]);
    builder.finish(ops)
}

/// The ops of a layer after its projections: the input of the convolution, then the gates.
fn layer_of(
    builder: &mut CaseBuilder,
    (n_key_heads, n_heads, key_dim, value_dim): (usize, usize, usize, usize),
    [x, gate, b, a]: [Heads; 4],
) -> Vec<Op> {
    let [key_cols, value_cols] = [n_key_heads * key_dim, n_heads * value_dim];
    let (n_taps, conv_cols) = (4, 2 * key_cols + value_cols);
    let kept = KeptInputs::alone((n_taps - 1) * conv_cols);
    let state =
        LayerState::Recurrent { conv_values: kept.n_of_layer, delta_values: value_cols * key_dim };
    let layer: LayerIdx = builder.layer(state);
    let weight = builder.normal_vector(conv_cols * n_taps, 0.0);
    let qkv = builder.input("mixed", conv_cols);
    let [a_log, dt_bias] = [0.0, 0.0].map(|mean| builder.normal_vector(n_heads, mean));
    let [decay, beta] = ["decay", "beta"].map(|name| builder.input(name, n_heads));
    let q = qkv.narrow(0, key_cols).split(n_key_heads);
    let k = qkv.narrow(key_cols, key_cols).split(n_key_heads);
    let v = qkv.narrow(2 * key_cols, value_cols).split(n_heads);
    let out = builder.output_heads("out", (n_heads, value_dim));
    let function = builder.rng.pick(&[GateFunction::Silu, GateFunction::Sigmoid]);
    let gate = Some(NormGate { x: gate.split(n_heads), function });
    let gain = Gain::Shared(builder.normal_vector(value_dim, 1.0));
    let factor = builder.rng.pick(&[1.0, 0.25]);
    let order = builder.rng.pick(&ORDERS);
    vec![
        Op::CausalConv(CausalConv { layer, kept, x, weight, n_taps, dilation: 1, out: qkv }),
        Op::L2Norm(L2Norm { x: q, epsilon: 1e-6, factor }),
        normed(k),
        Op::DeltaGates(DeltaGates { a, b, a_log, dt_bias, decay, beta }),
        Op::GatedDelta(GatedDelta { layer, q, k, v, decay, beta, out, order }),
        // With a small epsilon the norm would magnify the error of an output near zero.
        Op::RmsNorm(RmsNorm { x: out, gain, gate, out, epsilon: 0.1 }),
    ]
}
