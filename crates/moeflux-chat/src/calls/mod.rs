//! Calls of tools as models write them.
//!
//! A [`format::CallFormat`] describes one way to write calls, as data. **Invariant:** the chat
//! template decides which one a model uses; no model is known by its name.

pub(crate) mod format;
mod json;
mod schema;
pub(crate) mod scan;
mod head;
mod tagged;
mod arguments;
mod envelope;
pub(crate) mod reader;

#[cfg(test)]
mod tests;
