//! Answers in harmony: messages with headers that name channels.
//!
//! **Invariant:** no text is emitted before its channel is known, and markers never are.

pub(crate) mod header;
pub(crate) mod reader;

#[cfg(test)]
mod tests;
