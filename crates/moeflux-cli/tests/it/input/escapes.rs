//! Foreign names and texts that are printed to a terminal: their control characters are escaped.

use std::fs;
use std::io::Read as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::{ModelDir, moeflux, stdout_of};

/// Moves the cursor, rings, sets a colour by a C1 control, turns letters around, ends a line.
const EVIL: &str = "\x1b[2J\x07\u{9b}31m\u{202e}\n";

fn is_harmful(letter: char) -> bool {
    letter.is_control() && letter != '\n' && letter != '\t'
        || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Checks that a command fails, with a short and harmless message that contains these words.
#[track_caller]
fn check_fails(args: &[&str], words: &[&str]) {
    let output = moeflux(args);
    let printed = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap()).concat();
    assert_ne!(output.status.code(), Some(0), "{args:?}: {printed}");
    assert!(!printed.contains(is_harmful) && printed.len() < 10_000, "{args:?}: {printed:.2000?}");
    assert!(printed.starts_with("error: ") || printed.contains("\nerror: "), "{printed}");
    for word in words {
        assert!(printed.contains(word), "{args:?}: `{word}` is not in {printed}");
    }
}

#[test]
fn a_name_of_a_surplus_tensor_is_cut_and_harmless() {
    let dir = ModelDir::synthetic();
    let (_, data) = dir.split_safetensors("model/model.safetensors");
    let mut bytes = fs::read(dir.file("model/model.safetensors")).unwrap();
    bytes.extend([0; 4]);
    fs::write(dir.file("model/model.safetensors"), bytes).unwrap();
    let name = format!("{EVIL}{}", "x".repeat(1 << 20));
    let end = data.len() + 4;
    dir.edit_header("model/model.safetensors", |header| {
        header[&name] = json!({"dtype": "F32", "shape": [1], "data_offsets": [data.len(), end]});
    });
    let model = dir.file("model");
    let model = model.to_str().unwrap();
    let shown = "tensor `\\u{1b}[2J\\u{7}\\u{9b}31m\\u{202e}\\nxxx";
    let words = [shown, " more bytes)`: in `model.safetensors`", "is not part of the model"];
    for args in [
        &["inspect", model][..],
        &["generate", "x", "--model", model],
        &["verify", model],
        &["plan", model],
    ] {
        check_fails(args, &words);
    }
}

#[test]
fn texts_in_configs_and_paths_are_escaped() {
    let dir = ModelDir::new();
    let config = dir.file("config.json");
    for (key, value) in [
        ("model_type", json!(EVIL.to_owned() + &"x".repeat(1 << 20))),
        (EVIL, json!(1)),
        ("quantization", json!({"bits": EVIL})),
    ] {
        fs::write(&config, json!({"model_type": "qwen3_moe", key: value}).to_string()).unwrap();
        check_fails(&["inspect", config.to_str().unwrap()], &["config.json: "]);
    }
    let path = dir.file(&format!("none{EVIL}"));
    for args in [&["inspect"][..], &["generate", "x", "--model"], &["verify"], &["plan"]] {
        check_fails(&[args, &[path.to_str().unwrap()]].concat(), &["none\\u{1b}[2J"]);
    }
    check_fails(&["pull", &format!("a/b@{EVIL}")], &["is not a revision"]);
    check_fails(&["list", &format!("--{EVIL}")], &["unexpected argument"]);
    check_fails(&[EVIL], &["unrecognized subcommand"]);
    check_fails(&["rm", "a/b@x\u{202e}y", "--yes"], &["is not in the cache"]);
}

