//! Estimates the memory of a request from the time its prompt is tokenised until its response has
//! been sent.
//!
//! **Invariant:** upper estimates that depend neither on a clock nor on other requests.

use crate::http::memory::body_size::BodySize;
use moeflux_wire::{Prompt, Request, ResponseEvent};

/// For any request: its task, its channels, its log line.
const FIXED: usize = 64 << 10;
/// A token of a prompt, in the job, in the session's list and in transit.
const PER_TOKEN: usize = 16;
/// A value of a tool, in each place that keeps it.
const PER_VALUE: usize = 256;
/// Chunks of an answer that wait for a client, in the inbox and after the writer.
const N_CHUNKS: usize = 192;
/// A chunk, and a log-probability in it.
const PER_CHUNK: usize = 256;
const PER_CHUNK_SCORE: usize = 256;
/// A grammar in its initial state, and the bytes for each byte of its source.
const GRAMMAR_FIXED: usize = 256 << 10;
const GRAMMAR_PER_BYTE: usize = 8;
/// A log-probability of an echoed prompt, on its way to the writer.
const PER_ECHOED_SCORE: usize = 400;
/// A byte of a collected answer: as text, in the response, and in the copy that is sent.
const PER_COLLECTED_BYTE: usize = 8;
/// A byte of a streamed answer, whose sampled tokens are kept for replays.
const PER_STREAMED_BYTE: usize = 3;

/// Estimates the memory of a request, from what is known before its jobs are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryEstimate {
    n_bytes: usize,
    n_answers: usize,
    n_top: Option<usize>,
    is_echoed: bool,
}

impl MemoryEstimate {
    /// Estimates a request whose body has this size.
    pub(crate) fn of(size: BodySize, request: &Request) -> Self {
        let (n_prompts, has_tools) = match &request.prompt {
            Prompt::Chat(conversation, _) => (1, !conversation.tools.is_empty()),
            Prompt::Texts(texts) => (texts.len(), false),
        };
        let n_answers = n_prompts.saturating_mul(request.n_answers);
        let n_top = request.sampling.n_logprobs;
        let per_chunk = PER_CHUNK + n_top.map_or(0, |n_top| (1 + n_top) * PER_CHUNK_SCORE);
        let mut n_bytes = FIXED + N_CHUNKS * per_chunk;
        if has_tools {
            let of_values = size.n_values.saturating_mul(PER_VALUE);
            let tools = size.n_bytes.saturating_add(of_values);
            n_bytes = n_bytes.saturating_add(tools.saturating_mul(2 + n_answers));
        }
        if has_tools || request.form_field.is_some() {
            let grammar = GRAMMAR_FIXED + size.n_bytes.saturating_mul(GRAMMAR_PER_BYTE);
            n_bytes = n_bytes.saturating_add(grammar);
        }
        Self { n_bytes, n_answers, n_top, is_echoed: request.is_echoed }
    }

    /// Returns the whole estimate, with prompts of `n_prompt_tokens` in total.
    pub(crate) fn bytes(&self, n_prompt_tokens: usize, n_echo_bytes: usize) -> usize {
        let tokens = n_prompt_tokens.saturating_mul(PER_TOKEN);
        let echo = n_echo_bytes.saturating_mul(1 + self.n_answers);
        let n_scores = match self.n_top.filter(|_| self.is_echoed) {
            None => 0,
            Some(n_top) => n_prompt_tokens.saturating_mul(self.n_answers).saturating_mul(1 + n_top),
        };
        let scores = n_scores.saturating_mul(PER_ECHOED_SCORE);
        self.n_bytes.saturating_add(tokens).saturating_add(echo).saturating_add(scores)
    }
}

/// Returns the memory that these events add; each collected log-probability takes `score_bytes`.
pub(crate) fn added_bytes(
    events: &[ResponseEvent],
    is_streamed: bool,
    score_bytes: usize,
) -> usize {
    let (per_byte, per_score) = match is_streamed {
        true => (PER_STREAMED_BYTE, 0),
        false => (PER_COLLECTED_BYTE, score_bytes),
    };
    let added = events.iter().map(|event| match event {
        ResponseEvent::Thought { text, .. } | ResponseEvent::CallArguments { text, .. } => {
            per_byte * text.len()
        }
        ResponseEvent::Text { text, tokens, .. } => {
            let n_scores: usize = tokens.iter().map(|token| 1 + token.top.len()).sum();
            per_byte * text.len() + per_score * n_scores
        }
        ResponseEvent::CallBegun { id, name, .. } => per_byte * (128 + id.len() + name.len()),
        _ => 0,
    });
    added.sum()
}
