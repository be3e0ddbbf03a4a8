//! `chat` on a pseudo-terminal: keys in, screen out.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use pty_process::Size;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use crate::support::ModelDir;

/// Rows of the screen.
const N_ROWS: u16 = 24;

/// Upper bound on the time without a change of the screen before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

const QUESTION: &str = "What does Vec::push do?";
const ANSWER: &str = "Appends an element to the back of a collection.";

/// Lists the messages by role, then begins that of the assistant.
const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n\
    {% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

/// A chat on a terminal.
struct ChatProcess {
    child: Child,
    terminal: File,
    screen: vt100::Parser,
    /// All that was written.
    written: Vec<u8>,
}

impl ChatProcess {
    fn start(args: &[&str], n_columns: u16, variables: &[(&str, &str)]) -> Self {
        let (pty, inside) = pty_process::blocking::open().unwrap();
        pty.resize(Size::new(N_ROWS, n_columns)).unwrap();
        let mut command =
            pty_process::blocking::Command::new(env!("CARGO_BIN_EXE_moeflux")).args(["chat"]);
        command = command.args(args).env("TERM", "xterm-256color").env_remove("NO_COLOR");
        let command = command.env("NODEVICE_SELECT", "1").envs(variables.iter().copied());
        let child = command.spawn(inside).unwrap();
        let size = |n: u16| NonZeroU16::new(n).unwrap();
        let screen = vt100::Parser::new(size(N_ROWS), size(n_columns), 1000);
        let terminal = File::from(OwnedFd::from(pty));
        Self { child, terminal, screen, written: Vec::new() }
    }

    /// A chat with the model in the box, which chooses the most likely tokens, at its first prompt.
    fn demo(args: &[&str], n_columns: u16, variables: &[(&str, &str)]) -> Self {
        let args = [&["--temp", "0", "--no-history"], args].concat();
        Self::at_prompt(&args, n_columns, variables)
    }

    fn at_prompt(args: &[&str], n_columns: u16, variables: &[(&str, &str)]) -> Self {
        let mut chat = Self::start(args, n_columns, variables);
        chat.wait_for_prompt();
        chat
    }

    fn keys(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    fn contents(&self) -> String {
        self.screen.screen().contents()
    }

    /// Reads the output until the condition is met.
    #[track_caller]
    fn wait_until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            let is_there = self.read();
            assert!(is_there, "never {what}; the screen shows:\n{}", self.contents());
        }
    }

    #[track_caller]
    fn wait_for(&mut self, text: &str) {
        self.wait_until(text, |chat| chat.contents().contains(text));
    }

    /// The cursor is after a prompt at which nothing is typed.
    #[track_caller]
    fn wait_for_prompt(&mut self) {
        self.wait_for_line("> ");
    }

    /// The cursor stands at the end of this line, which is edited.
    #[track_caller]
    fn wait_for_line(&mut self, line: &str) {
        self.wait_until(line, |chat| {
            let screen = chat.screen.screen();
            let (row, column) = screen.cursor_position();
            let found = screen.rows(0, column.max(1)).nth(usize::from(row)).unwrap_or_default();
            // Pastes are distinguished from keys only while a line is edited.
            screen.bracketed_paste()
                && found.trim_end() == line.trim_end()
                && usize::from(column) == line.len()
        });
    }

    /// Reads more output. Returns whether there was any.
    fn read(&mut self) -> bool {
        let mut ready = [PollFd::new(&self.terminal, PollFlags::IN)];
        let time = Timespec::try_from(PATIENCE).unwrap();
        if poll(&mut ready, Some(&time)).unwrap() == 0 {
            return false;
        }
        let mut bytes = [0; 4096];
        match self.terminal.read(&mut bytes) {
            // The process has ended.
            Err(_) | Ok(0) => false,
            Ok(n_bytes) => {
                self.screen.process(&bytes[..n_bytes]);
                self.written.extend_from_slice(&bytes[..n_bytes]);
                true
            }
        }
    }

    /// Asks, and waits for the next prompt.
    #[track_caller]
    fn ask(&mut self, question: &str, answer: &str) {
        self.keys(question);
        self.keys("\r");
        self.wait_for(answer);
        self.wait_for_prompt();
    }

    fn end(mut self) -> ExitStatus {
        while self.read() {}
        self.child.wait().unwrap()
    }

    /// Ends with Ctrl-D and status 0.
    #[track_caller]
    fn leave(mut self) {
        self.keys("\x04");
        assert_eq!(self.end().code(), Some(0));
    }
}

