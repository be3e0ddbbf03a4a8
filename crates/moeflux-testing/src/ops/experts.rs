//! Cases of routed experts: every kind, at odd addresses, arriving in any order.

use moeflux::provider::ids::{ExpertIdx, LayerIdx};
use moeflux::provider::ops::{
    Combine, ExpertBiases, ExpertDown, ExpertFfn, ExpertUp, Op, Plan, Purpose, Route, RouterKind,
};
use moeflux_kernels::{Affine, FloatKind, MatrixKind, MatrixLayout};

use super::case::{CaseBuilder, CaseExperts, ExpertRecord, OpCase, layout};
use super::{CaseMaker, ErrorSource};
use crate::matrices::all_kinds;
use crate::random::Rng;

pub(super) const MAKERS: &[CaseMaker] = &[
    CaseMaker {
        op: "expert_ffn",
        what: "every kind of weight, at odd addresses",
        n_cases: 66,
        error_source: ErrorSource::Chain,
        make: every_kind,
    },
    CaseMaker {
        op: "expert_up",
        what: "every kind of weight, in two halves",
        n_cases: 33,
        error_source: ErrorSource::Chain,
        make: |seed| in_halves(every_kind(seed)),
    },
    CaseMaker {
        op: "expert_down",
        what: "many rows, in waves",
        n_cases: 4,
        error_source: ErrorSource::Chain,
        make: |seed| {
            let builder = CaseBuilder::with_sessions(Rng::new(seed), &[40, 7]);
            in_halves(experts(builder, [four_bits(64); 3], (16, 4)))
        },
    },
    CaseMaker {
        op: "combine",
        what: "shared experts and their gates",
        n_cases: 8,
        error_source: ErrorSource::Chain,
        make: |seed| experts(CaseBuilder::new(seed), [four_bits(64); 3], (8, 3)),
    },
    CaseMaker {
        op: "expert_ffn",
        what: "top_k above 8",
        n_cases: 4,
        error_source: ErrorSource::Chain,
        make: |seed| experts(CaseBuilder::new(seed), [four_bits(64); 3], (64, 22)),
    },
    CaseMaker {
        op: "expert_ffn",
        what: "8-bit among 4-bit, many rows per expert",
        n_cases: 3,
        error_source: ErrorSource::Chain,
        make: |seed| {
            let eight_bits = Affine::new(8, 32, FloatKind::Bf16);
            let kinds = [four_bits(64), four_bits(32), MatrixKind::Affine(eight_bits)];
            experts(CaseBuilder::with_sessions(Rng::new(seed), &[40, 7]), kinds, (4, 2))
        },
    },
    CaseMaker {
        op: "expert_ffn",
        what: "many rows, gate and up of one kind",
        n_cases: 8,
        error_source: ErrorSource::Chain,
        make: |seed| {
            let eight_bits = Affine::new(8, 32, FloatKind::F16);
            let kind = if seed % 2 == 0 { four_bits(64) } else { MatrixKind::Affine(eight_bits) };
            let kinds = [kind, kind, four_bits(32)];
            experts(CaseBuilder::with_sessions(Rng::new(seed), &[70, 90]), kinds, (4, 2))
        },
    },
];

fn four_bits(group: u8) -> MatrixKind {
    MatrixKind::Affine(Affine::new(4, group, FloatKind::Bf16))
}

fn every_kind(seed: u64) -> OpCase {
    let kinds = all_kinds();
    let first = usize::try_from(seed).expect("few cases");
    let others = [first * 7 + 3, first * 5 + 1];
    let kinds = [first, others[0], others[1]].map(|idx| kinds[idx % kinds.len()]);
    experts(CaseBuilder::new(seed), kinds, (8, 3))
}

/// The same case as one of several machines runs it that has all rows.
fn in_halves(mut case: OpCase) -> OpCase {
    let experts = case.experts.as_mut().expect("a case of experts");
    let Some(Op::ExpertFfn(whole)) = experts.ffn.ops().first() else {
        unreachable!("a plan of experts begins with them")
    };
    let ExpertFfn { x, sum, limit, biases, .. } = whole.clone();
    let n_inner = experts.records[0].view().up.layout().n_rows;
    let up = ExpertUp { x, n_inner, rows: 0..n_inner, limit, biases };
    let n_hidden = sum.head_dim;
    let down = ExpertDown { sum, n_hidden, rows: 0..n_hidden, biases };
    let halves = [Op::ExpertUp(up), Op::ExpertDown(down)].map(|op| Plan::new(vec![op]));
    experts.halves = Some((halves, n_inner));
    case
}

/// `kinds` are those of gate, up and down; `(n_experts, top_k)` those of the router.
pub(super) fn experts(
    builder: CaseBuilder,
    kinds: [MatrixKind; 3],
    counts: (usize, usize),
) -> OpCase {
    experts_of(builder, kinds, counts, ExpertRecord::random)
}

/// The same of records that are made so.
pub(super) fn experts_of(
    mut builder: CaseBuilder,
    kinds: [MatrixKind; 3],
    (n_experts, top_k): (usize, usize),
    make: fn(&mut Rng, ExpertIdx, [MatrixLayout; 3]) -> ExpertRecord,
) -> OpCase {
    // Multiples of the largest group, or of the largest block.
    let is_block = |kind: &MatrixKind| matches!(kind, MatrixKind::Block(_));
    let unit = if kinds.iter().any(is_block) { 256 } else { 128 };
    let [hidden, inner] = [unit, unit * builder.rng.between(1, 2)];
    let layouts = [
        layout(kinds[0], inner, hidden),
        layout(kinds[1], inner, hidden),
        layout(kinds[2], hidden, inner),
    ];
    let rng = &mut builder.rng;
    let records = (0..n_experts).map(|idx| make(rng, ExpertIdx(idx), layouts));
    let records = records.collect();

    let logits = builder.input("logits", n_experts);
    let kind = RouterKind::Softmax { renormalise: true };
    let route = Op::Route(Route { logits, kind, top_k, purpose: Purpose::Compute });
    let x = builder.heads("x", (1, hidden));
    // The contents of this buffer between the two ops are private to the backend.
    let sum = builder.heads("sum", (1, hidden));
    let limit = builder.rng.pick(&[None, Some(0.7)]);
    let biases = builder.rng.coin().then(|| {
        let [gate, up, down] =
            [inner, inner, hidden].map(|n| builder.normal_vector(n_experts * n, 0.5));
        ExpertBiases { gate, up, down }
    });
    let shared = builder.rng.coin().then(|| builder.heads("shared", (1, hidden)));
    let has_gate = shared.is_some() && builder.rng.coin();
    let shared_gate = has_gate.then(|| builder.heads("shared_gate", (1, 1)));
    let residual = builder.heads("residual", (1, hidden));
    let out =
        if builder.rng.coin() { builder.compare(residual) } else { builder.output("out", hidden) };
    let residual = builder.rng.pick(&[Some(residual), Some(residual), None]);
    let combine = Combine { sum, shared, shared_gate, residual, out };
    let ffn = ExpertFfn { layer: LayerIdx(0), x, sum, limit, biases };
    let experts = CaseExperts {
        ffn: Plan::new(vec![Op::ExpertFfn(ffn)]),
        halves: None,
        combine: Plan::new(vec![Op::Combine(combine)]),
        records,
    };
    OpCase { experts: Some(experts), ..builder.finish(vec![route]) }
}
