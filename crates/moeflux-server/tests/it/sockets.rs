//! Connections that are slow, half open, many or malformed.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::json;

use crate::client::{Client, request};
use crate::server::{Running, pause, post, question};

const CHAT: &str = "/v1/chat/completions";

/// A client that is served at once, whatever others do.
#[track_caller]
fn is_served(server: &Running) {
    let body = json!({"max_tokens": 1, "messages": question()});
    server.post(CHAT, &body).success();
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = Running::new();
    let mut client = server.client();
    let body = json!({"max_tokens": 2, "messages": question()});
    let pipelined = [
        request("GET", "/health", "", ""),
        post(CHAT, &body),
        request("GET", "/nothing", "", ""),
        post("/v1/messages", &body),
        request("GET", "/v1/models", "", ""),
    ];
    client.send(&pipelined.concat());
    let statuses: Vec<u16> = pipelined.iter().map(|_| client.response().status).collect();
    assert_eq!(statuses[1..], [200, 404, 200, 200]);
    client.send(&request("GET", "/health", "connection: close\r\n", ""));
    client.response();
    assert!(client.is_closed());
}

#[test]
fn slow_and_silent_clients_do_not_delay_others() {
    let server = Running::with(|wanted| {
        wanted.config.timeouts.head = Duration::from_millis(200);
        wanted.config.timeouts.body = Duration::from_millis(200);
    });
    let mut silent = server.client();
    let mut half_a_head = server.client();
    half_a_head.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: local");
    let mut half_a_body = server.client();
    let headers = "content-type: application/json\r\ncontent-length: 100\r\n";
    half_a_body.send(&request("POST", CHAT, headers, ""));
    half_a_body.send(b"{\"messages\": ");
    is_served(&server);
    assert!(silent.is_closed());
    let late = half_a_head.try_response();
    assert!(late.is_none_or(|response| response.status == 408));
    let refused = half_a_body.response();
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("arrived for 0.2 s"), "{}", refused.text());
    is_served(&server);
}

#[test]
fn a_request_may_come_byte_by_byte() {
    let server = Running::new();
    let mut client = server.client();
    client.stream().set_nodelay(true).unwrap();
    for byte in post(CHAT, &json!({"max_tokens": 1, "messages": question()})) {
        client.send(&[byte]);
    }
    client.response().success();
}

#[test]
fn malformed_and_oversized_heads_are_refused() {
    let server = Running::new();
    let long = format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(100_000));
    let many: String = (0..500).map(|n| format!("x-{n}: y\r\n")).collect();
    let many = format!("GET / HTTP/1.1\r\nhost: localhost\r\n{many}\r\n");
    let path = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "y".repeat(100_000));
    for head in [
        long.as_str(),
        &many,
        &path,
        "GET / HTTP/9.9\r\n\r\n",
        "\u{0}\u{1}\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut client = server.client();
        // The server may close the connection before all of it is sent.
        client.stream().write_all(head.as_bytes()).ok();
        let status = client.try_response().map(|response| response.status);
        assert!(
            status.is_none_or(|it| [400, 414, 431, 505].contains(&it)),
            "{status:?} {head:.40}"
        );
    }
    is_served(&server);
}

#[test]
fn a_thousand_connections_come_and_go() {
    let server = Running::with(|wanted| wanted.config.connection_limits.n_max = 100);
    // More than there may be at a time: they come in as others go.
    for round in 0..10 {
        let mut clients: Vec<Client> = (0..100).map(|_| server.client()).collect();
        if round % 2 == 0 {
            clients.iter_mut().for_each(|it| it.send(&request("GET", "/health", "", "")));
            clients.iter_mut().for_each(|it| assert!(it.head().is_some()));
        }
    }
    is_served(&server);
}

#[test]
fn broken_connections_do_not_affect_others() {
    let server = Running::new();
    for bytes in [&b""[..], b"GET", b"POST /v1/messages HTTP/1.1\r\ncontent-length: 9\r\n\r\n{"] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(Shutdown::Both).unwrap();
    }
    is_served(&server);
}

/// It is in every event: a stream of many megabytes does not fit into the buffers of the system.
fn long_name() -> String {
    "x".repeat(64 << 10)
}

