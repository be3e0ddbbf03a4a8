//! The state of the machine, for clients that watch it.

use std::sync::Arc;
use std::time::Duration;

use moeflux_server::http::{ApiKeys, ConnectionLimits, MeasuredRates};
use serde_json::{Value as Json, json};

use crate::client::{Client, request};
use crate::server::{Running, Wanted, post, question};

const PATH: &str = "/moeflux/machine";
const EXPERTS: &str = "/moeflux/experts";
const CHAT: &str = "/v1/chat/completions";

/// Places for clients that watch.
const N_PLACES: usize = 16;

/// Layers of the demo model, experts of each, and those that a row chooses.
const SHAPE: [usize; 3] = [8, 24, 4];

/// A server that streams its experts and reports often.
fn streamed(wanted: &mut Wanted) {
    wanted.n_slots = Some(40);
    wanted.config.timeouts.machine = Duration::from_millis(5);
}

/// A client that watches a server.
struct Watcher(Client);

impl Watcher {
    fn new(server: &Running) -> Self {
        let mut client = server.client();
        client.send(&request("GET", PATH, "", ""));
        let head = client.head().unwrap();
        assert_eq!(head.status, 200);
        assert_eq!(head.header("content-type"), Some("text/event-stream"));
        assert_eq!(head.header("cache-control"), Some("no-cache"));
        Self(client)
    }

    /// The next state; `None` at the end of the stream.
    fn next(&mut self) -> Option<Json> {
        loop {
            let chunk = String::from_utf8(self.0.chunk()?).unwrap();
            if !chunk.starts_with(": ") {
                let data = chunk.strip_prefix("event: machine\ndata: ").unwrap();
                return Some(serde_json::from_str(data.strip_suffix("\n\n").unwrap()).unwrap());
            }
        }
    }

    /// The first state that meets a condition.
    fn until(&mut self, is_so: impl Fn(&Json) -> bool) -> Json {
        loop {
            let state = self.next().expect("the stream goes on");
            if is_so(&state) {
                return state;
            }
        }
    }
}

#[test]
fn the_first_state_comes_at_once() {
    // The next one would be late.
    let slow = |wanted: &mut Wanted| wanted.config.timeouts.machine = Duration::from_secs(3_600);
    let server = Running::with(slow);
    let state = Watcher::new(&server).next().unwrap();
    assert_eq!((&state["model"], &state["state"]), (&json!("demo"), &json!("ready")));
    assert_eq!(state["requests"], json!({"running": 0, "waiting": 0, "parked": 0}));
    let tokens = json!({"prompt": 0, "cached": 0, "cached_drive": 0, "answer": 0, "forced": 0});
    assert_eq!(state["tokens"], tokens);
    assert_eq!((&state["prompts"]["diverged"], &state["saved"]), (&json!(0), &Json::Null));
    assert_eq!(state["steps"], 0);
    assert!(state["time_ms"].is_u64() && state["sessions"]["bytes"].is_u64(), "{state}");
    let memory = server.stats().memory.unwrap();
    assert_eq!(state["memory"]["resident_bytes"], memory.resident_bytes);
    assert_eq!(state["memory"]["step_bytes"], memory.workspace_bytes);
    assert_eq!(state["memory"]["process_bytes"].is_u64(), cfg!(target_os = "linux"), "{state}");
    // All experts are in memory, there is no GPU, and nothing was measured.
    assert_eq!((&state["experts"], &state["tiers"]), (&Json::Null, &Json::Null));
    assert_eq!(state["measured"], Json::Null);
    let server = Running::with(|wanted| {
        slow(wanted);
        wanted.is_held = true;
        let drive_bytes_per_s = Some(2.5e9);
        wanted.measured = Some(MeasuredRates { drive_bytes_per_s, memory_bytes_per_s: None });
    });
    let state = Watcher::new(&server).next().unwrap();
    assert_eq!((&state["state"], &state["memory"]), (&json!("loading"), &Json::Null));
    let expected = json!({"drive_bytes_per_s": 2.5e9, "memory_bytes_per_s": null});
    assert_eq!(state["measured"], expected);
}

