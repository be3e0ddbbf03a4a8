//! Damaged, inconsistent and foreign checkpoints: one line that names the error and its place, and
//! status 1.

use serde_json::{Value, json};

use crate::support::{ModelDir, check_fails, golden, stdout_of};

const CASE: &str = "mlx-qwen3_moe-q4-g32-bf16";
const SHARD: &str = "model.safetensors";

/// `logits` on the damaged case must fail with these words.
#[track_caller]
fn check(dir: &ModelDir, words: &[&str]) {
    let out = dir.file("out.npy");
    let (model, out) = (dir.path().to_str().unwrap(), out.to_str().unwrap());
    check_fails(&["logits", "--model", model, "--tokens", "1,2,3", "--out", out], words);
    assert!(!dir.file("out.npy").exists());
}

fn tensor_names(header: &Value) -> Vec<String> {
    let names = header.as_object().unwrap().keys().filter(|name| *name != "__metadata__");
    names.cloned().collect()
}

#[test]
fn a_folder_above_a_model() {
    let dir = ModelDir::of_case(CASE);
    std::fs::remove_file(dir.file("config.json")).unwrap();
    check(&dir, &["has no config.json", "a model is a GGUF file, or the folder"]);
    // As the cache of Hugging Face has it.
    let snapshot = dir.file("snapshots/0123abcd");
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::write(snapshot.join("config.json"), "{}").unwrap();
    check(&dir, &["has no config.json, but ", "0123abcd has one"]);
}

#[test]
fn a_file_in_place_of_a_folder() {
    let dir = ModelDir::of_case(CASE);
    let gguf = dir.file("model-Q4_K_M.gguf");
    std::fs::write(&gguf, b"GGUF\x03\0\0\0").unwrap();
    std::fs::copy(&gguf, dir.file("model.bin")).unwrap();
    std::fs::write(dir.file("page.gguf"), "<html>").unwrap();
    std::fs::write(dir.file("notes.txt"), "x").unwrap();
    for (name, words) in [
        ("model-Q4_K_M.gguf", "within its header"),
        ("model.bin", "within its header"),
        ("page.gguf", "this is not a GGUF file"),
        ("nowhere.gguf", "there is no such file"),
        (SHARD, "is one file of a model: name its folder"),
        ("notes.txt", "a model is a GGUF file, or the folder"),
    ] {
        let path = dir.file(name);
        let path = path.to_str().unwrap();
        check_fails(&["logits", "--model", path, "--tokens", "1", "--out", "x.npy"], &[words]);
        check_fails(&["verify", path], &[words]);
    }
}

/// The bytes with the first `from` replaced by as many others.
fn replaced(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let at = bytes.windows(from.len()).position(|it| it == from.as_bytes()).expect(from);
    [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat()
}

#[test]
fn a_gguf_file_without_a_model() {
    let dir = ModelDir::of_case("gguf-qwen3moe-q8");
    let bytes = std::fs::read(dir.file("model.gguf")).unwrap();
    let clip = std::fs::read(golden("../fuzz/corpus/gguf/kinds")).unwrap();
    let part = golden("gguf-qwen35moe/model-00002-of-00002.gguf");
    std::fs::copy(part, dir.file("x-00002-of-00002.gguf")).unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.file(name), bytes).unwrap();
    write("cut.gguf", &bytes[..bytes.len() - 1000]);
    write("other.gguf", &replaced(&bytes, "qwen3moe", "starcode"));
    write("key.gguf", &replaced(&bytes, "qwen3moe.block_count", "qwen3moe.blocks_more"));
    let own = ("tokenizer.ggml.eos_token_id", "qwen3moe.logit_scale_of_all");
    write("own.gguf", &replaced(&bytes, own.0, own.1));
    write("tensor.gguf", &replaced(&bytes, "blk.1.attn_q.weight", "blk.1.attn_x.weight"));
    write("mmproj.gguf", &clip[8..]);
    for (name, words) in [
        ("cut.gguf", "the download is incomplete: 202.84 kB of 203.84 kB; fetch it again"),
        ("other.gguf", "\"starcode\": this architecture is not supported"),
        ("key.gguf", "key `qwen3moe.block_count` is missing"),
        ("own.gguf", "`qwen3moe.logit_scale_of_all`: this key is not known"),
        ("tensor.gguf", "`blk.1.attn_q.weight`: is missing: the file is incomplete"),
        ("mmproj.gguf", "vision encoder of a model (mmproj), not the model"),
        ("x-00002-of-00002.gguf", "the first is `x-00001-of-00002.gguf`: fetch it"),
    ] {
        let path = dir.file(name);
        let path = path.to_str().unwrap();
        check_fails(&["logits", "--model", path, "--tokens", "1", "--out", "x.npy"], &[words]);
        check_fails(&["inspect", path], &[words]);
        let target = dir.file("packed");
        check_fails(&["pack", path, target.to_str().unwrap()], &[words]);
        assert!(!target.exists());
    }
}

