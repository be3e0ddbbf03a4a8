//! The routed experts behind a lease.
//!
//! **Invariant:** what a lease gives out stays in memory, unchanged, as long as the lease. Who
//! computes takes experts as they arrive and never asks where they came from.

use crate::error::Result;
use crate::format::Checkpoint;
use crate::ids::{ExpertIdx, LayerIdx};
use crate::weights::{ExpertView, Manifest, Watch};

/// An expert that is in memory and may be computed now.
#[derive(Clone, Copy, Debug)]
pub struct ArrivedExpert<'a> {
    /// Which of its layer.
    pub expert: ExpertIdx,
    /// Its matrices, valid while the lease is held.
    pub view: ExpertView<'a>,
}

/// All experts of a model.
#[derive(Debug)]
pub struct ExpertStore {}

/// Some experts of a layer, held in memory.
#[derive(Debug)]
pub struct Lease<'a> {
    arrived: Vec<ArrivedExpert<'a>>,
}

#[expect(unused_variables, clippy::unimplemented, reason = "signatures first")]
impl ExpertStore {
    /// Reads all experts into memory.
    ///
    /// # Errors
    ///
    /// As [`crate::weights::load`].
    pub fn load_resident(
        manifest: &Manifest,
        checkpoint: &Checkpoint,
        watch: &mut Watch<'_>,
    ) -> Result<Self> {
        unimplemented!()
    }

    /// Holds `experts` (ascending, each once) of a layer.
    ///
    /// # Errors
    ///
    /// When they cannot be read.
    pub fn acquire(&self, layer: LayerIdx, experts: &[ExpertIdx]) -> Result<Lease<'_>> {
        unimplemented!()
    }
}

impl<'a> Lease<'a> {
    /// The experts that have arrived since the last call, ascending; waits until there are some.
    /// `None` once all have been given out.
    ///
    /// # Errors
    ///
    /// When one could not be read.
    pub fn next_ready(&mut self) -> Result<Option<&[ArrivedExpert<'a>]>> {
        Ok(Some(&self.arrived))
    }
}
