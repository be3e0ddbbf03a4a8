//! The loader: divides jobs into reads, keeps the drives busy, handles faults, and returns filled
//! slots.
//!
//! **Invariant:** every submitted job is returned exactly once, with its filling and an outcome:
//! ready with the right bytes, cancelled, or failed with an error that names file and range. Reads
//! of guesses begin only while all reads of demands have begun. The loader works only inside its
//! calls; a submitted job begins with the next one. Independent of checksums.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::block::{BlockRead, Completion, FileIdx, Read, Wait};
use crate::clock::Clock;
use crate::loader::job::{Active, Next};
use crate::loader::lane::Lane;
use crate::loader::places::Places;
use crate::slots::{Piece, SLOT_ALIGN, Slab};

mod error;
mod job;
mod lane;
mod places;
mod settle;
#[cfg(test)]
mod tests;

pub use error::LoadError;
pub use job::{Class, Finished, Job, JobId, Laid, N_PARTS_MAX, Outcome, Part, Source, lay_out};
pub use lane::LaneCounts;
pub use settle::{N_FAILURES_BEFORE_MIRROR, N_FAILURES_MAX, N_INTERRUPTIONS_MAX};

/// With reads in flight on two drives, each is waited for in turn, for this time.
const ALTERNATING_WAIT: Duration = Duration::from_micros(100);

/// Number of jobs for which memory is allocated at the start: a token's experts, and guesses. How
/// many are in progress or end at once depends on timing, and no run should allocate late.
pub const N_JOBS_USUAL: usize = 64;

/// How jobs are divided, and the limit for guesses.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Maximum size of a read; larger parts take several reads. A multiple of [`SLOT_ALIGN`].
    pub read_bytes: usize,
    /// Reads of guesses begin while fewer bytes than this are in flight: enough to keep the drive
    /// busy, and no more than a demand can wait for.
    pub guess_bytes_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { read_bytes: 1 << 20, guess_bytes_max: 4 << 20 }
    }
}

/// Statistics since the loader was created.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Bytes read for demands, including the blocks around their parts.
    pub demand_bytes: u64,
    /// Bytes read for guesses that had not been promoted by then.
    pub guess_bytes: u64,
    /// Reads begun, including repetitions.
    pub n_reads: u64,
    /// Reads that returned fewer bytes than requested and were continued.
    pub n_short: u64,
    /// Reads that were interrupted and repeated.
    pub n_interrupted: u64,
    /// Reads that failed and were repeated, on either drive.
    pub n_retries: u64,
    /// For each drive: the first, the mirror.
    pub lanes: [LaneCounts; 2],
}

/// A read that has begun and is not over.
#[derive(Debug)]
struct OpenRead {
    job: usize,
    file: FileIdx,
    /// Offset of its piece in the file.
    offset_bytes: u64,
    /// Present while the read waits for its next attempt; otherwise with the drive.
    piece: Option<Piece>,
    /// Earliest time of the next attempt.
    due: Duration,
    lane: usize,
    /// Bytes of its piece, and those last requested.
    len_bytes: usize,
    asked_bytes: usize,
    n_attempts: u32,
    n_interruptions: u32,
    n_failures: u32,
    /// How often it may still change to the other drive: there, and back once, since the first was
    /// given up after few attempts.
    n_changes_left: u32,
}

/// The loader. It owns one drive or two; the second is a mirror with the same files in the same
/// order.
#[derive(Debug)]
pub struct Loader {
    lanes: Vec<Lane>,
    clock: Arc<dyn Clock>,
    settings: Settings,
    block_bytes: usize,
    jobs: Places<Active>,
    reads: Places<OpenRead>,
    /// Jobs with reads that have not begun: demands, guesses.
    queues: [VecDeque<usize>; 2],
    open_bytes: usize,
    n_waiting_reads: usize,
    completions: Vec<Completion>,
    ended: VecDeque<Finished>,
    counts: Counts,
}

