//! Writes a chat completion, whole or in chunks.
//!
//! **Invariant:** the first chunk of each answer has the role, and its last the reason; then come
//! the usage, if requested, and `[DONE]`. A failure is the last chunk, without `[DONE]`. All deltas
//! of a call have its index, and only the first has its id, kind and name. An answer that is sent
//! whole contains no cut calls, because half of a custom tool's text looks complete.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value as Json, json};

use crate::calls::{Arguments, ClientTool};
use crate::chat::request::{ChatWriterOptions, StreamMode};
use crate::event::bytes;
use crate::event::logprobs;
use crate::event::usage::Totals;
use crate::event::{EventWriter, PromptProgress, Reason, ResponseEvent, TokenLogprob, Usage};
use crate::request::ResponseHead;

/// Writes the events of one response as bytes.
#[derive(Debug)]
pub struct ChatWriter {
    options: ChatWriterOptions,
    head: ResponseHead,
    answers: Vec<ChatAnswer>,
    totals: Totals,
}

/// An answer so far; its texts are filled only if it is sent whole.
#[derive(Clone, Debug, Default)]
struct ChatAnswer {
    thoughts: String,
    text: String,
    /// JSON entries separated by commas; as values they would take about ten times the memory.
    logprobs: String,
    calls: Vec<ChatCall>,
    finish: Option<&'static str>,
}

/// A tool call so far.
#[derive(Clone, Debug)]
struct ChatCall {
    id: String,
    tool: ClientTool,
    arguments: Arguments,
    text: String,
    is_whole: bool,
}

impl ChatWriter {
    /// Creates a writer for the answer to a request with these options.
    #[must_use]
    pub fn new(options: ChatWriterOptions, head: ResponseHead) -> Self {
        let answers = vec![ChatAnswer::default(); options.n_answers];
        let totals = Totals::new(options.n_prompts, options.n_answers);
        Self { options, head, answers, totals }
    }

    fn stream(&mut self, event: &ResponseEvent, out: &mut Vec<u8>) {
        match event {
            ResponseEvent::Begun { .. } => {
                for index in 0..self.options.n_answers {
                    let delta = json!({"role": "assistant", "content": ""});
                    self.chunk(index, (delta, None), Json::Null, out);
                }
            }
            ResponseEvent::KeepAlive(progress) => bytes::comment(*progress, out),
            ResponseEvent::Progress(progress) => self.progress(*progress, out),
            ResponseEvent::Thought { index, text } => {
                let delta = json!({"reasoning_content": text, "reasoning": text});
                self.chunk(*index, (delta, None), Json::Null, out);
            }
            ResponseEvent::Text { index, text, tokens } => {
                let logprobs = self.logprobs(tokens);
                if !text.is_empty() || !logprobs.is_null() {
                    self.chunk(*index, (json!({"content": text}), None), logprobs, out);
                }
            }
            ResponseEvent::CallBegun { index, id, name, .. } => {
                let (call_idx, call) =
                    self.answers[*index].begin(id, self.options.tool_kinds.client_tool(name));
                let mut call = call.json();
                call["index"] = call_idx.into();
                let delta = json!({"content": null, "tool_calls": [call]});
                self.chunk(*index, (delta, None), Json::Null, out);
            }
            ResponseEvent::CallArguments { index, call_idx, text } => {
                let text = self.answers[*index].calls[*call_idx].arguments.push(text);
                self.arguments((*index, *call_idx), &text, out);
            }
            ResponseEvent::CallEnded { index, call_idx } => {
                let text = self.answers[*index].calls[*call_idx].arguments.end();
                self.arguments((*index, *call_idx), &text, out);
            }
            ResponseEvent::Finished { index, reason, usage } => {
                self.chunk(*index, (json!({}), Some(finish(reason))), Json::Null, out);
                self.finish(*index, *usage, out);
            }
            ResponseEvent::Failed(failure) => bytes::data(&failure.openai(), out),
        }
    }

