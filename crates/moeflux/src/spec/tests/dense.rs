//! The configs of families without experts, compared with transformers.

use super::*;

/// Llama-3.1-8B, with fewer layers.
pub(super) const LLAMA: &str = r#"{"model_type": "llama", "attention_bias": false,
    "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false,
    "num_attention_heads": 32, "num_hidden_layers": 2, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": false,
    "vocab_size": 128256}"#;

/// Qwen3-4B, with fewer layers.
const QWEN3_DENSE: &str = r#"{"model_type": "qwen3", "attention_bias": false, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 9728,
    "max_position_embeddings": 40960, "max_window_layers": 36, "num_attention_heads": 32,
    "num_hidden_layers": 2, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
    "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
    "use_sliding_window": false, "vocab_size": 151936}"#;

/// Qwen2.5-7B, with fewer layers.
const QWEN2_DENSE: &str = r#"{"model_type": "qwen2", "hidden_act": "silu", "hidden_size": 3584,
    "intermediate_size": 18944, "max_position_embeddings": 131072, "max_window_layers": 28,
    "num_attention_heads": 28, "num_hidden_layers": 2, "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072,
    "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 152064}"#;

fn dense(inner: usize) -> FfnSpec {
    FfnSpec::Dense { inner, has_bias: false }
}

#[test]
fn llama_has_the_scaling_of_llama_3_and_biases_by_key() {
    let llama = spec(LLAMA);
    let attention = attention_of(&llama);
    assert_eq!((attention.n_heads, attention.n_kv_heads, attention.head_dim), (32, 8, 128));
    assert_eq!((attention.bias, attention.norm), (AttentionBias::None, QkNorm::None));
    assert_eq!(layers(&llama), "AdAd");
    assert_eq!((llama.layers[0].ffn.clone(), llama.top_k_max()), (dense(14_336), 0));
    let scaling =
        Llama3Spec { factor: 8.0, low_rotations: 1.0, high_rotations: 4.0, original_context: 8192 };
    assert_eq!(attention.rope.scaling, RopeScaling::Llama3(scaling));
    let biased = parse(&with(LLAMA, "attention_bias", json!(true))).unwrap();
    assert_eq!(attention_of(&biased).bias, AttentionBias::QkvAndOut);
    let biased = parse(&with(LLAMA, "mlp_bias", json!(true))).unwrap();
    assert_eq!(biased.layers[1].ffn, FfnSpec::Dense { inner: 14_336, has_bias: true });
}

#[test]
fn qwen2_always_has_biases_of_queries_keys_and_values() {
    let qwen = spec(QWEN2_DENSE);
    let attention = attention_of(&qwen);
    assert_eq!((attention.bias, attention.norm), (AttentionBias::Qkv, QkNorm::None));
    assert_eq!((attention.head_dim, qwen.layers[1].ffn.clone()), (128, dense(18_944)));
    assert_eq!(qwen.n_predicted(), 0);
}

#[test]
fn qwen3_normalises_heads_and_has_their_width_from_the_config() {
    let qwen = spec(QWEN3_DENSE);
    let attention = attention_of(&qwen);
    assert_eq!((attention.n_heads, attention.head_dim), (32, 128));
    assert_eq!((attention.bias, attention.norm), (AttentionBias::None, QkNorm::Heads));
    assert_eq!((qwen.tied_embeddings, qwen.layers[0].ffn.clone()), (true, dense(9728)));
    let biased = parse(&with(QWEN3_DENSE, "attention_bias", json!(true))).unwrap();
    assert_eq!(attention_of(&biased).bias, AttentionBias::QkvAndOut);
}

#[test]
fn qwen3_5_is_its_sparse_relative_with_dense_layers() {
    let mut config: Value = serde_json::from_str(QWEN35).unwrap();
    config["model_type"] = json!("qwen3_5");
    config["tie_word_embeddings"] = json!(true);
    let text = config["text_config"].as_object_mut().unwrap();
    for key in ["num_experts", "num_experts_per_tok", "moe_intermediate_size"] {
        text.remove(key);
    }
    text.insert("model_type".to_owned(), json!("qwen3_5_text"));
    text.insert("intermediate_size".to_owned(), json!(17_408));
    let wrapped = parse(&config).unwrap();
    let sparse = spec(QWEN35);
    let mixers = |spec: &ModelSpec| -> Vec<MixerSpec> {
        spec.layers.iter().map(|layer| layer.mixer.clone()).collect()
    };
    assert_eq!((wrapped.family, mixers(&wrapped)), (Family::Qwen35, mixers(&sparse)));
    assert!(wrapped.layers.iter().all(|layer| layer.ffn == dense(17_408)));
    assert!(wrapped.tied_embeddings);
    // The text alone has its own key.
    let text = parse(&config["text_config"]).unwrap();
    assert!(!text.tied_embeddings);
    assert_eq!(text.layers, wrapped.layers);
}

#[test]
fn features_of_dense_families_are_refused_by_name() {
    let low = "rope_scaling.low_freq_factor";
    let high = "rope_scaling.high_freq_factor";
    let original = "rope_scaling.original_max_position_embeddings";
    for (text, key, value, expected) in [
        (QWEN2_DENSE, "use_sliding_window", json!(true), "not supported"),
        (QWEN3_DENSE, "layer_types", json!(["sliding_attention"]), "sliding_attention"),
        (QWEN3_DENSE, "intermediate_size", json!(ABSENT), "`intermediate_size` is missing"),
        (QWEN3_DENSE, "hidden_act", json!("gelu"), "only \"silu\""),
        (LLAMA, "intermediate_size", json!(0), "`intermediate_size` is 0"),
        (LLAMA, low, json!(ABSENT), "low_freq_factor` is missing"),
        (LLAMA, high, json!(1.0), "above `low_freq_factor`"),
        (LLAMA, high, json!(1e300), "a number from 0 to"),
        (LLAMA, original, json!(ABSENT), "original_max_position_embeddings` is missing"),
        (LLAMA, original, json!(0), "at least 1"),
        (LLAMA, "rope_scaling.factor", json!(ABSENT), "factor` is missing"),
        (LLAMA, "rope_scaling.factor", json!(0.5), "a number from 1 to"),
        (LLAMA, "rope_scaling.rope_type", json!("dynamic"), "\"yarn\" and \"llama3\""),
    ] {
        let message = parse(&with(text, key, value)).unwrap_err().to_string();
        assert!(message.contains(expected), "{key}: `{message}` does not say `{expected}`");
    }
}
