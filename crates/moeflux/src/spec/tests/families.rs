//! The configs of each family, compared with transformers.

use super::*;

/// gpt-oss-20b, with fewer layers.
pub(super) const GPT_OSS: &str = r#"{"model_type": "gpt_oss", "attention_bias": true,
    "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880, "layer_types":
    ["sliding_attention", "full_attention", "sliding_attention"],
    "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts_per_tok": 4,
    "num_hidden_layers": 3, "num_key_value_heads": 8, "num_local_experts": 32,
    "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
    "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
    "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0,
    "tie_word_embeddings": false, "vocab_size": 201088}"#;

const MINIMAX: &str = r#"{"model_type": "minimax_m2", "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 3072, "intermediate_size": 1536, "max_position_embeddings": 196608,
    "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 2,
    "num_key_value_heads": 8, "num_local_experts": 256, "qk_norm_type": "per_layer",
    "rms_norm_eps": 1e-06, "rope_theta": 5000000, "rotary_dim": 64, "scoring_func": "sigmoid",
    "use_mtp": true, "use_qk_norm": true, "use_routing_bias": true, "vocab_size": 200064}"#;

const HY3: &str = r#"{"model_type": "hy_v3", "hidden_size": 4096, "intermediate_size": 13312,
    "num_hidden_layers": 3, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "num_experts": 192,
    "num_experts_per_tok": 8, "num_shared_experts": 1, "moe_intermediate_size": 1536,
    "router_scaling_factor": 2.826, "vocab_size": 120832}"#;

const GLM_FLASH: &str = r#"{"model_type": "glm4_moe_lite", "hidden_size": 2048,
    "intermediate_size": 10240, "moe_intermediate_size": 1536, "num_hidden_layers": 3,
    "num_attention_heads": 20, "num_key_value_heads": 20, "n_shared_experts": 1,
    "n_routed_experts": 64, "routed_scaling_factor": 1.8, "kv_lora_rank": 512, "q_lora_rank": 768,
    "qk_rope_head_dim": 64, "v_head_dim": 256, "qk_nope_head_dim": 192, "topk_method": "noaux_tc",
    "num_experts_per_tok": 4, "partial_rotary_factor": 1.0, "rope_theta": 1000000,
    "max_position_embeddings": 202752, "vocab_size": 154880}"#;

const QWEN2: &str = r#"{"model_type": "qwen2_moe", "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 2, "num_attention_heads": 28, "num_key_value_heads": 4,
    "max_position_embeddings": 32768, "moe_intermediate_size": 2560, "norm_topk_prob": false,
    "shared_expert_intermediate_size": 20480, "num_experts_per_tok": 8, "num_experts": 64,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 65536,
    "use_sliding_window": false, "vocab_size": 151936}"#;

const MIXTRAL: &str = r#"{"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 32768, "num_experts_per_tok": 2, "num_local_experts": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null, "vocab_size": 32000}"#;

const OLMOE: &str = r#"{"model_type": "olmoe", "attention_bias": false, "clip_qkv": null,
    "hidden_size": 2048, "intermediate_size": 1024, "max_position_embeddings": 4096,
    "norm_topk_prob": false, "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
    "num_hidden_layers": 2, "num_key_value_heads": 16, "rope_theta": 1e4, "vocab_size": 50304}"#;

fn windows(spec: &ModelSpec) -> Vec<Option<usize>> {
    let window = |layer: &LayerSpec| match &layer.mixer {
        MixerSpec::Attention(attention) => attention.window,
        MixerSpec::GatedDelta(_) | MixerSpec::Mla(_) => None,
    };
    spec.layers.iter().map(window).collect()
}

