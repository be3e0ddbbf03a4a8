//! Dense models that do not fit in memory: what runs, and what the plan says of it.

use serde_json::Value;

use crate::support::{ModelDir, check_fails, moeflux_in, stdout_in, stdout_of};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Four layers with feed-forwards of 18 MB.
fn dense_model(dir: &ModelDir) -> String {
    let config = serde_json::json!({
        "model_type": "qwen3", "vocab_size": 512, "hidden_size": 1024,
        "intermediate_size": 10240, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 64, "hidden_act": "silu",
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "tie_word_embeddings": false, "attention_bias": false, "use_sliding_window": false,
    });
    std::fs::write(dir.file("config.json"), config.to_string()).unwrap();
    let path = |name: &str| dir.file(name).to_str().unwrap().to_owned();
    stdout_of(&["synth", "--config", &path("config.json"), "--out", &path("model")]);
    path("model")
}

#[test]
fn a_dense_model_that_does_not_fit_is_streamed_and_planned_so() {
    let (cache, dir) = (ModelDir::new(), ModelDir::new());
    let model = dense_model(&dir);
    let plan = |memory: &str| {
        let page = stdout_in(&cache, &["plan", &model, "--memory", memory]);
        (page, json(&stdout_in(&cache, &["plan", &model, "--memory", memory, "--json"])))
    };
    let (page, whole) = plan("8G");
    assert_eq!(whole["streams_layers"], false, "{page}");
    assert!(page.contains("the whole model is in memory"), "{page}");
    let [least, all] = ["least_bytes", "all_bytes"].map(|key| whole[key].as_u64().unwrap());
    let run = |memory: u64| {
        let memory = memory.to_string();
        let args = ["generate", "x", "--model", &model, "--backend", "cpu", "-n", "4"];
        moeflux_in(&cache, &[&args[..], &["--seed", "1", "--memory", &memory, "--stats"]].concat())
    };
    let (whole, less) = (run(all), run(least));
    let printed = |output: &std::process::Output| String::from_utf8(output.stderr.clone()).unwrap();
    assert!(!printed(&whole).contains("layers "), "{}", printed(&whole));
    assert!(printed(&less).contains("layers    1 of 4 in memory; "), "{}", printed(&less));
    assert_eq!(whole.stdout, less.stdout);
    // The plan counts what a token reads.
    let (page, streamed) = plan(&least.to_string());
    assert_eq!((&streamed["streams_layers"], &streamed["n_experts"]), (&true.into(), &4.into()));
    for words in ["4 layers' feed-forwards", "1 in memory, 3 on the drive", "needs every layer"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let read = streamed["forecast"]["answer"]["low"]["drive_bytes_per_token"].as_f64().unwrap();
    let all_bytes = streamed["experts_bytes"].as_f64().unwrap();
    assert!((read / all_bytes - 1.0).abs() < 1e-9, "{read} of {all_bytes}");
    // Less than the least is refused, by both.
    let too_little = (least - (17 << 20)).to_string();
    let words = ["the model: needs 8", "for a layer's feed-forward"];
    check_fails(&["generate", "x", "--model", &model, "--memory", &too_little], &words);
    let refused = moeflux_in(&cache, &["plan", &model, "--memory", &too_little]);
    assert_eq!(refused.status.code(), Some(1));
}
