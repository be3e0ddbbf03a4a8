//! Writes completions, whole or in chunks.
//!
//! **Invariant:** the last chunk of each answer has the reason; then come the usage, if requested,
//! and `[DONE]`. A failure is the last chunk, without `[DONE]`. Thoughts are text, because the
//! prompt is not a conversation.

use serde_json::{Value as Json, json};

use crate::bytes;
use crate::chat::Delivery;
use crate::completions::request::Shape;
use crate::event::{self, Event, Progress, Reason, TokenLogprob, Usage};
use crate::logprobs::Columns;
use crate::request::Head;
use crate::usage::Totals;

/// Writes one response.
#[derive(Debug)]
pub struct Writer {
    shape: Shape,
    head: Head,
    answers: Vec<Answer>,
    totals: Totals,
}

/// An answer so far; its text is filled only if it is sent whole.
#[derive(Clone, Debug, Default)]
struct Answer {
    text: String,
    columns: Columns,
    finish: Option<&'static str>,
}

impl Writer {
    /// Creates a writer for the answer to a request of this shape.
    #[must_use]
    pub fn new(shape: Shape, head: Head) -> Self {
        let answers = vec![Answer::default(); shape.n_prompts * shape.n_answers];
        let totals = Totals::new(shape.n_prompts, shape.n_answers);
        Self { shape, head, answers, totals }
    }

    fn text(&mut self, index: usize, (text, tokens): (&str, &[TokenLogprob]), out: &mut Vec<u8>) {
        let answer = &mut self.answers[index];
        if self.shape.has_logprobs {
            answer.columns.push(tokens);
        }
        if self.shape.is_whole() {
            answer.text.push_str(text);
        } else if !text.is_empty() || (self.shape.has_logprobs && !tokens.is_empty()) {
            let choice = self.choice(index, text, None);
            bytes::data(&self.object(vec![choice]), out);
        }
    }

    fn choice(&mut self, index: usize, text: &str, finish: Option<&str>) -> Json {
        let has_logprobs = self.shape.has_logprobs;
        let logprobs = if has_logprobs { self.answers[index].columns.take() } else { Json::Null };
        json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish})
    }

    /// Creates the common object, with a null usage if that comes in the last chunk.
    fn object(&self, choices: Vec<Json>) -> Json {
        let mut object = json!({
            "id": format!("cmpl-{}", self.head.id),
            "object": "text_completion",
            "created": self.head.created_s,
            "model": self.head.model,
            "choices": choices,
        });
        if self.shape.delivery == Delivery::StreamWithUsage {
            object["usage"] = Json::Null;
        }
        object
    }

    /// Writes a chunk without text, because clients that count chunks or wait for the first ignore
    /// comments.
    fn alive(&self, progress: Progress, out: &mut Vec<u8>) {
        let choice = json!({"index": 0, "text": "", "logprobs": null, "finish_reason": null});
        let mut object = self.object(vec![choice]);
        object["moeflux_progress"] = bytes::progress(progress);
        bytes::data(&object, out);
    }

    fn finish(&mut self, index: usize, (reason, usage): (&Reason, Usage), out: &mut Vec<u8>) {
        let finish = if reason.is_cut() { "length" } else { "stop" };
        let is_last = self.totals.add(index, usage);
        if self.shape.is_whole() {
            self.answers[index].finish = Some(finish);
            if is_last {
                let object = self.completion();
                bytes::whole(&object, out);
            }
            return;
        }
        let choice = self.choice(index, "", Some(finish));
        bytes::data(&self.object(vec![choice]), out);
        if !is_last {
            return;
        }
        if self.shape.delivery == Delivery::StreamWithUsage {
            let mut object = self.object(Vec::new());
            object["usage"] = self.totals.openai();
            bytes::data(&object, out);
        }
        out.extend_from_slice(bytes::DONE);
    }

    fn completion(&mut self) -> Json {
        let choices = (0..self.answers.len()).map(|index| {
            let text = std::mem::take(&mut self.answers[index].text);
            let finish = self.answers[index].finish;
            self.choice(index, &text, finish)
        });
        let choices = choices.collect();
        let mut object = self.object(choices);
        object["usage"] = self.totals.openai();
        object
    }
}

impl event::Writer for Writer {
    fn write(&mut self, event: &Event, out: &mut Vec<u8>) {
        match event {
            // The prompt is not a conversation, so nothing is treated as a call.
            Event::Begun { .. }
            | Event::CallBegun { .. }
            | Event::CallArguments { .. }
            | Event::CallEnded { .. } => {}
            Event::Alive(_) if self.shape.is_whole() => bytes::blank(out),
            Event::Alive(progress) => self.alive(*progress, out),
            Event::Thought { index, text } => self.text(*index, (text, &[]), out),
            Event::Text { index, text, tokens } => self.text(*index, (text, tokens), out),
            Event::Finished { index, reason, usage } => self.finish(*index, (reason, *usage), out),
            Event::Failed(failure) if self.shape.is_whole() => {
                bytes::whole(&failure.openai(), out);
            }
            Event::Failed(failure) => bytes::data(&failure.openai(), out),
        }
    }
}
