//! Reads the resident tensors of a manifest into owned memory.
//!
//! **Invariant:** what comes out is whole and its scales and vectors are finite, or it is an error.

use std::ops::ControlFlow;

use crate::error::Result;
use crate::format::Checkpoint;
use crate::weights::manifest::Manifest;
use crate::weights::resident::Weights;

/// How far a load has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes in memory.
    pub done_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// Is told how far a load has come; [`ControlFlow::Break`] cancels it.
pub type Watch<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

/// Reads the resident tensors.
///
/// # Errors
///
/// [`crate::error::Error::NoRoom`] before anything is allocated; when a file changed or cannot be
/// read; when a scale or a vector is not finite; [`crate::error::Error::Cancelled`].
#[expect(unused_variables, clippy::unimplemented, reason = "signatures first")]
pub fn load(
    manifest: &Manifest,
    checkpoint: &Checkpoint,
    watch: &mut Watch<'_>,
) -> Result<Weights> {
    unimplemented!()
}
