//! Writes a response, whole or as events.
//!
//! **Invariant:** events are numbered from 0 without gaps: `response.created`,
//! `response.in_progress`, for each item `output_item.added` and its part, deltas, `.done` of each,
//! and `response.completed`, `.incomplete` or `.failed` with the whole response. An answer that the
//! model ended has a call or a message, which may be empty. A cut call has no `.done`, because
//! agents act on it, and half of a custom tool's text looks complete.

use serde_json::{Value as Json, json};

use crate::bytes;
use crate::calls::Arguments;
use crate::event::{self, Event, Progress, Reason, TokenLogprob, Usage};
use crate::failure::{Failure, FailureKind};
use crate::logprobs;
use crate::request::Head;
use crate::responses::output::{Item, Kind};
use crate::responses::request::Shape;
use crate::usage;

/// Writes one response.
#[derive(Debug)]
pub struct Writer {
    shape: Shape,
    head: Head,
    n_events: usize,
    /// The items so far.
    items: Vec<Item>,
    /// Whether the last item is open.
    is_open: bool,
}

impl Writer {
    /// Creates a writer for the answer to a request of this shape.
    #[must_use]
    pub fn new(shape: Shape, head: Head) -> Self {
        Self { shape, head, n_events: 0, items: Vec::new(), is_open: false }
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
        for (key, value) in &self.shape.settings {
            response[key.as_str()] = value.clone();
        }
        response
    }

    fn event(&mut self, name: &str, mut event: Json, out: &mut Vec<u8>) {
        if !self.shape.is_streamed {
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
    fn alive(&mut self, progress: Progress, out: &mut Vec<u8>) {
        let progress = bytes::progress(progress);
        let response = self.response("in_progress", Vec::new());
        let event = json!({"response": response, "moeflux_progress": progress});
        self.event("response.in_progress", event, out);
    }

    /// Returns the fields that identify the last item in events about its text.
    fn place(&self) -> Json {
        let Some(item) = self.items.last() else { return json!({}) };
        let mut place = json!({"item_id": item.id, "output_index": self.items.len() - 1});
        if !item.is_call() {
            place["content_index"] = 0.into();
        }
        place
    }

    fn open(&mut self, kind: Kind, out: &mut Vec<u8>) {
        self.close_as("completed", out);
        let item = Item::new(kind, &self.head.id, self.items.len());
        let (begun, part) = (item.begun(), (!item.is_call()).then(|| item.part()));
        self.items.push(item);
        self.is_open = true;
        let event = json!({"output_index": self.items.len() - 1, "item": begun});
        self.event("response.output_item.added", event, out);
        if let Some(part) = part {
            let mut event = self.place();
            event["part"] = part;
            self.event("response.content_part.added", event, out);
        }
    }

    fn thought(&mut self, text: &str, out: &mut Vec<u8>) {
        if !matches!(self.open_kind(), Some(Kind::Thought)) {
            self.open(Kind::Thought, out);
        }
        self.more(text, None, out);
    }

    fn text(&mut self, text: &str, tokens: &[TokenLogprob], out: &mut Vec<u8>) {
        let logprobs = if self.shape.has_logprobs { logprobs::list(tokens) } else { Vec::new() };
        if text.is_empty() && logprobs.is_empty() {
            return;
        }
        if !matches!(self.open_kind(), Some(Kind::Message)) {
            self.open(Kind::Message, out);
        }
        self.more(text, Some(logprobs), out);
    }

    fn open_kind(&mut self) -> Option<&mut Kind> {
        self.items.last_mut().filter(|_| self.is_open).map(|item| &mut item.kind)
    }

    /// Appends text to the last item, with log-probabilities if it is a message.
    fn more(&mut self, text: &str, logprobs: Option<Vec<Json>>, out: &mut Vec<u8>) {
        let mut event = self.place();
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
        let Some(Kind::Call { arguments, .. }) = self.open_kind() else { return };
        let text = take(arguments);
        if !text.is_empty() {
            self.more(&text, None, out);
        }
    }

    /// Closes the open item with this status; a call that has not ended becomes incomplete.
    fn close_as(&mut self, status: &'static str, out: &mut Vec<u8>) {
        let is_in_call = matches!(self.open_kind(), Some(Kind::Call { .. }));
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
        let mut event = self.place();
        event[item.key()] = item.text.as_str().into();
        match &item.kind {
            Kind::Thought => {}
            Kind::Message => event["logprobs"] = item.logprobs.clone().into(),
            // Required by older type definitions of the client.
            Kind::Call { target, .. } => event["name"] = target.name.as_str().into(),
        }
        self.event(&format!("{}.done", item.name()), event, out);
        if !item.is_call() {
            let mut event = self.place();
            event["part"] = item.part();
            self.event("response.content_part.done", event, out);
        }
        let event = json!({"output_index": self.items.len() - 1, "item": item.json()});
        self.event("response.output_item.done", event, out);
    }

    fn finish(&mut self, (reason, usage): (&Reason, Usage), out: &mut Vec<u8>) {
        let status = if reason.is_cut() { "incomplete" } else { "completed" };
        let has_words = self.items.iter().any(|item| !matches!(item.kind, Kind::Thought));
        if !reason.is_cut() && !has_words {
            self.open(Kind::Message, out);
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
        self.items.iter().map(Item::json).collect()
    }

    fn fail(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        if !self.shape.is_streamed {
            return bytes::whole(&failure.openai(), out);
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
        if self.shape.is_streamed {
            self.event(&format!("response.{status}"), json!({"response": response}), out);
        } else {
            bytes::whole(&response, out);
        }
    }
}

impl event::Writer for Writer {
    fn write(&mut self, event: &Event, out: &mut Vec<u8>) {
        match event {
            Event::Begun { .. } => self.begin(out),
            Event::Alive(_) if !self.shape.is_streamed => bytes::blank(out),
            Event::Alive(progress) => self.alive(*progress, out),
            Event::Thought { text, .. } => self.thought(text, out),
            Event::Text { text, tokens, .. } => self.text(text, tokens, out),
            Event::CallBegun { id, name, .. } => {
                let target = self.shape.kinds.target(name);
                let arguments = Arguments::new(&target);
                self.open(Kind::Call { id: id.clone(), target, arguments }, out);
            }
            Event::CallArguments { text, .. } => self.arguments(|it| it.push(text), out),
            Event::CallEnded { .. } => {
                self.arguments(Arguments::end, out);
                self.close("completed", out);
            }
            Event::Finished { reason, usage, .. } => self.finish((reason, *usage), out),
            Event::Failed(failure) => self.fail(failure, out),
        }
    }
}
