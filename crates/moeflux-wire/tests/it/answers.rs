//! Events to bytes, against files that `tools/check/wire.py` shows to the clients' own decoders.
//!
//! After an intended change, copy the output of a failing test over the file that it names, and let
//! the clients read it.

use std::path::Path;
use std::time::Duration;

use moeflux::TokenId;
use moeflux_wire::{
    EventWriter, Failure, FailureKind, PromptProgress, Reason, ResponseEvent, ResponseHead,
    TokenLogprob, TokenText, Usage, chat, completions, messages, responses,
};

fn head() -> ResponseHead {
    ResponseHead { id: "1f".into(), created_s: 1_795_442_432, model: "qwen3".into() }
}

pub(crate) fn begun() -> ResponseEvent {
    ResponseEvent::Begun { n_prompt_tokens: 12, n_cached_tokens: 8, n_cached_drive_tokens: 5 }
}

fn keep_alive() -> ResponseEvent {
    ResponseEvent::KeepAlive(PromptProgress {
        n_done: 1_024,
        n_total: 16_000,
        seconds_left: Some(95),
        ..PromptProgress::default()
    })
}

/// Progress at the start, in the middle and at the end.
fn progress() -> Vec<ResponseEvent> {
    let first = PromptProgress { n_total: 16_000, ..PromptProgress::default() };
    let middle = PromptProgress {
        n_done: 2_048,
        n_cached: 1_024,
        seconds_left: Some(95),
        elapsed: Duration::from_micros(6_500_900),
        ..first
    };
    let last = PromptProgress { elapsed: Duration::from_secs(101), ..middle }.completed();
    [first, middle, last].map(ResponseEvent::Progress).to_vec()
}

pub(crate) fn thought(index: usize, text: &str) -> ResponseEvent {
    ResponseEvent::Thought { index, text: text.into() }
}

pub(crate) fn text(index: usize, text: &str) -> ResponseEvent {
    ResponseEvent::Text { index, text: text.into(), tokens: Vec::new() }
}

pub(crate) fn finished(index: usize, reason: Reason, n_thought_tokens: usize) -> ResponseEvent {
    let usage = Usage {
        n_prompt_tokens: 12,
        n_cached_tokens: 8,
        n_cached_drive_tokens: 5,
        n_replayed: 2,
        n_answer_tokens: 7,
        n_thought_tokens,
    };
    ResponseEvent::Finished { index, reason, usage }
}

fn failed() -> ResponseEvent {
    let message = "expert 3 of layer 7: a read of 4096 bytes failed";
    ResponseEvent::Failed(Failure::new(FailureKind::Internal, message))
}

/// A token with its likelihood, and one that was as likely.
fn scored(text: &str, logprob: Option<f32>) -> TokenLogprob {
    let token = |id: u32, text: &str| TokenText {
        token: TokenId(id),
        text: text.into(),
        bytes: text.as_bytes().to_vec(),
    };
    let top = logprob.map(|it| vec![(token(5, "x"), it), (token(6, "y"), f32::NEG_INFINITY)]);
    TokenLogprob { token: token(4, text), logprob, top: top.unwrap_or_default() }
}

fn with_scores(index: usize, text: &str, tokens: Vec<TokenLogprob>) -> ResponseEvent {
    ResponseEvent::Text { index, text: text.into(), tokens }
}

/// Comparisons of one dialect.
#[derive(Default)]
pub(crate) struct Checks {
    wrong: Vec<String>,
}

impl Checks {
    fn check(&mut self, name: &str, writer: &mut dyn EventWriter, events: &[ResponseEvent]) {
        let mut found = Vec::new();
        for event in events {
            writer.write(event, &mut found);
        }
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/answers");
        if std::fs::read(folder.join(name)).unwrap_or_default() != found {
            let written = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
            std::fs::write(&written, found).unwrap();
            self.wrong.push(written.display().to_string());
        }
    }

