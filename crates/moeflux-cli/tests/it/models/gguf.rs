//! GGUF files through the commands: text by their metadata, packs of them, and a remedy if the
//! tokenizer is unknown.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use moeflux::provider::text::byte_tokenizer_json;
use serde_json::{Value, json};

use crate::serving::ServerProcess;
use crate::support::{ModelDir, check_fails, stdout_of};

const VOCAB: usize = 512;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn file_of(dir: &ModelDir) -> PathBuf {
    dir.file("model/model.gguf")
}

fn answer(model: &Path, more: &[&str]) -> Value {
    let args = ["generate", "Once", "--json", "-n", "8", "--seed", "7", "--model", text(model)];
    serde_json::from_str(&stdout_of(&[&args[..], more].concat())).unwrap()
}

#[test]
fn text_and_conversations_follow_the_metadata() {
    let dir = ModelDir::synthetic_gguf();
    let file = file_of(&dir);
    let plain = answer(&file, &["--stats"]);
    assert_eq!(plain["stats"]["prompt_tokens"], 4, "{plain}");
    assert_eq!(plain["tokens"], answer(&dir.file("model"), &[])["tokens"]);
    // <|im_start|>user, newline, the message, <|im_end|>, newline, <|im_start|>assistant, newline.
    let chat = answer(&file, &["--chat", "--stats"]);
    assert_eq!(chat["stats"]["prompt_tokens"], 1 + 5 + 4 + 1 + 1 + 1 + 10, "{chat}");

    let mut command = Command::new(env!("CARGO_BIN_EXE_moeflux"));
    command.args(["chat", "-n", "6", "--cache-dir", "none", "--model", text(&file)]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"Once\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && !output.stdout.is_empty());
}

#[test]
fn a_pack_answers_as_its_file_and_has_checksums() {
    let dir = ModelDir::synthetic_gguf();
    let (file, packed) = (file_of(&dir), dir.file("packed"));
    let printed = stdout_of(&["verify", text(&file)]);
    let advice = format!("no checksums: `moeflux doctor --deep {}` writes some now", text(&file));
    assert!(printed.contains(&advice), "{printed}");
    let printed = stdout_of(&["pack", text(&file), text(&packed)]);
    assert!(printed.contains("next: moeflux generate"), "{printed}");
    assert!(stdout_of(&["verify", text(&packed)]).contains("match their checksums"));
    for more in [&[][..], &["--chat"]] {
        let expected = answer(&file, more);
        assert_eq!(answer(&packed, more)["tokens"], expected["tokens"], "{more:?}");
        let slots = [more, &["--slots", "3"]].concat();
        assert_eq!(answer(&packed, &slots)["tokens"], expected["tokens"], "{slots:?}");
    }
    assert!(stdout_of(&["inspect", text(&packed)]).contains("Q8_0"));
    stdout_of(&["plan", text(&packed)]);
    let affine = dir.file("affine");
    stdout_of(&["pack", text(&file), text(&affine), "--bits", "4", "--group", "32"]);
    assert!(stdout_of(&["inspect", text(&affine)]).contains("4 bits"));
    assert_eq!(answer(&affine, &[])["tokens"].as_array().unwrap().len(), 8);
}

/// Exchanges the name of the steps that split a text for one of the same length.
fn with_unknown_pre(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    let name = b"qwen2";
    let places = bytes.windows(name.len()).enumerate().filter(|(_, it)| it == name);
    let [at] = places.map(|(at, _)| at).collect::<Vec<_>>()[..] else { panic!("one name") };
    bytes[at..at + name.len()].copy_from_slice(b"qwen9");
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn a_tokenizer_json_helps_where_the_name_is_not_known() {
    let dir = ModelDir::synthetic_gguf();
    let file = file_of(&dir);
    let expected = answer(&file, &[])["tokens"].clone();
    with_unknown_pre(&file);
    let generate = ["generate", "Once", "-n", "2", "--model", text(&file)];
    check_fails(&generate, &["`tokenizer.ggml.pre` is `qwen9`", "qwen2", "(--tokenizer)"]);

    let json = dir.file("other.json");
    std::fs::write(&json, byte_tokenizer_json(VOCAB, &[]).to_string()).unwrap();
    assert_eq!(answer(&file, &["--tokenizer", text(&json)])["tokens"], expected);
    std::fs::rename(&json, file.with_file_name("tokenizer.json")).unwrap();
    assert_eq!(answer(&file, &[])["tokens"], expected);
    // A pack takes the one along that lies next to the file.
    let packed = dir.file("packed");
    stdout_of(&["pack", text(&file), text(&packed)]);
    assert_eq!(answer(&packed, &[])["tokens"], expected);
}

#[test]
fn a_server_names_the_file_and_answers() {
    let dir = ModelDir::synthetic_gguf();
    let file = file_of(&dir);
    let server = ServerProcess::start(&["--port", "0", "--model", text(&file)], &[]);
    let listed = server.json("GET /v1/models", &json!({}));
    assert_eq!(listed["data"][0]["id"], "model", "{listed}");
    let question = json!([{"role": "user", "content": "Once"}]);
    let body = json!({"messages": question, "max_tokens": 4, "model": "model"});
    let found = server.json("POST /v1/chat/completions", &body);
    assert_eq!(found["choices"][0]["message"]["role"], "assistant", "{found}");
    assert!(found["usage"]["completion_tokens"].as_u64().unwrap() > 0, "{found}");
}

#[test]
fn reports_name_types_and_those_without_gpu_kernels() {
    let golden = crate::support::golden;
    let first_lines = |name: &str| {
        let page = stdout_of(&["inspect", text(&golden(name))]);
        page.lines().nth(2).unwrap_or_default().to_owned()
    };
    assert_eq!(first_lines("gguf-qwen3moe-k"), "mostly Q4_K (32 % of the bytes)");
    // Experts in MXFP4 between larger floats.
    assert_eq!(first_lines("gguf-gpt-oss"), "mostly f32 (44 % of the bytes)");
    assert_eq!(first_lines("mixtral-bf16"), "not quantised");
    assert_eq!(first_lines("gpt_oss-mxfp4"), "MXFP4, 17 matrices otherwise");
    let file = golden("gguf-qwen3moe-k/model.gguf");
    let words = ["weights are supported only on the CPU"];
    check_fails(&["plan", text(&file), "--ram", "64G", "--gpu", "RTX 3090"], &words);
    check_fails(&["bench", "--model", text(&file), "--backend", "gpu"], &words);
    let file = golden("gguf-qwen3moe-gpu/model.gguf");
    stdout_of(&["plan", text(&file), "--ram", "64G", "--gpu", "RTX 3090"]);
}
