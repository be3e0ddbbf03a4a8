//! Responses of `OpenAI`: `/v1/responses`, without a memory.

mod items;
mod request;
mod output;
mod answer;

pub use crate::wire::responses::answer::Writer;
pub use crate::wire::responses::request::{Shape, parse, parse_to_count, token_count};