    pub(crate) fn chat(&mut self, name: &str, body: &str, events: &[ResponseEvent]) {
        let (_, options) = chat::parse(body.as_bytes()).unwrap();
        self.check(name, &mut chat::ChatWriter::new(options, head()), events);
    }

    pub(crate) fn completions(&mut self, name: &str, body: &str, events: &[ResponseEvent]) {
        let (_, options) = completions::parse(body.as_bytes()).unwrap();
        self.check(name, &mut completions::CompletionsWriter::new(options, head()), events);
    }

    pub(crate) fn responses(&mut self, name: &str, body: &str, events: &[ResponseEvent]) {
        let (_, options) = responses::parse(body.as_bytes()).unwrap();
        self.check(name, &mut responses::ResponsesWriter::new(options, head()), events);
    }

    pub(crate) fn messages(&mut self, name: &str, body: &str, events: &[ResponseEvent]) {
        let (_, options) = messages::parse(body.as_bytes()).unwrap();
        self.check(name, &mut messages::MessagesWriter::new(options, head()), events);
    }

    #[track_caller]
    pub(crate) fn end(self) {
        assert!(self.wrong.is_empty(), "other bytes than recorded:\n{}", self.wrong.join("\n"));
    }
}

fn thinking() -> Vec<ResponseEvent> {
    vec![
        begun(),
        keep_alive(),
        thought(0, "I ad"),
        thought(0, "d.\n\u{e9}"),
        text(0, "Fo"),
        text(0, ""),
        text(0, "ur \"4\""),
        finished(0, Reason::End, 3),
    ]
}

fn cut_in_a_thought() -> Vec<ResponseEvent> {
    vec![begun(), thought(0, "I add"), finished(0, Reason::Length, 7)]
}

fn broken_off() -> Vec<ResponseEvent> {
    vec![begun(), thought(0, "I"), text(0, "Fo"), failed()]
}

fn empty() -> Vec<ResponseEvent> {
    vec![begun(), finished(0, Reason::End, 0)]
}

fn scores() -> Vec<ResponseEvent> {
    vec![
        begun(),
        with_scores(0, "", vec![scored("Fo", Some(-0.5))]),
        with_scores(0, "Four", vec![scored("ur", Some(-0.25))]),
        finished(0, Reason::Stop("\n".into()), 0),
    ]
}

