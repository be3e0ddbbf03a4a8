//! Writes a message, whole or as events.
//!
//! **Invariant:** `message_start`, blocks one after another (a thought, then texts and calls),
//! `message_delta` with the reason and all tokens, `message_stop`. An `error` is the last event. A
//! message that is sent whole contains no cut calls, because half of the arguments is not an
//! object. In a stream, the arguments of a cut call never form an object.

use serde_json::{Map, Value as Json, json};

use crate::event::bytes;
use crate::event::usage;
use crate::event::{EventWriter, Reason, ResponseEvent, Usage};
use crate::messages::request::{MessagesWriterOptions, ThoughtDisplay};
use crate::request::ResponseHead;

/// The signature of thoughts, without meaning here. Clients keep a thought only if it has one, and
/// send it back.
const SIGNATURE: &str = "bW9lZmx1eA==";

/// Writes the events of one response as bytes.
#[derive(Debug)]
pub struct MessagesWriter {
    options: MessagesWriterOptions,
    head: ResponseHead,
    /// The blocks so far; their texts are filled only if the message is sent whole.
    blocks: Vec<ContentBlock>,
    /// Whether the last block is open.
    is_open: bool,
}

/// A block of the message so far.
#[derive(Clone, Debug)]
struct ContentBlock {
    kind: ContentBlockKind,
    text: String,
    /// Whether nothing of it was written yet.
    is_empty: bool,
    /// Whether it is complete: true, except for a call that has not ended.
    is_whole: bool,
}

/// The contents of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ContentBlockKind {
    Thought,
    Text,
    Call { id: String, name: String },
}

impl ContentBlock {
    /// Returns the block at its start, for a stream.
    fn begun(&self) -> Json {
        match &self.kind {
            ContentBlockKind::Call { id, name } => call(id, name, Map::new()),
            _ => self.json(""),
        }
    }

    /// Returns the whole block.
    fn json(&self, signature: &str) -> Json {
        match &self.kind {
            ContentBlockKind::Thought => {
                json!({"type": "thinking", "thinking": self.text, "signature": signature})
            }
            ContentBlockKind::Text => json!({"type": "text", "text": self.text}),
            ContentBlockKind::Call { id, name } => {
                call(id, name, serde_json::from_str(&self.text).unwrap_or_default())
            }
        }
    }
}

fn call(id: &str, name: &str, input: Map<String, Json>) -> Json {
    json!({"type": "tool_use", "id": id, "name": name, "input": input})
}

impl MessagesWriter {
    /// Creates a writer for the answer to a request with these options.
    #[must_use]
    pub fn new(options: MessagesWriterOptions, head: ResponseHead) -> Self {
        Self { options, head, blocks: Vec::new(), is_open: false }
    }

    fn message(&self, content: Vec<Json>, usage: Usage) -> Json {
        json!({
            "id": format!("msg_{}", self.head.id),
            "type": "message",
            "role": "assistant",
            "model": self.head.model,
            "content": content,
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage::messages(usage),
        })
    }

    fn start(&self, usage: Usage, out: &mut Vec<u8>) {
        let message = self.message(Vec::new(), usage);
        bytes::named(&json!({"type": "message_start", "message": message}), out);
    }

    fn open(&mut self, kind: ContentBlockKind, out: &mut Vec<u8>) {
        self.close(out);
        let is_whole = !matches!(kind, ContentBlockKind::Call { .. });
        let block = ContentBlock { kind, text: String::new(), is_empty: true, is_whole };
        let event = json!({
            "type": "content_block_start",
            "index": self.blocks.len(),
            "content_block": block.begun(),
        });
        self.event(&event, out);
        self.blocks.push(block);
        self.is_open = true;
    }

    fn thought(&mut self, text: &str, out: &mut Vec<u8>) {
        self.continue_block(ContentBlockKind::Thought, out);
        if self.options.thought_display == ThoughtDisplay::Shown {
            self.more(text, json!({"type": "thinking_delta", "thinking": text}), out);
        }
    }

    fn text(&mut self, text: &str, out: &mut Vec<u8>) {
        if !text.is_empty() {
            self.continue_block(ContentBlockKind::Text, out);
            self.more(text, json!({"type": "text_delta", "text": text}), out);
        }
    }

    fn continue_block(&mut self, kind: ContentBlockKind, out: &mut Vec<u8>) {
        let is_open = self.is_open && self.blocks.last().is_some_and(|block| block.kind == kind);
        if !is_open {
            self.open(kind, out);
        }
    }

    fn more(&mut self, text: &str, delta: Json, out: &mut Vec<u8>) {
        if text.is_empty() {
            return;
        }
        let Some(block) = self.blocks.last_mut() else { return };
        block.is_empty = false;
        if self.options.is_streamed {
            self.delta(&delta, out);
        } else {
            block.text.push_str(text);
        }
    }

