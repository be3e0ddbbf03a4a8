//! Cases of attention: grouped heads, windows, sinks, gates, long histories, latents.

use moeflux::ops::{Attention, LayerState, MlaAttention, Op};

use super::case::{Case, CaseBuilder};
use super::{Arithmetic, Maker};
use crate::random::Rng;

pub(super) const MAKERS: &[Maker] = &[
    Maker {
        op: "attention",
        what: "grouped heads, windows, sinks, gates",
        n_cases: 40,
        arithmetic: Arithmetic::Chain,
        make: |seed| attention(CaseBuilder::new(seed)),
    },
    Maker {
        op: "attention",
        what: "histories longer than any block",
        n_cases: 3,
        arithmetic: Arithmetic::Chain,
        make: |seed| attention(CaseBuilder::with_sessions(Rng::new(seed), &[300, 5])),
    },
    Maker {
        op: "attention",
        what: "large scores",
        n_cases: 3,
        arithmetic: Arithmetic::Chain,
        make: large_scores,
    },
    Maker {
        op: "attention",
        what: "histories of many blocks, windows that cross them",
        n_cases: 2,
        arithmetic: Arithmetic::Chain,
        make: long_history,
    },
    Maker {
        op: "mla_attention",
        what: "heads and scales",
        n_cases: 16,
        arithmetic: Arithmetic::Chain,
        make: |seed| mla_attention(CaseBuilder::new(seed)),
    },
    Maker {
        op: "mla_attention",
        what: "histories longer than any block",
        n_cases: 2,
        arithmetic: Arithmetic::Chain,
        make: |seed| mla_attention(CaseBuilder::with_sessions(Rng::new(seed), &[280, 3])),
    },
    Maker {
        op: "mla_attention",
        what: "histories of many blocks",
        n_cases: 1,
        arithmetic: Arithmetic::Chain,
        make: |seed| mla_attention(CaseBuilder::with_sessions(Rng::new(seed), &[1100, 3])),
    },
];

fn attention(mut builder: CaseBuilder) -> Case {
    let rng = &mut builder.rng;
    let n_kv_heads = rng.between(1, 3);
    let n_heads = n_kv_heads * rng.pick(&[1, 2, 4, 7]);
    let (k_dim, v_dim) = (rng.between(1, 40), rng.between(1, 40));
    let has = [rng.coin(), rng.coin()];
    let window = rng.pick(&[None, None, Some(1), Some(4), Some(65)]);
    let state = LayerState::KeyValue {
        n_heads: n_kv_heads,
        k_cols: n_kv_heads * k_dim,
        v_cols: n_kv_heads * v_dim,
    };
    let op = Attention {
        layer: builder.layer(state),
        q: builder.heads("q", (n_heads, k_dim)),
        k: builder.heads("k", (n_kv_heads, k_dim)),
        v: builder.heads("v", (n_kv_heads, v_dim)),
        gate: has[0].then(|| builder.heads("gate", (n_heads, v_dim))),
        out: builder.output_heads("out", (n_heads, v_dim)),
        scale: 1.0 / (k_dim as f32).sqrt(),
        window,
        sinks: has[1].then(|| builder.normal_vector(n_heads, 0.0)),
    };
    builder.finish(vec![Op::Attention(op)])
}

/// Scores of some thousands: without subtracting the largest, `exp` overflows. Channels are
/// small whole numbers, so that no f32 sum of scores is rounded.
fn large_scores(seed: u64) -> Case {
    let mut builder = CaseBuilder::new(seed);
    let state = LayerState::KeyValue { n_heads: 1, k_cols: 8, v_cols: 8 };
    let whole = |rng: &mut Rng| rng.pick(&[-32.0, -1.0, 0.0, 1.0, 31.0]);
    let op = Attention {
        layer: builder.layer(state),
        q: builder.input_of("q", 8, whole),
        k: builder.input_of("k", 8, whole),
        v: builder.heads("v", (1, 8)),
        gate: None,
        out: builder.output("out", 8),
        scale: 0.5,
        window: None,
        sinks: None,
    };
    builder.finish(vec![Op::Attention(op)])
}

/// More positions than any backend takes at once, and small heads, so that the reference keeps up.
fn long_history(seed: u64) -> Case {
    let mut builder = CaseBuilder::with_sessions(Rng::new(seed), &[1300, 2]);
    let state = LayerState::KeyValue { n_heads: 1, k_cols: 8, v_cols: 6 };
    let op = Attention {
        layer: builder.layer(state),
        q: builder.heads("q", (2, 8)),
        k: builder.heads("k", (1, 8)),
        v: builder.heads("v", (1, 6)),
        gate: None,
        out: builder.output_heads("out", (2, 6)),
        scale: 0.4,
        window: (seed == 1).then_some(600),
        sinks: Some(builder.normal_vector(2, 0.0)),
    };
    builder.finish(vec![Op::Attention(op)])
}

fn mla_attention(mut builder: CaseBuilder) -> Case {
    let rng = &mut builder.rng;
    let n_heads = rng.between(1, 9);
    let (latent_cols, rope_cols) = (rng.between(1, 80), rng.between(1, 32));
    let op = MlaAttention {
        layer: builder.layer(LayerState::Latent { latent_cols, rope_cols }),
        q_latent: builder.heads("q_latent", (n_heads, latent_cols)),
        q_rope: builder.heads("q_rope", (n_heads, rope_cols)),
        latent: builder.heads("latent", (1, latent_cols)),
        k_rope: builder.heads("k_rope", (1, rope_cols)),
        out: builder.output_heads("out", (n_heads, latent_cols)),
        scale: 1.0 / ((latent_cols + rope_cols) as f32).sqrt(),
    };
    builder.finish(vec![Op::MlaAttention(op)])
}
