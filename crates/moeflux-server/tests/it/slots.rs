//! Slots for connections: idle connections are closed for new ones, those with a request are not.

use std::io::Write;
use std::time::Duration;

use moeflux_server::http::{ApiKeys, ConnectionLimits};
use serde_json::json;

use crate::client::{Client, request};
use crate::server::{Running, Wanted, question};

const CHAT: &str = "/v1/chat/completions";
const KEY: &str = "authorization: Bearer sk\r\n";
/// Slots of a server in these tests.
const N_SLOTS: usize = 8;

/// Few slots, and nothing that ends by itself while a test runs.
fn few(wanted: &mut Wanted) {
    let n_max = N_SLOTS;
    wanted.config.connection_limits =
        ConnectionLimits { n_max, n_peer_max: n_max, n_local_peer_max: n_max };
    let timeouts = &mut wanted.config.timeouts;
    for timeout in [&mut timeouts.head, &mut timeouts.head_when_nearly_full, &mut timeouts.body] {
        *timeout = Duration::from_secs(3_600);
    }
}

fn with_key(wanted: &mut Wanted) {
    few(wanted);
    wanted.config.keys = ApiKeys::from_lines("sk").unwrap();
}

/// A request that does not end by itself, and its connection.
fn endless(server: &Running, headers: &str) -> Client {
    let body = json!({"messages": question(), "stream": true, "logit_bias": server.endless()});
    let mut client = server.client();
    client.send(&request("POST", CHAT, headers, &body.to_string()));
    assert_eq!(client.head().unwrap().status, 200);
    client
}

fn is_open(client: &mut Client, headers: &str) -> bool {
    let asked = request("GET", "/v1/models", headers, "");
    Write::write_all(&mut client.stream(), &asked).is_ok()
        && client.try_response().is_some_and(|response| response.status == 200)
}

