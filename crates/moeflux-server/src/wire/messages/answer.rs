//! A message, whole or as events.
//!
//! **Invariant:** `message_start`, blocks one after another (a thought, then text), `message_delta`
//! with the reason and all tokens, `message_stop`. An `error` is the last event.

use serde_json::{Value as Json, json};

use crate::wire::bytes;
use crate::wire::event::{self, Event, Reason, Usage};
use crate::wire::messages::request::{Shape, Thoughts};
use crate::wire::request::Head;
use crate::wire::usage;

/// Clients keep a thought only with a signature, and send it back. It says nothing here.
const SIGNATURE: &str = "bW9lZmx1eA==";

/// Writes one response.
#[derive(Debug)]
pub struct Writer {
    shape: Shape,
    head: Head,
    /// Blocks so far, the last one open.
    blocks: Vec<Block>,
}

#[derive(Clone, Debug)]
struct Block {
    kind: Kind,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Thought,
    Text,
}

impl Block {
    fn json(&self, signature: &str) -> Json {
        match self.kind {
            Kind::Thought => {
                json!({"type": "thinking", "thinking": self.text, "signature": signature})
            }
            Kind::Text => json!({"type": "text", "text": self.text}),
        }
    }
}

impl Writer {
    /// A writer for the answer to a request of this shape.
    #[must_use]
    pub fn new(shape: Shape, head: Head) -> Self {
        Self { shape, head, blocks: Vec::new() }
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

    fn start(&self, (n_prompt_tokens, n_cached_tokens): (usize, usize), out: &mut Vec<u8>) {
        let usage = Usage { n_prompt_tokens, n_cached_tokens, ..Usage::default() };
        let message = self.message(Vec::new(), usage);
        bytes::named(&json!({"type": "message_start", "message": message}), out);
    }

    fn more(&mut self, kind: Kind, text: &str, out: &mut Vec<u8>) {
        if self.blocks.last().is_none_or(|block| block.kind != kind) {
            self.close(out);
            let block = Block { kind, text: String::new() };
            let event = json!({
                "type": "content_block_start",
                "index": self.blocks.len(),
                "content_block": block.json(""),
            });
            self.event(&event, out);
            self.blocks.push(block);
        }
        let is_omitted = kind == Kind::Thought && self.shape.thoughts == Thoughts::Omitted;
        if is_omitted || text.is_empty() {
            return;
        }
        if !self.shape.is_streamed {
            if let Some(block) = self.blocks.last_mut() {
                block.text.push_str(text);
            }
            return;
        }
        let delta = match kind {
            Kind::Thought => json!({"type": "thinking_delta", "thinking": text}),
            Kind::Text => json!({"type": "text_delta", "text": text}),
        };
        self.delta(&delta, out);
    }

    fn delta(&self, delta: &Json, out: &mut Vec<u8>) {
        let index = self.blocks.len() - 1;
        let event = json!({"type": "content_block_delta", "index": index, "delta": delta});
        self.event(&event, out);
    }

    fn close(&self, out: &mut Vec<u8>) {
        let Some(block) = self.blocks.last() else { return };
        if block.kind == Kind::Thought {
            self.delta(&json!({"type": "signature_delta", "signature": SIGNATURE}), out);
        }
        let index = self.blocks.len() - 1;
        self.event(&json!({"type": "content_block_stop", "index": index}), out);
    }

    fn event(&self, event: &Json, out: &mut Vec<u8>) {
        if self.shape.is_streamed {
            bytes::named(event, out);
        }
    }

    fn finish(&self, reason: &Reason, usage: Usage, out: &mut Vec<u8>) {
        let (stop_reason, stop_sequence) = stop(reason);
        if !self.shape.is_streamed {
            let content = self.blocks.iter().map(|block| block.json(SIGNATURE)).collect();
            let mut message = self.message(content, usage);
            message["stop_reason"] = stop_reason.into();
            message["stop_sequence"] = stop_sequence.into();
            return bytes::whole(&message, out);
        }
        self.close(out);
        let delta = json!({"stop_reason": stop_reason, "stop_sequence": stop_sequence});
        let usage = usage::messages(usage);
        bytes::named(&json!({"type": "message_delta", "delta": delta, "usage": usage}), out);
        bytes::named(&json!({"type": "message_stop"}), out);
    }
}

impl event::Writer for Writer {
    fn write(&mut self, event: &Event, out: &mut Vec<u8>) {
        let is_streamed = self.shape.is_streamed;
        match event {
            Event::Begun { n_prompt_tokens, n_cached_tokens } if is_streamed => {
                self.start((*n_prompt_tokens, *n_cached_tokens), out);
            }
            Event::Begun { .. } => {}
            Event::Alive(_) if is_streamed => bytes::named(&json!({"type": "ping"}), out),
            Event::Alive(_) => bytes::blank(out),
            Event::Thought { text, .. } => self.more(Kind::Thought, text, out),
            Event::Text { text, .. } if text.is_empty() => {}
            Event::Text { text, .. } => self.more(Kind::Text, text, out),
            Event::Finished { reason, usage, .. } => self.finish(reason, *usage, out),
            Event::Failed(failure) if is_streamed => bytes::named(&failure.anthropic(), out),
            Event::Failed(failure) => bytes::whole(&failure.anthropic(), out),
        }
    }
}

fn stop(reason: &Reason) -> (&'static str, Option<&str>) {
    match reason {
        Reason::End => ("end_turn", None),
        Reason::Stop(string) => ("stop_sequence", Some(string)),
        Reason::Length => ("max_tokens", None),
        Reason::ContextFull => ("model_context_window_exceeded", None),
    }
}

/// The response to a request for the number of a prompt's tokens.
#[must_use]
pub fn token_count(n_tokens: usize) -> Json {
    json!({"input_tokens": n_tokens})
}
