//! Renders one template file with a small conversation: `render_template FILE`.
//!
//! One case of `tools/check/templates.sh`, in a process of its own. Prints the length of the text
//! or the error, and ends with success either way.

#![expect(clippy::print_stdout, reason = "what this program is for")]

use std::path::Path;

use moeflux::provider::text::SpecialTokens;
use moeflux::{ChatTemplate, Message, TemplateOptions};
use serde_json::json;

fn main() {
    let path = std::env::args().nth(1).unwrap_or_default();
    match render(Path::new(&path)) {
        Ok(text) => println!("{} bytes", text.len()),
        Err(error) => println!("error: {error}"),
    }
}

fn render(path: &Path) -> moeflux::Result<String> {
    let source = std::fs::read_to_string(path).map_err(moeflux::Error::io("read", path))?;
    let template = ChatTemplate::from_source(path, &source, SpecialTokens::default())?;
    let messages = [Message::new("user", "x".repeat(1 << 20)), Message::new("assistant", "y")];
    let extra = json!({"text": "ab ".repeat(1 << 10), "list": [1, [2, {"a": [3]}], "b"]});
    let extra = extra.as_object().cloned().unwrap_or_default();
    let options = TemplateOptions { now_seconds: Some(0), extra, ..TemplateOptions::default() };
    template.render(&messages, &options)
}