#[test]
fn gpt_oss_as_published() {
    let spec = spec(GPT_OSS);
    assert_eq!((layers(&spec).as_str(), spec.context_max), ("AeAeAe", 131_072));
    assert_eq!(windows(&spec), [Some(128), None, Some(128)]);
    let attention = attention_of(&spec);
    assert_eq!((attention.bias, attention.norm), (AttentionBias::QkvAndOut, QkNorm::None));
    assert!(attention.has_sinks);
    let RopeScaling::Yarn(yarn) = &attention.rope.scaling else { panic!("no YaRN") };
    assert!(!yarn.is_truncated);
    assert!((yarn.amplitude - (0.1 * 32_f64.ln() + 1.0)).abs() < 1e-12);
    let moe = moe_of(&spec);
    assert_eq!((moe.n_experts, moe.top_k, moe.inner), (32, 4, 2880));
    assert_eq!((moe.activation, moe.has_bias), (Activation::Clamped { limit: 7.0 }, true));
    assert_eq!(moe.router, RouterSpec::Softmax { renormalise: true });

    let by_default = parse(&with(GPT_OSS, "layer_types", json!(ABSENT))).unwrap();
    assert_eq!(windows(&by_default), [Some(128), None, Some(128)]);
}

#[test]
fn minimax_m2_as_published() {
    let spec = spec(MINIMAX);
    let attention = attention_of(&spec);
    assert_eq!((attention.norm, attention.rope.n_rotated), (QkNorm::Row, 64));
    let router = RouterSpec::SigmoidGrouped {
        n_groups: 1,
        n_groups_kept: 1,
        renormalise: true,
        factor: 1.0,
    };
    assert_eq!(moe_of(&spec), &plain_moe((256, 8, 1536), router, None));
    let whole = parse(&with(MINIMAX, "rotary_dim", json!(ABSENT))).unwrap();
    assert_eq!(rope_of(&whole).n_rotated, 128);
    let told = parse(&with(MINIMAX, "partial_rotary_factor", json!(0.25))).unwrap();
    assert_eq!(rope_of(&told).n_rotated, 32);
}

#[test]
fn hy_v3_as_published() {
    let spec = spec(HY3);
    assert_eq!(layers(&spec), "AdAeAe");
    assert_eq!(attention_of(&spec).norm, QkNorm::Heads);
    assert_eq!(rope_of(&spec).theta.to_bits(), 11_158_840_f64.to_bits());
    let router = RouterSpec::SigmoidGrouped {
        n_groups: 1,
        n_groups_kept: 1,
        renormalise: true,
        factor: 2.826,
    };
    let shared = Some(SharedExpertSpec { inner: 1536, is_gated: false });
    assert_eq!(moe_of(&spec), &plain_moe((192, 8, 1536), router, shared));
    let kinds = json!(["sparse", "dense", "sparse"]);
    let told = parse(&with(HY3, "mlp_layer_types", kinds)).unwrap();
    assert_eq!(layers(&told), "AeAdAe");
    let later = parse(&with(HY3, "first_k_dense_replace", json!(2))).unwrap();
    assert_eq!(layers(&later), "AdAdAe");
}

#[test]
fn families_like_deepseek_differ_in_omitted_keys() {
    let flash = spec(GLM_FLASH);
    assert_eq!((layers(&flash).as_str(), flash.norm_epsilon), ("MdMeMe", 1e-5));
    let router = |factor| RouterSpec::SigmoidGrouped {
        n_groups: 1,
        n_groups_kept: 1,
        renormalise: true,
        factor,
    };
    assert_eq!(moe_of(&flash).router, router(1.8));
    let dsa = |key, value| {
        let config = with(GLM_FLASH, "model_type", json!("glm_moe_dsa"));
        parse(&with(&config.to_string(), key, value)).unwrap()
    };
    let dense = dsa("first_k_dense_replace", json!(ABSENT));
    assert_eq!(layers(&dense), "MdMdMd");
}

/// Returns the choices of positions of all layers.
fn choices(spec: &ModelSpec) -> Vec<Option<PositionChoice>> {
    let choice = |layer: &LayerSpec| match &layer.mixer {
        MixerSpec::Mla(mla) => mla.choice,
        other => panic!("{other:?}"),
    };
    spec.layers.iter().map(choice).collect()
}

