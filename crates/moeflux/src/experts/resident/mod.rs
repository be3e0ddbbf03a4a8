//! All experts of a model in memory, for models that fit.
//!
//! They are loaded in the background after the model is opened: experts that a step requests first,
//! the rest while no step waits. **Invariant:** an expert that is handed out is complete, and was
//! compared with its checksum or checked for NaN; one that cannot be read is an error for the step
//! that needs it. Once all experts are loaded, requests cost as much as if they had always been in
//! memory.

mod background_loader;
mod loader_handle;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use moeflux_io::{Filling, SlotIdx, SlotMemory, SlotState, Wait, available_memory_bytes};
use twox_hash::XxHash3_64;

use crate::error::{Error, Remedy, Result};
use crate::experts::stream::{Drives, StreamBank};
use crate::experts::uses::{LayerExperts, UseCounts};
use crate::experts::{ArrivalOrder, ExpertRequest};
use crate::format::{Checkpoint, CheckpointSums};
use crate::ids::{ExpertIdx, LayerIdx};
use crate::weights::{
    CheckpointFiles, ExpertBank, ExpertLayout, ExpertView, Manifest, ManifestOrigin, Progress,
    check_room,
};

use loader_handle::LoaderHandle;

/// All experts of a model.
#[derive(Debug)]
pub struct ResidentExperts {
    /// Ascending by layer.
    banks: Vec<ResidentBank>,
    uses: UseCounts,
    /// Index into `banks` of the requested layer.
    bank_idx: usize,
    order: ArrivalOrder,
    /// Requested and not yet handed out; ascending, each once.
    pending: Vec<ExpertIdx>,
    /// The group handed out last.
    last_group: Vec<ExpertIdx>,
    /// Experts from this one on are not handed out; `None`: all may be.
    chunk_end: Option<ExpertIdx>,
    /// Handed out in this chunk before `last_group`.
    earlier_groups: Vec<ExpertIdx>,
    /// The loading thread; `None` when all experts are loaded.
    loader: Option<Box<LoaderHandle>>,
    stats: RestStats,
}

/// Progress of loading experts in the background.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestStats {
    /// Experts of the model.
    pub n_experts: usize,
    /// Experts that are in memory.
    pub n_read: usize,
    /// Bytes of these.
    pub read_bytes: u64,
    /// Bytes of all experts.
    pub total_bytes: u64,
    /// Time for which computing waited for them.
    pub read_wait: Duration,
    /// Time that loading all of them took; `None` while some are missing.
    pub took: Option<Duration>,
}

/// The experts of one layer, in consecutive records.
#[derive(Debug)]
pub(super) struct ResidentBank {
    layer: LayerIdx,
    n_experts: usize,
    layout: ExpertLayout,
    /// One slot per expert.
    memory: SlotMemory,
}

impl ResidentExperts {
    /// Begins to load all experts into memory, comparing them with `sums` if there are any.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if memory is short, which is checked before anything is allocated;
    /// [`Error::Machine`] if the system cannot create a thread; [`Error::Malformed`] if a checksum
    /// that covers several experts does not match; also when the files that hold such experts
    /// cannot be opened or read.
    ///
    /// # Panics
    ///
    /// If the manifest is of a synthetic checkpoint, or the drive reads in blocks.
    pub fn load_in_background(
        manifest: &Manifest,
        (checkpoint, sums): (&Checkpoint, Option<&Arc<CheckpointSums>>),
        drives: Drives,
    ) -> Result<Self> {
        assert!(manifest.origin == ManifestOrigin::Checkpoint, "imagined experts cannot be read");
        let needed_bytes = manifest.banks.iter().map(ExpertBank::memory_bytes).sum();
        check_room("the routed experts", needed_bytes, available_memory_bytes())?;
        if let Some(sums) = sums {
            check_shared(&manifest.banks, checkpoint, sums)?;
        }
        let banks = manifest.banks.iter().map(ResidentBank::empty);
        let mut banks: Vec<ResidentBank> = banks.collect::<Result<_>>()?;
        let fillings = banks.iter_mut().map(ResidentBank::begin_all).collect();
        let source = (checkpoint, sums);
        let loader = match banks.is_empty() {
            true => None,
            false => {
                Some(Box::new(LoaderHandle::begin(&manifest.banks, source, drives, fillings)?))
            }
        };
        let stats = RestStats {
            n_experts: manifest.banks.iter().map(|bank| bank.n_experts).sum(),
            total_bytes: manifest.expert_bytes(),
            // A dense model has none that could be missing.
            took: banks.is_empty().then_some(Duration::ZERO),
            ..RestStats::default()
        };
        let (order, pending, last_group) = (ArrivalOrder::Ascending, Vec::new(), Vec::new());
        let (chunk_end, earlier_groups) = (None, Vec::new());
        Ok(Self {
            uses: UseCounts::new(n_experts_of_layers(&banks).into_iter()),
            banks,
            bank_idx: 0,
            order,
            pending,
            last_group,
            chunk_end,
            earlier_groups,
            loader,
            stats,
        })
    }

