//! Replacing the model that is served by another one.

use moeflux_schedule::State;
use serde_json::json;

use crate::server::{Running, post, question};

const CHAT: &str = "/v1/chat/completions";

#[test]
fn a_model_is_closed_with_its_sessions_and_another_one_answers() {
    let server = Running::new();
    let body = json!({"messages": question(), "max_tokens": 8});
    server.post(CHAT, &body).success();
    let again = server.post(CHAT, &body);
    assert!(cached(&again.success()) > 0);
    server.models.close();
    assert_eq!(server.service.state(), State::Closed);
    assert_eq!(server.stats().kept_bytes, 0, "the engine is gone, and what was kept with it");
    assert_eq!((server.get("/health").status, server.post(CHAT, &body).status), (503, 503));
    let other = server.serve_another("second");
    let first = server.post(CHAT, &body);
    assert_eq!((&first.success()["model"], cached(&first.success())), (&json!("second"), 0));
    assert_eq!(server.get("/v1/models").success()["data"][0]["id"], "second");
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(other.stats().whole.count(), 1);
}

#[test]
fn a_request_ends_with_the_model_that_it_began_with() {
    let server = Running::with(|wanted| wanted.options.context = 4_096);
    let body = json!({"messages": question(), "max_tokens": 1_500, "logit_bias": server.endless()});
    let mut client = server.client();
    client.send(&post(CHAT, &body));
    server.wait(|stats| stats.n_running == 1);
    server.serve_another("second");
    let short = server.post(CHAT, &json!({"messages": question(), "max_tokens": 1}));
    assert_eq!(short.success()["model"], "second");
    let long = client.response();
    assert_eq!(long.success()["model"], "demo");
    assert_eq!(long.success()["usage"]["completion_tokens"], 1_500);
}

fn cached(answer: &serde_json::Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}
