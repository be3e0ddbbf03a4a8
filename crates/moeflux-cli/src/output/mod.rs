//! The output of the command: results, pages, progress, questions, and streamed text on a terminal.
//!
//! This module knows no models and no options.

pub(crate) mod size;
pub(crate) mod fold;
pub(crate) mod page;
pub(crate) mod print;
pub(crate) mod ask;
pub(crate) mod sanitizer;
pub(crate) mod screen;
pub(crate) mod progress;
pub(crate) mod quiet;