    fn arguments(&mut self, text: &str, out: &mut Vec<u8>) {
        self.more(text, json!({"type": "input_json_delta", "partial_json": text}), out);
    }

    /// Ends a call. Absent arguments become an empty object, because agents act when a block is
    /// complete and some parse empty arguments as JSON.
    fn end_call(&mut self, out: &mut Vec<u8>) {
        if self.blocks.last().is_some_and(|block| block.is_empty) {
            self.arguments("{}", out);
        }
        if let Some(block) = self.blocks.last_mut() {
            block.is_whole = true;
        }
        self.close(out);
    }

    fn delta(&self, delta: &Json, out: &mut Vec<u8>) {
        let index = self.blocks.len() - 1;
        let event = json!({"type": "content_block_delta", "index": index, "delta": delta});
        self.event(&event, out);
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        let Some(block) = self.blocks.last().filter(|_| self.is_open) else { return };
        if block.kind == ContentBlockKind::Thought {
            self.delta(&json!({"type": "signature_delta", "signature": SIGNATURE}), out);
        }
        if block.is_empty && !block.is_whole {
            // A cut call without arguments would look like one that needs none.
            self.delta(&json!({"type": "input_json_delta", "partial_json": "{"}), out);
        }
        let index = self.blocks.len() - 1;
        self.event(&json!({"type": "content_block_stop", "index": index}), out);
        self.is_open = false;
    }

    fn event(&self, event: &Json, out: &mut Vec<u8>) {
        if self.options.is_streamed {
            bytes::named(event, out);
        }
    }

    fn finish(&mut self, reason: &Reason, usage: Usage, out: &mut Vec<u8>) {
        let (stop_reason, stop_sequence) = stop(reason);
        if !self.options.is_streamed {
            let whole = self.blocks.iter().filter(|block| block.is_whole);
            let content = whole.map(|block| block.json(SIGNATURE)).collect();
            let mut message = self.message(content, usage);
            message["stop_reason"] = stop_reason.into();
            message["stop_sequence"] = stop_sequence.into();
            return bytes::body(&message, out);
        }
        self.close(out);
        let delta = json!({"stop_reason": stop_reason, "stop_sequence": stop_sequence});
        let usage = usage::messages(usage);
        bytes::named(&json!({"type": "message_delta", "delta": delta, "usage": usage}), out);
        bytes::named(&json!({"type": "message_stop"}), out);
    }
}

impl EventWriter for MessagesWriter {
    fn write(&mut self, event: &ResponseEvent, out: &mut Vec<u8>) {
        let is_streamed = self.options.is_streamed;
        match event {
            &ResponseEvent::Begun { n_prompt_tokens, n_cached_tokens, n_cached_drive_tokens }
                if is_streamed =>
            {
                let of_prompt = Usage {
                    n_prompt_tokens,
                    n_cached_tokens,
                    n_cached_drive_tokens,
                    ..Usage::NONE
                };
                self.start(of_prompt, out);
            }
            ResponseEvent::Begun { .. } | ResponseEvent::Progress(_) => {}
            ResponseEvent::KeepAlive(_) if is_streamed => {
                bytes::named(&json!({"type": "ping"}), out);
            }
            ResponseEvent::KeepAlive(_) => bytes::blank(out),
            ResponseEvent::Thought { text, .. } => self.thought(text, out),
            ResponseEvent::Text { text, .. } => self.text(text, out),
            ResponseEvent::CallBegun { id, name, .. } => {
                self.open(ContentBlockKind::Call { id: id.clone(), name: name.clone() }, out);
            }
            ResponseEvent::CallArguments { text, .. } => self.arguments(text, out),
            ResponseEvent::CallEnded { .. } => self.end_call(out),
            ResponseEvent::Finished { reason, usage, .. } => self.finish(reason, *usage, out),
            ResponseEvent::Failed(failure) if is_streamed => {
                bytes::named(&failure.anthropic(), out);
            }
            ResponseEvent::Failed(failure) => bytes::body(&failure.anthropic(), out),
        }
    }
}

fn stop(reason: &Reason) -> (&'static str, Option<&str>) {
    match reason {
        Reason::End => ("end_turn", None),
        Reason::Calls => ("tool_use", None),
        Reason::Stop(string) => ("stop_sequence", Some(string)),
        Reason::Length => ("max_tokens", None),
        Reason::ContextFull => ("model_context_window_exceeded", None),
    }
}

/// Returns the response to a request for a prompt's token count.
#[must_use]
pub fn token_count(n_tokens: usize) -> Json {
    json!({"input_tokens": n_tokens})
}
