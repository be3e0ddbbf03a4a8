//! Answers with calls, and requests that bind an answer: as in `answers` and `refusals`.

use moeflux_wire::{Reason, ResponseEvent};
use serde_json::{Value as Json, json};

use crate::answers::{Checks, begun, finished, text, thought};

/// A call that is whole, of answer 0.
fn call(call_idx: usize, name: &str, arguments: &[&str]) -> Vec<ResponseEvent> {
    let mut events = cut_call((0, call_idx), name, arguments);
    events.push(ResponseEvent::CallEnded { index: 0, call_idx });
    events
}

fn cut_call(
    (index, call_idx): (usize, usize),
    name: &str,
    arguments: &[&str],
) -> Vec<ResponseEvent> {
    let id = format!("call_1f_{index}_{call_idx}");
    let begun = ResponseEvent::CallBegun { index, call_idx, id, name: name.into() };
    let more = |it: &&str| ResponseEvent::CallArguments { index, call_idx, text: (*it).into() };
    [begun].into_iter().chain(arguments.iter().map(more)).collect()
}

/// The events of one answer around its calls.
fn answer(
    before: &[ResponseEvent],
    calls: &[Vec<ResponseEvent>],
    reason: Reason,
) -> Vec<ResponseEvent> {
    let calls = calls.iter().flatten().cloned();
    let before = [begun()].into_iter().chain(before.iter().cloned());
    before.chain(calls).chain([finished(0, reason, 0)]).collect()
}

fn bern(call_idx: usize) -> Vec<ResponseEvent> {
    call(call_idx, "weather", &["{\"ci", "ty\": ", "\"Bern\"", "}"])
}

fn zurich(call_idx: usize) -> Vec<ResponseEvent> {
    call(call_idx, "weather", &["{\"city\": \"Z\u{fc}rich \\\"West\\\"\"}"])
}

fn two_calls() -> Vec<ResponseEvent> {
    answer(&[text(0, "Let me look.")], &[bern(0), zurich(1)], Reason::Calls)
}

fn between_texts() -> Vec<ResponseEvent> {
    let calls = [bern(0), vec![text(0, "And Z\u{fc}rich:")], zurich(1), vec![text(0, "Wait.")]];
    answer(&[text(0, "Bern:")], &calls, Reason::Calls)
}

fn thought_and_call() -> Vec<ResponseEvent> {
    answer(&[thought(0, "I ask"), thought(0, ".")], &[call(0, "now", &[])], Reason::Calls)
}

fn cut_in_arguments() -> Vec<ResponseEvent> {
    let cut = cut_call((0, 1), "weather", &["{\"city\": \"Z\u{fc}"]);
    answer(&[], &[bern(0), cut], Reason::Length)
}

/// Halves of calls before a whole one; of the second, nothing but its name came.
fn cut_before_a_call() -> Vec<ResponseEvent> {
    let cut = cut_call((0, 0), "weather", &["{\"city\": \"Z\u{fc}"]);
    answer(&[], &[cut, cut_call((0, 1), "now", &[]), bern(2)], Reason::Length)
}

const PATCH: [&str; 4] = ["{\"in", "put\": \"*** Begin\\", "n+ \\u00", "e9 \\\"x\\\"\"}"];

fn custom() -> Vec<ResponseEvent> {
    answer(&[], &[call(0, "patch", &PATCH), call(1, "weather", &["{}"])], Reason::Calls)
}

fn cut_in_custom() -> Vec<ResponseEvent> {
    answer(&[], &[bern(0), cut_call((0, 1), "patch", &PATCH[..2])], Reason::ContextFull)
}

fn tools() -> Json {
    json!([{"type": "function", "function": {"name": "weather"}},
        {"type": "function", "function": {"name": "now"}},
        {"type": "custom", "custom": {"name": "patch"}}])
}

