//! Loads all experts one after another, for a device that keeps them; threads read ahead.
//!
//! Each of the `N_READERS` threads reads every `N_READERS`-th expert into records of its own.
//! Filled records go to the consumer, which sends them back empty. **Invariant:** experts are kept
//! in order, by the calling thread; however this ends, no thread is left waiting.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Builder;

use moeflux_io::AlignedBytes;

use crate::error::{Error, Remedy, Result};
use crate::format::{Checkpoint, CheckpointSums};
use crate::ids::ExpertIdx;
use crate::weights::{
    CheckpointFiles, ExpertBank, ExpertView, FiniteCheck, Manifest, ProgressCallback,
    ProgressMeter, ReadSegment, fill_here,
};

/// Reading threads.
const N_READERS: usize = 4;

/// Records of each thread: one being read, one waiting, one being kept.
const N_RECORDS: usize = 3;

/// An expert to be read.
type ReadJob<'a> = (&'a ExpertBank, ExpertIdx);

/// The consumer's ends of a reading thread's channels.
struct ReaderChannels {
    filled: Receiver<Result<AlignedBytes>>,
    empty: SyncSender<AlignedBytes>,
}

/// Reads all experts and passes them to `keep` in order.
///
/// # Errors
///
/// As [`crate::weights::load`], and those of `keep`.
pub fn for_each_expert(
    manifest: &Manifest,
    (checkpoint, sums): (&Checkpoint, Option<&CheckpointSums>),
    watch: &mut ProgressCallback<'_>,
    keep: &mut dyn FnMut(&ExpertBank, ExpertIdx, &ExpertView<'_>) -> Result<()>,
) -> Result<()> {
    let files = &CheckpointFiles::open(checkpoint)?.with_sums(sums);
    let mut meter = ProgressMeter::new(manifest.expert_bytes(), watch)?;
    let jobs: Vec<ReadJob<'_>> = jobs(manifest);
    let record_bytes = manifest.banks.iter().map(|bank| bank.layout.record_bytes()).max();
    let record_bytes = record_bytes.unwrap_or(0);
    std::thread::scope(|scope| {
        // None where the system cannot create a thread: slower, but it works.
        let readers: Vec<Option<ReaderChannels>> = (0..N_READERS)
            .map(|reader_idx| {
                let (to_keep, filled) = sync_channel(N_RECORDS);
                let (empty, to_fill) = sync_channel(N_RECORDS);
                let mine = jobs.iter().skip(reader_idx).step_by(N_READERS);
                let work = move || read_all(mine, files, record_bytes, (&to_fill, &to_keep));
                let thread = Builder::new().name(format!("moeflux-load-{reader_idx}"));
                thread.spawn_scoped(scope, work).ok().map(|_| ReaderChannels { filled, empty })
            })
            .collect();
        for (job_idx, &(bank, expert)) in jobs.iter().enumerate() {
            let reader = &readers[job_idx % N_READERS];
            let record = match reader {
                Some(reader) => reader.filled.recv().unwrap_or_else(|_| {
                    unreachable!("a thread tells of each of its experts, or why it ended")
                })?,
                None => read((bank, expert), files, empty_record(record_bytes)?)?,
            };
            meter.add(bank.parts.iter().map(|part| part.len_bytes).sum())?;
            keep(bank, expert, &bank.layout.view(&record[..bank.layout.record_bytes()]))?;
            if let Some(reader) = reader {
                // The thread has ended if it has read all of its experts.
                reader.empty.send(record).ok();
            }
        }
        Ok(())
    })
}

/// Lists all experts, in the order of layers and experts.
fn jobs(manifest: &Manifest) -> Vec<ReadJob<'_>> {
    fn of_bank(bank: &ExpertBank) -> impl Iterator<Item = ReadJob<'_>> {
        (0..bank.n_experts).map(move |expert| (bank, ExpertIdx(expert)))
    }
    manifest.banks.iter().flat_map(of_bank).collect()
}

/// Reads experts on a thread. Returns when all are read, a read fails or the consumer is gone.
fn read_all<'a>(
    jobs: impl Iterator<Item = &'a ReadJob<'a>>,
    files: &CheckpointFiles<'_>,
    record_bytes: usize,
    (to_fill, to_keep): (&Receiver<AlignedBytes>, &SyncSender<Result<AlignedBytes>>),
) {
    for (job_idx, job) in jobs.enumerate() {
        let record = match job_idx {
            ..N_RECORDS => empty_record(record_bytes),
            _ => match to_fill.recv() {
                Ok(record) => Ok(record),
                Err(_) => return,
            },
        };
        let done = record.and_then(|record| read(*job, files, record));
        let has_failed = done.is_err();
        if to_keep.send(done).is_err() || has_failed {
            return;
        }
    }
}

fn read(
    (bank, expert): ReadJob<'_>,
    files: &CheckpointFiles<'_>,
    record: AlignedBytes,
) -> Result<AlignedBytes> {
    let mut record = record;
    let mut segments = Vec::new();
    push_record((bank, expert), &mut record[..bank.layout.record_bytes()], &mut segments);
    // The consumer counts the bytes.
    fill_here(segments, files)?;
    Ok(record)
}

fn empty_record(record_bytes: usize) -> Result<AlignedBytes> {
    AlignedBytes::zeroed(record_bytes)
        .ok_or_else(|| Error::no_room("a routed expert", record_bytes as u64, Remedy::FreeMemory))
}

/// Adds the segments of an expert: where its bytes lie in files, and where they go in its record.
fn push_record<'a>(
    (bank, expert): (&'a ExpertBank, ExpertIdx),
    record: &'a mut [u8],
    segments: &mut Vec<ReadSegment<'a>>,
) {
    if let Some(records) = &bank.records {
        let extent = records.extent(expert);
        let finite_check = FiniteCheck::Record { bank, expert };
        let at = extent.offset_bytes;
        segments.push(ReadSegment { file_idx: extent.file_idx, at, target: record, finite_check });
        return;
    }
    let (mut rest, mut skipped) = (record, 0);
    for part in &bank.parts {
        let (_, from_part) = rest.split_at_mut(part.record_at - skipped);
        let (target, after) = from_part.split_at_mut(part.len_bytes);
        (rest, skipped) = (after, part.record_at + part.len_bytes);
        let extent = part.extent(expert);
        let finite_check = match part.role.finite() {
            None => FiniteCheck::Nothing,
            Some(_) => FiniteCheck::Part { bank, part, expert, skipped: 0 },
        };
        let at = extent.offset_bytes;
        segments.push(ReadSegment { file_idx: extent.file_idx, at, target, finite_check });
    }
}
