//! Experts on a drive, with as many of them in memory as there is room for. [`ExpertStream`]
//! coordinates a request; each of its parts needs those above it only:
//!
//! ```text
//! files         where experts are in the files; bank: one layer of them, checks of their bytes
//! slots/        memory, and which expert is in which slot
//! request       the experts of a layer: demanded, on their way, handed out, released
//! reads         from files into slots
//! device_cache  experts in a device's own memory
//! prefetch      reads before the request; step_meter: what they gained
//! ```
//!
//! **Invariant:** a slot that was handed out is not reused before the next group is requested; what
//! was read is checked before it is handed out; a failed read is an error or is repeated, never a
//! different result. Nothing is allocated once lists have grown.

mod bank;
mod files;
mod slots;
mod request;
mod reads;
mod device_cache;
mod step_meter;
mod prefetch;
mod stats;
mod open;
mod probe;

use std::sync::Arc;
use std::time::Duration;

use moeflux_io::{BlockRead, Caching, Clock, FileIdx, LoadPriority, Wait};
use tracing::Level;

use crate::error::Result;
use crate::experts::predict::{LookAhead, LookAheadShape};
use crate::experts::table::{Lookup, SlotLease, TableShape};
use crate::experts::times::StepRecorder;
use crate::experts::uses::UseCounts;
use crate::experts::{ArrivalOrder, ExpertRequest};
use crate::format::{Checkpoint, CheckpointSums};
use crate::ids::ExpertIdx;
use crate::weights::Manifest;

pub(in crate::experts) use bank::{ReadFault, StreamBank};
use device_cache::DeviceCache;
pub use device_cache::DeviceMove;
use files::ExpertFiles;
use prefetch::PrefetchState;
pub use probe::{PROBE_BYTES, choose_way, drive_speed, probe_of};
use reads::ExpertReads;
pub(in crate::experts) use reads::N_REREADS_MAX;
use request::CurrentRequest;
use slots::ExpertSlots;
pub(in crate::experts) use slots::SlotGroup;
pub use slots::mapped::{MappedSlot, MappedSlots, SlotMapping};
pub use slots::shape::{SlotShape, slot_shape};
pub(crate) use slots::shape::{record_shape, slab_bytes};
use slots::target::SlotTarget;
pub use stats::StreamStats;
use step_meter::{StepMeter, record_ns};

/// Upper bound on prompt rows that take experts in any order, as decode rows always do: experts in
/// memory come first, and outputs are kept until their turn in the sum. With more rows, keeping
/// them would take more memory than the waits are worth.
pub const N_ROWS_ANY_ORDER: usize = 16;

/// Bytes of one read; larger ones make no drive faster, and smaller ones spread over its channels.
pub(in crate::experts) const READ_BYTES: usize = 512 << 10;

/// With fewer slots, a prompt has too few reads under way beside the experts it keeps and computes.
pub(crate) const N_SLOTS_OF_PROMPT: usize = 64;

/// While tokens are computed one by one, guesses are submitted as long as fewer bytes are in
/// flight. This many keep a drive busy, and demanded reads wait for few others.
const GUESS_BYTES: usize = 4 << 20;

/// A device reads a prompt's experts in place if they take at most one slot in this many.
const LASTING_SHARE: usize = 2;

/// Purpose of opening drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPurpose {
    /// Slots, whose experts come and go.
    Slots,
    /// Rows of tables, which are read one by one.
    Rows,
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
    files: ExpertFiles,
    slots: ExpertSlots,
    target: SlotTarget,
    /// Experts in a device's own memory.
    device_cache: DeviceCache,
    request: CurrentRequest,
    reads: ExpertReads,
    prefetch: PrefetchState,
    uses: UseCounts,
    times: StepRecorder,
    /// Time for which computing waited for reads.
    read_wait: Duration,
    clock: Arc<dyn Clock>,
}

impl ExpertStream {
    /// Creates empty slots and all that is needed to fill them.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::NoRoom`] if memory for the slots cannot be allocated.
    ///
    /// # Panics
    ///
    /// If the model has no experts.
    pub fn open(model: &StreamModel<'_>, drives: Drives, config: &StreamConfig) -> Result<Self> {
        let StreamModel { manifest, top_k, n_ranks, .. } = *model;
        let block_bytes = drives.block_bytes();
        let shape = slot_shape(&manifest.banks, block_bytes);
        let n_slots = config.n_slots.clamp(1, shape.n_experts);
        let files = ExpertFiles::new(model, block_bytes);
        let n_experts: Vec<usize> = files.n_experts_of_layers().collect();
        // The table grows together with the memory.
        let n_uses_per_row = top_k.iter().sum();
        let table = TableShape { n_experts: &n_experts, n_uses_per_row, n_slots: 1 };
        let look_ahead = LookAheadShape {
            n_layers: top_k.len(),
            n_experts_max: n_experts.iter().copied().max().unwrap_or(0),
            n_ranks,
        };
        let look_ahead = (n_ranks > 0).then(|| LookAhead::new(look_ahead));
        let mut stream = Self {
            files,
            slots: ExpertSlots::new((shape, n_slots), table, manifest.banks[0].layout),
            target: SlotTarget::new(top_k.iter().copied().max().unwrap_or(1), n_slots),
            device_cache: DeviceCache::default(),
            request: CurrentRequest::default(),
            clock: Arc::clone(&drives.clock),
            reads: ExpertReads::new(drives),
            prefetch: PrefetchState::new(config.prefetches, look_ahead),
            uses: UseCounts::new(n_experts.iter().copied()),
            times: StepRecorder::new(&n_experts),
            read_wait: Duration::ZERO,
        };
        stream.resize(n_slots)?;
        Ok(stream)
    }

