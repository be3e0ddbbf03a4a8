//! Configs as published, changed key by key, and damaged at random.

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::error::{Error, Result};
use crate::format::RawConfig;

const QWEN3: &str = include_str!("../../tests/data/configs/q3moe-2g.json");
const QWEN35: &str = include_str!("../../tests/data/configs/qwen3.6-35b-a3b.json");
const QWEN35_LARGE: &str = include_str!("../../tests/data/configs/qwen3.5-397b-a17b.json");
const DEEPSEEK: &str = include_str!("../../tests/data/configs/deepseek-v3-671b.json");
const PUBLISHED: [&str; 6] = [
    QWEN3,
    QWEN35,
    QWEN35_LARGE,
    DEEPSEEK,
    include_str!("../../tests/data/configs/q35moe-2g.json"),
    include_str!("../../tests/data/configs/q35moe-8g.json"),
];

const QWEN3_NEXT: &str = r#"{"model_type": "qwen3_next", "vocab_size": 256, "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 4,
    "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 4096,
    "head_dim": 32, "linear_conv_kernel_dim": 3, "linear_key_head_dim": 24,
    "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_value_head_dim": 16,
    "moe_intermediate_size": 40, "num_experts": 8, "num_experts_per_tok": 3,
    "shared_expert_intermediate_size": 48, "rope_theta": 10000000, "mlp_only_layers": [1, 99],
    "rms_norm_eps": 1e-6}"#;

const GLM4: &str = r#"{"model_type": "glm4_moe", "vocab_size": 151552, "hidden_size": 5120,
    "intermediate_size": 12288, "num_hidden_layers": 4, "num_attention_heads": 96,
    "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "attention_bias": true,
    "first_k_dense_replace": 3, "moe_intermediate_size": 1536, "n_group": 1,
    "n_routed_experts": 160, "n_shared_experts": 1, "norm_topk_prob": true,
    "num_experts_per_tok": 8, "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5,
    "rope_scaling": null, "rope_theta": 1000000, "routed_scaling_factor": 2.5, "topk_group": 1,
    "use_qk_norm": true, "eos_token_id": [151329, 151336, 151338],
    "tie_word_embeddings": false}"#;

fn parse(config: &Value) -> Result<ModelSpec> {
    let raw = RawConfig::parse(Path::new("config.json"), config.to_string().as_bytes())?;
    ModelSpec::from_config(&raw)
}

/// The config with one key (`a` or `a.b`) set, or removed by `ABSENT`.
fn with(text: &str, key: &str, value: Value) -> Value {
    let mut config: Value = serde_json::from_str(text).unwrap();
    let (outer, inner) = key.split_once('.').map_or((None, key), |(o, i)| (Some(o), i));
    let place = match outer {
        Some(outer) => &mut config[outer],
        None => &mut config,
    };
    if value == json!(ABSENT) {
        place.as_object_mut().unwrap().remove(inner);
    } else {
        place[inner] = value;
    }
    config
}

const ABSENT: &str = "remove this key";

fn spec(text: &str) -> ModelSpec {
    parse(&serde_json::from_str(text).unwrap()).unwrap()
}

fn rope_of(spec: &ModelSpec) -> &RopeSpec {
    let rope = spec.layers.iter().find_map(|layer| match &layer.mixer {
        MixerSpec::Attention(attention) => Some(&attention.rope),
        MixerSpec::Mla(mla) => Some(&mla.rope),
        MixerSpec::GatedDelta(_) => None,
    });
    rope.unwrap()
}

fn moe_of(spec: &ModelSpec) -> &MoeSpec {
    let moe = spec.layers.iter().find_map(|layer| match &layer.ffn {
        FfnSpec::Moe(moe) => Some(moe),
        FfnSpec::Dense { .. } => None,
    });
    moe.unwrap()
}