impl Drop for ChatProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A model whose answers are noise, come slowly, and go on until they are stopped.
struct EndlessModel {
    dir: ModelDir,
    args: Vec<String>,
}

impl EndlessModel {
    fn new() -> Self {
        let dir = ModelDir::synthetic();
        let model = dir.file("model");
        std::fs::write(model.join("chat_template.jinja"), TEMPLATE).unwrap();
        let generation = std::fs::read(model.join("generation_config.json")).unwrap();
        let generation: Value = serde_json::from_slice(&generation).unwrap();
        let mut args: Vec<String> = ["--model", model.to_str().unwrap()].map(str::to_owned).into();
        args.extend(["--backend", "reference", "--no-history", "--seed", "1"].map(str::to_owned));
        for token in generation["eos_token_id"].as_array().unwrap() {
            args.extend(["--logit-bias".to_owned(), format!("{token}=-1000")]);
        }
        Self { dir, args }
    }

    /// A chat with it, at its first prompt.
    fn chat(&self, more: &[&str]) -> ChatProcess {
        let args: Vec<&str> =
            self.args.iter().map(String::as_str).chain(more.iter().copied()).collect();
        ChatProcess::at_prompt(&args, 80, &[])
    }
}

fn messages(path: &std::path::Path) -> Vec<Value> {
    let saved: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    saved["messages"].as_array().unwrap().clone()
}

#[test]
fn a_question_is_answered_with_a_line_about_it() {
    let mut chat = ChatProcess::demo(&[], 80, &[]);
    assert!(chat.contents().starts_with("the demo model; /help lists the commands"));
    chat.ask(QUESTION, ANSWER);
    let contents = chat.contents();
    let lines: Vec<&str> = contents.lines().collect();
    let asked = format!("> {QUESTION}");
    let at = lines.iter().position(|line| *line == asked).expect("the question stays");
    assert_eq!(lines[at + 1], ANSWER);
    let status = lines[at + 2];
    assert!(status.contains("tokens/s, all experts in memory"), "{contents}");
    let row = u16::try_from(at + 2).unwrap();
    assert!(chat.screen.screen().cell(row, 0).unwrap().dim(), "the line is dim");
    chat.leave();
}

#[test]
fn ctrl_c_stops_an_answer_and_the_next_goes_on_from_it() {
    let endless = EndlessModel::new();
    let saved = endless.dir.file("saved.json");
    let mut chat = endless.chat(&[]);
    for question in ["hello", "more"] {
        chat.keys(&format!("{question}\r"));
        chat.wait_until("several lines", |chat| {
            let contents = chat.contents();
            let answer = contents.split_once(&format!("> {question}\n"));
            answer.is_some_and(|(_, answer)| answer.len() > 200)
        });
        chat.keys("\x03");
        chat.wait_for_prompt();
        chat.wait_for("tokens/s");
    }
    chat.keys("/stats\r");
    chat.wait_for("of them cached");
    let contents = chat.contents();
    let stats = contents.lines().find(|line| line.starts_with("prompt ")).unwrap();
    let numbers: Vec<usize> = stats.split(' ').filter_map(|word| word.parse().ok()).collect();
    // The first prompt is not read again. The answer is: a model of random weights does not choose
    // the tokens that its text has.
    assert!(numbers[1] > 20 && numbers[0] > numbers[1], "{stats}");
    chat.keys(&format!("/save {}\r", saved.display()));
    chat.wait_for("4 messages in");
    let messages = messages(&saved);
    assert!(messages[1]["content"].as_str().unwrap().len() > 100);
    chat.keys("/quit\r");
    assert_eq!(chat.end().code(), Some(0));
}

#[test]
fn text_typed_during_an_answer_is_shown_and_kept() {
    let endless = EndlessModel::new();
    let mut chat = endless.chat(&[]);
    chat.keys("hello\r");
    chat.wait_until("an answer", |chat| chat.contents().lines().count() > 4);
    chat.keys("next \u{e9}x\x7f one");
    chat.wait_for("> next \u{e9} one");
    chat.keys("\r");
    chat.wait_for("> next \u{e9} one  (sent next)");
    // After an interrupted answer, the message is not sent at once.
    chat.keys("\x03");
    chat.wait_until("the message at the prompt", |chat| {
        let row = chat.contents().lines().last().unwrap_or_default().to_owned();
        row == "> next \u{e9} one" && chat.screen.screen().bracketed_paste()
    });
    chat.keys("\x15/quit\r");
    assert_eq!(chat.end().code(), Some(0));
}