    /// Lets a device read slots in place, as [`MappedSlots`] describes. Called before anything is
    /// read.
    pub fn share_with_device(&mut self, mapping: Arc<dyn SlotMapping>) {
        self.files.share_with_device();
        let n_experts = self.files.n_experts_of_layers();
        self.device_cache = DeviceCache::new(mapping.n_device_slots(), n_experts);
        self.slots.share_with_device(mapping);
    }

    /// Returns whether the system caches what is read.
    #[must_use]
    pub fn caching(&self) -> Caching {
        self.reads.caching
    }

    /// Returns the number of slots whose memory is allocated and freed together.
    #[must_use]
    pub fn n_slots_per_slab(&self) -> usize {
        self.slots.n_slots_per_slab()
    }

    /// Sets the number of slots. More are available at once; fewer as soon as those in use are
    /// released.
    ///
    /// # Errors
    ///
    /// [`crate::error::Error::NoRoom`] if memory cannot be allocated; the number of slots is
    /// unchanged.
    pub fn resize(&mut self, n_slots: usize) -> Result<()> {
        let n_slots = self.target.own(n_slots);
        self.slots.resize(n_slots, &mut self.reads.loader)
    }

    /// Lends the memory of `n_slots` slots; see [`crate::experts::Experts::lend`].
    pub(super) fn lend(&mut self, n_slots: usize) -> Result<bool> {
        if self.caching() == Caching::PageCache {
            // The page cache shrinks by itself.
            return Ok(true);
        }
        let Some(n_slots) = self.target.lend(n_slots, self.slots.table.n_slots()) else {
            return Ok(false);
        };
        self.slots.resize(n_slots, &mut self.reads.loader)?;
        // Reads into closing slots would keep their memory.
        while self.slots.table.n_closing() > 0 && self.reads.loader.n_jobs() > 0 {
            self.poll(Wait::Any)?;
        }
        self.slots.free_unused_slabs(&mut self.reads.loader);
        Ok(true)
    }

    /// Keeps at least `n_experts` slots, however short memory is.
    pub(super) fn reserve_for_chunks(&mut self, n_experts: usize) {
        self.target.reserve(n_experts);
    }

    /// Begins a step.
    pub(super) fn begin_step(&mut self, n_rows: usize, is_small: bool) {
        let record_ns = record_ns(self.slots.slot_bytes(), self.reads.loader.speed());
        self.prefetch.end_step(self.clock.now(), self.read_wait, record_ns);
        if tracing::enabled!(Level::DEBUG) {
            self.stats().report();
        }
        self.follow_pressure();
        self.slots.table.begin_step(n_rows);
        let may_be_wrong = is_small && !self.files.are_read_in_turn();
        let guess_bytes = if may_be_wrong { GUESS_BYTES } else { usize::MAX };
        self.reads.loader.set_prefetch_bytes_max(guess_bytes);
        let now = self.clock.now();
        self.prefetch.begin_step(StepMeter::begin(is_small, now, self.read_wait));
        self.times.begin(is_small, self.totals(now));
    }

    /// Gives slots up or adds some, as memory is short or not. Failing to allocate more is no
    /// error: the number of slots then stays the same.
    fn follow_pressure(&mut self) {
        let Self { slots, target, reads, clock, .. } = self;
        let n_slots = slots.table.n_slots();
        let Some(n_slots_due) = target.follow_pressure(n_slots, clock.now()) else { return };
        if n_slots_due != n_slots {
            let resized = slots.resize(n_slots_due, &mut reads.loader);
            debug_assert!(resized.is_ok() || n_slots_due > n_slots, "slots can be given up");
        }
        slots.free_unused_slabs(&mut reads.loader);
    }

