//! `OpenAI`'s Chat Completions: `/v1/chat/completions`.

mod request;
mod answer;

pub use crate::chat::answer::ChatWriter;
pub use crate::chat::request::{ChatWriterOptions, parse, parse_json};
pub(crate) use crate::chat::request::{
    StreamMode, apply_effort, options, parse_fields, stream_mode, template_variables,
};
