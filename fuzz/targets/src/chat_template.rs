//! Chat templates: an accepted template renders a conversation with every feature, or gives a
//! reason; rendering ends, and its text is bounded.

use std::path::Path;

use moeflux::provider::text::{
    ChatTemplate, Message, OUTPUT_BYTES_MAX, SpecialTokens, TemplateOptions,
};
use serde_json::json;

use crate::support::check_refusal;

pub(crate) fn checker() -> impl FnMut(&[u8]) + Send {
    let (messages, options) = conversation();
    move |source| check(source, &messages, &options)
}

fn check(input: &[u8], messages: &[Message], options: &TemplateOptions) {
    let Ok(source) = std::str::from_utf8(input) else { return };
    let path = Path::new("chat_template.jinja");
    let template = match ChatTemplate::from_source(path, source, SpecialTokens::default()) {
        Ok(template) => template,
        Err(error) => return check_refusal(&error),
    };
    match template.render(messages, options) {
        Ok(text) => assert!(text.len() <= OUTPUT_BYTES_MAX),
        Err(error) => check_refusal(&error),
    }
}

fn conversation() -> (Vec<Message>, TemplateOptions) {
    let mut parts = Message::new("user", "");
    parts.content = json!([{"type": "text", "text": "a\u{e9}\n<b> "}, {"type": "image"}]);
    let mut calls = Message::new("assistant", " ");
    calls.reasoning = Some("first\nthen".into());
    let arguments = json!({"x": [1, -2.5, null, true], "y": {"z": "\"'\\"}});
    calls.tool_calls = Some(json!([
        {"type": "function", "id": "c0", "function": {"name": "f", "arguments": arguments}}
    ]));
    let mut result = Message::new("tool", "17");
    result.extra.insert("tool_call_id".into(), json!("c0"));
    result.extra.insert("name".into(), json!("f"));
    let messages =
        vec![Message::new("system", "s"), parts, calls, result, Message::new("user", "\u{1f600}")];
    let tool = json!({"type": "function", "function": {"name": "f", "description": "d",
        "parameters": {"type": "object", "properties": {"x": {"type": "array"}}}}});
    let options = TemplateOptions {
        add_generation_prompt: true,
        enable_thinking: Some(true),
        tools: Some(json!([tool])),
        now_seconds: Some(1_700_000_000),
        ..TemplateOptions::default()
    };
    (messages, options)
}
