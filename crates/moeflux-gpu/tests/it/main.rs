//! Tests of the GPU backend through its public interface, on whichever adapter there is; without
//! any they are skipped, and say so. The suite of ops is the engine's own.
#![cfg(test)]

mod blocks;
mod check;
mod choosing;
mod faults;
mod golden;
mod limits;
mod ops;
mod overflow;
mod prerecord;
mod sessions;
mod steps;
mod support;
