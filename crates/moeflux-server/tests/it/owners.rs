//! Clients with different keys: the prompts and answers of one do not reach the others.

use moeflux_server::http::{ApiKeys, CacheScope};
use serde_json::{Value as Json, json};

use crate::client::request;
use crate::server::Running;

const CHAT: &str = "/v1/chat/completions";

fn server(cache: CacheScope) -> Running {
    Running::with(|wanted| {
        wanted.config.keys = ApiKeys::from_lines("sk-a\nsk-b").unwrap();
        wanted.config.cache = cache;
    })
}

fn ask_as(server: &Running, key: &str, path: &str, body: &Json) -> Json {
    let head = format!("authorization: Bearer {key}\r\n");
    server.ask(&request("POST", path, &head, &body.to_string())).success()
}

fn completion() -> Json {
    json!({"prompt": "A slice is a view into a block of memory, and", "max_tokens": 4,
        "temperature": 0})
}

fn n_cached(answer: &Json) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[test]
fn a_client_learns_nothing_of_the_prompts_of_others() {
    let server = server(CacheScope::PerKey);
    let ask = |key: &str| n_cached(&ask_as(&server, key, "/v1/completions", &completion()));
    assert_eq!(ask("sk-a"), 0);
    assert_eq!(ask("sk-b"), 0, "of another key");
    assert!(ask("sk-a") > 0 && ask("sk-b") > 0, "its own");
}

#[test]
fn clients_may_share_cached_prompts() {
    let server = server(CacheScope::Shared);
    let ask = |key: &str| n_cached(&ask_as(&server, key, "/v1/completions", &completion()));
    assert_eq!(ask("sk-a"), 0);
    assert!(ask("sk-b") > 0);
}

#[test]
fn sampled_tokens_are_replayed_only_for_their_own_client() {
    let server = server(CacheScope::PerKey);
    let parameters = json!({"type": "object", "required": ["a", "b"], "additionalProperties": false,
        "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}});
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
    let mut messages = json!([{"role": "user", "content": "What does Vec::push do?"}]);
    let body = |messages: &Json, choice: &str| {
        json!({"messages": messages, "tools": tools, "max_tokens": 200, "temperature": 0,
            "reasoning_effort": "none", "tool_choice": choice})
    };
    let first = ask_as(&server, "sk-a", CHAT, &body(&messages, "required"));
    let call = &first["choices"][0]["message"]["tool_calls"][0];
    let arguments: Json =
        serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    let arguments = format!("{{ \"b\":{},\"a\":{}}}", arguments["b"], arguments["a"]);
    let call = json!({"id": call["id"], "type": "function",
        "function": {"name": "f", "arguments": arguments}});
    messages.as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": call["id"], "content": "A list that grows."}),
    ]);
    let prompt = |key: &str| ask_as(&server, key, "/tokenize", &body(&messages, "auto"));
    let plain = {
        let server = self::server(CacheScope::PerKey);
        ask_as(&server, "sk-a", "/tokenize", &body(&messages, "auto"))
    };
    assert_eq!(prompt("sk-b"), plain, "the prompt of another client");
    let second = |key: &str| {
        let answer = ask_as(&server, key, CHAT, &body(&messages, "auto"));
        answer["usage"]["prompt_tokens_details"]["replayed_turns"].as_u64().unwrap()
    };
    assert_eq!([second("sk-b"), second("sk-a")], [0, 1]);
}
