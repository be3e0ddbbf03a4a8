//! Events while a request is served, common to all dialects.
//!
//! **Invariant:** [`ResponseEvent::Begun`] comes first; in each answer, thoughts come before text
//! and calls, which come in any order, and [`ResponseEvent::Finished`] comes last;
//! [`ResponseEvent::Failed`] is the last of all. The events of a call are not interleaved with
//! others of its answer, and a call without [`ResponseEvent::CallEnded`] was cut.

pub(crate) mod answer;
pub(crate) mod bytes;
pub(crate) mod usage;
pub(crate) mod logprobs;

use std::time::Duration;

use moeflux::{Finish, TokenId};

use crate::failure::Failure;

/// What happens while a request is served. Answers are counted from 0: those of the first prompt,
/// then those of the next.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ResponseEvent {
    /// The request is admitted.
    Begun {
        /// Tokens of all prompts.
        n_prompt_tokens: usize,
        /// The number of those tokens that are known to need no computation.
        n_cached_tokens: usize,
        /// The number of the latter that were loaded from a drive.
        n_cached_drive_tokens: usize,
    },
    /// A keep-alive, for clients with short timeouts.
    KeepAlive(PromptProgress),
    /// How far the prompts are read, for a writer that [`EventWriter::wants_progress`]. Comes after
    /// [`ResponseEvent::Begun`], and for the last time before anything of an answer.
    Progress(PromptProgress),
    /// More of an answer's thoughts.
    Thought {
        /// The index of the answer.
        index: usize,
        /// The next part of the thoughts.
        text: String,
    },
    /// More of an answer's text; preceded by the prompt, if it is to be echoed.
    Text {
        /// The index of the answer.
        index: usize,
        /// The next part of the text; may be empty, if the text of the tokens is held back.
        text: String,
        /// The tokens of the text, if log-probabilities were requested; at the end also the token
        /// that ended the answer.
        tokens: Vec<TokenLogprob>,
    },
    /// An answer calls a tool.
    CallBegun {
        /// The index of the answer.
        index: usize,
        /// The index of the call in its answer, from 0 without gaps.
        call_idx: usize,
        /// An id that is unique in the conversation.
        id: String,
        /// The tool's [`moeflux_chat::Tool::name`].
        name: String,
    },
    /// More of a call's arguments, which concatenated are one JSON object.
    CallArguments {
        /// The index of the answer.
        index: usize,
        /// The index of the call.
        call_idx: usize,
        /// The next part of the arguments.
        text: String,
    },
    /// The arguments of a call are complete.
    CallEnded {
        /// The index of the answer.
        index: usize,
        /// The index of the call.
        call_idx: usize,
    },
    /// An answer ended.
    Finished {
        /// The index of the answer.
        index: usize,
        /// The reason why it ended.
        reason: Reason,
        /// Its token counts.
        usage: Usage,
    },
    /// The request failed.
    Failed(Failure),
}

/// Progress in processing the prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptProgress {
    /// The number of processed tokens, including those that needed no computation.
    pub n_done: usize,
    /// The number of tokens that needed no computation.
    pub n_cached: usize,
    /// The number of tokens to process.
    pub n_total: usize,
    /// The estimated remaining time in seconds.
    pub seconds_left: Option<u64>,
    /// The time since the first prompt began to be read; zero while all wait.
    pub elapsed: Duration,
}

impl PromptProgress {
    /// Returns the progress at the time when all prompts have been read.
    #[must_use]
    pub fn completed(self) -> Self {
        Self { n_done: self.n_total, seconds_left: Some(0), ..self }
    }
}

/// The reason why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The model ended it.
    End,
    /// The model ended it, and waits for the results of its calls.
    Calls,
    /// This stop string occurred.
    Stop(String),
    /// The answer reached the requested number of tokens.
    Length,
    /// The context is full.
    ContextFull,
}

impl Reason {
    /// Converts the engine's reason; `stopped` is the stop string. Returns `None` if the answer was
    /// cancelled: either the client is gone, or it receives a [`Failure`].
    #[must_use]
    pub fn of(finish: Finish, stopped: Option<&str>) -> Option<Self> {
        match finish {
            Finish::EndToken => Some(Self::End),
            Finish::StopString => Some(Self::Stop(stopped.unwrap_or_default().to_owned())),
            Finish::Length => Some(Self::Length),
            Finish::ContextFull => Some(Self::ContextFull),
            _ => None,
        }
    }

    /// Returns the name for logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Calls => "calls",
            Self::Stop(_) => "stop",
            Self::Length => "length",
            Self::ContextFull => "context",
        }
    }

    /// Converts the reason back to the engine's.
    #[must_use]
    pub fn finish(&self) -> Finish {
        match self {
            Self::End | Self::Calls => Finish::EndToken,
            Self::Stop(_) => Finish::StopString,
            Self::Length => Finish::Length,
            Self::ContextFull => Finish::ContextFull,
        }
    }

    /// Returns whether the answer was cut by a limit.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        matches!(self, Self::Length | Self::ContextFull)
    }
}

/// Token counts of one answer and its prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub n_prompt_tokens: usize,
    /// The number of those tokens that were not computed again.
    pub n_cached_tokens: usize,
    /// The number of the latter that were loaded from a drive; the others were in memory.
    pub n_cached_drive_tokens: usize,
    /// The number of earlier answers in the prompt whose sampled tokens were reused.
    pub n_replayed: usize,
    /// Tokens of the answer, including thoughts but not the token that ended it.
    pub n_answer_tokens: usize,
    /// The number of those tokens that belong to thoughts.
    pub n_thought_tokens: usize,
}

impl Usage {
    /// No tokens.
    pub const NONE: Self = Self {
        n_prompt_tokens: 0,
        n_cached_tokens: 0,
        n_cached_drive_tokens: 0,
        n_replayed: 0,
        n_answer_tokens: 0,
        n_thought_tokens: 0,
    };
}

/// A token in the form for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenText {
    /// The id of the token.
    pub token: TokenId,
    /// Its text, with U+FFFD for bytes that are not UTF-8.
    pub text: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A token of an answer or of an echoed prompt, with its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenText,
    /// The natural logarithm of its probability; `None` for the first token of a prompt.
    pub logprob: Option<f32>,
    /// The most likely tokens at its position, best first.
    pub top: Vec<(TokenText, f32)>,
}

/// Turns events into the bytes of a response.
pub trait EventWriter: Send {
    /// Appends the bytes for this event; none if the client waits for the whole answer.
    fn write(&mut self, event: &ResponseEvent, out: &mut Vec<u8>);

    /// Whether the client asked for [`ResponseEvent::Progress`].
    fn wants_progress(&self) -> bool {
        false
    }
}
