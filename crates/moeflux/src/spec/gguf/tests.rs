//! Valid and refused metadata of GGUF files.

use std::path::Path;

use crate::format::Checkpoint;
use crate::format::gguf::builder::GgufBuilder;
use crate::spec::{FfnSpec, MixerSpec, ModelSpec, RopeScaling, RouterSpec};

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small counts")]
fn whole(value: f32) -> Option<u32> {
    (value.fract() == 0.0).then_some(value as u32)
}

/// Parses the keys of an architecture with some values changed.
fn spec_of(
    architecture: &str,
    keys: &[(&str, f32)],
    changed: &[(&str, Option<f32>)],
) -> Result<ModelSpec, String> {
    let mut all: Vec<(&str, f32)> = keys.to_vec();
    for (key, value) in changed {
        all.retain(|(known, _)| known != key);
        all.extend(value.map(|value| (*key, value)));
    }
    let mut builder = GgufBuilder::new().string("general.architecture", architecture);
    for (key, value) in all {
        let full = format!("{architecture}.{key}");
        builder = match whole(value) {
            Some(count) => builder.u32(&full, count),
            None => builder.pair(&full, 6, &value.to_le_bytes()),
        };
    }
    let builder = if changed.iter().any(|(key, _)| key.contains("yarn")) {
        builder.string(&format!("{architecture}.rope.scaling.type"), "yarn")
    } else {
        builder
    };
    let bytes = builder.bytes();
    let checkpoint = Checkpoint::of_gguf_bytes(Path::new("m.gguf"), &bytes, bytes.len() as u64);
    ModelSpec::from_gguf(&checkpoint.unwrap()).map_err(|error| error.to_string())
}

const QWEN: [(&str, f32); 13] = [
    ("block_count", 3.0),
    ("context_length", 64.0),
    ("embedding_length", 64.0),
    ("vocab_size", 10.0),
    ("attention.head_count", 4.0),
    ("attention.head_count_kv", 2.0),
    ("attention.key_length", 49.0),
    ("attention.value_length", 49.0),
    ("attention.layer_norm_rms_epsilon", 0.5),
    ("rope.dimension_count", 48.0),
    ("expert_count", 8.0),
    ("expert_used_count", 2.0),
    ("expert_feed_forward_length", 32.0),
];

const DEEPSEEK: [(&str, f32); 21] = [
    ("block_count", 4.0),
    ("context_length", 4096.0),
    ("embedding_length", 64.0),
    ("feed_forward_length", 96.0),
    ("vocab_size", 10.0),
    ("attention.head_count", 4.0),
    ("attention.head_count_kv", 1.0),
    ("attention.layer_norm_rms_epsilon", 0.5),
    ("attention.kv_lora_rank", 32.0),
    ("attention.key_length", 48.0),
    ("attention.value_length", 32.0),
    ("attention.key_length_mla", 40.0),
    ("attention.value_length_mla", 24.0),
    ("rope.dimension_count", 16.0),
    ("expert_count", 256.0),
    ("expert_used_count", 8.0),
    ("expert_feed_forward_length", 32.0),
    ("expert_shared_count", 1.0),
    ("expert_gating_func", 2.0),
    ("leading_dense_block_count", 1.0),
    ("nextn_predict_layers", 1.0),
];

#[test]
fn widths_and_defaults_are_those_of_llama_cpp() {
    let spec = spec_of("qwen3moe", &QWEN, &[]).unwrap();
    let (MixerSpec::Attention(attention), FfnSpec::Moe(moe)) =
        (&spec.layers[0].mixer, &spec.layers[0].ffn)
    else {
        panic!("{spec:?}")
    };
    assert_eq!((attention.n_kv_heads, attention.head_dim), (2, 49));
    assert_eq!(moe.router, RouterSpec::Softmax { renormalise: true });
    assert!((attention.rope.theta - 10_000.0).abs() < 1e-9);
    // Every count survives the conversion to a fraction of the width and back.
    for n in (2..=48_u8).step_by(2) {
        let changed = [("rope.dimension_count", Some(f32::from(n)))];
        let spec = spec_of("qwen3moe", &QWEN, &changed).unwrap();
        let MixerSpec::Attention(attention) = &spec.layers[0].mixer else { panic!() };
        assert_eq!(attention.rope.n_rotated, usize::from(n));
    }
}

