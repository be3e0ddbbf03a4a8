//! Configs of `qwen4_exp`: residual streams, and a context within the budget of its indexer.

use super::*;
use crate::ids::LayerIdx;

/// Qwen3.8-Flash-Next, with fewer layers.
pub(super) const QWEN4: &str = r#"{"model_type": "qwen4_exp", "tie_word_embeddings": false,
    "text_config": {"model_type": "qwen4_exp_text", "vocab_size": 248320, "hidden_size": 2560,
    "num_hidden_layers": 8, "num_attention_heads": 24, "num_key_value_heads": 2, "head_dim": 256,
    "hidden_act": "silu", "max_position_embeddings": 262144, "rms_norm_eps": 1e-06,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention",
    "linear_attention", "linear_attention", "linear_attention", "indexed_attention"],
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 48, "linear_value_head_dim": 128, "moe_intermediate_size": 640,
    "num_experts": 512, "num_experts_per_tok": 10, "shared_expert_intermediate_size": 640,
    "hc_count": 4, "hc_lowrank": 320, "output_gate_type": "sigmoid", "indexer_n_heads": 4,
    "indexer_kv_heads": 1, "indexer_head_dim": 128, "indexer_budget": 2048,
    "indexer_compress_ratio": 4, "ple_layer_ids": [2], "ngram_size": 3, "seed": 1234,
    "heads_per_ngram": 8, "ngram_vocab_size_base": 20000000, "ple_conv_kernel_size": 4,
    "make_ngram_vocab_size_divisible_by": 128, "split_ngram_parts": 128,
    "eos_token_id": [248044, 248046], "rope_parameters":
    {"rope_theta": 10000000, "partial_rotary_factor": 0.25, "rope_type": "default",
    "mrope_interleaved": true, "mrope_section": [11, 11, 10]}}}"#;

#[test]
fn qwen4_exp_with_its_published_sizes() {
    let spec = spec(QWEN4);
    assert_eq!((spec.family, layers(&spec)), (Family::Qwen4Exp, "GeGeGeAe".repeat(2)));
    assert_eq!(spec.streams, Some(StreamSpec { n_streams: 4, rank: 320 }));
    let MixerSpec::GatedDelta(delta) = &spec.layers[0].mixer else { panic!("no delta net") };
    assert_eq!((delta.n_v_heads, delta.gate), (48, GateFunction::Sigmoid));
    let attention = attention_of(&spec);
    assert!(attention.has_gate && attention.norm == QkNorm::Heads);
    assert_eq!((attention.head_dim, attention.rope.n_rotated), (256, 64));
    assert_eq!(moe_of(&spec).router, RouterSpec::Softmax { renormalise: true });
    assert_eq!(moe_of(&spec).shared, Some(SharedExpertSpec { inner: 640, is_gated: true }));
    let indexer = BlockIndexerSpec { n_heads: 4, head_dim: 128, n_blocks: 512, block: 4 };
    assert_eq!((spec.context_max, attention.indexer), (262_144, Some(indexer)));
    // The positions after the last whole block are always chosen.
    for (context_max, expected) in [(2051, None), (2052, Some(indexer))] {
        let key = "text_config.max_position_embeddings";
        let shorter = parse(&with(QWEN4, key, json!(context_max))).unwrap();
        assert_eq!(attention_of(&shorter).indexer, expected);
    }
    let [ngrams] = spec.ngrams[..] else { panic!("one layer has rows of n-grams") };
    assert_eq!((ngrams.layer, ngrams.n_rows(), ngrams.width), (LayerIdx(1), 16, 2560));
    assert_eq!((ngrams.n_taps, ngrams.dilation(), ngrams.shape.end), (4, 3, TokenId(248_044)));
}

#[test]
fn the_text_config_of_qwen4_exp_is_the_same_model() {
    let wrapped: Value = serde_json::from_str(QWEN4).unwrap();
    assert_eq!(parse(&wrapped["text_config"]).unwrap(), spec(QWEN4));
    // Without a kind of gate it is the activation of the model.
    let plain = parse(&with(QWEN4, "text_config.output_gate_type", json!(null))).unwrap();
    let MixerSpec::GatedDelta(delta) = &plain.layers[0].mixer else { panic!("no delta net") };
    assert_eq!(delta.gate, GateFunction::Silu);
}

#[test]
fn what_qwen4_exp_does_not_say_soundly_is_refused() {
    for (key, value, expected) in [
        ("hc_count", json!(1), "from 2 to 16 streams"),
        ("hc_count", json!(17), "from 2 to 16 streams"),
        ("hc_lowrank", json!(0), "an integer from 1"),
        ("output_gate_type", json!("tanh"), "\"sigmoid\" or \"silu\""),
        ("indexer_kv_heads", json!(2), "only 1 is supported"),
        ("indexer_budget", json!(ABSENT), "is missing"),
        ("indexer_budget", json!(0), "an integer from 1"),
        ("indexer_head_dim", json!(32), "at least the 64 rotated channels"),
        ("indexer_compress_ratio", json!(3), "a divisor of `text_config.indexer_budget`, 2048"),
        ("indexer_n_heads", json!(1 << 20), "in product with `text_config.indexer_head_dim`"),
        ("ple_layer_ids", json!([0]), "layers from 1 to 8"),
        ("ple_layer_ids", json!([2, 9]), "layers from 1 to 8"),
        ("ple_layer_ids", json!([4]), "only layers of linear attention"),
        ("ple_embed_dim", json!(100), "a multiple of 16, the rows of a token"),
        ("ple_conv_kernel_size", json!(1), "from 2 to 64 taps"),
        ("seed", json!(0.5), "an integer of 64 bits"),
        ("eos_token_id", json!([]), "is missing"),
        ("layer_types", json!(vec!["sliding_attention"; 8]), "sliding_attention"),
    ] {
        refused::refuses(QWEN4, &format!("text_config.{key}"), value, &[expected]);
    }
    // The numbers of a table are checked together.
    for (key, value) in [("ngram_size", json!(1)), ("ngram_vocab_size_base", json!(1_u64 << 40))] {
        let config = with(QWEN4, &format!("text_config.{key}"), value);
        let message = parse(&config).unwrap_err().to_string();
        assert!(message.contains("ple_layer_ids") && !message.contains('\n'), "{message}");
    }
}

#[test]
fn layers_with_rows_of_ngrams_are_counted_once_and_in_order() {
    let key = "text_config.ple_layer_ids";
    let spec = parse(&with(QWEN4, key, json!([7, 2, 7]))).unwrap();
    let layers: Vec<_> = spec.ngrams.iter().map(|it| (it.layer, it.shape.table_idx)).collect();
    assert_eq!(layers, [(LayerIdx(1), 0), (LayerIdx(6), 1)]);
    for none in [json!(null), json!([])] {
        assert_eq!(parse(&with(QWEN4, key, none)).unwrap().ngrams, []);
    }
}