    fn arguments(&self, (index, call_idx): (usize, usize), text: &str, out: &mut Vec<u8>) {
        if text.is_empty() {
            return;
        }
        let (kind, key) = self.answers[index].calls[call_idx].names();
        let call = json!({"index": call_idx, kind: {key: text}});
        self.chunk(index, (json!({"tool_calls": [call]}), None), Json::Null, out);
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

    /// Writes the progress with the names of llama.cpp, and an empty delta for clients that read
    /// one in every chunk.
    fn progress(&self, progress: PromptProgress, out: &mut Vec<u8>) {
        let delta = json!({"index": 0, "delta": {}, "logprobs": null, "finish_reason": null});
        let mut object = self.object("chat.completion.chunk", vec![delta]);
        let PromptProgress { n_done, n_cached, n_total, seconds_left, elapsed } = progress;
        let time_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        object["prompt_progress"] =
            json!({"total": n_total, "cache": n_cached, "processed": n_done, "time_ms": time_ms});
        if let Some(seconds_left) = seconds_left {
            object["prompt_progress"]["seconds_left"] = seconds_left.into();
        }
        bytes::data(&object, out);
    }

    /// Creates the common object, with a null usage if that comes in the last chunk.
    fn object(&self, name: &str, choices: Vec<Json>) -> Json {
        let mut object = json!({
            "id": format!("chatcmpl-{}", self.head.id),
            "object": name,
            "created": self.head.created_s,
            "model": self.head.model,
            "choices": choices,
        });
        if self.options.stream_mode == StreamMode::StreamWithUsage {
            object["usage"] = Json::Null;
        }
        object
    }

    fn logprobs(&self, tokens: &[TokenLogprob]) -> Json {
        if tokens.is_empty() || !self.options.has_logprobs {
            return Json::Null;
        }
        json!({"content": logprobs::list(tokens), "refusal": null})
    }

    fn finish(&mut self, index: usize, usage: Usage, out: &mut Vec<u8>) {
        if !self.totals.add(index, usage) {
            return;
        }
        if self.options.stream_mode == StreamMode::StreamWithUsage {
            let mut object = self.object("chat.completion.chunk", Vec::new());
            object["usage"] = self.totals.openai();
            bytes::data(&object, out);
        }
        out.extend_from_slice(bytes::DONE);
    }

    fn collect(&mut self, event: &ResponseEvent, out: &mut Vec<u8>) {
        match event {
            ResponseEvent::Begun { .. } => {}
            ResponseEvent::KeepAlive(_) => bytes::blank(out),
            ResponseEvent::Progress(_) => {}
            ResponseEvent::Thought { index, text } => self.answers[*index].thoughts.push_str(text),
            ResponseEvent::Text { index, text, tokens } => {
                let answer = &mut self.answers[*index];
                answer.text.push_str(text);
                if self.options.has_logprobs {
                    logprobs::append(tokens, &mut answer.logprobs);
                }
            }
            ResponseEvent::CallBegun { index, id, name, .. } => {
                self.answers[*index].begin(id, self.options.tool_kinds.client_tool(name));
            }
            ResponseEvent::CallArguments { index, call_idx, text } => {
                let call = &mut self.answers[*index].calls[*call_idx];
                call.text += &call.arguments.push(text);
            }
            ResponseEvent::CallEnded { index, call_idx } => {
                let call = &mut self.answers[*index].calls[*call_idx];
                call.text += &call.arguments.end();
                call.is_whole = true;
            }
            ResponseEvent::Finished { index, reason, usage } => {
                self.answers[*index].finish = Some(finish(reason));
                if self.totals.add(*index, *usage) {
                    self.completion(out);
                }
            }
            ResponseEvent::Failed(failure) => bytes::body(&failure.openai(), out),
        }
    }

    fn completion(&mut self, out: &mut Vec<u8>) {
        let has_logprobs = self.options.has_logprobs;
        let choice = |(index, answer): (usize, &mut ChatAnswer)| {
            let listed = format!("[{}]", std::mem::take(&mut answer.logprobs));
            let content = RawValue::from_string(listed).expect("what was written is JSON");
            ChatChoice {
                index,
                message: answer.message(),
                logprobs: has_logprobs.then_some(ChatLogprobs { content, refusal: () }),
                finish_reason: answer.finish,
            }
        };
        let choices = self.answers.iter_mut().enumerate().map(choice).collect();
        let whole = ChatCompletion {
            id: format!("chatcmpl-{}", self.head.id),
            object: "chat.completion",
            created: self.head.created_s,
            model: &self.head.model,
            choices,
            usage: self.totals.openai(),
        };
        bytes::body(&whole, out);
    }
}

/// The whole response.
#[derive(Serialize)]
struct ChatCompletion<'a> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChatChoice>,
    usage: Json,
}

/// An answer in the whole response.
#[derive(Serialize)]
struct ChatChoice {
    index: usize,
    message: Json,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

/// The log-probabilities of an answer's tokens.
#[derive(Serialize)]
struct ChatLogprobs {
    content: Box<RawValue>,
    refusal: (),
}

impl ChatAnswer {
    /// Adds a call. Returns its index.
    fn begin(&mut self, id: &str, tool: ClientTool) -> (usize, &ChatCall) {
        let arguments = Arguments::new(&tool);
        let call_idx = self.calls.len();
        let (id, text) = (id.to_owned(), String::new());
        self.calls.push(ChatCall { id, tool, arguments, text, is_whole: false });
        (call_idx, &self.calls[call_idx])
    }

    fn message(&self) -> Json {
        let mut message = json!({"role": "assistant", "content": self.text, "refusal": null});
        if !self.thoughts.is_empty() {
            message["reasoning_content"] = self.thoughts.as_str().into();
            message["reasoning"] = self.thoughts.as_str().into();
        }
        let calls: Vec<Json> =
            self.calls.iter().filter(|call| call.is_whole).map(ChatCall::json).collect();
        if !calls.is_empty() {
            if self.text.is_empty() {
                message["content"] = Json::Null;
            }
            message["tool_calls"] = calls.into();
        }
        message
    }
}

impl ChatCall {
    /// Returns the names of the call's kind and of its arguments.
    fn names(&self) -> (&'static str, &'static str) {
        if self.tool.is_custom { ("custom", "input") } else { ("function", "arguments") }
    }

    fn json(&self) -> Json {
        let (kind, key) = self.names();
        json!({"id": self.id, "type": kind, kind: {"name": self.tool.name, key: self.text}})
    }
}

impl EventWriter for ChatWriter {
    fn write(&mut self, event: &ResponseEvent, out: &mut Vec<u8>) {
        if self.options.is_whole() { self.collect(event, out) } else { self.stream(event, out) }
    }

    fn wants_progress(&self) -> bool {
        self.options.has_progress
    }
}

fn finish(reason: &Reason) -> &'static str {
    match reason {
        Reason::Length | Reason::ContextFull => "length",
        Reason::Calls => "tool_calls",
        Reason::End | Reason::Stop(_) => "stop",
    }
}