#[test]
fn chat_completions() {
    let mut all = Checks::default();
    let body =
        |more: &str| format!(r#"{{"messages": [{{"role": "user", "content": "?"}}]{more}}}"#);
    let stream = body(r#", "stream": true"#);
    let with_usage = body(r#", "stream": true, "stream_options": {"include_usage": true}"#);
    all.chat("chat-thought.json", &body(""), &thinking());
    all.chat("chat-thought.sse", &with_usage, &thinking());
    all.chat("chat-cut.json", &body(""), &cut_in_a_thought());
    all.chat("chat-failed.json", &body(""), &broken_off());
    all.chat("chat-failed.sse", &stream, &broken_off());
    all.chat("chat-empty.sse", &stream, &empty());
    let with_progress: Vec<ResponseEvent> = [begun()]
        .into_iter()
        .chain(progress())
        .chain([keep_alive(), text(0, "Four"), finished(0, Reason::End, 0)])
        .collect();
    let wants_progress = r#", "return_progress": true, "stream": true"#;
    all.chat("chat-progress.sse", &body(wants_progress), &with_progress);
    let logprobs = r#", "logprobs": true, "top_logprobs": 2"#;
    all.chat("chat-logprobs.json", &body(logprobs), &scores());
    all.chat("chat-logprobs.sse", &body(&format!("{logprobs}, \"stream\": true")), &scores());
    let two = [
        begun(),
        text(1, "B"),
        text(0, "A"),
        finished(1, Reason::End, 0),
        text(0, "a"),
        finished(0, Reason::ContextFull, 0),
    ];
    all.chat("chat-two.json", &body(r#", "n": 2"#), &two);
    let with_usage = with_usage.replacen("\"stream\"", "\"n\": 2, \"stream\"", 1);
    all.chat("chat-two.sse", &with_usage, &two);
    all.end();
}

#[test]
fn completions() {
    let mut all = Checks::default();
    all.completions("completions-text.json", r#"{"prompt": "2+2"}"#, &thinking());
    let stream = r#"{"prompt": "2+2", "stream": true, "stream_options": {"include_usage": true}}"#;
    all.completions("completions-text.sse", stream, &thinking());
    all.completions("completions-failed.json", r#"{"prompt": "2+2"}"#, &broken_off());
    all.completions("completions-failed.sse", stream, &broken_off());
    let echoed = [
        begun(),
        with_scores(0, "2\u{e9}+", vec![scored("2\u{e9}", None), scored("+", Some(-1.5))]),
        with_scores(0, "2", vec![scored("2", Some(-0.25))]),
        finished(0, Reason::Length, 0),
    ];
    let body = r#"{"prompt": "2+2", "echo": true, "logprobs": 2, "max_tokens": 1}"#;
    all.completions("completions-echo.json", body, &echoed);
    let body = r#"{"prompt": [1], "echo": true, "logprobs": 2, "max_tokens": 1, "stream": true}"#;
    all.completions("completions-echo.sse", body, &echoed);
    let four: Vec<ResponseEvent> = [begun()]
        .into_iter()
        .chain((0..4).map(|index| text(index, &index.to_string())))
        .chain((0..4).rev().map(|index| finished(index, Reason::End, 0)))
        .collect();
    let body = r#"{"prompt": ["a", [1, 2]], "n": 2}"#;
    all.completions("completions-four.json", body, &four);
    all.end();
}

#[test]
fn responses() {
    let mut all = Checks::default();
    let (whole, stream) = (r#"{"input": "2+2"}"#, r#"{"input": "2+2", "stream": true}"#);
    all.responses("responses-thought.json", whole, &thinking());
    all.responses("responses-thought.sse", stream, &thinking());
    all.responses("responses-cut.json", whole, &cut_in_a_thought());
    all.responses("responses-cut.sse", stream, &cut_in_a_thought());
    all.responses("responses-failed.json", whole, &broken_off());
    all.responses("responses-failed.sse", stream, &broken_off());
    all.responses("responses-empty.sse", stream, &empty());
    let settings = r#"{"input": "2+2", "top_logprobs": 2, "temperature": 0.5, "top_p": 0.25,
        "include": ["message.output_text.logprobs"], "max_output_tokens": 64,
        "metadata": {"k": "v"}, "reasoning": {"effort": "low"}, "stream": true}"#;
    all.responses("responses-logprobs.sse", settings, &scores());
    all.end();
}

#[test]
fn messages() {
    let mut all = Checks::default();
    let body = |more: &str| {
        format!(r#"{{"max_tokens": 9, "messages": [{{"role": "user", "content": "?"}}]{more}}}"#)
    };
    let stream = body(r#", "stream": true"#);
    all.messages("messages-thought.json", &body(""), &thinking());
    all.messages("messages-thought.sse", &stream, &thinking());
    let omitted = r#", "stream": true, "thinking": {"type": "adaptive", "display": "omitted"}"#;
    all.messages("messages-omitted.sse", &body(omitted), &thinking());
    all.messages("messages-cut.json", &body(""), &cut_in_a_thought());
    all.messages("messages-cut.sse", &stream, &cut_in_a_thought());
    all.messages("messages-failed.json", &body(""), &broken_off());
    all.messages("messages-failed.sse", &stream, &broken_off());
    all.messages("messages-empty.sse", &stream, &empty());
    let stopped = [begun(), text(0, "Four"), finished(0, Reason::Stop("\n\n".into()), 0)];
    all.messages("messages-stopped.sse", &stream, &stopped);
    let full = [begun(), text(0, "Four"), finished(0, Reason::ContextFull, 0)];
    all.messages("messages-full.json", &body(""), &full);
    all.end();
}
