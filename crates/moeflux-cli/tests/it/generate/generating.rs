//! `generate` as README shows it, and with failing input and output.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::{ModelDir, check_fails, moeflux, stdout_of};

fn command(dir: &ModelDir, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_moeflux"));
    command.arg("generate").args(more).arg("--model").arg(dir.file("model"));
    command
}

fn answer(dir: &ModelDir, more: &[&str]) -> Value {
    let model = dir.file("model");
    let args = ["generate", "Once upon a time", "--json", "--model", model.to_str().unwrap()];
    serde_json::from_str(&stdout_of(&[&args[..], more].concat())).unwrap()
}

/// Options that keep the model from ending by itself.
#[cfg(unix)]
fn endless(dir: &ModelDir) -> Vec<String> {
    let bytes = std::fs::read(dir.file("model/generation_config.json")).unwrap();
    let config: Value = serde_json::from_slice(&bytes).unwrap();
    let ids = config["eos_token_id"].as_array().unwrap();
    ids.iter().map(|id| format!("--logit-bias={id}=-1000000")).collect()
}

#[test]
fn the_first_commands_of_the_readme() {
    let dir = ModelDir::synthetic();
    let first = answer(&dir, &["-n", "12", "--seed", "7", "--stats"]);
    let again = answer(&dir, &["-n", "12", "--seed", "7"]);
    assert_eq!((&first["text"], &first["tokens"]), (&again["text"], &again["tokens"]));
    assert_eq!(first["seed"], 7);
    assert_eq!(first["stats"]["prompt_tokens"], 16);
    let other = answer(&dir, &["-n", "12", "--seed", "8"]);
    assert_ne!(first["tokens"], other["tokens"]);
    let greedy = answer(&dir, &["-n", "12", "--seed", "1", "--temp", "0"]);
    assert_eq!(greedy["tokens"], answer(&dir, &["-n", "12", "--temp", "0"])["tokens"]);

    let output =
        command(&dir, &["Once upon a time", "-n", "12", "--seed", "7", "--stats"]).output();
    let output = output.unwrap();
    assert!(output.status.success());
    let text = first["text"].as_str().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim_end(), text.trim_end());
    let stats = String::from_utf8(output.stderr).unwrap();
    for word in ["load", "prompt    16 tokens", "answer", "memory", "seed 7"] {
        assert!(stats.contains(word), "{stats}");
    }
}

#[test]
fn more_tokens_than_a_number_holds_are_as_many_as_fit() {
    let dir = ModelDir::synthetic();
    let answer = answer(&dir, &["-n", "18446744073709551615", "--context", "20"]);
    assert!(answer["finish"] == "context" || answer["finish"] == "end", "{answer}");
}

#[test]
fn the_last_of_a_repeated_option_counts_and_lists_grow() {
    let dir = ModelDir::synthetic();
    let expected = answer(&dir, &["-n", "4", "--seed", "3"]);
    let found = answer(&dir, &["-n", "9", "--seed", "1", "-n", "4", "--seed", "3"]);
    assert_eq!(found["tokens"], expected["tokens"]);
    let vowels = ['a', 'e', 'i', 'o', 'u'];
    let stops = ["--stop", "a", "--stop", "e", "--stop", "i", "--stop", "o", "--stop", "u"];
    let found = answer(&dir, &[&["-n", "64", "--seed", "3"][..], &stops].concat());
    let text = found["text"].as_str().unwrap();
    assert!(found["finish"] == "stop" && !text.contains(vowels), "{found}");
}

#[test]
fn a_prompt_may_be_in_a_file() {
    let dir = ModelDir::synthetic();
    std::fs::write(dir.file("prompt.txt"), "Hello").unwrap();
    std::fs::write(dir.file("bad.txt"), b"Hel\xfflo").unwrap();
    let (model, prompt) = (dir.file("model"), dir.file("prompt.txt"));
    let [model, prompt] = [&model, &prompt].map(|it| it.to_str().unwrap());
    let common = ["--model", model, "--json", "-n", "4", "--seed", "3"];
    let generate = |more: &[&str]| -> Value {
        let args = [&["generate"][..], more, &common].concat();
        serde_json::from_str(&stdout_of(&args)).unwrap()
    };
    let expected = generate(&["Hello"]);
    assert_eq!(generate(&["--prompt-file", prompt])["tokens"], expected["tokens"]);
    let bad = dir.file("bad.txt");
    let bad = ["generate", "--prompt-file", bad.to_str().unwrap()];
    check_fails(&[&bad[..], &common].concat(), &["bad.txt", "not UTF-8 at byte 3"]);
    let none = moeflux(&["generate"]);
    let printed = String::from_utf8(none.stderr).unwrap();
    assert_eq!(none.status.code(), Some(2), "{printed}");
    assert!(printed.contains("<PROMPT|--prompt-file <FILE>|--messages <FILE>>"), "{printed}");
}

