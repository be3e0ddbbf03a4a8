//! `serve` as a process: it answers over TCP, takes its options from the environment too, drains
//! when it is told to end, and refuses invalid options in one line.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use moeflux_testing::temp_dir::TempDir;
use serde_json::{Value, json};

use crate::support::{ModelDir, check_fails, moeflux, set_cache, stdout_of};

/// A server of the demo model, killed at the end.
pub(crate) struct ServerProcess {
    child: Child,
    /// Open as long as the server may write.
    #[cfg_attr(not(unix), expect(dead_code, reason = "no test there reads to its end"))]
    stderr: BufReader<std::process::ChildStderr>,
    /// What it printed before it served.
    pub(crate) printed_before: String,
    address: String,
    /// What it saves by default: not in the cache of who runs the tests.
    pub(crate) cache: TempDir,
}

impl ServerProcess {
    pub(crate) fn start(args: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_moeflux"));
        let cache = TempDir::new();
        set_cache(&mut command, Path::new(env!("CARGO_TARGET_TMPDIR")));
        command.env("MOEFLUX_CACHE_DIR", cache.file("prefix"));
        command.arg("serve").args(args).envs(variables.iter().copied());
        Self::of(command, cache)
    }

    /// Starts a server whose cache folder is in this folder.
    pub(crate) fn in_cache(cache: TempDir, args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_moeflux"));
        set_cache(&mut command, cache.path());
        command.arg("serve").args(args);
        Self::of(command, cache)
    }

