//! Cases of norms, rope, activations and sums, in place and not.

use moeflux::provider::ops::{
    Add, Gain, Heads, L2Norm, LayerNorm, NormGate, Op, RmsNorm, Rope, SelectRows, SwiGlu, TopK,
};
use moeflux::provider::spec::{GateFunction, Pairing};

use super::case::{CaseBuilder, OpCase};
use super::{CaseMaker, ErrorSource};
use crate::random::Rng;

pub(super) const MAKERS: &[CaseMaker] = &[
    CaseMaker {
        op: "best",
        what: "few columns and many",
        n_cases: 12,
        error_source: ErrorSource::Copy,
        make: |seed| best(seed, Rng::normal),
    },
    CaseMaker {
        op: "best",
        what: "equals, and zeros of both signs",
        n_cases: 12,
        error_source: ErrorSource::Copy,
        make: |seed| best(seed, |rng| rng.pick(&[0.0, -0.0, 1.5, -1.5, f32::MIN])),
    },
    CaseMaker {
        op: "rms_norm",
        what: "heads, gates, in place or not",
        n_cases: 24,
        error_source: ErrorSource::Pointwise,
        make: rms_norm,
    },
    CaseMaker {
        op: "rms_norm",
        what: "dimension above 4096",
        n_cases: 2,
        error_source: ErrorSource::Pointwise,
        make: |seed| norm_of(CaseBuilder::with_sessions(Rng::new(seed), &[2]), (1, 7168)),
    },
    CaseMaker {
        op: "layer_norm",
        what: "heads, in place or not",
        n_cases: 16,
        error_source: ErrorSource::Pointwise,
        make: layer_norm,
    },
    CaseMaker {
        op: "l2_norm",
        what: "heads",
        n_cases: 8,
        error_source: ErrorSource::Pointwise,
        make: l2_norm,
    },
    CaseMaker {
        op: "rope",
        what: "pairings, partial heads, stretched",
        n_cases: 16,
        error_source: ErrorSource::Pointwise,
        make: |seed| rope(seed, 0),
    },
    CaseMaker {
        op: "rope",
        what: "far positions",
        n_cases: 8,
        error_source: ErrorSource::Pointwise,
        make: |seed| rope(seed, 250_000),
    },
    CaseMaker {
        op: "rope",
        what: "a million positions",
        n_cases: 4,
        error_source: ErrorSource::Pointwise,
        make: |seed| rope(seed, 1_000_003),
    },
    CaseMaker {
        op: "swiglu",
        what: "with and without limit, in place or not",
        n_cases: 18,
        error_source: ErrorSource::Pointwise,
        make: swiglu,
    },
    CaseMaker {
        op: "add",
        what: "in place or not",
        n_cases: 9,
        error_source: ErrorSource::Copy,
        make: add,
    },
];

fn best(seed: u64, value: fn(&mut Rng) -> f32) -> OpCase {
    let mut builder = CaseBuilder::with_sessions(Rng::new(seed), &[3, 20]);
    let (n_cols, n_best) =
        builder.rng.pick(&[(1, 1), (50, 50), (1024, 64), (1025, 64), (5000, 7), (20_001, 64)]);
    let x = builder.input_of("x", n_cols, value);
    let selected = builder.workspace.output_buffer("selected", n_cols);
    let out = builder.tail_output("best", 2 * n_best);
    builder.finish_tail(vec![
        Op::SelectRows(SelectRows { x, out: selected }),
        Op::TopK(TopK { x: selected, out }),
    ])
}

fn shape(rng: &mut Rng) -> (usize, usize) {
    (rng.between(1, 5), rng.between(1, 140))
}

/// A new output, or one of the inputs.
fn output(builder: &mut CaseBuilder, inputs: &[Heads]) -> Heads {
    let place = builder.rng.below(inputs.len() + 1);
    match inputs.get(place) {
        Some(&input) => builder.compare(input),
        None => builder.output_heads("out", (inputs[0].n_heads, inputs[0].head_dim)),
    }
}