#[test]
fn counters_move_while_an_answer_streams() {
    let server = Running::with(streamed);
    let mut watcher = Watcher::new(&server);
    let mut before = watcher.next().unwrap();
    let mut client = server.client();
    let n_tokens = 120;
    let body = json!({"messages": question(), "max_tokens": n_tokens, "stream": true,
        "logit_bias": server.endless()});
    client.send(&post(CHAT, &body));
    let mut seen = Vec::new();
    let n_answer = |state: &Json| state["tokens"]["answer"].as_u64().unwrap();
    let sum = |state: &Json| {
        let of = |key: &str| state["experts"][key].as_u64().unwrap();
        of("hits") + of("on_the_way") + of("misses")
    };
    while n_answer(&before) < n_tokens {
        let state = watcher.next().unwrap();
        assert!(state["time_ms"].as_u64() >= before["time_ms"].as_u64(), "{state} {before}");
        assert!(n_answer(&state) >= n_answer(&before) && sum(&state) >= sum(&before));
        seen.push(n_answer(&state));
        before = state;
    }
    let n_between = seen.iter().filter(|it| (1..n_tokens).contains(*it)).count();
    assert!(n_between >= 3, "{seen:?}");
    let mut state = before;
    while state["requests"]["running"] != 0 {
        state = watcher.next().unwrap();
    }
    let stream = server.stats().stream.unwrap();
    let experts = &state["experts"];
    assert_eq!(experts["demand_bytes"], stream.demand_bytes);
    assert_eq!(experts["are_layers"], false);
    assert_eq!((&experts["n_slots"], &experts["drive"]), (&json!(40), &json!(stream.drive)));
    assert!(stream.demand_bytes > 0 && sum(&state) > n_tokens);
    assert_eq!(state["sessions"]["kept"], 1);
    assert_eq!(client.response().events().last().unwrap().data, "[DONE]");
}

#[test]
fn foreign_clients_see_nothing() {
    let status = |server: &Running, headers: &str| {
        let mut client = server.client();
        client.send(&request("GET", PATH, headers, ""));
        client.head().unwrap().status
    };
    let server = Running::new();
    for headers in ["host: evil.example\r\n", "origin: https://evil.example\r\n"] {
        assert_eq!(status(&server, headers), 403, "{headers}");
    }
    assert_eq!(server.post(PATH, &json!({})).status, 405);
    let keys = ApiKeys::from_lines("sk").unwrap();
    let server = Running::with(|wanted| wanted.config.keys = keys);
    for headers in ["", "authorization: Bearer no\r\n", "accept: text/html\r\n"] {
        assert_eq!(status(&server, headers), 401, "{headers}");
    }
    assert_eq!(status(&server, "authorization: Bearer sk\r\n"), 200);
    assert_eq!(server.get(EXPERTS).status, 401);
}

#[test]
fn a_server_ends_while_somebody_watches() {
    let mut server = Running::new();
    let mut watchers = [Watcher::new(&server), Watcher::new(&server)];
    watchers.iter_mut().for_each(|it| assert!(it.next().is_some()));
    server.stop();
    // The end is that of a complete response, not a broken connection.
    watchers.iter_mut().for_each(|it| while it.next().is_some() {});
    server.join();
}

#[test]
fn few_clients_watch_at_a_time() {
    let server = Running::new();
    let mut watchers: Vec<Watcher> = (0..N_PLACES).map(|_| Watcher::new(&server)).collect();
    watchers.iter_mut().for_each(|it| assert!(it.next().is_some()));
    let refused = server.get(PATH);
    assert_eq!(refused.status, 429);
    let expected = "16 clients watch this machine already: close another page";
    assert_eq!(refused.json()["error"]["message"], expected);
    watchers.pop();
    let is_admitted = || {
        let mut client = server.client();
        client.send(&request("GET", PATH, "", ""));
        client.head().unwrap().status == 200
    };
    server.wait(|_| is_admitted());
    // They cost others nothing.
    assert_eq!(server.post(CHAT, &json!({"messages": question(), "max_tokens": 1})).status, 200);
}

#[test]
fn a_client_that_watches_leaves_its_connection_to_others() {
    let limits = ConnectionLimits { n_max: 1, n_peer_max: 1, n_local_peer_max: 1 };
    let server = Running::with(|wanted| wanted.config.connection_limits = limits);
    let mut watcher = Watcher::new(&server);
    assert!(watcher.next().is_some());
    assert_eq!(server.post(CHAT, &json!({"messages": question(), "max_tokens": 1})).status, 200);
    while let Ok(chunk) = watcher.0.chunk_or_break() {
        assert!(chunk.is_some(), "the stream broke off");
    }
}

#[test]
fn a_client_that_watches_keeps_no_model() {
    let server = Running::with(|wanted| {
        streamed(wanted);
        wanted.is_held = true;
        wanted.options.unload_after = Some(Duration::from_millis(50));
    });
    let mut watcher = Watcher::new(&server);
    server.open();
    let state = watcher.until(|state| state["state"] == "unloaded");
    assert_eq!((&state["memory"], &state["experts"]), (&Json::Null, &Json::Null));
    // Another client and another state do not load it again.
    assert_eq!(Watcher::new(&server).next().unwrap()["state"], "unloaded");
    assert_eq!(server.stats().n_loads, 1);
    server.serve_another("second");
    let state = watcher.until(|state| state["model"] == "second");
    assert_eq!(state["state"], "ready");
    // Only the test has the first one.
    server.wait(|_| Arc::strong_count(&server.service) == 1);
}