#[test]
fn a_slow_reader_pauses_its_own_answer_only() {
    let server = Running::with(|wanted| wanted.name = long_name());
    let n_tokens = 300;
    let body = json!({"messages": question(), "stream": true, "max_tokens": n_tokens,
        "logit_bias": server.endless()});
    let mut slow = server.client();
    slow.send(&post(CHAT, &body));
    assert_eq!(slow.head().unwrap().status, 200);
    let is_paused = || {
        let before = server.stats().n_answer_tokens;
        pause(Duration::from_millis(300));
        before > 0 && server.stats().n_answer_tokens == before
    };
    while !is_paused() {}
    assert!(server.stats().n_answer_tokens < n_tokens);
    is_served(&server);
    assert_eq!(server.stats().n_cut, 1, "the other one waits");
    let mut text = String::new();
    while let Some(chunk) = slow.chunk() {
        text += std::str::from_utf8(&chunk).unwrap();
    }
    assert!(text.ends_with("data: [DONE]\n\n"));
    assert_eq!(server.stats().n_cut, 2);
}

#[test]
fn a_client_that_reads_nothing_for_too_long_is_cancelled() {
    let server = Running::with(|wanted| {
        wanted.name = long_name();
        wanted.config.timeouts.reader = Duration::from_millis(100);
    });
    let body = json!({"messages": question(), "stream": true, "logit_bias": server.endless()});
    let mut slow = server.client();
    slow.send(&post(CHAT, &body));
    server.wait(|stats| stats.n_cancelled == 1);
    assert_eq!(slow.head().unwrap().status, 200);
    while let Ok(chunk) = slow.chunk_or_break() {
        assert!(chunk.is_some(), "the end must not look like one");
    }
}

/// Unread responses fill the connection; later requests on it are not served.
#[test]
fn a_client_that_reads_nothing_loses_its_connection() {
    let server = Running::with(|wanted| {
        wanted.config.connection_limits.n_max = 1;
        wanted.config.timeouts.reader = Duration::from_millis(100);
    });
    let mut slow = server.client();
    slow.send(&request("GET", "/openapi.json", "", "").repeat(2_000));
    is_served(&server);
}

/// Returns the result of `work` while bytes are sent again and again.
fn while_sending<T>(bytes: &[u8], clients: &[Client], work: impl FnOnce() -> T) -> T {
    let (done, is_done) = channel::<()>();
    let send = move || {
        while is_done.recv_timeout(Duration::from_millis(50)) == Err(RecvTimeoutError::Timeout) {
            // The server may have closed the connection.
            clients.iter().for_each(|it| drop(it.stream().write_all(bytes)));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(send);
        let found = work();
        drop(done);
        found
    })
}

#[test]
fn a_body_that_arrives_too_slowly_is_refused() {
    let server = Running::with(|wanted| wanted.config.timeouts.body = Duration::from_secs(2));
    let mut slow = server.client();
    let writer = Client::of(slow.stream().try_clone().unwrap());
    let headers = "content-type: application/json\r\ncontent-length: 10000\r\n";
    slow.send(&request("POST", CHAT, headers, ""));
    let refused = while_sending(b" ", &[writer], || slow.response());
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("was incomplete after 4 s"), "{}", refused.text());
}

#[test]
fn bodies_share_a_limit() {
    let server = Running::with(|wanted| wanted.config.timeouts.body = Duration::from_secs(2));
    let body = json!({"max_tokens": 1, "messages": question()});
    // Each may grow to 32 MiB.
    let mut growing: Vec<Client> = (0..8).map(|_| server.client()).collect();
    let headers = "transfer-encoding: chunked\r\ncontent-type: application/json\r\n";
    growing.iter_mut().for_each(|it| it.send(&request("POST", CHAT, headers, "")));
    while_sending(b"1\r\n \r\n", &growing, || {
        let mut responses = (0..50).map(|_| server.post("/v1/messages", &body));
        let refused = responses.find(|it| it.status != 200).expect("room for nine");
        assert_eq!(refused.status, 503);
        assert_eq!(refused.json()["error"]["type"], "overloaded_error");
        assert!(refused.text().contains("268,435,456 bytes) for bodies"), "{}", refused.text());
        assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
        growing[0].stream().shutdown(Shutdown::Both).unwrap();
        server.post("/v1/messages", &body).success();
    });
}
