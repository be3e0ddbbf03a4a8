//! Checkpoints that `synth` writes are read back by the engine's own reader.

use std::fs;
use std::path::Path;

use moeflux::provider::format::Checkpoint;
use moeflux::provider::model::Headers;
use moeflux::{Error, Model, TokenId, Tokenizer};
use moeflux_testing::temp_dir::TempDir;
use serde_json::Map;

use super::*;

/// Returns a config with the keys that all families share.
fn config(model_type: &str, more: Value) -> Value {
    let mut config = json!({
        "model_type": model_type, "vocab_size": 320, "hidden_size": 128, "intermediate_size": 192,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false, "attention_bias": false, "rope_theta": 10000.0,
        "rope_scaling": null, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
        "norm_topk_prob": true, "eos_token_id": 2,
    });
    let Value::Object(more) = more else { panic!("keys") };
    config.as_object_mut().unwrap().extend(more);
    config
}

pub(super) fn qwen3_moe() -> Value {
    let more = json!({"num_experts": 8, "decoder_sparse_step": 1, "mlp_only_layers": []});
    config("qwen3_moe", more)
}

fn hybrid() -> Value {
    json!({
        "num_experts": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 32,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 32,
        "partial_rotary_factor": 0.25, "shared_expert_intermediate_size": 64,
    })
}

pub(super) fn qwen3_5_moe() -> Value {
    let mut text = config("qwen3_5_moe_text", hybrid());
    text["rope_parameters"] =
        json!({"partial_rotary_factor": 0.25, "rope_theta": 10_000_000, "rope_type": "default"});
    json!({"model_type": "qwen3_5_moe", "text_config": text, "tie_word_embeddings": false})
}

/// Several residual streams, and rows of n-grams.
pub(super) fn qwen4_exp() -> Value {
    let mut text = config("qwen4_exp_text", hybrid());
    let more = json!({
        "hc_count": 4, "hc_lowrank": 64, "indexer_n_heads": 2, "indexer_kv_heads": 1,
        "indexer_head_dim": 32, "indexer_budget": 64, "indexer_compress_ratio": 4,
        "output_gate_type": "sigmoid", "ple_layer_ids": [2], "ple_embed_dim": 64,
        "heads_per_ngram": 4, "ngram_vocab_size_base": 50,
        "make_ngram_vocab_size_divisible_by": 8,
    });
    let Value::Object(more) = more else { panic!("keys") };
    text.as_object_mut().unwrap().extend(more);
    json!({"model_type": "qwen4_exp", "text_config": text, "tie_word_embeddings": false})
}

fn deepseek_v3(model_type: &str) -> Value {
    let more = json!({
        "num_key_value_heads": 4, "first_k_dense_replace": 1, "kv_lora_rank": 64,
        "moe_layer_freq": 1, "n_group": 2, "n_routed_experts": 8, "n_shared_experts": 1,
        "num_nextn_predict_layers": 1, "q_lora_rank": 64, "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
        "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 32, "head_dim": null,
    });
    config(model_type, more)
}

fn glm4_moe() -> Value {
    let more = json!({
        "attention_bias": true, "first_k_dense_replace": 1, "n_group": 1, "n_routed_experts": 8,
        "n_shared_experts": 1, "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5,
        "routed_scaling_factor": 2.5, "topk_group": 1, "use_qk_norm": true,
    });
    config("glm4_moe", more)
}

fn glm_moe_dsa() -> Value {
    let mut config = deepseek_v3("glm_moe_dsa");
    let more = json!({
        "n_group": 1, "index_n_heads": 4, "index_head_dim": 32, "index_topk": 64,
        "index_topk_pattern": "FSFS",
    });
    let Value::Object(more) = more else { panic!("keys") };
    config.as_object_mut().unwrap().extend(more);
    config
}

pub(super) fn families() -> [Value; 9] {
    let mut tied = qwen3_moe();
    tied["tie_word_embeddings"] = json!(true);
    // As published by DeepSeek; the result is in MLX format all the same.
    let mut fp8 = deepseek_v3("deepseek_v3");
    fp8["quantization_config"] =
        json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]});
    [
        qwen3_moe(),
        tied,
        config("qwen3_next", hybrid()),
        qwen3_5_moe(),
        deepseek_v3("deepseek_v3"),
        fp8,
        deepseek_v3("kimi_k2"),
        glm4_moe(),
        glm_moe_dsa(),
    ]
}

