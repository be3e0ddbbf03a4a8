//! Reads many runs of a checkpoint's bytes into memory with a few threads, comparing each run with
//! its checksum where it has one.
//!
//! **Invariant:** every target is filled completely, compared and checked, or there is an error.
//! Bytes are hashed while they are in the cache, right after the read, so a comparison needs no
//! second pass over memory. This module knows extents and scales, never shapes.

use std::hash::Hasher as _;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

use twox_hash::XxHash3_64;

use crate::error::{Error, Result};
use crate::format::{CheckpointSums, SumUnit};
use crate::ids::ExpertIdx;
use crate::weights::files::{CheckpointFiles, FiniteFormat, ProgressMeter, part_error};
use crate::weights::manifest::{BankPart, ExpertBank};

/// Reading threads: one waits for the drive while another hashes.
const N_READERS: usize = 4;

/// Bytes read and hashed at a time, which stay in a core's L2 cache.
const PIECE_BYTES: usize = 1 << 20;

/// Data without checksums is cut into runs of this size, so that all threads have work.
const RUN_BYTES: usize = 16 << 20;

/// Upper bound on rereads of a run whose checksum is wrong: a bit flipped in transfer is right the
/// next time.
const N_REREADS_MAX: u32 = 2;

/// Bytes of a file and the memory to read them into.
#[derive(Debug)]
pub(crate) struct ReadSegment<'a> {
    pub(crate) file_idx: usize,
    /// Offset of the first byte in the file.
    pub(crate) at: u64,
    pub(crate) target: &'a mut [u8],
    pub(crate) finite_check: FiniteCheck<'a>,
}

/// The bytes of a segment that must be finite, and their name for messages.
#[derive(Clone, Debug)]
pub(crate) enum FiniteCheck<'a> {
    /// Nothing: codes without factors of their own, and plain values, which the operations that use
    /// them check.
    Nothing,
    /// The whole segment: scales or blocks of a tensor, after `skipped` bytes of it.
    Tensor { name: &'a str, finite: FiniteFormat, skipped: usize },
    /// The whole segment: scales or blocks of one part of an expert, after `skipped` bytes of it.
    Part { bank: &'a ExpertBank, part: &'a BankPart, expert: ExpertIdx, skipped: usize },
    /// The scales of a packed record, which is never cut.
    Record { bank: &'a ExpertBank, expert: ExpertIdx },
}

impl ReadSegment<'_> {
    fn end(&self) -> u64 {
        self.at + self.target.len() as u64
    }

    /// Splits off the first `n_bytes`.
    fn split(self, n_bytes: usize) -> (Self, Self) {
        let Self { file_idx, at, target, finite_check } = self;
        let (first, rest) = target.split_at_mut(n_bytes);
        let after = finite_check.after(n_bytes);
        let first = Self { file_idx, at, target: first, finite_check };
        (first, Self { file_idx, at: at + n_bytes as u64, target: rest, finite_check: after })
    }
}

impl FiniteCheck<'_> {
    fn after(&self, n_bytes: usize) -> Self {
        match self.clone() {
            Self::Tensor { name, finite, skipped } => {
                Self::Tensor { name, finite, skipped: skipped + n_bytes }
            }
            Self::Part { bank, part, expert, skipped } => {
                Self::Part { bank, part, expert, skipped: skipped + n_bytes }
            }
            other => other,
        }
    }

    fn check(&self, bytes: &[u8]) -> Result<()> {
        match *self {
            Self::Nothing => Ok(()),
            Self::Tensor { name, finite, skipped } => match finite.first_bad(skipped, bytes) {
                None => Ok(()),
                Some(value_idx) => Err(part_error(name, value_idx as u64)),
            },
            Self::Part { bank, part, expert, skipped } => {
                bank.check_finite(part, (expert, skipped), bytes)
            }
            Self::Record { bank, expert } => bank.parts.iter().try_for_each(|part| {
                bank.check_finite(part, (expert, 0), &bytes[part.record_at..][..part.len_bytes])
            }),
        }
    }
}

