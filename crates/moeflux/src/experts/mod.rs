//! The routed experts behind a lease.
//!
//! **Invariant:** what a lease gives out stays in memory, unchanged, as long as the lease. Who
//! computes takes experts as they arrive and never asks where they came from: here they are all
//! in memory from the start.

pub mod policy;
pub mod table;
pub mod predict;
pub mod trace;
pub mod replay;

use moeflux_io::{AlignedBytes, available_memory_bytes};

use crate::error::{Error, Result};
use crate::format::Checkpoint;
use crate::ids::{ExpertIdx, LayerIdx};
use crate::weights::{
    BankPart, ExpertBank, ExpertLayout, ExpertView, Files, Manifest, Meter, Origin, PartRole,
    Watch, check_room, first_non_finite, part_error,
};

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
pub struct ExpertStore {
    /// Ascending by layer.
    banks: Vec<ResidentBank>,
}

/// The experts of one layer, record after record.
#[derive(Debug)]
struct ResidentBank {
    layer: LayerIdx,
    n_experts: usize,
    layout: ExpertLayout,
    records: AlignedBytes,
}

/// Some experts of a layer, held in memory.
#[derive(Debug)]
pub struct Lease<'a> {
    /// One allocation per lease: its views borrow from the store.
    experts: Vec<ArrivedExpert<'a>>,
    n_given: usize,
}

impl ExpertStore {
    /// Reads all experts into memory.
    ///
    /// # Errors
    ///
    /// As [`crate::weights::load`].
    ///
    /// # Panics
    ///
    /// If the manifest is of an imagined checkpoint.
    pub fn load_resident(
        manifest: &Manifest,
        checkpoint: &Checkpoint,
        watch: &mut Watch<'_>,
    ) -> Result<Self> {
        assert!(manifest.origin == Origin::Checkpoint, "imagined experts cannot be read");
        let needed_bytes = manifest.banks.iter().map(ExpertBank::memory_bytes).sum();
        check_room("the routed experts", needed_bytes, available_memory_bytes())?;
        let files = Files::open(checkpoint)?;
        let mut meter = Meter::new(manifest.expert_bytes(), watch)?;
        let banks = manifest.banks.iter().map(|bank| read_bank(bank, &files, &mut meter));
        Ok(Self { banks: banks.collect::<Result<_>>()? })
    }

    /// Bytes of each expert of a layer, as held here; `None` where there are none.
    #[must_use]
    pub fn record_bytes(&self, layer: LayerIdx) -> Option<u64> {
        let bank = self.banks.iter().find(|bank| bank.layer == layer)?;
        Some(bank.layout.record_bytes() as u64)
    }

    /// Holds `experts` (ascending, each once) of a layer.
    ///
    /// # Errors
    ///
    /// When they cannot be read.
    ///
    /// # Panics
    ///
    /// If the layer has no experts, or not these.
    pub fn acquire(&self, layer: LayerIdx, experts: &[ExpertIdx]) -> Result<Lease<'_>> {
        assert!(experts.is_sorted_by(|a, b| a < b), "experts ascend, each once: {experts:?}");
        let found = self.banks.binary_search_by_key(&layer, |bank| bank.layer);
        let bank_idx = found.unwrap_or_else(|_| unreachable!("layer {} has no experts", layer.0));
        let bank = &self.banks[bank_idx];
        let arrived = experts.iter().map(|&expert| bank.arrived(expert));
        Ok(Lease { experts: arrived.collect(), n_given: 0 })
    }
}

impl ResidentBank {
    fn arrived(&self, expert: ExpertIdx) -> ArrivedExpert<'_> {
        assert!(expert.0 < self.n_experts, "layer {} has no {expert:?}", self.layer.0);
        let record_bytes = self.layout.record_bytes();
        let record = &self.records[expert.0 * record_bytes..][..record_bytes];
        ArrivedExpert { expert, view: self.layout.view(record) }
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
        let ready = &self.experts[self.n_given..];
        self.n_given = self.experts.len();
        Ok(Some(ready).filter(|ready| !ready.is_empty()))
    }
}

fn read_bank(
    bank: &ExpertBank,
    files: &Files<'_>,
    meter: &mut Meter<'_, '_>,
) -> Result<ResidentBank> {
    let record_bytes = bank.layout.record_bytes();
    let no_room = || Error::NoRoom {
        what: format!("the routed experts of layer {}", bank.layer.0),
        needed_bytes: bank.memory_bytes(),
        advice: "close other programs, or use a smaller model or fewer bits".to_owned(),
    };
    let n_bytes = usize::try_from(bank.memory_bytes()).ok();
    let mut records = n_bytes.and_then(AlignedBytes::zeroed).ok_or_else(no_room)?;
    for (expert_idx, record) in records.chunks_exact_mut(record_bytes).enumerate() {
        for part in &bank.parts {
            let extent = part.extent(ExpertIdx(expert_idx));
            let target = &mut record[part.record_at..][..part.len_bytes];
            files.read(extent.file_idx, extent.offset_bytes, target, meter)?;
            check_finite(bank, part, ExpertIdx(expert_idx), target)?;
        }
    }
    let ExpertBank { layer, n_experts, layout, .. } = *bank;
    Ok(ResidentBank { layer, n_experts, layout, records })
}

fn check_finite(bank: &ExpertBank, part: &BankPart, expert: ExpertIdx, bytes: &[u8]) -> Result<()> {
    let PartRole::Scales(kind) = part.role else { return Ok(()) };
    match first_non_finite(bytes, kind) {
        None => Ok(()),
        Some(value_idx) => {
            let (tensor, value_idx) = bank.scale_place(part, expert, value_idx);
            Err(part_error(&tensor, value_idx))
        }
    }
}

#[cfg(test)]
mod tests;
