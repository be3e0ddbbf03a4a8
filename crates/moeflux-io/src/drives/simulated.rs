//! A drive that exists only in memory, with seeded faults, on a virtual clock.
//!
//! **Invariant:** the outcome of a read is a pure function of (seed, file, offset, attempt). The
//! order of calls and threads do not affect a replay, except through a [`FaultSwitch`]. Like a
//! drive with direct reads, it refuses unaligned ones. Only waiting advances the clock.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::{Clock, VirtualClock};
use crate::drives::block::{BlockRead, FileIdx, ReadCompletion, ReadOutcome, ReadRequest, Wait};
use crate::files::direct::{BLOCK_BYTES, FileFacts};
use crate::files::identity::FileChange;
use crate::memory::slots::{Piece, Slab};
use crate::mix::mixed;

/// Writes a file's bytes from an offset on; called only for ranges within the file.
pub type FileContents = dyn Fn(u64, &mut [u8]) + Send + Sync;

/// A file of a simulated drive.
#[derive(Clone)]
pub struct SimulatedFile {
    /// Path, for messages.
    pub path: PathBuf,
    /// Its length.
    pub len_bytes: u64,
    /// Its contents.
    pub contents: Arc<FileContents>,
}

impl SimulatedFile {
    /// Creates a file that contains `bytes`.
    #[must_use]
    pub fn of(path: &str, bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes = bytes.into();
        let len_bytes = bytes.len() as u64;
        let contents = move |offset_bytes: u64, target: &mut [u8]| {
            let start = usize::try_from(offset_bytes).expect("within the bytes");
            target.copy_from_slice(&bytes[start..start + target.len()]);
        };
        Self { path: path.into(), len_bytes, contents: Arc::new(contents) }
    }
}

impl fmt::Debug for SimulatedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimulatedFile({}, {} bytes)", self.path.display(), self.len_bytes)
    }
}

/// Kinds, rates and durations of faults. Rates are per thousand reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Seed of all faults.
    pub seed: u64,
    /// Reads that return fewer bytes than requested: at least a block, and not always whole blocks.
    pub n_short: u32,
    /// Reads that are interrupted (EINTR).
    pub n_interrupted: u32,
    /// Reads for which the system has no resources at the moment (EAGAIN).
    pub n_again: u32,
    /// Reads that fail (EIO).
    pub n_failed: u32,
    /// Reads with one wrong bit, without an error.
    pub n_flipped: u32,
    /// Offsets that no attempt can read (EIO).
    pub n_lost: u32,
    /// Regions of [`Faults::AWAY_REGION_BYTES`] for which the drive is absent at first.
    pub n_away: u32,
    /// Number of attempts there that find the drive absent (ENODEV).
    pub n_attempts_away: u32,
    /// A single read that fails (EIO), together with repeated reads of the same bytes.
    pub nth: Option<NthFault>,
}

/// A fault of one specific read.
#[derive(Clone, Copy, Debug)]
pub struct NthFault {
    /// Index of the read, from 0, in order of submission.
    pub n: u64,
    /// Number of attempts to read its bytes that fail.
    pub n_attempts: u32,
}

impl Faults {
    /// Size of a region of a file that is absent.
    pub const AWAY_REGION_BYTES: u64 = 1 << 20;
}

/// Replaces the faults of drives that other code owns by now. Reads in flight are subject to the
/// new ones.
#[derive(Clone, Debug, Default)]
pub struct FaultSwitch(Arc<Mutex<SwitchState>>);

#[derive(Debug, Default)]
struct SwitchState {
    /// The last ones that were set, and how often some were.
    faults: Option<Faults>,
    n_set: u64,
    n_reads: u64,
}

impl FaultSwitch {
    /// Sets the faults, from the next read on, which is number 0.
    pub fn set(&self, faults: Faults) {
        let mut state = self.lock();
        *state = SwitchState { faults: Some(faults), n_set: state.n_set + 1, n_reads: 0 };
    }

