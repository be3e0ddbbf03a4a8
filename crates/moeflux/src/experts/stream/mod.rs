//! Experts on a drive, as many of them in memory as there is room for.
//!
//! A layer's choice goes in: what is in memory comes out at once, the rest as it arrives, while
//! further reads are under way. **Invariant:** a slot that was handed out is not used again before
//! the next group is asked for; what was read is checked before it is handed out; a failed read is
//! an error or is done again, never another result. Nothing is allocated once lists have grown.

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

/// Answers' rows, and a prompt's if they are at most this many, take what is in memory first, and
/// keep outputs for their turn in the sum; with more rows keeping them would take more memory than
/// waiting costs.
pub const N_ROWS_ANY_ORDER: usize = 16;

/// Experts of a group when many are on their way: in between reads are begun anew.
const N_GROUP_EXPERTS: usize = 8;

/// Of one read; larger ones make no drive faster, and smaller ones spread over its channels.
pub(in crate::experts) const READ_BYTES: usize = 512 << 10;

/// A prompt has so many bytes under way, in so many experts at least.
const WAVE_BYTES: usize = 40 << 20;
const N_WAVE_MIN: usize = 8;

/// With fewer slots a prompt has too few reads under way beside what it keeps and computes.
pub(crate) const N_SLOTS_OF_PROMPT: usize = 64;

/// While tokens are computed one by one, guesses are read as long as fewer bytes are in flight:
/// with these a drive is busy, and what is demanded waits for few others.
const GUESS_BYTES: usize = 4 << 20;

/// What drives are wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFor {
    /// Experts that come and go.
    Slots,
    /// All experts, once. Through the page cache: the next start finds them there, and it has no
    /// blocks, which records in memory do not keep to.
    Memory,
}

/// Where bytes come from.
#[derive(Debug)]
pub struct Drives {
    /// The files of the checkpoint, in its order.
    pub primary: Box<dyn BlockRead>,
    /// The same on another drive.
    pub mirror: Option<Box<dyn BlockRead>>,
    /// Whether the system keeps copies of what is read: then few slots are enough.
    pub caching: Caching,
    /// What time it is there.
    pub clock: Arc<dyn Clock>,
}

impl Drives {
    /// The largest block of their files.
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

/// Whose experts are streamed.
#[derive(Clone, Debug)]
pub struct StreamModel<'a> {
    /// Where they lie.
    pub manifest: &'a Manifest,
    /// In which files.
    pub checkpoint: &'a Checkpoint,
    /// What is read is compared with these, if any.
    pub sums: Option<Arc<Sums>>,
    /// Experts that a row chooses in each layer of the model; 0 in dense ones.
    pub top_k: &'a [usize],
    /// Experts that a layer's router names beforehand.
    pub n_ranks: usize,
}

/// How experts are streamed.
#[derive(Clone, Copy, Debug)]
pub struct StreamConfig {
    /// Experts in memory.
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
    /// Slots that there should be, those lent among them.
    n_slots_owned: usize,
    n_slots_lent: usize,
    /// Per slot: how the matrices lie there.
    layouts: Vec<ExpertLayout>,
    /// Per slot: how often its expert was read in vain.
    n_rereads: Vec<u32>,
    request: Current,
    ahead: Ahead,
    pressure: Pressure,
    watch: MemoryWatch,
    /// A device that reads slots where they lie.
    sight: Option<Arc<dyn SlotSight>>,
    /// What it has in its own memory.
    near: Near,
    finished: Vec<Finished>,
    /// Why a demanded expert did not come.
    failure: Option<Error>,
    /// A drive as a whole has failed.
    is_broken: bool,
    /// Of the checkpoint's files, for messages.
    paths: Vec<PathBuf>,
    sums: Option<Arc<Sums>>,
    stats: StreamStats,
}

/// What was asked for.
#[derive(Debug, Default)]
struct Current {
    layer: LayerIdx,
    order: Order,
    /// Per expert of the layer: rows that chose it.
    n_uses: Vec<u32>,
    /// Neither in memory nor being read; ascending.
    wanted: Vec<Wanted>,
    /// The first of these, when they are asked for.
    window: Vec<Wanted>,
    taken: Vec<Taken>,
    /// Leased, not yet given out; ascending.
    pending: Vec<Placed>,
    /// Given out.
    given: Vec<Placed>,
    /// Whether these stay as they are until the next layer is asked for.
    is_lasting: bool,
    /// Given out before, and not over yet.
    held: Vec<Placed>,
    /// Nothing is given out from this expert on; `None`: all is.
    wave_end: Option<ExpertIdx>,
}

/// What is read before it is asked for.
#[derive(Debug)]
struct Ahead {
    /// Whether anything is read before it is asked for.
    is_allowed: bool,
    /// None if nothing is to be guessed from routers.
    look: Option<LookAhead>,
    /// What the next router named, most likely first in each row.
    ranked: Vec<ExpertIdx>,
    weighed: Vec<(ExpertIdx, f32)>,
    likely: Vec<ExpertIdx>,
    guesses: Vec<Guess>,
    /// Being read, or read since the last choice.
    begun: Vec<Guess>,
    begun_layer: LayerIdx,
    /// When the drive last had nothing to do but what was guessed.
    guessed_at: Option<Duration>,
    /// From then to the next choice, of late.
    gap: Duration,
    step: stats::StepMeter,
}

/// A slot for a device to read, which stays as it is until the layer after is asked for.
#[derive(Clone, Copy, Debug)]
pub struct SeenSlot<'a> {
    /// Where it lies.
    pub slab: &'a Slab,
    /// Which slot of the slab.
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
    /// Slots, empty, and what it takes to fill them.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`].
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
        // The table grows with the memory.
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

    /// Asks for the experts of a layer.
    pub(super) fn request(&mut self, request: &Request<'_>) -> Result<()> {
        // The choice of this layer comes behind all that read the slots of the one before.
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
        // What was guessed may have come meanwhile: it is checked while the rest is being read.
        self.begin_reads();
        let polled = self.poll(Wait::Poll);
        self.ahead.step.asked_at = self.clock.now();
        polled
    }

    /// Experts that have arrived, and in which order groups come; waits until there are some.
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
                // What has arrived just now was guessed, and had the last slot.
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

    /// Forgets what was asked for.
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

    /// Leases slots for what is wanted, as far as there is room, and begins to read.
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
        // In ascending order one that is in memory may have to wait for one that is not: there is
        // a slot for each that is leased.
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

    /// Experts that a prompt has under way: enough for the drive, since each takes a slot from what
    /// is kept.
    fn n_wave(&self) -> usize {
        let n_slots = WAVE_BYTES.div_ceil(self.memory.slot_bytes());
        n_slots.max(N_WAVE_MIN).min(self.table.n_wave_reads())
    }

    fn n_reading(&self) -> usize {
        let pending = self.request.pending.iter();
        pending.filter(|it| !is_there(&self.memory, it)).count()
    }

    /// Moves what may be computed now to `given`; whether there is something.
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

/// Whether an expert may be computed.
fn is_there(memory: &SlotMemory, placed: &Placed) -> bool {
    placed.slot().is_none_or(|slot| memory.state(slot) == SlotState::Ready)
}

/// A slot is filled by one job at a time, which has its number.
fn job_of(slot: SlotIdx) -> JobId {
    JobId(slot.0 as u64)
}