pub(super) fn args(temp: &TempDir, config: &Value) -> SynthArgs {
    let path = temp.path().join("given.json");
    fs::write(&path, config.to_string()).unwrap();
    SynthArgs {
        config: path,
        out: temp.path().join("out"),
        bits: 4,
        group: 64,
        gguf: None,
        experts: None,
        seed: 7,
        shard_size: 5 << 30,
        threads: NonZeroUsize::new(2),
    }
}

pub(super) fn synth(args: &SynthArgs) -> Result<String> {
    run(args, &AtomicBool::new(false))
}

fn params(args: &SynthArgs) -> QuantParams {
    QuantParams { bits: args.bits, group: args.group }
}

pub(super) fn tensor(checkpoint: &Checkpoint, name: &str) -> Vec<u8> {
    let entry = &checkpoint.tensors[name];
    let file = fs::read(&checkpoint.files[entry.file_idx].path).unwrap();
    let first = usize::try_from(entry.offset_bytes).unwrap();
    file[first..][..usize::try_from(entry.len_bytes).unwrap()].to_vec()
}

fn bf16_values(bytes: &[u8]) -> Vec<f32> {
    let pairs = bytes.chunks_exact(2);
    pairs.map(|pair| half::bf16::from_le_bytes([pair[0], pair[1]]).to_f32()).collect()
}

/// Returns the values of a 4-bit matrix in groups of 64, by definition.
fn dequantised(checkpoint: &Checkpoint, base: &str) -> Vec<f32> {
    let codes = tensor(checkpoint, &format!("{base}.weight"));
    let scales = bf16_values(&tensor(checkpoint, &format!("{base}.scales")));
    let biases = bf16_values(&tensor(checkpoint, &format!("{base}.biases")));
    let codes = codes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
    let value = |(idx, code): (usize, u8)| f32::from(code) * scales[idx / 64] + biases[idx / 64];
    codes.enumerate().map(value).collect()
}

pub(super) fn mean(values: impl ExactSizeIterator<Item = f32>) -> f32 {
    let n = values.len() as f32;
    values.sum::<f32>() / n
}

pub(super) fn assert_close(found: f32, expected: f32, tolerance: f32) {
    assert!((found - expected).abs() <= tolerance, "{found} is not {expected} +- {tolerance}");
}

#[test]
fn every_family_binds_with_nothing_left_over() {
    for config in families().into_iter().chain([qwen4_exp()]) {
        let temp = TempDir::new();
        let args = args(&temp, &config);
        let message = synth(&args).unwrap();
        assert!(message.contains("moeflux generate --model"), "{message}");

        let (made, checkpoint) = Model::open(&args.out).unwrap().into_parts();
        let bare = BareConfig::open(&args.config).unwrap();
        let synthetic = bare.blueprint_as(SyntheticKind::Affine(params(&args))).unwrap();
        assert_eq!(made.manifest.skipped, []);
        assert_eq!(made.plan, synthetic.plan, "{config}");
        assert_eq!(made.manifest.kinds(), synthetic.manifest.kinds(), "{config}");
        assert_eq!(made.manifest.banks.len(), synthetic.manifest.banks.len());
        assert_eq!(made.spec.quantisation.default, Some(params(&args)));
        let ManifestOrigin::Synthetic(synthetic) = synthetic.manifest.origin else {
            panic!("imagined")
        };
        assert_eq!(checkpoint.tensors.len(), synthetic.tensors.len());
    }
}

#[test]
fn every_quantisation_binds() {
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            let temp = TempDir::new();
            let args = SynthArgs { bits, group, ..args(&temp, &qwen3_5_moe()) };
            synth(&args).unwrap();
            let (made, _) = Model::open(&args.out).unwrap().into_parts();
            assert_eq!(made.spec.quantisation.default, Some(params(&args)));
        }
    }
}

