//! Published configs, changed key by key, and damaged at random.

mod families;
mod dense;
mod refused;
mod rope;
mod qwen4_exp;

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::error::{Error, Result};
use crate::format::RawConfig;

const QWEN3: &str = include_str!("../../../tests/data/configs/q3moe-2g.json");
const QWEN35: &str = include_str!("../../../tests/data/configs/qwen3.6-35b-a3b.json");
const QWEN35_LARGE: &str = include_str!("../../../tests/data/configs/qwen3.5-397b-a17b.json");
const DEEPSEEK: &str = include_str!("../../../tests/data/configs/deepseek-v3-671b.json");
const PUBLISHED: [&str; 7] = [
    QWEN3,
    QWEN35,
    QWEN35_LARGE,
    DEEPSEEK,
    include_str!("../../../tests/data/configs/q35moe-2g.json"),
    include_str!("../../../tests/data/configs/q35moe-8g.json"),
    include_str!("../../../tests/data/configs/dsv3-2g.json"),
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

/// Returns the config with one key (`a` or `a.b`) set, or removed if the value is `ABSENT`.
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

fn plain_moe(
    (n_experts, top_k, inner): (usize, usize, usize),
    router: RouterSpec,
    shared: Option<SharedExpertSpec>,
) -> MoeSpec {
    let (activation, has_bias) = (Activation::SwiGlu, false);
    MoeSpec { n_experts, top_k, inner, router, activation, has_bias, shared }
}

fn attention_of(spec: &ModelSpec) -> &AttentionSpec {
    let attention = spec.layers.iter().find_map(|layer| match &layer.mixer {
        MixerSpec::Attention(attention) => Some(attention),
        MixerSpec::GatedDelta(_) | MixerSpec::Mla(_) => None,
    });
    attention.unwrap()
}

/// Returns letters per layer: the mixer, then `d`ense or `e`xperts.
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
    assert_eq!(n_layers, [6, 40, 60, 61, 8, 16, 9]);
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
        norm: QkNorm::Heads,
        bias: AttentionBias::None,
        window: None,
        has_sinks: false,
    };
    assert_eq!(attention_of(&spec), &expected);
    let router = RouterSpec::Softmax { renormalise: true };
    assert_eq!(moe_of(&spec), &plain_moe((128, 8, 768), router, None));
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
    assert!(attention.has_gate && attention.norm == QkNorm::Heads);
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
    assert_eq!(spec.layers[1].ffn, FfnSpec::Dense { inner: 96, has_bias: false });
    assert_eq!(rope_of(&spec).n_rotated, 8);
    assert_eq!(moe_of(&spec).router, RouterSpec::Softmax { renormalise: true });
    assert!(spec.eos.is_empty());
}

#[test]
fn deepseek_v3_as_published() {
    let spec = spec(DEEPSEEK);
    assert_eq!(layers(&spec), format!("{}{}", "Md".repeat(3), "Me".repeat(58)));
    assert_eq!(spec.layers[0].ffn, FfnSpec::Dense { inner: 18_432, has_bias: false });
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
    assert_eq!(moe_of(&spec), &plain_moe((256, 8, 2048), router, shared));
}

#[test]
fn glm4_moe_as_published() {
    let spec = spec(GLM4);
    assert_eq!(layers(&spec), "AdAdAdAe");
    let attention = attention_of(&spec);
    assert_eq!((attention.bias, attention.norm), (AttentionBias::Qkv, QkNorm::Heads));
    assert_eq!(attention.rope.n_rotated, 64);
    assert_eq!(spec.eos, tokens(&[151_329, 151_336, 151_338]));
    let bare = parse(&with(GLM4, "use_qk_norm", json!(ABSENT))).unwrap();
    assert_eq!(attention_of(&bare).norm, QkNorm::None);
}

#[test]
fn keys_change_the_parts_that_they_name() {
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
    assert_eq!((quantisation.default, quantisation.native), (params(4, 64), None));
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
    let blocks = |n_rows, n_cols| {
        Quantisation::of_native(NativeFormat::Fp8(Fp8Spread::Block { n_rows, n_cols }))
    };
    assert_eq!(spec.quantisation, blocks(128, 128));
    let section = json!({"quant_method": "fp8", "scale_fmt": "ue8m0", "ignored_layers": ["lm_head"],
        "weight_block_size": [32, 64]});
    let spec = parse(&with(DEEPSEEK, "quantization_config", section)).unwrap();
    assert_eq!(spec.quantisation, blocks(32, 64));
    for (strategy, expected) in [
        (json!("channel"), Quantisation::of_native(NativeFormat::Fp8(Fp8Spread::Row))),
        (json!("tensor"), Quantisation::of_native(NativeFormat::Fp8(Fp8Spread::Matrix))),
        (json!("block"), blocks(128, 128)),
    ] {
        let weights = json!({"num_bits": 8, "type": "float", "symmetric": true,
            "strategy": strategy, "block_structure": [128, 128]});
        let section = json!({"quant_method": "compressed-tensors", "format": "float-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
                "input_activations": {"num_bits": 8, "dynamic": true}}}});
        let spec = parse(&with(DEEPSEEK, "quantization_config", section)).unwrap();
        assert_eq!(spec.quantisation, expected);
    }
}

