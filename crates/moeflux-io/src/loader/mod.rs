//! The loader: divides jobs into reads, keeps the drives busy, handles faults, and returns filled
//! slots.
//!
//! **Invariant:** every submitted job is returned exactly once, with its filling and an outcome:
//! ready with the right bytes, cancelled, or failed with an error that names file and range. Reads
//! of prefetches begin only while all reads of demands have begun. The loader works only inside its
//! calls; a submitted job begins with the next one. This module is independent of checksums.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::drives::block::{BlockRead, FileIdx, ReadCompletion, ReadRequest, Wait};
use crate::loader::index_pool::IndexPool;
use crate::loader::job::{ActiveLoad, NextRead};
use crate::loader::lane::Lane;
use crate::memory::slots::{Piece, SLOT_ALIGN, Slab};

mod error;
mod job;
mod lane;
mod index_pool;
mod settle;
#[cfg(test)]
mod tests;

pub use error::LoadError;
pub use job::{
    DriveChoice, FilePart, FinishedLoad, LoadId, LoadJob, LoadOutcome, LoadPriority, N_PARTS_MAX,
    SlotLayout, lay_out,
};
pub use lane::LaneCounts;
pub use settle::{N_FAILURES_BEFORE_MIRROR, N_FAILURES_MAX, N_INTERRUPTIONS_MAX};

/// With reads in flight on two drives, each is waited for in turn, for this time.
const ALTERNATING_WAIT: Duration = Duration::from_micros(100);

/// Number of jobs for which memory is allocated at the start: a token's experts, and prefetches.
/// How many are in progress or end at once depends on timing, and no run should allocate late.
pub const N_JOBS_USUAL: usize = 64;

/// How jobs are divided, and the limit for prefetches.
#[derive(Clone, Copy, Debug)]
pub struct LoaderSettings {
    /// Maximum size of a read; larger parts take several reads. A multiple of [`SLOT_ALIGN`].
    pub read_bytes: usize,
    /// Reads of prefetches begin while fewer bytes than this are in flight: enough to keep the
    /// drive busy, and no more than a demand can wait for.
    pub prefetch_bytes_max: usize,
}

impl Default for LoaderSettings {
    fn default() -> Self {
        Self { read_bytes: 1 << 20, prefetch_bytes_max: 4 << 20 }
    }
}

/// Statistics since the loader was created.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoaderCounts {
    /// Bytes read for demands, including the blocks around their parts.
    pub demand_bytes: u64,
    /// Bytes read for prefetches that had not been promoted by then.
    pub prefetch_bytes: u64,
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
    requested_bytes: usize,
    n_attempts: u32,
    n_interruptions: u32,
    n_failures: u32,
    /// How often it may still change to the other drive: there, and back once, since the first was
    /// given up after few attempts.
    n_switches_left: u32,
}