fn dsa(changes: &[(&str, Value)]) -> Result<ModelSpec> {
    let mut config = with(GLM_FLASH, "model_type", json!("glm_moe_dsa"));
    for (key, value) in changes {
        config = with(&config.to_string(), key, value.clone());
    }
    parse(&config)
}

#[test]
fn indexers_choose_positions_beyond_their_number() {
    let glm = dsa(&[]).unwrap();
    let (n_heads, head_dim, q_rank, n_chosen) = (32, 128, 768, 2048);
    let pairing = Pairing::Neighbours;
    let indexer = IndexerSpec { n_heads, head_dim, q_rank, pairing, n_chosen };
    assert_eq!(glm.context_max, 202_752);
    assert_eq!(choices(&glm), [Some(PositionChoice::Own(indexer)); 3]);
    let short = dsa(&[("max_position_embeddings", json!(2048))]).unwrap();
    assert_eq!((short.context_max, choices(&short)), (2048, vec![None; 3]));

    let v32 = parse(&with(DEEPSEEK, "model_type", json!("deepseek_v32"))).unwrap();
    let (n_heads, q_rank, pairing) = (64, 1536, Pairing::Halves);
    let indexer = IndexerSpec { n_heads, head_dim, q_rank, pairing, n_chosen };
    assert!(choices(&v32).iter().all(|it| *it == Some(PositionChoice::Own(indexer))));
}

#[test]
fn layers_share_the_choice_of_a_layer_below() {
    for changes in [
        [("indexer_types", json!(["full", "shared", "full", "shared"]))],
        [("index_topk_pattern", json!("FSF"))],
        [("index_topk_pattern", json!(["full", "shared", "full"]))],
    ] {
        let choices = choices(&dsa(&changes).unwrap());
        let is_own = choices.iter().map(|it| matches!(it, Some(PositionChoice::Own(_))));
        assert_eq!(is_own.collect::<Vec<_>>(), [true, false, true], "{changes:?}");
        assert_eq!(choices[1], Some(PositionChoice::Shared { n_chosen: 2048 }));
    }
    let changes = [("index_topk_freq", json!(2)), ("index_skip_topk_offset", json!(1))];
    let choices = choices(&dsa(&changes).unwrap());
    assert_eq!(choices[1], Some(PositionChoice::Shared { n_chosen: 2048 }));
}

#[test]
fn impossible_indexers_are_refused() {
    for (key, value, expected) in [
        ("index_topk", json!(0), "an integer from 1 to 65536"),
        ("max_position_embeddings", json!(1 << 25), "at most 16777216 with an indexer"),
        ("index_topk", json!(1_000_000), "an integer from 1 to 65536"),
        ("index_n_heads", json!(0), "an integer from 1 to 65536"),
        ("index_n_heads", json!(65_536), "at most 1048576 in product with `index_head_dim`"),
        ("index_head_dim", json!(32), "at least `qk_rope_head_dim`, 64"),
        ("q_lora_rank", json!(ABSENT), "a rank, which the indexer needs"),
        ("indexer_types", json!(["full", "none", "full"]), "\"full\" or \"shared\""),
        ("indexer_types", json!(["full"]), "a kind for each of the 3 layers"),
        ("indexer_types", json!(["shared", "full", "full"]), "an indexer in the first layer"),
        ("index_topk_pattern", json!("FXF"), "a word of the letters F and S"),
    ] {
        let error = dsa(&[(key, value.clone())]).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(key), "{key} = {value}: {error}");
    }
}

#[test]
fn kimi_k25_is_kimi_k2_within_another_config() {
    let text = with(DEEPSEEK, "model_type", json!("kimi_k2"));
    let whole = json!({"model_type": "kimi_k25", "text_config": text, "vision_config": {}});
    let k25 = parse(&whole).unwrap();
    assert_eq!((k25.family, k25.layers), (Family::KimiK25, spec(DEEPSEEK).layers));
}

