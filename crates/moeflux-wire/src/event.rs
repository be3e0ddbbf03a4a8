//! What happens while a request is served, for every dialect.
//!
//! **Invariant:** [`Event::Begun`] comes first; of each answer, thoughts come before text and
//! calls, which come in any order, and [`Event::Finished`] is its last; [`Event::Failed`] is the
//! last of all. Between the events of a call there is nothing else of its answer, and a call
//! without [`Event::CallEnded`] was cut.

use moeflux::{Finish, TokenId};

use crate::failure::Failure;

/// What happened. Answers are counted from 0: those of the first prompt, then those of the next.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The request is admitted.
    Begun {
        /// Tokens of all prompts.
        n_prompt_tokens: usize,
        /// Of these, the tokens that are known to need no computing.
        n_cached_tokens: usize,
    },
    /// A sign of life, for clients that lose patience.
    Alive(Progress),
    /// More of an answer's thoughts.
    Thought {
        /// Which answer.
        index: usize,
        /// More of it.
        text: String,
    },
    /// More of an answer's text; before it the prompt, where it is to be echoed.
    Text {
        /// Which answer.
        index: usize,
        /// More of it; perhaps nothing, beside tokens whose text is held back.
        text: String,
        /// The tokens that it consists of, where log-probabilities were asked for; at the end also
        /// the token that ended the answer.
        tokens: Vec<TokenLogprob>,
    },
    /// An answer calls a tool.
    CallBegun {
        /// Which answer.
        index: usize,
        /// Which of its calls, from 0 without holes.
        call_idx: usize,
        /// Unique in the conversation.
        id: String,
        /// The tool's [`moeflux_chat::Tool::name`].
        name: String,
    },
    /// More of a call's arguments: all of them together are one JSON object.
    CallArguments {
        /// Which answer.
        index: usize,
        /// Which of its calls.
        call_idx: usize,
        /// More of it.
        text: String,
    },
    /// The arguments of a call are whole.
    CallEnded {
        /// Which answer.
        index: usize,
        /// Which of its calls.
        call_idx: usize,
    },
    /// An answer ended.
    Finished {
        /// Which answer.
        index: usize,
        /// Why.
        reason: Reason,
        /// What it took.
        usage: Usage,
    },
    /// The request failed.
    Failed(Failure),
}

/// How far the prompts are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Tokens that are read.
    pub n_done: usize,
    /// Tokens to read.
    pub n_total: usize,
    /// An estimate of the time until all are read.
    pub seconds_left: Option<u64>,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The model ended it.
    End,
    /// The model ended it, and waits for the results of its calls.
    Calls,
    /// This stop string came up.
    Stop(String),
    /// It has as many tokens as were asked for.
    Length,
    /// The context is full.
    ContextFull,
}

impl Reason {
    /// The reason that an engine gave; `stopped` is the stop string. `None` if the answer was
    /// cancelled: then nobody is there to be told, or it is a [`Failure`].
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

    /// One word for logs.
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

    /// The same as the engine says it.
    #[must_use]
    pub fn finish(&self) -> Finish {
        match self {
            Self::End | Self::Calls => Finish::EndToken,
            Self::Stop(_) => Finish::StopString,
            Self::Length => Finish::Length,
            Self::ContextFull => Finish::ContextFull,
        }
    }

    /// Whether the model would have gone on.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        matches!(self, Self::Length | Self::ContextFull)
    }
}

/// Tokens of one answer, and of its prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub n_prompt_tokens: usize,
    /// Of these, the tokens that were not computed again.
    pub n_cached_tokens: usize,
    /// Earlier answers in it that stand there as they were sampled.
    pub n_replayed: usize,
    /// Tokens of the answer, thoughts included; not the one that ended it.
    pub n_answer_tokens: usize,
    /// Of these, the tokens of thoughts.
    pub n_thought_tokens: usize,
}

impl Usage {
    /// No tokens.
    pub const NONE: Self = Self {
        n_prompt_tokens: 0,
        n_cached_tokens: 0,
        n_replayed: 0,
        n_answer_tokens: 0,
        n_thought_tokens: 0,
    };
}

/// A token as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenText {
    /// Which.
    pub token: TokenId,
    /// Its text, with U+FFFD for what is no UTF-8.
    pub text: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A token of an answer or of an echoed prompt, and how likely it was.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenText,
    /// The natural logarithm of its probability; the first token of a prompt has none.
    pub logprob: Option<f32>,
    /// The most likely tokens in its place, best first.
    pub top: Vec<(TokenText, f32)>,
}

/// Turns events into the bytes of a response.
pub trait Writer: Send {
    /// Appends what the client is told of this event: nothing, if it waits for the whole answer.
    fn write(&mut self, event: &Event, out: &mut Vec<u8>);
}