    /// Returns the number of reads submitted since.
    #[must_use]
    pub fn n_reads(&self) -> u64 {
        self.lock().n_reads
    }

    fn lock(&self) -> MutexGuard<'_, SwitchState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Speed of the drive.
#[derive(Clone, Copy, Debug)]
pub struct DriveSpeed {
    /// Minimum duration of a read.
    pub latency_min: Duration,
    /// Maximum addition to it, chosen by the seed.
    pub latency_more_max: Duration,
    /// Bandwidth shared by all reads.
    pub bytes_per_s: u64,
}

impl Default for DriveSpeed {
    fn default() -> Self {
        Self {
            latency_min: Duration::from_micros(80),
            latency_more_max: Duration::from_micros(400),
            bytes_per_s: 2_000_000_000,
        }
    }
}

/// A simulated drive.
#[derive(Debug)]
pub struct SimulatedDrive {
    files: Vec<SimulatedFile>,
    block_bytes: usize,
    depth: usize,
    speed: DriveSpeed,
    faults: Faults,
    switch: FaultSwitch,
    /// How often faults had been set when the drive took some over.
    n_set: u64,
    clock: VirtualClock,
    /// Time at which the drive will have transferred everything requested.
    free_at: Duration,
    in_flight: Vec<PendingRead>,
    n_submitted: u64,
    /// File and offset affected by [`Faults::nth`].
    nth_read: Option<(FileIdx, u64)>,
    n_faults: u64,
}

#[derive(Debug)]
struct PendingRead {
    due: Duration,
    read: ReadRequest,
    is_cancelled: bool,
    is_nth: bool,
}

/// The simulated outcome of a read.
enum SimulatedOutcome {
    Whole,
    Short,
    Flipped,
    Failed(io::ErrorKind),
    Lost,
    Away,
}

impl SimulatedDrive {
    /// Creates a drive for `depth` reads in flight, in blocks of [`BLOCK_BYTES`], without faults.
    #[must_use]
    pub fn new(files: Vec<SimulatedFile>, depth: usize, clock: VirtualClock) -> Self {
        Self {
            files,
            block_bytes: BLOCK_BYTES,
            depth,
            speed: DriveSpeed::default(),
            faults: Faults::default(),
            switch: FaultSwitch::default(),
            n_set: 0,
            clock,
            free_at: Duration::ZERO,
            in_flight: Vec::with_capacity(depth),
            n_submitted: 0,
            nth_read: None,
            n_faults: 0,
        }
    }

    /// Sets the faults.
    #[must_use]
    pub fn with_faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// Sets the switch that can replace the faults.
    #[must_use]
    pub fn with_switch(self, switch: FaultSwitch) -> Self {
        Self { switch, ..self }
    }

    /// Sets the speed.
    #[must_use]
    pub fn with_speed(self, speed: DriveSpeed) -> Self {
        Self { speed, ..self }
    }

    /// Sets the block size.
    #[must_use]
    pub fn with_block(self, block_bytes: usize) -> Self {
        Self { block_bytes, ..self }
    }

    /// Returns the number of faulty reads.
    #[must_use]
    pub fn n_faults(&self) -> u64 {
        self.n_faults
    }

    fn number(&self, read: &ReadRequest, purpose: u64) -> u64 {
        let location = [u64::from(read.file.0), read.offset_bytes, u64::from(read.attempt)];
        mixed(&[self.faults.seed, purpose, location[0], location[1], location[2]])
    }

