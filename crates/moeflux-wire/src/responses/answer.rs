//! Writes a response, whole or as events.
//!
//! **Invariant:** events are numbered from 0 without gaps: `response.created`,
//! `response.in_progress`, for each item `output_item.added` and its part, deltas, `.done` of each,
//! and `response.completed`, `.incomplete` or `.failed` with the whole response. An answer that the
//! model ended has a call or a message, which may be empty. A cut call has no `.done`, because
//! agents act on it, and half of a custom tool's text looks complete.

use serde_json::{Value as Json, json};

use crate::calls::Arguments;
use crate::event::bytes;
use crate::event::logprobs;
use crate::event::usage;
use crate::event::{EventWriter, PromptProgress, Reason, ResponseEvent, TokenLogprob, Usage};
use crate::failure::{Failure, FailureKind};
use crate::request::ResponseHead;
use crate::responses::output::{OutputItem, OutputItemKind};
use crate::responses::request::ResponsesWriterOptions;

/// Writes the events of one response as bytes.
#[derive(Debug)]
pub struct ResponsesWriter {
    options: ResponsesWriterOptions,
    head: ResponseHead,
    n_events: usize,
    /// The items so far.
    items: Vec<OutputItem>,
    /// Whether the last item is open.
    is_open: bool,
}

impl ResponsesWriter {
    /// Creates a writer for the answer to a request with these options.
    #[must_use]
    pub fn new(options: ResponsesWriterOptions, head: ResponseHead) -> Self {
        Self { options, head, n_events: 0, items: Vec::new(), is_open: false }
    }

    fn response(&self, status: &str, output: Vec<Json>) -> Json {
        let mut response = json!({
            "id": format!("resp_{}", self.head.id),
            "object": "response",
            "created_at": self.head.created_s,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": null,
            // Not repeated: agents send a hundred kilobytes of these and already know them.
            "instructions": null,
            "tools": [],
            "tool_choice": "auto",
            "model": self.head.model,
            "output": output,
            "previous_response_id": null,
            "store": false,
            "text": {"format": {"type": "text"}},
            "truncation": "disabled",
            "usage": null,
        });
        for (key, value) in &self.options.settings {
            response[key.as_str()] = value.clone();
        }
        response
    }

    fn event(&mut self, name: &str, mut event: Json, out: &mut Vec<u8>) {
        if !self.options.is_streamed {
            return;
        }
        event["type"] = name.into();
        event["sequence_number"] = self.n_events.into();
        self.n_events += 1;
        bytes::named(&event, out);
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        for name in ["response.created", "response.in_progress"] {
            let response = self.response("in_progress", Vec::new());
            self.event(name, json!({"response": response}), out);
        }
    }

    /// Writes an event with data, because clients of this dialect do not count comments as a
    /// keep-alive.
    fn keep_alive(&mut self, progress: PromptProgress, out: &mut Vec<u8>) {
        let progress = bytes::progress(progress);
        let response = self.response("in_progress", Vec::new());
        let event = json!({"response": response, "moeflux_progress": progress});
        self.event("response.in_progress", event, out);
    }

    /// Returns the fields that identify the last item in events about its text.
    fn item_location(&self) -> Json {
        let Some(item) = self.items.last() else { return json!({}) };
        let mut location = json!({"item_id": item.id, "output_index": self.items.len() - 1});
        if !item.is_call() {
            location["content_index"] = 0.into();
        }
        location
    }

    fn open(&mut self, kind: OutputItemKind, out: &mut Vec<u8>) {
        self.close_as("completed", out);
        let item = OutputItem::new(kind, &self.head.id, self.items.len());
        let (begun, part) = (item.begun(), (!item.is_call()).then(|| item.part()));
        self.items.push(item);
        self.is_open = true;
        let event = json!({"output_index": self.items.len() - 1, "item": begun});
        self.event("response.output_item.added", event, out);
        if let Some(part) = part {
            let mut event = self.item_location();
            event["part"] = part;
            self.event("response.content_part.added", event, out);
        }
    }

    fn thought(&mut self, text: &str, out: &mut Vec<u8>) {
        if !matches!(self.open_kind(), Some(OutputItemKind::Thought)) {
            self.open(OutputItemKind::Thought, out);
        }
        self.more(text, None, out);
    }

    fn text(&mut self, text: &str, tokens: &[TokenLogprob], out: &mut Vec<u8>) {
        let logprobs = if self.options.has_logprobs { logprobs::list(tokens) } else { Vec::new() };
        if text.is_empty() && logprobs.is_empty() {
            return;
        }
        if !matches!(self.open_kind(), Some(OutputItemKind::Message)) {
            self.open(OutputItemKind::Message, out);
        }
        self.more(text, Some(logprobs), out);
    }

    fn open_kind(&mut self) -> Option<&mut OutputItemKind> {
        self.items.last_mut().filter(|_| self.is_open).map(|item| &mut item.kind)
    }

