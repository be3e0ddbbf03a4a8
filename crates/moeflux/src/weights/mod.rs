//! A model's tensors: which are bound to what, and the resident ones in memory.
//!
//! **Invariant:** every tensor of a checkpoint is bound once, skipped by name, or an error.

mod resident;

pub use resident::{ExpertLayout, ExpertView, MatrixSpan, OwnedMatrix, Weights};
