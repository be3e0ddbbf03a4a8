//! Cases of sparse attention: choices of positions, and attention over those that were chosen.

use moeflux::provider::ops::{
    ChosenPositions, Heads, LayerState, MlaAttention, Op, SelectPositions,
};

use super::case::{CaseBuilder, OpCase};
use super::{CaseMaker, ErrorSource};
use crate::random::Rng;

pub(super) const MAKERS: &[CaseMaker] = &[
    CaseMaker {
        op: "select_positions",
        what: "heads, equal scores, lists longer and shorter than histories",
        n_cases: 16,
        error_source: ErrorSource::Copy,
        make: |seed| select(CaseBuilder::new(seed), |rng| rng.between(1, 6)),
    },
    CaseMaker {
        op: "select_positions",
        what: "histories of many blocks",
        n_cases: 3,
        error_source: ErrorSource::Copy,
        make: |seed| {
            let builder = CaseBuilder::with_sessions(Rng::new(seed), &[1300, 3]);
            select(builder, |rng| rng.pick(&[100, 577]))
        },
    },
    CaseMaker {
        op: "mla_attention",
        what: "chosen positions",
        n_cases: 12,
        error_source: ErrorSource::Chain,
        make: |seed| attend(CaseBuilder::new(seed), (3, 20, 8), |rng| rng.between(1, 6)),
    },
    CaseMaker {
        op: "mla_attention",
        what: "chosen positions, in several blocks",
        n_cases: 2,
        error_source: ErrorSource::Chain,
        make: |seed| {
            let builder = CaseBuilder::with_sessions(Rng::new(seed), &[280, 3]);
            attend(builder, (20, 80, 24), |rng| rng.pick(&[70, 130]))
        },
    },
    CaseMaker {
        op: "mla_attention",
        what: "a choice, then attention over it",
        n_cases: 4,
        error_source: ErrorSource::Chain,
        make: select_and_attend,
    },
];

/// A choice by scores that are whole numbers, so that no backend rounds them: some are equal.
fn select(mut builder: CaseBuilder, n_chosen: fn(&mut Rng) -> usize) -> OpCase {
    let n_chosen = n_chosen(&mut builder.rng);
    let index_cols = builder.rng.pick(&[1, 4, 31]);
    let state = LayerState::Latent { latent_cols: 3, rope_cols: 2, index_cols };
    let chosen = ChosenPositions { list: builder.output("list", n_chosen) };
    let op = select_op(&mut builder, state, chosen);
    builder.finish(vec![Op::SelectPositions(op)])
}

fn select_op(
    builder: &mut CaseBuilder,
    state: LayerState,
    chosen: ChosenPositions,
) -> SelectPositions {
    let LayerState::Latent { index_cols, .. } = state else { unreachable!("latent attention") };
    let n_heads = builder.rng.pick(&[1, 2, 8, 17]);
    let whole = |rng: &mut Rng| rng.pick(&[-3.0, -1.0, 0.0, 1.0, 2.0]);
    let q = builder.input_of("index q", n_heads * index_cols, whole);
    SelectPositions {
        layer: builder.layer(state),
        q: q.split(n_heads),
        k: builder.input_of("index k", index_cols, whole),
        weights: builder.input_of("index weights", n_heads, whole_or_broken),
        chosen,
    }
}

/// A weight; a broken one breaks all scores of its row.
fn whole_or_broken(rng: &mut Rng) -> f32 {
    if rng.below(200) == 0 { f32::NAN } else { rng.pick(&[-2.0, 0.0, 1.0, 3.0]) }
}

/// Attention over positions that the case chooses. `shape`: heads, columns of latents, and columns
/// of rotated keys.
fn attend(
    mut builder: CaseBuilder,
    (n_heads, latent_cols, rope_cols): (usize, usize, usize),
    n_chosen: fn(&mut Rng) -> usize,
) -> OpCase {
    let n_chosen = n_chosen(&mut builder.rng);
    let list = builder.input_rows("list", n_chosen, |rng, idx| random_list(rng, idx, n_chosen));
    let state = LayerState::Latent { latent_cols, rope_cols, index_cols: 0 };
    let op = mla_attention(&mut builder, state, (n_heads, list));
    builder.finish(vec![Op::MlaAttention(op)])
}

/// Some positions up to `position`, ascending; numbers beyond all positions if it sees no more than
/// are chosen. Some lists are those of a failed choice.
fn random_list(rng: &mut Rng, position: usize, n_chosen: usize) -> Vec<f32> {
    if position < n_chosen {
        return vec![1e6; n_chosen];
    }
    if rng.below(20) == 0 {
        return vec![f32::NAN; n_chosen];
    }
    let mut positions: Vec<usize> = (0..=position).collect();
    rng.shuffle(&mut positions);
    positions.truncate(n_chosen);
    positions.sort_unstable();
    positions.into_iter().map(|position| position as f32).collect()
}

fn mla_attention(
    builder: &mut CaseBuilder,
    state: LayerState,
    (n_heads, list): (usize, Heads),
) -> MlaAttention {
    let LayerState::Latent { latent_cols, rope_cols, .. } = state else {
        unreachable!("latent attention")
    };
    MlaAttention {
        layer: builder.layer(state),
        q_latent: builder.heads("q_latent", (n_heads, latent_cols)),
        q_rope: builder.heads("q_rope", (n_heads, rope_cols)),
        latent: builder.heads("latent", (1, latent_cols)),
        k_rope: builder.heads("k_rope", (1, rope_cols)),
        out: builder.output_heads("out", (n_heads, latent_cols)),
        scale: 1.0 / ((latent_cols + rope_cols) as f32).sqrt(),
        chosen: Some(ChosenPositions { list }),
    }
}

/// As in a layer: some positions are chosen and then attended to.
fn select_and_attend(seed: u64) -> OpCase {
    let mut builder = CaseBuilder::with_sessions(Rng::new(seed), &[90, 1, 20]);
    let n_chosen = builder.rng.pick(&[1, 8, 33]);
    let state = LayerState::Latent { latent_cols: 24, rope_cols: 8, index_cols: 12 };
    let list = builder.output("list", n_chosen);
    let select = select_op(&mut builder, state, ChosenPositions { list });
    let attend = mla_attention(&mut builder, state, (5, list));
    builder.finish(vec![Op::SelectPositions(select), Op::MlaAttention(attend)])
}
