//! Converts turns and tools to the messages that templates expect.
//!
//! Templates agree on most keys and differ in some: some refuse or drop a system message that is
//! not the first, some take the arguments of a call as a table and others as text, and some refuse
//! thoughts alongside text and calls, or tools without a description. A [`TemplateVariant`] is one
//! choice for each of these differences. Other needs can be read from the template:
//! [`TemplateNeeds`].
//! **Invariant:** system turns at the start are merged into one message.

use std::collections::HashMap;

use moeflux::{ChatTemplate, Message};
use serde_json::{Map, Value as Json, json};

use crate::calls::format::CallFormat;
use crate::calls::history::{named_id, python_json};
use crate::conversation::{Assistant, Call, Conversation, Tool, Turn};

/// A way to write messages: one choice for each point on which templates disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TemplateVariant {
    pub(crate) late_system: LateSystem,
    pub(crate) undescribed: Undescribed,
    pub(crate) call_text: CallTextAs,
    pub(crate) arguments: ArgumentsAs,
}

/// The needs of a template, as far as its source shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TemplateNeeds {
    /// The prefix of call ids, for templates that state a call's name only in its id.
    pub(crate) named_ids: Option<&'static str>,
    /// Whether missing text alongside calls is null. Otherwise it is an empty string, because some
    /// templates print a null.
    pub(crate) null_text: bool,
    /// Whether a message has a single call and its result comes next.
    pub(crate) single_calls: bool,
}

/// Ways in which a template tests for null.
const NULL_TESTS: [&str; 3] = ["content'] is none", "content\"] is none", "content is none"];

/// Ways in which a template loops over all calls of a message.
const ALL_CALLS: [&str; 3] =
    ["in message.tool_calls", "in message['tool_calls']", "in message[\"tool_calls\"]"];

impl TemplateNeeds {
    pub(crate) fn of(template: &ChatTemplate) -> Self {
        let named_ids = CallFormat::of(template).and_then(CallFormat::id_prefix);
        let null_text = NULL_TESTS.iter().any(|test| template.mentions(test));
        let single_calls = template.mentions("message.tool_calls[0]")
            && !ALL_CALLS.iter().any(|all| template.mentions(all));
        Self { named_ids, null_text, single_calls }
    }
}

/// The role of a system turn that comes after other turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LateSystem {
    /// It keeps its role.
    System,
    /// It becomes a user message.
    User,
}

/// A tool without a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undescribed {
    /// The key is omitted.
    Absent,
    /// The description is empty.
    Empty,
}

/// Text alongside thoughts and calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallTextAs {
    Text,
    /// It is appended to the thoughts.
    Thought,
}

/// The arguments of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArgumentsAs {
    Object,
    Text,
}

/// Returns the variants that make a difference for this conversation, most faithful first.
pub(crate) fn template_variants(conversation: &Conversation) -> Vec<TemplateVariant> {
    let calling = conversation.turns.iter().filter_map(|turn| match turn {
        Turn::Assistant(assistant) => Some(assistant).filter(|it| !it.calls.is_empty()),
        _ => None,
    });
    let has_calls = calling.clone().next().is_some();
    let has_thoughts = |it: &Assistant| it.thoughts.as_ref().is_some_and(|it| !it.is_empty());
    let has_all = calling.clone().any(|it| has_thoughts(it) && !it.text.is_empty());
    let has_undescribed = conversation.tools.iter().any(|tool| tool.description.is_none());
    let has_late = late_system(conversation).next().is_some();
    let late: &[LateSystem] =
        if has_late { &[LateSystem::System, LateSystem::User] } else { &[LateSystem::System] };
    let arguments: &[ArgumentsAs] =
        if has_calls { &[ArgumentsAs::Object, ArgumentsAs::Text] } else { &[ArgumentsAs::Object] };
    let call_text: &[CallTextAs] =
        if has_all { &[CallTextAs::Text, CallTextAs::Thought] } else { &[CallTextAs::Text] };
    let undescribed: &[Undescribed] = if has_undescribed {
        &[Undescribed::Absent, Undescribed::Empty]
    } else {
        &[Undescribed::Absent]
    };
    let mut variants = Vec::new();
    for &late_system in late {
        for &undescribed in undescribed {
            for &call_text in call_text {
                for &arguments in arguments {
                    variants.push(TemplateVariant {
                        late_system,
                        undescribed,
                        call_text,
                        arguments,
                    });
                }
            }
        }
    }
    variants
}

/// Returns the texts of system turns that are not at the start.
pub(crate) fn late_system(conversation: &Conversation) -> impl Iterator<Item = &str> {
    let turns = conversation.turns.iter().skip_while(|turn| matches!(turn, Turn::System(_)));
    turns.filter_map(|turn| match turn {
        Turn::System(text) => Some(text.as_str()),
        _ => None,
    })
}