fn attention_of(spec: &ModelSpec) -> &AttentionSpec {
    let attention = spec.layers.iter().find_map(|layer| match &layer.mixer {
        MixerSpec::Attention(attention) => Some(attention),
        MixerSpec::GatedDelta(_) | MixerSpec::Mla(_) => None,
    });
    attention.unwrap()
}

/// One letter per layer: mixer, then `d`ense or `e`xperts.
fn layers(spec: &ModelSpec) -> String {
    let letters = |layer: &LayerSpec| {
        let mixer = match layer.mixer {
            MixerSpec::Attention(_) => 'A',
            MixerSpec::GatedDelta(_) => 'G',
            MixerSpec::Mla(_) => 'M',
        };
        [mixer, if matches!(layer.ffn, FfnSpec::Moe(_)) { 'e' } else { 'd' }]
    };
    spec.layers.iter().flat_map(letters).collect()
}

fn tokens(ids: &[u32]) -> Vec<TokenId> {
    ids.iter().copied().map(TokenId).collect()
}

#[test]
fn published_configs_parse() {
    let n_layers = PUBLISHED.map(|text| spec(text).layers.len());
    assert_eq!(n_layers, [6, 40, 60, 61, 8, 16]);
}

#[test]
fn qwen3_moe_as_published() {
    let spec = spec(QWEN3);
    assert_eq!((spec.family, spec.hidden, spec.vocab), (Family::Qwen3Moe, 2048, 4096));
    assert_eq!((spec.norm_epsilon, spec.tied_embeddings), (1e-6, false));
    assert_eq!((layers(&spec).as_str(), spec.eos.clone()), ("AeAeAeAeAeAe", tokens(&[2])));
    let rope = RopeSpec {
        theta: 1e7,
        n_rotated: 128,
        pairing: Pairing::Halves,
        scaling: RopeScaling::None,
    };
    let expected = AttentionSpec {
        n_heads: 32,
        n_kv_heads: 4,
        head_dim: 128,
        rope,
        has_gate: false,
        has_qk_norm: true,
        bias: AttentionBias::None,
    };
    assert_eq!(attention_of(&spec), &expected);
    let router = RouterSpec::Softmax { renormalise: true };
    let expected = MoeSpec { n_experts: 128, top_k: 8, inner: 768, router, shared: None };
    assert_eq!(moe_of(&spec), &expected);
}

#[test]
fn qwen3_5_moe_as_published() {
    let spec = spec(QWEN35_LARGE);
    assert_eq!((spec.family, spec.context_max), (Family::Qwen35Moe, 262_144));
    assert_eq!(layers(&spec), "GeGeGeAe".repeat(15));
    assert_eq!(spec.eos, tokens(&[248_044]));
    let MixerSpec::GatedDelta(delta) = &spec.layers[0].mixer else { panic!("no delta net") };
    assert_eq!((delta.n_k_heads, delta.n_v_heads, delta.conv_cols()), (16, 64, 12_288));
    assert_eq!((delta.k_dim, delta.v_dim, delta.n_taps), (128, 128, 4));
    let attention = attention_of(&spec);
    assert!(attention.has_gate && attention.has_qk_norm);
    assert_eq!((attention.head_dim, attention.rope.n_rotated), (256, 64));
    let moe = moe_of(&spec);
    assert_eq!((moe.n_experts, moe.top_k, moe.inner), (512, 10, 1024));
    assert_eq!(moe.router, RouterSpec::Softmax { renormalise: true });
    assert_eq!(moe.shared, Some(SharedExpertSpec { inner: 1024, is_gated: true }));
}

#[test]
fn the_text_config_alone_is_the_same_model() {
    let wrapped: Value = serde_json::from_str(QWEN35).unwrap();
    assert_eq!(parse(&wrapped["text_config"]).unwrap(), spec(QWEN35));
}