#[test]
fn published_formats_of_experts_bind_and_are_checked() {
    for (format, name, group) in [
        (ExpertFormat::Mxfp4, "mxfp4", 64),
        (ExpertFormat::Ints(4), "int4g32", 32),
        (ExpertFormat::Ints(8), "int8g64", 64),
        (ExpertFormat::Affine, "q4g32", 32),
    ] {
        for config in families() {
            let temp = TempDir::new();
            let args = SynthArgs { experts: Some(format), group, ..args(&temp, &config) };
            let message = synth(&args).unwrap();
            assert!(message.contains("with experts in"), "{message}");
            let (made, checkpoint) = Model::open(&args.out).unwrap().into_parts();
            let bare = BareConfig::open(&args.config).unwrap();
            let synthetic = bare.blueprint_as(format.kind(group)).unwrap().manifest;
            assert_eq!(made.manifest.skipped, []);
            assert_eq!(made.manifest.kinds(), synthetic.kinds(), "{config}");
            let kinds = made.manifest.kinds().into_iter().map(|it| it.kind.to_string());
            let kinds: Vec<_> = kinds.collect();
            assert!(kinds.iter().any(|it| it == name), "{config}: {kinds:?}");
            let ManifestOrigin::Synthetic(synthetic) = synthetic.origin else { panic!("imagined") };
            assert_eq!(checkpoint.tensors.len(), synthetic.tensors.len());
        }
    }
}

#[test]
fn shards_and_threads_do_not_change_a_value() {
    let temps = [TempDir::new(), TempDir::new(), TempDir::new()];
    let config = qwen3_5_moe();
    let one = SynthArgs { threads: NonZeroUsize::new(1), ..args(&temps[0], &config) };
    let many =
        SynthArgs { shard_size: 50_000, threads: NonZeroUsize::new(5), ..args(&temps[1], &config) };
    let other = SynthArgs { seed: 8, ..args(&temps[2], &config) };
    let open = |args: &SynthArgs| {
        synth(args).unwrap();
        Checkpoint::open(&args.out).unwrap()
    };
    let [one, many, other] = [open(&one), open(&many), open(&other)];
    assert!(one.files.len() == 1 && many.files.len() > 5);
    assert_eq!(one.tensors.len(), many.tensors.len());
    for name in one.tensors.keys() {
        assert_eq!(tensor(&one, name), tensor(&many, name), "{name}");
        assert_ne!(tensor(&one, name), tensor(&other, name), "{name}");
    }
}

#[test]
fn weights_have_zero_mean_and_keep_activations_level() {
    let temp = TempDir::new();
    let args = args(&temp, &qwen3_moe());
    synth(&args).unwrap();
    let checkpoint = Checkpoint::open(&args.out).unwrap();
    for (base, deviation) in [
        ("model.layers.0.self_attn.q_proj", 128.0_f32.powf(-0.5)),
        ("model.layers.3.mlp.switch_mlp.gate_proj", 128.0_f32.powf(-0.5)),
        ("model.layers.3.mlp.switch_mlp.down_proj", 64.0_f32.powf(-0.5)),
        ("model.embed_tokens", 0.5),
    ] {
        let values = dequantised(&checkpoint, base);
        let error = 4.0 / (values.len() as f32).sqrt();
        assert_close(mean(values.iter().copied()) / deviation, 0.0, error);
        let square = mean(values.iter().map(|value| value * value));
        assert_close(square.sqrt() / deviation, 1.0, 0.02);
        let scales = bf16_values(&tensor(&checkpoint, &format!("{base}.scales")));
        assert_close(mean(scales.iter().map(|scale| scale.signum())), 0.0, 0.2);
        // No column has the same sign in all rows either.
        let n_cols = if base.ends_with("down_proj") { 64 } else { 128 };
        let n_rows = values.len() / n_cols;
        for col in 0..n_cols {
            let in_col = mean((0..n_rows).map(|row| values[row * n_cols + col])) / deviation;
            assert_close(in_col, 0.0, 5.0 / (n_rows as f32).sqrt());
        }
    }
    let gains = bf16_values(&tensor(&checkpoint, "model.norm.weight"));
    assert_close(mean(gains.iter().copied()), 1.0, 0.05);
}

#[test]
fn keys_of_delta_layers_resemble_queries() {
    let resemblance = |config: &Value, base: &str, q: usize, k: usize| {
        let temp = TempDir::new();
        let args = args(&temp, config);
        synth(&args).unwrap();
        let checkpoint = Checkpoint::open(&args.out).unwrap();
        let values = dequantised(&checkpoint, &format!("model.layers.0.linear_attn.{base}"));
        let rows = |first: usize| &values[first * 128..(first + 32) * 128];
        let dot = |a: &[f32], b: &[f32]| mean(a.iter().zip(b).map(|(a, b)| a * b)) * 128.0;
        dot(rows(q), rows(k))
    };
    // The queries of both heads, then the keys of both heads.
    assert_close(resemblance(&qwen3_5_moe(), "in_proj_qkv", 0, 64), 0.8, 0.1);
    assert_close(resemblance(&qwen3_5_moe(), "in_proj_qkv", 0, 32), 0.0, 0.1);
    // For each head: queries, keys, two values, two gates.
    let next = config("qwen3_next", hybrid());
    assert_close(resemblance(&next, "in_proj_qkvz", 192, 224), 0.8, 0.1);
    assert_close(resemblance(&next, "in_proj_qkvz", 224, 256), 0.0, 0.1);
}