impl Loader {
    /// Creates a loader over `primary`, and `mirror` if there is one.
    ///
    /// # Panics
    ///
    /// If the mirror has other files (by number and length), a block is larger than [`SLOT_ALIGN`],
    /// or the settings allow no read.
    #[must_use]
    pub fn new(
        primary: Box<dyn BlockRead>,
        mirror: Option<Box<dyn BlockRead>>,
        settings: Settings,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let read_bytes = settings.read_bytes;
        assert!(read_bytes > 0 && read_bytes.is_multiple_of(SLOT_ALIGN), "whole blocks are read");
        assert!(settings.guess_bytes_max > 0, "a guess can be read");
        let mut lanes = vec![Lane::new(primary)];
        lanes.extend(mirror.map(Lane::new));
        let files_of = |lane: &Lane| {
            let n_files = u32::try_from(lane.drive.n_files()).expect("files are counted in u32");
            (0..n_files).map(|it| lane.drive.file(FileIdx(it)).len_bytes).collect::<Vec<u64>>()
        };
        let are_same = lanes.iter().all(|lane| files_of(lane) == files_of(&lanes[0]));
        assert!(are_same, "the mirror has the same files");
        let blocks_of = |lane: &Lane| {
            let n_files = u32::try_from(lane.drive.n_files()).expect("files are counted in u32");
            (0..n_files).map(|it| lane.drive.file(FileIdx(it)).block_bytes).max().unwrap_or(1)
        };
        let block_bytes = lanes.iter().map(blocks_of).max().unwrap_or(1);
        assert!(SLOT_ALIGN.is_multiple_of(block_bytes), "slots begin at whole blocks");
        // How many completions arrive at once depends on timing: memory is allocated for all, so
        // that no run allocates late.
        let depth = lanes.iter().map(|lane| lane.drive.depth()).sum();
        Self {
            lanes,
            clock,
            settings,
            block_bytes,
            jobs: Places::with_capacity(N_JOBS_USUAL),
            reads: Places::with_capacity(depth),
            queues: [(); 2].map(|()| VecDeque::with_capacity(N_JOBS_USUAL)),
            open_bytes: 0,
            n_waiting_reads: 0,
            completions: Vec::with_capacity(depth),
            ended: VecDeque::with_capacity(N_JOBS_USUAL),
            counts: Counts::default(),
        }
    }

    /// Returns the largest block size of its drives: within such blocks, parts have the same offset
    /// in slot and file ([`lay_out`]).
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Sets the number of bytes in flight below which reads of guesses begin.
    ///
    /// # Panics
    ///
    /// If `guess_bytes_max` is 0.
    pub fn set_guess_bytes_max(&mut self, guess_bytes_max: usize) {
        assert!(guess_bytes_max > 0, "a guess can be read");
        self.settings.guess_bytes_max = guess_bytes_max;
    }

