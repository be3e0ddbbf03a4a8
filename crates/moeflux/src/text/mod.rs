//! Tokenization, chat templates and stop conditions.
//!
//! `Tokenizer` and `ChatTemplate` read a checkpoint's folder or the metadata of a GGUF file.
//! `TextStream` turns tokens into text that never ends inside a character. `StopStrings` holds back
//! text that may become a stop string, and `EndTokens` lists the tokens that end an answer.
//! `byte_tokenizer_json` creates a tokenizer for checkpoints without one. **Invariant:** any token
//! sequence and any text is accepted; an invalid value in a file is an error that names it. This
//! module knows no model, no sampler and no clock.

mod files;
mod limit;
mod special;
mod stop;
mod template;
mod tokenizer;
mod eos;
mod stream;
mod gguf;
mod tiktoken;
mod folder;

pub use crate::text::eos::EndTokens;
pub(crate) use crate::text::files::text_fingerprint;
pub(crate) use crate::text::gguf::{gguf_generation_config, gguf_templates};
pub use crate::text::limit::{Cancel, TextLimit};
pub use crate::text::special::SpecialTokens;
pub use crate::text::stop::{STOP_STRING_BYTES_MAX, StopStrings};
pub use crate::text::stream::{SpecialText, TextStream};
pub use crate::text::template::{ChatTemplate, Message, OUTPUT_BYTES_MAX, TemplateOptions};
pub use crate::text::tokenizer::byte_level::{
    BYTE_TOKENS, byte_tokenizer_config_json, byte_tokenizer_json,
};
pub use crate::text::tokenizer::{Tokenizer, tokenizer_bytes};

#[cfg(test)]
mod tests;
