//! Experts on a drive, with as many of them in memory as there is room for.
//!
//! The caller requests the experts that a layer chose: those in memory are handed out at once, the
//! rest as they arrive, while further reads are under way. **Invariant:** a slot that was handed
//! out is not reused before the next group is requested; what was read is checked before it is
//! handed out; a failed read is an error or is repeated, never a different result. Nothing is
//! allocated once lists have grown.

mod bank;
mod fill;
mod size;
mod stats;
mod ahead;
mod open;
mod pressure;
mod probe;
mod place;
mod near;
mod waves;
mod seen;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use moeflux_io::{
    BlockRead, Caching, Clock, FileIdx, FinishedLoad, LoadId, LoadPriority, Loader, LoaderSettings,
    MemoryWatch, N_JOBS_USUAL, Slab, SlotIdx, SlotMemory, SlotState, Wait,
};

use crate::error::{Error, Result};
use crate::experts::predict::{LookAhead, LookAheadShape};
use crate::experts::table::{Demand, GuessedExpert, Lookup, SlotLease, SlotTable, TableShape};
use crate::experts::{ArrivalOrder, ExpertRequest};
use crate::format::{Checkpoint, CheckpointSums};
use crate::ids::{ExpertIdx, LayerIdx};
use crate::weights::{ExpertBank, ExpertLayout, ExpertView, Manifest};

pub(in crate::experts) use bank::{ReadFault, StreamBank};
pub(in crate::experts) use fill::N_REREADS_MAX;
use near::DeviceCache;
pub use near::DeviceMove;
use place::{ExpertLocation, LocatedExpert};
use pressure::Pressure;
pub use probe::{PROBE_BYTES, choose_way, drive_speed, probe_of};
pub use seen::{MappedSlots, SlotMapping};
pub use size::{SlotShape, slot_shape};
pub(crate) use size::{record_shape, slab_bytes};
pub use stats::StreamStats;

/// Upper bound on prompt rows that take experts in any order, as decode rows always do: experts in
/// memory come first, and outputs are kept until their turn in the sum. With more rows, keeping
/// them would take more memory than the waits are worth.
pub const N_ROWS_ANY_ORDER: usize = 16;

/// Upper bound on the experts of a group while others are on their way: new reads begin between
/// groups.
const N_GROUP_EXPERTS: usize = 8;

/// Bytes of one read; larger ones make no drive faster, and smaller ones spread over its channels.
pub(in crate::experts) const READ_BYTES: usize = 512 << 10;

/// Bytes that a prompt has under way, in at least `N_PROMPT_EXPERTS_MIN` experts.
const PROMPT_READ_BYTES: usize = 40 << 20;
const N_PROMPT_EXPERTS_MIN: usize = 8;

/// With fewer slots, a prompt has too few reads under way beside the experts it keeps and computes.
pub(crate) const N_SLOTS_OF_PROMPT: usize = 64;

/// While tokens are computed one by one, guesses are submitted as long as fewer bytes are in
/// flight. This many keep a drive busy, and demanded reads wait for few others.
const GUESS_BYTES: usize = 4 << 20;

/// Purpose of opening drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPurpose {
    /// Slots, whose experts come and go.
    Slots,
    /// Reading all experts once. This uses the page cache: the next start finds them there, and it
    /// needs no block alignment, which records in memory do not have.
    Memory,
}

/// The drives that experts are read from.
#[derive(Debug)]
pub struct Drives {
    /// The files of the checkpoint, in its order.
    pub primary: Box<dyn BlockRead>,
    /// The same files on another drive.
    pub mirror: Option<Box<dyn BlockRead>>,
    /// Whether the system caches what is read; if so, few slots suffice.
    pub caching: Caching,
    /// The clock of these drives.
    pub clock: Arc<dyn Clock>,
}

impl Drives {
    /// Returns the largest block size of their files.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        let of_drive = |drive: &dyn BlockRead| {
            let n_files = u32::try_from(drive.n_files()).expect("files are counted in u32");
            (0..n_files).map(|it| drive.file(FileIdx(it)).block_bytes).max().unwrap_or(1)
        };
        let mirror = self.mirror.as_deref().map_or(1, of_drive);
        of_drive(&*self.primary).max(mirror)
    }
}

