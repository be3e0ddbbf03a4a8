//! Constraints on an answer in the requests of each dialect, and the returned calls.

use moeflux_chat::{AnswerForm, AnswerRules, Call, ToolChoice, Turn};
use moeflux_wire::{Prompt, Request};
use serde_json::{Value as Json, json};

use crate::dialects::parse;

/// The request of a body with these fields besides; nothing in it is ignored.
#[track_caller]
fn request(api: &str, more: &Json) -> Request {
    let question = json!([{"role": "user", "content": "?"}]);
    let mut body = match api {
        "responses" => json!({"input": question}),
        "completions" => json!({"prompt": "?"}),
        _ => json!({"messages": question, "max_tokens": 9}),
    };
    for (key, value) in more.as_object().unwrap() {
        body[key.as_str()] = value.clone();
    }
    let request = parse(api, body.to_string().as_bytes()).unwrap().unwrap();
    assert_eq!(request.ignored.names().collect::<Vec<_>>(), Vec::<&str>::new());
    request
}

#[track_caller]
fn check(api: &str, more: &Json, expected: &AnswerRules) {
    assert_eq!(request(api, more).rules, *expected, "{api}: {more}");
}

fn limit(n_tokens: usize) -> AnswerRules {
    AnswerRules { n_thought_tokens_max: Some(n_tokens), ..AnswerRules::default() }
}

#[test]
fn limits_of_thoughts() {
    let free = AnswerRules::default();
    for api in ["chat_completions", "responses"] {
        check(api, &json!({"reasoning_effort": "low"}), &limit(2_048));
        check(api, &json!({"reasoning_effort": "none"}), &limit(0));
        check(api, &json!({"reasoning_effort": "high"}), &free);
        check(api, &json!({"max_thinking_tokens": 0}), &limit(0));
        check(api, &json!({"reasoning_effort": "low", "thinking_budget": 9_000}), &limit(9_000));
        let thinks = json!({"reasoning_effort": "none",
            "chat_template_kwargs": {"enable_thinking": true}});
        check(api, &thinks, &free);
    }
    check("responses", &json!({"reasoning": {"effort": "medium"}}), &limit(8_192));
    let both = json!({"reasoning": {"effort": "medium"}, "max_thinking_tokens": 5});
    check("responses", &both, &limit(5));
    let budget = json!({"thinking": {"type": "enabled", "budget_tokens": 1_024},
        "output_config": {"effort": "low"}});
    check("messages", &budget, &limit(1_024));
    let effort = json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}});
    check("messages", &effort, &limit(2_048));
    check("messages", &json!({"max_thinking_tokens": 7}), &limit(7));
    check("messages", &json!({"thinking": {"type": "disabled"}}), &free);
}

#[test]
fn choices_of_tools() {
    let rules = |tool_choice, is_one_call| AnswerRules {
        tool_choice,
        is_one_call,
        ..AnswerRules::default()
    };
    let named = || ToolChoice::Named("f".into());
    let chat = |choice: Json| {
        let tools = json!([{"type": "function", "function": {"name": "f", "strict": true}}]);
        json!({"tools": tools, "tool_choice": choice, "parallel_tool_calls": false})
    };
    check("chat_completions", &chat(json!("required")), &rules(ToolChoice::Required, true));
    let function = json!({"type": "function", "function": {"name": "f"}});
    check("chat_completions", &chat(function), &rules(named(), true));
    let in_item = json!({"tool_choice": {"type": "function", "name": "f"}, "input": [
        {"type": "additional_tools", "tools": [{"type": "function", "name": "f"}]},
        {"role": "user", "content": "?"}]});
    check("responses", &in_item, &rules(named(), false));
    let any = json!({"tools": [{"name": "f"}], "tool_choice": {"type": "any",
        "disable_parallel_tool_use": true}});
    for api in ["messages", "messages_count_tokens"] {
        check(api, &any, &rules(ToolChoice::Required, true));
    }
    let none = request("chat_completions", &chat(json!("none")));
    assert_eq!(none.rules, rules(ToolChoice::None, true));
    let Prompt::Chat(conversation, _) = none.prompt else { panic!("a conversation") };
    assert!(conversation.tools.is_empty());
}

