//! The log: a line for each request, and nothing in it that is not meant for it.

use std::fmt::{Debug, Write};
use std::sync::{Mutex, OnceLock};

use moeflux_server::http::ApiKeys;
use serde_json::{Value as Json, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::client::request;
use crate::server::{Running, question};

const CHAT: &str = "/v1/chat/completions";

/// Keeps all lines.
struct Lines;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().target().to_owned());
        event.record(&mut line);
        LINES.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

fn listen() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| tracing::subscriber::set_global_default(Lines).unwrap());
}

/// The lines of requests with this id.
fn lines(id: &str) -> Vec<String> {
    let lines = LINES.lock().unwrap();
    lines.iter().filter(|line| line.contains(&format!("id={id} "))).cloned().collect()
}

/// Sends a request of this name, and gives its only line.
#[track_caller]
fn line(server: &Running, (id, headers): (&str, &str), body: &Json) -> String {
    let headers = format!("x-request-id: {id}\r\n{headers}");
    server.ask(&request("POST", CHAT, &headers, &body.to_string()));
    let mut found = Vec::new();
    server.wait(|_| server.service.is_idle());
    // The line is written after the last byte of a stream.
    let of_request = |line: &String| line.starts_with("moeflux::request ");
    server.wait(|_| lines(id).iter().any(of_request));
    found.extend(lines(id).into_iter().filter(of_request));
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn each_request_has_one_line() {
    listen();
    let server = Running::new();
    let mut body = json!({"messages": question(), "max_tokens": 7, "frobnicate": 1,
        "logit_bias": server.endless()});
    for (id, is_streamed) in [("plain-1", false), ("stream-1", true)] {
        body["stream"] = is_streamed.into();
        let found = line(&server, (id, ""), &body);
        assert!(
            found
                .starts_with(&format!("moeflux::request message=request id={id} dialect=\"chat\"")),
            "{found}"
        );
        for field in ["status=200", "ended=\"length\"", "n_answer=7", "ignored=\"frobnicate\""] {
            assert!(found.contains(&format!(" {field}")), "{field}: {found}");
        }
        for field in [
            "n_prompt",
            "n_cached",
            "n_cached_drive",
            "found",
            "queued_ms",
            "prompt_ms",
            "answer_ms",
            "drive_bytes",
        ] {
            assert!(found.contains(&format!(" {field}=")), "{field}: {found}");
        }
    }
    let found = line(&server, ("refused-1", ""), &json!({"messages": question(), "n": 0}));
    assert!(found.contains(" status=400 ended=\"refused\""), "{found}");
    assert!(found.contains(" reason=\"invalid\" problem=\"n\""), "{found}");
}

/// Also if no answer was requested, or if only the head of the request arrived.
#[test]
fn a_refused_request_is_logged_and_counted_with_its_reason() {
    listen();
    let keys = ApiKeys::from_lines("sk").unwrap();
    let server = Running::with(|wanted| wanted.config.keys = keys);
    let key = "authorization: Bearer sk\r\n";
    let text = "authorization: Bearer sk\r\ncontent-type: text/plain\r\n";
    let hosts = "authorization: Bearer sk\r\nhost: localhost\r\nhost: localhost\r\n";
    let cases = [
        ("POST", CHAT, "", "unauthorized"),
        ("GET", "/metrics", "authorization: Bearer secret-key\r\n", "unauthorized"),
        ("GET", "/v1/models", "host: evil.example\r\n", "forbidden"),
        ("GET", "/v1/models", hosts, "invalid"),
        ("GET", "/nothing?secret-key", key, "not_found"),
        ("DELETE", CHAT, key, "method"),
        ("POST", "/tokenize", text, "media_type"),
        ("POST", CHAT, text, "media_type"),
        ("POST", "/tokenize", key, "invalid"),
    ];
    for (case_idx, (method, path, headers, reason)) in cases.iter().enumerate() {
        let id = format!("refusal-{case_idx}");
        let headers = format!("x-request-id: {id}\r\n{headers}");
        server.ask(&request(method, path, &headers, "{}"));
        server.wait(|_| !lines(&id).is_empty());
        let found = lines(&id);
        assert_eq!(found.len(), 1, "{found:?}");
        for field in ["ended=\"refused\"", &format!("reason=\"{reason}\"")] {
            assert!(found[0].contains(&format!(" {field}")), "{field}: {found:?}");
        }
        assert!(!found[0].contains("secret-key"), "{found:?}");
    }
    server.ask(b"GET / HTTP/9.9\r\n\r\n");
    let page = server.ask(&request("GET", "/metrics", key, ""));
    for (reason, n_requests) in [
        ("unauthorized", 2),
        ("forbidden", 1),
        ("invalid", 2),
        ("not_found", 1),
        ("method", 1),
        ("media_type", 2),
        ("malformed", 1),
        ("too_many", 0),
    ] {
        let name = "moeflux:requests_refused_total";
        let line = format!("{name}{{model_name=\"demo\",reason=\"{reason}\"}} {n_requests}\n");
        assert!(page.text().contains(&line), "{line} {}", page.text());
    }
}

/// Five prompts whose client changes their beginning.
#[test]
fn long_prompts_that_find_nothing_are_noticed() {
    listen();
    for logs_prompts in [false, true] {
        let server = Running::with(|wanted| {
            wanted.config.log_prompts = logs_prompts;
            wanted.options.context = 4_096;
        });
        let name = |turn: usize| format!("turn-{turn}-{logs_prompts}");
        let ask = |turn: usize| {
            let history = "The crate reads a file line by line. ".repeat(160);
            let text =
                format!("You know the standard library. It is {turn}:0{turn} o'clock. {history}");
            let messages = json!([{"role": "user", "content": text}]);
            line(&server, (&name(turn), ""), &json!({"messages": messages, "max_tokens": 1}))
        };
        let is_notice = |found: &String| found.starts_with("moeflux::server ");
        let notices = |turn| lines(&name(turn)).into_iter().filter(is_notice).collect::<Vec<_>>();
        let first = ask(0);
        assert!(first.contains(" found=\"nothing\"") && !first.contains("n_shared"), "{first}");
        for turn in 1..5 {
            let found = ask(turn);
            assert!(found.contains(" found=\"diverged\" n_shared="), "{found}");
        }
        ask(5);
        let [notice] = notices(5).try_into().unwrap();
        assert!(notice.contains("the last 5 long prompts share at most their first "), "{notice}");
        assert_eq!(notice.contains(" o'clock"), logs_prompts, "{notice}");
        ask(6);
        assert!((0..7).filter(|turn| *turn != 5).all(|turn| notices(turn).is_empty()));
    }
}

#[test]
fn a_cancelled_request_has_its_line_too() {
    listen();
    for (id, is_streamed) in [("gone-1", false), ("gone-2", true)] {
        let server = Running::new();
        let body = json!({"messages": question(), "stream": is_streamed,
            "logit_bias": server.endless()});
        let mut client = server.client();
        let headers = format!("x-request-id: {id}\r\n");
        client.send(&request("POST", CHAT, &headers, &body.to_string()));
        server.wait(|stats| stats.n_answer_tokens > 4);
        drop(client);
        server.wait(|_| !lines(id).is_empty());
        assert!(lines(id)[0].contains(" ended=\"cancelled\""), "{:?}", lines(id));
    }
}

#[test]
fn questions_tell_of_fields_without_effect() {
    listen();
    let server = Running::new();
    server.post("/tokenize", &json!({"prompt": "zebu", "frobnicate": 1})).success();
    let lines = LINES.lock().unwrap();
    let found: Vec<_> =
        lines.iter().filter(|line| line.contains("message=question path=\"/tokenize\"")).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].ends_with(" ignored=\"frobnicate\""), "{found:?}");
}

#[test]
fn keys_and_prompts_are_not_logged() {
    listen();
    let key = "sk-zebra-in-the-log";
    let server = |logs_prompts: bool| {
        Running::with(|wanted| {
            wanted.config.keys = ApiKeys::from_lines(key).unwrap();
            wanted.config.log_prompts = logs_prompts;
        })
    };
    let body = |word: &str| {
        let messages = json!([{"role": "user", "content": word}]);
        json!({"messages": messages, "max_tokens": 1, "stop": [word]})
    };
    let header = format!("authorization: Bearer {key}\r\n");
    line(&server(false), ("quiet-1", &header), &body("giraffeword"));
    let has = |word: &str| LINES.lock().unwrap().iter().any(|line| line.contains(word));
    assert!(!has("giraffeword"));
    let asked = server(true);
    let headers = format!("x-request-id: loud-1\r\n{header}");
    let body = body("okapiword").to_string();
    assert_eq!(asked.ask(&request("POST", CHAT, &headers, &body)).status, 200);
    asked.wait(|_| has("okapiword"));
    assert!(!has(key) && !has("zebra"));
}