/// A model whose experts are streamed.
#[derive(Clone, Debug)]
pub struct StreamModel<'a> {
    /// Where the experts lie in the files.
    pub manifest: &'a Manifest,
    /// The files.
    pub checkpoint: &'a Checkpoint,
    /// Checksums to compare with, if there are any.
    pub sums: Option<Arc<CheckpointSums>>,
    /// Experts that a row chooses in each layer; 0 in dense layers.
    pub top_k: &'a [usize],
    /// Experts that a layer's router names in advance.
    pub n_ranks: usize,
}

/// Settings of streaming.
#[derive(Clone, Copy, Debug)]
pub struct StreamConfig {
    /// Number of experts in memory.
    pub n_slots: usize,
    /// Whether the next layer's experts may be guessed.
    pub prefetches: bool,
}

/// Experts on a drive.
#[derive(Debug)]
pub struct ExpertStream {
    /// Ascending by layer.
    banks: Vec<StreamBank>,
    /// Per layer: index into `banks`.
    bank_of_layer: Vec<Option<usize>>,
    memory: SlotMemory,
    table: SlotTable,
    caching: Caching,
    loader: Loader,
    clock: Arc<dyn Clock>,
    has_mirror: bool,
    /// Number of slots wanted, including those lent.
    n_slots_owned: usize,
    n_slots_lent: usize,
    /// Per slot: the layout of its matrices.
    layouts: Vec<ExpertLayout>,
    /// Per slot: how often the current expert was reread.
    n_rereads: Vec<u32>,
    request: CurrentRequest,
    prefetch: PrefetchState,
    pressure: Pressure,
    watch: MemoryWatch,
    /// A device that reads slots in place.
    mapping: Option<Arc<dyn SlotMapping>>,
    /// Experts in that device's own memory.
    device_cache: DeviceCache,
    finished: Vec<FinishedLoad>,
    /// Why a requested expert was not read.
    failure: Option<Error>,
    /// Set when a drive as a whole has failed.
    is_broken: bool,
    /// Paths of the checkpoint's files, for messages.
    paths: Vec<PathBuf>,
    sums: Option<Arc<CheckpointSums>>,
    stats: StreamStats,
}

/// The current request.
#[derive(Debug, Default)]
struct CurrentRequest {
    layer: LayerIdx,
    order: ArrivalOrder,
    /// Per expert of the layer: rows that chose it.
    n_uses: Vec<u32>,
    /// Experts neither in memory nor being read; ascending.
    demands: Vec<Demand>,
    /// The first of these, while the table is asked for slots.
    window: Vec<Demand>,
    /// The leases that the table gave for these.
    leases: Vec<SlotLease>,
    /// Experts with a lease, not yet handed out; ascending.
    pending: Vec<LocatedExpert>,
    /// The group handed out last.
    last_group: Vec<LocatedExpert>,
    /// Whether that group stays valid until the next layer is requested.
    is_lasting: bool,
    /// Experts handed out earlier and still in use.
    earlier_groups: Vec<LocatedExpert>,
    /// Experts from this one on are not handed out; `None`: all may be.
    chunk_end: Option<ExpertIdx>,
}

/// State of prefetching.
#[derive(Debug)]
struct PrefetchState {
    /// Whether anything may be prefetched.
    is_allowed: bool,
    /// `None` if routers are not used for guessing.
    look_ahead: Option<LookAhead>,
    /// Experts that the next router named, most likely first in each row.
    ranked: Vec<ExpertIdx>,
    weighed: Vec<(ExpertIdx, f32)>,
    likely: Vec<ExpertIdx>,
    guesses: Vec<GuessedExpert>,
    /// Guesses that are being read, or were read since the last choice.
    begun: Vec<GuessedExpert>,
    begun_layer: LayerIdx,
    /// When the drive last had no work left but guesses.
    guessed_at: Option<Duration>,
    /// Moving average of the time from then to the next choice.
    gap: Duration,
    step: stats::StepMeter,
}

