//! Commands that succeed, and wrong uses of them.

use crate::support::{TempDir, check_fails, golden, moeflux, stdout_of};

#[test]
fn logits_are_the_same_file_for_any_chunk_and_close_to_the_golden_ones() {
    let dir = TempDir::new();
    let model = golden("qwen3_next-bf16");
    let tokens = std::fs::read_to_string(model.join("tokens.json")).unwrap();
    let tokens: String = tokens.chars().filter(|c| c.is_ascii_digit() || *c == ',').collect();
    let mut files = Vec::new();
    for chunk in ["1", "7", "512"] {
        let out = dir.file(&format!("chunk-{chunk}.npy"));
        let (model, out_name) = (model.to_str().unwrap(), out.to_str().unwrap());
        let args = ["logits", "--model", model, "--tokens", &tokens, "--out", out_name];
        let printed = stdout_of(&[&args[..], &["--chunk", chunk]].concat());
        assert!(printed.is_empty());
        files.push(std::fs::read(out).unwrap());
    }
    assert!(files[0] == files[1] && files[0] == files[2]);
    let golden = std::fs::read(model.join("logits.npy")).unwrap();
    assert_eq!(golden.len(), files[0].len());
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
    check_fails(&[&args[..], &["/nonexistent/out.npy"]].concat(), &["/nonexistent/out.npy"]);
}