#[test]
fn chat_completions() {
    let mut all = Checks::default();
    let body = |n: usize, stream: bool| {
        let question = json!([{"role": "user", "content": "?"}]);
        json!({"messages": question, "tools": tools(), "n": n, "stream": stream,
            "stream_options": {"include_usage": stream}})
        .to_string()
    };
    let (whole, stream) = (body(1, false), body(1, true));
    for (name, events) in [
        ("calls", two_calls()),
        ("between", between_texts()),
        ("nothing", thought_and_call()),
        ("custom", custom()),
        ("cutcall", cut_in_arguments()),
        ("cutcustom", cut_in_custom()),
    ] {
        all.chat(&format!("chat-{name}.json"), &whole, &events);
        all.chat(&format!("chat-{name}.sse"), &stream, &events);
    }
    all.chat("chat-cutfirst.json", &whole, &cut_before_a_call());
    let mut both = vec![begun()];
    let other = cut_call((1, 0), "weather", &["{\"city\": ", "\"Basel\"}"]);
    for pair in other.iter().zip(&bern(0)) {
        both.extend([pair.0.clone(), pair.1.clone()]);
    }
    both.extend(bern(0)[3..].iter().cloned());
    both.push(ResponseEvent::CallEnded { index: 1, call_idx: 0 });
    both.extend([0, 1].map(|index| finished(index, Reason::Calls, 0)));
    all.chat("chat-each.json", &body(2, false), &both);
    all.chat("chat-each.sse", &body(2, true), &both);
    all.end();
}

#[test]
fn responses() {
    let mut all = Checks::default();
    let body = |stream: bool| {
        json!({"input": "?", "stream": stream, "tool_choice": "required",
            "parallel_tool_calls": false, "tools": [
            {"type": "function", "name": "weather"}, {"type": "function", "name": "now"},
            {"type": "custom", "name": "patch"},
            {"type": "namespace", "name": "agents", "tools": [
                {"type": "function", "name": "close"}, {"type": "custom", "name": "run"}]}]})
        .to_string()
    };
    let members = [
        call(0, "agents__close", &["{\"id\": 7}"]),
        call(1, "agents__run", &["{\"input\":\"ls\\t-l\"", "}"]),
    ];
    for (name, events) in [
        ("calls", two_calls()),
        ("between", between_texts()),
        ("nothing", thought_and_call()),
        ("custom", custom()),
        ("members", answer(&[thought(0, "Now.")], &members, Reason::Calls)),
        ("cutcall", cut_in_arguments()),
        ("cutcustom", cut_in_custom()),
    ] {
        all.responses(&format!("responses-{name}.json"), &body(false), &events);
        all.responses(&format!("responses-{name}.sse"), &body(true), &events);
    }
    let cut = cut_call((0, 0), "weather", &["{\"city\": \"Z\u{fc}"]);
    let stopped = answer(&[], &[cut], Reason::Stop("r".into()));
    all.responses("responses-cutstop.json", &body(false), &stopped);
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let format = json!({"type": "json_schema", "name": "n", "schema": schema, "strict": true});
    let body = json!({"input": "?", "text": {"format": format}}).to_string();
    let events = [begun(), text(0, "{\"a\": 5}"), finished(0, Reason::End, 0)];
    all.responses("responses-schema.json", &body, &events);
    all.end();
}

#[test]
fn messages() {
    let mut all = Checks::default();
    let body = |stream: bool| {
        json!({"max_tokens": 9, "messages": [{"role": "user", "content": "?"}], "stream": stream,
            "tools": [{"name": "weather"}, {"name": "now"}]})
        .to_string()
    };
    for (name, events) in [
        ("calls", two_calls()),
        ("between", between_texts()),
        ("nothing", thought_and_call()),
        ("cutcall", cut_in_arguments()),
        ("cutfirst", cut_before_a_call()),
    ] {
        all.messages(&format!("messages-{name}.json"), &body(false), &events);
        all.messages(&format!("messages-{name}.sse"), &body(true), &events);
    }
    all.end();
}
