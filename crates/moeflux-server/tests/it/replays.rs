//! Answers that a client sends back in the history, tokenised differently from the sampled ones.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use moeflux_prefix::{OwnerId, PrefixFolder, Store, StoreLimits, WallClock};
use moeflux_schedule::SavedConversations;
use moeflux_testing::temp_dir::TempDir;
use serde_json::{Value as Json, json};

use crate::server::{Running, question};

const CHAT: &str = "/v1/chat/completions";

/// A call of two arguments, as the model makes it at random.
fn ask(messages: &Json) -> Json {
    let parameters = json!({"type": "object", "required": ["a", "b"], "additionalProperties": false,
        "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}});
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
    json!({"messages": messages, "tools": tools, "max_tokens": 200, "seed": 3,
        "temperature": 0, "reasoning_effort": "none", "parallel_tool_calls": false})
}

/// Returns the conversation after a call; the history has its keys in another order.
fn told(answer: &Json) -> Json {
    let call = &answer["choices"][0]["message"]["tool_calls"][0];
    let arguments: Json =
        serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    let arguments = format!("{{ \"b\":{},\"a\":{}}}", arguments["b"], arguments["a"]);
    let call = json!({"id": call["id"], "type": "function",
        "function": {"name": "f", "arguments": arguments}});
    let mut messages = question();
    messages.as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": call["id"], "content": "A list that grows."}),
    ]);
    messages
}

fn called(server: &Running) -> Json {
    let mut asked = ask(&question());
    asked["tool_choice"] = "required".into();
    let answer = server.post(CHAT, &asked).success();
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
    answer
}

fn text_of(answer: &Json) -> &Json {
    &answer["choices"][0]["message"]["content"]
}

#[test]
fn an_answer_in_the_history_has_its_sampled_tokens() {
    let server = Running::new();
    let first = called(&server);
    let messages = told(&first);
    // The ids that it will read.
    let asked = ask(&messages);
    let ids = server.post("/tokenize", &asked).success()["tokens"].clone();
    let second = server.post(CHAT, &asked).success();
    let usage = &second["usage"];
    let count = |usage: &Json, key: &str| usage[key].as_u64().unwrap();
    assert_eq!(usage["prompt_tokens_details"]["replayed_turns"], 1, "{usage}");
    assert_eq!(count(usage, "prompt_tokens"), ids.as_array().unwrap().len() as u64);
    let n_before =
        count(&first["usage"], "prompt_tokens") + count(&first["usage"], "completion_tokens");
    let n_cached = count(&usage["prompt_tokens_details"], "cached_tokens");
    // The last token was reported, but not fed.
    assert!(n_cached >= n_before - 1, "{n_cached} of {n_before}");
    // Another server has the same answer to the same ids.
    let other = Running::new();
    let completion = json!({"prompt": ids, "max_tokens": 200, "temperature": 0});
    let alone = other.post("/v1/completions", &completion).success();
    let alone = alone["choices"][0]["text"].as_str().unwrap();
    let alone = alone.trim_start_matches("<think>").trim_start();
    let alone = alone.trim_start_matches("</think>").trim();
    assert_eq!(alone, text_of(&second).as_str().unwrap().trim());
    let page = server.get("/metrics").text().to_owned();
    let is_counted =
        |line: &str| line.starts_with("moeflux:replayed_turns_total") && line.ends_with(" 1");
    assert!(page.lines().any(is_counted), "{page}");
}

/// The wall clock of a folder, which no test depends on.
#[derive(Debug)]
struct StoppedClock;

impl WallClock for StoppedClock {
    fn since_1970(&self) -> Duration {
        Duration::from_secs(1_800_000_000)
    }
}

/// A server that saves conversations in a folder.
fn saving_in(dir: &Path) -> Running {
    let limits = StoreLimits { n_bytes_max: u64::MAX, write_bytes_per_day: u64::MAX };
    let folder = PrefixFolder::new(dir.to_owned(), Arc::new(StoppedClock));
    let store = Store::open(folder, limits).unwrap();
    let owners = Arc::new(|_| Some(OwnerId::ANONYMOUS));
    let (n_tokens_min, n_tokens_at_risk) = (8, 8_192);
    let saved = SavedConversations { store, owners, n_tokens_min, n_tokens_at_risk };
    Running::with(|wanted| wanted.options.saved = Some(saved))
}

#[test]
fn an_answer_in_the_history_has_its_sampled_tokens_after_a_restart() {
    let dir = TempDir::new();
    let first = called(&saving_in(dir.path()));
    let asked = ask(&told(&first));
    let server = saving_in(dir.path());
    let usage = server.post(CHAT, &asked).success()["usage"].clone();
    assert_eq!(usage["prompt_tokens_details"]["replayed_turns"], 1, "{usage}");
    let count = |usage: &Json, key: &str| usage[key].as_u64().unwrap();
    let n_before =
        count(&first["usage"], "prompt_tokens") + count(&first["usage"], "completion_tokens");
    let n_cached = count(&usage["prompt_tokens_details"], "cached_tokens");
    // The last token was reported, but not fed.
    assert!(n_cached >= n_before - 1, "{n_cached} of {n_before}");
    // A damaged file is no answer: the history is read as rendered.
    drop(server);
    let all = std::fs::read_dir(dir.path().join("objects")).unwrap();
    let files = all.flat_map(|it| std::fs::read_dir(it.unwrap().path()).unwrap());
    let paths: Vec<PathBuf> = files.map(|it| it.unwrap().path()).collect();
    let is_answer = |path: &&PathBuf| path.extension().is_some_and(|it| it == "answer");
    for path in paths.iter().filter(is_answer) {
        let mut bytes = std::fs::read(path).unwrap();
        let at = bytes.len() - 9;
        bytes[at] ^= 1;
        std::fs::write(path, bytes).unwrap();
    }
    let usage = saving_in(dir.path()).post(CHAT, &asked).success()["usage"].clone();
    assert_eq!(usage["prompt_tokens_details"]["replayed_turns"], 0, "{usage}");
}

#[test]
fn without_replay_a_history_is_read_as_rendered() {
    let server = Running::with(|wanted| wanted.config.replay_bytes = 0);
    let messages = told(&called(&server));
    let found = server.post(CHAT, &ask(&messages)).success();
    assert_eq!(found["usage"]["prompt_tokens_details"]["replayed_turns"], 0);
    let other = Running::new();
    let ids =
        |server: &Running| server.post("/tokenize", &ask(&messages)).success()["tokens"].clone();
    assert_eq!(ids(&server), ids(&other));
}