#[test]
fn qwen3_next_with_dense_layers() {
    let spec = spec(QWEN3_NEXT);
    assert_eq!(layers(&spec), "GeGdGeAeGe");
    assert_eq!(spec.layers[1].ffn, FfnSpec::Dense { inner: 96 });
    assert_eq!(rope_of(&spec).n_rotated, 8);
    assert_eq!(moe_of(&spec).router, RouterSpec::Softmax { renormalise: true });
    assert!(spec.eos.is_empty());
}

#[test]
fn deepseek_v3_as_published() {
    let spec = spec(DEEPSEEK);
    assert_eq!(layers(&spec), format!("{}{}", "Md".repeat(3), "Me".repeat(58)));
    assert_eq!(spec.layers[0].ffn, FfnSpec::Dense { inner: 18_432 });
    let MixerSpec::Mla(mla) = &spec.layers[60].mixer else { panic!("no MLA") };
    assert_eq!((mla.n_heads, mla.q_rank, mla.kv_rank), (128, Some(1536), 512));
    assert_eq!((mla.nope_dim, mla.rope_dim, mla.v_dim), (128, 64, 128));
    assert_eq!((mla.rope.pairing, mla.has_bias), (Pairing::Neighbours, false));
    let router = RouterSpec::SigmoidGrouped {
        n_groups: 8,
        n_groups_kept: 4,
        renormalise: true,
        factor: 2.5,
    };
    let shared = Some(SharedExpertSpec { inner: 2048, is_gated: false });
    let expected = MoeSpec { n_experts: 256, top_k: 8, inner: 2048, router, shared };
    assert_eq!(moe_of(&spec), &expected);
}

#[test]
fn glm4_moe_as_published() {
    let spec = spec(GLM4);
    assert_eq!(layers(&spec), "AdAdAdAe");
    let attention = attention_of(&spec);
    assert_eq!((attention.bias, attention.has_qk_norm), (AttentionBias::Qkv, true));
    assert_eq!(attention.rope.n_rotated, 64);
    assert_eq!(spec.eos, tokens(&[151_329, 151_336, 151_338]));
    let bare = parse(&with(GLM4, "use_qk_norm", json!(ABSENT))).unwrap();
    assert!(!attention_of(&bare).has_qk_norm);
}

#[test]
fn keys_change_what_they_name() {
    let kimi = parse(&with(DEEPSEEK, "model_type", json!("kimi_k2"))).unwrap();
    assert_eq!((kimi.family, kimi.layers), (Family::KimiK2, spec(DEEPSEEK).layers));
    let direct = parse(&with(DEEPSEEK, "q_lora_rank", json!(null))).unwrap();
    let MixerSpec::Mla(mla) = &direct.layers[0].mixer else { panic!("no MLA") };
    assert_eq!(mla.q_rank, None);
    let halves = parse(&with(DEEPSEEK, "rope_interleave", json!(false))).unwrap();
    assert_eq!(rope_of(&halves).pairing, Pairing::Halves);
    let no_shared = parse(&with(DEEPSEEK, "n_shared_experts", json!(0))).unwrap();
    assert_eq!(moe_of(&no_shared).shared, None);
    let all_sparse = parse(&with(DEEPSEEK, "first_k_dense_replace", json!(0))).unwrap();
    assert_eq!(layers(&all_sparse), "Me".repeat(61));

    let plain = parse(&with(QWEN3, "norm_topk_prob", json!(ABSENT))).unwrap();
    assert_eq!(moe_of(&plain).router, RouterSpec::Softmax { renormalise: false });
    let biased = parse(&with(QWEN3, "attention_bias", json!(true))).unwrap();
    assert_eq!(attention_of(&biased).bias, AttentionBias::QkvAndOut);
    let every_second = parse(&with(QWEN3, "decoder_sparse_step", json!(2))).unwrap();
    assert_eq!(layers(&every_second), "AdAeAdAeAdAe");
    let derived = parse(&with(QWEN3, "head_dim", json!(ABSENT))).unwrap();
    assert_eq!(attention_of(&derived).head_dim, 64);

    let third = parse(&with(QWEN3_NEXT, "full_attention_interval", json!(3))).unwrap();
    assert_eq!(layers(&third), "GeGdAeGeGe");
    let always = parse(&with(QWEN35, "text_config.norm_topk_prob", json!(false))).unwrap();
    assert_eq!(moe_of(&always).router, RouterSpec::Softmax { renormalise: true });
    let tied = parse(&with(QWEN35, "tie_word_embeddings", json!(true))).unwrap();
    assert!(tied.tied_embeddings);
    let outer_eos = parse(&with(QWEN35, "text_config.eos_token_id", json!(null))).unwrap();
    assert_eq!(outer_eos.eos, []);
}

