//! Numbers the experts of all layers.
//!
//! **Invariant:** numbers are dense, ascending by layer and expert.

use crate::experts::policy::KeyIdx;
use crate::ids::{ExpertIdx, LayerIdx};

/// The first number of each layer.
#[derive(Debug)]
pub(super) struct ExpertKeys {
    /// One entry more than there are layers: the last is the number of keys.
    starts: Vec<usize>,
}

impl ExpertKeys {
    pub(super) fn new(n_experts: &[usize]) -> Self {
        let mut starts = vec![0];
        let mut n_keys = 0;
        starts.extend(n_experts.iter().map(|n| {
            n_keys += n;
            n_keys
        }));
        Self { starts }
    }

    pub(super) fn n_keys(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    pub(super) fn key(&self, layer: LayerIdx, expert: ExpertIdx) -> KeyIdx {
        let key = self.starts[layer.0] + expert.0;
        assert!(key < self.starts[layer.0 + 1], "layer {} has no {expert:?}", layer.0);
        KeyIdx(key)
    }

    pub(super) fn expert(&self, key: KeyIdx) -> (LayerIdx, ExpertIdx) {
        // The last layer that begins at or before the key: a dense layer begins where the next one
        // does.
        let layer = self.starts.partition_point(|&start| start <= key.0) - 1;
        (LayerIdx(layer), ExpertIdx(key.0 - self.starts[layer]))
    }
}
