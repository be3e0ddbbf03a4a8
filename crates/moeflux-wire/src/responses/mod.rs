//! `OpenAI`'s Responses: `/v1/responses`, without stored state.

mod items;
mod request;
mod output;
mod answer;

pub use crate::responses::answer::ResponsesWriter;
pub use crate::responses::request::{ResponsesWriterOptions, parse, parse_to_count, token_count};