/// A slot that a device reads in place. It does not change until the next layer is requested.
#[derive(Clone, Copy, Debug)]
pub struct MappedSlot<'a> {
    /// The slab that contains it.
    pub slab: &'a Slab,
    /// Its index in the slab.
    pub idx_in_slab: usize,
}

/// Experts that are handed out together, in leased slots or on a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotGroup<'a> {
    memory: &'a SlotMemory,
    layouts: &'a [ExpertLayout],
    experts: &'a [LocatedExpert],
    is_lasting: bool,
}

impl<'a> SlotGroup<'a> {
    pub(super) fn len(&self) -> usize {
        self.experts.len()
    }

    pub(super) fn expert(&self, idx: usize) -> ExpertIdx {
        self.experts[idx].expert
    }

    pub(super) fn view(&self, idx: usize) -> ExpertView<'a> {
        let slot = self.experts[idx].slot().expect("what is on the device has no slot to look at");
        self.layouts[slot.0].view(self.memory.bytes(slot))
    }

    pub(super) fn device_slot(&self, idx: usize) -> Option<usize> {
        self.experts[idx].device_slot()
    }

    pub(super) fn mapped_slot(&self, idx: usize) -> Option<MappedSlot<'a>> {
        let slot = self.experts[idx].slot()?;
        let slab = self.memory.slab(self.memory.slab_of(slot)).filter(|_| self.is_lasting)?;
        Some(MappedSlot { slab, idx_in_slab: slot.0 % self.memory.n_slots_per_slab() })
    }
}

impl ExpertStream {
    /// Creates empty slots and all that is needed to fill them.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if memory for the slots cannot be allocated.
    ///
    /// # Panics
    ///
    /// If the model has no experts.
    pub fn open(model: &StreamModel<'_>, drives: Drives, config: &StreamConfig) -> Result<Self> {
        let StreamModel { manifest, checkpoint, ref sums, top_k, n_ranks } = *model;
        let shape = slot_shape(&manifest.banks, drives.block_bytes());
        let n_slots = config.n_slots.clamp(1, shape.n_experts);
        let mut n_experts = vec![0; top_k.len()];
        let mut bank_of_layer = vec![None; top_k.len()];
        for (bank_idx, bank) in manifest.banks.iter().enumerate() {
            n_experts[bank.layer.0] = bank.n_experts;
            bank_of_layer[bank.layer.0] = Some(bank_idx);
        }
        let n_uses_per_row = top_k.iter().sum();
        // The table grows together with the memory.
        let table = TableShape { n_experts: &n_experts, n_uses_per_row, n_slots: 1 };
        let look_ahead = LookAheadShape {
            n_layers: top_k.len(),
            n_experts_max: n_experts.iter().copied().max().unwrap_or(0),
            n_ranks,
        };
        let has_mirror = drives.mirror.is_some();
        let settings = LoaderSettings { read_bytes: READ_BYTES, prefetch_bytes_max: GUESS_BYTES };
        let Drives { primary, mirror, caching, clock } = drives;
        let slab_bytes = slab_bytes(shape.stride_bytes, n_slots);
        let bank = |bank: &ExpertBank| StreamBank::new(bank.clone(), sums.clone());
        let banks = manifest.banks.iter().map(bank).collect();
        let mut stream = Self {
            banks,
            bank_of_layer,
            memory: SlotMemory::new(shape.slot_bytes, slab_bytes),
            table: SlotTable::new(table),
            caching,
            loader: Loader::new(primary, mirror, settings, Arc::clone(&clock)),
            clock,
            has_mirror,
            n_slots_owned: n_slots,
            n_slots_lent: 0,
            layouts: Vec::new(),
            n_rereads: Vec::new(),
            request: CurrentRequest::default(),
            prefetch: PrefetchState::new(
                config.prefetches,
                (n_ranks > 0).then(|| LookAhead::new(look_ahead)),
            ),
            pressure: Pressure::new(top_k.iter().copied().max().unwrap_or(1), n_slots),
            watch: MemoryWatch::open(),
            mapping: None,
            device_cache: DeviceCache::default(),
            finished: Vec::with_capacity(N_JOBS_USUAL),
            failure: None,
            is_broken: false,
            sums: sums.clone(),
            paths: checkpoint.files.iter().map(|file| file.path.clone()).collect(),
            stats: StreamStats::default(),
        };
        stream.resize(n_slots)?;
        Ok(stream)
    }

