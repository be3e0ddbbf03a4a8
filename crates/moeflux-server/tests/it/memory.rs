//! Memory that requests share: requests that can never fit, requests that do not fit now, and that
//! all memory is freed.

use serde_json::{Value as Json, json};

use crate::client::Response;
use crate::server::Running;

const CHAT: &str = "/v1/chat/completions";

/// Bodies have 4 MiB, reading has 6 MiB, and data kept for answers 4 MiB.
fn small() -> Running {
    Running::with(|wanted| wanted.config.request_memory_bytes = 16 << 20)
}

fn user(text: &str) -> Json {
    json!({"role": "user", "content": text})
}

#[track_caller]
fn check_refused(response: &Response, status: u16, words: &[&str]) {
    assert_eq!(response.status, status, "{}", response.text());
    let json = response.json();
    let message = json["error"]["message"].as_str().unwrap();
    assert!(!message.contains('\n'), "{message}");
    for word in words {
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn requests_that_never_fit_are_refused_with_numbers() {
    let server = small();
    for _ in 0..3 {
        let long = json!({"max_tokens": 1, "messages": [user(&"a ".repeat(250_000))]});
        let words = ["reading a body of 5000", "bytes with", "; the memory for reading requests"];
        check_refused(&server.post(CHAT, &long), 413, &words);
        let values = json!({"max_tokens": 1, "messages": vec![json!({}); 10_000]});
        check_refused(&server.post(CHAT, &values), 413, &["with 10005 values", "may need 7."]);
        let longer = json!({"max_tokens": 1, "prompt": "a".repeat(2 << 20)});
        let limit = ["the body is too long; the limit is 1048576 bytes"];
        check_refused(&server.post("/v1/completions", &longer), 413, &limit);
    }
    let short = json!({"max_tokens": 1, "messages": [user("a")]});
    server.post(CHAT, &short).success();
}

#[test]
fn an_answer_without_room_ends_with_an_error_and_gives_it_back() {
    let server = small();
    let ask = |n: usize, n_tokens: usize| {
        let body = json!({"messages": [user("Count.")], "n": n, "max_tokens": n_tokens,
            "logprobs": true, "top_logprobs": 20, "logit_bias": server.endless()});
        server.post(CHAT, &body)
    };
    let mut refused = 0;
    for _ in 0..3 {
        let response = ask(8, 300);
        if response.status != 200 {
            check_refused(&response, 503, &["more of this answer may need", "prompts and answers"]);
            refused += 1;
        }
        ask(1, 8).success();
    }
    assert!(refused > 0, "2,400 tokens with 21 log-probabilities each have room");
}

#[test]
fn a_text_is_read_no_further_than_the_context() {
    let server = Running::new();
    let body = json!({"prompt": "vector ".repeat(100_000), "max_tokens": 1});
    let words = ["prompt is too long: 1025 tokens > 1024 maximum, and it was read no further"];
    check_refused(&server.post("/v1/completions", &body), 400, &words);
    // How long it is can still be asked.
    let body = json!({"messages": [user(&"vector ".repeat(3_000))], "model": "demo"});
    let counted = server.post("/v1/messages/count_tokens", &body);
    assert!(counted.json()["input_tokens"].as_u64().unwrap() > 3_000, "{}", counted.text());
}
