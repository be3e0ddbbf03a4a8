//! Tests of the GPU backend through its public interface, on whichever adapter there is; without
//! any they are skipped, and say so. The suite of ops is the engine's own.
#![cfg(test)]

mod ahead;
mod blocks;
#[path = "../../../moeflux/tests/it/cases.rs"]
mod cases;
mod check;
mod choosing;
#[path = "../../../moeflux/tests/it/drives.rs"]
mod drives;
mod faults;
mod golden;
mod limits;
mod needs_gpu;
mod overflow;
#[path = "../../../moeflux/tests/it/ops/mod.rs"]
mod ops;
#[path = "../../../moeflux/tests/it/random.rs"]
mod random;
mod sessions;
mod steps;
mod support;
#[path = "../../../moeflux/tests/it/temp_dir.rs"]
mod temp_dir;
mod under_test;
