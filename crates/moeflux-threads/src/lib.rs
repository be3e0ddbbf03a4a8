//! A thread pool for short parallel sections of computation, and slices divided into parts for it.
//!
//! **Invariant:** each task of a section runs exactly once; if one panics, those that have not
//! begun are skipped. No task runs after the call that started it has returned, so tasks may
//! borrow. This crate is independent of what the tasks compute.
//!
//! # Modules
//!
//! A module names only modules above it.
//!
//! ```text
//! cores/       how many threads there should be, for each system
//! waiting      a short spin
//! section      tasks that any thread may claim
//! pool         the threads that work on sections
//! slices       slices that are cut into parts for tasks
//! ```
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
