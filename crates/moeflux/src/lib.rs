//! moeflux: Mixture-of-Experts language models that are larger than memory.
//!
//! The modules stand in the order of dependence: each names only those above it.
//! Files become tables of contents (`format`), a valid model (`spec`), bound tensors (`weights`)
//! and experts behind a lease (`experts`); a family turns them into plans of `ops` that a
//! `backend` runs; `forward` walks the layers; `sample` and `text` turn logits into words;
//! `session` is one timeline, and `engine` the whole story on one page.
#![forbid(unsafe_code)]

pub mod ids;
pub mod error;
pub mod format;
pub mod spec;
pub mod weights;
pub mod experts;
pub mod ops;
pub mod backend;
pub mod families;
pub mod blueprint;
pub mod pack;
pub mod forward;
pub mod sample;
pub mod text;
pub mod config;
pub mod budget;
pub mod session;
pub mod generate;
pub mod engine;
