//! `OpenAI`'s Completions: `/v1/completions`.

mod request;
mod answer;

pub use crate::completions::answer::CompletionsWriter;
pub(crate) use crate::completions::request::tokens;
pub use crate::completions::request::{CompletionsWriterOptions, parse};
