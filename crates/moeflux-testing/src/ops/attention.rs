//! Cases of attention: grouped heads, windows, sinks, gates, long histories, latents.

use moeflux::provider::ops::{Attention, Gain, Heads, LayerState, MlaAttention, Op, RmsNorm, Rope};
use moeflux::provider::spec::Pairing;

use super::case::{CaseBuilder, OpCase};
use super::{CaseMaker, ErrorSource};
use crate::random::Rng;

pub(super) const MAKERS: &[CaseMaker] = &[
    CaseMaker {
        op: "attention",
        what: "grouped heads, windows, sinks, gates",
        n_cases: 40,
        error_source: ErrorSource::Chain,
        make: |seed| attention(CaseBuilder::new(seed)),
    },
    CaseMaker {
        op: "attention",
        what: "histories longer than any block",
        n_cases: 3,
        error_source: ErrorSource::Chain,
        make: |seed| attention(CaseBuilder::with_sessions(Rng::new(seed), &[300, 5])),
    },
    CaseMaker {
        op: "attention",
        what: "large scores",
        n_cases: 3,
        error_source: ErrorSource::Chain,
        make: large_scores,
    },
    CaseMaker {
        op: "attention",
        what: "histories of many blocks, windows that cross them",
        n_cases: 2,
        error_source: ErrorSource::Chain,
        make: long_history,
    },
    CaseMaker {
        op: "attention",
        what: "heads as wide as in models",
        n_cases: 3,
        error_source: ErrorSource::Chain,
        make: wide_heads,
    },
    CaseMaker {
        op: "attention",
        what: "after norms and ropes",
        n_cases: 8,
        error_source: ErrorSource::Chain,
        make: after_norms,
    },
    CaseMaker {
        op: "mla_attention",
        what: "heads and latents as in models",
        n_cases: 1,
        error_source: ErrorSource::Chain,
        make: |seed| {
            let builder = CaseBuilder::with_sessions(Rng::new(seed), &[35, 2]);
            mla_attention(builder, |_| (20, 512, 64))
        },
    },
    CaseMaker {
        op: "mla_attention",
        what: "heads and scales",
        n_cases: 16,
        error_source: ErrorSource::Chain,
        make: |seed| mla_attention(CaseBuilder::new(seed), latent_shape),
    },
    CaseMaker {
        op: "mla_attention",
        what: "histories longer than any block",
        n_cases: 2,
        error_source: ErrorSource::Chain,
        make: |seed| {
            mla_attention(CaseBuilder::with_sessions(Rng::new(seed), &[280, 3]), latent_shape)
        },
    },
    CaseMaker {
        op: "mla_attention",
        what: "histories of many blocks",
        n_cases: 1,
        error_source: ErrorSource::Chain,
        make: |seed| {
            mla_attention(CaseBuilder::with_sessions(Rng::new(seed), &[1100, 3]), latent_shape)
        },
    },
];

fn attention(mut builder: CaseBuilder) -> OpCase {
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
fn large_scores(seed: u64) -> OpCase {
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
fn long_history(seed: u64) -> OpCase {
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

/// Many query heads to a key head, and more rows than a tile has.
fn wide_heads(seed: u64) -> OpCase {
    let mut builder = CaseBuilder::with_sessions(Rng::new(seed), &[70, 1]);
    let shapes = [(1, 16, 256), (2, 8, 128), (1, 5, 192)];
    let (n_kv_heads, group, dim) = shapes[usize::try_from(seed).expect("few cases") % 3];
    let n_heads = n_kv_heads * group;
    let cols = n_kv_heads * dim;
    let state = LayerState::KeyValue { n_heads: n_kv_heads, k_cols: cols, v_cols: cols };
    let op = Attention {
        layer: builder.layer(state),
        q: builder.heads("q", (n_heads, dim)),
        k: builder.heads("k", (n_kv_heads, dim)),
        v: builder.heads("v", (n_kv_heads, dim)),
        gate: Some(builder.heads("gate", (n_heads, dim))),
        out: builder.output_heads("out", (n_heads, dim)),
        scale: 1.0 / (dim as f32).sqrt(),
        window: None,
        sinks: None,
    };
    builder.finish(vec![Op::Attention(op)])
}

/// As in a layer: heads are normed, then turned in part, then attended to.
fn after_norms(seed: u64) -> OpCase {
    let mut builder = CaseBuilder::new(seed);
    let rng = &mut builder.rng;
    let n_kv_heads = rng.between(1, 3);
    let n_heads = n_kv_heads * rng.between(1, 4);
    let n_pairs = rng.between(1, 40);
    let n_unrotated = rng.pick(&[0, 0, 7, 64]);
    let first = rng.below(n_unrotated + 1);
    let pairing = rng.pick(&[Pairing::Halves, Pairing::Neighbours]);
    let dim = 2 * n_pairs + n_unrotated;
    let cols = n_kv_heads * dim;
    let state = LayerState::KeyValue { n_heads: n_kv_heads, k_cols: cols, v_cols: cols };
    let layer = builder.layer(state);
    let q = builder.heads("q", (n_heads, dim));
    let k = builder.heads("k", (n_kv_heads, dim));
    let v = builder.heads("v", (n_kv_heads, dim));
    let out = builder.output_heads("out", (n_heads, dim));
    let frequencies = (0..n_pairs).map(|pair| 1e4_f32.powf(-(pair as f32) / n_pairs as f32));
    let frequencies = builder.vector(frequencies.collect());
    let mut norm = |x: Heads| {
        let gain = Gain::Shared(builder.normal_vector(dim, 1.0));
        Op::RmsNorm(RmsNorm { x, gain, gate: None, out: x, epsilon: 1e-6 })
    };
    let norms = [norm(q), norm(k)];
    let turned = |x: Heads| {
        let x = x.narrow(first, 2 * n_pairs);
        Op::Rope(Rope { x, frequencies, pairing, amplitude: 1.0 })
    };
    let scale = 1.0 / (dim as f32).sqrt();
    let (gate, window, sinks) = (None, None, None);
    let attention = Op::Attention(Attention { layer, q, k, v, gate, out, scale, window, sinks });
    builder.finish(norms.into_iter().chain([turned(q), turned(k), attention]).collect())
}

fn latent_shape(rng: &mut Rng) -> (usize, usize, usize) {
    (rng.between(1, 9), rng.between(1, 80), rng.between(1, 32))
}

/// `shape` makes heads, columns of latents, and columns of rotated keys.
fn mla_attention(mut builder: CaseBuilder, shape: fn(&mut Rng) -> (usize, usize, usize)) -> OpCase {
    let (n_heads, latent_cols, rope_cols) = shape(&mut builder.rng);
    let op = MlaAttention {
        layer: builder.layer(LayerState::Latent { latent_cols, rope_cols, index_cols: 0 }),
        q_latent: builder.heads("q_latent", (n_heads, latent_cols)),
        q_rope: builder.heads("q_rope", (n_heads, rope_cols)),
        latent: builder.heads("latent", (1, latent_cols)),
        k_rope: builder.heads("k_rope", (1, rope_cols)),
        out: builder.output_heads("out", (n_heads, latent_cols)),
        scale: 1.0 / ((latent_cols + rope_cols) as f32).sqrt(),
        chosen: None,
    };
    builder.finish(vec![Op::MlaAttention(op)])
}
