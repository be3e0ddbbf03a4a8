//! Options that several commands have, their values, and the words of other programs for them.
//!
//! A command declares the options that only it has.

pub(crate) mod ranges;
pub(crate) mod args;
pub(crate) mod cache;
pub(crate) mod sampling;
pub(crate) mod prompt;
pub(crate) mod environment;
pub(crate) mod tips;
