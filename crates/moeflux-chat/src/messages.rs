//! Turns and tools into what templates are made for.
//!
//! Templates agree on most keys and differ in two places: some refuse or leave out a system message
//! that is not the first, and some take the arguments of a call as a table, others as text. A
//! [`Dress`] is one way out of each. **Invariant:** system turns at the start are one message.

use std::collections::HashMap;

use moeflux::Message;
use serde_json::{Map, Value as Json, json};

use crate::conversation::{Assistant, Call, Conversation, Tool, Turn};

/// How the two things are told on which templates differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dress {
    pub(crate) late_system: LateSystem,
    pub(crate) arguments: ArgumentsAs,
}

/// A system turn behind another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LateSystem {
    /// Keeps its role.
    System,
    /// Is said by the user.
    User,
}

/// The arguments of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArgumentsAs {
    Object,
    Text,
}

/// The ways that make a difference for this conversation, the most faithful first.
pub(crate) fn dresses(conversation: &Conversation) -> Vec<Dress> {
    let has_calls = conversation.turns.iter().any(|turn| match turn {
        Turn::Assistant(assistant) => !assistant.calls.is_empty(),
        _ => false,
    });
    let has_late = late_system(conversation).next().is_some();
    let late: &[LateSystem] =
        if has_late { &[LateSystem::System, LateSystem::User] } else { &[LateSystem::System] };
    let arguments: &[ArgumentsAs] =
        if has_calls { &[ArgumentsAs::Object, ArgumentsAs::Text] } else { &[ArgumentsAs::Object] };
    let with =
        |late_system| arguments.iter().map(move |&arguments| Dress { late_system, arguments });
    late.iter().copied().flat_map(with).collect()
}

/// The texts of system turns that are not at the start.
pub(crate) fn late_system(conversation: &Conversation) -> impl Iterator<Item = &str> {
    let turns = conversation.turns.iter().skip_while(|turn| matches!(turn, Turn::System(_)));
    turns.filter_map(|turn| match turn {
        Turn::System(text) => Some(text.as_str()),
        _ => None,
    })
}

/// The messages of a conversation.
pub(crate) fn messages(conversation: &Conversation, dress: Dress) -> Vec<Message> {
    let turns = &conversation.turns;
    let n_first = turns.iter().take_while(|turn| matches!(turn, Turn::System(_))).count();
    let (first, others) = turns.split_at(n_first);
    let first: Vec<&str> = first.iter().filter_map(system_text).collect();
    let mut messages = Vec::with_capacity(turns.len());
    if n_first > 0 {
        messages.push(Message::new("system", first.join("\n\n")));
    }
    let mut names = HashMap::new();
    messages.extend(others.iter().map(|turn| message(turn, dress, &mut names)));
    messages
}

fn system_text(turn: &Turn) -> Option<&str> {
    match turn {
        Turn::System(text) => Some(text),
        _ => None,
    }
}

/// `names` are those of the tools called so far, by the call's id.
fn message<'a>(turn: &'a Turn, dress: Dress, names: &mut HashMap<&'a str, &'a str>) -> Message {
    match turn {
        Turn::System(text) => {
            let is_kept = dress.late_system == LateSystem::System;
            Message::new(if is_kept { "system" } else { "user" }, text)
        }
        Turn::User(text) => Message::new("user", text),
        Turn::Assistant(assistant) => {
            let of_call = |call: &'a Call| (call.id.as_str(), call.name.as_str());
            names.extend(assistant.calls.iter().map(of_call));
            assistant_message(assistant, dress)
        }
        Turn::Tool(result) => {
            let mut message = Message::new("tool", &result.text);
            let id = result.call_id.as_str();
            if let Some(name) = result.name.as_deref().or(names.get(id).copied()) {
                message.extra.insert("name".into(), name.into());
            }
            message.extra.insert("tool_call_id".into(), id.into());
            message
        }
    }
}

/// Beside calls, no text is an empty one: some templates print a null.
fn assistant_message(assistant: &Assistant, dress: Dress) -> Message {
    let mut message = Message::new("assistant", &assistant.text);
    message.reasoning.clone_from(&assistant.thoughts);
    if !assistant.calls.is_empty() {
        message.tool_calls =
            Some(assistant.calls.iter().map(|call| call_json(call, dress)).collect());
    }
    message
}

fn call_json(call: &Call, dress: Dress) -> Json {
    let arguments = Json::Object(call.arguments.clone());
    let arguments = match dress.arguments {
        ArgumentsAs::Object => arguments,
        ArgumentsAs::Text => Json::String(arguments.to_string()),
    };
    let function = json!({"name": call.name, "arguments": arguments});
    json!({"id": call.id, "type": "function", "function": function})
}

/// The tools in the shape of the `OpenAI` API, which templates print; `None` without any.
pub(crate) fn tools(tools: &[Tool]) -> Option<Json> {
    let tool = |tool: &Tool| {
        let mut function = Map::new();
        function.insert("name".into(), tool.name.as_str().into());
        if let Some(description) = &tool.description {
            function.insert("description".into(), description.as_str().into());
        }
        function.insert("parameters".into(), tool.parameters.clone());
        json!({"type": "function", "function": function})
    };
    (!tools.is_empty()).then(|| tools.iter().map(tool).collect())
}
