//! Anthropic's Messages: `/v1/messages` and `/v1/messages/count_tokens`.

mod request;
mod answer;

pub use crate::messages::answer::{MessagesWriter, token_count};
pub use crate::messages::request::{MessagesWriterOptions, parse, parse_to_count};