    fn of(mut command: Command, cache: TempDir) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let (mut printed, mut printed_before) = (String::new(), String::new());
        let address = loop {
            printed.clear();
            assert!(stderr.read_line(&mut printed).unwrap() > 0, "it ended before it served");
            if let Some((_, rest)) = printed.split_once(" at http://") {
                break rest.split_whitespace().next().unwrap().to_owned();
            }
            printed_before += &printed;
        };
        Self { child, stderr, printed_before, address, cache }
    }

    /// The status and the body of a response.
    fn ask(&self, head: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let (address, n_bytes) = (&self.address, body.len());
        let request = format!(
            "{head} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {n_bytes}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let status = response.split(' ').nth(1).unwrap().parse().unwrap();
        let (_, body) = response.split_once("\r\n\r\n").unwrap();
        (status, body.to_owned())
    }

    pub(crate) fn json(&self, head: &str, body: &Value) -> Value {
        let (status, found) = self.ask(head, &body.to_string());
        assert_eq!(status, 200, "{found}");
        // A response may come in pieces, whose lengths stand on lines of their own.
        let object = found.lines().find(|line| line.starts_with('{')).unwrap();
        serde_json::from_str(object).unwrap()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Waits until no object is being written in a folder of saved conversations, and returns their
/// number.
pub(crate) fn wait_until_saved(dir: &Path) -> usize {
    let list = |dir: PathBuf| {
        let entries = std::fs::read_dir(dir).into_iter().flatten();
        entries.map(|it| it.unwrap().path()).collect::<Vec<_>>()
    };
    let (_sender, never) = channel::<()>();
    let (mut n_before, mut n_same) = (0, 0);
    for _ in 0..1_000 {
        let n_objects = list(dir.join("objects")).into_iter().flat_map(list).count();
        let is_same = n_objects > 0 && n_objects == n_before && list(dir.join("tmp")).is_empty();
        (n_before, n_same) = (n_objects, if is_same { n_same + 1 } else { 0 });
        if n_same == 20 {
            return n_objects;
        }
        // The sender is there, and never sends.
        assert!(never.recv_timeout(Duration::from_millis(20)).is_err());
    }
    panic!("nothing was saved in {}", dir.display());
}

#[test]
fn a_conversation_goes_on_after_the_server_was_killed() {
    let dir = TempDir::new();
    let cache_dir = dir.path().join("cache");
    let options = ["--port", "0", "--cache-dir", cache_dir.to_str().unwrap(), "--context", "2048"];
    let plain = ServerProcess::start(&["--port", "0", "--context", "2048"], &[]);
    let instructions = "You answer questions about prefix caches. ".repeat(12);
    let mut messages = vec![json!({"role": "system", "content": instructions})];
    let mut cached = Vec::new();
    for question in ["What is saved?", "What is read again?", "And what is lost?"] {
        // The state after a turn is saved if that spares reading enough tokens.
        let question = format!("{question} {}", "Say it in a few short words, please. ".repeat(9));
        messages.push(json!({"role": "user", "content": question}));
        let request = json!({"messages": messages, "max_tokens": 30, "seed": 5});
        // Killed at the end of each turn.
        let server = ServerProcess::start(&options, &[]);
        assert!(server.printed_before.contains("conversations are saved in"));
        let found = server.json("POST /v1/chat/completions", &request);
        let expected = plain.json("POST /v1/chat/completions", &request);
        assert_eq!(found["choices"], expected["choices"], "{question}");
        let details = &found["usage"]["prompt_tokens_details"];
        cached.push(details["cached_tokens"].as_u64().unwrap());
        // The memory of each server is empty.
        assert_eq!(details["cached_tokens_drive"], details["cached_tokens"], "{question}");
        wait_until_saved(&cache_dir);
        messages.push(found["choices"][0]["message"].clone());
    }
    #[cfg(unix)]
    {
        let mode = std::fs::metadata(&cache_dir).unwrap().permissions();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o700);
    }
    assert!(cached[0] == 0 && cached[1] > 80 && cached[2] > cached[1], "{cached:?}");
}

#[cfg(unix)]
#[test]
fn the_end_of_the_server_saves_the_last_turn() {
    let dir = TempDir::new();
    let cache_dir = dir.path().join("cache");
    let options = ["--port", "0", "--cache-dir", cache_dir.to_str().unwrap(), "--context", "2048"];
    let question = "You answer questions about prefix caches. ".repeat(12);
    let messages = json!([{"role": "user", "content": question}]);
    let request = json!({"messages": messages, "max_tokens": 30, "temperature": 0});
    for is_cached in [false, true] {
        let server = ServerProcess::start(&options, &[]);
        let found = server.json("POST /v1/chat/completions", &request);
        let n_cached = found["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        assert_eq!(n_cached > Some(80), is_cached, "{found}");
        // At once after the answer.
        end(server);
    }
}

#[test]
fn the_demo_model_answers_and_the_process_ends_well() {
    let variables = [("MOEFLUX_SERVED_NAME", "local,other"), ("MOEFLUX_CONTEXT", "512")];
    let server = ServerProcess::start(&["--port", "0", "--sessions", "2"], &variables);
    assert_eq!(server.ask("GET /health", "").0, 200);
    let question = json!([{"role": "user", "content": "What does Vec::push do?"}]);
    let body = json!({"messages": question, "temperature": 0});
    let found = server.json("POST /v1/chat/completions", &body);
    let text = found["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(text.trim(), "Appends an element to the back of a collection.");
    assert_eq!(found["model"], "local");
    let listed = server.json("GET /v1/models", &json!({}));
    assert_eq!(listed["data"][0]["max_model_len"], 512, "{listed}");
    #[cfg(unix)]
    {
        let printed = end(server);
        assert!(printed.contains("prompt") && !printed.contains("Vec::push"), "{printed}");
    }
}

#[cfg(unix)]
#[test]
fn other_signals_do_not_end_it() {
    let server = ServerProcess::start(&["--port", "0"], &[]);
    let id = server.child.id().to_string();
    for signal in ["USR1", "USR2", "ALRM", "VTALRM", "PROF", "IO"] {
        // Several: a blocked signal is pending, and the next one arrives while it is.
        for _ in 0..3 {
            let sent = Command::new("kill").args([&format!("-{signal}"), &id]).status().unwrap();
            assert!(sent.success(), "{signal}");
        }
        assert_eq!(server.ask("GET /health", "").0, 200, "{signal}");
    }
    let body = json!({"prompt": "a", "max_tokens": 2});
    server.json("POST /v1/completions", &body);
    end(server);
}

/// Ends the server as a service manager does. Returns its output.
#[cfg(unix)]
fn end(mut server: ServerProcess) -> String {
    let id = server.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let mut printed = String::new();
    server.stderr.read_to_string(&mut printed).unwrap();
    printed
}

#[cfg(unix)]
#[test]
fn prompts_are_logged_only_on_request() {
    let body = json!({"prompt": "Zebra\x1b[2J\u{9b}31m\u{202e}\x07", "max_tokens": 1});
    for (options, is_logged) in
        [(&[][..], false), (&["--log-prompts"], true), (&["--log-prompts", "--log", "json"], true)]
    {
        let server = ServerProcess::start(&[&["--port", "0"], options].concat(), &[]);
        server.json("POST /v1/completions", &body);
        let printed = end(server);
        assert_eq!(printed.contains("Zebra"), is_logged, "{printed}");
        // The log's terminal shows nothing that clients could use to control it.
        let is_harmful = |it: char| it.is_control() && it != '\n' || it == '\u{202e}';
        assert!(!printed.contains(is_harmful), "{printed:?}");
    }
}

#[test]
fn invalid_options_are_refused_before_listening() {
    let dir = ModelDir::new();
    let file = dir.file("keys");
    let keys = file.to_str().unwrap();
    let port = ["serve", "--port", "0"];
    let fails = |more: &[&str], words: &[&str]| check_fails(&[&port[..], more].concat(), words);
    fails(&["--host", "0.0.0.0"], &["0.0.0.0", "--api-key-file"]);
    fails(&["--api-key-file", keys], &["keys"]);
    std::fs::write(&file, "# none\n").unwrap();
    fails(&["--api-key-file", keys], &["keys", "has no key"]);
    std::fs::write(&file, "a b\n").unwrap();
    fails(&["--api-key-file", keys], &["keys", "line 1"]);
    for (args, words) in [
        (&["--sessions", "0"][..], "--sessions"),
        (&["--unload-after", "soon"], "90s, 10m, 2h"),
        (&["--context", "1000000000"], "--context"),
        (&["--trace", "x"], "--trace"),
    ] {
        let output = moeflux(&[&port[..], args].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(words), "{args:?}: {stderr}");
    }
    assert!(stdout_of(&["serve", "--help"]).contains("MOEFLUX_API_KEY_FILE"));
}

/// No browser of the machine that runs the tests is opened.
#[test]
fn without_a_browser_the_server_names_its_page_and_goes_on() {
    let away = [("BROWSER", ""), ("SSH_CONNECTION", "192.0.2.1 1 192.0.2.2 22")];
    let server = ServerProcess::start(&["--port", "0", "--open", "--cache-dir", "none"], &away);
    let address = &server.address;
    let problem = "this is a session over SSH (forward the port)";
    let expected = format!("--open: {problem}: open http://{address}/ in a browser\n");
    assert_eq!(server.printed_before, expected);
    assert_eq!(server.ask("GET /health", "").0, 200);
}

#[cfg(target_os = "linux")]
#[test]
fn a_browser_is_opened_at_the_page() {
    use std::os::unix::fs::PermissionsExt as _;

    let dir = ModelDir::new();
    let (script, opened) = (dir.file("xdg-open"), dir.file("opened"));
    let lines = format!("#!/bin/sh\nprintf %s \"$*\" > {}\n", opened.display());
    std::fs::write(&script, lines).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = script.parent().unwrap().to_str().unwrap();
    let variables = [("PATH", path), ("BROWSER", "one"), ("MOEFLUX_OPEN", "true")];
    let server = ServerProcess::start(&["--port", "0", "--cache-dir", "none"], &variables);
    assert_eq!(server.printed_before, "");
    let expected = format!("http://{}/", server.address);
    let found = || std::fs::read_to_string(&opened).unwrap_or_default();
    // The script is a process of its own, for which the server does not wait.
    let (_nobody, never) = channel::<()>();
    for _ in 0..600 {
        if found() == expected {
            return;
        }
        assert!(never.recv_timeout(Duration::from_millis(10)).is_err());
    }
    panic!("opened `{}` instead of {expected}", found());
}

#[test]
fn a_port_that_is_taken_is_named() {
    let server = ServerProcess::start(&["--port", "0"], &[]);
    let (_, port) = server.address.rsplit_once(':').unwrap();
    check_fails(&["serve", "--port", port], &[port, "in use"]);
}

#[test]
fn echoed_log_probabilities_are_those_of_eval() {
    let dir = ModelDir::new();
    let (text, out) = (dir.file("text"), dir.file("logprobs"));
    let words = "A slice is a view into a block of memory represented as a pointer and a length.";
    std::fs::write(&text, words).unwrap();
    let files = [text.to_str().unwrap(), out.to_str().unwrap()];
    stdout_of(&["eval", "--file", files[0], "--logprobs", files[1]]);
    let lines = std::fs::read_to_string(&out).unwrap();
    let lines: Vec<Value> = lines.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    let expected: Vec<&Value> = lines.iter().map(|line| &line["logprob"]).collect();
    let server = ServerProcess::start(&["--port", "0"], &[]);
    let body = json!({"prompt": words, "max_tokens": 0, "echo": true, "logprobs": 0});
    let found = server.json("POST /v1/completions", &body);
    let found = found["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
    assert!(expected.len() > 10 && expected[0].is_null());
    assert_eq!(found.iter().collect::<Vec<_>>(), expected);
}
