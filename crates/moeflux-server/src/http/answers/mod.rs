//! Requests for answers, from the parsed body to the last byte of the response.
//!
//! `generate` handles such a request: `prompt` makes its tokens, a `run` turns the events that
//! arrive in its `inbox` into events of answers, `deliver` sends these, and `record` logs the end.
//! `unlike` logs prompts that find nothing again and again.

pub(crate) mod inbox;
pub(crate) mod prompt;
pub(crate) mod record;
pub(crate) mod unlike;
pub(crate) mod run;
pub(crate) mod deliver;
pub(crate) mod generate;
