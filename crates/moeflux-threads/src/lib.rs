//! Threads: a pool for short parallel sections of computing, and slices cut into parts for it.
//!
//! **Invariant:** a section's tasks run exactly once each, and none runs after the call that
//! started it has returned; so tasks may borrow. Knows nothing of what the tasks compute.
#![allow(unsafe_code, reason = "borrowed tasks on other threads; every block is documented")]

mod cores;
mod waiting;
mod section;
mod pool;
mod slices;
#[cfg(test)]
mod tests;

pub use cores::n_compute_threads;
pub use pool::{Pool, STACK_BYTES};
pub use slices::Columns;
