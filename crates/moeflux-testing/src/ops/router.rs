//! Cases of routers: many experts, ties, groups, choices below zero.

use moeflux::provider::ops::{Op, Purpose, Route, RouterKind};

use super::case::{CaseBuilder, OpCase};
use super::{CaseMaker, ErrorSource};
use crate::random::Rng;

pub(super) const MAKERS: &[CaseMaker] = &[
    CaseMaker {
        op: "route",
        what: "softmax, top_k up to 22",
        n_cases: 16,
        error_source: ErrorSource::Sum,
        make: |seed| softmax(seed, Rng::normal),
    },
    CaseMaker {
        op: "route",
        what: "ties in the router",
        n_cases: 16,
        error_source: ErrorSource::Sum,
        make: |seed| softmax(seed, |rng| rng.pick(&[0.0, -0.0, 1.0, 1.5])),
    },
    CaseMaker {
        op: "route",
        what: "groups",
        n_cases: 24,
        error_source: ErrorSource::Sum,
        make: |seed| grouped(seed, Rng::normal, Rng::normal),
    },
    CaseMaker {
        op: "route",
        what: "ties of experts and groups",
        n_cases: 16,
        error_source: ErrorSource::Sum,
        make: |seed| grouped(seed, |rng| rng.pick(&[0.0, 1.0]), |rng| rng.pick(&[0.0, 0.5])),
    },
    CaseMaker {
        op: "route",
        what: "choices below zero, never an excluded group",
        n_cases: 8,
        error_source: ErrorSource::Sum,
        make: |seed| grouped(seed, Rng::normal, |rng| -3.0 - rng.fraction()),
    },
];

fn softmax(seed: u64, value: fn(&mut Rng) -> f32) -> OpCase {
    let mut builder = CaseBuilder::new(seed);
    let (n_experts, top_k) = builder.rng.pick(&[(1, 1), (8, 2), (64, 22), (128, 8), (512, 10)]);
    let logits = builder.input_of("logits", n_experts, value);
    let kind = RouterKind::Softmax { renormalise: builder.rng.coin() };
    builder.finish(vec![Op::Route(Route { logits, kind, top_k, purpose: Purpose::Compute })])
}

fn grouped(seed: u64, value: fn(&mut Rng) -> f32, correction: fn(&mut Rng) -> f32) -> OpCase {
    let mut builder = CaseBuilder::new(seed);
    let (n_experts, n_groups, n_groups_kept, top_k) =
        builder.rng.pick(&[(8, 1, 1, 3), (16, 4, 2, 4), (64, 8, 3, 12), (256, 8, 4, 8)]);
    let logits = builder.input_of("logits", n_experts, value);
    let correction = (0..n_experts).map(|_| correction(&mut builder.rng)).collect();
    let kind = RouterKind::SigmoidGrouped {
        correction: builder.vector(correction),
        n_groups,
        n_groups_kept,
        renormalise: builder.rng.coin(),
        factor: builder.rng.pick(&[1.0, 2.5]),
    };
    builder.finish(vec![Op::Route(Route { logits, kind, top_k, purpose: Purpose::Compute })])
}