fn rms_norm(seed: u64) -> OpCase {
    let mut builder = CaseBuilder::new(seed);
    let shape = shape(&mut builder.rng);
    norm_of(builder, shape)
}

fn norm_of(mut builder: CaseBuilder, shape: (usize, usize)) -> OpCase {
    let x = builder.heads("x", shape);
    let function = builder.rng.pick(&[GateFunction::Silu, GateFunction::Sigmoid]);
    let gate = builder.rng.coin().then(|| builder.heads("gate", shape));
    let gate = gate.map(|x| NormGate { x, function });
    let gain = match builder.rng.coin() {
        true => Gain::Shared(builder.normal_vector(shape.1, 1.0)),
        false => Gain::PerHead(builder.normal_vector(shape.0 * shape.1, 1.0)),
    };
    let out = output(&mut builder, &[x]);
    let epsilon = builder.rng.pick(&[1e-6, 1e-5, 0.1]);
    builder.finish(vec![Op::RmsNorm(RmsNorm { x, gain, gate, out, epsilon })])
}

fn layer_norm(seed: u64) -> OpCase {
    let mut builder = CaseBuilder::new(seed);
    let shape = shape(&mut builder.rng);
    // With a column or two, or a small epsilon, the deviations may be tiny: their rounding errors
    // would be magnified.
    let shape = (shape.0, shape.1 + 8);
    let x = builder.heads("x", shape);
    let gain = builder.normal_vector(shape.1, 1.0);
    let bias = builder.normal_vector(shape.1, 0.0);
    let out = output(&mut builder, &[x]);
    let epsilon = builder.rng.pick(&[1e-6, 1e-5, 0.1]);
    builder.finish(vec![Op::LayerNorm(LayerNorm { x, gain, bias, out, epsilon })])
}

fn l2_norm(seed: u64) -> OpCase {
    let mut builder = CaseBuilder::new(seed);
    let shape = shape(&mut builder.rng);
    let x = builder.output_heads("x", shape);
    let epsilon = builder.rng.pick(&[1e-6, 1.0]);
    let factor = builder.rng.pick(&[1.0, 0.088_388_35]);
    builder.finish(vec![Op::L2Norm(L2Norm { x, epsilon, factor })])
}

fn rope(seed: u64, first_position: usize) -> OpCase {
    let mut builder = CaseBuilder::new(seed);
    builder.first_position = first_position;
    let (n_heads, n_pairs) = (builder.rng.between(1, 5), builder.rng.between(1, 64));
    let n_unrotated = builder.rng.pick(&[0, 0, 5, 64]);
    let first = builder.rng.below(n_unrotated + 1);
    let whole = builder.output_heads("x", (n_heads, 2 * n_pairs + n_unrotated));
    let frequencies = (0..n_pairs).map(|pair| 1e4_f32.powf(-(pair as f32) / n_pairs as f32));
    let frequencies = builder.vector(frequencies.collect());
    let op = Rope {
        x: whole.narrow(first, 2 * n_pairs),
        frequencies,
        pairing: builder.rng.pick(&[Pairing::Halves, Pairing::Neighbours]),
        amplitude: builder.rng.pick(&[1.0, 1.368_888]),
    };
    builder.finish(vec![Op::Rope(op)])
}

fn swiglu(seed: u64) -> OpCase {
    let mut builder = CaseBuilder::new(seed);
    let shape = shape(&mut builder.rng);
    let gate = builder.heads("gate", shape);
    let up = builder.heads("up", shape);
    let out = output(&mut builder, &[gate, up]);
    // Values have a standard deviation of about 1: a limit of 0.7 clamps on both sides, and 7.0
    // never does.
    let limit = builder.rng.pick(&[None, Some(0.7), Some(7.0)]);
    builder.finish(vec![Op::SwiGlu(SwiGlu { gate, up, out, limit })])
}

fn add(seed: u64) -> OpCase {
    let mut builder = CaseBuilder::new(seed);
    let shape = shape(&mut builder.rng);
    let x = builder.heads("x", shape);
    let y = builder.heads("y", shape);
    let out = output(&mut builder, &[x, y]);
    builder.finish(vec![Op::Add(Add { x, y, out })])
}
