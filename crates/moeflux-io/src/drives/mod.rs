//! Drives: the interface for code that reads blocks of files, and its implementations.
//!
//! **Invariant:** all drives behave alike; `tests` compares them on real files.

pub(crate) mod block;
pub(crate) mod threads;
#[cfg(target_os = "linux")]
pub(crate) mod uring;
pub(crate) mod simulated;
#[cfg(test)]
mod tests;
