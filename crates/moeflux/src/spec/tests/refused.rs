//! Configs with one key changed to an invalid value.

use serde_json::{Value, json};

use super::{ABSENT, DEEPSEEK, QWEN3, QWEN3_NEXT, QWEN35, parse, with};

/// Changes one key of a config and expects a message that contains all of `expected`.
#[track_caller]
pub(super) fn refuses(text: &str, key: &str, value: Value, expected: &[&str]) {
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
fn unknown_features_are_refused_by_name() {
    let cases = [
        (QWEN3, "hidden_act", json!("gelu"), "is \"gelu\""),
        (QWEN3, "use_sliding_window", json!(true), "not supported"),
        (QWEN3, "layer_types", json!(["sliding_attention"]), "\"sliding_attention\""),
        (QWEN35, "text_config.layer_types", json!(vec!["mamba"; 40]), "\"mamba\""),
        (DEEPSEEK, "rope_scaling.type", json!("longrope"), "is \"longrope\""),
        (DEEPSEEK, "rope_scaling.type", json!("dynamic"), "is \"dynamic\""),
        (DEEPSEEK, "rope_scaling.full_attention", json!({}), "each kind of layer"),
        (DEEPSEEK, "partial_rotary_factor", json!(0.5), "not supported"),
        (DEEPSEEK, "scoring_func", json!("softmax"), "only \"sigmoid\""),
        (DEEPSEEK, "topk_method", json!("greedy"), "only \"noaux_tc\""),
        (DEEPSEEK, "moe_layer_freq", json!(2), "only 1"),
        (
            QWEN3,
            "model_type",
            json!("phimoe"),
            "family is not supported yet; supported are qwen3_moe,",
        ),
    ];
    for (text, key, value, expected) in cases {
        refuses(text, key, value, &[expected]);
    }
    refuses(QWEN3, "model_type", json!(ABSENT), &["is missing"]);
}

#[test]
fn other_families_are_refused_by_name_with_and_without_experts() {
    let mut config = with(QWEN3, "model_type", json!(ABSENT));
    config.as_object_mut().unwrap().remove("num_experts");
    for family in ["dbrx", "jamba", "hunyuan_v1_moe", "deepseek_v4", "kimi_linear", "phi3"] {
        config["model_type"] = json!(family);
        let message = parse(&config).unwrap_err().to_string();
        let expected = format!("\"{family}\": this family is not supported yet; supported are");
        assert!(message.contains(&expected), "{message}");
    }
}

#[test]
fn other_quantisations_are_refused_by_name() {
    let mlx = "quantization";
    let hub = "quantization_config";
    let cases = [
        (hub, json!({"quant_method": "gptq", "bits": 4}), "\"gptq\": this quantisation"),
        (hub, json!({"quant_method": "awq"}), "\"awq\""),
        (hub, json!({"quant_method": "compressed-tensors"}), "config_groups` is missing"),
        (hub, json!({"quant_method": "fp8"}), "`quantization_config.weight_block_size` is absent"),
        (
            hub,
            json!({"quant_method": "fp8", "weight_block_size": [16, 128]}),
            "need blocks of 32, 64 or 128",
        ),
        (
            hub,
            json!({"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e5m2"}),
            "is \"e5m2\"",
        ),
        (mlx, json!({"bits": 4, "group_size": 32, "mode": "nvfp4"}), "\"nvfp4\""),
        (
            mlx,
            json!({"bits": 8, "group_size": 32, "mode": "mxfp4"}),
            "expected 4, as required by MXFP4",
        ),
        (
            mlx,
            json!({"bits": 4, "group_size": 64, "mode": "mxfp4"}),
            "expected 32, as required by MXFP4",
        ),
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

/// Returns a section of compressed-tensors with these weights in its only group.
fn compressed(format: &str, weights: &Value) -> Value {
    json!({"quant_method": "compressed-tensors", "format": format,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}})
}

#[test]
fn other_schemes_of_compressed_tensors_are_refused_by_name() {
    let mxfp4 = json!({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32});
    let sound = compressed("mxfp4-pack-quantized", &mxfp4);
    let mut no_groups = sound.clone();
    no_groups["config_groups"] = json!({});
    let mut cached = sound;
    cached["kv_cache_scheme"] = json!({"num_bits": 8, "type": "float"});
    let with = |key: &str, value: Value| {
        let mut weights = mxfp4.clone();
        weights[key] = value;
        compressed("mxfp4-pack-quantized", &weights)
    };
    let int4 = json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32});
    let with_int = |key: &str, value: Value| {
        let mut weights = int4.clone();
        weights[key] = value;
        compressed("pack-quantized", &weights)
    };
    let mut two = compressed("pack-quantized", &int4);
    two["config_groups"]["group_1"] =
        with_int("group_size", json!(64))["config_groups"]["group_0"].clone();
    for (section, expected) in [
        (two, "groups of tensors that differ"),
        (with_int("group_size", json!(48)), "32, 64 or 128"),
        (with_int("symmetric", json!(false)), "weights.symmetric` is false"),
        (with_int("actorder", json!("group")), "weights.actorder` is \"group\""),
        (with_int("strategy", json!("channel")), "weights.strategy` is \"channel\""),
        (with_int("num_bits", json!(3)), "`num_bits` 3"),
        (no_groups, "at least one group"),
        (cached, "kv_cache_scheme` is an object of 2 keys: is not supported"),
        (with("group_size", json!(16)), "weights.group_size` is 16"),
        (with("strategy", json!("channel")), "weights.strategy` is \"channel\""),
        (with("num_bits", json!(6)), "`format` mxfp4-pack-quantized and `num_bits` 6"),
        (compressed("nvfp4-pack-quantized", &mxfp4), "`format` nvfp4-pack-quantized"),
        (compressed("marlin-24", &mxfp4), "use the published bf16"),
    ] {
        refuses(QWEN3, "quantization_config", section, &[expected]);
    }
}
