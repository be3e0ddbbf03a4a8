//! Requests that need no engine: models, tokens, and properties of the server.

use moeflux_schedule::State;
use serde_json::{Value as Json, json};

use crate::client::request;
use crate::server::{CONTEXT, NAME, Running, question};

#[test]
fn models_are_listed_by_all_names() {
    let server = Running::new();
    let found = server.get("/v1/models").success();
    assert_eq!(found["data"][0]["id"], NAME);
    assert_eq!(found["data"][0]["max_model_len"], CONTEXT);
    assert_eq!(found["data"][1]["id"], "other/name");
    for (path, name) in [
        ("demo", NAME),
        ("other/name", "other/name"),
        ("other%2Fname", "other/name"),
        ("gpt-9", NAME),
    ] {
        let found = server.get(&format!("/v1/models/{path}")).success();
        assert_eq!(found["id"], name, "{path}");
    }
}

#[test]
fn texts_become_tokens_and_come_back() {
    let server = Running::new();
    let text = "What is a vector? \u{e9}\u{1f980}";
    let tokens = server.post("/tokenize", &json!({"content": text})).success();
    assert_eq!(tokens["max_model_len"], CONTEXT);
    let back = server.post("/detokenize", &json!({"tokens": tokens["tokens"]})).success();
    assert_eq!(back["prompt"], text);
    let rendered = server.post("/apply-template", &json!({"messages": question()})).success();
    assert!(rendered["prompt"].as_str().unwrap().contains("<|im_start|>user\nWhat is a vector?"));
    let of_chat = server.post("/tokenize", &json!({"messages": question()})).success();
    let of_text = server.post("/tokenize", &json!({"prompt": rendered["prompt"]})).success();
    assert_eq!(of_chat, of_text);
}

/// The tokens of an input are those that an answer to it counts.
#[test]
fn tokens_of_an_input_are_counted() {
    let server = Running::new();
    let path = "/v1/responses";
    for body in [
        json!({"input": "What is a vector?"}),
        json!({"input": "What is a vector?", "instructions": "Be short.", "model": "any"}),
        json!({"input": question(), "tools": [{"type": "function", "name": "f",
            "parameters": {"type": "object"}}]}),
        json!({"input": [{"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "A"}]}], "max_output_tokens": 20, "store": false}),
    ] {
        let counted = server.post("/v1/responses/input_tokens", &body).success();
        assert_eq!(counted["object"], "response.input_tokens");
        let mut body = body;
        body["max_output_tokens"] = json!(1);
        let answered = server.post(path, &body).success();
        assert_eq!(counted["input_tokens"], answered["usage"]["input_tokens"], "{body}");
    }
    for (body, field) in [
        (json!({}), "input"),
        (json!({"input": "A", "previous_response_id": "resp_1"}), "previous_response_id"),
    ] {
        let refused = server.post("/v1/responses/input_tokens", &body);
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(field)));
    }
    assert_eq!(server.get("/v1/responses/input_tokens").status, 405);
}

#[test]
fn fields_that_change_a_prompt_are_honoured_or_refused() {
    let server = Running::new();
    let prompt = |more: &Json| {
        let mut body = json!({"messages": question()});
        for (key, value) in more.as_object().unwrap() {
            body[key.as_str()] = value.clone();
        }
        let found = server.post("/apply-template", &body).success();
        let count = server.post("/tokenize", &body).success()["count"].as_u64().unwrap();
        (found["prompt"].as_str().unwrap().to_owned(), count)
    };
    let (open, n_open) = prompt(&json!({}));
    assert_eq!(prompt(&json!({"add_generation_prompt": true})), (open.clone(), n_open));
    let (closed, n_closed) = prompt(&json!({"add_generation_prompt": false}));
    assert!(open.starts_with(&closed) && closed.trim_end().ends_with("<|im_end|>"), "{closed}");
    assert!(n_closed < n_open);
    let said = json!([{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}]);
    let (goes_on, _) = prompt(&json!({"messages": said}));
    assert!(goes_on.ends_with('B'), "{goes_on}");
    let (closed, _) = prompt(&json!({"messages": said, "add_generation_prompt": false}));
    assert!(closed.trim_end().ends_with("B<|im_end|>"), "{closed}");
    for (body, field) in [
        (json!({"prompt": "a", "with_pieces": true}), "with_pieces"),
        (json!({"prompt": "a", "return_token_strs": true}), "return_token_strs"),
        (json!({"prompt": "a", "parse_special": false}), "parse_special"),
        (json!({"messages": question(), "with_pieces": true}), "with_pieces"),
    ] {
        let refused = server.post("/tokenize", &body);
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(field)));
    }
}

