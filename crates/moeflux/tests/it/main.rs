//! Tests of the engine through its public interface, in one binary: one link instead of many.
#![cfg(test)]

mod face;
mod failures;
mod forced;
mod generate;
mod gguf_text;
mod golden;
mod loading;
mod ops;
mod overflow;
mod packing;
mod plans;
mod ranks;
mod scripts;
mod sessions;
mod shares;
mod spellings;
mod steps;
mod streaming;
mod support;
