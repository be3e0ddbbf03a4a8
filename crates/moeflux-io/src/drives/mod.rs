//! Drives: the interface to code that needs blocks of files, and what stands behind it.
//!
//! **Invariant:** all drives behave alike; `tests` compares them on real files.

pub(crate) mod block;
pub(crate) mod threads;
#[cfg(target_os = "linux")]
pub(crate) mod uring;
pub(crate) mod simulated;
#[cfg(test)]
mod tests;