    /// Appends text to the last item, with log-probabilities if it is a message.
    fn more(&mut self, text: &str, logprobs: Option<Vec<Json>>, out: &mut Vec<u8>) {
        let mut event = self.item_location();
        event["delta"] = text.into();
        let Some(item) = self.items.last_mut() else { return };
        item.text.push_str(text);
        let name = format!("{}.delta", item.name());
        if let Some(logprobs) = logprobs {
            item.logprobs.extend(logprobs.iter().cloned());
            event["logprobs"] = logprobs.into();
        }
        self.event(&name, event, out);
    }

    /// Converts the open call's arguments with `take` and writes the result.
    fn arguments(&mut self, take: impl FnOnce(&mut Arguments) -> String, out: &mut Vec<u8>) {
        let Some(OutputItemKind::Call { arguments, .. }) = self.open_kind() else { return };
        let text = take(arguments);
        if !text.is_empty() {
            self.more(&text, None, out);
        }
    }

    /// Closes the open item with this status; a call that has not ended becomes incomplete.
    fn close_as(&mut self, status: &'static str, out: &mut Vec<u8>) {
        let is_in_call = matches!(self.open_kind(), Some(OutputItemKind::Call { .. }));
        self.close(if is_in_call { "incomplete" } else { status }, out);
    }

    fn close(&mut self, status: &'static str, out: &mut Vec<u8>) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let Some(item) = self.items.last_mut() else { return };
        item.status = status;
        if item.is_call() && status != "completed" {
            return;
        }
        let item = item.clone();
        let mut event = self.item_location();
        event[item.key()] = item.text.as_str().into();
        match &item.kind {
            OutputItemKind::Thought => {}
            OutputItemKind::Message => event["logprobs"] = item.logprobs.clone().into(),
            // Required by older type definitions of the client.
            OutputItemKind::Call { tool, .. } => event["name"] = tool.name.as_str().into(),
        }
        self.event(&format!("{}.done", item.name()), event, out);
        if !item.is_call() {
            let mut event = self.item_location();
            event["part"] = item.part();
            self.event("response.content_part.done", event, out);
        }
        let event = json!({"output_index": self.items.len() - 1, "item": item.json()});
        self.event("response.output_item.done", event, out);
    }

    fn finish(&mut self, (reason, usage): (&Reason, Usage), out: &mut Vec<u8>) {
        let status = if reason.is_cut() { "incomplete" } else { "completed" };
        let has_words = self.items.iter().any(|item| !matches!(item.kind, OutputItemKind::Thought));
        if !reason.is_cut() && !has_words {
            self.open(OutputItemKind::Message, out);
        }
        // A stop string may occur in the arguments of a call.
        self.close_as(status, out);
        let mut response = self.response(status, self.output());
        response["usage"] = usage::responses(usage);
        if reason.is_cut() {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        self.end(status, response, out);
    }

    fn output(&self) -> Vec<Json> {
        self.items.iter().map(OutputItem::json).collect()
    }

    fn fail(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        if !self.options.is_streamed {
            return bytes::body(&failure.openai(), out);
        }
        let code = match failure.kind {
            FailureKind::TooMany => "rate_limit_exceeded",
            FailureKind::ContextLength => "context_length_exceeded",
            FailureKind::Invalid => "invalid_prompt",
            _ => "server_error",
        };
        if let Some(item) = self.items.last_mut().filter(|_| self.is_open) {
            item.status = "incomplete";
        }
        let mut response = self.response("failed", self.output());
        response["error"] = json!({"code": code, "message": failure.message});
        self.end("failed", response, out);
    }

    fn end(&mut self, status: &str, response: Json, out: &mut Vec<u8>) {
        if self.options.is_streamed {
            self.event(&format!("response.{status}"), json!({"response": response}), out);
        } else {
            bytes::body(&response, out);
        }
    }
}

impl EventWriter for ResponsesWriter {
    fn write(&mut self, event: &ResponseEvent, out: &mut Vec<u8>) {
        match event {
            ResponseEvent::Begun { .. } => self.begin(out),
            ResponseEvent::KeepAlive(_) if !self.options.is_streamed => bytes::blank(out),
            ResponseEvent::KeepAlive(progress) => self.keep_alive(*progress, out),
            ResponseEvent::Progress(_) => {}
            ResponseEvent::Thought { text, .. } => self.thought(text, out),
            ResponseEvent::Text { text, tokens, .. } => self.text(text, tokens, out),
            ResponseEvent::CallBegun { id, name, .. } => {
                let tool = self.options.tool_kinds.client_tool(name);
                let arguments = Arguments::new(&tool);
                self.open(OutputItemKind::Call { id: id.clone(), tool, arguments }, out);
            }
            ResponseEvent::CallArguments { text, .. } => self.arguments(|it| it.push(text), out),
            ResponseEvent::CallEnded { .. } => {
                self.arguments(Arguments::end, out);
                self.close("completed", out);
            }
            ResponseEvent::Finished { reason, usage, .. } => self.finish((reason, *usage), out),
            ResponseEvent::Failed(failure) => self.fail(failure, out),
        }
    }
}
