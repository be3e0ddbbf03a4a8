//! `moeflux pack` and `moeflux verify`: interruptions, resumption and refusals; each damage is
//! reported in one line.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::support::{ModelDir, check_fails, golden, moeflux, stdout_of};

/// All files of a folder.
fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let read = |entry: std::fs::DirEntry| {
        let bytes = std::fs::read(entry.path()).unwrap();
        (entry.file_name().into_string().unwrap(), bytes)
    };
    entries.map(read).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn start(args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_moeflux"));
    command.args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Waits without a clock: nothing is ever sent.
fn wait(duration: Duration) {
    let (sender, receiver) = channel::<()>();
    assert!(receiver.recv_timeout(duration).is_err());
    drop(sender);
}

#[test]
fn a_killed_pack_goes_on_and_ends_the_same() {
    let dir = ModelDir::new();
    let whole = dir.file("whole");
    let case = golden("qwen3_next-bf16-wide");
    let options = ["--bits", "4", "--group", "32"];
    stdout_of(&[&["pack", text(&case), text(&whole)][..], &options].concat());
    let expected = contents(&whole);
    let mut n_killed = 0;
    for nth in 0..12 {
        let source = ModelDir::of_case("qwen3_next-bf16-wide");
        let target = dir.file(&format!("killed-{nth}"));
        let command = ["pack", text(source.path()), text(&target), "--replace"];
        let command = [&command[..], &options].concat();
        // Killed two times on its way, later each time.
        for try_idx in 1..=2 {
            let mut child = start(&command);
            wait(Duration::from_millis(3 * nth * try_idx));
            child.kill().unwrap();
            n_killed += usize::from(child.wait().unwrap().code().is_none());
        }
        if target.join("moeflux-pack.journal").exists() || !target.join("config.json").exists() {
            stdout_of(&command);
        }
        assert!(contents(&target) == expected, "after {} ms", 3 * nth);
        assert!(!source.file("model.safetensors").exists(), "it was replaced");
    }
    // On another system none may be met in the middle of its work; then nothing was shown.
    assert!(n_killed > 0 || cfg!(not(unix)));
    let printed = stdout_of(&["verify", text(&whole)]);
    assert!(printed.contains("match their checksums"), "{printed}");
}

#[test]
fn a_pack_is_a_model() {
    let dir = ModelDir::of_bytes_case();
    let target = dir.file("packed");
    let printed =
        stdout_of(&["pack", text(dir.path()), text(&target), "--bits", "8", "--threads", "1"]);
    assert!(printed.contains("next: moeflux generate --model"), "{printed}");
    let printed = stdout_of(&["inspect", text(&target)]);
    assert!(printed.contains("8 bits in groups of 64"), "{printed}");
    assert!(printed.contains("packed"), "{printed}");
    let args = ["generate", "--model", text(&target), "-n", "3", "--temp", "0", "ab"];
    assert!(!stdout_of(&args).is_empty());
    check_fails(&["pack", text(dir.path()), text(&target)], &["finished pack", "verify"]);
}

#[test]
fn damage_is_a_line_each_and_a_failure() {
    let dir = ModelDir::new();
    let target = dir.file("packed");
    stdout_of(&["pack", text(&golden("mlx-glm4_moe-q5-g64-f32")), text(&target)]);
    let experts = target.join("experts-00001.safetensors");
    let mut bytes = std::fs::read(&experts).unwrap();
    let data_at = 8 + usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let record_bytes = (bytes.len() - data_at - 9 * 8) / 8;
    for expert in [2, 5] {
        bytes[data_at + expert * record_bytes + 77] ^= 1;
    }
    std::fs::write(&experts, bytes).unwrap();
    let output = moeflux(&["verify", text(&target)]);
    let stdout = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{stdout}");
    for (line, expert) in lines.iter().zip([2, 5]) {
        let first = data_at + expert * record_bytes;
        for word in [
            format!("damaged: layer 1 expert {expert}: "),
            format!("experts-00001.safetensors bytes {first} to {}", first + record_bytes),
        ] {
            assert!(line.contains(&word), "`{word}` is not in {line}");
        }
    }
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("2 damaged") && stderr.lines().count() == 1, "{stderr}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn edited_and_missing_checksums_of_small_files_have_a_way_out() {
    let dir = ModelDir::of_bytes_case();
    let target = dir.file("packed");
    stdout_of(&["pack", text(dir.path()), text(&target)]);
    let generate = ["generate", "--model", text(&target), "-n", "3", "--temp", "0", "ab"];
    let printed = || String::from_utf8(moeflux(&generate).stderr).unwrap();
    assert!(!printed().contains("note:"), "{}", printed());
    let config = target.join("config.json");
    let mut text_of_config = std::fs::read(&config).unwrap();
    text_of_config.push(b'\n');
    std::fs::write(&config, text_of_config).unwrap();
    let words = ["config.json: has checksum", "(`moeflux verify --accept-edits`)"];
    check_fails(&generate, &words);
    let output = moeflux(&["verify", text(&target)]);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.starts_with("damaged: small file: ") && stdout.lines().count() == 1, "{stdout}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("--accept-edits"));
    let written = stdout_of(&["verify", text(&target), "--accept-edits"]);
    assert!(written.contains("small files written"), "{written}");
    assert!(!stdout_of(&["verify", text(&target)]).contains("written"));

    std::fs::remove_file(target.join("moeflux-pack.json")).unwrap();
    let note = printed();
    assert_eq!(note.matches("note:").count(), 1, "{note}");
    assert!(note.contains("moeflux verify"), "{note}");
    assert!(stdout_of(&["verify", text(&target)]).contains("small files written"));
    assert!(!printed().contains("note:"));
    check_fails(&["verify", text(dir.path()), "--accept-edits"], &["is not packed"]);
}

#[test]
fn verify_reports_missing_checksums() {
    let printed = stdout_of(&["verify", text(&golden("mlx-glm4_moe-q5-g64-f32"))]);
    assert!(printed.contains("not checked") && printed.contains("no checksums"), "{printed}");
}

#[test]
fn wrong_folders_are_refused_in_one_line() {
    let dir = ModelDir::new();
    let case = golden("qwen3_moe-f32");
    check_fails(&["pack", text(&dir.file("none")), text(&dir.file("out"))], &["none"]);
    check_fails(&["verify", text(&dir.file("none"))], &["none"]);
    check_fails(&["pack", text(&case), text(&case)], &["a pack needs its own folder"]);
    let quantised = golden("mlx-qwen3_moe-q4-g32-bf16");
    let out = dir.file("out");
    let args = ["pack", text(&quantised), text(&out), "--bits", "3"];
    check_fails(&args, &["quantised already", "without quantising"]);
    assert!(!out.exists());
}
