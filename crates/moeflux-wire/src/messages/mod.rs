//! Anthropic's Messages: `/v1/messages` and `/v1/messages/count_tokens`.

mod request;
mod answer;

pub use crate::messages::answer::{Writer, token_count};
pub use crate::messages::request::{Shape, parse, parse_to_count};
