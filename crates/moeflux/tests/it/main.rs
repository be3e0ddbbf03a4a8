//! Tests of the engine through its public interface, in one binary: one link instead of many.

mod ops;
mod random;