#[test]
fn the_dialect_of_transformers_5_is_read() {
    let mut config: Value = serde_json::from_str(QWEN3).unwrap();
    let keys = config.as_object_mut().unwrap();
    keys.remove("rope_theta");
    keys.remove("rope_scaling");
    let n_experts = keys.remove("num_experts").unwrap();
    keys.insert("num_local_experts".into(), n_experts);
    keys.insert("rope_parameters".into(), json!({"rope_type": "default", "rope_theta": 1e7}));
    assert_eq!(parse(&config).unwrap(), spec(QWEN3));
}

/// A rope computed by transformers 5.23.
struct Oracle {
    config: Value,
    n_rotated: usize,
    /// Frequencies of pairs 0, 1, the middle and the last.
    frequencies: [f32; 4],
    amplitude: f32,
}

#[track_caller]
fn check_rope(oracle: &Oracle) {
    let spec = parse(&oracle.config).unwrap();
    let rope = rope_of(&spec);
    assert_eq!(rope.n_rotated, oracle.n_rotated);
    let all = rope.frequencies();
    let some = [all[0], all[1], all[all.len() / 2], all[all.len() - 1]];
    for (ours, theirs) in some.iter().zip(oracle.frequencies) {
        assert!((ours / theirs - 1.0).abs() < 1e-6, "{some:?} {:?}", oracle.frequencies);
    }
    assert!((rope.amplitude() / oracle.amplitude - 1.0).abs() < 1e-6, "{}", rope.amplitude());
}

fn with_rope(text: &str, keys: &[(&str, Value)]) -> Value {
    let mut config: Value = serde_json::from_str(text).unwrap();
    for (key, value) in keys {
        config[key] = value.clone();
    }
    config
}

#[test]
fn ropes_are_those_of_transformers() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0,
        "original_max_position_embeddings": 32768});
    check_rope(&Oracle {
        config: with_rope(QWEN3, &[("rope_theta", json!(1e6)), ("rope_scaling", yarn)]),
        n_rotated: 128,
        frequencies: [1.0, 0.805_842_2, 0.000_602_941_15, 3.102_344_4e-7],
        amplitude: 1.138_629_4,
    });
    let linear = json!({"type": "linear", "factor": 2.5});
    check_rope(&Oracle {
        config: with_rope(QWEN3, &[("rope_theta", json!(1e6)), ("rope_scaling", linear)]),
        n_rotated: 128,
        frequencies: [0.4, 0.322_336_88, 0.000_400_000_02, 4.963_751e-7],
        amplitude: 1.0,
    });
    check_rope(&Oracle {
        config: with_rope(QWEN3, &[("rope_theta", json!(null)), ("head_dim", json!(32))]),
        n_rotated: 32,
        frequencies: [1.0, 0.562_341_33, 0.01, 0.000_177_827_94],
        amplitude: 1.0,
    });
    let yarn = json!({"type": "yarn", "factor": 8, "original_max_position_embeddings": 64,
        "truncate": false, "beta_fast": 16, "beta_slow": 2, "attention_factor": 1.25});
    let keys = [("rope_theta", json!(5e5)), ("rope_scaling", yarn), ("head_dim", json!(64))];
    check_rope(&Oracle {
        config: with_rope(QWEN3, &keys),
        n_rotated: 64,
        frequencies: [1.0, 0.517_329_45, 0.000_176_776_68, 3.767_322_6e-7],
        amplitude: 1.25,
    });
    let parameters = json!({"rope_type": "yarn", "rope_theta": 7e4, "factor": null,
        "original_max_position_embeddings": 64});
    let keys = [
        ("rope_theta", json!(5e5)),
        ("rope_parameters", parameters),
        ("head_dim", json!(64)),
        ("max_position_embeddings", json!(512)),
    ];
    check_rope(&Oracle {
        config: with_rope(QWEN3, &keys),
        n_rotated: 64,
        frequencies: [1.0, 0.617_445_7, 0.000_472_455_58, 2.530_587_2e-6],
        amplitude: 1.207_944_2,
    });
    check_rope(&Oracle {
        config: with_rope(GLM4, &[]),
        n_rotated: 64,
        frequencies: [1.0, 0.649_381_64, 0.001, 1.539_926_5e-6],
        amplitude: 1.0,
    });
    check_rope(&Oracle {
        config: with_rope(QWEN35, &[]),
        n_rotated: 64,
        frequencies: [1.0, 0.604_296_4, 0.000_316_227_8, 1.654_817_1e-7],
        amplitude: 1.0,
    });
}

