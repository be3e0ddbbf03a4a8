//! Tests of the engine through its public interface, in one binary: one link instead of many.
#![cfg(test)]

mod generate;
mod golden;
mod ops;
mod random;
mod sessions;
mod support;
