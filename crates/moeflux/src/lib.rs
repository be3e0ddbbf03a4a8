//! moeflux: Mixture-of-Experts language models that are larger than memory.
//!
//! The modules stand in the order of dependence: each names only those above it.
//! Files become tables of contents (`format`), a valid model (`spec`), bound tensors (`weights`)
//! and experts behind a lease (`experts`); a family turns them into plans of `ops` that a
//! `backend` runs; `forward` walks the layers; `sample` and `text` turn logits into words;
//! `session` is one timeline, and `engine` the whole story on one page.
#![forbid(unsafe_code)]

mod ids;
mod error;
mod format;
mod spec;
mod weights;
mod experts;
mod ops;
mod backend;
mod families;
mod blueprint;
mod pack;
mod forward;
mod sample;
mod text;
mod config;
mod budget;
mod session;
mod generate;
mod engine;
pub mod provider;