#[test]
fn latent_attention_scales_its_scores_as_transformers() {
    let check = |config: Value, amplitude: f32, scale: f32, last: f32| {
        let spec = parse(&config).unwrap();
        let MixerSpec::Mla(mla) = &spec.layers[0].mixer else { panic!("no MLA") };
        assert!((mla.scale / scale - 1.0).abs() < 1e-6, "{} {scale}", mla.scale);
        assert!((mla.rope.amplitude() / amplitude - 1.0).abs() < 1e-6);
        assert!((mla.rope.frequencies()[31] / last - 1.0).abs() < 1e-6);
    };
    check(with_rope(DEEPSEEK, &[]), 1.0, 0.135_233_78, 3.333_803_5e-6);
    check(with_rope(DEEPSEEK, &[("rope_scaling", json!({}))]), 1.0, 0.072_168_78, 0.000_133_352_15);
    let kimi = json!({"beta_fast": 1, "beta_slow": 1, "factor": 32, "mscale": 1.0,
        "mscale_all_dim": 0.7, "original_max_position_embeddings": 4096, "type": "yarn"});
    let keys = [("rope_theta", json!(50000)), ("rope_scaling", kimi)];
    check(with_rope(DEEPSEEK, &keys), 1.083_672_9, 0.111_432_83, 8.764_413e-7);
}

/// Changes one key of a config and wants the message to contain all of `expected`.
#[track_caller]
fn refuses(text: &str, key: &str, value: Value, expected: &[&str]) {
    let message = parse(&with(text, key, value)).unwrap_err().to_string();
    for part in ["config.json", key.rsplit('.').next().unwrap()].iter().chain(expected) {
        assert!(message.contains(part), "`{message}` does not say `{part}`");
    }
    assert!(!message.contains('\n'), "{message}");
}