/// Segments that are read together, in the order of their bytes, without overlaps.
#[derive(Debug)]
struct SegmentRun<'a> {
    /// The checksum's range, all of which is read, if there is one.
    unit: Option<SumUnit>,
    segments: Vec<ReadSegment<'a>>,
}

/// Fills all segments with several threads and reports their bytes to `meter`.
pub(crate) fn fill(
    segments: Vec<ReadSegment<'_>>,
    files: &CheckpointFiles<'_>,
    meter: &mut ProgressMeter<'_, '_>,
) -> Result<()> {
    let queue = Mutex::new(runs(segments, files.sums()).into_iter().enumerate());
    let failure: Mutex<Option<(usize, Error)>> = Mutex::default();
    let stop = AtomicBool::new(false);
    let (sender, receiver) = channel();
    let work = |byte_counts: &Sender<usize>| {
        let mut scratch = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((run_idx, run)) = next else { return };
            // The receiver is gone if the load was cancelled.
            let mut report = |n_bytes| {
                byte_counts.send(n_bytes).ok();
            };
            let Err(error) = run.fill(files, &mut scratch, &mut report) else { continue };
            let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
            if failure.as_ref().is_none_or(|(first_idx, _)| run_idx < *first_idx) {
                *failure = Some((run_idx, error));
            }
            stop.store(true, Ordering::Relaxed);
        }
    };
    let counted = std::thread::scope(|scope| {
        let mut n_started = 0;
        for thread_idx in 0..N_READERS {
            let (sender, work) = (sender.clone(), &work);
            let builder = Builder::new().name(format!("moeflux-read-{thread_idx}"));
            n_started += usize::from(builder.spawn_scoped(scope, move || work(&sender)).is_ok());
        }
        if n_started == 0 {
            // The system cannot create a thread: slower, but it works.
            work(&sender);
        }
        drop(sender);
        let counted = receiver.iter().try_for_each(|n_bytes| meter.add(n_bytes));
        stop.store(true, Ordering::Relaxed);
        counted
    });
    counted?;
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), |(_, it)| Err(it))
}

/// Fills all segments on the calling thread.
pub(crate) fn fill_here(segments: Vec<ReadSegment<'_>>, files: &CheckpointFiles<'_>) -> Result<()> {
    let mut scratch = Vec::new();
    let mut runs = runs(segments, files.sums()).into_iter();
    runs.try_for_each(|run| run.fill(files, &mut scratch, &mut |_| ()))
}

/// Cuts segments at the boundaries of checksum ranges, and groups those of one range.
fn runs<'a>(segments: Vec<ReadSegment<'a>>, sums: Option<&CheckpointSums>) -> Vec<SegmentRun<'a>> {
    let mut segments = segments;
    segments.retain(|segment| !segment.target.is_empty());
    segments.sort_by_key(|segment| (segment.file_idx, segment.at));
    let Some(sums) = sums else {
        return segments.into_iter().flat_map(|segment| pieces(segment, RUN_BYTES)).collect();
    };
    let mut runs: Vec<SegmentRun<'a>> = Vec::new();
    // Bytes in several segments are read and compared once for each of them.
    while !segments.is_empty() {
        let mut again = Vec::new();
        for segment in segments {
            let Some(last) = runs.last().and_then(|run| run.segments.last()) else {
                runs.extend(summed(segment, sums));
                continue;
            };
            if last.file_idx == segment.file_idx && segment.at < last.end() {
                again.push(segment);
                continue;
            }
            for run in summed(segment, sums) {
                match runs.last_mut() {
                    Some(last) if run.unit.is_some() && last.belongs_with(&run) => {
                        last.segments.extend(run.segments);
                    }
                    _ => runs.push(run),
                }
            }
        }
        if !again.is_empty() {
            // The segments that follow do not continue the last run.
            runs.push(SegmentRun { unit: None, segments: Vec::new() });
        }
        segments = again;
    }
    runs
}

