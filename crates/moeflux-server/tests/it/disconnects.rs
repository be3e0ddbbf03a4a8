//! Clients that disconnect at every stage: their jobs are cancelled, and those of others continue.

use std::io::Write;

use serde_json::{Value as Json, json};

use crate::client::Client;
use crate::server::{Running, post, question};

const CHAT: &str = "/v1/chat/completions";

/// An answer that goes on until the context is full.
fn endless(server: &Running, is_streamed: bool) -> Json {
    json!({"messages": question(), "stream": is_streamed, "logit_bias": server.endless()})
}

fn asked(server: &Running, path: &str, body: &Json) -> Client {
    let mut client = server.client();
    client.send(&post(path, body));
    client
}

#[test]
fn while_it_waits_for_the_engine() {
    for is_streamed in [true, false] {
        let server = Running::with(|wanted| wanted.is_held = true);
        let gone = asked(&server, CHAT, &endless(&server, is_streamed));
        let mut stays = asked(&server, CHAT, &json!({"messages": question(), "max_tokens": 1}));
        server.wait(|stats| stats.n_waiting == 2);
        drop(gone);
        server.open();
        stays.response().success();
        server.wait(|_| server.service.is_idle());
        assert_eq!(server.stats().n_answer_tokens, 1, "nothing was made for nobody");
    }
}

#[test]
fn while_it_is_queued_after_another() {
    for is_streamed in [true, false] {
        let server = Running::with(|wanted| wanted.options.n_sessions = 1);
        let mut first = asked(&server, CHAT, &endless(&server, true));
        assert!(first.head().is_some());
        server.wait(|stats| stats.n_answer_tokens > 0);
        let gone = asked(&server, CHAT, &endless(&server, is_streamed));
        server.wait(|stats| stats.n_waiting == 1);
        drop(gone);
        server.wait(|stats| stats.n_waiting == 0);
        drop(first);
        server.wait(|_| server.service.is_idle());
        assert_eq!(server.stats().n_cancelled, 2);
    }
}

#[test]
fn while_its_prompt_is_read() {
    for is_streamed in [true, false] {
        let server = Running::with(|wanted| wanted.options.context = 4_096);
        let prompt = "vector string heap trait ".repeat(700);
        let body = json!({"prompt": prompt, "stream": is_streamed, "max_tokens": 2_000});
        let gone = asked(&server, "/v1/completions", &body);
        server.wait(|stats| stats.n_running == 1);
        drop(gone);
        server.wait(|_| server.service.is_idle());
        assert_eq!(server.stats().n_cancelled, 1);
        assert_eq!(server.stats().n_answer_tokens, 0);
    }
}

#[test]
fn while_it_is_answered() {
    for (is_streamed, n) in [(true, 1), (false, 1), (true, 3), (false, 3)] {
        let server = Running::with(|wanted| wanted.options.context = 4_096);
        let mut body = endless(&server, is_streamed);
        body["n"] = n.into();
        body["temperature"] = json!(1.0);
        let gone = asked(&server, CHAT, &body);
        server.wait(|stats| stats.n_answer_tokens > 4);
        drop(gone);
        server.wait(|_| server.service.is_idle());
        assert_eq!(server.stats().n_cancelled, n, "{is_streamed}");
    }
}

/// Unread bytes make the system reset the connection instead of closing it.
#[test]
fn by_a_reset_in_the_middle_of_a_stream() {
    let server = Running::with(|wanted| wanted.options.context = 4_096);
    let mut gone = asked(&server, CHAT, &endless(&server, true));
    assert!(gone.head().is_some() && gone.chunk().is_some());
    server.wait(|stats| stats.n_answer_tokens > 50);
    drop(gone);
    server.wait(|_| server.service.is_idle());
    assert_eq!(server.stats().n_cancelled, 1);
}

#[test]
fn with_several_prompts_of_which_most_wait() {
    let server = Running::with(|wanted| wanted.options.context = 4_096);
    let body = json!({"prompt": vec!["A vector"; 40], "max_tokens": 2_000,
        "logit_bias": server.endless()});
    let gone = asked(&server, "/v1/completions", &body);
    server.wait(|stats| stats.n_answer_tokens > 4);
    drop(gone);
    server.wait(|_| server.service.is_idle());
    let stats = server.stats();
    assert!(stats.n_cancelled <= 8, "the others never came to the scheduler");
}

#[test]
fn one_of_two_leaves_the_other_alone() {
    let server = Running::new();
    let body = json!({"messages": question(), "temperature": 0, "max_tokens": 100,
        "logit_bias": server.endless()});
    let alone = server.post(CHAT, &body).success();
    let mut stays = asked(&server, CHAT, &body);
    let gone = asked(&server, CHAT, &endless(&server, true));
    server.wait(|stats| stats.n_running == 2 || stats.n_cut == 2);
    drop(gone);
    assert_eq!(stays.response().success()["choices"], alone["choices"]);
}

/// Another request may already wait after one that was not answered yet.
#[test]
fn with_the_next_request_sent_already() {
    let server = Running::with(|wanted| wanted.options.context = 4_096);
    let gone = asked(&server, CHAT, &endless(&server, true));
    gone.stream().write_all(&post(CHAT, &endless(&server, true))).unwrap();
    server.wait(|stats| stats.n_answer_tokens > 4);
    drop(gone);
    server.wait(|_| server.service.is_idle());
    assert_eq!(server.stats().n_ended + server.stats().n_cut, 0);
}
