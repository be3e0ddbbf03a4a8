//! Refused requests: the status, and the shape of each dialect's errors.

use serde_json::{Value as Json, json};

use crate::client::{Response, request};
use crate::server::{CONTEXT, Running, post, question};

const CHAT: &str = "/v1/chat/completions";
const ALL: [&str; 4] = [CHAT, "/v1/completions", "/v1/responses", "/v1/messages"];

/// Returns the status and the kind of a failure, in the shape of the path's dialect.
#[track_caller]
fn kind(path: &str, response: &Response) -> (u16, String, String) {
    let body = response.json();
    let error = &body["error"];
    let text = |json: &Json| json.as_str().unwrap().to_owned();
    if path.starts_with("/v1/messages") {
        assert_eq!(body["type"], "error", "{body}");
        let id = response.header("request-id").expect("an id for Anthropic's clients");
        assert_eq!(body["request_id"], id);
    } else {
        assert!(error.get("param").is_some() && error.get("code").is_some(), "{body}");
    }
    assert!(response.header("x-request-id").is_some());
    (response.status, text(&error["type"]), text(&error["message"]))
}

#[test]
fn wrong_bodies_are_refused_in_every_dialect() {
    let server = Running::new();
    let deep = "[".repeat(100_000);
    let json = "content-type: application/json\r\n";
    for path in ALL {
        for (body, expected) in [
            ("{", "the body is not JSON"),
            ("", "the body is not JSON"),
            ("[]", "the body: expected an object"),
            ("\u{1}", "the body is not JSON"),
            (deep.as_str(), "recursion limit"),
            ("{\"temperature\": \"hot\"}", "`temperature`: expected a number"),
            ("{\"stream\": 5, \"max_tokens\": 5}", "`stream`: expected true or false"),
        ] {
            let response = server.ask(&request("POST", path, json, body));
            let (status, kind, message) = kind(path, &response);
            assert_eq!(
                (status, kind.as_str()),
                (400, "invalid_request_error"),
                "{path} {body:.99}"
            );
            let is_missing = message.ends_with("is missing");
            assert!(is_missing || message.contains(expected), "{path}: {message}");
        }
    }
    assert_eq!(server.stats().n_refused, 0, "the scheduler saw none of it");
}

#[test]
fn other_types_than_json_are_refused() {
    let server = Running::new();
    for path in ALL {
        for header in ["content-type: text/plain\r\n", "content-encoding: gzip\r\n"] {
            let response = server.ask(&request("POST", path, header, "{}"));
            assert_eq!(kind(path, &response).0, 415, "{path}");
        }
        let response = server.ask(&request("POST", path, "", "{}"));
        assert_eq!(kind(path, &response).0, 400, "no type counts as JSON");
    }
}

#[test]
fn bodies_have_a_limit() {
    let server = Running::new();
    let big = vec![b' '; 1 << 20];
    let mut client = server.client();
    client.send(
        b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n",
    );
    for _ in 0..33 {
        client.send(format!("{:x}\r\n", big.len()).as_bytes());
        client.send(&big);
        client.send(b"\r\n");
    }
    client.send(b"0\r\n\r\n");
    let response = client.response();
    assert_eq!(kind("/v1/messages", &response).1, "request_too_large");
    assert_eq!(response.status, 413);
    for (path, headers) in [(CHAT, ""), (CHAT, "content-type: text/plain\r\n"), ("/nothing", "")] {
        let body = " ".repeat((32 << 20) + 1);
        let status = server.ask(&request("POST", path, headers, &body)).status;
        assert!([413, 415, 404].contains(&status), "a refusal is read: {status}");
    }
    // A client that expects `100-continue` is refused at once.
    let mut client = server.client();
    client.send(&request("POST", CHAT, "content-length: 99999999\r\nexpect: 100-continue\r\n", ""));
    assert_eq!(client.response().status, 413);
}