#[test]
fn a_mirror_that_nothing_is_read_from_is_named() {
    let dir = ModelDir::synthetic();
    let mirror = dir.file("model");
    let note = |more: &[&str]| {
        let args = [&["Hello", "-n", "2", "--mirror", mirror.to_str().unwrap()][..], more].concat();
        let output = command(&dir, &args).output().unwrap();
        let printed = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{printed}");
        printed.contains("note: the mirror ")
    };
    assert!(note(&[]) && !note(&["--slots", "4"]));
}

#[test]
fn a_mirror_of_another_seed_is_refused_in_one_line() {
    let dir = ModelDir::synthetic();
    let config = dir.file("model").join("config.json");
    let mirror = dir.file("mirror");
    let [config, mirror] = [&config, &mirror].map(|path| path.to_str().unwrap());
    stdout_of(&["synth", "--config", config, "--out", mirror, "--seed", "5"]);
    let args = ["Hello", "-n", "2", "--slots", "4", "--mirror", mirror];
    let output = command(&dir, &args).output().unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{printed}");
    let last = printed.lines().last().unwrap();
    assert!(last.contains(mirror) && last.contains("of the mirror is not a copy of"), "{printed}");
    assert!(last.contains(", of tensor `") && last.contains("differs"), "{printed}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_answer_and_keeps_it() {
    use std::io::Read as _;

    let dir = ModelDir::synthetic();
    let mut generate = command(&dir, &["Hello", "-n", "190000", "--stats"]);
    generate.args(endless(&dir)).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = generate.spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut text = vec![0];
    stdout.read_exact(&mut text).unwrap();
    // Twice, as `timeout` does: to the process and to its group.
    for _ in 0..2 {
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    }
    stdout.read_to_end(&mut text).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("ended by cancelled"), "{stderr}");
    assert!(!stderr.contains("error"), "{stderr}");
    assert_eq!(text.last(), Some(&b'\n'));
}

#[cfg(target_os = "linux")] // which alone has the device
#[test]
fn a_lost_output_is_an_error() {
    let dir = ModelDir::synthetic();
    for more in [&["Hello", "-n", "4"][..], &["Hello", "-n", "4", "--json"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = command(&dir, more).stdout(full).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.starts_with("error: cannot write to stdout"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

#[cfg(unix)]
#[test]
fn a_closed_pipe_is_not_an_error() {
    let dir = ModelDir::synthetic();
    let mut generate = command(&dir, &["Hello", "-n", "190000"]);
    generate.args(endless(&dir)).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = generate.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

#[test]
fn a_prompt_that_is_not_text_is_refused() {
    let dir = ModelDir::synthetic();
    for (bytes, words) in [(&b"ab\xff"[..], "at byte 2"), (b"", "the prompt is empty")] {
        let mut generate = command(&dir, &["-"]);
        generate.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = generate.spawn().unwrap();
        child.stdin.take().unwrap().write_all(bytes).unwrap();
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(words) && stderr.lines().count() == 1, "{stderr}");
    }
    // Before anything is looked at.
    check_fails(&["generate", "", "--model", "/nonexistent"], &["the prompt is empty"]);
}

#[test]
fn errors_in_configs_of_the_folder_are_named() {
    let dir = ModelDir::synthetic();
    let model = dir.file("model");
    let args = ["generate", "x", "--model", model.to_str().unwrap()];
    let name = "model/generation_config.json";
    dir.edit_json(name, |config| config["top_p"] = json!("high"));
    check_fails(&args, &["generation_config.json: `top_p`"]);
    dir.edit_json(name, |config| {
        config["top_p"] = json!(1.0);
        config["eos_token_id"] = json!([9999]);
    });
    check_fails(&args, &["eos_token_id", "generation_config.json", "9999", "512"]);
    assert_eq!(moeflux(&args[..1]).status.code(), Some(2));
}

#[test]
fn a_chat_has_earlier_messages_and_a_beginning_of_its_answer() {
    let dir = ModelDir::new();
    let file = dir.file("messages.json");
    let path = file.to_str().unwrap();
    let greedy = ["--chat", "--temp", "0"];
    let question = "What does Vec::push do?";
    let answer = "Appends an element to the back of a collection.\n";
    let messages = format!(r#"[{{"role": "user", "content": "{question}"}}]"#);
    std::fs::write(&file, &messages).unwrap();
    let asked = |more: &[&str]| stdout_of(&[&["generate"], &greedy[..], more].concat());
    assert_eq!(asked(&["--messages", path]), answer);
    std::fs::write(&file, format!(r#"{{"messages": {messages}, "tools": []}}"#)).unwrap();
    assert_eq!(asked(&["--messages", path]), answer);
    let rest = asked(&[question, "--prefill", "Appends an element to"]);
    assert_eq!(rest.trim(), "the back of a collection.");
    std::fs::write(&file, r#"[{"role": "user", "content": [{"type": "image_url"}]}]"#).unwrap();
    check_fails(
        &["generate", "--chat", "--messages", path],
        &["messages.json", "messages[0].content[0].type", "image_url"],
    );
}
