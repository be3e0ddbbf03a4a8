//! `OpenAI`'s Responses: `/v1/responses`, without stored state.

mod items;
mod request;
mod output;
mod answer;

pub use crate::responses::answer::Writer;
pub use crate::responses::request::{Shape, parse, parse_to_count, token_count};