    /// Returns the kinds of its drives: the first, the mirror.
    pub fn drive_names(&self) -> impl Iterator<Item = &'static str> {
        self.lanes.iter().map(|lane| lane.drive.name())
    }

    /// Returns the number of jobs that are in progress or not yet returned.
    #[must_use]
    pub fn n_jobs(&self) -> usize {
        self.jobs.len() + self.ended.len()
    }

    /// Returns the recent speed of the first drive while busy, in bytes per second; 0 until it is
    /// known.
    #[must_use]
    pub fn speed(&self) -> f64 {
        self.lanes[0].speed()
    }

    /// Returns the statistics so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let now = self.clock.now();
        let mut counts = self.counts;
        for (count, lane) in counts.lanes.iter_mut().zip(&self.lanes) {
            *count = lane.counts(now);
        }
        counts
    }

    /// Announces to the drives memory that reads will fill.
    pub fn slab_added(&mut self, slab: &Slab) {
        for lane in &mut self.lanes {
            lane.drive.slab_added(slab);
        }
    }

    /// Makes the drives release memory that is about to be freed.
    pub fn slab_removed(&mut self, slab: &Slab) {
        for lane in &mut self.lanes {
            lane.drive.slab_removed(slab);
        }
    }

    /// Accepts a job. Its reads begin with the next call of [`Loader::poll`] or [`Loader::wait`].
    ///
    /// # Panics
    ///
    /// If its parts do not fit the slot or the drives' blocks, or it requires a mirror and there is
    /// none.
    pub fn submit(&mut self, job: Job) {
        assert!(job.source != Source::Mirror || self.lanes.len() == 2, "there is a mirror");
        let (id, class) = (job.id, job.class);
        debug_assert!(self.find(id).is_none(), "{id:?} is not under way");
        let mut active = Active::new(job, self.block_bytes);
        active.verdict = self.behind_end(&active);
        let is_over = active.verdict.is_some() || active.is_exhausted();
        let place = self.jobs.insert(active);
        self.ended.reserve(self.jobs.len());
        for queue in &mut self.queues {
            queue.reserve(self.jobs.n_places().saturating_sub(queue.len()));
        }
        if is_over {
            self.end_job(place);
        } else {
            self.queues[class as usize].push_back(place);
        }
    }

    /// Turns a guess into a demand, after the waiting ones. Returns whether the job was found.
    pub fn promote(&mut self, id: JobId) -> bool {
        let Some(place) = self.find(id) else { return false };
        let active = self.jobs.at(place);
        if active.job.class == Class::Guess {
            active.job.class = Class::Demand;
            let guesses = &mut self.queues[Class::Guess as usize];
            if let Some(at) = guesses.iter().position(|&it| it == place) {
                guesses.remove(at);
                self.queues[Class::Demand as usize].push_back(place);
            }
        }
        true
    }

    /// Ends a job early: reads in flight are awaited, the rest is not read. It is returned as
    /// cancelled, unless it has already failed. Returns whether the job was in progress; one that
    /// is over keeps its outcome.
    pub fn cancel(&mut self, id: JobId) -> bool {
        let Some(place) = self.find(id) else { return false };
        self.stop_job(place, Outcome::Cancelled);
        true
    }

    /// Returns whether the job has reads that have begun and are not over.
    #[must_use]
    pub fn is_reading(&self, id: JobId) -> bool {
        let place = self.find(id);
        place.and_then(|place| self.jobs.get(place)).is_some_and(|active| active.n_open > 0)
    }

    /// Cancels all jobs.
    pub fn cancel_all(&mut self) {
        for place in 0..self.jobs.n_places() {
            if self.jobs.get(place).is_some() {
                self.stop_job(place, Outcome::Cancelled);
            }
        }
    }

    /// Begins reads where possible and appends finished jobs to `finished`, without waiting.
    ///
    /// # Errors
    ///
    /// [`LoadError::Drive`] if a drive has failed as a whole: its jobs may never be returned.
    pub fn poll(&mut self, finished: &mut Vec<Finished>) -> Result<(), LoadError> {
        self.wait(Wait::Poll, finished)
    }

    /// As [`Loader::poll`], but first waits as specified for a job to finish. Returns at once if no
    /// job is in progress.
    ///
    /// # Errors
    ///
    /// As [`Loader::poll`].
    pub fn wait(&mut self, wait: Wait, finished: &mut Vec<Finished>) -> Result<(), LoadError> {
        let end = match wait {
            Wait::AtMost(limit) => Some(self.clock.now() + limit),
            _ => None,
        };
        self.collect_from_all()?;
        loop {
            self.begin_reads()?;
            let is_due = end.is_some_and(|end| self.clock.now() >= end);
            let is_over = !self.ended.is_empty() || self.jobs.len() == 0;
            if wait == Wait::Poll || is_over || is_due {
                finished.extend(self.ended.drain(..));
                return Ok(());
            }
            self.wait_for_drives(end)?;
        }
    }

    /// Waits once for any drive with reads in flight, until `end` or until a waiting read is due.
    fn wait_for_drives(&mut self, end: Option<Duration>) -> Result<(), LoadError> {
        let now = self.clock.now();
        let until = [end, self.next_due(now)].into_iter().flatten().min();
        let limit = until.map(|it| it.saturating_sub(now));
        let is_busy = [self.is_lane_busy(0), self.is_lane_busy(1)];
        match (is_busy, limit) {
            // Reads that became due meanwhile begin with the next iteration.
            ([false, false], None) => Ok(()),
            ([false, false], Some(limit)) => self.collect(0, Wait::AtMost(limit)),
            ([true, true], limit) => {
                let turn = limit.map_or(ALTERNATING_WAIT, |limit| limit.min(ALTERNATING_WAIT));
                self.collect(0, Wait::AtMost(turn))?;
                self.collect(1, Wait::Poll)?;
                if self.ended.is_empty() { self.collect(1, Wait::AtMost(turn)) } else { Ok(()) }
            }
            ([_, is_second], limit) => {
                self.collect(usize::from(is_second), limit.map_or(Wait::Any, Wait::AtMost))
            }
        }
    }

    fn is_lane_busy(&self, lane: usize) -> bool {
        self.lanes.get(lane).is_some_and(Lane::is_busy)
    }

    /// Returns when the next waiting read is due. A read that is due already has no room until
    /// another one is over.
    fn next_due(&self, now: Duration) -> Option<Duration> {
        if self.n_waiting_reads == 0 {
            return None;
        }
        let waiting = self.reads.iter().filter(|(_, read)| read.piece.is_some());
        waiting.map(|(_, read)| read.due).filter(|&due| due > now).min()
    }

    fn collect_from_all(&mut self) -> Result<(), LoadError> {
        (0..self.lanes.len()).try_for_each(|lane| self.collect(lane, Wait::Poll))
    }

    fn collect(&mut self, lane: usize, wait: Wait) -> Result<(), LoadError> {
        if wait == Wait::Poll && !self.lanes[lane].is_busy() {
            return Ok(());
        }
        let mut completions = std::mem::take(&mut self.completions);
        let completed = self.lanes[lane].complete(wait, &mut completions);
        let now = self.clock.now();
        for completion in completions.drain(..) {
            self.settle(lane, completion, now);
        }
        self.completions = completions;
        completed
    }

    fn begin_reads(&mut self) -> Result<(), LoadError> {
        let now = self.clock.now();
        for class in [Class::Demand, Class::Guess] {
            self.repeat_reads(class, now);
            while self.begin_read(class, now) {}
            if !self.queues[class as usize].is_empty() {
                break;
            }
        }
        self.lanes.iter_mut().try_for_each(Lane::flush)
    }

    /// Begins the next read of the first job of `class`, if a drive has room. Returns whether it
    /// did.
    fn begin_read(&mut self, class: Class, now: Duration) -> bool {
        let Some(&place) = self.queues[class as usize].front() else { return false };
        if class == Class::Guess && self.open_bytes >= self.settings.guess_bytes_max {
            return false;
        }
        let (block_bytes, read_bytes) = (self.block_bytes, self.settings.read_bytes);
        let active = self.jobs.at(place);
        let n_bytes = active.next_bytes(block_bytes, read_bytes);
        let source = active.job.source;
        let Some(lane) = choose_lane(&self.lanes, source, n_bytes, now) else { return false };
        let Next { file, offset_bytes, piece } = active.begin_next(block_bytes, read_bytes);
        // Rereads count attempts from a number that repetitions do not reach.
        let n_attempts = active.job.n_rereads << 16;
        let may_change = self.lanes.len() == 2 && active.job.source == Source::Any;
        if active.is_exhausted() {
            self.queues[class as usize].pop_front();
        }
        let read = OpenRead {
            job: place,
            file,
            offset_bytes,
            piece: Some(piece),
            due: now,
            lane,
            len_bytes: n_bytes,
            asked_bytes: 0,
            n_attempts,
            n_interruptions: 0,
            n_failures: 0,
            n_changes_left: if may_change { 2 } else { 0 },
        };
        self.open_bytes += n_bytes;
        self.n_waiting_reads += 1;
        let read = self.reads.insert(read);
        self.hand_over(read, now);
        true
    }

    /// Repeats the waiting reads that are due.
    fn repeat_reads(&mut self, class: Class, now: Duration) {
        for place in 0..self.reads.n_places() {
            if self.n_waiting_reads == 0 {
                return;
            }
            let Some(read) = self.reads.get(place) else { continue };
            let is_due = read.piece.is_some() && read.due <= now;
            let is_class = self.jobs.get(read.job).is_some_and(|it| it.job.class == class);
            if is_due && is_class && self.lanes[read.lane].has_room(self.lanes.len()) {
                self.hand_over(place, now);
            }
        }
    }

    /// Passes a read to its drive.
    fn hand_over(&mut self, place: usize, now: Duration) {
        let read = self.reads.at(place);
        let piece = read.piece.take().expect("a read that waits has its piece");
        read.asked_bytes = piece.rest_bytes();
        let offset_bytes = read.offset_bytes + piece.kept_bytes() as u64;
        let attempt = read.n_attempts;
        read.n_attempts += 1;
        self.n_waiting_reads -= 1;
        self.counts.n_reads += 1;
        self.jobs.at(read.job).is_lane_used[read.lane] = true;
        let read_of_drive =
            Read { tag: place as u64, file: read.file, offset_bytes, attempt, piece };
        self.lanes[read.lane].submit(read_of_drive, now);
    }

    /// Stops reading for a job; it ends when none of its reads is in flight.
    fn stop_job(&mut self, place: usize, outcome: Outcome) {
        for queue in &mut self.queues {
            queue.retain(|&it| it != place);
        }
        let active = self.jobs.at(place);
        if active.verdict.is_none() {
            active.verdict = Some(outcome);
        }
        if active.n_open == 0 {
            self.end_job(place);
            return;
        }
        for number in 0..self.reads.n_places() {
            let Some(read) = self.reads.get(number) else { continue };
            if read.job != place {
                continue;
            }
            if read.piece.is_some() {
                self.close_read(number);
            } else {
                self.lanes[read.lane].drive.cancel(number as u64);
            }
        }
    }

    /// Ends a read that is not with a drive; the last one ends its job.
    fn close_read(&mut self, place: usize) {
        let read = self.reads.remove(place);
        debug_assert!(read.piece.is_some(), "what a drive holds cannot be closed");
        self.n_waiting_reads -= 1;
        self.open_bytes -= read.len_bytes;
        let job = read.job;
        drop(read);
        let active = self.jobs.at(job);
        active.n_open -= 1;
        if active.n_open == 0 && (active.verdict.is_some() || active.is_exhausted()) {
            self.end_job(job);
        }
    }

    fn end_job(&mut self, place: usize) {
        let active = self.jobs.remove(place);
        let change = || self.changed_file(&active).map_or(Outcome::Ready, Outcome::Failed);
        let outcome = match &active.verdict {
            Some(_) => None,
            None => Some(change()),
        };
        let Active { job, verdict, .. } = active;
        let Job { id, filling, .. } = job;
        let outcome = outcome.or(verdict).unwrap_or(Outcome::Cancelled);
        self.ended.push_back(Finished { id, filling, outcome });
    }

    /// Returns the error for a file of the job that has changed since it was opened.
    fn changed_file(&self, active: &Active) -> Option<LoadError> {
        let used = self.lanes.iter().zip(active.is_lane_used).filter(|(_, is_used)| *is_used);
        for (lane, _) in used {
            let mut checked = None;
            for part in active.parts() {
                if checked == Some(part.file) {
                    continue;
                }
                checked = Some(part.file);
                if let Err(change) = lane.drive.check_unchanged(part.file) {
                    let path = lane.drive.file(part.file).path.to_owned();
                    return Some(LoadError::Changed { path, change });
                }
            }
        }
        None
    }

    /// Returns the failure of a job with a part that exceeds its file.
    fn behind_end(&self, active: &Active) -> Option<Outcome> {
        active.parts().iter().find_map(|part| {
            let file = self.lanes[0].drive.file(part.file);
            let end = part.offset_bytes.checked_add(part.len_bytes as u64);
            let is_within = end.is_some_and(|end| end <= file.len_bytes);
            let (offset_bytes, len_bytes) = (part.offset_bytes, part.len_bytes);
            (!is_within).then(|| {
                let (path, file_bytes) = (file.path.to_owned(), file.len_bytes);
                let error = LoadError::BehindEnd { path, offset_bytes, len_bytes, file_bytes };
                Outcome::Failed(error)
            })
        })
    }

    fn find(&self, id: JobId) -> Option<usize> {
        self.jobs.iter().find(|(_, active)| active.job.id == id).map(|(place, _)| place)
    }
}

/// Returns the permitted drive with room that would finish `n_bytes` more first. A paused drive is
/// used only if no other is permitted.
fn choose_lane(lanes: &[Lane], source: Source, n_bytes: usize, now: Duration) -> Option<usize> {
    let speed_else = lanes.iter().map(Lane::speed).fold(0.0, f64::max);
    let speed_else = if speed_else > 0.0 { speed_else } else { 1.0 };
    let may = |lane: usize| match source {
        Source::Any => true,
        Source::Primary => lane == 0,
        Source::Mirror => lane == 1,
    };
    let is_awake = |lane: usize| may(lane) && !lanes[lane].is_paused(now);
    let any_awake = (0..lanes.len()).any(is_awake);
    let able = (0..lanes.len())
        .filter(|&it| if any_awake { is_awake(it) } else { may(it) })
        .filter(|&it| lanes[it].has_room(lanes.len()));
    let delay = |lane: usize| lanes[lane].delay(n_bytes, speed_else);
    able.min_by(|&a, &b| delay(a).total_cmp(&delay(b)))
}
