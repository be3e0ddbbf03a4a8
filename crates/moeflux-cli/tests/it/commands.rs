//! Commands that succeed, and wrong uses of them.

use serde_json::{Value, json};

use crate::support::{ModelDir, check_fails, golden, moeflux, read_npy, stdout_of};

/// One case of every family.
const FAMILIES: [&str; 6] = [
    "qwen3_moe-bf16",
    "qwen3_next-bf16",
    "qwen3_5_moe-bf16",
    "deepseek_v3-bf16",
    "kimi_k2-bf16",
    "glm4_moe-bf16",
];

#[test]
fn foreign_options_and_wrong_numbers_get_a_tip() {
    for (args, words) in [
        (&["generate", "-m", "x", "hi"][..], "error: '-m' is spelled '--model' here"),
        (&["generate", "hi", "-ngl", "99"], "--gpu-memory SIZE"),
        (&["chat", "-hf", "a/b"], "--model OWNER/NAME:QUANT"),
        (&["run", "a/b"], "moeflux chat --model MODEL"),
        (&["generate", "hi", "-n", "-3"], "give a whole number, 0 or more"),
        (&["generate", "hi", "--seed", "x"], "give a whole number from 0 to 184467440"),
        (&["generate", "hi", "--seed", "-1"], "give a whole number from 0 to 184467440"),
        (&["bench", "--gen-tokens", "x"], "give a whole number, 0 or more"),
        (&["serve", "--port", "99999"], "give a whole number from 0 to 65535"),
        (&["generate", "hi", "--context", "0"], "give a number of tokens, 1 or more"),
    ] {
        let output = moeflux(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(words) && !stderr.contains("-- -"), "{args:?}: {stderr}");
    }
    for (command, name) in [("generate", "qwen3-30b-a3b"), ("bench", "Qwen3 30B")] {
        let prompt: &[&str] = if command == "generate" { &["hi"] } else { &[] };
        let words = ["there is no such folder", "`moeflux pull mlx-community/Qwen3-30B-A3B-4bit`"];
        check_fails(&[&[command, "--model", name][..], prompt].concat(), &words);
    }
    let page = stdout_of(&["plan", "gpt-oss-20b", "--ram", "512G"]);
    assert!(page.ends_with("* `moeflux pull openai/gpt-oss-20b` downloads it\n"), "{page}");
    // Its repository was not looked up.
    assert!(!stdout_of(&["plan", "hy3", "--ram", "512G"]).contains("moeflux pull"));
    let dir = ModelDir::of_case("gguf-qwen35moe");
    check_fails(
        &["eval", "--file", dir.path().to_str().unwrap()],
        &["is a model: pass it with --model"],
    );
}

#[test]
fn a_gguf_file_is_taken_as_a_folder_is() {
    let dir = ModelDir::of_case("gguf-qwen35moe");
    let path = dir.file("model-00002-of-00002.gguf");
    let (file, folder) = (path.to_str().unwrap(), dir.path().to_str().unwrap());
    let logits = |model: &str, name: &str| {
        let out = dir.file(name);
        stdout_of(&["logits", "--model", model, "--tokens", "1,2", "--out", out.to_str().unwrap()]);
        std::fs::read(out).unwrap()
    };
    assert!(logits(file, "a.npy") == logits(folder, "b.npy"));
    for (command, words) in [("inspect", "qwen35moe"), ("plan", "minimum: --memory ")] {
        let page = stdout_of(&[command, file]);
        assert!(page.contains(words), "{page}");
    }
    stdout_of(&["verify", file]);
    let few = ["--prompt-tokens", "4", "--gen-tokens", "1", "--repeat", "1"];
    stdout_of(&[&["bench", "--model", file][..], &few].concat());
    // The sums lie beside the file, under its name.
    let deep = ["doctor", file, "--deep", "--file-size", "16M"];
    stdout_of(&deep);
    assert!(dir.file("model-00001-of-00002.gguf.moeflux-sums.json").exists());
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let found = moeflux(&deep);
    let printed = String::from_utf8(found.stderr).unwrap();
    assert_eq!(found.status.code(), Some(1), "{printed}");
    assert!(printed.contains("1 damaged"), "{printed}");
    let out = dir.file("c.npy");
    let out = out.to_str().unwrap();
    check_fails(&["logits", "--model", file, "--tokens", "1", "--out", out], &["checksum"]);
}

