//! Writes completions, whole or in chunks.
//!
//! **Invariant:** the last chunk of each answer has the reason; then come the usage, if requested,
//! and `[DONE]`. A failure is the last chunk, without `[DONE]`. Thoughts are text, because the
//! prompt is not a conversation.

use serde_json::{Value as Json, json};

use crate::chat::StreamMode;
use crate::completions::request::CompletionsWriterOptions;
use crate::event::bytes;
use crate::event::logprobs::LogprobColumns;
use crate::event::usage::Totals;
use crate::event::{EventWriter, PromptProgress, Reason, ResponseEvent, TokenLogprob, Usage};
use crate::request::ResponseHead;

/// Writes the events of one response as bytes.
#[derive(Debug)]
pub struct CompletionsWriter {
    options: CompletionsWriterOptions,
    head: ResponseHead,
    answers: Vec<CompletionAnswer>,
    totals: Totals,
}

/// An answer so far; its text is filled only if it is sent whole.
#[derive(Clone, Debug, Default)]
struct CompletionAnswer {
    text: String,
    columns: LogprobColumns,
    finish: Option<&'static str>,
}

impl CompletionsWriter {
    /// Creates a writer for the answer to a request with these options.
    #[must_use]
    pub fn new(options: CompletionsWriterOptions, head: ResponseHead) -> Self {
        let answers = vec![CompletionAnswer::default(); options.n_prompts * options.n_answers];
        let totals = Totals::new(options.n_prompts, options.n_answers);
        Self { options, head, answers, totals }
    }

    fn text(&mut self, index: usize, (text, tokens): (&str, &[TokenLogprob]), out: &mut Vec<u8>) {
        let answer = &mut self.answers[index];
        if self.options.has_logprobs {
            answer.columns.push(tokens);
        }
        if self.options.is_whole() {
            answer.text.push_str(text);
        } else if !text.is_empty() || (self.options.has_logprobs && !tokens.is_empty()) {
            let choice = self.choice(index, text, None);
            bytes::data(&self.object(vec![choice]), out);
        }
    }

    fn choice(&mut self, index: usize, text: &str, finish: Option<&str>) -> Json {
        let has_logprobs = self.options.has_logprobs;
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
        if self.options.stream_mode == StreamMode::StreamWithUsage {
            object["usage"] = Json::Null;
        }
        object
    }

    /// Writes a chunk without text, because clients that count chunks or wait for the first ignore
    /// comments.
    fn keep_alive(&self, progress: PromptProgress, out: &mut Vec<u8>) {
        let choice = json!({"index": 0, "text": "", "logprobs": null, "finish_reason": null});
        let mut object = self.object(vec![choice]);
        object["moeflux_progress"] = bytes::progress(progress);
        bytes::data(&object, out);
    }

    fn finish(&mut self, index: usize, (reason, usage): (&Reason, Usage), out: &mut Vec<u8>) {
        let finish = if reason.is_cut() { "length" } else { "stop" };
        let is_last = self.totals.add(index, usage);
        if self.options.is_whole() {
            self.answers[index].finish = Some(finish);
            if is_last {
                let object = self.completion();
                bytes::body(&object, out);
            }
            return;
        }
        let choice = self.choice(index, "", Some(finish));
        bytes::data(&self.object(vec![choice]), out);
        if !is_last {
            return;
        }
        if self.options.stream_mode == StreamMode::StreamWithUsage {
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

impl EventWriter for CompletionsWriter {
    fn write(&mut self, event: &ResponseEvent, out: &mut Vec<u8>) {
        match event {
            // The prompt is not a conversation, so nothing is treated as a call.
            ResponseEvent::Begun { .. }
            | ResponseEvent::Progress(_)
            | ResponseEvent::CallBegun { .. }
            | ResponseEvent::CallArguments { .. }
            | ResponseEvent::CallEnded { .. } => {}
            ResponseEvent::KeepAlive(_) if self.options.is_whole() => bytes::blank(out),
            ResponseEvent::KeepAlive(progress) => self.keep_alive(*progress, out),
            ResponseEvent::Thought { index, text } => self.text(*index, (text, &[]), out),
            ResponseEvent::Text { index, text, tokens } => self.text(*index, (text, tokens), out),
            ResponseEvent::Finished { index, reason, usage } => {
                self.finish(*index, (reason, *usage), out);
            }
            ResponseEvent::Failed(failure) if self.options.is_whole() => {
                bytes::body(&failure.openai(), out);
            }
            ResponseEvent::Failed(failure) => bytes::data(&failure.openai(), out),
        }
    }
}
