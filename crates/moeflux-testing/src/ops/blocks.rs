//! Matrices of blocks that carry their own scales, wherever a matrix may be.

use moeflux_kernels::{FloatKind, MatrixKind};

use crate::matrices::fitting_cols;
use crate::ops::case::{CaseBuilder, ExpertRecord, OpCase};
use crate::ops::experts::{experts, experts_of};
use crate::ops::linear::{embedding, head_product, product};
use crate::ops::{CaseMaker, ErrorSource, OpSuite};
use crate::random::Rng;

/// Products with the blocks that the backends of `S` read.
pub(super) fn products<S: OpSuite>() -> &'static [CaseMaker] {
    const {
        &[
            CaseMaker {
                op: "embed",
                what: "every kind of blocks",
                n_cases: n_kinds::<S>(),
                error_source: ErrorSource::Pointwise,
                make: |seed| embedding(seed, kind_of::<S>(seed)),
            },
            CaseMaker {
                op: "matmul",
                what: "every kind of blocks",
                n_cases: 2 * n_kinds::<S>(),
                error_source: ErrorSource::Sum,
                make: |seed| {
                    let (mut builder, kind) = (CaseBuilder::new(seed), kind_of::<S>(seed));
                    let (n_rows, n_cols) =
                        (builder.rng.between(1, 150), builder.rng.between(1, 800));
                    product(builder, kind, n_rows, fitting_cols(kind, n_cols))
                },
            },
            CaseMaker {
                op: "matmul",
                what: "many rows, every kind of blocks",
                n_cases: n_kinds::<S>(),
                error_source: ErrorSource::Sum,
                make: |seed| {
                    let (mut rng, kind) = (Rng::new(seed), kind_of::<S>(seed));
                    let (n_rows, n_cols) = (rng.between(1, 140), rng.between(1, 600));
                    let builder = CaseBuilder::with_sessions(rng, &[29, 41]);
                    product(builder, kind, n_rows, fitting_cols(kind, n_cols))
                },
            },
            CaseMaker {
                op: "head_matmul",
                what: "both orientations, every kind of blocks",
                n_cases: 2 * n_kinds::<S>(),
                error_source: ErrorSource::Sum,
                make: |seed| {
                    head_product(CaseBuilder::new(seed), kind_of::<S>(seed), seed < n_kinds::<S>())
                },
            },
        ]
    }
}

/// Experts in such blocks.
pub(super) fn experts_in_blocks<S: OpSuite>() -> &'static [CaseMaker] {
    const {
        &[
            CaseMaker {
                op: "expert_ffn",
                what: "every kind of blocks",
                n_cases: n_kinds::<S>(),
                error_source: ErrorSource::Chain,
                make: |seed| {
                    experts(
                        CaseBuilder::new(seed),
                        [seed, seed * 7 + 3, seed * 5 + 1].map(kind_of::<S>),
                        (8, 3),
                    )
                },
            },
            CaseMaker {
                op: "expert_ffn",
                what: "many rows of blocks, gate and up of one kind",
                n_cases: n_kinds::<S>(),
                error_source: ErrorSource::Chain,
                make: |seed| {
                    let kinds = [seed, seed, seed * 5 + 1].map(kind_of::<S>);
                    experts(CaseBuilder::with_sessions(Rng::new(seed), &[70, 90]), kinds, (4, 2))
                },
            },
            CaseMaker {
                op: "expert_ffn",
                what: "rows of gate and up in turns",
                n_cases: n_kinds::<S>() + 3,
                error_source: ErrorSource::Chain,
                make: |seed| take_turns::<S>(CaseBuilder::new(seed), seed, (8, 3)),
            },
            CaseMaker {
                op: "expert_ffn",
                what: "many rows, rows of gate and up in turns",
                n_cases: n_kinds::<S>() + 3,
                error_source: ErrorSource::Chain,
                make: |seed| {
                    let builder = CaseBuilder::with_sessions(Rng::new(seed), &[70, 90]);
                    take_turns::<S>(builder, seed, (4, 2))
                },
            },
        ]
    }
}

/// Blocks, or floats.
fn take_turns<S: OpSuite>(builder: CaseBuilder, seed: u64, counts: (usize, usize)) -> OpCase {
    let kind = match seed.checked_sub(n_kinds::<S>()) {
        None => kind_of::<S>(seed),
        Some(0) => MatrixKind::Float(FloatKind::F32),
        Some(1) => MatrixKind::Float(FloatKind::F16),
        Some(_) => MatrixKind::Float(FloatKind::Bf16),
    };
    let kinds = [kind, kind, kind_of::<S>(seed * 5 + 1)];
    experts_of(builder, kinds, counts, ExpertRecord::random_turns)
}

fn kind_of<S: OpSuite>(seed: u64) -> MatrixKind {
    let kind_idx = usize::try_from(seed % n_kinds::<S>()).expect("few kinds");
    MatrixKind::Block(S::BLOCK_KINDS[kind_idx])
}

const fn n_kinds<S: OpSuite>() -> u64 {
    S::BLOCK_KINDS.len() as u64
}
