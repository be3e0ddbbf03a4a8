//! All experts of a model in memory, for models that fit.
//!
//! They are loaded in the background after the model is opened: experts that a step requests first,
//! the rest while no step waits. **Invariant:** an expert that is handed out is complete, and was
//! compared with its checksum or checked for NaN; one that cannot be read is an error for the step
//! that needs it. Once all experts are loaded, requests cost as much as if they had always been in
//! memory.

mod follower;
mod following;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use moeflux_io::{Filling, SlotIdx, SlotMemory, SlotState, Wait, available_memory_bytes};
use twox_hash::XxHash3_64;

use crate::error::{Error, Remedy, Result};
use crate::experts::stream::{Drives, StreamBank};
use crate::experts::{Order, Request};
use crate::format::{Checkpoint, Sums};
use crate::ids::{ExpertIdx, LayerIdx};
use crate::weights::{
    ExpertBank, ExpertLayout, ExpertView, Files, Manifest, Origin, Progress, check_room,
};

use following::Following;

/// All experts of a model.
#[derive(Debug)]
pub struct ResidentExperts {
    /// Ascending by layer.
    banks: Vec<ResidentBank>,
    /// Index into `banks` of the requested layer.
    bank_idx: usize,
    order: Order,
    /// Requested and not yet handed out; ascending, each once.
    wanted: Vec<ExpertIdx>,
    given: Vec<ExpertIdx>,
    /// Experts from this one on are not handed out; `None`: all may be.
    wave_end: Option<ExpertIdx>,
    /// Handed out in this wave before `given`.
    held: Vec<ExpertIdx>,
    /// The loading thread; `None` when all experts are loaded.
    following: Option<Box<Following>>,
    rest: RestStats,
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
    pub fn follow(
        manifest: &Manifest,
        (checkpoint, sums): (&Checkpoint, Option<&Arc<Sums>>),
        drives: Drives,
    ) -> Result<Self> {
        assert!(manifest.origin == Origin::Checkpoint, "imagined experts cannot be read");
        let needed_bytes = manifest.banks.iter().map(ExpertBank::memory_bytes).sum();
        check_room("the routed experts", needed_bytes, available_memory_bytes())?;
        if let Some(sums) = sums {
            check_shared(&manifest.banks, checkpoint, sums)?;
        }
        let banks = manifest.banks.iter().map(ResidentBank::empty);
        let mut banks: Vec<ResidentBank> = banks.collect::<Result<_>>()?;
        let fillings = banks.iter_mut().map(ResidentBank::begin_all).collect();
        let source = (checkpoint, sums);
        let following = match banks.is_empty() {
            true => None,
            false => Some(Box::new(Following::begin(&manifest.banks, source, drives, fillings)?)),
        };
        let rest = RestStats {
            n_experts: manifest.banks.iter().map(|bank| bank.n_experts).sum(),
            total_bytes: manifest.expert_bytes(),
            ..RestStats::default()
        };
        let (order, wanted, given) = (Order::Ascending, Vec::new(), Vec::new());
        let (wave_end, held) = (None, Vec::new());
        Ok(Self { banks, bank_idx: 0, order, wanted, given, wave_end, held, following, rest })
    }

    pub(super) fn request(&mut self, request: &Request<'_>) -> Result<()> {
        let layer = request.layer;
        let found = self.banks.binary_search_by_key(&layer, |bank| bank.layer);
        self.bank_idx = found.unwrap_or_else(|_| unreachable!("layer {} has no experts", layer.0));
        let n_experts = self.banks[self.bank_idx].n_experts;
        self.given.clear();
        self.wanted.clear();
        self.wanted.extend_from_slice(request.chosen);
        self.wanted.sort_unstable();
        self.wanted.dedup();
        let last = self.wanted.last();
        assert!(last.is_none_or(|it| it.0 < n_experts), "layer {} has {n_experts}", layer.0);
        self.order = Order::Ascending;
        self.hear(Wait::Poll)?;
        let Self { banks, bank_idx, following: Some(following), wanted, .. } = self else {
            return Ok(());
        };
        let bank = &mut banks[*bank_idx];
        if request.is_small && !wanted.iter().all(|expert| bank.has(*expert)) {
            self.order = Order::Any;
        }
        following.wish((*bank_idx, bank), wanted);
        Ok(())
    }

