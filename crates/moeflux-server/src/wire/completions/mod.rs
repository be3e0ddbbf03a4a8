//! Completions of `OpenAI`: `/v1/completions`.

mod request;
mod answer;

pub use crate::wire::completions::answer::Writer;
pub(crate) use crate::wire::completions::request::tokens;
pub use crate::wire::completions::request::{Shape, parse};