    fn simulate(&self, read: &ReadRequest) -> SimulatedOutcome {
        let faults = &self.faults;
        let of_file = [faults.seed, u64::from(read.file.0)];
        let region = read.offset_bytes / Faults::AWAY_REGION_BYTES;
        let hits = |number: u64, rate: u32| number % 1000 < u64::from(rate);
        if hits(mixed(&[of_file[0], of_file[1], 1, region]), faults.n_away)
            && read.attempt < faults.n_attempts_away
        {
            return SimulatedOutcome::Away;
        }
        if hits(mixed(&[of_file[0], of_file[1], 2, read.offset_bytes]), faults.n_lost) {
            return SimulatedOutcome::Lost;
        }
        let number = self.number(read, 3) % 1000;
        let mut end = 0;
        let rates = [
            (faults.n_short, SimulatedOutcome::Short),
            (faults.n_interrupted, SimulatedOutcome::Failed(io::ErrorKind::Interrupted)),
            (faults.n_again, SimulatedOutcome::Failed(io::ErrorKind::WouldBlock)),
            (faults.n_failed, SimulatedOutcome::Lost),
            (faults.n_flipped, SimulatedOutcome::Flipped),
        ];
        for (rate, simulated) in rates {
            end += u64::from(rate);
            if number < end {
                return simulated;
            }
        }
        SimulatedOutcome::Whole
    }

    /// Takes over new faults from the switch.
    fn take_new_faults(&mut self) {
        let mut switched = self.switch.lock();
        switched.n_reads += 1;
        if switched.n_set > self.n_set
            && let Some(faults) = switched.faults
        {
            self.n_set = switched.n_set;
            self.faults = faults;
            (self.n_submitted, self.nth_read) = (0, None);
        }
    }

    /// Carries out a read.
    fn read(&mut self, pending: PendingRead) -> ReadCompletion {
        let PendingRead { read, is_cancelled, is_nth, .. } = pending;
        let simulated = if is_nth { SimulatedOutcome::Lost } else { self.simulate(&read) };
        let number = self.number(&read, 4);
        let ReadRequest { tag, file, offset_bytes, mut piece, .. } = read;
        if is_cancelled {
            return ReadCompletion { tag, piece, outcome: ReadOutcome::Cancelled };
        }
        self.n_faults += u64::from(!matches!(simulated, SimulatedOutcome::Whole));
        let outcome = if !self.is_aligned(offset_bytes, &piece) {
            ReadOutcome::Failed(io::ErrorKind::InvalidInput.into())
        } else {
            match simulated {
                SimulatedOutcome::Failed(kind) => ReadOutcome::Failed(kind.into()),
                SimulatedOutcome::Lost => ReadOutcome::Failed(io::Error::other("simulated EIO")),
                SimulatedOutcome::Away => ReadOutcome::Failed(io::Error::other("simulated ENODEV")),
                SimulatedOutcome::Whole | SimulatedOutcome::Short | SimulatedOutcome::Flipped => {
                    let n_bytes = self.copy(file, offset_bytes, &mut piece, &simulated, number);
                    ReadOutcome::Read(n_bytes)
                }
            }
        };
        ReadCompletion { tag, piece, outcome }
    }

    fn is_aligned(&self, offset_bytes: u64, piece: &Piece) -> bool {
        let block = self.block_bytes;
        offset_bytes.is_multiple_of(block as u64)
            && piece.rest_bytes().is_multiple_of(block)
            && piece.rest_address().addr().is_multiple_of(block)
    }

    fn copy(
        &self,
        file: FileIdx,
        at: u64,
        piece: &mut Piece,
        simulated: &SimulatedOutcome,
        number: u64,
    ) -> usize {
        let file = &self.files[file.0 as usize];
        let there = usize::try_from(file.len_bytes.saturating_sub(at)).unwrap_or(usize::MAX);
        let mut n_bytes = piece.rest_bytes().min(there);
        if matches!(simulated, SimulatedOutcome::Short) {
            let n_blocks = n_bytes / self.block_bytes;
            // At least one block: a read of 0 bytes would mean the end of the file.
            let kept = 1 + below(number, n_blocks.saturating_sub(1).max(1));
            // Sometimes it ends within a block.
            let more = below(number >> 32, 2) * below(number >> 33, self.block_bytes);
            n_bytes = n_bytes.min(kept * self.block_bytes + more);
        }
        if n_bytes == 0 {
            return 0;
        }
        let target = &mut piece.rest_mut()[..n_bytes];
        (file.contents)(at, target);
        if matches!(simulated, SimulatedOutcome::Flipped) {
            target[below(number, n_bytes)] ^= 1 << (number >> 61);
        }
        n_bytes
    }