    /// Returns requested experts that are in memory, in one group once all are; waits until there
    /// are some.
    pub(super) fn next_ready(&mut self) -> Result<Option<(&ResidentBank, &[ExpertIdx], Order)>> {
        match self.wave_end {
            Some(_) => self.held.append(&mut self.given),
            None => self.given.clear(),
        }
        while !self.take_ready() && !self.is_wave_over() {
            self.wait()?;
        }
        if self.given.is_empty() {
            return Ok(None);
        }
        Ok(Some((&self.banks[self.bank_idx], &self.given, self.order)))
    }

    pub(super) fn begin_wave(&mut self, end: ExpertIdx) {
        self.wave_end = Some(end);
    }

    pub(super) fn wave(&mut self) -> (&ResidentBank, &[ExpertIdx]) {
        self.held.append(&mut self.given);
        (&self.banks[self.bank_idx], &self.held)
    }

    pub(super) fn end_wave(&mut self) {
        self.wave_end = None;
        self.held.clear();
        self.given.clear();
    }

    /// Returns whether no expert that may be handed out is wanted.
    fn is_wave_over(&self) -> bool {
        self.wanted.first().is_none_or(|first| self.wave_end.is_some_and(|end| *first >= end))
    }

    /// Moves experts in memory to `given`; returns whether there are any.
    fn take_ready(&mut self) -> bool {
        let Self { banks, bank_idx, order, wanted, given, following, wave_end, .. } = self;
        let bank = &banks[*bank_idx];
        let is_open = |expert: &ExpertIdx| wave_end.is_none_or(|end| *expert < end);
        let has = |expert: &ExpertIdx| is_open(expert) && bank.has(*expert);
        match order {
            _ if following.is_none() && wave_end.is_none() => std::mem::swap(wanted, given),
            Order::Any => {
                given.extend(wanted.iter().filter(|expert| has(expert)));
                wanted.retain(|expert| !has(expert));
            }
            Order::Ascending => {
                let n_first = wanted.iter().take_while(|expert| has(expert)).count();
                given.extend(wanted.drain(..n_first));
            }
        }
        !given.is_empty()
    }

    fn wait(&mut self) -> Result<()> {
        let Some(following) = &self.following else { return Ok(()) };
        following.check(&self.banks, Some((self.bank_idx, &self.wanted)))?;
        let before = following.time();
        self.hear(Wait::Any)?;
        let after = self.following.as_ref().map(|following| following.time());
        self.rest.read_wait += after.or(self.rest.took).unwrap_or(before).saturating_sub(before);
        Ok(())
    }

    /// Handles experts that have arrived, after waiting as `wait` says.
    fn hear(&mut self, wait: Wait) -> Result<()> {
        let Some(following) = &mut self.following else { return Ok(()) };
        let heard = following.hear(wait, &mut self.banks)?;
        self.rest.n_read += heard.n_ready;
        self.rest.read_bytes += heard.n_bytes;
        if heard.is_whole {
            self.rest.took = Some(following.time());
            self.following = None;
            let RestStats { n_experts, read_bytes, .. } = self.rest;
            tracing::info!(n_experts, read_bytes, "all experts are in memory");
        }
        Ok(())
    }

    pub(super) fn give_up(&mut self) {
        self.wanted.clear();
        self.end_wave();
    }

    /// Waits up to `limit` for experts to arrive. Returns the progress, `None` once all are loaded.
    /// If `again`, experts that could not be read are read again.
    ///
    /// # Errors
    ///
    /// [`Error::Expert`] for an expert that cannot be read; [`Error::Drive`] or [`Error::Stopped`]
    /// once nothing can be read any more.
    pub fn wait_for_rest(&mut self, limit: Duration, again: bool) -> Result<Option<Progress>> {
        if again {
            self.hear(Wait::Poll)?;
            let Some(following) = &mut self.following else { return Ok(None) };
            following.wish_failed(&mut self.banks);
        }
        self.hear(Wait::AtMost(limit))?;
        let Some(following) = &self.following else { return Ok(None) };
        following.check(&self.banks, None)?;
        let RestStats { read_bytes, total_bytes, .. } = self.rest;
        Ok(Some(Progress { done_bytes: read_bytes, total_bytes }))
    }

    /// Returns the progress up to now.
    pub(super) fn stats(&mut self) -> RestStats {
        // An error is reported to the request that needs the expert.
        drop(self.hear(Wait::Poll));
        self.rest
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

/// Compares the runs that belong to several experts with their checksums: slices of a few bytes
/// share one. This and the loading thread both read the page cache's one copy.
fn check_shared(banks: &[ExpertBank], checkpoint: &Checkpoint, sums: &Arc<Sums>) -> Result<()> {
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
    let files = Files::open(checkpoint)?.with_sums(Some(sums));
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
