//! Responses of `OpenAI`: `/v1/responses`, without a memory.

mod items;
mod request;
mod output;
mod answer;

pub use crate::responses::answer::Writer;
pub use crate::responses::request::{Shape, parse, parse_to_count, token_count};
