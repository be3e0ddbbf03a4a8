//! API dialects of moeflux: bytes to a neutral [`Request`], and neutral [`ResponseEvent`]s to
//! bytes.
//!
//! `chat`, `completions` and `responses` are `OpenAI`'s, `messages` is Anthropic's. Each has a
//! function `parse` and an [`EventWriter`]. The smaller dialects have a function for each
//! direction. **Invariant:** any bytes give either a request that can be run as it stands, or a
//! [`Failure`] that names the field. Uses no socket, no clock and no random numbers.
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
