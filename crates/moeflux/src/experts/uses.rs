//! How often each expert was used since the model was loaded.
//!
//! A use is a row that chose the expert, also in a step that failed or was given up. Unlike the
//! counts by which experts leave memory, these do not fade. **Invariant:** counting allocates
//! nothing and takes no lock.

use crate::ids::{ExpertIdx, LayerIdx};

/// The uses of all experts.
#[derive(Debug)]
pub(super) struct UseCounts {
    /// By layer and expert; none in dense layers.
    layers: Vec<Vec<u64>>,
}

/// The experts of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerExperts {
    /// The layer.
    pub layer: usize,
    /// Per expert: rows that chose it since the model was loaded.
    pub uses: Vec<u64>,
    /// Per expert: whether the process or a device holds it in memory now. What the system's page
    /// cache holds does not count.
    pub in_memory: Vec<bool>,
}

impl UseCounts {
    /// Creates counts of 0 for layers of these numbers of experts.
    pub(super) fn new(n_experts: impl Iterator<Item = usize>) -> Self {
        Self { layers: n_experts.map(|n| vec![0; n]).collect() }
    }

    /// Counts uses of an expert.
    pub(super) fn add(&mut self, layer: LayerIdx, expert: ExpertIdx, n_uses: u32) {
        self.layers[layer.0][expert.0] += u64::from(n_uses);
    }

    /// Returns the layers that have experts. `is_in_memory` tells where an expert is.
    pub(super) fn layers(
        &self,
        is_in_memory: impl Fn(LayerIdx, ExpertIdx) -> bool,
    ) -> Vec<LayerExperts> {
        let sparse = self.layers.iter().enumerate().filter(|(_, uses)| !uses.is_empty());
        let layer = |(layer, uses): (usize, &Vec<u64>)| {
            let experts = (0..uses.len()).map(ExpertIdx);
            let in_memory = experts.map(|expert| is_in_memory(LayerIdx(layer), expert));
            LayerExperts { layer, uses: uses.clone(), in_memory: in_memory.collect() }
        };
        sparse.map(layer).collect()
    }
}
