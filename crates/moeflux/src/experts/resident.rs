//! All experts of a model in memory, for models that fit.
//!
//! **Invariant:** every expert is there from the beginning; a group holds all that were asked for.

use moeflux_io::{AlignedBytes, available_memory_bytes};

use crate::error::{Error, Result};
use crate::experts::Request;
use crate::experts::arrived::Arrived;
use crate::format::Checkpoint;
use crate::ids::{ExpertIdx, LayerIdx};
use crate::weights::{
    ExpertBank, ExpertLayout, ExpertView, Files, Manifest, Meter, Origin, Watch, check_room,
};

/// All experts of a model.
#[derive(Debug)]
pub struct ResidentExperts {
    /// Ascending by layer.
    banks: Vec<ResidentBank>,
    /// Index into `banks` of the layer that was asked for.
    bank_idx: usize,
    /// What was asked for, ascending, each once.
    experts: Vec<ExpertIdx>,
    is_given: bool,
}

/// The experts of one layer, record after record.
#[derive(Debug)]
pub(super) struct ResidentBank {
    layer: LayerIdx,
    n_experts: usize,
    layout: ExpertLayout,
    records: AlignedBytes,
}

impl ResidentExperts {
    /// Reads all experts into memory.
    ///
    /// # Errors
    ///
    /// As [`crate::weights::load`].
    ///
    /// # Panics
    ///
    /// If the manifest is of an imagined checkpoint.
    pub fn load(
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
        let banks = banks.collect::<Result<_>>()?;
        Ok(Self { banks, bank_idx: 0, experts: Vec::new(), is_given: true })
    }

    pub(super) fn request(&mut self, request: &Request<'_>) {
        let layer = request.layer;
        let found = self.banks.binary_search_by_key(&layer, |bank| bank.layer);
        self.bank_idx = found.unwrap_or_else(|_| unreachable!("layer {} has no experts", layer.0));
        let n_experts = self.banks[self.bank_idx].n_experts;
        self.experts.clear();
        self.experts.extend_from_slice(request.chosen);
        self.experts.sort_unstable();
        self.experts.dedup();
        let last = self.experts.last();
        assert!(last.is_none_or(|it| it.0 < n_experts), "layer {} has {n_experts}", layer.0);
        self.is_given = self.experts.is_empty();
    }

    pub(super) fn next_ready(&mut self) -> Option<Arrived<'_>> {
        if std::mem::replace(&mut self.is_given, true) {
            return None;
        }
        Some(Arrived::of_bank(&self.banks[self.bank_idx], &self.experts))
    }
}

impl ResidentBank {
    pub(super) fn view(&self, expert: ExpertIdx) -> ExpertView<'_> {
        let record_bytes = self.layout.record_bytes();
        self.layout.view(&self.records[expert.0 * record_bytes..][..record_bytes])
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
        advice: "close other programs, or give a smaller --memory: experts are then streamed"
            .to_owned(),
    };
    let n_bytes = usize::try_from(bank.memory_bytes()).ok();
    let mut records = n_bytes.and_then(AlignedBytes::zeroed).ok_or_else(no_room)?;
    for (expert_idx, record) in records.chunks_exact_mut(record_bytes).enumerate() {
        read_record((bank, ExpertIdx(expert_idx)), record, files, meter)?;
    }
    let ExpertBank { layer, n_experts, layout, .. } = *bank;
    Ok(ResidentBank { layer, n_experts, layout, records })
}

pub(super) fn read_record(
    (bank, expert): (&ExpertBank, ExpertIdx),
    record: &mut [u8],
    files: &Files<'_>,
    meter: &mut Meter<'_, '_>,
) -> Result<()> {
    for part in &bank.parts {
        let extent = part.extent(expert);
        let target = &mut record[part.record_at..][..part.len_bytes];
        files.read(extent.file_idx, extent.offset_bytes, target, meter)?;
        bank.check_finite(part, expert, target)?;
    }
    Ok(())
}
