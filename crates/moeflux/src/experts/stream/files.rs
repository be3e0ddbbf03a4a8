//! Where the experts of a model are in its files, layer by layer.
//!
//! **Invariant:** nothing here changes while the model runs. This module knows no slot and no read.

use std::path::PathBuf;
use std::sync::Arc;

use moeflux_io::SlotLayout;

use crate::experts::stream::StreamModel;
use crate::experts::stream::bank::{ReadFault, StreamBank};
use crate::format::CheckpointSums;
use crate::ids::{ExpertIdx, LayerIdx};
use crate::weights::{ExpertBank, ExpertLayout};

/// The experts of a model in its files.
#[derive(Debug)]
pub(super) struct ExpertFiles {
    /// Ascending by layer.
    banks: Vec<StreamBank>,
    /// Per layer: index into `banks`.
    bank_of_layer: Vec<Option<usize>>,
    /// The largest block in which a drive reads them.
    block_bytes: usize,
    are_read_in_turn: bool,
    /// Paths of the checkpoint's files, for messages.
    paths: Vec<PathBuf>,
    sums: Option<Arc<CheckpointSums>>,
}

impl ExpertFiles {
    /// Lists the experts of `model`, which drives read in blocks of `block_bytes`.
    pub(super) fn new(model: &StreamModel<'_>, block_bytes: usize) -> Self {
        let StreamModel { manifest, checkpoint, ref sums, top_k, .. } = *model;
        let mut bank_of_layer = vec![None; top_k.len()];
        for (bank_idx, bank) in manifest.banks.iter().enumerate() {
            bank_of_layer[bank.layer.0] = Some(bank_idx);
        }
        let bank = |bank: &ExpertBank| StreamBank::new(bank.clone(), sums.clone());
        Self {
            banks: manifest.banks.iter().map(bank).collect(),
            bank_of_layer,
            block_bytes,
            are_read_in_turn: manifest.is_read_in_turn(),
            paths: checkpoint.files.iter().map(|file| file.path.clone()).collect(),
            sums: sums.clone(),
        }
    }

    pub(super) fn bank(&self, layer: LayerIdx) -> &StreamBank {
        let bank_idx = self.bank_of_layer[layer.0];
        &self.banks[bank_idx.unwrap_or_else(|| unreachable!("layer {} has no experts", layer.0))]
    }

    /// Returns the next layer with experts.
    pub(super) fn next_layer(&self, layer: LayerIdx) -> Option<LayerIdx> {
        let after = self.bank_of_layer.iter().enumerate().skip(layer.0 + 1);
        after.into_iter().find_map(|(layer, bank)| bank.map(|_| LayerIdx(layer)))
    }

    /// See [`Manifest::is_read_in_turn`].
    pub(super) fn are_read_in_turn(&self) -> bool {
        self.are_read_in_turn
    }

    /// Returns the layers with experts in the order in which they are computed after `layer`, which
    /// is the last.
    pub(super) fn layers_after(&self, layer: LayerIdx) -> impl Iterator<Item = LayerIdx> {
        let n_before = self.banks.partition_point(|bank| bank.bank.layer <= layer);
        let (before, after) = self.banks.split_at(n_before);
        after.iter().chain(before).map(|bank| bank.bank.layer)
    }

    /// Returns the number of experts of each layer; 0 in dense layers.
    pub(super) fn n_experts_of_layers(&self) -> impl Iterator<Item = usize> {
        let n_experts = |bank_idx: usize| self.banks[bank_idx].bank.n_experts;
        self.bank_of_layer.iter().map(move |bank_idx| bank_idx.map_or(0, n_experts))
    }

    /// Returns the number of experts of all layers.
    pub(super) fn n_experts(&self) -> usize {
        self.banks.iter().map(|bank| bank.bank.n_experts).sum()
    }

    /// Returns the parts of an expert and their places in a slot.
    pub(super) fn lay_out(&self, (layer, expert): (LayerIdx, ExpertIdx)) -> SlotLayout {
        self.bank(layer).lay_out(expert, self.block_bytes)
    }

    /// Returns the layout of experts in slots that a device reads; `None` if no device does.
    pub(super) fn mapped_layout(&self, layer: LayerIdx) -> Option<ExpertLayout> {
        self.bank(layer).mapped_layout
    }

    /// Gives the experts of each layer one layout, as far as possible: a device reads their slots.
    pub(super) fn share_with_device(&mut self) {
        for bank in &mut self.banks {
            bank.mapped_layout = bank.mapped_layout(self.block_bytes);
        }
    }

    /// Returns the message for a fault after `n_reads` reads.
    pub(super) fn describe(&self, fault: &ReadFault, n_reads: u32) -> String {
        fault.describe(&self.paths, self.sums.as_deref(), n_reads)
    }
}
