//! Requests that bind their answers: calls, schemas, grammars, limits on thoughts.

use serde_json::{Value as Json, json};

use crate::server::{Running, question};

const CHAT: &str = "/v1/chat/completions";

fn chat(more: &Json) -> Json {
    let mut body = json!({"messages": question(), "max_tokens": 120, "temperature": 1, "seed": 3});
    for (key, value) in more.as_object().unwrap() {
        body[key.as_str()] = value.clone();
    }
    body
}

fn tool(name: &str, parameter: &str) -> Json {
    let parameters = json!({"type": "object", "properties": {parameter: {"type": "integer"}},
        "required": [parameter], "additionalProperties": false});
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

fn tools() -> Json {
    json!([tool("first", "a"), tool("second", "b")])
}

/// Names and arguments of the calls of an answer.
fn calls(answer: &Json) -> Vec<(String, Json)> {
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let call = |call: &Json| {
        let function = &call["function"];
        let arguments = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        (function["name"].as_str().unwrap().to_owned(), arguments)
    };
    choice["message"]["tool_calls"].as_array().unwrap().iter().map(call).collect()
}

#[test]
fn calls_are_forced_and_valid() {
    let server = Running::new();
    for seed in 0..4 {
        let asked = json!({"tools": tools(), "tool_choice": "required", "seed": seed,
            "parallel_tool_calls": false});
        let found = calls(&server.post(CHAT, &chat(&asked)).success());
        let [(name, arguments)] = &found[..] else { panic!("one call: {found:?}") };
        let parameter = if name == "first" { "a" } else { "b" };
        assert!(arguments[parameter].is_i64(), "{found:?}");
        assert_eq!(arguments.as_object().unwrap().len(), 1);
    }
    let named = json!({"type": "function", "function": {"name": "second"}});
    let asked = json!({"tools": tools(), "tool_choice": named, "parallel_tool_calls": false});
    assert_eq!(calls(&server.post(CHAT, &chat(&asked)).success())[0].0, "second");
    let stats = server.stats();
    assert!(stats.n_forced_tokens > 0, "{stats:?}");
}

#[test]
fn a_call_that_is_made_again_ends_the_answer() {
    let server = Running::new();
    let parameters = json!({"type": "object", "properties": {"a": {"enum": [1, 2]}},
        "required": ["a"], "additionalProperties": false});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    for seed in 0..6 {
        let asked = json!({"tools": [tool], "tool_choice": "required", "seed": seed,
            "max_tokens": 250, "reasoning_effort": "none", "logit_bias": server.endless()});
        let found = calls(&server.post(CHAT, &chat(&asked)).success());
        let mut values: Vec<i64> =
            found.iter().map(|(_, arguments)| arguments["a"].as_i64().unwrap()).collect();
        values.sort_unstable();
        assert!([&[1][..], &[2], &[1, 2]].contains(&&values[..]), "seed {seed}: {found:?}");
    }
}

#[test]
fn streamed_calls_are_the_same_in_every_dialect() {
    let server = Running::new();
    let asked = json!({"tools": [tool("first", "a")], "tool_choice": "required",
        "parallel_tool_calls": false, "temperature": 0});
    let (name, arguments) = calls(&server.post(CHAT, &chat(&asked)).success()).remove(0);
    let mut streamed = asked;
    streamed["stream"] = true.into();
    let mut joined = String::new();
    for event in server.post(CHAT, &chat(&streamed)).events() {
        if event.data != "[DONE]" {
            let call = &event.json()["choices"][0]["delta"]["tool_calls"][0]["function"];
            joined += call["arguments"].as_str().unwrap_or_default();
        }
    }
    assert_eq!(serde_json::from_str::<Json>(&joined).unwrap(), arguments);
    let schema = tool("first", "a")["function"]["parameters"].clone();
    let found = server.post(
        "/v1/messages",
        &json!({
        "messages": question(), "max_tokens": 120, "temperature": 0,
        "tools": [{"name": "first", "input_schema": schema}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true}}),
    );
    let found = found.success();
    assert_eq!(found["stop_reason"], "tool_use");
    let block = found["content"].as_array().unwrap().last().unwrap();
    assert_eq!((&block["name"], &block["input"]), (&json!(name), &arguments));
    let found = server.post(
        "/v1/responses",
        &json!({
        "input": "What does Vec::push do?", "max_output_tokens": 120, "temperature": 0,
        "tools": [{"type": "function", "name": "first", "parameters": schema}],
        "tool_choice": "required", "parallel_tool_calls": false}),
    );
    let found = found.success();
    let item = found["output"].as_array().unwrap().last().unwrap();
    assert_eq!((&item["type"], &item["name"]), (&json!("function_call"), &json!(name)));
}

#[test]
fn answers_keep_to_schemas_and_grammars() {
    let server = Running::new();
    let text = |more: &Json| {
        let found = server.post(CHAT, &chat(more)).success();
        assert_eq!(found["choices"][0]["finish_reason"], "stop", "{found}");
        found["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "maximum": 9,
        "minimum": 1}, "of": {"enum": ["x", "y"]}}, "required": ["n", "of"],
        "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
    let found: Json = serde_json::from_str(&text(&json!({"response_format": format}))).unwrap();
    assert!((1..=9).contains(&found["n"].as_i64().unwrap()), "{found}");
    assert!(found["of"] == "x" || found["of"] == "y", "{found}");
    let found = text(&json!({"grammar": {"type": "regex", "grammar": "(yes|no)[!?]"}}));
    assert!(["yes!", "yes?", "no!", "no?"].contains(&found.as_str()), "{found}");
    let prompt = json!({"prompt": "Is it so? ", "max_tokens": 20, "guided_choice": ["so", "not"]});
    let found = server.post("/v1/completions", &prompt).success();
    let found = found["choices"][0]["text"].as_str().unwrap();
    assert!(["so", "not"].contains(&found), "{found}");
    let prompts = json!({"prompt": ["Is it so? ", "And is it"], "n": 2, "max_tokens": 20,
        "guided_choice": ["so", "not"]});
    let found = server.post("/v1/completions", &prompts).success();
    let choices = found["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    for choice in choices {
        assert!(["so", "not"].contains(&choice["text"].as_str().unwrap()), "{found}");
    }
}

#[test]
fn rules_that_cannot_be_enforced_are_refused_by_their_field() {
    let server = Running::new();
    let format = |schema: Json| {
        json!({"response_format": {"type": "json_schema",
            "json_schema": {"name": "s", "schema": schema}}})
    };
    let deep = (0..90).fold(json!({"type": "null"}), |inner, _| json!({"items": inner}));
    for (more, field, part) in [
        (format(json!({"unevaluatedProperties": false})), "response_format", "`unevaluated"),
        (format(deep), "response_format", "schema"),
        (json!({"grammar": "start: nothing"}), "grammar", "nothing"),
        (json!({"grammar": {"type": "regex", "grammar": "("}}), "grammar", "regular expression"),
        (json!({"tool_choice": "required"}), "tool_choice", "tool"),
    ] {
        let response = server.post(CHAT, &chat(&more));
        assert_eq!(response.status, 400, "{more}");
        let error = &response.json()["error"];
        let found = error["param"].as_str();
        assert!(found.is_some_and(|it| it.starts_with(field)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
    }
    // The server goes on.
    server.post(CHAT, &chat(&json!({"max_tokens": 3}))).success();
}

#[test]
fn thoughts_are_as_long_as_they_may_be() {
    let server = Running::new();
    let asked = json!({"temperature": 0, "max_thinking_tokens": 0});
    let found = server.post(CHAT, &chat(&asked)).success();
    let message = &found["choices"][0]["message"];
    assert!(message["reasoning_content"].is_null(), "{found}");
    assert!(message["content"].as_str().unwrap().len() > 20, "{found}");
}
