//! Renders one template file with a small conversation: `render_template FILE`.
//!
//! `tools/check/templates.sh` runs this in a process of its own for each case. It prints the length
//! of the text or the error, and succeeds either way. `render_template FILE CASES` is for
//! `tools/check/published_templates.sh`. It renders the conversations of a JSON list with their
//! options and variables, and prints one line for each: the text as JSON, or null.

#![expect(clippy::print_stdout, reason = "printing is the purpose")]

use std::path::Path;

use moeflux::{ChatTemplate, Message, SpecialTokens, TemplateOptions};
use serde_json::{Value, json};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let path = Path::new(words.first().map_or("", String::as_str));
    let outcome = match words.get(1) {
        None => render(path).map(|text| println!("{} bytes", text.len())),
        Some(cases) => render_all(path, Path::new(cases)),
    };
    if let Err(error) = outcome {
        println!("error: {error}");
    }
}

fn opened(path: &Path) -> moeflux::Result<ChatTemplate> {
    let source = std::fs::read_to_string(path).map_err(moeflux::Error::io("read", path))?;
    ChatTemplate::from_source(path, &source, SpecialTokens::default())
}

fn render(path: &Path) -> moeflux::Result<String> {
    let template = opened(path)?;
    let messages = [Message::new("user", "x".repeat(1 << 20)), Message::new("assistant", "y")];
    let extra = json!({"text": "ab ".repeat(1 << 10), "list": [1, [2, {"a": [3]}], "b"]});
    let extra = extra.as_object().cloned().unwrap_or_default();
    let options = TemplateOptions { now_seconds: Some(0), extra, ..TemplateOptions::default() };
    template.render(&messages, &options)
}

fn render_all(path: &Path, cases: &Path) -> moeflux::Result<()> {
    let template = opened(path)?;
    let cases = std::fs::read(cases).map_err(moeflux::Error::io("read", cases))?;
    let cases: Vec<Value> = serde_json::from_slice(&cases).unwrap_or_default();
    for case in &cases {
        let messages = case["messages"].as_array().into_iter().flatten();
        let messages: Vec<Message> = messages.map(message).collect();
        let mut extra = case["options"].as_object().cloned().unwrap_or_default();
        let options = TemplateOptions {
            add_generation_prompt: extra.shift_remove("add_generation_prompt") == Some(true.into()),
            enable_thinking: extra.shift_remove("enable_thinking").and_then(|it| it.as_bool()),
            tools: extra.shift_remove("tools"),
            now_seconds: Some(0),
            extra,
            ..TemplateOptions::default()
        };
        println!("{}", json!(template.render(&messages, &options).ok()));
    }
    Ok(())
}

fn message(json: &Value) -> Message {
    let mut extra = json.as_object().cloned().unwrap_or_default();
    let mut text =
        |key: &str| extra.shift_remove(key).and_then(|it| it.as_str().map(str::to_owned));
    let (role, reasoning) = (text("role").unwrap_or_default(), text("reasoning_content"));
    let content = extra.shift_remove("content").unwrap_or_default();
    let tool_calls = extra.shift_remove("tool_calls");
    Message { content, reasoning, tool_calls, extra, ..Message::new(role, "") }
}