/// The layers of a map of experts.
fn layers(server: &Running) -> Vec<Json> {
    server.get(EXPERTS).success()["layers"].as_array().unwrap().clone()
}

fn sum(uses: &Json) -> u64 {
    uses.as_array().unwrap().iter().map(|it| it.as_u64().unwrap()).sum()
}

#[test]
fn uses_of_experts_are_those_of_the_rows_that_were_computed() {
    let [n_layers, n_experts, top_k] = SHAPE;
    for n_slots in [None, Some(40)] {
        let server = Running::with(|wanted| wanted.n_slots = n_slots);
        let mut n_rows = 0;
        for n_tokens in [0, 7, 20] {
            if n_tokens > 0 {
                let body = json!({"messages": question(), "max_tokens": n_tokens,
                    "logit_bias": server.endless()});
                let usage = server.post(CHAT, &body).success()["usage"].take();
                let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
                // The last token of an answer is not computed.
                n_rows += usage["prompt_tokens"].as_u64().unwrap() - cached + n_tokens - 1;
            }
            let found = layers(&server);
            assert_eq!(found.len(), n_layers);
            let mut n_in_memory = 0;
            for (layer_idx, layer) in found.iter().enumerate() {
                assert_eq!(layer["layer"], layer_idx);
                assert_eq!(layer["uses"].as_array().unwrap().len(), n_experts);
                let in_memory = layer["in_memory"].as_array().unwrap();
                assert_eq!(in_memory.len(), n_experts);
                n_in_memory += in_memory.iter().filter(|it| **it == json!(true)).count();
                assert_eq!(sum(&layer["uses"]), n_rows * top_k as u64, "{layer}");
            }
            assert!(n_in_memory <= n_slots.unwrap_or(n_layers * n_experts));
            assert!(n_rows == 0 || n_in_memory > 0);
        }
    }
}

#[test]
fn a_map_of_experts_comes_during_an_answer_and_never_loads_the_model() {
    let server = Running::with(|wanted| {
        streamed(wanted);
        wanted.options.context = 4_096;
        wanted.is_held = true;
        wanted.options.unload_after = Some(Duration::from_millis(300));
    });
    // Once more, because it may be idle for long enough before the answer begins.
    (0..2).for_each(|_| server.open());
    let body = json!({"messages": question(), "max_tokens": 1_000, "stream": true,
        "logit_bias": server.endless()});
    let mut client = server.client();
    client.send(&post(CHAT, &body));
    server.wait(|stats| stats.n_answer_tokens > 0);
    let first = sum(&layers(&server)[0]["uses"]);
    server.wait(|stats| stats.n_answer_tokens > 20);
    assert!(sum(&layers(&server)[0]["uses"]) > first);
    drop(client);
    let before = server.stats();
    // A page that asks again and again does not keep the model in memory.
    server.wait(|stats| {
        layers(&server);
        stats.n_unloads > before.n_unloads
    });
    assert!(layers(&server).is_empty());
    assert_eq!(server.stats().n_loads, before.n_loads);
    let held = Running::with(|wanted| wanted.is_held = true);
    assert!(layers(&held).is_empty());
}

#[test]
fn the_last_token_has_a_time_for_each_layer() {
    let [n_layers, _, top_k] = SHAPE;
    let server = Running::with(|wanted| wanted.n_slots = Some(40));
    let last = || server.get(EXPERTS).success()["last_token"].take();
    assert_eq!(last(), Json::Null);
    let body = json!({"messages": question(), "max_tokens": 9, "logit_bias": server.endless()});
    server.post(CHAT, &body).success();
    let (token, stream) = (last(), server.stats().stream.unwrap());
    let layers = token["layers"].as_array().unwrap();
    let expected: Vec<Json> = (0..n_layers).map(Json::from).collect();
    assert_eq!(layers.iter().map(|it| it["layer"].clone()).collect::<Vec<_>>(), expected);
    let mut seconds = 0.0;
    for layer in layers {
        let of = |key: &str| layer[key].as_f64().unwrap();
        assert!(0.0 < of("seconds") && of("wait_s") <= of("seconds"), "{layer}");
        assert_eq!(
            layer["found"].as_u64().unwrap() + layer["read"].as_u64().unwrap(),
            top_k as u64
        );
        seconds += of("seconds");
    }
    assert!((token["seconds"].as_f64().unwrap() - seconds).abs() < 1e-9);
    let waits: f64 = layers.iter().map(|it| it["wait_s"].as_f64().unwrap()).sum();
    assert!(waits <= stream.read_wait.as_secs_f64());
    // Where nothing is streamed, there is none.
    let server = Running::new();
    server.post(CHAT, &body).success();
    assert_eq!(server.get(EXPERTS).success()["last_token"], Json::Null);
}
