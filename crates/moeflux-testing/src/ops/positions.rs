//! Cases of sparse attention: choices of positions, and attention over those that were chosen.

use moeflux::provider::ops::{
    Attention, ChosenPositions, LayerState, MlaAttention, Op, PoolKeys, SelectPositions,
};

use super::case::{CaseBuilder, OpCase};
use super::{CaseMaker, ErrorSource};
use crate::random::Rng;

pub(super) const MAKERS: &[CaseMaker] = &[
    CaseMaker {
        op: "select_positions",
        what: "heads, equal scores, blocks, lists longer and shorter than histories",
        n_cases: 24,
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
        op: "pool_keys",
        what: "blocks that begin and end in any step",
        n_cases: 8,
        error_source: ErrorSource::Copy,
        make: pool,
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
    CaseMaker {
        op: "attention",
        what: "chosen positions",
        n_cases: 12,
        error_source: ErrorSource::Chain,
        make: |seed| attend_grouped(CaseBuilder::new(seed), (6, 2, 20), |rng| rng.between(1, 6)),
    },
    CaseMaker {
        op: "attention",
        what: "chosen positions, in several blocks",
        n_cases: 2,
        error_source: ErrorSource::Chain,
        make: |seed| {
            let builder = CaseBuilder::with_sessions(Rng::new(seed), &[280, 3]);
            attend_grouped(builder, (24, 2, 64), |rng| rng.pick(&[70, 130]))
        },
    },
    CaseMaker {
        op: "attention",
        what: "a choice of blocks, then attention over it",
        n_cases: 4,
        error_source: ErrorSource::Chain,
        make: select_blocks_and_attend,
    },
];

/// A choice by scores that are whole numbers, so that no backend rounds them: some are equal.
/// Blocks of two or four positions have keys whose averages are exact.
fn select(mut builder: CaseBuilder, n_chosen: fn(&mut Rng) -> usize) -> OpCase {
    let block = builder.rng.pick(&[1, 1, 2, 4]);
    let n_cols = ChosenPositions::n_cols(n_chosen(&mut builder.rng).div_ceil(block), block);
    let index_cols = builder.rng.pick(&[1, 4, 31]);
    let state = LayerState::Latent { latent_cols: 3, rope_cols: 2, index_cols };
    let chosen = ChosenPositions { list: builder.output("list", n_cols), block };
    let ops = select_ops(&mut builder, (state, index_cols), chosen);
    builder.finish(ops)
}

fn select_ops(
    builder: &mut CaseBuilder,
    (state, index_cols): (LayerState, usize),
    chosen: ChosenPositions,
) -> Vec<Op> {
    let n_heads = builder.rng.pick(&[1, 2, 8, 17]);
    let whole = |rng: &mut Rng| rng.pick(&[-3.0, -1.0, 0.0, 1.0, 2.0]);
    let q = builder.input_of("index q", n_heads * index_cols, whole);
    let layer = builder.layer(state);
    let k = builder.input_of("index k", index_cols, whole);
    let is_weighted = builder.rng.coin();
    let weights = is_weighted.then(|| builder.input_of("weights", n_heads, whole_or_broken));
    let (pool, k) = match chosen.block {
        1 => (None, k),
        block => {
            let out = builder.output("pooled", index_cols);
            (Some(Op::PoolKeys(PoolKeys { layer, k, block, out })), out)
        }
    };
    let select = SelectPositions { layer, q: q.split(n_heads), k, weights, chosen };
    pool.into_iter().chain([Op::SelectPositions(select)]).collect()
}

/// Averages of whole numbers, which are exact in blocks of two or four positions.
fn pool(seed: u64) -> OpCase {
    let mut builder = CaseBuilder::new(seed);
    let block = builder.rng.pick(&[2, 4]);
    let n_cols = builder.rng.pick(&[1, 4, 31, 128]);
    let state = LayerState::Latent { latent_cols: 3, rope_cols: 2, index_cols: n_cols };
    let layer = builder.layer(state);
    let k = builder.input_of("index k", n_cols, |rng| rng.pick(&[-3.0, -1.0, 0.0, 1.0, 2.0]));
    let out = builder.output("pooled", n_cols);
    builder.finish(vec![Op::PoolKeys(PoolKeys { layer, k, block, out })])
}

/// A weight; a broken one breaks all scores of its row.
fn whole_or_broken(rng: &mut Rng) -> f32 {
    if rng.below(200) == 0 { f32::NAN } else { rng.pick(&[-2.0, 0.0, 1.0, 3.0]) }
}

/// Adds lists of random positions.
fn chosen(builder: &mut CaseBuilder, n_chosen: fn(&mut Rng) -> usize) -> ChosenPositions {
    let block = builder.rng.pick(&[1, 1, 2, 5]);
    let n_cols = ChosenPositions::n_cols(n_chosen(&mut builder.rng).div_ceil(block), block);
    let list = builder
        .input_rows("list", n_cols, |rng, position| random_list(rng, position, (n_cols, block)));
    ChosenPositions { list, block }
}

/// Attention over positions that the case chooses. `shape`: heads, columns of latents, and columns
/// of rotated keys.
fn attend(
    mut builder: CaseBuilder,
    (n_heads, latent_cols, rope_cols): (usize, usize, usize),
    n_chosen: fn(&mut Rng) -> usize,
) -> OpCase {
    let chosen = chosen(&mut builder, n_chosen);
    let state = LayerState::Latent { latent_cols, rope_cols, index_cols: 0 };
    let op = mla_attention(&mut builder, state, (n_heads, chosen));
    builder.finish(vec![Op::MlaAttention(op)])
}

/// Attention with keys and values over positions that the case chooses. `shape`: heads of queries
/// and keys, and columns of a head.
fn attend_grouped(
    mut builder: CaseBuilder,
    (n_heads, n_kv_heads, dim): (usize, usize, usize),
    n_chosen: fn(&mut Rng) -> usize,
) -> OpCase {
    let chosen = chosen(&mut builder, n_chosen);
    let op = attention(&mut builder, ((n_heads, n_kv_heads, dim), 0), chosen);
    builder.finish(vec![Op::Attention(op)])
}

fn attention(
    builder: &mut CaseBuilder,
    ((n_heads, n_kv_heads, dim), index_cols): ((usize, usize, usize), usize),
    chosen: ChosenPositions,
) -> Attention {
    let cols = n_kv_heads * dim;
    let (k_cols, v_cols) = (cols, cols);
    let state = LayerState::KeyValue { n_heads: n_kv_heads, k_cols, v_cols, index_cols };
    Attention {
        layer: builder.layer(state),
        q: builder.heads("q", (n_heads, dim)),
        k: builder.heads("k", (n_kv_heads, dim)),
        v: builder.heads("v", (n_kv_heads, dim)),
        gate: Some(builder.heads("gate", (n_heads, dim))),
        out: builder.output_heads("out", (n_heads, dim)),
        scale: 1.0 / (dim as f32).sqrt(),
        window: None,
        sinks: None,
        chosen: Some(chosen),
    }
}

/// Some positions up to `position`, ascending; numbers beyond all positions in columns that are not
/// used. Some lists are those of a failed choice.
fn random_list(rng: &mut Rng, position: usize, (n_cols, block): (usize, usize)) -> Vec<f32> {
    let mut list = vec![1e6; n_cols];
    if position < n_cols {
        return list;
    }
    if rng.below(20) == 0 {
        return vec![f32::NAN; n_cols];
    }
    let mut positions: Vec<usize> = (0..=position).collect();
    rng.shuffle(&mut positions);
    positions.truncate(n_cols - (block - 1) + (position + 1) % block);
    positions.sort_unstable();
    for (listed, position) in list.iter_mut().zip(positions) {
        *listed = position as f32;
    }
    list
}

fn mla_attention(
    builder: &mut CaseBuilder,
    state: LayerState,
    (n_heads, chosen): (usize, ChosenPositions),
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
        chosen: Some(chosen),
    }
}

