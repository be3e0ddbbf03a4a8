//! Bodies that no client sends: every field of every recorded request with every kind of value.
//!
//! The result is a request, or a failure of the client that names a field; never a panic.

use moeflux_chat::Turn;
use moeflux_testing::random::Rng;
use moeflux_wire::{FailureKind, Prompt};
use serde_json::{Value as Json, json};

use crate::dialects::parse;
use crate::recorded::requests;

const APIS: [&str; 8] = [
    "chat_completions",
    "completions",
    "responses",
    "messages",
    "messages_count_tokens",
    "tokenize",
    "apply-template",
    "detokenize",
];

/// The paths of all values inside of a value: JSON pointers, with names as failures give them.
fn places(json: &Json, pointer: &str, name: &str, found: &mut Vec<(String, String)>) {
    match json {
        Json::Object(map) => {
            for (key, value) in map {
                let pointer = format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"));
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                found.push((pointer.clone(), name.clone()));
                places(value, &pointer, &name, found);
            }
        }
        Json::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                let (pointer, name) = (format!("{pointer}/{index}"), format!("{name}[{index}]"));
                found.push((pointer.clone(), name.clone()));
                places(value, &pointer, &name, found);
            }
        }
        _ => {}
    }
}

fn values() -> Vec<Json> {
    vec![
        Json::Null,
        json!(true),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(u64::MAX),
        json!(1e300),
        json!(""),
        json!("x\ny"),
        json!("x".repeat(10_000)),
        json!([]),
        json!([null]),
        json!([0]),
        json!(["x"]),
        json!([[["x"]]]),
        json!([{}]),
        json!({}),
        json!({"type": "x"}),
        json!({"x": {"x": []}}),
    ]
}

/// Whether a failure names the place that was changed, something in it, or something around it.
fn is_near(field: &str, place: &str) -> bool {
    // The type or role of an object determines its other fields.
    let place = place.strip_suffix("type").or(place.strip_suffix("role")).unwrap_or(place);
    // The first requires another field, the second is identified by its first element, and the
    // third contains the names of tools.
    let is_far =
        field == "top_logprobs" || field.starts_with("prompt[") || field.starts_with("tool_choice");
    place.starts_with(field) || field.starts_with(place) || is_far
}

#[test]
fn any_value_in_any_field_is_read_or_refused_by_name() {
    let mut n_refused = 0;
    for (name, api, body) in requests() {
        let original: Json = serde_json::from_slice(&body).unwrap();
        let was_refused = parse(&api, &body).err().and_then(|failure| failure.field);
        let mut found = Vec::new();
        places(&original, "", "", &mut found);
        for (pointer, place) in found {
            for value in values() {
                let mut changed = original.clone();
                *changed.pointer_mut(&pointer).unwrap() = value.clone();
                let Err(failure) = parse(&api, changed.to_string().as_bytes()) else { continue };
                n_refused += 1;
                let what = format!("{name}: {place} = {value}: {failure}");
                assert_eq!(failure.kind.status(), 400, "{what}");
                assert!(failure.message.lines().count() == 1, "{what}");
                let field = failure.field.as_deref().expect(&what);
                assert!(failure.message.starts_with(&format!("`{field}`: ")), "{what}");
                assert!(is_near(field, &place) || was_refused.as_deref() == Some(field), "{what}");
            }
        }
    }
    assert!(n_refused > 5_000, "{n_refused}");
}

#[test]
fn bodies_that_are_not_requests_are_refused() {
    let deep = |open: &str, close: &str| format!("{}1{}", open.repeat(5_000), close.repeat(5_000));
    let long_key = format!(r#"{{"{}": 1}}"#, "k".repeat(100_000));
    let bodies = [
        "",
        " ",
        "{",
        "null",
        "5",
        "\"x\"",
        "[]",
        "{} x",
        "{'a': 1}",
        "{\"a\": NaN}",
        "{\"a\": 1e999}",
        "{\"a\": \"\\ud800\"}",
        "{}",
        &deep("[", "]"),
        &deep("{\"messages\":", "}"),
        &deep("{\"input\":[", "]}"),
        &long_key,
    ];
    for api in APIS {
        for body in bodies {
            let failure = parse(api, body.as_bytes()).expect_err(body);
            assert_eq!(failure.kind, FailureKind::Invalid, "{body}");
            assert!(failure.message.len() < 400, "{failure}");
        }
        parse(api, b"\xff\xfe{}").unwrap_err();
        parse(api, b"{\"prompt\": \"\xff\"}").unwrap_err();
    }
}

#[test]
fn nesting_within_the_limit_of_json_is_read() {
    let mut schema = json!({"type": "string"});
    for _ in 0..50 {
        schema = json!({"type": "object", "properties": {"x": schema}});
    }
    let body = json!({"messages": [{"role": "user", "content": "?"}], "tools": [
        {"type": "function", "function": {"name": "f", "parameters": schema}}]});
    parse("chat_completions", body.to_string().as_bytes()).unwrap();
}

/// Copying all of them for each would copy a terabyte.
#[test]
fn many_blocks_are_one_text() {
    let n = 1_000_000;
    let body = json!({"max_tokens": 1, "messages": [{"role": "user", "content": vec!["a"; n]}]});
    let request = parse("messages", body.to_string().as_bytes()).unwrap().unwrap();
    let Prompt::Chat(conversation, _) = request.prompt else { panic!("a conversation") };
    let [Turn::User(text)] = &conversation.turns[..] else { panic!("one turn") };
    assert_eq!(text.len(), 2 * n - 1);
}

/// A body with a few bytes changed, left out, repeated, or put elsewhere.
fn damaged(body: &[u8], rng: &mut Rng) -> Vec<u8> {
    const BYTES: &[u8] = b"{}[]\",:\\0-9.eEtfn \n\x00\x7f\xff";
    let mut body = body.to_vec();
    for _ in 0..=rng.below(3) {
        let at = rng.below(body.len());
        let end = body.len().min(at + 1 + rng.below(20));
        match rng.below(4) {
            0 => body[at] = BYTES[rng.below(BYTES.len())],
            1 if end - at < body.len() => drop(body.drain(at..end)),
            2 => {
                let part = body[at..end].to_vec();
                body.splice(at..at, part);
            }
            _ => {
                let part = body[at..end].to_vec();
                let to = rng.below(body.len());
                body.splice(to..to, part);
            }
        }
    }
    body
}

#[test]
fn damaged_bodies_are_read_or_refused() {
    let mut rng = Rng::new(22);
    let (mut n_read, mut n_refused) = (0, 0);
    for (name, api, body) in requests() {
        for _ in 0..1_000 {
            let damaged = damaged(&body, &mut rng);
            match parse(&api, &damaged) {
                Ok(_) => n_read += 1,
                Err(failure) => {
                    n_refused += 1;
                    let lines = failure.message.lines().count();
                    assert_eq!((failure.kind.status(), lines), (400, 1), "{name}: {failure}");
                }
            }
        }
    }
    assert!(n_read > 1_000 && n_refused > 1_000, "{n_read} read, {n_refused} refused");
}
