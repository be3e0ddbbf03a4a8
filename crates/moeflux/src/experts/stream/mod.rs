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
    BlockRead, Caching, Class, Clock, FileIdx, Finished, JobId, Loader, MemoryWatch, N_JOBS_USUAL,
    Settings, Slab, SlotIdx, SlotMemory, SlotState, Wait,
};

use crate::error::{Error, Result};
use crate::experts::predict::{LookAhead, LookAheadShape};
use crate::experts::table::{Found, Guess, SlotTable, TableShape, Taken, Wanted};
use crate::experts::{Order, Request};
use crate::format::{Checkpoint, Sums};
use crate::ids::{ExpertIdx, LayerIdx};
use crate::weights::{ExpertBank, ExpertLayout, ExpertView, Manifest};

pub(in crate::experts) use bank::{Flaw, StreamBank};
pub(in crate::experts) use fill::N_REREADS_MAX;
pub use near::Move;
use near::Near;
use place::{Place, Placed};
use pressure::Pressure;
pub use probe::{PROBE_BYTES, choose_way, drive_speed, probe_of};
pub use seen::{SeenSlots, SlotSight};
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

/// Bytes that a prompt has under way, in at least `N_WAVE_MIN` experts.
const WAVE_BYTES: usize = 40 << 20;
const N_WAVE_MIN: usize = 8;

/// With fewer slots, a prompt has too few reads under way beside the experts it keeps and computes.
pub(crate) const N_SLOTS_OF_PROMPT: usize = 64;

/// While tokens are computed one by one, guesses are submitted as long as fewer bytes are in
/// flight. This many keep a drive busy, and demanded reads wait for few others.
const GUESS_BYTES: usize = 4 << 20;

/// Purpose of opening drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFor {
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
    pub sums: Option<Arc<Sums>>,
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
    pub looks_ahead: bool,
}

/// Experts on a drive.
#[derive(Debug)]
pub struct Stream {
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
    request: Current,
    ahead: Ahead,
    pressure: Pressure,
    watch: MemoryWatch,
    /// A device that reads slots in place.
    sight: Option<Arc<dyn SlotSight>>,
    /// Experts in that device's own memory.
    near: Near,
    finished: Vec<Finished>,
    /// Why a requested expert was not read.
    failure: Option<Error>,
    /// Set when a drive as a whole has failed.
    is_broken: bool,
    /// Paths of the checkpoint's files, for messages.
    paths: Vec<PathBuf>,
    sums: Option<Arc<Sums>>,
    stats: StreamStats,
}

/// The current request.
#[derive(Debug, Default)]
struct Current {
    layer: LayerIdx,
    order: Order,
    /// Per expert of the layer: rows that chose it.
    n_uses: Vec<u32>,
    /// Experts neither in memory nor being read; ascending.
    wanted: Vec<Wanted>,
    /// The first of these, while the table is asked for slots.
    window: Vec<Wanted>,
    taken: Vec<Taken>,
    /// Experts with a lease, not yet handed out; ascending.
    pending: Vec<Placed>,
    /// The group handed out last.
    given: Vec<Placed>,
    /// Whether that group stays valid until the next layer is requested.
    is_lasting: bool,
    /// Experts handed out earlier and still in use.
    held: Vec<Placed>,
    /// Experts from this one on are not handed out; `None`: all may be.
    wave_end: Option<ExpertIdx>,
}

/// State of prefetching.
#[derive(Debug)]
struct Ahead {
    /// Whether anything may be prefetched.
    is_allowed: bool,
    /// `None` if routers are not used for guessing.
    look: Option<LookAhead>,
    /// Experts that the next router named, most likely first in each row.
    ranked: Vec<ExpertIdx>,
    weighed: Vec<(ExpertIdx, f32)>,
    likely: Vec<ExpertIdx>,
    guesses: Vec<Guess>,
    /// Guesses that are being read, or were read since the last choice.
    begun: Vec<Guess>,
    begun_layer: LayerIdx,
    /// When the drive last had no work left but guesses.
    guessed_at: Option<Duration>,
    /// Moving average of the time from then to the next choice.
    gap: Duration,
    step: stats::StepMeter,
}

