//! Turns and tools into what templates are made for.
//!
//! Templates agree on most keys and differ in some places: some refuse or leave out a system
//! message that is not the first, and some take the arguments of a call as a table, others as text.
//! A [`Dress`] is one way out of each. What else a template expects, it says: [`Expected`].
//! **Invariant:** system turns at the start are one message.

use std::collections::HashMap;

use moeflux::{ChatTemplate, Message};
use serde_json::{Map, Value as Json, json};

use crate::calls::format::CallFormat;
use crate::calls::told::{named_id, python_json};
use crate::conversation::{Assistant, Call, Conversation, Tool, Turn};

/// How the two things are told on which templates differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dress {
    pub(crate) late_system: LateSystem,
    pub(crate) arguments: ArgumentsAs,
}

/// What a template shows that it expects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    /// What the ids of calls begin with, where templates tell a call's name only by its id.
    pub(crate) named_ids: Option<&'static str>,
    /// Beside calls, no text is null: otherwise it is an empty one, as some templates print a null.
    pub(crate) null_text: bool,
}

/// Ways to ask for a null in a template.
const NULL_ASKED: [&str; 3] = ["content'] is none", "content\"] is none", "content is none"];

impl Expected {
    pub(crate) fn of(template: &ChatTemplate) -> Self {
        let named_ids = CallFormat::of(template).and_then(CallFormat::id_prefix);
        let null_text = NULL_ASKED.iter().any(|asked| template.mentions(asked));
        Self { named_ids, null_text }
    }
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
pub(crate) fn messages(
    conversation: &Conversation,
    dress: Dress,
    expected: Expected,
) -> Vec<Message> {
    let turns = &conversation.turns;
    let n_first = turns.iter().take_while(|turn| matches!(turn, Turn::System(_))).count();
    let (first, others) = turns.split_at(n_first);
    let first: Vec<&str> = first.iter().filter_map(system_text).collect();
    let mut messages = Vec::with_capacity(turns.len());
    if n_first > 0 {
        messages.push(Message::new("system", first.join("\n\n")));
    }
    let mut told = Told { dress, expected, calls: HashMap::new(), n_calls: 0 };
    messages.extend(others.iter().map(|turn| told.message(turn)));
    messages
}

/// Which of the messages a turn became that is not one of the first instructions.
pub(crate) fn place_of(conversation: &Conversation, turn_idx: usize) -> usize {
    let is_first = |turn: &&Turn| matches!(turn, Turn::System(_));
    let n_first = conversation.turns.iter().take_while(is_first).count();
    turn_idx - n_first.saturating_sub(1)
}

fn system_text(turn: &Turn) -> Option<&str> {
    match turn {
        Turn::System(text) => Some(text),
        _ => None,
    }
}

/// Tells turns one after the other.
struct Told<'a> {
    dress: Dress,
    expected: Expected,
    /// By the id that the client knows: the name of the tool, and the id that is told.
    calls: HashMap<&'a str, (&'a str, String)>,
    n_calls: usize,
}

impl<'a> Told<'a> {
    fn message(&mut self, turn: &'a Turn) -> Message {
        match turn {
            Turn::System(text) => {
                let is_kept = self.dress.late_system == LateSystem::System;
                Message::new(if is_kept { "system" } else { "user" }, text)
            }
            Turn::User(text) => Message::new("user", text),
            Turn::Assistant(assistant) => self.assistant(assistant),
            Turn::Tool(result) => {
                let mut message = Message::new("tool", &result.text);
                let id = result.call_id.as_str();
                let call = self.calls.get(id);
                if let Some(name) = result.name.as_deref().or(call.map(|(name, _)| *name)) {
                    message.extra.insert("name".into(), name.into());
                }
                let id = call.map_or(id, |(_, id)| id);
                message.extra.insert("tool_call_id".into(), id.into());
                message
            }
        }
    }

    fn assistant(&mut self, assistant: &'a Assistant) -> Message {
        let mut message = Message::new("assistant", &assistant.text);
        message.reasoning.clone_from(&assistant.thoughts);
        if !assistant.calls.is_empty() {
            if assistant.text.is_empty() && self.expected.null_text {
                message.content = Json::Null;
            }
            message.tool_calls = Some(assistant.calls.iter().map(|it| self.call(it)).collect());
        }
        message
    }

    fn call(&mut self, call: &'a Call) -> Json {
        let id = match self.expected.named_ids {
            Some(prefix) => named_id(prefix, call, self.n_calls),
            None => call.id.clone(),
        };
        let arguments = Json::Object(call.arguments.clone());
        let arguments = match self.dress.arguments {
            ArgumentsAs::Object => arguments,
            ArgumentsAs::Text => Json::String(python_json(&arguments)),
        };
        let function = json!({"name": call.name, "arguments": arguments});
        let told = json!({"id": id, "type": "function", "function": function});
        self.calls.insert(&call.id, (&call.name, id));
        self.n_calls += 1;
        told
    }
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