#[test]
fn logits_are_the_same_file_for_any_chunk_and_close_to_the_golden_ones() {
    for name in FAMILIES {
        let dir = ModelDir::new();
        let model = golden(name);
        let tokens = std::fs::read(model.join("tokens.json")).unwrap();
        let tokens: Vec<u32> = serde_json::from_slice(&tokens).unwrap();
        let list: Vec<String> = tokens.iter().map(u32::to_string).collect();
        let list = list.join(", ");
        let mut files = Vec::new();
        for chunk in ["1", "7", "512"] {
            let out = dir.file(&format!("chunk-{chunk}.npy"));
            let (model, out_name) = (model.to_str().unwrap(), out.to_str().unwrap());
            let args = ["logits", "--model", model, "--tokens", &list, "--out", out_name];
            let printed = stdout_of(&[&args[..], &["--chunk", chunk, "--precise"]].concat());
            assert!(printed.is_empty());
            files.push(std::fs::read(out).unwrap());
        }
        assert!(files[0] == files[1] && files[0] == files[2], "{name}");

        let config = std::fs::read(model.join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        let text = config.get("text_config").unwrap_or(&config);
        let vocab = usize::try_from(text["vocab_size"].as_u64().unwrap()).unwrap();
        let golden = read_npy(&model.join("logits.npy"), vocab).concat();
        let computed = read_npy(&dir.file("chunk-7.npy"), vocab).concat();
        assert_eq!((golden.len(), computed.len()), (tokens.len() * vocab, tokens.len() * vocab));
        for (golden, computed) in golden.iter().zip(&computed) {
            assert!((golden - computed).abs() <= 5e-4, "{name}: {computed}, not {golden}");
        }
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_or_link_is_written_through_and_not_replaced() {
    let dir = ModelDir::new();
    let model = golden("qwen3_moe-f32");
    let link = dir.file("link.npy");
    std::os::unix::fs::symlink(dir.file("file.npy"), &link).unwrap();
    let args = ["logits", "--model", model.to_str().unwrap(), "--tokens", "1,2", "--out"];
    for _ in 0..2 {
        stdout_of(&[&args[..], &[link.to_str().unwrap()]].concat());
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    }
    assert_eq!(read_npy(&dir.file("file.npy"), 256).len(), 2);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    // A device that only Linux has.
    if cfg!(target_os = "linux") {
        check_fails(&[&args[..], &["/dev/full"]].concat(), &["/dev/full"]);
    }
}

#[test]
fn values_out_of_range_are_wrong_use() {
    let dir = ModelDir::of_bytes_case();
    let model = dir.path().to_str().unwrap();
    let text = dir.file("text");
    std::fs::write(&text, "some text").unwrap();
    let generate = ["generate", "x", "--model", model];
    let eval = ["eval", "--model", model, "--file", text.to_str().unwrap()];
    let logits = ["logits", "--model", model, "--tokens", "1", "--out", "/nonexistent/x.npy"];
    let synth = ["synth", "--config", "none.json", "--out", "none"];
    let cases: [(&[&str], &[&str], &str); 19] = [
        (&generate, &["--temp", "-1"], "from 0 to"),
        (&generate, &["--temp", "nan"], "from 0 to"),
        (&generate, &["--top-p", "2"], "from 0 to 1"),
        (&generate, &["--min-p", "-0.5"], "from 0 to 1"),
        (&generate, &["--repetition-penalty", "0"], "from 0.000001 to"),
        (&generate, &["--frequency-penalty", "-2e6"], "from -1000000 to"),
        (&generate, &["--chunk", "100000"], "from 1 to 65536"),
        (&generate, &["--threads", "100000"], "from 1 to 4096"),
        (&generate, &["--logit-bias", "5=nan"], "from -1000000 to"),
        (&generate, &["--stop", ""], "1 to 1024"),
        (&generate, &["--json", "--logprobs", "100000"], "from 0 to 1000"),
        (&generate, &["--context", "99999999999"], "99999999999"),
        (&logits, &["--context", "4097"], "1 to 4096"),
        (&eval, &["--context", "1"], "2 or more"),
        (&eval, &["--context", "4097"], "1 to 4096"),
        (&eval, &["--context", "8", "--stride", "9"], "skips tokens: a window holds only 8"),
        (&eval, &["--separator", "<|nothing|>"], "`<|nothing|>` is not a token"),
        (&["inspect", model], &["--bits", "4"], "leave them out"),
        (&synth, &["--shard-size", "0"], "1M"),
    ];
    for (command, more, words) in cases {
        let output = moeflux(&[command, more].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{more:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{more:?}");
        assert!(stderr.starts_with("error: ") && stderr.contains(words), "{more:?}: {stderr}");
        assert!(stderr.contains("--help"), "{more:?}: {stderr}");
    }
}

#[test]
fn inspect_lists_skipped_tensors() {
    for name in ["qwen3_next-bf16", "qwen3_5_moe-bf16", "deepseek_v3-bf16", "glm4_moe-bf16"] {
        let page = stdout_of(&["inspect", golden(name).to_str().unwrap()]);
        let (_, skipped) = page.split_once("not used").unwrap();
        let is_known = ["multi-token prediction", "vision"].iter().any(|it| skipped.contains(it));
        assert!(is_known, "{name}: {page}");
        let rows = skipped.lines().skip(1).take_while(|line| !line.is_empty());
        let widths: Vec<usize> = rows.map(|row| row.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{name}: {page}");
    }
}

#[test]
fn help_keeps_options_under_their_heading() {
    let help = stdout_of(&["generate", "--help"]);
    let (options, sampling) = help.split_once("Sampling (").unwrap();
    for option in ["--chat", "--system", "--no-think", "--stop", "--special", "--stats", "--json"] {
        let at_line_start = format!("{option} ");
        let named = |part: &str| {
            part.lines().any(|line| format!("{} ", line.trim()).starts_with(&at_line_start))
        };
        assert!(named(options) && !named(sampling), "{option} in:\n{help}");
    }
    for command in ["logits", "eval"] {
        assert!(!stdout_of(&[command, "--help"]).contains("-n "), "{command}");
    }
    assert!(stdout_of(&["eval", "--help"]).contains("2048"));
}

#[test]
fn wrong_use_is_status_2_and_shows_the_way() {
    for args in [&["logits"][..], &["frobnicate"], &["logits", "--tokens", "one"], &[]] {
        let output = moeflux(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains("Usage:") || stderr.contains("--help"), "{stderr}");
    }
}

#[test]
fn help_names_every_command() {
    let help = stdout_of(&["--help"]);
    for command in ["generate", "logits", "eval", "inspect", "synth"] {
        assert!(help.contains(command), "{command} is not in:\n{help}");
    }
    assert_eq!(stdout_of(&["--version"]).trim(), concat!("moeflux ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let model = golden("qwen3_next-bf16");
    let args = ["logits", "--model", model.to_str().unwrap(), "--tokens", "1", "--out"];
    check_fails(&[&args[..], &["/nonexistent/out.npy"]].concat(), &["/nonexistent", "out.npy"]);
}

#[cfg(unix)]
#[test]
fn a_shell_completes_commands_options_and_models() {
    use std::path::Path;
    use std::process::Command;

    let script = stdout_of(&["completions", "bash"]);
    let cache = ModelDir::new();
    std::fs::create_dir_all(cache.path().join("models--some--Qwen9-MoE/snapshots")).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_moeflux")).parent().unwrap();
    let program = program.display();
    let completed = |before: &str, word: &str| -> Vec<String> {
        let n_words = before.split(' ').count();
        let line = format!(
            "PATH={program}:$PATH\n{script}\nCOMP_WORDS=({before} '{word}'); COMP_TYPE=9\n\
             COMP_CWORD={n_words}; _clap_complete_moeflux moeflux '{word}' {before}\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", &line]).current_dir(cache.path());
        let output = bash.env("HF_HUB_CACHE", cache.path()).output().unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        output.lines().map(|line| line.trim_end().to_owned()).collect()
    };
    assert_eq!(completed("moeflux", "gen"), ["generate"]);
    assert_eq!(completed("moeflux generate", "--prompt-f"), ["--prompt-file"]);
    assert_eq!(completed("moeflux generate --model", "SOME"), ["SOME/Qwen9-MoE"]);
    assert_eq!(completed("moeflux chat --model", "model"), ["models--some--Qwen9-MoE/"]);
    assert_eq!(completed("moeflux rm", "s"), ["some/Qwen9-MoE"]);
    assert_eq!(completed("moeflux prefix", "pr"), ["prune"]);
    assert_eq!(completed("moeflux prefix prune", "--unu"), ["--unused-for"]);
    assert_eq!(completed("moeflux prefix warm --model", "SOME"), ["SOME/Qwen9-MoE"]);
    assert_eq!(completed("moeflux plan", "qwen3-next"), ["qwen3-next-80B-A3B"]);
    assert_eq!(completed("moeflux pull", "openai/gpt-oss-1"), ["openai/gpt-oss-120b"]);
}

#[test]
fn a_text_is_shown_as_tokens_and_back() {
    let text = "fn main() { println!(\"hé\"); }";
    let ids = stdout_of(&["tokenize", text, "--ids"]);
    let list: Vec<u32> = ids.trim().split(',').map(|id| id.parse().unwrap()).collect();
    let json: Value = serde_json::from_str(&stdout_of(&["tokenize", text, "--json"])).unwrap();
    assert_eq!((&json["n_tokens"], &json["n_bytes"]), (&json!(list.len()), &json!(text.len())));
    let bytes = json["tokens"].as_array().unwrap().iter().flat_map(|token| {
        token["bytes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| u8::try_from(it.as_u64().unwrap()).unwrap())
    });
    assert_eq!(String::from_utf8(bytes.collect()).unwrap(), text);
    let table = stdout_of(&["tokenize", text]);
    let words = format!("{} tokens for {} bytes", list.len(), text.len());
    assert_eq!(table.lines().count(), list.len() + 1);
    assert!(
        table.contains(&format!("{:>8}  \"fn\"", list[0])) && table.contains(&words),
        "{table}"
    );
    assert_eq!(stdout_of(&["tokenize", "--decode", ids.trim()]).trim_end_matches('\n'), text);
    check_fails(&["tokenize", "--decode", "1,9999999"], &["token 9999999 at index 1"]);
    for args in [&["tokenize"][..], &["tokenize", "a", "--file", "b"], &["tokenize", "--ids"]] {
        assert_eq!(moeflux(args).status.code(), Some(2), "{args:?}");
    }
    let dir = ModelDir::new();
    std::fs::write(dir.file("text"), text).unwrap();
    let (file, out) = (dir.file("text"), dir.file("logits.npy"));
    let (file, out) = (file.to_str().unwrap(), out.to_str().unwrap());
    assert_eq!(stdout_of(&["tokenize", "--file", file, "--ids"]), ids);
    stdout_of(&["logits", "--file", file, "--out", out]);
    let of_file = std::fs::read(out).unwrap();
    stdout_of(&["logits", "--tokens", ids.trim(), "--out", out]);
    assert!(std::fs::read(out).unwrap() == of_file);
    std::fs::write(file, "").unwrap();
    check_fails(&["logits", "--file", file, "--out", out], &["the text is empty"]);
}
