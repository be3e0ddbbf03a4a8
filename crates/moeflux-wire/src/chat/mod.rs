//! `OpenAI`'s Chat Completions: `/v1/chat/completions`.

mod request;
mod answer;

pub use crate::chat::answer::Writer;
pub(crate) use crate::chat::request::{
    Delivery, delivery, options, parse_fields, template_variables, wish_effort,
};
pub use crate::chat::request::{Shape, parse, parse_json};