#[test]
fn qwen2_moe_as_published() {
    let spec = spec(QWEN2);
    let attention = attention_of(&spec);
    assert_eq!((attention.bias, attention.norm), (AttentionBias::Qkv, QkNorm::None));
    assert_eq!((attention.head_dim, attention.window), (128, None));
    let shared = Some(SharedExpertSpec { inner: 20_480, is_gated: true });
    let router = RouterSpec::Softmax { renormalise: false };
    assert_eq!(moe_of(&spec), &plain_moe((64, 8, 2560), router, shared));
    let unbiased = parse(&with(QWEN2, "qkv_bias", json!(false))).unwrap();
    assert_eq!(attention_of(&unbiased).bias, AttentionBias::None);
}

#[test]
fn mixtral_and_olmoe_as_published() {
    let mixtral = spec(MIXTRAL);
    assert_eq!(attention_of(&mixtral).norm, QkNorm::None);
    let router = |renormalise| RouterSpec::Softmax { renormalise };
    assert_eq!(moe_of(&mixtral), &plain_moe((8, 2, 14_336), router(true), None));
    let with_window = parse(&with(MIXTRAL, "sliding_window", json!(4096))).unwrap();
    assert_eq!(windows(&with_window), [Some(4096), Some(4096)]);

    let olmoe = spec(OLMOE);
    assert_eq!(attention_of(&olmoe).norm, QkNorm::Row);
    assert_eq!(moe_of(&olmoe), &plain_moe((64, 8, 1024), router(false), None));
}

#[test]
fn qwen3_vl_moe_is_qwen3_moe_that_always_normalises() {
    let mut text: Value = serde_json::from_str(QWEN3).unwrap();
    text["model_type"] = json!("qwen3_vl_moe_text");
    text.as_object_mut().unwrap().remove("norm_topk_prob");
    let whole = json!({"model_type": "qwen3_vl_moe", "text_config": text, "vision_config": {}});
    let vl = parse(&whole).unwrap();
    assert_eq!((vl.family, vl.layers), (Family::Qwen3VlMoe, spec(QWEN3).layers));
}

#[test]
fn features_of_these_families_are_refused_by_name() {
    for (text, key, value, expected) in [
        (GPT_OSS, "swiglu_alpha", json!(1.5), "only 1.702"),
        (GPT_OSS, "swiglu_limit", json!(0), "above 0"),
        (GPT_OSS, "sliding_window", json!(0), "`sliding_window` is 0"),
        (GPT_OSS, "layer_types", json!(["full_attention"]), "each of the 3 layers"),
        (GPT_OSS, "layer_types", json!(vec!["chunked_attention"; 3]), "chunked_attention"),
        (GPT_OSS, "rope_scaling", json!(ABSENT), "`rope_scaling` is missing"),
        (MINIMAX, "scoring_func", json!("softmax"), "only \"sigmoid\""),
        (MINIMAX, "qk_norm_type", json!("per_head"), "only \"per_layer\""),
        (MINIMAX, "rotary_dim", json!(130), "even number of channels"),
        (MINIMAX, "num_local_experts", json!(1), "at least 2"),
        (HY3, "route_norm", json!(false), "only true"),
        (HY3, "mlp_layer_types", json!(["dense"]), "each of the 3 layers"),
        (HY3, "mlp_layer_types", json!(["dense", "moe", "dense"]), "\"dense\" or \"sparse\""),
        (OLMOE, "clip_qkv", json!(8.0), "not supported"),
        (QWEN2, "use_sliding_window", json!(true), "not supported"),
    ] {
        let message = parse(&with(text, key, value)).unwrap_err().to_string();
        assert!(message.contains(expected), "{key}: `{message}` does not say `{expected}`");
    }
}
