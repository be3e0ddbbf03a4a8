//! Keep-alives, and failures after the head of a response.

use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::client::{Client, Response, SseEvent};
use crate::server::{Running, Wanted, post, question};

/// An engine that opens late, and a server that does not wait long for it.
fn held(wanted: &mut Wanted) {
    wanted.is_held = true;
    wanted.config.timeouts.stream = Duration::from_millis(20);
    wanted.config.timeouts.whole = Duration::from_millis(20);
    wanted.config.timeouts.keep_alive = Duration::from_millis(20);
}

/// The response to a request while the engine is held, after four chunks; `go` ends that.
fn response(
    server: &Running,
    (path, is_streamed): (&str, bool),
    go: impl FnOnce(&Running),
) -> Response {
    let mut client = server.client();
    client.send(&post(path, &body(path, is_streamed)));
    let mut response = client.head().unwrap();
    for _ in 0..4 {
        response.body.extend(client.chunk().unwrap());
    }
    go(server);
    rest(&mut client, &mut response);
    response
}

fn rest(client: &mut Client, response: &mut Response) {
    while let Some(chunk) = client.chunk() {
        response.body.extend(chunk);
    }
}

fn body(path: &str, is_streamed: bool) -> Json {
    let (key, prompt) = match path {
        "/v1/completions" => ("prompt", json!("?")),
        "/v1/responses" => ("input", json!("?")),
        _ => ("messages", question()),
    };
    json!({key: prompt, "max_tokens": 4, "stream": is_streamed})
}

fn names(events: &[SseEvent]) -> Vec<&str> {
    events.iter().map(|event| event.name.as_str()).collect()
}