/// The loader. It owns one drive or two; the second is a mirror with the same files in the same
/// order.
#[derive(Debug)]
pub struct Loader {
    lanes: Vec<Lane>,
    clock: Arc<dyn Clock>,
    settings: LoaderSettings,
    block_bytes: usize,
    jobs: IndexPool<ActiveLoad>,
    reads: IndexPool<OpenRead>,
    /// Jobs with reads that have not begun: demands, prefetches.
    queues: [VecDeque<usize>; 2],
    open_bytes: usize,
    n_waiting_reads: usize,
    completions: Vec<ReadCompletion>,
    ended: VecDeque<FinishedLoad>,
    counts: LoaderCounts,
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
        settings: LoaderSettings,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let read_bytes = settings.read_bytes;
        assert!(read_bytes > 0 && read_bytes.is_multiple_of(SLOT_ALIGN), "whole blocks are read");
        assert!(settings.prefetch_bytes_max > 0, "a guess can be read");
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
            jobs: IndexPool::with_capacity(N_JOBS_USUAL),
            reads: IndexPool::with_capacity(depth),
            queues: [(); 2].map(|()| VecDeque::with_capacity(N_JOBS_USUAL)),
            open_bytes: 0,
            n_waiting_reads: 0,
            completions: Vec::with_capacity(depth),
            ended: VecDeque::with_capacity(N_JOBS_USUAL),
            counts: LoaderCounts::default(),
        }
    }

    /// Returns the largest block size of its drives: within such blocks, parts have the same offset
    /// in slot and file ([`lay_out`]).
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Sets the number of bytes in flight below which reads of prefetches begin.
    ///
    /// # Panics
    ///
    /// If `prefetch_bytes_max` is 0.
    pub fn set_prefetch_bytes_max(&mut self, prefetch_bytes_max: usize) {
        assert!(prefetch_bytes_max > 0, "a guess can be read");
        self.settings.prefetch_bytes_max = prefetch_bytes_max;
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
    pub fn counts(&self) -> LoaderCounts {
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
    pub fn submit(&mut self, job: LoadJob) {
        assert!(job.drives != DriveChoice::Mirror || self.lanes.len() == 2, "there is a mirror");
        let (id, priority) = (job.id, job.priority);
        debug_assert!(self.find(id).is_none(), "{id:?} is not under way");
        let mut active = ActiveLoad::new(job, self.block_bytes);
        active.decided = self.past_end(&active);
        let is_over = active.decided.is_some() || active.is_exhausted();
        let job_idx = self.jobs.insert(active);
        self.ended.reserve(self.jobs.len());
        for queue in &mut self.queues {
            queue.reserve(self.jobs.n_indices().saturating_sub(queue.len()));
        }
        if is_over {
            self.end_job(job_idx);
        } else {
            self.queues[priority as usize].push_back(job_idx);
        }
    }

    /// Turns a prefetch into a demand, after the waiting ones. Returns whether the job was found.
    pub fn promote(&mut self, id: LoadId) -> bool {
        let Some(job_idx) = self.find(id) else { return false };
        let active = self.jobs.at(job_idx);
        if active.job.priority == LoadPriority::Prefetch {
            active.job.priority = LoadPriority::Demand;
            let prefetches = &mut self.queues[LoadPriority::Prefetch as usize];
            if let Some(at) = prefetches.iter().position(|&it| it == job_idx) {
                prefetches.remove(at);
                self.queues[LoadPriority::Demand as usize].push_back(job_idx);
            }
        }
        true
    }

    /// Ends a job early: reads in flight are awaited, the rest is not read. It is returned as
    /// cancelled, unless it has already failed. Returns whether the job was in progress; one that
    /// is over keeps its outcome.
    pub fn cancel(&mut self, id: LoadId) -> bool {
        let Some(job_idx) = self.find(id) else { return false };
        self.stop_job(job_idx, LoadOutcome::Cancelled);
        true
    }

    /// Returns whether the job has reads that have begun and are not over.
    #[must_use]
    pub fn is_reading(&self, id: LoadId) -> bool {
        let job_idx = self.find(id);
        job_idx.and_then(|job_idx| self.jobs.get(job_idx)).is_some_and(|active| active.n_open > 0)
    }

    /// Cancels all jobs.
    pub fn cancel_all(&mut self) {
        for job_idx in 0..self.jobs.n_indices() {
            if self.jobs.get(job_idx).is_some() {
                self.stop_job(job_idx, LoadOutcome::Cancelled);
            }
        }
    }

    /// Begins reads where possible and appends finished jobs to `finished`, without waiting.
    ///
    /// # Errors
    ///
    /// [`LoadError::Drive`] if a drive has failed as a whole: its jobs may never be returned.
    pub fn poll(&mut self, finished: &mut Vec<FinishedLoad>) -> Result<(), LoadError> {
        self.wait(Wait::Poll, finished)
    }

    /// As [`Loader::poll`], but first waits as specified for a job to finish. Returns at once if no
    /// job is in progress.
    ///
    /// # Errors
    ///
    /// As [`Loader::poll`].
    pub fn wait(&mut self, wait: Wait, finished: &mut Vec<FinishedLoad>) -> Result<(), LoadError> {
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
            self.handle_completion(lane, completion, now);
        }
        self.completions = completions;
        completed
    }

    fn begin_reads(&mut self) -> Result<(), LoadError> {
        let now = self.clock.now();
        for priority in [LoadPriority::Demand, LoadPriority::Prefetch] {
            self.retry_reads(priority, now);
            while self.begin_read(priority, now) {}
            if !self.queues[priority as usize].is_empty() {
                break;
            }
        }
        self.lanes.iter_mut().try_for_each(Lane::flush)
    }

    /// Begins the next read of the first job of `priority`, if a drive has room. Returns whether it
    /// did.
    fn begin_read(&mut self, priority: LoadPriority, now: Duration) -> bool {
        let Some(&job_idx) = self.queues[priority as usize].front() else { return false };
        if priority == LoadPriority::Prefetch && self.open_bytes >= self.settings.prefetch_bytes_max
        {
            return false;
        }
        let (block_bytes, read_bytes) = (self.block_bytes, self.settings.read_bytes);
        let active = self.jobs.at(job_idx);
        let n_bytes = active.next_bytes(block_bytes, read_bytes);
        let drives = active.job.drives;
        let Some(lane) = choose_lane(&self.lanes, drives, n_bytes, now) else { return false };
        let NextRead { file, offset_bytes, piece } = active.begin_next(block_bytes, read_bytes);
        // Rereads count attempts from a number that repetitions do not reach.
        let n_attempts = active.job.n_rereads << 16;
        let may_switch = self.lanes.len() == 2 && active.job.drives == DriveChoice::Any;
        if active.is_exhausted() {
            self.queues[priority as usize].pop_front();
        }
        let read = OpenRead {
            job: job_idx,
            file,
            offset_bytes,
            piece: Some(piece),
            due: now,
            lane,
            len_bytes: n_bytes,
            requested_bytes: 0,
            n_attempts,
            n_interruptions: 0,
            n_failures: 0,
            n_switches_left: if may_switch { 2 } else { 0 },
        };
        self.open_bytes += n_bytes;
        self.n_waiting_reads += 1;
        let read_idx = self.reads.insert(read);
        self.submit_read(read_idx, now);
        true
    }

    /// Repeats the waiting reads that are due.
    fn retry_reads(&mut self, priority: LoadPriority, now: Duration) {
        for read_idx in 0..self.reads.n_indices() {
            if self.n_waiting_reads == 0 {
                return;
            }
            let Some(read) = self.reads.get(read_idx) else { continue };
            let is_due = read.piece.is_some() && read.due <= now;
            let has_priority =
                self.jobs.get(read.job).is_some_and(|it| it.job.priority == priority);
            if is_due && has_priority && self.lanes[read.lane].has_room(self.lanes.len()) {
                self.submit_read(read_idx, now);
            }
        }
    }

    /// Passes a read to its drive.
    fn submit_read(&mut self, read_idx: usize, now: Duration) {
        let read = self.reads.at(read_idx);
        let piece = read.piece.take().expect("a read that waits has its piece");
        read.requested_bytes = piece.rest_bytes();
        let offset_bytes = read.offset_bytes + piece.kept_bytes() as u64;
        let attempt = read.n_attempts;
        read.n_attempts += 1;
        self.n_waiting_reads -= 1;
        self.counts.n_reads += 1;
        self.jobs.at(read.job).is_lane_used[read.lane] = true;
        let read_of_drive =
            ReadRequest { tag: read_idx as u64, file: read.file, offset_bytes, attempt, piece };
        self.lanes[read.lane].submit(read_of_drive, now);
    }

    /// Stops reading for a job; it ends when none of its reads is in flight.
    fn stop_job(&mut self, job_idx: usize, outcome: LoadOutcome) {
        for queue in &mut self.queues {
            queue.retain(|&it| it != job_idx);
        }
        let active = self.jobs.at(job_idx);
        if active.decided.is_none() {
            active.decided = Some(outcome);
        }
        if active.n_open == 0 {
            self.end_job(job_idx);
            return;
        }
        for read_idx in 0..self.reads.n_indices() {
            let Some(read) = self.reads.get(read_idx) else { continue };
            if read.job != job_idx {
                continue;
            }
            if read.piece.is_some() {
                self.close_read(read_idx);
            } else {
                self.lanes[read.lane].drive.cancel(read_idx as u64);
            }
        }
    }

    /// Ends a read that is not with a drive; the last one ends its job.
    fn close_read(&mut self, read_idx: usize) {
        let read = self.reads.remove(read_idx);
        debug_assert!(read.piece.is_some(), "what a drive holds cannot be closed");
        self.n_waiting_reads -= 1;
        self.open_bytes -= read.len_bytes;
        let job = read.job;
        drop(read);
        let active = self.jobs.at(job);
        active.n_open -= 1;
        if active.n_open == 0 && (active.decided.is_some() || active.is_exhausted()) {
            self.end_job(job);
        }
    }

    fn end_job(&mut self, job_idx: usize) {
        let active = self.jobs.remove(job_idx);
        let change = || self.changed_file(&active).map_or(LoadOutcome::Ready, LoadOutcome::Failed);
        let outcome = match &active.decided {
            Some(_) => None,
            None => Some(change()),
        };
        let ActiveLoad { job, decided, .. } = active;
        let LoadJob { id, filling, .. } = job;
        let outcome = outcome.or(decided).unwrap_or(LoadOutcome::Cancelled);
        self.ended.push_back(FinishedLoad { id, filling, outcome });
    }

    /// Returns the error for a file of the job that has changed since it was opened.
    fn changed_file(&self, active: &ActiveLoad) -> Option<LoadError> {
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
    fn past_end(&self, active: &ActiveLoad) -> Option<LoadOutcome> {
        active.parts().iter().find_map(|part| {
            let file = self.lanes[0].drive.file(part.file);
            let end = part.offset_bytes.checked_add(part.len_bytes as u64);
            let is_within = end.is_some_and(|end| end <= file.len_bytes);
            let (offset_bytes, len_bytes) = (part.offset_bytes, part.len_bytes);
            (!is_within).then(|| {
                let (path, file_bytes) = (file.path.to_owned(), file.len_bytes);
                let error = LoadError::PastEnd { path, offset_bytes, len_bytes, file_bytes };
                LoadOutcome::Failed(error)
            })
        })
    }

    fn find(&self, id: LoadId) -> Option<usize> {
        self.jobs.iter().find(|(_, active)| active.job.id == id).map(|(job_idx, _)| job_idx)
    }
}

/// Returns the permitted drive with room that would finish `n_bytes` more first. A paused drive is
/// used only if no other is permitted.
fn choose_lane(
    lanes: &[Lane],
    drives: DriveChoice,
    n_bytes: usize,
    now: Duration,
) -> Option<usize> {
    let default_speed = lanes.iter().map(Lane::speed).fold(0.0, f64::max);
    let default_speed = if default_speed > 0.0 { default_speed } else { 1.0 };
    let is_permitted = |lane: usize| match drives {
        DriveChoice::Any => true,
        DriveChoice::Primary => lane == 0,
        DriveChoice::Mirror => lane == 1,
    };
    let is_active = |lane: usize| is_permitted(lane) && !lanes[lane].is_paused(now);
    let is_any_active = (0..lanes.len()).any(is_active);
    let candidates = (0..lanes.len())
        .filter(|&it| if is_any_active { is_active(it) } else { is_permitted(it) })
        .filter(|&it| lanes[it].has_room(lanes.len()));
    let delay = |lane: usize| lanes[lane].delay(n_bytes, default_speed);
    candidates.min_by(|&a, &b| delay(a).total_cmp(&delay(b)))
}