/// Bytes sent by connections that are held open without a purpose.
const ATTACKS: [(&str, &[u8]); 16] = [
    ("nothing", b""),
    ("a byte", b"G"),
    ("blank lines", b"\r\n\r\n"),
    ("half a line", b"GET /v1/mod"),
    ("half a header", b"GET /v1/models HTTP/1.1\r\nhost: loc"),
    ("a head without its end", b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n"),
    ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    ("an open path", b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    ("a file of the page", b"GET /page/app.js HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    (
        "an open path with half a body",
        b"GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{",
    ),
    ("a wrong host", b"GET /v1/models HTTP/1.1\r\nhost: evil.example\r\n\r\n"),
    ("an unknown path", b"GET /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    (
        "half a body",
        b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{\"mess",
    ),
    (
        "half a chunk",
        b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n\
          9\r\n{",
    ),
    (
        "a body that waits for leave",
        b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\
          expect: 100-continue\r\n\r\n",
    ),
    (
        "a request after another",
        b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\nGET /v1/models HTTP/1.1\r\nhost",
    ),
];

/// Others are answered while connections are opened again and again, with keys or without.
#[test]
fn connections_that_are_held_open_keep_no_client_out() {
    for has_keys in [false, true] {
        let server = Running::with(if has_keys { with_key } else { few });
        let headers = if has_keys { KEY } else { "" };
        let is_served = |what: &str| {
            let body = json!({"max_tokens": 1, "messages": question()}).to_string();
            let response = server.ask(&request("POST", CHAT, headers, &body));
            assert_eq!(response.status, 200, "{what}: {}", response.text());
        };
        for (what, bytes) in ATTACKS {
            let mut held = Vec::new();
            for _ in 0..3 {
                for _ in 0..2 * N_SLOTS {
                    let client = server.client();
                    // It may have ended for another already.
                    Write::write_all(&mut client.stream(), bytes).ok();
                    held.push(client);
                }
                is_served(what);
            }
        }
        // All of them at the same time.
        let mut held: Vec<Client> = ATTACKS.iter().map(|_| server.client()).collect();
        for (client, (what, bytes)) in held.iter_mut().zip(ATTACKS) {
            Write::write_all(&mut client.stream(), bytes).ok();
            is_served(what);
        }
        let mut client = server.client();
        assert!(n_displaced(&mut client, headers) > ATTACKS.len() * N_SLOTS);
    }
}

/// Connections that were closed for others.
fn n_displaced(client: &mut Client, headers: &str) -> usize {
    client.send(&request("GET", "/metrics", headers, ""));
    let page = client.response();
    let name = "moeflux:connections_displaced_total{model_name=\"demo\"} ";
    let value = page.text().lines().find_map(|line| line.strip_prefix(name));
    value.unwrap().parse().unwrap()
}

/// A client that trickles is no younger for it.
#[test]
fn a_byte_now_and_then_saves_no_connection() {
    let server = Running::with(few);
    let mut trickling: Vec<Client> = (0..N_SLOTS).map(|_| server.client()).collect();
    for byte in b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx: " {
        for client in &mut trickling {
            client.send(&[*byte]);
        }
    }
    for n_gone in 1..=N_SLOTS {
        let mut client = server.client();
        assert!(is_open(&mut client, ""), "{n_gone}");
    }
}

#[test]
fn requests_keep_their_connections() {
    let server = Running::with(|wanted| {
        few(wanted);
        wanted.options.context = 4_096;
    });
    let mut answered: Vec<Client> = (1..N_SLOTS).map(|_| endless(&server, "")).collect();
    for _ in 0..2 * N_SLOTS {
        assert!(is_open(&mut server.client(), ""), "there is one place left");
    }
    answered.push(endless(&server, ""));
    let mut waiting = server.client();
    waiting.send(&request("GET", "/v1/models", "", ""));
    for client in &mut answered {
        assert!(client.chunk().is_some(), "it goes on");
    }
    answered.pop();
    assert_eq!(waiting.response().status, 200, "the place of one that left");
    drop(answered);
    server.wait(|_| server.service.is_idle());
}

#[test]
fn a_connection_that_was_used_outlives_those_that_were_not() {
    let server = Running::with(with_key);
    let mut used = server.client();
    assert!(is_open(&mut used, KEY));
    let mut reading = server.client();
    let body = json!({"max_tokens": 1, "messages": question()}).to_string();
    let asked = request("POST", CHAT, KEY, &body);
    let (first, rest) = asked.split_at(asked.len() - 9);
    reading.send(first);
    let mut held = Vec::new();
    for _ in 0..3 * N_SLOTS {
        let mut client = server.client();
        client.send(&request("GET", "/health", "", ""));
        assert_eq!(client.response().status, 200);
        held.push(client);
    }
    assert!(is_open(&mut used, KEY));
    reading.send(rest);
    assert_eq!(reading.response().status, 200);
}

/// Connections that were opened while slots were scarce have less time for a head.
#[test]
fn a_slow_head_ends_early_where_slots_are_scarce() {
    let server = Running::with(|wanted| {
        few(wanted);
        wanted.config.timeouts.head_when_nearly_full = Duration::from_millis(100);
    });
    let mut clients: Vec<Client> = (0..N_SLOTS).map(|_| server.client()).collect();
    clients.iter_mut().for_each(|client| client.send(b"GET /v1/models HTTP/1.1\r\nhost: "));
    assert!(clients.pop().unwrap().try_response().is_none_or(|it| it.status == 408));
    for client in &mut clients[..N_SLOTS / 2] {
        client.send(b"localhost\r\n\r\n");
        assert_eq!(client.response().status, 200, "the others have their time");
    }
}

/// Addresses of this machine stand for those of other machines, which a test does not have.
#[cfg(target_os = "linux")]
mod shares {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;
    use crate::server::{pause, post};

    fn shared(wanted: &mut Wanted) {
        few(wanted);
        wanted.options.context = 4_096;
        wanted.config.connection_limits.n_local_peer_max = 2;
    }

    /// A client with this address.
    fn client_at(server: &Running, last: u8) -> Client {
        let connect = async {
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0)))?;
            socket.connect(server.address).await?.into_std()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let stream = runtime.block_on(connect).unwrap();
        stream.set_nonblocking(false).unwrap();
        Client::of(stream)
    }

    #[test]
    fn an_address_displaces_its_own_connections() {
        let server = Running::with(shared);
        let mut other = client_at(&server, 3);
        assert!(is_open(&mut other, ""));
        let mut own: Vec<Client> = (0..5).map(|_| client_at(&server, 2)).collect();
        while n_displaced(&mut other, "") < 3 {
            pause(Duration::from_millis(5));
        }
        let open: Vec<bool> = own.iter_mut().map(|it| is_open(it, "")).collect();
        assert_eq!(open, [false, false, false, true, true]);
        assert!(is_open(&mut other, ""));
    }

    #[test]
    fn an_address_whose_share_is_answered_gets_no_more() {
        let server = Running::with(shared);
        let body = json!({"messages": question(), "stream": true, "logit_bias": server.endless()});
        let mut answered: Vec<Client> = (0..2).map(|_| client_at(&server, 2)).collect();
        for client in &mut answered {
            client.send(&post(CHAT, &body));
            assert_eq!(client.head().unwrap().status, 200);
        }
        assert!(client_at(&server, 2).is_closed());
        assert!(is_open(&mut client_at(&server, 3), ""));
        assert!(answered.iter_mut().all(|client| client.chunk().is_some()));
        answered.pop();
        server.wait(|stats| stats.n_cancelled == 1);
        assert!(is_open(&mut client_at(&server, 2), ""));
    }
}