#[test]
fn a_pack_that_is_not_finished() {
    let dir = ModelDir::of_case(CASE);
    std::fs::remove_file(dir.file("config.json")).unwrap();
    std::fs::write(dir.file("moeflux-pack.journal"), "{}").unwrap();
    check(&dir, &["contains an unfinished pack", "moeflux pack"]);
}

#[test]
fn a_file_of_something_else_beside_the_model() {
    let dir = ModelDir::of_case(CASE);
    std::fs::remove_file(dir.file("model.safetensors.index.json")).unwrap();
    let header = br#"{"lora_A.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 4]].concat();
    std::fs::write(dir.file("adapter_model.safetensors"), bytes).unwrap();
    check(
        &dir,
        &[
            "lora_A.weight",
            "in `adapter_model.safetensors`",
            "remove the file if it does not belong",
        ],
    );
}

#[test]
fn memory_without_a_unit() {
    for (given, meant) in [("24", "24G"), ("0", "24G"), ("512K", "512G")] {
        let output = crate::support::moeflux(&["bench", "--memory", given]);
        let printed = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(printed.contains("too few for any model") && printed.contains(meant), "{printed}");
    }
}

/// The memory that a process needs differs from run to run.
#[test]
fn the_least_memory_that_an_error_names_is_enough() {
    let dir = ModelDir::synthetic();
    let model = dir.file("model");
    let model = model.to_str().unwrap();
    let run = |memory: &str| {
        let args = ["bench", "--model", model, "--memory", memory, "--prompt-tokens", "4"];
        crate::support::moeflux(&[&args[..], &["--gen-tokens", "1", "--repeat", "1"]].concat())
    };
    for _ in 0..20 {
        let refused = run("2M");
        let printed = String::from_utf8(refused.stderr).unwrap();
        let (_, after) = printed.split_once('(').unwrap();
        let (least, _) = after.split_once(" bytes)").unwrap();
        let enough = run(&least.replace(',', ""));
        assert!(enough.status.success(), "{printed}{}", String::from_utf8_lossy(&enough.stderr));
    }
}

#[test]
fn a_truncated_file() {
    let dir = ModelDir::of_case(CASE);
    let bytes = std::fs::read(dir.file(SHARD)).unwrap();
    std::fs::write(dir.file(SHARD), &bytes[..bytes.len() - 100]).unwrap();
    check(&dir, &[SHARD, "incomplete"]);
}

#[test]
fn a_file_cut_inside_its_header() {
    let dir = ModelDir::of_case(CASE);
    let bytes = std::fs::read(dir.file(SHARD)).unwrap();
    for len in [0, 5, 8, 100] {
        std::fs::write(dir.file(SHARD), &bytes[..len]).unwrap();
        check(&dir, &[SHARD]);
    }
}

#[test]
fn a_wrong_header_length() {
    let dir = ModelDir::of_case(CASE);
    let mut bytes = std::fs::read(dir.file(SHARD)).unwrap();
    bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    std::fs::write(dir.file(SHARD), &bytes).unwrap();
    check(&dir, &[SHARD, "18446744073709551615"]);
}

#[test]
fn overlapping_tensors() {
    let dir = ModelDir::of_case(CASE);
    dir.edit_header(SHARD, |header| {
        let names = tensor_names(header);
        let first = header[&names[0]]["data_offsets"][0].as_u64().unwrap();
        let end = header[&names[1]]["data_offsets"][1].as_u64().unwrap();
        header[&names[1]]["data_offsets"] = json!([first, end]);
    });
    check(&dir, &[SHARD]);
}