#[test]
fn impossible_numbers_are_refused() {
    let huge = json!(u64::MAX);
    let cases = [
        (QWEN3, "hidden_size", json!(0), "an integer from 1 to 1048576"),
        (QWEN3, "hidden_size", huge.clone(), "an integer from 1 to 1048576"),
        (QWEN3, "hidden_size", json!(-5), "a non-negative integer"),
        (QWEN3, "hidden_size", json!(2048.5), "a non-negative integer"),
        (QWEN3, "hidden_size", json!("2048"), "is \"2048\"; expected"),
        (QWEN3, "hidden_size", json!(ABSENT), "is missing"),
        (QWEN3, "num_hidden_layers", json!(4_000_000_000_u64), "1 to 4096"),
        (QWEN3, "vocab_size", huge.clone(), "1 to 16777216"),
        (QWEN3, "max_position_embeddings", huge, "1 to 1073741824"),
        (QWEN3, "num_experts", json!(70_000), "1 to 65536"),
        (QWEN3, "num_experts", json!(0), "1 to 65536"),
        (QWEN3, "num_experts_per_tok", json!(129), "1 to the number of experts, 128"),
        (QWEN3, "num_experts_per_tok", json!(0), "1 to the number of experts, 128"),
        (QWEN3, "num_key_value_heads", json!(5), "a divisor of `num_attention_heads`, 32"),
        (QWEN3, "head_dim", json!(127), "even"),
        (QWEN3, "num_attention_heads", json!(16_384), "at most 1048576 in product"),
        (QWEN3, "rms_norm_eps", json!(0), "above 0"),
        (QWEN3, "rms_norm_eps", json!(1e-300), "above 0"),
        (QWEN3, "rope_theta", json!(1), "above 1"),
        (QWEN3, "decoder_sparse_step", json!(0), "from 1"),
        (QWEN3, "mlp_only_layers", json!([-1]), "a list of 1; expected"),
        (QWEN3, "eos_token_id", json!(1_u64 << 40), "below 2^32"),
        (QWEN3, "eos_token_id", json!("</s>"), "a non-negative integer"),
        (QWEN3, "partial_rotary_factor", json!(1.5), "here it is 192"),
        (QWEN3, "partial_rotary_factor", json!(1e300), "here it is"),
        (QWEN3, "partial_rotary_factor", json!(0.01), "here it is 1"),
        (QWEN3_NEXT, "linear_conv_kernel_dim", json!(65), "at most 64 taps"),
        (QWEN3_NEXT, "full_attention_interval", json!(0), "from 1"),
        (QWEN35, "text_config.layer_types", json!(["full_attention"]), "the 40 layers"),
        (QWEN35, "text_config.moe_intermediate_size", json!(null), "`text_config.moe_inter"),
        (DEEPSEEK, "n_group", json!(7), "a divisor of `n_routed_experts`, 256"),
        (DEEPSEEK, "n_group", json!(256), "at least 2 experts"),
        (DEEPSEEK, "topk_group", json!(9), "at most the number of groups, 8"),
        (DEEPSEEK, "num_experts_per_tok", json!(200), "the 128 experts of 4 groups of 32"),
        (DEEPSEEK, "n_shared_experts", json!(1000), "in product with `moe_intermediate_size`"),
        (DEEPSEEK, "routed_scaling_factor", json!(0), "above 0"),
        (DEEPSEEK, "rope_scaling.factor", json!(0.5), "a number from 1"),
        (DEEPSEEK, "rope_scaling.mscale", json!(-1), "a number from 0"),
        (DEEPSEEK, "rope_scaling.original_max_position_embeddings", json!(0), "at least 1"),
        (DEEPSEEK, "rope_scaling", json!(3), "expected an object"),
    ];
    for (text, key, value, expected) in cases {
        refuses(text, key, value, &[expected]);
    }
    refuses(
        QWEN3_NEXT,
        "linear_num_key_heads",
        json!(5),
        &["is 5; expected a divisor of `linear_num_value_heads`, 6"],
    );
}

