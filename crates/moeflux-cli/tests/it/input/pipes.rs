//! A pipe, or a link that leads nowhere, in the place of any file of a model: no command waits.
#![cfg(unix)]

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::ModelDir;

/// Longer than any command below runs on the slowest machine; one that opens a pipe waits for ever.
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns the exit code and stderr of a command, which is killed if it does not end.
fn run(args: &[&str]) -> (Option<i32>, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_moeflux"))
        .args(args)
        .env("NODEVICE_SELECT", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let reader = std::thread::Builder::new().spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).unwrap();
        sender.send(text).unwrap();
    });
    let printed = receiver.recv_timeout(PATIENCE);
    if printed.is_err() {
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    reader.unwrap().join().unwrap();
    (status.code(), printed.expect("the command ends"))
}

fn make_pipe(path: &Path) {
    std::fs::remove_file(path).ok();
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// A model with every file that a command may look for.
fn whole_model() -> ModelDir {
    let dir = ModelDir::of_bytes_case();
    let text = r#"{"chat_template": "{{ messages[0].content }}"}"#;
    std::fs::write(dir.file("tokenizer_config.json"), text).unwrap();
    std::fs::write(dir.file("generation_config.json"), "{}").unwrap();
    dir
}

#[test]
fn no_command_waits_for_a_pipe() {
    let out = ModelDir::new();
    let [npy, packed, text] =
        ["out.npy", "packed", "text"].map(|it| out.file(it).to_str().unwrap().to_owned());
    std::fs::write(&text, "some text").unwrap();
    for name in [
        "config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "moeflux-sums.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    ] {
        let model = whole_model();
        make_pipe(&model.file(name));
        let dir = model.path().to_str().unwrap();
        let commands: [&[&str]; 7] = [
            &["generate", "--chat", "hi", "-n", "1", "--model", dir],
            &["logits", "--tokens", "1", "--out", &npy, "--model", dir],
            &["eval", "--file", &text, "--context", "4", "--model", dir],
            &["inspect", dir],
            &["plan", dir],
            &["verify", dir],
            &["pack", dir, &packed],
        ];
        // It measures the drive first.
        let doctor: [&str; 3] = ["doctor", "--deep", dir];
        let is_deep = ["model.safetensors", "moeflux-sums.json"].contains(&name);
        let mut n_refused = 0;
        for args in commands.into_iter().chain(is_deep.then_some(&doctor[..])) {
            let (code, printed) = run(args);
            if code == Some(1) && printed.contains("is a pipe") {
                n_refused += 1;
                assert!(printed.contains(name) && printed.trim().lines().count() == 1, "{printed}");
            }
            std::fs::remove_dir_all(out.file("packed")).ok();
        }
        assert!(n_refused > 0, "{name}: nobody has read it");
        assert!(name != "config.json" || n_refused >= 6, "{name}: {n_refused} have read it");
    }
}

#[test]
fn named_pipes_are_refused_as_files_too() {
    let dir = ModelDir::new();
    let pipe = dir.file("pipe");
    make_pipe(&pipe);
    let pipe = pipe.to_str().unwrap();
    let gguf = dir.file("pipe.gguf");
    make_pipe(&gguf);
    let (code, printed) = run(&["inspect", gguf.to_str().unwrap()]);
    assert!(code == Some(1) && printed.contains("is a pipe"), "{printed}");
    let out = dir.file("out");
    let out = out.to_str().unwrap();
    let words = dir.file("words");
    std::fs::write(&words, "some words").unwrap();
    let eval = ["eval", "--file", words.to_str().unwrap(), "--compare-model"];
    let demo = moeflux_demo::unpack(dir.path()).unwrap();
    let compared = [&eval[..], &[demo.to_str().unwrap(), "--compare-base", pipe]].concat();
    let commands: [&[&str]; 11] = [
        &compared,
        &[&eval[..], &[pipe]].concat(),
        &["generate", "hi", "--model", pipe],
        &["verify", pipe],
        &["pack", pipe, out],
        &["eval", "--file", pipe],
        &["replay", pipe],
        &["synth", "--config", pipe, "--out", out],
        &["inspect", pipe],
        &["plan", pipe],
        &["logits", "--tokens", "1", "--out", pipe],
    ];
    for args in commands {
        let (code, printed) = run(args);
        assert_eq!(code, Some(1), "{args:?}: {printed}");
        assert!(printed.contains("is a pipe"), "{args:?}: {printed}");
    }
}

#[test]
fn an_optional_file_that_leads_nowhere_is_not_absent() {
    for name in ["chat_template.jinja", "generation_config.json", "tokenizer_config.json"] {
        let model = whole_model();
        std::fs::remove_file(model.file(name)).ok();
        std::os::unix::fs::symlink("../blobs/0123", model.file(name)).unwrap();
        let dir = model.path().to_str().unwrap();
        let (code, printed) = run(&["generate", "--chat", "hi", "-n", "1", "--model", dir]);
        assert_eq!(code, Some(1), "{name}: {printed}");
        assert!(printed.contains(name) && printed.contains("link to ../blobs/0123"), "{printed}");
    }
}