    pub(super) fn request(&mut self, request: &ExpertRequest<'_>) -> Result<()> {
        let layer = request.layer;
        let found = self.banks.binary_search_by_key(&layer, |bank| bank.layer);
        self.bank_idx = found.unwrap_or_else(|_| unreachable!("layer {} has no experts", layer.0));
        let n_experts = self.banks[self.bank_idx].n_experts;
        self.last_group.clear();
        self.pending.clear();
        self.pending.extend_from_slice(request.chosen);
        self.pending.sort_unstable();
        self.pending.dedup();
        let last = self.pending.last();
        assert!(last.is_none_or(|it| it.0 < n_experts), "layer {} has {n_experts}", layer.0);
        request.chosen.iter().for_each(|expert| self.uses.add(layer, *expert, 1));
        self.order = ArrivalOrder::Ascending;
        self.receive(Wait::Poll)?;
        let Self { banks, bank_idx, loader: Some(loader), pending, .. } = self else {
            return Ok(());
        };
        let bank = &mut banks[*bank_idx];
        if request.is_small && !pending.iter().all(|expert| bank.has(*expert)) {
            self.order = ArrivalOrder::Any;
        }
        loader.request((*bank_idx, bank), pending);
        Ok(())
    }

    /// Returns requested experts that are in memory, in one group once all are; waits until there
    /// are some.
    pub(super) fn next_ready(
        &mut self,
    ) -> Result<Option<(&ResidentBank, &[ExpertIdx], ArrivalOrder)>> {
        match self.chunk_end {
            Some(_) => self.earlier_groups.append(&mut self.last_group),
            None => self.last_group.clear(),
        }
        while !self.take_ready() && !self.is_chunk_over() {
            self.wait()?;
        }
        if self.last_group.is_empty() {
            return Ok(None);
        }
        Ok(Some((&self.banks[self.bank_idx], &self.last_group, self.order)))
    }

    pub(super) fn begin_chunk(&mut self, end: ExpertIdx) {
        self.chunk_end = Some(end);
    }

    pub(super) fn chunk(&mut self) -> (&ResidentBank, &[ExpertIdx]) {
        self.earlier_groups.append(&mut self.last_group);
        (&self.banks[self.bank_idx], &self.earlier_groups)
    }

    pub(super) fn end_chunk(&mut self) {
        self.chunk_end = None;
        self.earlier_groups.clear();
        self.last_group.clear();
    }

    /// Returns whether no expert that may be handed out is pending.
    fn is_chunk_over(&self) -> bool {
        self.pending.first().is_none_or(|first| self.chunk_end.is_some_and(|end| *first >= end))
    }

    /// Moves experts in memory to `last_group`; returns whether there are any.
    fn take_ready(&mut self) -> bool {
        let Self { banks, bank_idx, order, pending, last_group, loader, chunk_end, .. } = self;
        let bank = &banks[*bank_idx];
        let is_open = |expert: &ExpertIdx| chunk_end.is_none_or(|end| *expert < end);
        let has = |expert: &ExpertIdx| is_open(expert) && bank.has(*expert);
        match order {
            _ if loader.is_none() && chunk_end.is_none() => std::mem::swap(pending, last_group),
            ArrivalOrder::Any => {
                last_group.extend(pending.iter().filter(|expert| has(expert)));
                pending.retain(|expert| !has(expert));
            }
            ArrivalOrder::Ascending => {
                let n_first = pending.iter().take_while(|expert| has(expert)).count();
                last_group.extend(pending.drain(..n_first));
            }
        }
        !last_group.is_empty()
    }

    fn wait(&mut self) -> Result<()> {
        let Some(loader) = &self.loader else { return Ok(()) };
        loader.check(&self.banks, Some((self.bank_idx, &self.pending)))?;
        let before = loader.time();
        self.receive(Wait::Any)?;
        let after = self.loader.as_ref().map(|loader| loader.time());
        self.stats.read_wait += after.or(self.stats.took).unwrap_or(before).saturating_sub(before);
        Ok(())
    }

    /// Handles experts that have arrived, after waiting as `wait` says.
    fn receive(&mut self, wait: Wait) -> Result<()> {
        let Some(loader) = &mut self.loader else { return Ok(()) };
        let summary = loader.receive(wait, &mut self.banks)?;
        self.stats.n_read += summary.n_ready;
        self.stats.read_bytes += summary.n_bytes;
        if summary.is_complete {
            self.stats.took = Some(loader.time());
            self.loader = None;
            let RestStats { n_experts, read_bytes, .. } = self.stats;
            tracing::info!(n_experts, read_bytes, "all experts are in memory");
        }
        Ok(())
    }

