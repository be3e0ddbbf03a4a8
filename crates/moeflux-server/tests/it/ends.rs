//! The shutdown of a server.

use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use crate::client::request;
use crate::server::{Running, post, question};

const CHAT: &str = "/v1/chat/completions";

#[test]
fn answers_end_before_the_server_does() {
    // Long answers: the first must still run when the second begins.
    let mut server = Running::with(|wanted| {
        wanted.options.context = 4_096;
        // Busy machines take long.
        wanted.config.drain = Duration::from_secs(3_600);
    });
    let body = json!({"messages": question(), "max_tokens": 2_000, "stream": true,
        "logit_bias": server.endless()});
    let mut streamed = server.client();
    streamed.send(&post(CHAT, &body));
    let mut whole = server.client();
    let body = json!({"messages": question(), "max_tokens": 1_500, "logit_bias": server.endless()});
    whole.send(&post(CHAT, &body));
    let mut idle = server.client();
    idle.send(&request("GET", "/health", "", ""));
    idle.response();
    let mut silent = server.client();
    server.wait(|stats| stats.n_running == 2);
    server.stop();
    assert!(idle.is_closed() && silent.is_closed());
    let response = whole.response();
    assert_eq!(response.success()["usage"]["completion_tokens"], 1_500);
    let streamed = streamed.response();
    assert_eq!(streamed.events().last().unwrap().data, "[DONE]");
    server.join();
    assert!(TcpStream::connect(server.address).is_err(), "nobody listens");
}

#[test]
fn answers_that_take_too_long_are_reported() {
    check_answers_are_cut(Duration::from_millis(50), Running::stop);
}

#[test]
fn a_system_that_ends_soon_shortens_the_wait() {
    let within = |server: &Running| server.stop_within(Duration::from_millis(50));
    check_answers_are_cut(Duration::from_secs(3_600), within);
}

fn check_answers_are_cut(drain: Duration, stop: impl Fn(&Running)) {
    let mut server = Running::with(|wanted| {
        wanted.config.drain = drain;
        wanted.options.context = 4_096;
    });
    let body = |is_streamed: bool| {
        let biases = server.endless();
        json!({"messages": question(), "stream": is_streamed, "logit_bias": biases})
    };
    let (mut streamed, mut whole) = (server.client(), server.client());
    streamed.send(&post("/v1/messages", &with_limit(body(true))));
    whole.send(&post(CHAT, &body(false)));
    server.wait(|stats| stats.n_running == 2);
    stop(&server);
    let last = streamed.response().events().pop().unwrap();
    assert_eq!(last.name, "error");
    assert_eq!(last.json()["error"]["type"], "overloaded_error");
    assert_eq!(whole.response().status, 503);
    server.join();
}

fn with_limit(mut body: serde_json::Value) -> serde_json::Value {
    body["max_tokens"] = 100_000.into();
    body
}

#[test]
fn nothing_new_is_taken() {
    let mut server = Running::with(|wanted| wanted.is_held = true);
    let mut first = server.client();
    first.send(&post(CHAT, &json!({"messages": question(), "max_tokens": 1})));
    server.wait(|stats| stats.n_waiting == 1);
    server.stop();
    while TcpStream::connect(server.address).is_ok() {}
    server.open();
    first.response().success();
    server.join();
}
