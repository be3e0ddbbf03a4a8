//! The items of a response's `output`, as they grow.
//!
//! **Invariant:** an item has the same id and index in every event and in the response.

use serde_json::{Value as Json, json};

use crate::calls::{Arguments, ClientTool};

/// An item of the output.
#[derive(Clone, Debug)]
pub(crate) struct OutputItem {
    pub(crate) kind: OutputItemKind,
    pub(crate) id: String,
    pub(crate) status: &'static str,
    /// The text, or a call's arguments.
    pub(crate) text: String,
    pub(crate) logprobs: Vec<Json>,
}

/// The kind of an item.
#[derive(Clone, Debug)]
pub(crate) enum OutputItemKind {
    Thought,
    Message,
    Call { id: String, tool: ClientTool, arguments: Arguments },
}

impl OutputItemKind {
    /// Returns the prefix of ids for items of this kind.
    fn prefix(&self) -> &'static str {
        match self {
            Self::Thought => "rs",
            Self::Message => "msg",
            Self::Call { tool, .. } => {
                if tool.is_custom {
                    "ctc"
                } else {
                    "fc"
                }
            }
        }
    }
}

impl OutputItem {
    /// Creates an item at this index of the response with this id.
    pub(crate) fn new(kind: OutputItemKind, response_id: &str, output_idx: usize) -> Self {
        let id = format!("{}_{response_id}_{output_idx}", kind.prefix());
        Self { kind, id, status: "in_progress", text: String::new(), logprobs: Vec::new() }
    }

    pub(crate) fn is_call(&self) -> bool {
        matches!(self.kind, OutputItemKind::Call { .. })
    }

    /// Returns the item as it appears in the response's output.
    pub(crate) fn json(&self) -> Json {
        match &self.kind {
            OutputItemKind::Thought => json!({
                "id": self.id,
                "type": "reasoning",
                "summary": [],
                "content": [self.part()],
                "status": self.status,
            }),
            OutputItemKind::Message => json!({
                "id": self.id,
                "type": "message",
                "role": "assistant",
                "status": self.status,
                "content": [self.part()],
            }),
            OutputItemKind::Call { id, tool, .. } => self.call(id, tool),
        }
    }

    fn call(&self, call_id: &str, tool: &ClientTool) -> Json {
        let kind = if tool.is_custom { "custom_tool_call" } else { "function_call" };
        let mut call = json!({
            "id": self.id,
            "type": kind,
            "status": self.status,
            "call_id": call_id,
            "name": tool.name,
        });
        if let Some(namespace) = &tool.namespace {
            call["namespace"] = namespace.as_str().into();
        }
        call[self.key()] = self.text.as_str().into();
        call
    }

    /// Returns the item before it has a part.
    pub(crate) fn begun(&self) -> Json {
        let mut item = self.json();
        if !self.is_call() {
            item["content"] = json!([]);
        }
        item
    }

    /// Returns the only part of a thought or a message.
    pub(crate) fn part(&self) -> Json {
        match &self.kind {
            OutputItemKind::Thought => json!({"type": "reasoning_text", "text": self.text}),
            _ => json!({
                "type": "output_text",
                "text": self.text,
                "annotations": [],
                "logprobs": self.logprobs,
            }),
        }
    }

    /// Returns the name of its text in events.
    pub(crate) fn name(&self) -> &'static str {
        match &self.kind {
            OutputItemKind::Thought => "response.reasoning_text",
            OutputItemKind::Message => "response.output_text",
            OutputItemKind::Call { tool, .. } if tool.is_custom => {
                "response.custom_tool_call_input"
            }
            OutputItemKind::Call { .. } => "response.function_call_arguments",
        }
    }

    /// Returns the key of its text in the event that repeats it.
    pub(crate) fn key(&self) -> &'static str {
        match &self.kind {
            OutputItemKind::Call { tool, .. } if tool.is_custom => "input",
            OutputItemKind::Call { .. } => "arguments",
            _ => "text",
        }
    }
}