#[test]
fn refused_runs_leave_no_folder() {
    let temp = TempDir::new();
    let args = args(&temp, &qwen3_moe());
    let nothing = |error: Error, part: &str| {
        let line = error.to_string();
        assert!(line.contains(part) && !line.contains('\n'), "{line}");
        assert!(!args.out.exists());
    };
    nothing(run(&args, &AtomicBool::new(true)).unwrap_err(), "cancelled");
    let no_config = SynthArgs { config: temp.path().join("none.json"), ..args.clone() };
    nothing(synth(&no_config).unwrap_err(), "none.json");
    let write = |text: &str| fs::write(&args.config, text).unwrap();
    for (text, part) in [
        ("", "is not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "model_type"),
        (r#"{"model_type": "gpt2"}"#, "gpt2"),
        (r#"{"model_type": "qwen3_moe", "hidden_size": -1}"#, "hidden_size"),
    ] {
        write(text);
        nothing(synth(&args).unwrap_err(), part);
    }
    // 4 layers x 60,000 experts of 3 x 1 M x 1 M: no disk is that large, and no index is either.
    let mut absurd = qwen3_moe();
    for (key, n) in [("hidden_size", 1 << 20), ("moe_intermediate_size", 1 << 20)] {
        absurd[key] = json!(n);
    }
    absurd["num_experts"] = json!(60_000);
    write(&absurd.to_string());
    nothing(synth(&args).unwrap_err(), "free");
    // Its size would not even fit in 64 bits.
    absurd["num_hidden_layers"] = json!(4096);
    write(&absurd.to_string());
    nothing(synth(&args).unwrap_err(), "any disk");

    write(&qwen3_moe().to_string());
    fs::create_dir(&args.out).unwrap();
    fs::write(args.out.join("mine"), "x").unwrap();
    let line = synth(&args).unwrap_err().to_string();
    assert!(line.contains("another folder"), "{line}");
    assert_eq!(fs::read_dir(&args.out).unwrap().count(), 1);
}

#[test]
fn the_config_keeps_its_keys_and_adds_the_quantisation() {
    let temp = TempDir::new();
    let args = args(&temp, &qwen3_5_moe());
    synth(&args).unwrap();
    let read = |name: &str| -> Map<String, Value> {
        serde_json::from_slice(&fs::read(args.out.join(name)).unwrap()).unwrap()
    };
    let config = read("config.json");
    assert_eq!(config["text_config"], qwen3_5_moe()["text_config"]);
    assert_eq!(config["quantization"], config["quantization_config"]);
    assert_eq!(config["quantization"]["bits"], 4);
    assert_eq!(config["quantization"]["group_size"], 64);
    let router = &config["quantization"]["language_model.model.layers.0.mlp.gate"];
    assert_eq!(*router, json!({"group_size": 64, "bits": 8}));
    assert_eq!(read("generation_config.json")["eos_token_id"], json!([256, 257]));
    assert_eq!(read("tokenizer_config.json")["eos_token"], "<|im_end|>");

    assert!(!has_partial(&args.out));
}

#[test]
fn the_tokenizer_fits_the_vocabulary_and_shows_every_token() {
    let temp = TempDir::new();
    let args = args(&temp, &qwen3_moe());
    synth(&args).unwrap();
    let tokenizer = Tokenizer::open(&args.out, 320).unwrap();
    assert_eq!(tokenizer.vocab_size(), 320);
    let ids = |text: &str| -> Vec<u32> {
        tokenizer.encode(text).unwrap().into_iter().map(|token| token.0).collect()
    };
    assert_eq!(ids("Hi \n\u{e9}"), [72, 105, 32, 10, 0xc3, 0xa9]);
    assert_eq!(ids(" ba<|im_end|>"), [32, 98, 97, 256]);
    assert_eq!(tokenizer.decode(&[72, 259, 319].map(TokenId)), "H ba so");
}

fn has_partial(dir: &Path) -> bool {
    let mut entries = fs::read_dir(dir).unwrap();
    entries.any(|entry| entry.unwrap().file_name().to_string_lossy().starts_with(".partial"))
}
