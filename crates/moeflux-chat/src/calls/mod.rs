//! Calls of tools as models write them.
//!
//! A [`format::CallFormat`] describes one way to write calls, as data. **Invariant:** the chat
//! template decides which one a model uses; no model is known by its name.

pub(crate) mod format;
