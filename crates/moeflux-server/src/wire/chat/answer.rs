//! A chat completion, whole or in chunks.
//!
//! **Invariant:** the first chunk of each answer has the role; its last has the reason; then comes
//! the usage, if it was asked for, and `[DONE]`. A failure is the last chunk, without `[DONE]`.

use serde_json::{Value as Json, json};

use crate::wire::bytes;
use crate::wire::chat::request::{Delivery, Shape};
use crate::wire::event::{self, Event, Reason, TokenLogprob, Usage};
use crate::wire::logprobs;
use crate::wire::request::Head;
use crate::wire::usage::Totals;

/// Writes one response.
#[derive(Debug)]
pub struct Writer {
    shape: Shape,
    head: Head,
    answers: Vec<Answer>,
    totals: Totals,
}

/// An answer that is collected.
#[derive(Clone, Debug, Default)]
struct Answer {
    thoughts: String,
    text: String,
    logprobs: Vec<Json>,
    finish: Option<&'static str>,
}

impl Writer {
    /// A writer for the answer to a request of this shape.
    #[must_use]
    pub fn new(shape: Shape, head: Head) -> Self {
        let answers = vec![Answer::default(); if shape.is_whole() { shape.n_answers } else { 0 }];
        let totals = Totals::new(shape.n_prompts, shape.n_answers);
        Self { shape, head, answers, totals }
    }

    fn stream(&mut self, event: &Event, out: &mut Vec<u8>) {
        match event {
            Event::Begun { .. } => {
                for index in 0..self.shape.n_answers {
                    let delta = json!({"role": "assistant", "content": ""});
                    self.chunk(index, (delta, None), Json::Null, out);
                }
            }
            Event::Alive(progress) => bytes::comment(*progress, out),
            Event::Thought { index, text } => {
                let delta = json!({"reasoning_content": text, "reasoning": text});
                self.chunk(*index, (delta, None), Json::Null, out);
            }
            Event::Text { index, text, tokens } => {
                let logprobs = self.logprobs(tokens);
                if !text.is_empty() || !logprobs.is_null() {
                    self.chunk(*index, (json!({"content": text}), None), logprobs, out);
                }
            }
            Event::Finished { index, reason, usage } => {
                self.chunk(*index, (json!({}), Some(finish(reason))), Json::Null, out);
                self.finish(*index, *usage, out);
            }
            Event::Failed(failure) => bytes::data(&failure.openai(), out),
        }
    }

    fn chunk(
        &self,
        index: usize,
        (delta, finish): (Json, Option<&str>),
        logprobs: Json,
        out: &mut Vec<u8>,
    ) {
        let choice = json!({
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish,
        });
        bytes::data(&self.object("chat.completion.chunk", vec![choice]), out);
    }

    /// With null for the usage, where it comes in the last chunk.
    fn object(&self, name: &str, choices: Vec<Json>) -> Json {
        let mut object = json!({
            "id": format!("chatcmpl-{}", self.head.id),
            "object": name,
            "created": self.head.created_s,
            "model": self.head.model,
            "choices": choices,
        });
        if self.shape.delivery == Delivery::StreamWithUsage {
            object["usage"] = Json::Null;
        }
        object
    }

    fn logprobs(&self, tokens: &[TokenLogprob]) -> Json {
        if tokens.is_empty() || !self.shape.has_logprobs {
            return Json::Null;
        }
        json!({"content": logprobs::list(tokens), "refusal": null})
    }

    fn finish(&mut self, index: usize, usage: Usage, out: &mut Vec<u8>) {
        if !self.totals.add(index, usage) {
            return;
        }
        if self.shape.delivery == Delivery::StreamWithUsage {
            let mut object = self.object("chat.completion.chunk", Vec::new());
            object["usage"] = self.totals.openai();
            bytes::data(&object, out);
        }
        out.extend_from_slice(bytes::DONE);
    }

    fn collect(&mut self, event: &Event, out: &mut Vec<u8>) {
        match event {
            Event::Begun { .. } => {}
            Event::Alive(_) => bytes::blank(out),
            Event::Thought { index, text } => self.answers[*index].thoughts.push_str(text),
            Event::Text { index, text, tokens } => {
                let answer = &mut self.answers[*index];
                answer.text.push_str(text);
                if self.shape.has_logprobs {
                    answer.logprobs.extend(logprobs::list(tokens));
                }
            }
            Event::Finished { index, reason, usage } => {
                self.answers[*index].finish = Some(finish(reason));
                if self.totals.add(*index, *usage) {
                    bytes::whole(&self.completion(), out);
                }
            }
            Event::Failed(failure) => bytes::whole(&failure.openai(), out),
        }
    }

    fn completion(&self) -> Json {
        let choices = self.answers.iter().enumerate();
        let choices = choices.map(|(index, answer)| {
            let logprobs = match self.shape.has_logprobs {
                true => json!({"content": answer.logprobs, "refusal": null}),
                false => Json::Null,
            };
            json!({
                "index": index,
                "message": answer.message(),
                "logprobs": logprobs,
                "finish_reason": answer.finish,
            })
        });
        let mut object = self.object("chat.completion", choices.collect());
        object["usage"] = self.totals.openai();
        object
    }
}

impl Answer {
    fn message(&self) -> Json {
        let mut message = json!({"role": "assistant", "content": self.text, "refusal": null});
        if !self.thoughts.is_empty() {
            message["reasoning_content"] = self.thoughts.as_str().into();
            message["reasoning"] = self.thoughts.as_str().into();
        }
        message
    }
}

impl event::Writer for Writer {
    fn write(&mut self, event: &Event, out: &mut Vec<u8>) {
        if self.shape.is_whole() { self.collect(event, out) } else { self.stream(event, out) }
    }
}

fn finish(reason: &Reason) -> &'static str {
    if reason.is_cut() { "length" } else { "stop" }
}