#[test]
fn ctrl_d_during_an_answer_ends_the_chat_after_it() {
    let endless = EndlessModel::new();
    let mut chat = endless.chat(&[]);
    chat.keys("hello\r");
    chat.wait_until("an answer", |chat| chat.contents().lines().count() > 4);
    chat.keys("\x04");
    chat.wait_for("> (the chat ends after this answer)");
    chat.keys("\x03");
    assert_eq!(chat.end().code(), Some(0));
}

#[test]
fn a_message_that_was_sent_ahead_follows_the_answer() {
    let endless = EndlessModel::new();
    let mut chat = endless.chat(&["-n", "400"]);
    chat.keys("hello\r");
    chat.wait_until("an answer", |chat| chat.contents().lines().count() > 4);
    chat.keys("/stats\r");
    chat.wait_for("note: the answer reached the -n limit");
    chat.wait_for("of them cached");
    chat.wait_for_prompt();
    chat.leave();
}

#[test]
fn several_lines_are_one_message() {
    let dir = ModelDir::new();
    let saved = dir.file("saved.json");
    let mut chat = ChatProcess::demo(&["-n", "4"], 80, &[]);
    for keys in [
        "\x1b[200~one\ntwo\\\nthree\x1b[201~\r",
        "one\x1b\rtwo\r",
        "one\\\rtwo\r",
        "\"\"\"one\rtwo\"\"\"\r",
    ] {
        chat.keys(keys);
        chat.wait_for("note: the answer reached the -n limit");
        chat.wait_for_prompt();
        chat.keys("\x0c");
        chat.wait_until("an empty screen", |chat| !chat.contents().contains("note"));
    }
    chat.keys(&format!("/save {}\r", saved.display()));
    chat.wait_for("8 messages in");
    let messages = messages(&saved);
    let printed: Vec<&str> =
        messages.iter().step_by(2).map(|it| it["content"].as_str().unwrap()).collect();
    assert_eq!(printed, ["one\ntwo\\\nthree", "one\ntwo", "one\ntwo", "one\ntwo"]);
    chat.leave();
}

#[test]
fn answers_are_taken_back_made_again_saved_and_loaded() {
    let dir = ModelDir::new();
    let saved = dir.file("saved.json");
    let mut chat = ChatProcess::demo(&[], 80, &[]);
    chat.ask(QUESTION, ANSWER);
    chat.keys("/regenerate\r");
    chat.wait_for("note: at temperature 0");
    chat.wait_until("two answers", |chat| chat.contents().matches(ANSWER).count() == 2);
    chat.wait_for_prompt();
    chat.keys(&format!("/save {}\r", saved.display()));
    chat.wait_for("2 messages in");
    chat.ask("/undo", &format!("taken back: {QUESTION}"));
    chat.ask("/undo", "error: there is nothing to take back");
    chat.ask(&format!("/load {}", saved.display()), "2 messages\n");
    chat.wait_until("its end", |chat| {
        chat.contents().contains(&format!("2 messages\n> {QUESTION}\n{ANSWER}\n"))
    });
    let other = dir.file("other.json");
    std::fs::write(&other, "mine").unwrap();
    chat.keys(&format!("/save {}\r", other.display()));
    chat.wait_for("overwrite it? [y/N]");
    chat.ask("n", "name another one");
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "mine");
    chat.keys(&format!("/save {}\r", other.display()));
    chat.wait_until("asked again", |chat| chat.contents().matches("[y/N]").count() == 2);
    chat.ask("y", "2 messages in");
    assert_eq!(messages(&other).len(), 2);
    chat.ask("/hlep", "error: there is no command /hlep: /help lists them");
    chat.keys("/reg\t");
    chat.wait_for_line("> /regenerate ");
    chat.keys("\x03");
    chat.wait_for("Ctrl-D or /quit ends the chat");
    chat.wait_for_prompt();
    chat.leave();
    assert_eq!(messages(&saved).len(), 2);
}

