//! Cases of residual streams: functions of values, products of heads, reads and writes.

use moeflux::provider::ops::{
    Activate, HeadDot, Heads, Op, StreamBase, StreamRead, StreamWeights, StreamWrite,
};
use moeflux_kernels::{ScaledFunction, ValueFunction};

use super::case::{CaseBuilder, OpCase};
use super::{CaseMaker, ErrorSource};
use crate::random::Rng;

pub(super) const MAKERS: &[CaseMaker] = &[
    CaseMaker {
        op: "activate",
        what: "functions between two factors, in place or not",
        n_cases: 18,
        error_source: ErrorSource::Pointwise,
        make: |seed| activate(CaseBuilder::new(seed), shape),
    },
    CaseMaker {
        op: "activate",
        what: "rows as wide as in models",
        n_cases: 3,
        error_source: ErrorSource::Pointwise,
        make: |seed| activate(CaseBuilder::with_sessions(Rng::new(seed), &[3]), |_| (1, 8192)),
    },
    CaseMaker {
        op: "head_dot",
        what: "heads",
        n_cases: 12,
        error_source: ErrorSource::Sum,
        make: |seed| head_dot(CaseBuilder::new(seed), shape),
    },
    CaseMaker {
        op: "head_dot",
        what: "heads as wide as in models",
        n_cases: 2,
        error_source: ErrorSource::Sum,
        make: |seed| head_dot(CaseBuilder::with_sessions(Rng::new(seed), &[3]), |_| (4, 2048)),
    },
    CaseMaker {
        op: "stream_read",
        what: "weights of values and of streams",
        n_cases: 16,
        error_source: ErrorSource::Pointwise,
        make: |seed| stream_read(CaseBuilder::new(seed), shape),
    },
    CaseMaker {
        op: "stream_read",
        what: "streams as wide as in models",
        n_cases: 2,
        error_source: ErrorSource::Pointwise,
        make: |seed| stream_read(CaseBuilder::with_sessions(Rng::new(seed), &[3]), |_| (4, 2048)),
    },
    CaseMaker {
        op: "stream_write",
        what: "onto nothing, streams and mixed ones, in place or not",
        n_cases: 24,
        error_source: ErrorSource::Pointwise,
        make: |seed| stream_write(CaseBuilder::new(seed), shape),
    },
    CaseMaker {
        op: "stream_write",
        what: "streams as wide as in models",
        n_cases: 4,
        error_source: ErrorSource::Pointwise,
        make: |seed| stream_write(CaseBuilder::with_sessions(Rng::new(seed), &[3]), |_| (4, 2048)),
    },
];

/// Makes the number of streams and their width.
type StreamShapeFn = fn(&mut Rng) -> (usize, usize);

fn shape(rng: &mut Rng) -> (usize, usize) {
    (rng.between(1, 5), rng.between(1, 140))
}

/// Positive weights: the error of a sum that cancels has no bound relative to it.
fn weights(builder: &mut CaseBuilder, name: &'static str, shape: (usize, usize)) -> Heads {
    let row = builder.input_of(name, shape.0 * shape.1, Rng::fraction);
    row.split(shape.0)
}

fn activate(mut builder: CaseBuilder, shape: StreamShapeFn) -> OpCase {
    let shape = shape(&mut builder.rng);
    let x = builder.heads("x", shape);
    let out =
        if builder.rng.coin() { builder.compare(x) } else { builder.output_heads("out", shape) };
    let root = ValueFunction::SignedRoot { floor: 0.01 };
    let function = ScaledFunction {
        function: builder.rng.pick(&[ValueFunction::Silu, ValueFunction::Sigmoid, root]),
        before: builder.rng.pick(&[1.0, 0.25, 3.0]),
        after: builder.rng.pick(&[1.0, 0.25, 2.0]),
    };
    builder.finish(vec![Op::Activate(Activate { x, function, out })])
}

fn head_dot(mut builder: CaseBuilder, shape: StreamShapeFn) -> OpCase {
    let shape = shape(&mut builder.rng);
    let x = builder.heads("x", shape);
    let y = weights(&mut builder, "y", shape);
    let out = builder.output("out", shape.0);
    let factor = builder.rng.pick(&[1.0, 0.044_194_17]);
    builder.finish(vec![Op::HeadDot(HeadDot { x, y, factor, out })])
}

fn stream_read(mut builder: CaseBuilder, shape: StreamShapeFn) -> OpCase {
    let shape = shape(&mut builder.rng);
    let streams = builder.heads("streams", shape);
    let weights = if builder.rng.coin() {
        StreamWeights::PerValue(weights(&mut builder, "weights", shape))
    } else {
        StreamWeights::PerStream(weights(&mut builder, "weights", (1, shape.0)))
    };
    let out = builder.output("out", shape.1);
    builder.finish(vec![Op::StreamRead(StreamRead { streams, weights, out })])
}

fn stream_write(mut builder: CaseBuilder, shape: StreamShapeFn) -> OpCase {
    let (n_streams, width) = shape(&mut builder.rng);
    let streams = builder.heads("streams", (n_streams, width));
    let mix = weights(&mut builder, "mix", (n_streams, n_streams));
    let beta = weights(&mut builder, "beta", (1, n_streams));
    let x = builder.heads("x", (1, width));
    let base = builder.rng.pick(&[
        StreamBase::Nothing,
        StreamBase::Streams(streams),
        StreamBase::Mixed { streams, mix },
    ]);
    let out = match builder.rng.coin() {
        true => builder.compare(streams),
        false => builder.output_heads("out", (n_streams, width)),
    };
    builder.finish(vec![Op::StreamWrite(StreamWrite { base, beta, x, out })])
}
