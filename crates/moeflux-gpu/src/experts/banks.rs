//! The layers whose experts are stored permanently, and the exchange of experts between device and
//! host memory.
//!
//! **Invariant:** an expert moves by commands, and the tables are stale from then on.

use std::collections::HashMap;

use moeflux::provider::backend::TierStats;
use moeflux::provider::error::Result;
use moeflux::provider::ids::{ExpertIdx, LayerIdx};

use super::balancer::TierBalancer;
use super::bank::Bank;
use super::tables::{ExpertBinding, ExpertTables};
use super::uses::UseCounters;
use crate::device::recorder::CommandRecorder;

/// The banks of all layers.
#[derive(Debug)]
pub(super) struct ExpertBanks {
    banks: HashMap<LayerIdx, Bank>,
    balancer: TierBalancer,
}

impl ExpertBanks {
    pub(super) fn new() -> Self {
        Self { banks: HashMap::new(), balancer: TierBalancer::new() }
    }

    /// Returns the number of layers.
    pub(super) fn len(&self) -> usize {
        self.banks.len()
    }

    pub(super) fn has(&self, layer: LayerIdx) -> bool {
        self.banks.contains_key(&layer)
    }

    /// Adds the bank of a layer with `n_experts` experts, whose uses are counted from word
    /// `uses_at` on.
    pub(super) fn add(
        &mut self,
        layer: LayerIdx,
        bank: Bank,
        (uses_at, n_experts): (usize, usize),
    ) {
        if bank.n_bytes().iter().all(|n_bytes| *n_bytes > 0) {
            self.balancer.add(layer, uses_at, n_experts);
        }
        self.banks.insert(layer, bank);
    }

    /// Returns the bindings of a layer's experts.
    pub(super) fn bindings(&self, layer: LayerIdx) -> &[ExpertBinding] {
        self.banks.get(&layer).map_or(&[], |bank| &bank.bindings)
    }

    /// Returns the location of an expert: its buffer, and the offset of its first byte.
    pub(super) fn location(&self, layer: LayerIdx, expert: ExpertIdx) -> (&wgpu::Buffer, u64) {
        self.banks[&layer].location(expert)
    }

    /// Returns the tables of all layers, each with its offset.
    pub(super) fn tables(&self) -> impl Iterator<Item = (u32, Vec<u32>)> {
        self.banks.values().flat_map(Bank::tables)
    }

    /// Returns the bytes in device memory and in host memory.
    pub(super) fn n_bytes(&self) -> [u64; 2] {
        let add = |sums: [u64; 2], bank: &Bank| {
            let n_bytes = bank.n_bytes();
            [sums[0] + n_bytes[0], sums[1] + n_bytes[1]]
        };
        self.banks.values().fold([0, 0], add)
    }

    /// Returns the location and use statistics of experts.
    pub(super) fn stats(&self) -> TierStats {
        self.balancer.stats(self.n_bytes())
    }

    /// Moves the most used experts to device memory, if due.
    pub(super) fn rebalance(
        &mut self,
        recorder: &mut CommandRecorder,
        uses: &UseCounters,
        tables: &mut ExpertTables,
    ) -> Result<()> {
        let Some(counts) = uses.counts() else { return Ok(()) };
        let banks = &self.banks;
        let swaps = self.balancer.begin_step(recorder, counts, |layer| &banks[&layer])?;
        for (layer, swap) in swaps {
            let bank = self.banks.get_mut(&layer).expect("a layer that is followed has a bank");
            let locations = [swap.promoted, swap.demoted].map(|expert| bank.location(expert));
            self.balancer.exchange(recorder, locations, bank.slot_bytes())?;
            bank.swap(swap.promoted, swap.demoted);
            tables.note_moved();
        }
        Ok(())
    }
}