    /// Requests the experts of a layer.
    pub(super) fn request(&mut self, request: &ExpertRequest<'_>) -> Result<()> {
        // This choice is known only once the device has finished with the previous layer's slots.
        self.end_moves();
        self.release_earlier_groups();
        self.check_alive()?;
        let ExpertRequest { layer, chosen, is_small } = *request;
        let n_experts = self.bank(layer).bank.n_experts;
        let current = &mut self.request;
        assert!(current.pending.is_empty() && current.last_group.is_empty(), "one layer at a time");
        current.layer = layer;
        current.order = if is_small { ArrivalOrder::Any } else { ArrivalOrder::Ascending };
        current.n_uses.clear();
        current.n_uses.resize(n_experts, 0);
        chosen.iter().for_each(|expert| current.n_uses[expert.0] += 1);
        let uses = current.n_uses.iter().enumerate().filter(|(_, n_uses)| **n_uses > 0);
        current.demands.clear();
        let demand =
            |(expert, &n_uses): (usize, &u32)| Demand { expert: ExpertIdx(expert), n_uses };
        current.demands.extend(uses.map(demand));
        self.end_guessing();
        self.find_on_device();
        // Guesses may have arrived meanwhile: they are checked while the rest is being read.
        self.begin_reads();
        let polled = self.poll(Wait::Poll);
        self.prefetch.step.asked_at = self.clock.now();
        polled
    }

    /// Returns experts that have arrived, and the order of groups; waits until there are some.
    pub(super) fn next_ready(&mut self) -> Result<Option<(SlotGroup<'_>, ArrivalOrder)>> {
        if self.request.is_lasting {
            let CurrentRequest { last_group, earlier_groups, .. } = &mut self.request;
            earlier_groups.append(last_group);
        }
        self.release_last_group();
        let mut has_tried = false;
        loop {
            self.begin_reads();
            self.poll(Wait::Poll)?;
            if self.take_group() {
                let Self { memory, layouts, request, .. } = self;
                let (experts, is_lasting) = (&request.last_group, request.is_lasting);
                let group = SlotGroup { memory, layouts, experts, is_lasting };
                return Ok(Some((group, request.order)));
            }
            if self.is_chunk_over() {
                self.prefetch.guessed_at = Some(self.clock.now());
                return Ok(None);
            }
            if self.loader.n_jobs() == 0 {
                // A guess that arrived just now held the last slot: try once more.
                assert!(!has_tried, "reads are under way while experts are missing");
                has_tried = true;
                continue;
            }
            has_tried = false;
            let began = self.clock.now();
            self.poll(Wait::Any)?;
            self.stats.read_wait += self.clock.now().saturating_sub(began);
        }
    }

    /// Drops the request.
    pub(super) fn give_up(&mut self) {
        self.release_last_group();
        self.release_earlier_groups();
        while let Some(located) = self.request.pending.pop() {
            self.release(located);
        }
        self.request.demands.clear();
        self.request.chunk_end = None;
        self.device_cache.give_up(self.request.layer);
        self.failure = None;
    }