#[test]
fn branches_and_folders_in_lists_are_harmless() {
    let dir = ModelDir::new();
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let model = dir.file("hub/models--a--b");
    fs::create_dir_all(model.join("snapshots").join(commit)).unwrap();
    fs::create_dir_all(model.join("refs")).unwrap();
    fs::write(model.join("refs").join(format!("x{EVIL}")), commit).unwrap();
    fs::write(model.join("refs").join("y".repeat(250)), commit).unwrap();
    fs::create_dir_all(dir.file(&format!("hub/models--a--c{EVIL}"))).unwrap();
    fs::write(model.join("snapshots").join(commit).join("config.json"), "{}").unwrap();
    let list = |args: &[&str], home: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_moeflux"));
        command.args([&["list"], args].concat()).env("HF_HOME", dir.file(home));
        command.env_remove("HF_HUB_CACHE");
        let output = command.output().unwrap();
        assert!(output.status.success());
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(!printed.contains(is_harmful), "{printed:?}");
        printed
    };
    let page = list(&[], ".");
    assert!(page.contains("x\\u{1b}[2J\\u{7}\\u{9b}31m\\u{202e}\\n "), "{page}");
    assert!(page.contains(&format!("{}.. (50 more bytes)", "y".repeat(200))), "{page}");
    let listed: Value = serde_json::from_str(&list(&["--json"], ".")).unwrap();
    assert_eq!(listed["models"][0]["revisions"][0]["refs"][0], format!("x{EVIL}"));
    let page = list(&[], &format!("none{EVIL}"));
    assert!(page.contains("none\\u001b[2J"), "{page}");
}

/// A model that generates random bytes, most of which are not text.
fn noisy() -> ModelDir {
    let dir = ModelDir::synthetic();
    dir.edit_json("small.json", |config| config["vocab_size"] = 300.into());
    let (config, out) = (dir.file("small.json"), dir.file("noisy"));
    stdout_of(&["synth", "--config", config.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    dir
}

#[test]
fn an_answer_on_a_terminal_is_harmless_and_in_a_pipe_it_is_whole() {
    let dir = noisy();
    let model = dir.file("noisy");
    let args = ["generate", "x", "-n", "400", "--seed", "3", "--temp", "1.2", "--model"];
    let mut args = [&args[..], &[model.to_str().unwrap()]].concat();
    let generation = fs::read(model.join("generation_config.json")).unwrap();
    let generation: Value = serde_json::from_slice(&generation).unwrap();
    let ends = generation["eos_token_id"].as_array().unwrap();
    let ends: Vec<String> = ends.iter().map(|token| format!("{token}=-1000")).collect();
    args.extend(ends.iter().flat_map(|end| ["--logit-bias", end]));
    // The byte that begins a sequence.
    args.extend(["--logit-bias", "27=3"]);
    let raw = stdout_of(&args);
    assert!(raw.contains('\x1b') && raw.contains(is_harmful), "the test needs some: {raw:?}");

    let shown = on_a_terminal(&args, "dumb");
    assert!(shown.contains("^["), "{shown:?}");
    assert!(!shown.contains(|it| is_harmful(it) && it != '\r'), "{shown:?}");
    // The terminal itself adds a return to each line end.
    assert_eq!(shown.matches('\r').count(), shown.matches("\r\n").count(), "{shown:?}");
    let plain = |text: &str| text.replace(['\r', '\n'], "").chars().count();
    assert!(plain(&shown) > plain(&raw), "nothing is lost");

    // Where the cursor moves, these two sequences take words to the next line, and no other comes.
    let wrapped = on_a_terminal(&args, "xterm");
    assert!(wrapped.contains("\x1b[K"), "the test needs some: {wrapped:?}");
    for piece in wrapped.split('\x1b').skip(1) {
        let moves = piece.trim_start_matches(|it: char| it == '[' || it.is_ascii_digit()) == "C";
        assert!(piece.starts_with("[K\r\n") || moves, "{piece:?}");
        assert!(!piece.contains(|it| is_harmful(it) && it != '\r'), "{piece:?}");
    }
}

/// Stdout of the command on a terminal of this kind.
fn on_a_terminal(args: &[&str], kind: &str) -> String {
    let (pty, inside) = pty_process::blocking::open().unwrap();
    let command = pty_process::blocking::Command::new(env!("CARGO_BIN_EXE_moeflux")).args(args);
    let command = command.env("NODEVICE_SELECT", "1").env("TERM", kind).stderr(Stdio::null());
    let mut child = command.spawn(inside).unwrap();
    let mut shown = Vec::new();
    // The end of a terminal is an error.
    drop(fs::File::from(std::os::fd::OwnedFd::from(pty)).read_to_end(&mut shown));
    assert!(child.wait().unwrap().success());
    String::from_utf8(shown).unwrap()
}
