//! API dialects of moeflux: bytes to a neutral [`Request`], and neutral [`ResponseEvent`]s to
//! bytes.
//!
//! `chat`, `completions` and `responses` are `OpenAI`'s, `messages` is Anthropic's. Each has a
//! function `parse` and an [`EventWriter`]. The smaller dialects have a function for each
//! direction. **Invariant:** any bytes give either a request that can be run as it stands, or a
//! [`Failure`] that names the field. Uses no socket, no clock and no random numbers.
//!
//! # Modules
//!
//! A module names only modules above it.
//!
//! ```text
//! failure      errors, in the shape of each dialect
//! request/     a request in one form, and the fields that dialects share
//!   fields                   JSON objects, field by field, with their paths
//!   text, turns              contents and conversations
//!   sampling, thoughts       numbers with limits
//!   form                     how the text of an answer must look
//!   tools, tool_choice       tools, and which of them are called
//!   rules                    all constraints together
//! event/       what happens while a request is served
//!   answer                   sampled tokens to events
//!   bytes                    events and responses to bytes
//!   usage, logprobs          counts and probabilities, in the shapes of the dialects
//! calls        calls of tools as the client expects them
//! chat/        Chat Completions: request, answer
//! completions/ Completions: request, answer
//! messages/    Messages: request, answer
//! responses/   Responses: request and its input items, answer and its output items
//! models       the list of models
//! tokens       /tokenize, /detokenize, /apply-template
//! ```
#![forbid(unsafe_code)]

mod failure;
mod request;
mod event;
mod calls;
pub mod chat;
pub mod completions;
pub mod messages;
pub mod responses;
pub mod models;
pub mod tokens;

pub use crate::event::answer::{AnswerEvents, Score, scored};
pub use crate::event::{
    EventWriter, PromptProgress, Reason, ResponseEvent, TokenLogprob, TokenText, Usage,
};
pub use crate::failure::{Failure, FailureKind};
pub use crate::request::fields::Ignored;
pub use crate::request::{Prompt, PromptText, Request, ResponseHead, Sampling};