#[test]
fn a_question_without_an_answer_is_back_in_the_prompt() {
    let mut chat = ChatProcess::demo(&["--context", "300"], 80, &[]);
    let long = "word ".repeat(400);
    chat.keys(&format!("\x1b[200~{long}\x1b[201~\r"));
    // The question is longer than the screen, so that lines above it may be gone.
    chat.wait_until("an error", |chat| {
        let written = String::from_utf8_lossy(&chat.written);
        written.contains("/undo or /clear makes room") && written.contains("Enter tries again")
    });
    chat.wait_until("the question", |chat| chat.contents().trim_end().ends_with("word"));
    chat.keys("\x15");
    chat.wait_for_prompt();
    chat.ask(QUESTION, ANSWER);
    chat.leave();
}

#[test]
fn the_user_is_asked_for_results_of_calls() {
    let dir = ModelDir::new();
    let weather = json!({"name": "get_weather", "description": "Get the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
            "required": ["city"]}});
    std::fs::write(dir.file("tools"), json!([weather]).to_string()).unwrap();
    let mut chat = ChatProcess::demo(&["--tools", dir.file("tools").to_str().unwrap()], 80, &[]);
    let question = "I'm flying out to Paris tomorrow, what's it like outside there?";
    chat.keys(&format!("{question}\r"));
    chat.wait_for(r#"{"name":"get_weather","arguments":{"city":"Paris"}}"#);
    chat.wait_for_line("result of get_weather> ");
    chat.keys("/undo\r");
    chat.wait_for("taken back: I'm flying out");
    chat.wait_for_prompt();
    chat.keys(&format!("{question}\r"));
    chat.wait_for_line("result of get_weather> ");
    chat.keys("{\"temperature\": 21}\r");
    chat.wait_for_prompt();
    chat.leave();
}

#[test]
fn a_full_context_is_a_line_and_the_conversation_stays() {
    let endless = EndlessModel::new();
    let mut chat = endless.chat(&["--context", "120"]);
    chat.keys("hello\r");
    chat.wait_for("note: the context of 120 tokens is full: /undo or /clear makes room");
    chat.wait_for_prompt();
    chat.keys("more\r");
    chat.wait_for("error: the conversation has");
    chat.wait_for_line("> more");
    chat.keys("\x15/undo\r");
    chat.wait_for("taken back: hello");
    chat.wait_for_prompt();
    chat.leave();
}

#[test]
fn a_drive_that_fails_is_a_line_and_the_question_stays() {
    let endless = EndlessModel::new();
    let mut chat = endless.chat(&["--slots", "4", "--io", "page-cache"]);
    for entry in std::fs::read_dir(endless.dir.file("model")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|it| it == "safetensors") {
            File::options().write(true).open(path).unwrap().set_len(1000).unwrap();
        }
    }
    chat.keys("hello\r");
    chat.wait_for("error: ");
    chat.wait_for("note: Enter tries again");
    chat.wait_until("the question", |chat| {
        let contents = chat.contents();
        let last = contents.lines().last().unwrap_or_default();
        last.starts_with("> ") && chat.screen.screen().bracketed_paste()
    });
    chat.keys("\x15/quit\r");
    assert_eq!(chat.end().code(), Some(0));
}

#[test]
fn without_colours_there_is_plain_text() {
    for (variables, is_edited) in [([("NO_COLOR", "1")], true), ([("TERM", "dumb")], false)] {
        let args = ["--temp", "0", "--no-history"];
        let mut chat = ChatProcess::start(&args, 80, &variables);
        chat.wait_for("> ");
        chat.keys(&format!("{QUESTION}\r"));
        chat.wait_for(ANSWER);
        chat.wait_for("tokens/s");
        let written = String::from_utf8(chat.written.clone()).unwrap();
        let looks = written.match_indices("\x1b[").filter(|(at, _)| {
            let rest = &written[at + 2..];
            let end = rest.find(|letter: char| letter.is_ascii_alphabetic()).unwrap();
            rest[end..].starts_with('m')
        });
        assert_eq!(looks.count(), 0, "{written:?}");
        assert_eq!(written.contains('\x1b'), is_edited, "{written:?}");
        chat.keys("/quit\r");
        assert_eq!(chat.end().code(), Some(0));
    }
}