#[test]
fn a_shape_beyond_all_numbers() {
    let dir = ModelDir::of_case(CASE);
    dir.edit_header(SHARD, |header| {
        let name = tensor_names(header).remove(0);
        header[&name]["shape"] = json!([u64::MAX, u64::MAX]);
    });
    check(&dir, &[SHARD]);
}

#[test]
fn a_config_that_does_not_fit_the_tensors() {
    let dir = ModelDir::of_case(CASE);
    dir.edit_json("config.json", |config| config["moe_intermediate_size"] = json!(96));
    check(&dir, &["model.layers.1.mlp", "96"]);
}

#[test]
fn an_absurd_config() {
    for (key, value) in [
        ("num_hidden_layers", json!(u64::MAX)),
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-64)),
        ("num_attention_heads", json!("four")),
        ("num_experts_per_tok", json!(1000)),
        ("vocab_size", json!(1_u64 << 60)),
        ("num_key_value_heads", json!(3)),
    ] {
        let dir = ModelDir::of_case(CASE);
        dir.edit_json("config.json", |config| config[key] = value);
        check(&dir, &["config.json", key]);
    }
}

#[test]
fn an_unknown_family() {
    let dir = ModelDir::of_case(CASE);
    dir.edit_json("config.json", |config| config["model_type"] = json!("phimoe"));
    check(&dir, &["phimoe", "qwen3_moe"]);
}

#[test]
fn a_config_that_is_not_json() {
    let dir = ModelDir::of_case(CASE);
    std::fs::write(dir.file("config.json"), "{\"model_type\": ").unwrap();
    check(&dir, &["config.json"]);
}

#[test]
fn a_missing_shard() {
    let dir = ModelDir::of_case("mlx-qwen3_5_moe-q4-g64-bf16");
    std::fs::remove_file(dir.file("model-00002-of-00002.safetensors")).unwrap();
    check(&dir, &["model-00002-of-00002.safetensors"]);
}

#[test]
fn an_index_that_points_outside() {
    let dir = ModelDir::of_case("mlx-qwen3_5_moe-q4-g64-bf16");
    dir.edit_json("model.safetensors.index.json", |index| {
        let map = index["weight_map"].as_object_mut().unwrap();
        *map.values_mut().next().unwrap() = json!("../../../etc/passwd");
    });
    check(&dir, &["../../../etc/passwd"]);
}

#[test]
fn a_scale_that_is_not_a_number() {
    let dir = ModelDir::of_case(CASE);
    let (header, mut data) = dir.split_safetensors(SHARD);
    let name = "model.layers.1.self_attn.q_proj.scales";
    let at = usize::try_from(header[name]["data_offsets"][0].as_u64().unwrap()).unwrap();
    data[at + 6..at + 8].copy_from_slice(&0x7fc0_u16.to_le_bytes());
    let header = serde_json::to_vec(&header).unwrap();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    std::fs::write(dir.file(SHARD), bytes).unwrap();
    check(&dir, &["model.layers.1.self_attn.q_proj", "NaN"]);
}

#[test]
fn a_tensor_too_many_and_one_too_few() {
    let dir = ModelDir::of_case(CASE);
    let name = "model.layers.0.self_attn.q_norm.weight";
    dir.edit_header(SHARD, |header| {
        let tensor = header.as_object_mut().unwrap().remove(name).unwrap();
        header["model.layers.0.self_attn.mystery.weight"] = tensor;
    });
    check(&dir, &[name]);

    let dir = ModelDir::of_case(CASE);
    dir.edit_header(SHARD, |header| {
        let tensor = json!({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]});
        header["model.layers.0.self_attn.mystery.weight"] = tensor;
    });
    check(&dir, &["model.layers.0.self_attn.mystery.weight"]);
}

#[test]
fn a_quantisation_that_differs_from_the_config() {
    let dir = ModelDir::of_case(CASE);
    dir.edit_json("config.json", |config| {
        config["quantization"]["model.embed_tokens"] = json!({"group_size": 32, "bits": 8});
    });
    check(&dir, &["8", "4"]);

    let dir = ModelDir::of_case(CASE);
    dir.edit_json("config.json", |config| {
        config["quantization"]["model.embed_tokens"] = json!({"mode": "mxfp4"});
    });
    check(&dir, &["mxfp4"]);
}