#[test]
fn forms_of_answers() {
    let schema = json!({"type": "object", "properties": {"b": {}, "a": {}}});
    let rules = |form| AnswerRules { form, ..AnswerRules::default() };
    let is_schema = || rules(AnswerForm::JsonSchema(schema.clone()));
    let nested = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let beside = json!({"type": "json_schema", "name": "n", "schema": schema, "strict": true});
    for api in ["chat_completions", "completions"] {
        check(api, &json!({"response_format": nested}), &is_schema());
    }
    check("responses", &json!({"text": {"format": beside}}), &is_schema());
    check("messages", &json!({"output_config": {"format": beside}}), &is_schema());
    check("messages", &json!({"output_format": beside}), &is_schema());
    let thinks = json!({"output_format": beside, "thinking": {"type": "adaptive"}});
    check("messages", &thinks, &is_schema());
    for api in ["chat_completions", "completions", "responses", "messages"] {
        let lark = rules(AnswerForm::Lark("start: \"a\"".into()));
        check(api, &json!({"grammar": "start: \"a\""}), &lark);
        check(api, &json!({"structured_outputs": {"json": schema}}), &is_schema());
    }
    let found = request("responses", &json!({"text": {"format": beside}}));
    assert_eq!(found.form_field.as_deref(), Some("text.format.schema"));
    assert_eq!(request("responses", &json!({})).form_field, None);
}

/// The calls and the texts of results in a history.
fn history(api: &str, more: &Json) -> (Vec<Call>, Vec<(String, String)>) {
    let Prompt::Chat(conversation, _) = request(api, more).prompt else { panic!() };
    let (mut calls, mut results) = (Vec::new(), Vec::new());
    for turn in conversation.turns {
        match turn {
            Turn::Assistant(assistant) => calls.extend(assistant.calls),
            Turn::Tool(result) => results.push((result.call_id, result.text)),
            _ => {}
        }
    }
    (calls, results)
}

#[test]
fn calls_and_results_come_back() {
    let result = |id: &str, text: &str| (id.to_owned(), text.to_owned());
    let function = || Call::from_text("c1".into(), "f".into(), "{\"a\": 5}");
    let custom = || Call::custom("c2".into(), "patch".into(), "x");
    let results = vec![result("c1", "one"), result("c2", "two")];
    let chat = json!({"messages": [
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":5}"}},
            {"id": "c2", "type": "custom", "custom": {"name": "patch", "input": "x"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "two"}]}]});
    assert_eq!(history("chat_completions", &chat), (vec![function(), custom()], results.clone()));
    let responses = json!({"input": [
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "status": "completed",
            "namespace": "group", "arguments": "{\"a\":5}"},
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c2", "name": "patch",
            "status": "completed", "input": "x"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "custom_tool_call_output", "call_id": "c2",
            "output": [{"type": "input_text", "text": "two"}]}]});
    let member = function().member_of("group");
    assert_eq!(history("responses", &responses), (vec![member, custom()], results));
}

#[test]
fn failures_of_tools_come_back() {
    let message = |result: Json| {
        json!({"messages": [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "T", "signature": "bW9lZmx1eA=="},
                {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 5}}]},
            {"role": "user", "content": [result]}]})
    };
    let text = |is_error: bool, content: Json| {
        let result = json!({"type": "tool_result", "tool_use_id": "c1", "is_error": is_error,
            "content": content});
        let (calls, mut results) = history("messages", &message(result));
        assert_eq!(calls, [Call::from_text("c1".into(), "f".into(), "{\"a\": 5}")]);
        results.remove(0).1
    };
    assert_eq!(text(false, json!("no such city")), "no such city");
    assert_eq!(text(true, json!("no such city")), "Error: no such city");
    assert_eq!(text(true, json!([{"type": "text", "text": "ERROR 5"}])), "ERROR 5");
    let said = "<tool_use_error>no</tool_use_error>";
    assert_eq!(text(true, json!(said)), said);
    assert_eq!(text(true, Json::Null), "Error: ");
    assert_eq!(text(true, json!("\u{e9}\u{e9}\u{e9}")), "Error: \u{e9}\u{e9}\u{e9}");
}