    pub(super) fn give_up(&mut self) {
        self.pending.clear();
        self.end_chunk();
    }

    /// Waits up to `limit` for experts to arrive. Returns the progress, `None` once all are loaded.
    /// If `again`, experts that could not be read are read again.
    ///
    /// # Errors
    ///
    /// [`Error::Expert`] for an expert that cannot be read; [`Error::Drive`] or [`Error::Stopped`]
    /// once nothing can be read any more.
    pub fn wait_for_load(&mut self, limit: Duration, again: bool) -> Result<Option<Progress>> {
        if again {
            self.receive(Wait::Poll)?;
            let Some(loader) = &mut self.loader else { return Ok(None) };
            loader.retry_failed(&mut self.banks);
        }
        self.receive(Wait::AtMost(limit))?;
        let Some(loader) = &self.loader else { return Ok(None) };
        loader.check(&self.banks, None)?;
        let RestStats { read_bytes, total_bytes, .. } = self.stats;
        Ok(Some(Progress { done_bytes: read_bytes, total_bytes }))
    }

    /// Returns the experts of each layer, with their uses.
    pub(super) fn layers(&self) -> Vec<LayerExperts> {
        self.uses.layers(|layer, expert| {
            let found = self.banks.binary_search_by_key(&layer, |bank| bank.layer);
            found.is_ok_and(|bank_idx| self.banks[bank_idx].has(expert))
        })
    }

    /// Returns the progress up to now.
    pub(super) fn stats(&mut self) -> RestStats {
        // An error is reported to the request that needs the expert.
        drop(self.receive(Wait::Poll));
        self.stats
    }
}

impl ResidentBank {
    fn empty(bank: &ExpertBank) -> Result<Self> {
        let no_room = || {
            let what = format!("the routed experts of layer {}", bank.layer.0);
            Error::no_room(what, bank.memory_bytes(), Remedy::SmallerBudget)
        };
        let ExpertBank { layer, n_experts, layout, .. } = *bank;
        let mut memory = SlotMemory::without_gaps(bank.record_bytes(), n_experts);
        memory.grow().ok_or_else(no_room)?;
        Ok(Self { layer, n_experts, layout, memory })
    }

    fn begin_all(&mut self) -> Vec<Option<Filling>> {
        let slots = (0..self.n_experts).map(SlotIdx);
        slots.map(|slot| Some(self.memory.begin_fill(slot))).collect()
    }

    fn has(&self, expert: ExpertIdx) -> bool {
        self.memory.state(SlotIdx(expert.0)) == SlotState::Ready
    }

    pub(super) fn view(&self, expert: ExpertIdx) -> ExpertView<'_> {
        self.layout.view(self.memory.bytes(SlotIdx(expert.0)))
    }
}

/// Returns the number of experts of each layer, up to the last one that has some.
fn n_experts_of_layers(banks: &[ResidentBank]) -> Vec<usize> {
    let mut n_experts = vec![0; banks.last().map_or(0, |bank| bank.layer.0 + 1)];
    banks.iter().for_each(|bank| n_experts[bank.layer.0] = bank.n_experts);
    n_experts
}

/// Compares the runs that belong to several experts with their checksums: slices of a few bytes
/// share one. This and the loading thread both read the page cache's one copy.
fn check_shared(
    banks: &[ExpertBank],
    checkpoint: &Checkpoint,
    sums: &Arc<CheckpointSums>,
) -> Result<()> {
    let mut shared = BTreeMap::new();
    for bank in banks.iter().filter(|bank| bank.records.is_none()) {
        let streamed = StreamBank::new(bank.clone(), Some(Arc::clone(sums)));
        for expert in (0..bank.n_experts).map(ExpertIdx) {
            let units = streamed.shared_units(expert).into_iter();
            shared.extend(units.map(|(file_idx, unit)| ((file_idx, unit.first_bytes), unit)));
        }
    }
    if shared.is_empty() {
        return Ok(());
    }
    let files = CheckpointFiles::open(checkpoint)?.with_sums(Some(sums));
    let mut bytes = Vec::new();
    for ((file_idx, _), unit) in shared {
        bytes.resize(usize::try_from(unit.len_bytes).unwrap_or(usize::MAX), 0);
        files.read(file_idx, unit.first_bytes, &mut bytes)?;
        let found = XxHash3_64::oneshot(&bytes);
        if found != unit.sum {
            return Err(files.mismatch((file_idx, unit), found, 1));
        }
    }
    Ok(())
}
