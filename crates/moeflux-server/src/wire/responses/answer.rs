//! A response, whole or as events.
//!
//! **Invariant:** events are numbered from 0 without holes: `response.created`,
//! `response.in_progress`, for each item `output_item.added` and its part, deltas, `.done` of each,
//! and `response.completed`, `.incomplete` or `.failed` with the whole response. An answer that the
//! model ended has a message, be it empty.

use serde_json::{Value as Json, json};

use crate::wire::bytes;
use crate::wire::event::{self, Event, Progress, Reason, TokenLogprob, Usage};
use crate::wire::failure::{Failure, FailureKind};
use crate::wire::logprobs;
use crate::wire::request::Head;
use crate::wire::responses::request::Shape;
use crate::wire::usage;

/// Writes one response.
#[derive(Debug)]
pub struct Writer {
    shape: Shape,
    head: Head,
    n_events: usize,
    /// Items so far, the last one open.
    items: Vec<Item>,
}

#[derive(Clone, Debug)]
struct Item {
    kind: Kind,
    id: String,
    text: String,
    logprobs: Vec<Json>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Thought,
    Message,
}

impl Item {
    /// As it stands in the response's output.
    fn json(&self, status: &str) -> Json {
        match self.kind {
            Kind::Thought => json!({
                "id": self.id,
                "type": "reasoning",
                "summary": [],
                "content": [self.part()],
                "status": status,
            }),
            Kind::Message => json!({
                "id": self.id,
                "type": "message",
                "role": "assistant",
                "status": status,
                "content": [self.part()],
            }),
        }
    }

    /// Before it has a part.
    fn begun(&self) -> Json {
        let mut item = self.json("in_progress");
        item["content"] = json!([]);
        item
    }

    fn part(&self) -> Json {
        match self.kind {
            Kind::Thought => json!({"type": "reasoning_text", "text": self.text}),
            Kind::Message => json!({
                "type": "output_text",
                "text": self.text,
                "annotations": [],
                "logprobs": self.logprobs,
            }),
        }
    }

    /// The name of its text in events.
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Thought => "response.reasoning_text",
            Kind::Message => "response.output_text",
        }
    }
}

impl Writer {
    /// A writer for the answer to a request of this shape.
    #[must_use]
    pub fn new(shape: Shape, head: Head) -> Self {
        Self { shape, head, n_events: 0, items: Vec::new() }
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
            // Agents send a hundred kilobytes of these and know them already.
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

    /// An event with data: comments do not count as a sign of life for clients of this dialect.
    fn alive(&mut self, progress: Progress, out: &mut Vec<u8>) {
        let Progress { n_done, n_total, seconds_left } = progress;
        let progress =
            json!({"tokens_read": n_done, "tokens": n_total, "seconds_left": seconds_left});
        let response = self.response("in_progress", Vec::new());
        let event = json!({"response": response, "moeflux_progress": progress});
        self.event("response.in_progress", event, out);
    }

    /// The place of the open item in events about its part.
    fn place(&self) -> Json {
        let id = self.items.last().map(|item| item.id.as_str());
        json!({"item_id": id, "output_index": self.items.len().max(1) - 1, "content_index": 0})
    }

    fn open(&mut self, kind: Kind, out: &mut Vec<u8>) {
        if self.items.last().is_some_and(|item| item.kind == kind) {
            return;
        }
        self.close("completed", out);
        let prefix = if kind == Kind::Thought { "rs" } else { "msg" };
        let id = format!("{prefix}_{}_{}", self.head.id, self.items.len());
        let item = Item { kind, id, text: String::new(), logprobs: Vec::new() };
        let (begun, part) = (item.begun(), item.part());
        self.items.push(item);
        let event = json!({"output_index": self.items.len() - 1, "item": begun});
        self.event("response.output_item.added", event, out);
        let mut event = self.place();
        event["part"] = part;
        self.event("response.content_part.added", event, out);
    }

    fn more(&mut self, (kind, text): (Kind, &str), tokens: &[TokenLogprob], out: &mut Vec<u8>) {
        self.open(kind, out);
        let logprobs = if self.shape.has_logprobs { logprobs::list(tokens) } else { Vec::new() };
        let mut event = self.place();
        event["delta"] = text.into();
        let Some(item) = self.items.last_mut() else { return };
        item.text.push_str(text);
        item.logprobs.extend(logprobs.iter().cloned());
        let name = format!("{}.delta", item.name());
        if kind == Kind::Message {
            event["logprobs"] = logprobs.into();
        }
        self.event(&name, event, out);
    }

    fn close(&mut self, status: &str, out: &mut Vec<u8>) {
        let Some(item) = self.items.last() else { return };
        let (name, part, whole) = (format!("{}.done", item.name()), item.part(), item.json(status));
        let mut event = self.place();
        event["text"] = part["text"].clone();
        if item.kind == Kind::Message {
            event["logprobs"] = part["logprobs"].clone();
        }
        self.event(&name, event, out);
        let mut event = self.place();
        event["part"] = part;
        self.event("response.content_part.done", event, out);
        let event = json!({"output_index": self.items.len() - 1, "item": whole});
        self.event("response.output_item.done", event, out);
    }

    fn finish(&mut self, (reason, usage): (&Reason, Usage), out: &mut Vec<u8>) {
        let status = if reason.is_cut() { "incomplete" } else { "completed" };
        if !reason.is_cut() {
            self.open(Kind::Message, out);
        }
        self.close(status, out);
        let mut response = self.response(status, self.output(status));
        response["usage"] = usage::responses(usage);
        if reason.is_cut() {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        self.end(status, response, out);
    }

    fn output(&self, status_of_last: &str) -> Vec<Json> {
        let n_closed = self.items.len().max(1) - 1;
        let status = |index| if index < n_closed { "completed" } else { status_of_last };
        self.items.iter().enumerate().map(|(index, item)| item.json(status(index))).collect()
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
        let mut response = self.response("failed", self.output("incomplete"));
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
            Event::Thought { text, .. } => self.more((Kind::Thought, text), &[], out),
            Event::Text { text, tokens, .. } => {
                if !text.is_empty() || (self.shape.has_logprobs && !tokens.is_empty()) {
                    self.more((Kind::Message, text), tokens, out);
                }
            }
            Event::Finished { reason, usage, .. } => self.finish((reason, *usage), out),
            Event::Failed(failure) => self.fail(failure, out),
        }
    }
}