/// Cuts a segment into pieces of `n_bytes`; a record stays whole.
fn pieces(segment: ReadSegment<'_>, n_bytes: usize) -> Vec<SegmentRun<'_>> {
    let is_whole = matches!(segment.finite_check, FiniteCheck::Record { .. });
    let mut runs = Vec::new();
    let mut rest = segment;
    while !is_whole && rest.target.len() > n_bytes {
        let (first, after) = rest.split(n_bytes);
        runs.push(SegmentRun { unit: None, segments: vec![first] });
        rest = after;
    }
    runs.push(SegmentRun { unit: None, segments: vec![rest] });
    runs
}

/// Cuts a segment into pieces that have one checksum each, or none.
fn summed<'a>(segment: ReadSegment<'a>, sums: &CheckpointSums) -> Vec<SegmentRun<'a>> {
    let mut runs = Vec::new();
    let units = sums.overlapping(segment.file_idx, &(segment.at..segment.end()));
    let mut rest = Some(segment);
    for unit in units {
        let Some(segment) = rest.take() else { break };
        let n_before = usize::try_from(unit.first_bytes.saturating_sub(segment.at));
        let segment = match n_before.unwrap_or(usize::MAX) {
            0 => segment,
            n_before => {
                let (before, segment) = segment.split(n_before);
                runs.extend(pieces(before, RUN_BYTES));
                segment
            }
        };
        let n_bytes = usize::try_from(unit.end_bytes() - segment.at).unwrap_or(usize::MAX);
        let (own, after) = if n_bytes < segment.target.len() {
            let (own, after) = segment.split(n_bytes);
            (own, Some(after))
        } else {
            (segment, None)
        };
        runs.push(SegmentRun { unit: Some(*unit), segments: vec![own] });
        rest = after;
    }
    runs.extend(rest.into_iter().flat_map(|rest| pieces(rest, RUN_BYTES)));
    runs
}

impl SegmentRun<'_> {
    fn belongs_with(&self, other: &Self) -> bool {
        let file_idx = |run: &Self| run.segments.first().map(|segment| segment.file_idx);
        self.unit == other.unit && file_idx(self) == file_idx(other)
    }

    fn fill(
        mut self,
        files: &CheckpointFiles<'_>,
        scratch: &mut Vec<u8>,
        report: &mut dyn FnMut(usize),
    ) -> Result<()> {
        let Some(file_idx) = self.segments.first().map(|segment| segment.file_idx) else {
            return Ok(());
        };
        let mut n_reads = 0;
        loop {
            let found = match n_reads {
                0 => self.read(files, scratch, report)?,
                // The bytes of a reread are already reported.
                _ => self.read(files, scratch, &mut |_| ())?,
            };
            n_reads += 1;
            match self.unit {
                Some(unit) if found != unit.sum && n_reads > N_REREADS_MAX => {
                    return Err(files.mismatch((file_idx, unit), found, n_reads));
                }
                Some(unit) if found != unit.sum => {
                    // The page cache would return the same wrong bytes.
                    files.forget_cached(file_idx);
                }
                _ => break,
            }
        }
        self.segments.iter().try_for_each(|segment| segment.finite_check.check(segment.target))
    }

    /// Fills the segments once; returns the hash of the checksum's range, if there is one.
    fn read(
        &mut self,
        files: &CheckpointFiles<'_>,
        scratch: &mut Vec<u8>,
        report: &mut dyn FnMut(usize),
    ) -> Result<u64> {
        let mut hash = XxHash3_64::new();
        let mut at = self.unit.map_or(0, |unit| unit.first_bytes);
        for segment in &mut self.segments {
            let file_idx = segment.file_idx;
            if self.unit.is_some() {
                skip(files, (file_idx, at..segment.at), (scratch, &mut hash))?;
            }
            at = segment.at;
            for piece in segment.target.chunks_mut(PIECE_BYTES) {
                files.read(file_idx, at, piece)?;
                if self.unit.is_some() {
                    hash.write(piece);
                }
                at += piece.len() as u64;
                report(piece.len());
            }
        }
        let Some(unit) = self.unit else { return Ok(0) };
        let file_idx = self.segments.first().map_or(0, |segment| segment.file_idx);
        skip(files, (file_idx, at..unit.end_bytes()), (scratch, &mut hash))?;
        Ok(hash.finish())
    }
}