#[test]
fn groups_that_older_files_leave_out_are_those_of_the_published_models() {
    let groups = |changed: &[(&str, Option<f32>)]| {
        let spec = spec_of("deepseek2", &DEEPSEEK, changed).unwrap();
        assert_eq!(spec.layers.len(), 3, "one layer predicts");
        let FfnSpec::Moe(moe) = &spec.layers[1].ffn else { panic!("{spec:?}") };
        match moe.router {
            RouterSpec::SigmoidGrouped { n_groups, n_groups_kept, renormalise, factor } => {
                (n_groups, n_groups_kept, renormalise, factor)
            }
            RouterSpec::Only | RouterSpec::Softmax { .. } => panic!("{spec:?}"),
        }
    };
    assert_eq!(groups(&[]), (8, 4, false, 1.0));
    assert_eq!(groups(&[("expert_count", Some(384.0))]), (1, 1, false, 1.0));
    let told = [("expert_group_count", Some(2.0)), ("expert_group_used_count", Some(1.0))];
    assert_eq!(groups(&told), (2, 1, false, 1.0));
    let scaled = [("expert_weights_scale", Some(2.5)), ("expert_weights_norm", Some(1.0))];
    let message = spec_of("deepseek2", &DEEPSEEK, &scaled).unwrap_err();
    assert!(message.contains("`deepseek2.expert_weights_norm` is 1; expected true"), "{message}");
}

#[test]
fn heads_of_latent_attention_are_read_in_both_ways() {
    let widths = |changed: &[(&str, Option<f32>)]| {
        let spec = spec_of("deepseek2", &DEEPSEEK, changed).unwrap();
        let MixerSpec::Mla(mla) = &spec.layers[0].mixer else { panic!("{spec:?}") };
        (mla.nope_dim, mla.rope_dim, mla.v_dim)
    };
    assert_eq!(widths(&[]), (24, 16, 24));
    let older = [("attention.key_length_mla", None), ("attention.value_length_mla", None)];
    assert_eq!(widths(&older), (32, 16, 32));
}

/// GGUF has no key for this.
#[test]
fn the_parts_of_gpt_oss_ropes_have_borders_that_are_not_rounded() {
    let scaled = [
        ("rope.scaling.factor", Some(32.0)),
        ("rope.scaling.original_context_length", Some(4096.0)),
        ("rope.scaling.yarn_beta_fast", Some(32.0)),
        ("attention.sliding_window", Some(128.0)),
    ];
    let spec = spec_of("gpt-oss", &QWEN, &scaled).unwrap();
    let MixerSpec::Attention(attention) = &spec.layers[0].mixer else { panic!("{spec:?}") };
    let RopeScaling::Yarn(yarn) = &attention.rope.scaling else { panic!("{spec:?}") };
    assert!(!yarn.is_truncated);
    assert_eq!((attention.has_sinks, attention.window), (true, Some(128)));
}

#[test]
fn yarn_has_its_scale_from_a_tenth_of_a_logarithm() {
    let changed = [
        ("rope.scaling.factor", Some(40.0)),
        ("rope.scaling.original_context_length", Some(1024.0)),
        ("rope.scaling.yarn_log_multiplier", Some(0.1)),
    ];
    let spec = spec_of("deepseek2", &DEEPSEEK, &changed).unwrap();
    let MixerSpec::Mla(mla) = &spec.layers[0].mixer else { panic!("{spec:?}") };
    let RopeScaling::Yarn(yarn) = &mla.rope.scaling else { panic!("{mla:?}") };
    assert!((yarn.factor - 40.0).abs() < 1e-9 && (yarn.amplitude - 1.0).abs() < 1e-9);
    let temperature = 0.1 * 40_f64.ln() + 1.0;
    let scale = 40_f64.powf(-0.5) * temperature * temperature;
    assert!((f64::from(mla.scale) - scale).abs() < 1e-7, "{} {scale}", mla.scale);
}

#[test]
fn unknown_keys_are_refused_under_their_name_in_the_file() {
    for (key, value, expected) in [
        ("attention.value_length", Some(32.0), "`qwen3moe.attention.value_length`"),
        ("attention.head_count_kv", Some(3.0), "`qwen3moe.attention.head_count_kv` is 3"),
        ("expert_count", None, "key `qwen3moe.expert_count` is missing"),
        ("expert_gating_func", Some(2.0), "`qwen3moe.expert_gating_func`: is 2"),
        ("logit_scale", Some(0.5), "`qwen3moe.logit_scale`: this key is not known"),
        ("rope.dimension_count", Some(50.0), "`qwen3moe.rope.dimension_count`"),
        ("context_length", Some(0.0), "`qwen3moe.context_length` is 0"),
    ] {
        let message = spec_of("qwen3moe", &QWEN, &[(key, value)]).unwrap_err();
        assert!(message.contains(expected), "{key}: {message}");
    }
    let message = spec_of("qwen4exp", &QWEN, &[]).unwrap_err();
    assert!(message.contains("\"qwen4exp\": this architecture is not supported"), "{message}");
    let message = spec_of("qwen3", &QWEN, &[]).unwrap_err();
    assert!(message.contains("`qwen3.expert_count`: experts are not supported"), "{message}");
    let gate = [("expert_gating_func", None)];
    let message = spec_of("deepseek2", &DEEPSEEK, &gate).unwrap_err();
    assert!(message.contains("`deepseek2.expert_gating_func`: is 1"), "{message}");
}
