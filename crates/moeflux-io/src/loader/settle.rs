//! Handles completions: end the read, read the rest, retry, change to the other drive, or fail.
//!
//! **Invariant:** every chain of attempts is bounded. Interruptions and failures are counted per
//! read, and a short read counts as progress only if it returned at least a block.

use std::io;
use std::time::Duration;

use crate::drives::block::{ReadCompletion, ReadOutcome};
use crate::loader::Loader;
use crate::loader::error::LoadError;
use crate::loader::job::{LoadOutcome, LoadPriority};
use crate::memory::slots::Piece;

/// Interruptions (EINTR, EAGAIN, less than a block read) of one read before the next one counts as
/// a failure.
pub const N_INTERRUPTIONS_MAX: u32 = 64;
/// Failures of one read on a drive before it is given up, if no other drive has the file.
pub const N_FAILURES_MAX: u32 = 6;
/// Failures of one read on a drive before the other drive is tried.
pub const N_FAILURES_BEFORE_MIRROR: u32 = 2;
/// Pause after the first failure of a read; each further failure makes it eight times as long. In
/// total, this is nearly five seconds, in which a drive that was reset is back.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(1);
/// Pause before a retry if the system had no resources for a read.
const PAUSE_AFTER_AGAIN: Duration = Duration::from_micros(200);
impl Loader {
    /// Handles a completion.
    pub(super) fn handle_completion(
        &mut self,
        lane: usize,
        completion: ReadCompletion,
        now: Duration,
    ) {
        let ReadCompletion { tag, piece, outcome } = completion;
        let read_idx = usize::try_from(tag).expect("tags are places");
        let n_bytes = if let ReadOutcome::Read(n_bytes) = outcome { n_bytes } else { 0 };
        let read = self.reads.at(read_idx);
        read.piece = Some(piece);
        self.n_waiting_reads += 1;
        self.lanes[lane].note_end(read.requested_bytes, n_bytes, now);
        let active = self.jobs.at(read.job);
        match active.job.priority {
            LoadPriority::Demand => self.counts.demand_bytes += n_bytes as u64,
            LoadPriority::Prefetch => self.counts.prefetch_bytes += n_bytes as u64,
        }
        if active.decided.is_some() {
            self.close_read(read_idx);
            return;
        }
        match outcome {
            ReadOutcome::Read(n_bytes) => self.advance(read_idx, n_bytes, now),
            ReadOutcome::Failed(error) => self.handle_failure(read_idx, error, now),
            // The loader did not cancel this read.
            ReadOutcome::Cancelled => {
                self.handle_failure(read_idx, io::ErrorKind::Interrupted.into(), now);
            }
        }
    }

    /// Handles a read of `n_bytes`, which may be all or a part.
    fn advance(&mut self, read_idx: usize, n_bytes: usize, now: Duration) {
        let read = self.reads.at(read_idx);
        let file = self.lanes[read.lane].drive.file(read.file);
        let piece = read.piece.as_mut().expect("a read that is over has its piece");
        let there = usize::try_from(file.len_bytes - read.offset_bytes).unwrap_or(usize::MAX);
        let have_bytes = piece.kept_bytes() + n_bytes;
        if have_bytes >= piece.len_bytes().min(there) {
            self.close_read(read_idx);
        } else if n_bytes == 0 {
            self.handle_failure(read_idx, io::ErrorKind::UnexpectedEof.into(), now);
        } else {
            let whole_bytes = have_bytes - have_bytes % file.block_bytes;
            if whole_bytes == piece.kept_bytes() {
                self.handle_failure(read_idx, io::ErrorKind::Interrupted.into(), now);
            } else {
                piece.keep(whole_bytes);
                read.due = now;
                self.counts.n_short += 1;
            }
        }
    }

    /// Handles a failed read: retries, changes to the other drive, or gives up.
    fn handle_failure(&mut self, read_idx: usize, error: io::Error, now: Duration) {
        let read = self.reads.at(read_idx);
        let pause = match error.kind() {
            io::ErrorKind::Interrupted => Some(Duration::ZERO),
            io::ErrorKind::WouldBlock => Some(PAUSE_AFTER_AGAIN),
            _ => None,
        };
        if let Some(pause) = pause.filter(|_| read.n_interruptions < N_INTERRUPTIONS_MAX) {
            read.n_interruptions += 1;
            read.due = now + pause;
            self.counts.n_interrupted += 1;
            return;
        }
        let lane = &mut self.lanes[read.lane];
        lane.note_failure(now);
        let is_suspect = lane.is_suspect();
        read.n_failures += 1;
        let is_cut = error.kind() == io::ErrorKind::UnexpectedEof;
        let n_failures_max = match (is_cut, read.n_switches_left) {
            // A truncated file does not grow back.
            (true, _) => 1,
            (false, 0 | 1) => N_FAILURES_MAX,
            (false, _) if is_suspect => 1,
            (false, _) => N_FAILURES_BEFORE_MIRROR,
        };
        if read.n_failures < n_failures_max {
            let factor = 8u32.saturating_pow(read.n_failures - 1);
            read.due = now + PAUSE_AFTER_FAILURE * factor;
        } else if read.n_switches_left == 0 {
            self.give_up(read_idx, error);
            return;
        } else {
            read.lane = 1 - read.lane;
            read.n_switches_left -= 1;
            (read.n_failures, read.n_interruptions) = (0, 0);
            read.due = now;
            let block_bytes = self.lanes[read.lane].drive.file(read.file).block_bytes;
            let piece = read.piece.as_mut().expect("a read that is over has its piece");
            piece.keep(piece.kept_bytes() - piece.kept_bytes() % block_bytes);
        }
        self.counts.n_retries += 1;
    }

    /// Fails the job of a read.
    fn give_up(&mut self, read_idx: usize, source: io::Error) {
        let read = self.reads.at(read_idx);
        let drive = &self.lanes[read.lane].drive;
        let path = drive.file(read.file).path.to_owned();
        let error = match drive.check_unchanged(read.file) {
            Err(change) => LoadError::Changed { path, change },
            Ok(()) => {
                let (offset_bytes, n_attempts) = (read.offset_bytes, read.n_attempts & 0xffff);
                let len_bytes = read.piece.as_ref().map_or(0, Piece::len_bytes);
                let used = self.jobs.at(read.job).is_lane_used;
                let n_drives = used.iter().map(|&it| u32::from(it)).sum();
                LoadError::Read { path, offset_bytes, len_bytes, n_attempts, n_drives, source }
            }
        };
        let job = read.job;
        self.stop_job(job, LoadOutcome::Failed(error));
    }
}