#[test]
fn published_formats_are_read_as_their_tools_write_them() {
    let mxfp4 = Quantisation::of_native(NativeFormat::Mxfp4);
    let compressed = json!({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4,
            "type": "float", "strategy": "group", "group_size": 32, "symmetric": true,
            "scale_dtype": "torch.uint8"}}},
        "ignore": ["lm_head", "re:.*self_attn.*"], "kv_cache_scheme": null,
        "sparsity_config": {}, "quantization_status": "compressed"});
    let mut twice = compressed.clone();
    twice["config_groups"]["group_1"] = twice["config_groups"]["group_0"].clone();
    for section in [
        json!({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}),
        compressed,
        twice,
        json!({"bits": 4, "group_size": 32, "mode": "mxfp4"}),
    ] {
        let spec = parse(&with(QWEN3, "quantization_config", section)).unwrap();
        assert_eq!(spec.quantisation, mxfp4);
    }
    let ints = json!({"quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"actorder": null,
            "group_size": 32, "num_bits": 4, "strategy": "group", "symmetric": true,
            "type": "int"}, "input_activations": null}}, "ignore": ["lm_head"]});
    let spec = parse(&with(QWEN3, "quantization_config", ints)).unwrap();
    let params = QuantParams { bits: 4, group: 32 };
    assert_eq!(spec.quantisation, Quantisation::of_native(NativeFormat::Ints(params)));
    // An affine router among MXFP4 experts, and the other way round.
    let router = "model.layers.0.mlp.gate";
    let affine = json!({"bits": 8, "group_size": 64, "mode": "affine"});
    let four = json!({"bits": 4, "group_size": 32, "mode": "mxfp4"});
    for (mut section, tensor, expected) in [
        (four.clone(), affine.clone(), (None, Some(QuantParams { bits: 8, group: 64 }))),
        (affine, four, (Some(QuantParams { bits: 8, group: 64 }), None)),
    ] {
        section[router] = tensor;
        let quantisation = parse(&with(QWEN3, "quantization", section)).unwrap().quantisation;
        assert_eq!((quantisation.default, quantisation.overrides[router]), expected);
        assert_eq!(quantisation.native, Some(NativeFormat::Mxfp4));
    }
}

/// As mlx-lm 0.32 reads them: what an entry lacks is not that of the whole section.
#[test]
fn entries_of_mlx_have_defaults_of_their_own() {
    let params = |bits, group| Some(QuantParams { bits, group });
    let five = json!({"bits": 5, "group_size": 32});
    let four = json!({"bits": 4, "group_size": 32, "mode": "mxfp4"});
    let name = "model.layers.0.mlp.router";
    for (section, entry, expected) in [
        (&five, json!({"bits": 8}), params(8, 64)),
        (&five, json!({"group_size": 128}), params(4, 128)),
        (&five, json!({}), params(4, 64)),
        (&five, json!({"mode": "mxfp4"}), None),
        (&five, json!(true), params(5, 32)),
        // So is the router of gpt-oss written.
        (&four, json!({"group_size": 64, "bits": 8}), params(8, 64)),
        (&four, json!({"bits": 8}), params(8, 64)),
        (&four, json!(true), None),
    ] {
        let mut section = section.clone();
        section[name] = entry.clone();
        let quantisation = parse(&with(QWEN3, "quantization", section)).unwrap().quantisation;
        assert_eq!(quantisation.overrides["model.layers.0.mlp.gate"], expected, "{entry}");
    }
}

/// Changes configs at random. Its whole state is the test's seed.
struct ConfigDamager(u64);

impl ConfigDamager {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % n
    }

    /// Changes the value of one key, sometimes in a nested object.
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
fn damaged_configs_never_panic_and_accepted_ones_are_sound() {
    let mut damager = ConfigDamager(0x5eed_0002);
    let (mut n_accepted, mut n_refused) = (0, 0);
    for nth in 0..12_000 {
        let texts = [QWEN3, QWEN35, DEEPSEEK, QWEN3_NEXT, GLM4, qwen4_exp::QWEN4];
        let mut config: Value = serde_json::from_str(texts[nth % texts.len()]).unwrap();
        for _ in 0..=damager.below(3) {
            damager.damage(&mut config);
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
