//! Tool calls as models write them.
//!
//! A [`format::CallFormat`] describes one way to write calls, as data. From it are derived the
//! [`reader::CallReader`], which finds calls in an answer, the grammar that constrains a model to
//! it, and, for tests, the text that a template would write for calls. **Invariant:** the chat
//! template determines the format of a model; no model is identified by its name.

pub(crate) mod format;
pub(crate) mod scan;
pub(crate) mod head;
pub(crate) mod arguments;
mod envelope;
mod whole;
pub(crate) mod reader;
pub(crate) mod history;
#[cfg(test)]
mod written;

#[cfg(test)]
mod tests;