/// A slot that a device reads in place. It does not change until the next layer is requested.
#[derive(Clone, Copy, Debug)]
pub struct SeenSlot<'a> {
    /// The slab that contains it.
    pub slab: &'a Slab,
    /// Its index in the slab.
    pub place: usize,
}

/// Some leased slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group<'a> {
    memory: &'a SlotMemory,
    layouts: &'a [ExpertLayout],
    taken: &'a [Placed],
    is_lasting: bool,
}

impl<'a> Group<'a> {
    pub(super) fn len(&self) -> usize {
        self.taken.len()
    }

    pub(super) fn expert(&self, place: usize) -> ExpertIdx {
        self.taken[place].expert
    }

    pub(super) fn view(&self, place: usize) -> ExpertView<'a> {
        let slot = self.taken[place].slot().expect("what is on the device has no slot to look at");
        self.layouts[slot.0].view(self.memory.bytes(slot))
    }

    pub(super) fn near(&self, place: usize) -> Option<usize> {
        self.taken[place].near()
    }

    pub(super) fn seen(&self, place: usize) -> Option<SeenSlot<'a>> {
        let slot = self.taken[place].slot()?;
        let slab = self.memory.slab(self.memory.slab_of(slot)).filter(|_| self.is_lasting)?;
        Some(SeenSlot { slab, place: slot.0 % self.memory.n_slots_per_slab() })
    }
}

impl Stream {
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
        let look = LookAheadShape {
            n_layers: top_k.len(),
            n_experts_max: n_experts.iter().copied().max().unwrap_or(0),
            n_ranks,
        };
        let has_mirror = drives.mirror.is_some();
        let settings = Settings { read_bytes: READ_BYTES, guess_bytes_max: GUESS_BYTES };
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
            request: Current::default(),
            ahead: Ahead::new(config.looks_ahead, (n_ranks > 0).then(|| LookAhead::new(look))),
            pressure: Pressure::new(top_k.iter().copied().max().unwrap_or(1), n_slots),
            watch: MemoryWatch::open(),
            sight: None,
            near: Near::default(),
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
    pub(super) fn request(&mut self, request: &Request<'_>) -> Result<()> {
        // This choice is known only once the device has finished with the previous layer's slots.
        self.end_moves();
        self.release_held();
        self.check_alive()?;
        let Request { layer, chosen, is_small } = *request;
        let n_experts = self.bank(layer).bank.n_experts;
        let current = &mut self.request;
        assert!(current.pending.is_empty() && current.given.is_empty(), "one layer at a time");
        current.layer = layer;
        current.order = if is_small { Order::Any } else { Order::Ascending };
        current.n_uses.clear();
        current.n_uses.resize(n_experts, 0);
        chosen.iter().for_each(|expert| current.n_uses[expert.0] += 1);
        let uses = current.n_uses.iter().enumerate().filter(|(_, n_uses)| **n_uses > 0);
        current.wanted.clear();
        let wanted =
            |(expert, &n_uses): (usize, &u32)| Wanted { expert: ExpertIdx(expert), n_uses };
        current.wanted.extend(uses.map(wanted));
        self.end_guessing();
        self.ask_near();
        // Guesses may have arrived meanwhile: they are checked while the rest is being read.
        self.begin_reads();
        let polled = self.poll(Wait::Poll);
        self.ahead.step.asked_at = self.clock.now();
        polled
    }

