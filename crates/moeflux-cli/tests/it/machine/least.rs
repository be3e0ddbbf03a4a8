//! The least memory that `plan` names for models with large vocabularies.

use std::path::Path;

use serde_json::Value;

use crate::support::{ModelDir, moeflux_in, stdout_in, stdout_of};

/// A `tokenizer.json` of `n_tokens` tokens, of which merges make all but the bytes, as in published
/// ones.
fn large_tokenizer(n_tokens: usize) -> String {
    let text = moeflux::provider::text::byte_tokenizer_json(256, &[]).to_string();
    let mut tokenizer = serde_json::from_str::<Value>(&text).unwrap();
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let bytes: Vec<String> = vocab.keys().take(256).cloned().collect();
    let mut merges = Vec::new();
    let mut made = bytes.clone();
    for n in 0.. {
        let id = vocab.len();
        if id == n_tokens {
            break;
        }
        let (left, right) = (&made[n / 256], &bytes[n % 256]);
        let token = format!("{left}{right}");
        merges.push(serde_json::json!([left, right]));
        vocab.insert(token.clone(), id.into());
        made.push(token);
    }
    tokenizer["model"]["merges"] = merges.into();
    tokenizer.to_string()
}

#[test]
fn the_least_memory_counts_a_vocabulary() {
    let (cache, dir) = (ModelDir::new(), ModelDir::new());
    let config = serde_json::json!({
        "model_type": "qwen3_moe", "vocab_size": 151_936, "hidden_size": 64,
        "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "hidden_act": "silu",
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "tie_word_embeddings": true, "attention_bias": false, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "moe_intermediate_size": 40960, "norm_topk_prob": true,
        "num_experts": 8, "num_experts_per_tok": 2, "use_sliding_window": false,
    });
    std::fs::write(dir.file("config.json"), config.to_string()).unwrap();
    let path = |name: &str| dir.file(name).to_str().unwrap().to_owned();
    let model = path("model");
    stdout_of(&["synth", "--config", &path("config.json"), "--out", &model]);
    std::fs::write(Path::new(&model).join("tokenizer.json"), large_tokenizer(151_936)).unwrap();
    let plan = stdout_in(&cache, &["plan", &model, "--json"]);
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let least = plan["least_bytes"].as_u64().unwrap();
    let run = |memory: u64| {
        let memory = memory.to_string();
        let args = ["generate", "x", "--model", &model, "--backend", "cpu", "-n", "4"];
        let output = moeflux_in(&cache, &[&args[..], &["--memory", &memory]].concat());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, stderr) = run(least);
    assert_eq!(code, Some(0), "{stderr}");
    // Other vocabularies of this size may have more merges.
    let (code, stderr) = run(least - (24 << 20));
    assert_eq!(code, Some(1), "{stderr}");
}