    /// Requests the experts of a layer.
    pub(super) fn request(&mut self, request: &ExpertRequest<'_>) -> Result<()> {
        let Self { files, slots, device_cache, request: current, reads, prefetch, .. } = self;
        // This choice is known only once the device has finished with the previous layer's slots.
        device_cache.end_moves(&mut slots.table);
        current.release_earlier_groups(slots);
        reads.check_alive()?;
        current.begin(request, files.bank(request.layer).bank.n_experts);
        current.demands.iter().for_each(|it| self.uses.add(request.layer, it.expert, it.n_uses));
        prefetch.end_guessing(current, slots, reads, self.clock.now());
        device_cache.find(current);
        // Guesses may have arrived meanwhile: they are checked while the rest is being read.
        self.begin_reads();
        let polled = self.poll(Wait::Poll);
        self.prefetch.step.asked_at = self.clock.now();
        polled
    }

    /// Returns experts that have arrived, and the order of groups; waits until there are some.
    pub(super) fn next_ready(&mut self) -> Result<Option<(SlotGroup<'_>, ArrivalOrder)>> {
        self.request.end_group(&mut self.slots);
        let mut has_tried = false;
        loop {
            self.begin_reads();
            self.poll(Wait::Poll)?;
            self.request.take_group(&self.slots);
            self.request.is_lasting = self.request.is_in_chunk() || self.is_read_in_place();
            if !self.request.last_group.is_empty() {
                return Ok(Some((self.request.group(&self.slots), self.request.order)));
            }
            if self.request.is_over() {
                let now = self.clock.now();
                self.prefetch.guessed_at = Some(now);
                // The ranks of a group end a layer chunk by chunk.
                if !self.request.is_in_chunk() {
                    self.times.end_layer(self.request.layer, self.totals(now));
                }
                return Ok(None);
            }
            if self.reads.loader.n_jobs() == 0 {
                // A guess that arrived just now held the last slot: try once more.
                assert!(!has_tried, "reads are under way while experts are missing");
                has_tried = true;
                continue;
            }
            has_tried = false;
            let began = self.clock.now();
            self.poll(Wait::Any)?;
            self.read_wait += self.clock.now().saturating_sub(began);
        }
    }

    /// Returns the next expert of the last group that the device should copy to its own memory.
    pub(super) fn next_move(&mut self) -> Option<DeviceMove<'_>> {
        self.device_cache.next_move(&mut self.request, &self.slots)
    }

    /// Begins a chunk: until [`ExpertStream::end_chunk`], only experts before `end` are handed out.
    pub(super) fn begin_chunk(&mut self, end: ExpertIdx) {
        self.request.begin_chunk(end);
    }

    /// Returns all experts handed out in this chunk.
    pub(super) fn chunk(&mut self) -> SlotGroup<'_> {
        self.request.chunk(&self.slots)
    }

    pub(super) fn end_chunk(&mut self) {
        self.request.end_chunk(&mut self.slots);
    }

    /// Drops the request.
    pub(super) fn give_up(&mut self) {
        self.request.give_up(&mut self.slots);
        self.device_cache.give_up(self.request.layer);
        self.reads.forget_failure();
    }

    /// Returns the time for which computing waited for reads so far.
    pub(super) fn read_wait(&self) -> Duration {
        self.read_wait
    }

    /// Leases slots for the demanded experts, as far as there is room, and begins to read them.
    fn begin_reads(&mut self) {
        let Self { files, slots, request, reads, .. } = self;
        let n_reads_max = match request.order {
            ArrivalOrder::Any => usize::MAX,
            ArrivalOrder::Ascending => {
                slots.n_prompt_reads().saturating_sub(request.n_reading(slots))
            }
        };
        if request.demands.is_empty() {
            self.read_ahead();
            return;
        }
        if n_reads_max == 0 {
            return;
        }
        request.lease(n_reads_max, &mut slots.table);
        for &SlotLease { expert, slot, lookup } in &request.leases {
            match lookup {
                Lookup::InMemory => {}
                Lookup::Loading => reads.promote(slot),
                Lookup::ToRead => {
                    let expert = (request.layer, expert);
                    reads.begin((files, slots), expert, slot, LoadPriority::Demand);
                }
            }
        }
    }

    /// Handles finished reads, after waiting as `wait` says.
    fn poll(&mut self, wait: Wait) -> Result<()> {
        self.reads.poll(wait, (&self.files, &mut self.slots), &self.request)
    }

    /// Returns whether a device reads slots of this layer in place. Waiting for slots must not mean
    /// waiting for the device as well, so there have to be enough for all that the layer requests.
    fn is_read_in_place(&self) -> bool {
        let Self { files, slots, request, .. } = self;
        if !slots.are_shared() || files.mapped_layout(request.layer).is_none() {
            return false;
        }
        match request.order {
            ArrivalOrder::Any => request.demands.is_empty(),
            ArrivalOrder::Ascending => {
                request.n_experts_chosen() * LASTING_SHARE <= slots.table.n_slots()
            }
        }
    }
}