#[test]
fn features_that_are_not_known_are_refused_by_name() {
    let cases = [
        (QWEN3, "hidden_act", json!("gelu"), "is \"gelu\""),
        (QWEN3, "use_sliding_window", json!(true), "not supported"),
        (QWEN3, "layer_types", json!(["sliding_attention"]), "\"sliding_attention\""),
        (QWEN35, "text_config.layer_types", json!(vec!["mamba"; 40]), "\"mamba\""),
        (DEEPSEEK, "rope_scaling.type", json!("llama3"), "is \"llama3\""),
        (DEEPSEEK, "rope_scaling.type", json!("longrope"), "is \"longrope\""),
        (DEEPSEEK, "rope_scaling.type", json!("dynamic"), "is \"dynamic\""),
        (DEEPSEEK, "rope_scaling.full_attention", json!({}), "each kind of layer"),
        (DEEPSEEK, "partial_rotary_factor", json!(0.5), "not supported"),
        (DEEPSEEK, "scoring_func", json!("softmax"), "only \"sigmoid\""),
        (DEEPSEEK, "topk_method", json!("greedy"), "only \"noaux_tc\""),
        (DEEPSEEK, "moe_layer_freq", json!(2), "only 1"),
        (QWEN3, "model_type", json!("mixtral"), "family is not known; known are qwen3_moe,"),
    ];
    for (text, key, value, expected) in cases {
        refuses(text, key, value, &[expected]);
    }
    refuses(QWEN3, "model_type", json!(ABSENT), &["is missing"]);
}

#[test]
fn a_dense_model_is_called_one() {
    let mut config = with(QWEN3, "model_type", json!("qwen3"));
    config.as_object_mut().unwrap().remove("num_experts");
    let message = parse(&config).unwrap_err().to_string();
    assert!(message.contains("`model_type` is \"qwen3\": this is not a Mixture-of-Experts family"));
}

#[test]
fn mlx_quantisation_is_read_with_its_exceptions() {
    let section = json!({
        "group_size": 64, "bits": 4, "mode": "affine",
        "language_model.model.layers.0.mlp.gate": {"group_size": 64, "bits": 8},
        "model.layers.1.mlp.gate": {"bits": 8},
        "lm_head": false,
        "model.embed_tokens": true,
    });
    let config = with(QWEN3, "quantization", section);
    let quantisation = parse(&config).unwrap().quantisation;
    let params = |bits, group| Some(QuantParams { bits, group });
    assert_eq!((quantisation.default, quantisation.is_fp8), (params(4, 64), false));
    let overrides: Vec<_> = quantisation.overrides.into_iter().collect();
    let expected = [
        ("lm_head", None),
        ("model.embed_tokens", params(4, 64)),
        ("model.layers.0.mlp.gate", params(8, 64)),
        ("model.layers.1.mlp.gate", params(8, 64)),
    ];
    assert_eq!(overrides, expected.map(|(name, params)| (name.to_owned(), params)));
    let twice = with(QWEN3, "quantization_config", json!({"group_size": 32, "bits": 5}));
    assert_eq!(parse(&twice).unwrap().quantisation.default, params(5, 32));
    assert_eq!(spec(QWEN3).quantisation, Quantisation::default());
}

#[test]
fn fp8_blocks_are_read() {
    let section = json!({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [128, 128]});
    let spec = parse(&with(DEEPSEEK, "quantization_config", section)).unwrap();
    assert!(spec.quantisation.is_fp8 && spec.quantisation.default.is_none());
}

#[test]
fn other_quantisations_are_refused_by_name() {
    let mlx = "quantization";
    let hub = "quantization_config";
    let cases = [
        (hub, json!({"quant_method": "gptq", "bits": 4}), "\"gptq\": this quantisation"),
        (hub, json!({"quant_method": "awq"}), "\"awq\""),
        (hub, json!({"quant_method": "mxfp4"}), "\"mxfp4\""),
        (hub, json!({"quant_method": "compressed-tensors"}), "use the published bf16"),
        (hub, json!({"quant_method": "fp8"}), "`quantization_config.weight_block_size` is absent"),
        (
            hub,
            json!({"quant_method": "fp8", "weight_block_size": [64, 128]}),
            "need blocks of [128, 128]",
        ),
        (
            hub,
            json!({"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e5m2"}),
            "is \"e5m2\"",
        ),
        (mlx, json!({"bits": 4, "group_size": 32, "mode": "mxfp4"}), "\"mxfp4\""),
        (mlx, json!({"bits": 4}), "key `quantization.group_size` is missing"),
        (mlx, json!({"bits": 7, "group_size": 64}), "2, 3, 4, 5, 6 or 8"),
        (mlx, json!({"bits": 260, "group_size": 64}), "2, 3, 4, 5, 6 or 8"),
        (mlx, json!({"bits": 4, "group_size": 16}), "32, 64 or 128"),
        (mlx, json!({"bits": 4, "group_size": 64, "lm_head": 8}), "`quantization.lm_head` is 8"),
        (
            mlx,
            json!({"bits": 4, "group_size": 64, "lm_head": {"mode": "nvfp4"}}),
            "`quantization.lm_head.mode` is \"nvfp4\"",
        ),
        (
            mlx,
            json!({"bits": 4, "group_size": 64, "lm_head": false, "language_model.lm_head": true}),
            "the tensor's other name",
        ),
    ];
    for (key, section, expected) in cases {
        refuses(QWEN3, key, section, &[expected]);
    }
}