#[test]
fn a_folder_without_a_model() {
    let dir = ModelDir::new();
    check(&dir, &["config.json"]);
    let missing = dir.file("nowhere");
    let missing = missing.to_str().unwrap();
    let words = ["nowhere", "no such folder", "config.json"];
    check_fails(&["logits", "--model", missing, "--tokens", "1", "--out", "x.npy"], &words);
}

#[test]
fn a_folder_where_a_file_should_be() {
    let dir = ModelDir::of_case(CASE);
    std::fs::remove_file(dir.file(SHARD)).unwrap();
    std::fs::create_dir(dir.file(SHARD)).unwrap();
    check(&dir, &[SHARD]);
}

#[test]
fn tokens_that_do_not_exist_or_do_not_fit() {
    let dir = ModelDir::of_case(CASE);
    let out = dir.file("out.npy");
    let model = dir.path().to_str().unwrap();
    let fails = |tokens: &str, more: &[&str], words: &[&str]| {
        let args = ["logits", "--model", model, "--tokens", tokens, "--out", out.to_str().unwrap()];
        check_fails(&[&args[..], more].concat(), words);
        assert!(!out.exists());
    };
    fails("1,999999999", &[], &["999999999", "vocabulary"]);
    fails("1,2,3,4", &["--context", "3"], &["context of 3"]);
}

#[test]
fn numbers_of_python_that_are_not_finite_are_read() {
    let dir = ModelDir::synthetic();
    let model = dir.file("model");
    let config = std::fs::read_to_string(dir.file("model/config.json")).unwrap();
    let with = |more: &str| {
        let text = config.replacen('{', &format!("{{{more}, "), 1);
        std::fs::write(dir.file("model/config.json"), text).unwrap();
    };
    with(r#""time_step_limit": [0.0, Infinity], "x": -Infinity, "y": NaN"#);
    stdout_of(&["inspect", model.to_str().unwrap()]);
    std::fs::write(dir.file("model/generation_config.json"), r#"{"max_time": Infinity}"#).unwrap();
    stdout_of(&["generate", "x", "-n", "1", "--model", model.to_str().unwrap()]);
    let (source, packed) = (dir.file("source"), dir.file("packed"));
    std::fs::create_dir(&source).unwrap();
    for entry in std::fs::read_dir(golden("qwen3_moe-bf16")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, source.join(path.file_name().unwrap())).unwrap();
    }
    dir.edit_text("source/config.json", |text| {
        *text = text.replacen('{', r#"{"limit": [0.0, Infinity], "y": NaN, "#, 1);
    });
    let args = ["pack", source.to_str().unwrap(), packed.to_str().unwrap(), "--bits", "4"];
    stdout_of(&args);
    let kept = std::fs::read_to_string(dir.file("packed/config.json")).unwrap();
    assert!(kept.contains("Infinity\n") && kept.contains("\"y\": NaN"), "{kept}");
    stdout_of(&["inspect", packed.to_str().unwrap()]);

    std::fs::write(dir.file("model/generation_config.json"), r#"{"temperature": Infinity}"#)
        .unwrap();
    let args = ["generate", "x", "-n", "1", "--model", model.to_str().unwrap()];
    check_fails(&args, &["generation_config.json: `temperature` is Infinity"]);
    with(r#""rms_norm_eps": NaN, "time_step_limit": [0.0, Infinity]"#);
    // The last of two keys counts, so the first is taken away.
    dir.edit_text("model/config.json", |text| {
        let at = text.rfind("\"rms_norm_eps\"").unwrap();
        text.replace_range(at + 1..at + 2, "s");
    });
    check_fails(
        &["inspect", model.to_str().unwrap()],
        &["`rms_norm_eps` is NaN; expected a number"],
    );
    // A family that is not supported is named.
    let text = r#"{"model_type": "nemotron_h", "time_step_limit": [0.0, Infinity]}"#;
    std::fs::write(dir.file("model/config.json"), text).unwrap();
    check_fails(&["inspect", model.to_str().unwrap()], &["\"nemotron_h\""]);
}