/// As in a layer: some positions are chosen and then attended to.
fn select_and_attend(seed: u64) -> OpCase {
    let mut builder = CaseBuilder::with_sessions(Rng::new(seed), &[90, 1, 20]);
    let n_chosen = builder.rng.pick(&[1, 8, 33]);
    let (latent_cols, rope_cols, index_cols) = (24, 8, 12);
    let state = LayerState::Latent { latent_cols, rope_cols, index_cols };
    let chosen = ChosenPositions { list: builder.output("list", n_chosen), block: 1 };
    let mut ops = select_ops(&mut builder, (state, index_cols), chosen);
    ops.push(Op::MlaAttention(mla_attention(&mut builder, state, (5, chosen))));
    builder.finish(ops)
}

/// As in a layer with blocks of positions.
fn select_blocks_and_attend(seed: u64) -> OpCase {
    let mut builder = CaseBuilder::with_sessions(Rng::new(seed), &[90, 1, 20]);
    let (n_blocks, block) = builder.rng.pick(&[(1, 4), (3, 2), (8, 4)]);
    let (shape, index_cols) = ((6, 2, 16), 12);
    let list = builder.output("list", ChosenPositions::n_cols(n_blocks, block));
    let chosen = ChosenPositions { list, block };
    let (k_cols, v_cols) = (32, 32);
    let state = LayerState::KeyValue { n_heads: 2, k_cols, v_cols, index_cols };
    let mut ops = select_ops(&mut builder, (state, index_cols), chosen);
    ops.push(Op::Attention(attention(&mut builder, (shape, index_cols), chosen)));
    builder.finish(ops)
}
