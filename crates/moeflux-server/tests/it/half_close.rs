//! Clients that close their side after a request: they get their answer, and clients that are gone
//! are noticed.

use std::net::Shutdown;
use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::client::{Client, request};
use crate::server::{Running, post, question};

const ANSWERS: [&str; 4] =
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"];

fn body(path: &str, is_streamed: bool) -> Json {
    let (key, prompt) = match path {
        "/v1/completions" => ("prompt", json!("A vector")),
        "/v1/responses" => ("input", json!("What is a vector?")),
        _ => ("messages", question()),
    };
    json!({key: prompt, "max_tokens": 9, "temperature": 0, "stream": is_streamed})
}

/// A client that has sent this and then nothing more.
fn half_closed(server: &Running, bytes: &[u8]) -> Client {
    let mut client = server.client();
    client.send(bytes);
    client.stream().shutdown(Shutdown::Write).unwrap();
    client
}

/// The response, whatever is sent before it.
fn response(client: &mut Client) -> crate::client::Response {
    loop {
        let response = client.response();
        if response.status != 100 {
            return response;
        }
    }
}

#[test]
fn a_client_that_closes_its_side_gets_the_answer() {
    let server = Running::new();
    for path in ANSWERS {
        for is_streamed in [false, true] {
            let asked = post(path, &body(path, is_streamed));
            let expected = server.ask(&asked);
            let mut client = half_closed(&server, &asked);
            let found = response(&mut client);
            assert_eq!((found.status, expected.status), (200, 200), "{path} {is_streamed}");
            assert_eq!(found.header("content-type"), expected.header("content-type"));
            assert!(client.is_closed(), "nothing more is asked");
        }
    }
    for path in ["/v1/models", "/health", "/metrics", "/openapi.json", "/nothing"] {
        let asked = request("GET", path, "", "");
        let expected = server.ask(&asked).status;
        assert_eq!(response(&mut half_closed(&server, &asked)).status, expected, "{path}");
    }
    for (path, body) in [
        ("/tokenize", json!({"prompt": "A vector ".repeat(2_000)})),
        ("/v1/messages/count_tokens", json!({"messages": question()})),
        ("/v1/chat/completions", json!({"messages": question(), "n": 0})),
    ] {
        let asked = post(path, &body);
        let expected = server.ask(&asked);
        let found = response(&mut half_closed(&server, &asked));
        assert_eq!((found.status, found.text()), (expected.status, expected.text()), "{path}");
    }
}

#[test]
fn pipelined_requests_are_answered_before_the_end() {
    let server = Running::new();
    let chat = post(ANSWERS[0], &body(ANSWERS[0], false));
    let asked = [request("GET", "/health", "", ""), chat.clone(), chat];
    let mut client = half_closed(&server, &asked.concat());
    for _ in asked {
        assert_eq!(response(&mut client).status, 200);
    }
    assert!(client.is_closed());
}

/// While the engine is being opened, no part of an answer can be sent.
#[test]
fn a_client_that_waits_for_long_is_not_disconnected() {
    for (path, is_streamed) in ANSWERS.iter().flat_map(|path| [(path, false), (path, true)]) {
        let server = Running::with(|wanted| {
            wanted.is_held = true;
            wanted.config.timeouts.keep_alive = Duration::from_millis(20);
        });
        let mut client = half_closed(&server, &post(path, &body(path, is_streamed)));
        server.wait(|stats| stats.n_waiting == 1);
        let first = client.head().unwrap();
        assert_eq!(first.status, if is_streamed { first.status } else { 100 }, "{path}");
        server.open();
        let found = if first.status == 100 { response(&mut client) } else { rest(client, first) };
        assert_eq!(found.status, 200, "{path}");
        assert!(found.body.len() > 20, "{path}");
        assert_eq!(server.stats().n_cancelled, 0);
    }
}

fn rest(mut client: Client, mut response: crate::client::Response) -> crate::client::Response {
    while let Some(chunk) = client.chunk() {
        response.body.extend(chunk);
    }
    response
}

#[test]
fn a_client_that_leaves_after_that_is_found_out() {
    for (path, is_streamed) in ANSWERS.iter().flat_map(|path| [(path, false), (path, true)]) {
        let server = Running::with(|wanted| {
            wanted.options.context = 4_096;
            wanted.config.timeouts.keep_alive = Duration::from_millis(20);
        });
        let mut body = body(path, is_streamed);
        body["max_tokens"] = json!(4_000);
        body["logit_bias"] = server.endless();
        let client = half_closed(&server, &post(path, &body));
        server.wait(|stats| stats.n_answer_tokens > 4);
        drop(client);
        server.wait(|_| server.service.is_idle());
        assert_eq!(server.stats().n_cancelled, 1, "{path} {is_streamed}");
    }
}

/// Half a body is not a request, however long the server waits for the rest.
#[test]
fn a_body_that_ends_early_is_refused() {
    let server = Running::with(|wanted| wanted.config.timeouts.body = Duration::from_secs(3_600));
    let asked = post(ANSWERS[0], &body(ANSWERS[0], false));
    for n_bytes in [asked.len() - 1, asked.len() - 40] {
        let mut client = half_closed(&server, &asked[..n_bytes]);
        let found = response(&mut client);
        assert_eq!(found.status, 400);
        assert!(found.text().contains("closed the connection before the end"), "{}", found.text());
        assert!(client.is_closed());
    }
}

/// A client of HTTP/1.0 gets no keep-alive before the response.
#[test]
fn an_old_client_is_sent_the_answer_alone() {
    let server = Running::with(|wanted| wanted.is_held = true);
    let body = body(ANSWERS[0], false).to_string();
    let length = body.len();
    let head = format!(
        "POST {} HTTP/1.0\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n",
        ANSWERS[0]
    );
    let mut client = half_closed(&server, (head + &body).as_bytes());
    server.wait(|stats| stats.n_waiting == 1);
    server.open();
    assert_eq!(client.response().status, 200);
}
