//! `chat` without a terminal: messages and commands from a pipe, answers as plain text.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use moeflux_testing::temp_dir::TempDir;
use serde_json::{Value, json};

use crate::support::{ModelDir, check_fails, moeflux, set_cache};

const QUESTION: &str = "What does Vec::push do?";
const ANSWER: &str = "Appends an element to the back of a collection.";

/// A chat with the demo model, or another one, that is given these lines and saves conversations in
/// a folder of its own.
fn chat(args: &[&str], lines: &str) -> Output {
    let cache = TempDir::new();
    let dir = cache.file("prefix");
    run(&[&["--temp", "0", "--cache-dir", dir.to_str().unwrap()], args].concat(), &[], lines)
}

/// A chat with these variables.
pub(crate) fn run(args: &[&str], variables: &[(&str, &Path)], lines: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_moeflux"));
    set_cache(&mut command, Path::new(env!("CARGO_TARGET_TMPDIR")));
    command.arg("chat").args(args).envs(variables.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Returns the text on stdout; fails if there is any on stderr.
#[track_caller]
fn answers(args: &[&str], lines: &str) -> String {
    let output = chat(args, lines);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.as_str()), (Some(0), ""), "{lines:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Checks that a chat fails with this line on stderr, after this output.
#[track_caller]
fn fails(args: &[&str], lines: &str, (printed, words): (&str, &str)) {
    let output = chat(args, lines);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{lines:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("error: ") && stderr.contains(words), "{stderr}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), printed);
}

#[test]
fn a_question_from_a_pipe_is_answered() {
    let expected = format!("{ANSWER}\n");
    assert_eq!(answers(&[], &format!("{QUESTION}\n")), expected);
    assert_eq!(answers(&[], QUESTION), expected);
    assert_eq!(answers(&[], &format!("\n{QUESTION}\n/quit\nmore\n")), expected);
    assert_eq!(answers(&[], &format!("\"\"\"\n{QUESTION}\n\"\"\"\n")), expected);
    assert_eq!(answers(&[], ""), "");
}

/// The number in front of some words.
#[track_caller]
fn number(text: &str, words: &str) -> usize {
    let (before, _) = text.split_once(words).expect(text);
    before.rsplit([' ', '\n']).next().unwrap().parse().unwrap()
}

#[test]
fn a_second_turn_reads_only_new_tokens() {
    let printed = answers(&[], &format!("{QUESTION}\n/stats\nWhy?\n/stats\n"));
    let (first, second) = printed.split_once("context").unwrap();
    let n_first = number(first, " tokens, ");
    assert_eq!(number(first, " of them cached"), 0, "{printed}");
    let n_kept = number(second, " of them cached");
    // All of the first prompt but its last token, where a state is kept. The answer began with an
    // empty thought, which the template does not write into a history.
    assert!((n_first - 1..=n_first).contains(&n_kept), "{printed}");
    let n_second = number(&second[second.find("prompt").unwrap()..], " tokens, ");
    assert!(n_second > n_kept, "{printed}");
}

#[test]
fn a_conversation_is_saved_loaded_and_taken_back() {
    let dir = ModelDir::new();
    let file = |name: &str| dir.file(name).to_str().unwrap().to_owned();
    let (saved, again) = (file("saved.json"), file("again.json"));
    let lines = format!("/system Be terse.\n{QUESTION}\nWhy?\n/undo\n/save {saved}\n");
    answers(&[], &lines);
    let messages = |path: &str| -> Value {
        let text = std::fs::read_to_string(path).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["messages"].take()
    };
    let found = messages(&saved);
    let roles: Vec<&str> = (0..3).map(|idx| found[idx]["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
    assert_eq!((&found[1]["content"], found.as_array().unwrap().len()), (&json!(QUESTION), 3));
    // The same answer comes again, and `generate` reads the file.
    answers(&[], &format!("/load {saved}\n/clear\n/load {saved}\n/save {saved}\n"));
    assert_eq!(messages(&saved), found);
    let args = ["--messages", &saved];
    let output = chat(&args, &format!("/regenerate\n/save {again}\n"));
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8(output.stderr).unwrap().contains("at temperature 0"));
    assert_eq!(messages(&again), found);
    let args = ["generate", "--chat", "Why?", "--messages", &saved, "-n", "2"];
    assert_eq!(moeflux(&args).status.code(), Some(0));
    fails(&[], &format!("{QUESTION}\n/save {again}\n"), (&format!("{ANSWER}\n"), "another one"));
}

#[test]
fn calls_wait_for_results_that_are_typed() {
    let dir = ModelDir::new();
    let weather = json!({"type": "object", "properties": {"city": {"type": "string"}},
        "required": ["city"]});
    let tool = json!({"type": "function", "function": {"name": "get_weather",
        "description": "Get the weather of a city.", "parameters": weather}});
    std::fs::write(dir.file("tools"), json!([tool]).to_string()).unwrap();
    let (tools, saved) = (dir.file("tools"), dir.file("saved"));
    let lines = format!(
        "I'm flying out to Paris tomorrow, what's it like outside there?\n\
         {{\"temperature\": 21}}\n/save {}\n",
        saved.display()
    );
    let printed = answers(&["--tools", tools.to_str().unwrap(), "-n", "60"], &lines);
    let call = r#"{"name":"get_weather","arguments":{"city":"Paris"}}"#;
    assert_eq!(printed.lines().next(), Some(call), "{printed}");
    let saved: Value = serde_json::from_slice(&std::fs::read(saved).unwrap()).unwrap();
    let messages = saved["messages"].as_array().unwrap();
    let roles: Vec<&str> = messages.iter().map(|it| it["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
    assert_eq!(messages[1]["tool_calls"][0]["id"], messages[2]["tool_call_id"]);
    assert_eq!(messages[2]["content"], "{\"temperature\": 21}");
    assert_eq!(saved["tools"][0]["function"]["name"], "get_weather");
}

#[test]
fn failures_are_one_line_and_end_a_chat_without_a_terminal() {
    fails(&[], "/hlep\nx\n", ("", "there is no command /hlep: /help lists them"));
    fails(&[], "/save\n", ("", "write /save FILE"));
    fails(&[], "/undo\n", ("", "nothing to take back"));
    fails(&[], "/regenerate\n", ("", "no question"));
    fails(&[], "/load nowhere.json\n", ("", "nowhere.json"));
    fails(&[], "/model nowhere\n", ("", "there is no such folder"));
    fails(&[], "/think maybe\n", ("", "on or off"));
    let long = format!("{}\n", "word ".repeat(600));
    fails(&["--context", "300"], &long, ("", "/undo or /clear makes room, --context sets it"));
    check_fails(&["chat", "--tools", "nowhere.json"], &["nowhere.json"]);
    check_fails(&["chat", "--messages", "nowhere.json"], &["nowhere.json"]);
    let output = moeflux(&["chat", "--trace", "x"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn another_model_goes_on_with_the_conversation() {
    let dir = ModelDir::synthetic();
    let model = dir.file("model");
    let template = "{% for message in messages %}{{ message.content }} {% endfor %}";
    std::fs::write(model.join("chat_template.jinja"), template).unwrap();
    let (named, saved) = (model.to_str().unwrap(), dir.file("saved.json"));
    let lines =
        format!("{QUESTION}\n/model {named}\n/model\nWhy?\n/stats\n/save {}\n", saved.display());
    let output = chat(&["-n", "20"], &lines);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{printed}");
    let mut printed = printed.lines();
    assert_eq!(printed.next(), Some(ANSWER));
    assert!(printed.next().unwrap().starts_with("model, in "));
    assert!(printed.any(|line| line == "model     model"));
    let saved: Value = serde_json::from_slice(&std::fs::read(saved).unwrap()).unwrap();
    assert_eq!(saved["messages"].as_array().unwrap().len(), 4);
    assert_eq!(saved["messages"][1]["content"], ANSWER);
}

#[test]
fn commands_print_what_was_requested() {
    assert!(answers(&[], "/help\n").contains("/regenerate"));
    assert_eq!(
        answers(&["--system", "Be terse."], "/system\n/system off\n/system\n"),
        "Be terse.\nthere is no system message\n"
    );
    assert_eq!(
        answers(&["--no-think"], "/think\n/think on\n"),
        "answers come without thoughts\nanswers begin with thoughts, if the model has any\n"
    );
    assert_eq!(answers(&[], "/tools\n/stats\n"), "no tools\nthere is no answer yet\n");
}
