//! All experts of a model in memory, for models that fit.
//!
//! **Invariant:** every expert is there from the beginning; a group holds all that were asked for.

use moeflux_io::{AlignedBytes, available_memory_bytes};

use crate::error::{Error, Remedy, Result};
use crate::experts::Request;
use crate::format::{Checkpoint, Sums};
use crate::ids::{ExpertIdx, LayerIdx};
use crate::weights::{
    ExpertBank, ExpertLayout, ExpertView, Files, Manifest, Meter, Origin, PartRole, Searched,
    Segment, Watch, check_room, fill,
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
    /// Reads all experts into memory, and compares them with `sums` where there are some.
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
        (checkpoint, sums): (&Checkpoint, Option<&Sums>),
        watch: &mut Watch<'_>,
    ) -> Result<Self> {
        assert!(manifest.origin == Origin::Checkpoint, "imagined experts cannot be read");
        let needed_bytes = manifest.banks.iter().map(ExpertBank::memory_bytes).sum();
        check_room("the routed experts", needed_bytes, available_memory_bytes())?;
        let files = Files::open(checkpoint)?.with_sums(sums);
        let mut meter = Meter::new(manifest.expert_bytes(), watch)?;
        let mut banks: Vec<ResidentBank> =
            manifest.banks.iter().map(ResidentBank::empty).collect::<Result<_>>()?;
        let mut segments = Vec::new();
        for (bank, memory) in manifest.banks.iter().zip(&mut banks) {
            let records = memory.records.chunks_exact_mut(bank.layout.record_bytes());
            for (expert, record) in (0..bank.n_experts).map(ExpertIdx).zip(records) {
                push_record((bank, expert), record, &mut segments);
            }
        }
        fill(segments, &files, &mut meter)?;
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

    /// All that was asked for, once.
    pub(super) fn next_ready(&mut self) -> Option<(&ResidentBank, &[ExpertIdx])> {
        if std::mem::replace(&mut self.is_given, true) {
            return None;
        }
        Some((&self.banks[self.bank_idx], &self.experts))
    }
}

impl ResidentBank {
    fn empty(bank: &ExpertBank) -> Result<Self> {
        let no_room = || {
            let what = format!("the routed experts of layer {}", bank.layer.0);
            Error::no_room(what, bank.memory_bytes(), Remedy::SmallerBudget)
        };
        let n_bytes = usize::try_from(bank.memory_bytes()).ok();
        let records = n_bytes.and_then(AlignedBytes::zeroed).ok_or_else(no_room)?;
        let ExpertBank { layer, n_experts, layout, .. } = *bank;
        Ok(Self { layer, n_experts, layout, records })
    }

    pub(super) fn view(&self, expert: ExpertIdx) -> ExpertView<'_> {
        let record_bytes = self.layout.record_bytes();
        self.layout.view(&self.records[expert.0 * record_bytes..][..record_bytes])
    }
}

/// Where the bytes of an expert come from, and where in its record they go.
pub(super) fn push_record<'a>(
    (bank, expert): (&'a ExpertBank, ExpertIdx),
    record: &'a mut [u8],
    segments: &mut Vec<Segment<'a>>,
) {
    if let Some(records) = &bank.records {
        let extent = records.extent(expert);
        let searched = Searched::Record { bank, expert };
        let at = extent.offset_bytes;
        segments.push(Segment { file_idx: extent.file_idx, at, target: record, searched });
        return;
    }
    let (mut rest, mut skipped) = (record, 0);
    for part in &bank.parts {
        let (_, from_part) = rest.split_at_mut(part.record_at - skipped);
        let (target, behind) = from_part.split_at_mut(part.len_bytes);
        (rest, skipped) = (behind, part.record_at + part.len_bytes);
        let extent = part.extent(expert);
        let searched = match part.role {
            PartRole::Codes => Searched::Nothing,
            PartRole::Scales(_) => Searched::Part { bank, part, expert, first_value: 0 },
        };
        let at = extent.offset_bytes;
        segments.push(Segment { file_idx: extent.file_idx, at, target, searched });
    }
}