/// Hashes bytes of a checksum's range that belong to no segment.
fn skip(
    files: &CheckpointFiles<'_>,
    (file_idx, range): (usize, Range<u64>),
    (scratch, hash): (&mut Vec<u8>, &mut XxHash3_64),
) -> Result<()> {
    let mut at = range.start;
    while at < range.end {
        let n_bytes = usize::try_from(range.end - at).map_or(PIECE_BYTES, |it| it.min(PIECE_BYTES));
        scratch.resize(n_bytes, 0);
        files.read(file_idx, at, scratch)?;
        hash.write(scratch);
        at += n_bytes as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Checkpoint, SUMS_FILE_NAME, SumsDocument, tensor_units};
    use crate::weights::tests_support::Tensors;
    use twox_hash::XxHash3_64;

    fn write_sums(checkpoint: &Checkpoint) -> CheckpointSums {
        let units = tensor_units(checkpoint);
        let bytes = std::fs::read(&checkpoint.files[0].path).unwrap();
        let sum = |unit: &crate::format::TensorUnit| {
            let first = usize::try_from(unit.first_bytes).unwrap();
            XxHash3_64::oneshot(&bytes[first..][..usize::try_from(unit.len_bytes).unwrap()])
        };
        let sums: Vec<u64> = units.iter().map(sum).collect();
        let document = SumsDocument::new(checkpoint, &units, &sums);
        let path = checkpoint.dir.join(SUMS_FILE_NAME);
        std::fs::write(path, document.to_json().to_string()).unwrap();
        CheckpointSums::of(checkpoint).unwrap().unwrap()
    }

    /// Runs of one tensor that overlap, leave gaps and extend into the next tensor.
    #[test]
    fn bytes_requested_twice_are_delivered_twice_and_compared() {
        let mut tensors = Tensors::default();
        tensors.add("a", "F32", &[8, 4]).add("b", "F32", &[8, 4]);
        let (_dir, checkpoint) = tensors.open();
        let sums = write_sums(&checkpoint);
        let path = &checkpoint.files[0].path;
        let bytes = std::fs::read(path).unwrap();
        let first = checkpoint.files[0].data_at;
        let wanted = [(0, 128), (100, 60), (4, 4), (8, 4), (40, 40), (130, 126)];
        let fill_all = |sums| -> Result<()> {
            let files = CheckpointFiles::open(&checkpoint)?.with_sums(sums);
            let mut targets = wanted.map(|(_, len)| vec![0; len]);
            let segment = |(target, (at, _)): (_, (u64, usize))| ReadSegment {
                file_idx: 0,
                at: first + at,
                target,
                finite_check: FiniteCheck::Nothing,
            };
            let targets_mut = targets.iter_mut().map(Vec::as_mut_slice);
            fill_here(targets_mut.zip(wanted).map(segment).collect(), &files)?;
            for (target, (at, len)) in targets.iter().zip(wanted) {
                let at = usize::try_from(first + at).unwrap();
                assert!(target == &bytes[at..][..len] || sums.is_none(), "{at}");
            }
            Ok(())
        };
        fill_all(Some(&sums)).unwrap();
        let last = bytes.len() - 1;
        for at in [usize::try_from(first).unwrap(), last - 127, last] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let modified = std::fs::metadata(path).unwrap().modified().unwrap();
            let file = std::fs::File::options().write(true).open(path).unwrap();
            std::io::Write::write_all(&mut &file, &damaged).unwrap();
            file.set_modified(modified).unwrap();
            fill_all(None).unwrap();
            let error = fill_all(Some(&sums)).unwrap_err().to_string();
            assert!(error.contains("checksum"), "{at}: {error}");
            std::io::Seek::rewind(&mut &file).unwrap();
            std::io::Write::write_all(&mut &file, &bytes).unwrap();
            file.set_modified(modified).unwrap();
        }
        fill_all(Some(&sums)).unwrap();
    }
}