#[test]
fn control_characters_of_the_model_do_not_reach_the_terminal() {
    // Each byte is a token: control characters among them are as likely as letters.
    let dir = ModelDir::of_bytes_case();
    std::fs::write(dir.file("chat_template.jinja"), TEMPLATE).unwrap();
    let model = dir.path().to_str().unwrap();
    let args = ["--model", model, "--no-history", "-n", "200", "--temp", "1", "--seed", "1"];
    let mut chat = ChatProcess::start(&args, 80, &[("TERM", "dumb")]);
    chat.wait_for("> ");
    chat.keys("x\r");
    chat.wait_for("tokens/s");
    let written = String::from_utf8(chat.written.clone()).unwrap();
    let is_harmless = |letter: char| !letter.is_control() || matches!(letter, '\r' | '\n' | '\t');
    assert!(written.chars().all(is_harmless), "{written:?}");
    assert!(written.contains('^'), "there were some: {written:?}");
}

#[test]
fn forty_columns_are_enough() {
    let mut chat = ChatProcess::demo(&[], 40, &[]);
    // A line ends between two words.
    chat.ask(QUESTION, "Appends an element to the back of a \ncollection.");
    let contents = chat.contents();
    let status = contents.lines().find(|line| line.contains("tokens/s")).unwrap();
    assert!(status.len() < 40, "{status}");
    chat.ask("/help", "answer has ended.");
    chat.leave();
}

#[test]
fn ctrl_c_once_more_ends_a_step_that_takes_long() {
    let endless = EndlessModel::new();
    let mut chat = endless.chat(&["--chunk", "16384"]);
    let long = "word ".repeat(8000);
    chat.keys(&format!("\x1b[200~{long}\x1b[201~\r"));
    chat.wait_for("reading ");
    chat.keys("\x03");
    chat.wait_for("stopping; press Ctrl-C again to end the chat");
    chat.keys("\x03");
    assert_eq!(chat.end().code(), Some(130));
}

#[test]
fn a_terminal_that_is_closed_ends_the_process() {
    let endless = EndlessModel::new();
    for is_answering in [false, true] {
        let mut chat = endless.chat(&[]);
        if is_answering {
            chat.keys("hello\r");
            chat.wait_until("an answer", |chat| chat.contents().lines().count() > 4);
        }
        // The last of the terminal's own side is closed.
        chat.terminal = File::open("/dev/null").unwrap();
        let status = chat.child.wait().unwrap();
        assert!(status.code().is_some_and(|code| code == 0 || code == 130), "{status}");
    }
}

#[test]
fn a_terminated_process_restores_the_terminal() {
    use rustix::termios::{LocalModes, tcgetattr};
    let mut chat = ChatProcess::demo(&[], 80, &[]);
    let modes = |chat: &ChatProcess| tcgetattr(&chat.terminal).unwrap().local_modes;
    assert!(!modes(&chat).contains(LocalModes::ECHO));
    let id = chat.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert_eq!(chat.child.wait().unwrap().code(), Some(130));
    let wanted = LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
    assert!(modes(&chat).contains(wanted), "{:?}", modes(&chat));
    while chat.read() {}
}

#[test]
fn the_input_history_is_readable_by_its_user_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let cache = ModelDir::new();
    let path = cache.path().to_str().unwrap();
    let variables = [("XDG_CACHE_HOME", path), ("HOME", path)];
    let mut chat = ChatProcess::at_prompt(&["--temp", "0"], 80, &variables);
    let line = chat.contents().lines().nth(1).unwrap_or_default().to_owned();
    assert!(line.starts_with("conversations are saved in "), "{line}");
    chat.ask(QUESTION, ANSWER);
    chat.leave();
    let mut found = Vec::new();
    for folder in [cache.file("moeflux"), cache.file("Library/Caches/moeflux")] {
        found.extend(std::fs::metadata(folder.join("chat-history")));
    }
    assert_eq!(found.len(), 1, "there is one history");
    assert_eq!(found[0].permissions().mode() & 0o777, 0o600);
    let mut chat = ChatProcess::at_prompt(&["--temp", "0"], 80, &variables);
    chat.keys("\x1b[A");
    chat.wait_for_line(&format!("> {QUESTION}"));
    chat.keys("\x15/quit\r");
    assert_eq!(chat.end().code(), Some(0));
}