    /// Leases slots for the demanded experts, as far as there is room, and begins to read them.
    fn begin_reads(&mut self) {
        let n_reads_max = match self.request.order {
            ArrivalOrder::Any => usize::MAX,
            ArrivalOrder::Ascending => self.n_prompt_reads().saturating_sub(self.n_reading()),
        };
        if self.request.demands.is_empty() {
            self.read_ahead();
            return;
        }
        if n_reads_max == 0 {
            return;
        }
        let Self { request, table, .. } = self;
        let CurrentRequest { layer, order, demands, window, leases, pending, .. } = request;
        let handed_out = request.earlier_groups.iter().chain(&request.last_group);
        let n_leased = pending.iter().chain(handed_out).filter(|it| it.slot().is_some()).count();
        // In ascending order, an expert in memory may have to wait for one that is not, so no more
        // are leased than there are slots.
        let n_window = match order {
            ArrivalOrder::Any => demands.len(),
            ArrivalOrder::Ascending => demands.len().min(table.n_slots().saturating_sub(n_leased)),
        };
        window.clear();
        window.extend(demands.drain(..n_window));
        table.acquire(*layer, window, n_reads_max, leases);
        demands.splice(0..0, window.drain(..));
        for &SlotLease { expert, slot, .. } in &request.leases {
            request.pending.push(LocatedExpert { expert, location: ExpertLocation::Slot(slot) });
        }
        request.pending.sort_unstable_by_key(|located| located.expert);
        let layer = request.layer;
        for lease_idx in 0..self.request.leases.len() {
            let SlotLease { expert, slot, lookup } = self.request.leases[lease_idx];
            match lookup {
                Lookup::InMemory => {}
                Lookup::Loading => {
                    let _ = self.loader.promote(job_of(slot));
                }
                Lookup::ToRead => {
                    self.begin_fill(layer, expert, slot, LoadPriority::Demand);
                }
            }
        }
    }

    /// Returns the experts that a prompt should have under way: just enough for the drive, since
    /// each takes a slot from the experts that are kept.
    fn n_prompt_reads(&self) -> usize {
        let n_slots = PROMPT_READ_BYTES.div_ceil(self.memory.slot_bytes());
        n_slots.max(N_PROMPT_EXPERTS_MIN).min(self.table.n_prompt_reads())
    }

    fn n_reading(&self) -> usize {
        let pending = self.request.pending.iter();
        pending.filter(|it| !is_there(&self.memory, it)).count()
    }

    /// Moves experts that may be computed now to `last_group`; returns whether there are any.
    fn take_group(&mut self) -> bool {
        let CurrentRequest { order, demands, pending, last_group, chunk_end, .. } =
            &mut self.request;
        let memory = &self.memory;
        let is_open = |it: &LocatedExpert| chunk_end.is_none_or(|end| it.expert < end);
        let is_ready = |it: &LocatedExpert| is_open(it) && is_there(memory, it);
        match order {
            ArrivalOrder::Any => {
                last_group.extend(pending.iter().filter(|it| is_ready(it)));
                pending.retain(|it| !is_ready(it));
            }
            ArrivalOrder::Ascending => {
                let next = demands.first().map_or(usize::MAX, |it| it.expert.0);
                let is_next = |it: &&LocatedExpert| it.expert.0 < next && is_ready(it);
                let n = pending.iter().take(N_GROUP_EXPERTS).take_while(is_next).count();
                last_group.extend(pending.drain(..n));
            }
        }
        self.request.is_lasting = self.request.chunk_end.is_some() || self.is_lasting();
        !self.request.last_group.is_empty()
    }

    fn release_earlier_groups(&mut self) {
        while let Some(located) = self.request.earlier_groups.pop() {
            self.release(located);
        }
    }

    fn release_last_group(&mut self) {
        while let Some(located) = self.request.last_group.pop() {
            self.release(located);
        }
    }

    fn release(&mut self, located: LocatedExpert) {
        located.slot().into_iter().for_each(|slot| self.table.release(slot));
    }

    fn check_alive(&self) -> Result<()> {
        if self.is_broken {
            let problem = "reading from the drive has failed permanently: open the model again";
            return Err(Error::Drive(problem.to_owned()));
        }
        Ok(())
    }

    fn bank(&self, layer: LayerIdx) -> &StreamBank {
        let bank_idx = self.bank_of_layer[layer.0];
        &self.banks[bank_idx.unwrap_or_else(|| unreachable!("layer {} has no experts", layer.0))]
    }
}

/// Returns whether an expert may be computed now.
fn is_there(memory: &SlotMemory, located: &LocatedExpert) -> bool {
    located.slot().is_none_or(|slot| memory.state(slot) == SlotState::Ready)
}

/// Returns the job id of a slot, which at most one job fills at a time.
fn job_of(slot: SlotIdx) -> LoadId {
    LoadId(slot.0 as u64)
}