#[test]
fn streams_begin_at_once_and_show_life() {
    let server = Running::with(held);
    let chat = response(&server, ("/v1/chat/completions", true), |_| server.open());
    let comments = chat.text().matches(": 0 of ").count();
    assert!(comments >= 2, "{}", chat.text());
    assert_eq!(chat.events()[0].json()["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(chat.events().last().unwrap().data, "[DONE]");
    let server = Running::with(held);
    let messages = response(&server, ("/v1/messages", true), |_| server.open());
    let events = messages.events();
    assert_eq!(names(&events)[..3], ["message_start", "ping", "ping"]);
    assert_eq!(events.last().unwrap().name, "message_stop");
    let server = Running::with(held);
    let responses = response(&server, ("/v1/responses", true), |_| server.open());
    let events = responses.events();
    let expected = ["response.created", "response.in_progress", "response.in_progress"];
    assert_eq!(names(&events)[..3], expected);
    assert!(events[2].json()["moeflux_progress"]["tokens"].as_u64().unwrap() > 0);
    let server = Running::with(held);
    let completions = response(&server, ("/v1/completions", true), |_| server.open());
    let events = completions.events();
    let is_keep_alive = |event: &&SseEvent| event.data.contains("moeflux_progress");
    let keep_alives: Vec<Json> = events.iter().filter(is_keep_alive).map(SseEvent::json).collect();
    assert!(keep_alives.len() >= 2, "{}", completions.text());
    assert_eq!(keep_alives[0]["moeflux_progress"]["tokens_read"], 0);
    for keep_alive in &keep_alives {
        assert_eq!(keep_alive["choices"][0]["text"], "");
        assert_eq!(keep_alive["id"], keep_alives[0]["id"]);
    }
    assert_eq!(events.last().unwrap().data, "[DONE]");
}

#[test]
fn who_asks_for_it_is_told_how_far_the_prompt_is_read() {
    let chat = "/v1/chat/completions";
    let ask = |server: &Running, body: &Json, n_chunks: usize| {
        let mut client = server.client();
        client.send(&post(chat, body));
        let mut response = client.head().unwrap();
        for _ in 0..n_chunks {
            response.body.extend(client.chunk().unwrap());
        }
        server.open();
        rest(&mut client, &mut response);
        response
    };
    let server = Running::with(|wanted| {
        held(wanted);
        wanted.config.timeouts.progress = Duration::from_millis(10);
    });
    let mut asked = body(chat, true);
    asked["return_progress"] = true.into();
    let found = ask(&server, &asked, 4);
    let events: Vec<Json> =
        found.events().iter().filter(|it| it.data != "[DONE]").map(SseEvent::json).collect();
    let is_progress = |event: &&Json| event["prompt_progress"].is_object();
    let reports: Vec<&Json> = events.iter().filter(is_progress).collect();
    assert!(reports.len() >= 4, "{}", found.text());
    assert!(!found.text().contains(": 0 of "), "{}", found.text());
    for report in &reports {
        assert_eq!(report["object"], "chat.completion.chunk");
        assert_eq!(report["choices"][0]["delta"], json!({}));
        assert_eq!(report["choices"][0]["finish_reason"], Json::Null);
    }
    let first = &reports[0]["prompt_progress"];
    let n_total = first["total"].as_u64().unwrap();
    assert!(n_total > 10, "{first}");
    assert_eq!(first, &json!({"total": n_total, "cache": 0, "processed": 0, "time_ms": 0}));
    let last = &reports[reports.len() - 1]["prompt_progress"];
    assert_eq!(last["processed"], n_total);
    assert_eq!(last["seconds_left"], 0);
    // The first chunk names the role, then come the reports, and then the answer.
    let n_reports = reports.len();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    assert!(events[1..=n_reports].iter().all(|event| is_progress(&event)), "{}", found.text());
    // What the conversation keeps is not read again.
    let again = server.post(chat, &asked);
    let events = again.events();
    let reports: Vec<Json> = events
        .iter()
        .filter(|it| it.data.contains("prompt_progress"))
        .map(SseEvent::json)
        .collect();
    let last = &reports.last().unwrap()["prompt_progress"];
    assert!(last["cache"].as_u64().unwrap() > 0, "{last}");
    assert_eq!(last["processed"], n_total, "{last}");
}

#[test]
fn who_does_not_ask_for_progress_gets_none() {
    let server = Running::new();
    let mut asked = body("/v1/chat/completions", true);
    for (is_streamed, wanted) in [(true, Json::Null), (true, false.into()), (false, true.into())] {
        asked["stream"] = is_streamed.into();
        asked["return_progress"] = wanted;
        let found = server.post("/v1/chat/completions", &asked);
        assert_eq!(found.status, 200);
        assert!(!found.text().contains("prompt_progress"), "{}", found.text());
    }
    let text = json!({"prompt": "?", "max_tokens": 1, "stream": true, "return_progress": true});
    let found = server.post("/v1/completions", &text);
    assert!(found.status == 200 && !found.text().contains("prompt_progress"), "{}", found.text());
    asked["return_progress"] = "yes".into();
    let refused = server.post("/v1/chat/completions", &asked);
    assert_eq!(
        (refused.status, &refused.json()["error"]["param"]),
        (400, &json!("return_progress"))
    );
}

#[test]
fn waiting_clients_get_blank_lines_before_the_whole_answer() {
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"] {
        let server = Running::with(held);
        let found = response(&server, (path, false), |_| server.open());
        assert_eq!((found.status, found.header("content-type")), (200, Some("application/json")));
        assert!(found.text().starts_with("\n\n\n\n"), "{}", found.text());
        assert!(found.json()["id"].is_string());
    }
}

#[test]
fn failures_after_the_head_are_in_band() {
    for (path, is_streamed) in [
        ("/v1/chat/completions", true),
        ("/v1/chat/completions", false),
        ("/v1/completions", true),
        ("/v1/responses", true),
        ("/v1/responses", false),
        ("/v1/messages", true),
        ("/v1/messages", false),
    ] {
        let server = Running::with(held);
        let found = response(&server, (path, is_streamed), |_| server.fail());
        assert_eq!(found.status, 200);
        let last = match is_streamed {
            true => found.events().pop().unwrap().json(),
            false => found.json(),
        };
        let error = if path == "/v1/responses" && is_streamed {
            assert_eq!(last["type"], "response.failed");
            &last["response"]["error"]
        } else {
            &last["error"]
        };
        assert_eq!(error["message"], "the drive of this test has failed", "{path}: {last}");
    }
}

#[test]
fn early_failures_have_a_status() {
    for (path, is_streamed) in
        [("/v1/chat/completions", true), ("/v1/messages", false), ("/v1/responses", true)]
    {
        let server = Running::with(|wanted| {
            wanted.is_held = true;
            wanted.config.timeouts.stream = Duration::from_secs(60);
        });
        let mut client = server.client();
        client.send(&post(path, &body(path, is_streamed)));
        server.wait(|stats| stats.n_waiting == 1);
        server.fail();
        let found = client.response();
        assert_eq!(found.status, 500, "{path}");
        assert_eq!(found.json()["error"]["message"], "the drive of this test has failed");
    }
}