/// Converts a conversation to messages.
pub(crate) fn messages(
    conversation: &Conversation,
    variant: TemplateVariant,
    needs: TemplateNeeds,
) -> Vec<Message> {
    let turns = &conversation.turns;
    let n_first = turns.iter().take_while(|turn| matches!(turn, Turn::System(_))).count();
    let (first, others) = turns.split_at(n_first);
    let first: Vec<&str> = first.iter().filter_map(system_text).collect();
    let mut messages = Vec::with_capacity(turns.len());
    if n_first > 0 {
        messages.push(Message::new("system", first.join("\n\n")));
    }
    let mut builder = MessageBuilder { variant, needs, calls: HashMap::new(), n_calls: 0 };
    let mut rest = others;
    while let [turn, after @ ..] = rest {
        rest = after;
        match turn {
            Turn::Assistant(turn) if needs.single_calls && turn.calls.len() > 1 => {
                let is_result = |turn: &&Turn| matches!(turn, Turn::Tool(_));
                let (results, after) = after.split_at(after.iter().take_while(is_result).count());
                rest = after;
                builder.one_by_one(turn, results, &mut messages);
            }
            turn => messages.push(builder.message(turn)),
        }
    }
    messages
}

/// Returns the index of the message for a turn that is not one of the system turns at the start.
pub(crate) fn message_idx_of(
    conversation: &Conversation,
    turn_idx: usize,
    needs: TemplateNeeds,
) -> usize {
    let is_first = |turn: &&Turn| matches!(turn, Turn::System(_));
    let n_first = conversation.turns.iter().take_while(is_first).count();
    let n_more = |turn: &Turn| match turn {
        Turn::Assistant(turn) if needs.single_calls => turn.calls.len().saturating_sub(1),
        _ => 0,
    };
    let n_more: usize = conversation.turns[..turn_idx].iter().map(n_more).sum();
    turn_idx - n_first.saturating_sub(1) + n_more
}

fn system_text(turn: &Turn) -> Option<&str> {
    match turn {
        Turn::System(text) => Some(text),
        _ => None,
    }
}

/// Builds the messages of a conversation, turn after turn.
struct MessageBuilder<'a> {
    variant: TemplateVariant,
    needs: TemplateNeeds,
    /// The tool's name and the id in the message, by the id that the client knows.
    calls: HashMap<&'a str, (&'a str, String)>,
    n_calls: usize,
}

impl<'a> MessageBuilder<'a> {
    fn message(&mut self, turn: &'a Turn) -> Message {
        match turn {
            Turn::System(text) => {
                let is_kept = self.variant.late_system == LateSystem::System;
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
            let mut has_text = !assistant.text.is_empty();
            if let Some(thoughts) = message.reasoning.as_mut().filter(|it| !it.is_empty())
                && has_text
                && self.variant.call_text == CallTextAs::Thought
            {
                thoughts.push_str("\n\n");
                thoughts.push_str(&assistant.text);
                message.content = Json::from("");
                has_text = false;
            }
            if !has_text && self.needs.null_text {
                message.content = Json::Null;
            }
            message.tool_calls = Some(assistant.calls.iter().map(|it| self.call(it)).collect());
        }
        message
    }

    /// Writes each call as a message of its own, followed by its result.
    fn one_by_one(
        &mut self,
        turn: &'a Assistant,
        results: &'a [Turn],
        messages: &mut Vec<Message>,
    ) {
        let is_of = |turn: &Turn, call: &Call| match turn {
            Turn::Tool(result) => result.call_id == call.id,
            _ => false,
        };
        let mut message = self.assistant(turn);
        let tool_calls = message.tool_calls.take();
        let mut tool_calls = tool_calls.iter().filter_map(Json::as_array).flatten().cloned();
        for (call_idx, call) in turn.calls.iter().enumerate() {
            let mut one = Message::new("assistant", "");
            if call_idx == 0 {
                one = message.clone();
            } else if self.needs.null_text {
                one.content = Json::Null;
            }
            one.tool_calls = Some(tool_calls.by_ref().take(1).collect());
            messages.push(one);
            // A result belongs to at most one call: the first with its id.
            let is_first = |result: &Turn| {
                is_of(result, call) && !turn.calls[..call_idx].iter().any(|it| is_of(result, it))
            };
            for result in results.iter().filter(|it| is_first(it)) {
                messages.push(self.message(result));
            }
        }
        let is_lost = |result: &&Turn| !turn.calls.iter().any(|call| is_of(result, call));
        for result in results.iter().filter(is_lost) {
            messages.push(self.message(result));
        }
    }

    fn call(&mut self, call: &'a Call) -> Json {
        let id = match self.needs.named_ids {
            Some(prefix) => named_id(prefix, call, self.n_calls),
            None => call.id.clone(),
        };
        let arguments = Json::Object(call.arguments.clone());
        let arguments = match self.variant.arguments {
            ArgumentsAs::Object => arguments,
            ArgumentsAs::Text => Json::String(python_json(&arguments)),
        };
        let function = json!({"name": call.name, "arguments": arguments});
        let tool_call = json!({"id": id, "type": "function", "function": function});
        self.calls.insert(&call.id, (&call.name, id));
        self.n_calls += 1;
        tool_call
    }
}

/// Returns the tools in the shape of the `OpenAI` API, which templates print; `None` if there are
/// none.
pub(crate) fn tools(tools: &[Tool], variant: TemplateVariant) -> Option<Json> {
    let tool = |tool: &Tool| {
        let mut function = Map::new();
        function.insert("name".into(), tool.name.as_str().into());
        let none = (variant.undescribed == Undescribed::Empty).then_some("");
        if let Some(description) = tool.description.as_deref().or(none) {
            function.insert("description".into(), description.into());
        }
        function.insert("parameters".into(), tool.parameters.clone());
        json!({"type": "function", "function": function})
    };
    (!tools.is_empty()).then(|| tools.iter().map(tool).collect())
}
