//! Answers in harmony: messages with headers that name channels.
//!
//! **Invariant:** no text comes out before its channel is known, and no marker ever does.

pub(crate) mod header;
pub(crate) mod reader;

#[cfg(test)]
mod tests;