/// A small generator: the test's seed is its whole state.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % n
    }

    /// Another value for one key, now and then in a nested object.
    fn damage(&mut self, config: &mut Value) {
        let hostile = [
            json!(null),
            json!(0),
            json!(1),
            json!(2),
            json!(-1),
            json!(7),
            json!(64),
            json!(65_536),
            json!(u64::MAX),
            json!(1_u64 << 32),
            json!(1e-320),
            json!(1e308),
            json!(0.3),
            json!("yarn"),
            json!("linear"),
            json!(true),
            json!([]),
            json!([1, 2, 3]),
            json!({}),
            json!({"rope_type": "yarn"}),
            json!({"rope_type": "linear", "factor": 3}),
        ];
        let Value::Object(keys) = config else { return };
        let nth = self.below(keys.len().max(1));
        let Some((_, value)) = keys.iter_mut().nth(nth) else { return };
        if value.is_object() && self.below(8) != 0 {
            self.damage(value);
        } else {
            *value = hostile[self.below(hostile.len())].clone();
        }
    }
}

#[test]
fn damaged_configs_never_panic_and_what_is_accepted_is_sound() {
    let mut random = Random(0x5eed_0002);
    let (mut n_accepted, mut n_refused) = (0, 0);
    for nth in 0..12_000 {
        let texts = [QWEN3, QWEN35, DEEPSEEK, QWEN3_NEXT, GLM4];
        let mut config: Value = serde_json::from_str(texts[nth % texts.len()]).unwrap();
        for _ in 0..=random.below(3) {
            random.damage(&mut config);
        }
        match parse(&config) {
            Ok(spec) => {
                n_accepted += 1;
                check_sound(&spec);
            }
            Err(Error::Malformed { .. } | Error::Unsupported(_)) => n_refused += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(n_accepted > 1000 && n_refused > 1000, "{n_accepted} {n_refused}");
}

fn check_sound(spec: &ModelSpec) {
    assert!(!spec.layers.is_empty() && spec.hidden > 0 && spec.vocab > 0);
    let rope = rope_of_any(spec);
    let is_sound = |frequency: &f32| frequency.is_finite() && *frequency >= 0.0;
    assert!(rope.is_none_or(|rope| rope.frequencies().iter().all(is_sound)), "{rope:?}");
    assert!(rope.is_none_or(|rope| rope.amplitude().is_finite()), "{rope:?}");
    for layer in &spec.layers {
        if let FfnSpec::Moe(moe) = &layer.ffn {
            assert!(moe.top_k <= moe.n_experts && moe.inner > 0);
            let bytes = moe.n_experts.checked_mul(spec.hidden * moe.inner * 8);
            assert!(bytes.is_some());
        }
    }
}

fn rope_of_any(spec: &ModelSpec) -> Option<&RopeSpec> {
    let has_rope = |layer: &LayerSpec| !matches!(layer.mixer, MixerSpec::GatedDelta(_));
    spec.layers.iter().any(has_rope).then(|| rope_of(spec))
}
