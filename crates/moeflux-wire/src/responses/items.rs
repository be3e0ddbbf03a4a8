//! The items of a request's `input`: the messages, thoughts, calls and results so far.
//!
//! **Invariant:** an item is part of a turn, or it is refused. Calls of tools that servers run are
//! left out and reported: clients repeat them, and their results are in the text.

use moeflux_chat::{Call, Tool, ToolResult, Turn};
use serde_json::Value as Json;

use crate::failure::Failure;
use crate::request::fields::{Fields, Ignored, element, unsupported, wrong};
use crate::request::text;
use crate::request::tools;
use crate::request::turns::Turns;

/// Calls and lists of tools that run on servers.
const LEFT_OUT: [&str; 7] = [
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "tool_search_call",
    "tool_search_output",
    "mcp_list_tools",
    "configuration_update",
];

/// Keys of items that have no effect.
const KNOWN: [&str; 6] = ["id", "type", "status", "phase", "caller", "internal_chat_message_id"];

/// The combined content of the items.
#[derive(Debug, Default)]
pub(crate) struct InputItems {
    pub(crate) turns: Turns,
    /// Tools that are offered by items.
    pub(crate) tools: Vec<Tool>,
}

impl InputItems {
    /// Adds the field `input`: a string, or a list of items.
    pub(crate) fn input(
        &mut self,
        path: &str,
        input: Json,
        ignored: &mut Ignored,
    ) -> Result<(), Failure> {
        match input {
            Json::String(text) => self.turns.push(Turn::User(text)),
            Json::Array(items) => {
                for (index, item) in items.into_iter().enumerate() {
                    self.item(Fields::of(element(path, index), item)?, ignored)?;
                }
            }
            other => return Err(wrong(path, "a string or a list of items", &other)),
        }
        Ok(())
    }

    fn item(&mut self, mut item: Fields, ignored: &mut Ignored) -> Result<(), Failure> {
        let kind = item.string("type")?.unwrap_or_else(|| "message".to_owned());
        match kind.as_str() {
            "message" => self.message(&mut item, ignored)?,
            "reasoning" => self.reasoning(&mut item, ignored)?,
            "function_call" | "custom_tool_call" => self.turns.called(call(&kind, &mut item)?),
            "function_call_output" | "custom_tool_call_output" => {
                self.turns.push(Turn::Tool(output(&mut item, ignored)?));
            }
            "additional_tools" => {
                let path = item.path("tools");
                let offered = item.list("tools")?;
                self.tools.extend(tools::of_responses(&path, offered, ignored)?);
                tools::check_count(&path, self.tools.len())?;
                item.drop_known(&["role"]);
            }
            left_out if LEFT_OUT.contains(&left_out) => {
                ignored.add(&format!("{}={left_out}", item.path("type")));
                return Ok(());
            }
            "item_reference" => {
                let problem = "is not supported: this server stores nothing, so send the item";
                return Err(Failure::invalid(&item.path("type"), problem));
            }
            other => {
                let known = "send messages, reasoning, calls of functions and their outputs";
                return Err(unsupported(&item.path("type"), other, known));
            }
        }
        item.drop_known(&KNOWN);
        item.end(ignored);
        Ok(())
    }

    fn message(&mut self, item: &mut Fields, ignored: &mut Ignored) -> Result<(), Failure> {
        let role = item.required_string("role")?;
        let path = item.path("content");
        let content = item.required("content")?;
        match role.as_str() {
            "system" | "developer" => {
                self.turns.system(text::instructions(&path, content, ignored)?);
            }
            "user" => self.turns.push(Turn::User(text::text(&path, content, ignored)?)),
            "assistant" => self.turns.said(&text::text(&path, content, ignored)?),
            other => {
                let known = "use system, developer, user or assistant";
                return Err(unsupported(&item.path("role"), other, known));
            }
        }
        Ok(())
    }

    /// Adds the thought itself, or else its summary; encrypted content was written by another
    /// server.
    fn reasoning(&mut self, item: &mut Fields, ignored: &mut Ignored) -> Result<(), Failure> {
        let mut texts = Vec::new();
        for key in ["content", "summary"] {
            let path = item.path(key);
            let content = item.take(key).map(|it| text::text(&path, it, ignored)).transpose()?;
            texts.extend(content.filter(|text| !text.is_empty()));
        }
        item.drop_known(&["encrypted_content"]);
        self.turns.thought(texts.into_iter().next().unwrap_or_default());
        Ok(())
    }
}

fn call(kind: &str, item: &mut Fields) -> Result<Call, Failure> {
    let id = item.required_string("call_id")?;
    let name = item.required_string("name")?;
    let found = if kind == "custom_tool_call" {
        Call::custom(id, name, &item.required_string("input")?)
    } else {
        Call::from_text(id, name, &item.required_string("arguments")?)
    };
    Ok(match item.string("namespace")? {
        Some(namespace) => found.member_of(&namespace),
        None => found,
    })
}

fn output(item: &mut Fields, ignored: &mut Ignored) -> Result<ToolResult, Failure> {
    let call_id = item.required_string("call_id")?;
    let path = item.path("output");
    let text = text::text(&path, item.required("output")?, ignored)?;
    // The call has the tool's name and namespace.
    item.drop_known(&["name", "namespace"]);
    Ok(ToolResult { call_id, name: None, text })
}
