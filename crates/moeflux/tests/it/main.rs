//! Tests of the engine through its public interface, in one binary: one link instead of many.
#![cfg(test)]

mod face;
mod forced;
mod generate;
mod gguf_text;
mod loading;
mod packing;
mod ranks;
mod results;
mod sessions;
mod shares;
mod streaming;
mod support;