#[test]
fn unknown_paths_and_methods_are_refused() {
    let server = Running::new();
    for (method, path, status) in [
        ("GET", "/v1/embeddings", 404),
        ("POST", "/v1/messages/batches", 404),
        ("GET", "/v1/messages", 405),
        ("DELETE", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("OPTIONS", CHAT, 405),
    ] {
        let response = server.ask(&request(method, path, "", ""));
        let (found, _, message) = kind(path, &response);
        assert_eq!(found, status, "{method} {path}");
        assert!(message.contains(path), "{message}");
        assert_eq!(response.header("allow").is_some(), status == 405, "{method} {path}");
    }
    let headers = "anthropic-version: 2023-06-01\r\n";
    let response = server.ask(&request("GET", "/v1/nothing", headers, ""));
    assert_eq!(response.json()["type"], "error");
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_with_both_numbers() {
    let server = Running::new();
    let long = "vector ".repeat(CONTEXT);
    let body = json!({"max_tokens": 5, "messages": [{"role": "user", "content": long}]});
    for (path, expected) in [(CHAT, "context_length_exceeded"), ("/v1/messages", "")] {
        let response = server.post(path, &body);
        let (status, _, message) = kind(path, &response);
        assert_eq!(status, 400);
        assert!(message.starts_with("prompt is too long: "), "{message}");
        assert!(message.contains(&format!("maximum context length is {CONTEXT} tokens")));
        assert_eq!(response.json()["error"]["code"].as_str().unwrap_or_default(), expected);
    }
    let prompts = json!({"prompt": ["a", long]});
    assert_eq!(server.post("/v1/completions", &prompts).status, 400);
    let full = vec![1; CONTEXT];
    let prompt = json!({"prompt": full, "max_tokens": 0, "echo": true});
    assert_eq!(server.post("/v1/completions", &prompt).status, 200);
    let prompt = json!({"prompt": full, "max_tokens": 1});
    assert_eq!(server.post("/v1/completions", &prompt).status, 400);
}

#[test]
fn tokens_that_there_are_not_are_named() {
    let server = Running::new();
    for (path, body, expected) in [
        ("/v1/completions", json!({"prompt": [1, 99_999]}), "`prompt[1]`: there is no token 99999"),
        ("/v1/completions", json!({"prompt": [[1], [99_999]]}), "`prompt[1][0]`"),
        ("/detokenize", json!({"tokens": [99_999]}), "`tokens[0]`"),
        (CHAT, json!({"messages": question(), "logit_bias": {"99999": 1}}), "`logit_bias.99999`"),
    ] {
        let (status, _, message) = kind(path, &server.post(path, &body));
        assert_eq!(status, 400);
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn a_strict_server_refuses_other_models() {
    let server = Running::with(|wanted| wanted.config.strict_model = true);
    let ask = |model: &str| {
        let body = json!({"model": model, "max_tokens": 1, "messages": question()});
        server.post(CHAT, &body)
    };
    assert_eq!(ask("demo").success()["model"], "demo");
    assert_eq!(ask("other/name").success()["model"], "demo");
    let response = ask("gpt-9");
    assert_eq!(kind(CHAT, &response).0, 404);
    assert_eq!(response.json()["error"]["param"], "model");
    assert_eq!(server.get("/v1/models/gpt-9").status, 404);
}

#[test]
fn a_full_queue_states_when_to_try_again() {
    let server = Running::with(|wanted| {
        wanted.is_held = true;
        (wanted.options.n_sessions, wanted.options.n_queue) = (1, 1);
    });
    let body = post(CHAT, &json!({"max_tokens": 1, "messages": question()}));
    let mut waiting = [server.client(), server.client()];
    waiting.iter_mut().for_each(|client| client.send(&body));
    server.wait(|stats| stats.n_waiting == 2);
    for path in [CHAT, "/v1/messages"] {
        let response = server.post(path, &json!({"max_tokens": 1, "messages": question()}));
        let (status, kind, message) = kind(path, &response);
        assert_eq!((status, kind.as_str()), (429, "rate_limit_error"), "{message}");
        assert!(response.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    }
    server.open();
    for mut client in waiting {
        client.response().success();
    }
}

#[test]
fn refusals_name_the_field() {
    let server = Running::new();
    for (path, more, field) in [
        (CHAT, json!({"tool_choice": "required"}), "tool_choice"),
        (CHAT, json!({"response_format": {"type": "xml"}}), "response_format.type"),
        ("/v1/responses", json!({"previous_response_id": "r"}), "previous_response_id"),
        ("/v1/messages", json!({"thread": "create"}), "thread"),
    ] {
        let mut body = json!({"messages": question(), "input": "?", "max_tokens": 1});
        for (key, value) in more.as_object().unwrap() {
            body[key.as_str()] = value.clone();
        }
        let (status, _, message) = kind(path, &server.post(path, &body));
        assert_eq!(status, 400);
        assert!(message.starts_with(&format!("`{field}`")), "{message}");
    }
}