#[test]
fn the_server_describes_itself() {
    let server = Running::new();
    let health = server.get("/health");
    assert_eq!((health.status, health.text()), (200, r#"{"status":"ok"}"#));
    assert!(server.get("/").text().contains("serves demo"));
    assert_eq!(server.get("/props").success()["default_generation_settings"]["n_ctx"], CONTEXT);
    assert_eq!(server.get("/openapi.json").success()["openapi"], "3.1.0");
    for path in [
        "/",
        "/health",
        "/metrics",
        "/props",
        "/openapi.json",
        "/v1/models",
        "/moeflux/machine",
        "/moeflux/experts",
    ] {
        let mut client = server.client();
        client.send(&request("HEAD", path, "", ""));
        let head = client.head().unwrap();
        assert_eq!(head.status, 200, "{path}");
        // A body would be taken for the next response.
        client.send(&request("GET", "/health", "", ""));
        assert_eq!(client.response().text(), health.text(), "{path}");
    }
}

/// With llama.cpp's names.
#[test]
fn what_holds_for_a_request_that_says_nothing_is_told() {
    let server = Running::new();
    let props = server.get("/props").success();
    // The demo model recommends greedy sampling.
    let expected = json!({
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 0.95,
        "min_p": 0.0,
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    });
    assert_eq!(props["default_generation_settings"]["params"], expected);
    let caps = json!({"supports_tools": true, "supports_thinking": true});
    assert_eq!(props["chat_template_caps"], caps);
}

#[test]
fn a_model_that_is_loaded_is_not_healthy_yet() {
    let server = Running::with(|wanted| wanted.is_held = true);
    let health = server.get("/health");
    assert_eq!((health.status, health.text()), (503, r#"{"status":"loading"}"#));
    server.fail();
    server.wait(|_| server.service.state() == State::Broken);
    let health = server.get("/health");
    assert_eq!((health.status, health.text()), (503, r#"{"status":"broken"}"#));
}

#[test]
fn requests_are_counted_by_the_names_of_dashboards() {
    let server = Running::new();
    let body = json!({"prompt": "A vector", "max_tokens": 5, "logit_bias": server.endless()});
    let found = server.post("/v1/completions", &body).success();
    let page = server.get("/metrics");
    assert_eq!(page.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let value = |name: &str, labels: &str| -> String {
        let start = format!("{name}{{model_name=\"demo\"{labels}}} ");
        let line = page.text().lines().find_map(|line| line.strip_prefix(&start));
        assert!(line.is_some(), "no {start} in {}", page.text());
        line.unwrap().to_owned()
    };
    assert_eq!(value("vllm:generation_tokens_total", ""), "5");
    let n_prompt = found["usage"]["prompt_tokens"].to_string();
    assert_eq!(value("vllm:prompt_tokens_total", ""), n_prompt);
    assert_eq!(value("vllm:request_success_total", ",finished_reason=\"length\""), "1");
    for name in [
        "time_to_first_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
    ] {
        assert_eq!(value(&format!("vllm:{name}_count"), ""), "1", "{name}");
        assert_eq!(value(&format!("vllm:{name}_bucket"), ",le=\"+Inf\""), "1", "{name}");
    }
    assert_eq!(value("vllm:inter_token_latency_seconds_count", ""), "4");
    assert!(value("moeflux:connections_total", "").parse::<u64>().unwrap() >= 2);
    assert_eq!(value("moeflux:model_loads_total", ""), "1");
    assert_eq!(value("moeflux:model_unloads_total", ""), "0");
    let bytes = |name: &str, labels: &str| value(name, labels).parse::<u64>().unwrap();
    let of_model = ["resident", "experts", "step"]
        .map(|it| bytes("moeflux:model_memory_bytes", &format!(",use=\"{it}\"")));
    assert!(of_model.iter().all(|n_bytes| *n_bytes > 0), "{of_model:?}");
    assert!(of_model.iter().sum::<u64>() < bytes("moeflux:memory_budget_bytes", ""));
}