    /// Completes the reads that are due, earliest first.
    fn take_due(&mut self, done: &mut Vec<ReadCompletion>) {
        while let Some(at) =
            self.earliest().filter(|&at| self.in_flight[at].due <= self.clock.now())
        {
            let pending = self.in_flight.swap_remove(at);
            let completion = self.read(pending);
            done.push(completion);
        }
    }

    fn earliest(&self) -> Option<usize> {
        let order = |&at: &usize| (self.in_flight[at].due, self.in_flight[at].read.tag);
        (0..self.in_flight.len()).min_by_key(order)
    }
}

fn below(number: u64, end: usize) -> usize {
    usize::try_from(number % end as u64).expect("below a usize")
}

impl BlockRead for SimulatedDrive {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn n_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    fn n_files(&self) -> usize {
        self.files.len()
    }

    fn file(&self, file: FileIdx) -> FileFacts<'_> {
        let SimulatedFile { path, len_bytes, .. } = &self.files[file.0 as usize];
        FileFacts { path, len_bytes: *len_bytes, block_bytes: self.block_bytes }
    }

    fn check_unchanged(&self, _: FileIdx) -> Result<(), FileChange> {
        Ok(())
    }

    fn submit(&mut self, read: ReadRequest) {
        assert!(self.in_flight.len() < self.depth, "at most `depth` reads are in flight");
        self.take_new_faults();
        let location = (read.file, read.offset_bytes);
        if self.faults.nth.is_some_and(|nth| nth.n == self.n_submitted) {
            self.nth_read = Some(location);
        }
        self.n_submitted += 1;
        let n_attempts = self.faults.nth.map_or(0, |nth| nth.n_attempts);
        let is_nth = self.nth_read == Some(location) && read.attempt < n_attempts;
        let DriveSpeed { latency_min, latency_more_max, bytes_per_s } = self.speed;
        let more_ns = latency_more_max.as_nanos().max(1);
        let more_ns = u128::from(self.number(&read, 5)) % more_ns;
        let more = Duration::from_nanos(u64::try_from(more_ns).unwrap_or(0));
        let n_bytes = read.piece.rest_bytes() as u64;
        let passing = Duration::from_nanos(n_bytes.saturating_mul(1_000_000_000) / bytes_per_s);
        self.free_at = self.free_at.max(self.clock.now()) + passing;
        let due = self.free_at + latency_min + more;
        self.in_flight.push(PendingRead { due, read, is_cancelled: false, is_nth });
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn complete(&mut self, wait: Wait, done: &mut Vec<ReadCompletion>) -> io::Result<()> {
        let n_before = done.len();
        self.take_due(done);
        if done.len() > n_before {
            return Ok(());
        }
        let due = self.earliest().map(|at| self.in_flight[at].due);
        let until = match (wait, due) {
            (Wait::Poll, _) | (Wait::Any, None) => return Ok(()),
            (Wait::Any, Some(due)) => due,
            (Wait::AtMost(limit), due) => {
                let end = self.clock.now() + limit;
                due.map_or(end, |due| due.min(end))
            }
        };
        self.clock.advance_to(until);
        self.take_due(done);
        Ok(())
    }

    fn cancel(&mut self, tag: u64) {
        // The drive delivers reads that are almost complete.
        let found = self.in_flight.iter_mut().find(|it| it.read.tag == tag);
        if let Some(pending) = found
            && pending.due > self.clock.now() + self.speed.latency_min
        {
            pending.is_cancelled = true;
            pending.due = self.clock.now();
        }
    }

    fn slab_added(&mut self, _: &Slab) {}

    fn slab_removed(&mut self, _: &Slab) {}
}