    /// Returns experts that have arrived, and the order of groups; waits until there are some.
    pub(super) fn next_ready(&mut self) -> Result<Option<(Group<'_>, Order)>> {
        if self.request.is_lasting {
            let Current { given, held, .. } = &mut self.request;
            held.append(given);
        }
        self.release_given();
        let mut has_tried = false;
        loop {
            self.begin_reads();
            self.poll(Wait::Poll)?;
            if self.take_group() {
                let Self { memory, layouts, request, .. } = self;
                let (taken, is_lasting) = (&request.given, request.is_lasting);
                let group = Group { memory, layouts, taken, is_lasting };
                return Ok(Some((group, request.order)));
            }
            if self.is_wave_over() {
                self.ahead.guessed_at = Some(self.clock.now());
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
        self.release_given();
        self.release_held();
        while let Some(taken) = self.request.pending.pop() {
            self.release(taken);
        }
        self.request.wanted.clear();
        self.request.wave_end = None;
        self.near.give_up(self.request.layer);
        self.failure = None;
    }

    /// Leases slots for wanted experts, as far as there is room, and begins to read them.
    fn begin_reads(&mut self) {
        let n_reads_max = match self.request.order {
            Order::Any => usize::MAX,
            Order::Ascending => self.n_wave().saturating_sub(self.n_reading()),
        };
        if self.request.wanted.is_empty() {
            self.read_ahead();
            return;
        }
        if n_reads_max == 0 {
            return;
        }
        let Self { request, table, .. } = self;
        let Current { layer, order, wanted, window, taken, pending, given, held, .. } = request;
        let held = held.iter().chain(&*given);
        let n_pending = pending.iter().chain(held).filter(|it| it.slot().is_some()).count();
        // In ascending order, an expert in memory may have to wait for one that is not, so no more
        // are leased than there are slots.
        let n_window = match order {
            Order::Any => wanted.len(),
            Order::Ascending => wanted.len().min(table.n_slots().saturating_sub(n_pending)),
        };
        window.clear();
        window.extend(wanted.drain(..n_window));
        table.acquire(*layer, window, n_reads_max, taken);
        wanted.splice(0..0, window.drain(..));
        for &Taken { expert, slot, .. } in &request.taken {
            request.pending.push(Placed { expert, place: Place::Slot(slot) });
        }
        request.pending.sort_unstable_by_key(|placed| placed.expert);
        let layer = request.layer;
        for taken_idx in 0..self.request.taken.len() {
            let Taken { expert, slot, found } = self.request.taken[taken_idx];
            match found {
                Found::InMemory => {}
                Found::OnItsWay => {
                    let _ = self.loader.promote(job_of(slot));
                }
                Found::ToRead => {
                    self.begin_fill(layer, expert, slot, Class::Demand);
                }
            }
        }
    }

    /// Returns the experts that a prompt should have under way: just enough for the drive, since
    /// each takes a slot from the experts that are kept.
    fn n_wave(&self) -> usize {
        let n_slots = WAVE_BYTES.div_ceil(self.memory.slot_bytes());
        n_slots.max(N_WAVE_MIN).min(self.table.n_wave_reads())
    }

    fn n_reading(&self) -> usize {
        let pending = self.request.pending.iter();
        pending.filter(|it| !is_there(&self.memory, it)).count()
    }

    /// Moves experts that may be computed now to `given`; returns whether there are any.
    fn take_group(&mut self) -> bool {
        let Current { order, wanted, pending, given, wave_end, .. } = &mut self.request;
        let memory = &self.memory;
        let is_open = |it: &Placed| wave_end.is_none_or(|end| it.expert < end);
        let is_ready = |it: &Placed| is_open(it) && is_there(memory, it);
        match order {
            Order::Any => {
                given.extend(pending.iter().filter(|it| is_ready(it)));
                pending.retain(|it| !is_ready(it));
            }
            Order::Ascending => {
                let next = wanted.first().map_or(usize::MAX, |it| it.expert.0);
                let is_next = |it: &&Placed| it.expert.0 < next && is_ready(it);
                let n = pending.iter().take(N_GROUP_EXPERTS).take_while(is_next).count();
                given.extend(pending.drain(..n));
            }
        }
        self.request.is_lasting = self.request.wave_end.is_some() || self.is_lasting();
        !self.request.given.is_empty()
    }

    fn release_held(&mut self) {
        while let Some(placed) = self.request.held.pop() {
            self.release(placed);
        }
    }

    fn release_given(&mut self) {
        while let Some(placed) = self.request.given.pop() {
            self.release(placed);
        }
    }

    fn release(&mut self, placed: Placed) {
        placed.slot().into_iter().for_each(|slot| self.table.release(slot));
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
fn is_there(memory: &SlotMemory, placed: &Placed) -> bool {
    placed.slot().is_none_or(|slot| memory.state(slot) == SlotState::Ready)
}

/// Returns the job id of a slot, which at most one job fills at a time.
fn job_of(slot: SlotIdx) -> JobId {
    JobId(slot.0 as u64)
}
