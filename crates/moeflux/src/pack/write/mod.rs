//! Writes one file of a pack: runs its jobs, writes bytes and checksums, and reads them back if
//! requested.
//!
//! **Invariant:** checksums are computed from memory before the bytes are written, so that reading
//! back compares the drive with the intended bytes. Memory is bounded by a window of pieces and one
//! record.

mod quantise;
pub(super) mod compute;
pub(super) mod pipeline;
pub(super) mod documents;

use std::fs::File;
use std::hash::Hasher as _;
use std::ops::ControlFlow;
use std::path::Path;

use moeflux_io::{ReadError, ReadFile};
use twox_hash::XxHash3_64;

use crate::error::{Error, Result};
use crate::format::own_sum;
use crate::ids::ExpertIdx;
use crate::pack::folder::{PackFolder, write_all_at, write_error};
use crate::pack::plan::file::{FilePlan, OutputRange, PIECE_BYTES, PackJob};
use crate::pack::source::SourceFiles;
use crate::pack::write::compute::compute;
use crate::pack::write::pipeline::in_order;
use crate::weights::{Progress, ProgressCallback};

/// Reports progress to a watcher, which may cancel before each step.
pub(super) struct ProgressReporter<'s, 'w> {
    progress: Progress,
    watch: &'s mut ProgressCallback<'w>,
}

impl<'s, 'w> ProgressReporter<'s, 'w> {
    pub(super) fn new(total_bytes: u64, watch: &'s mut ProgressCallback<'w>) -> Self {
        Self { progress: Progress { done_bytes: 0, total_bytes }, watch }
    }

    /// Reports `n_bytes` more as done.
    pub(super) fn add(&mut self, n_bytes: u64) -> Result<()> {
        self.progress.done_bytes += n_bytes;
        match (self.watch)(self.progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Cancelled),
        }
    }

    /// Announces a change on the drive.
    pub(super) fn before_change(&mut self) -> Result<()> {
        self.add(0)
    }
}

/// Writes a file under its partial name and waits until it is on the drive.
///
/// # Errors
///
/// If the source cannot be read or the file cannot be written; [`Error::Cancelled`].
pub(super) fn write_file(
    plan: &FilePlan,
    (files, folder): (&SourceFiles, &PackFolder),
    n_threads: usize,
    reporter: &mut ProgressReporter<'_, '_>,
) -> Result<()> {
    reporter.before_change()?;
    let file = folder.create(&plan.name)?;
    let path = folder.partial(&plan.name);
    let mut writer =
        PackFileWriter { file: &file, path: &path, plan, reporter, sums: RunningSums::new(plan) };
    writer.write_at(0, &plan.header)?;
    let jobs = plan.jobs();
    let is_last = last_of_records(&jobs);
    let mut job_idx = 0;
    let mut sink = |job: &PackJob, bytes: Vec<u8>| {
        writer.take(job, &bytes, is_last[job_idx])?;
        job_idx += 1;
        Ok(())
    };
    in_order(&jobs, n_threads, &|job| compute(job, files), &mut sink)?;
    let table = writer.sums.finish(plan);
    let (sums_at, _) = plan.sums_extent();
    writer.write_at(sums_at, &table)?;
    reporter.before_change()?;
    folder.sync(&file, &plan.name)
}

/// Returns for each job whether it completes a record.
fn last_of_records(jobs: &[PackJob]) -> Vec<bool> {
    let expert = |job: &PackJob| match job.outputs.first() {
        Some(OutputRange::Record { expert, .. }) => Some(*expert),
        _ => None,
    };
    let next = jobs.iter().skip(1).map(expert).chain([None]);
    jobs.iter().zip(next).map(|(job, next)| expert(job).is_some() && expert(job) != next).collect()
}

/// Writes the results of jobs to a file and computes its checksums.
struct PackFileWriter<'a, 's, 'w> {
    file: &'a File,
    path: &'a Path,
    plan: &'a FilePlan,
    reporter: &'a mut ProgressReporter<'s, 'w>,
    sums: RunningSums,
}

/// Checksums in progress.
enum RunningSums {
    /// One per tensor.
    Tensors(Vec<XxHash3_64>),
    /// The record being assembled, and the checksums of those before it.
    Records { record: Vec<u8>, done: Vec<u64> },
}

impl RunningSums {
    fn new(plan: &FilePlan) -> Self {
        match plan.record_bytes() {
            0 => Self::Tensors(vec![XxHash3_64::new(); plan.n_sums()]),
            n_bytes => Self::Records { record: vec![0; n_bytes], done: Vec::new() },
        }
    }

    /// Returns the table in its stored form.
    fn finish(&self, plan: &FilePlan) -> Vec<u8> {
        let sums = match self {
            Self::Tensors(hashes) => hashes.iter().map(XxHash3_64::finish).collect(),
            Self::Records { done, .. } => done.clone(),
        };
        assert_eq!(sums.len(), plan.n_sums(), "checksums of {}", plan.name);
        let mut table: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        let own = own_sum(plan.header_text(), &table);
        table.extend(own.to_le_bytes());
        table
    }
}

impl PackFileWriter<'_, '_, '_> {
    fn take(&mut self, job: &PackJob, bytes: &[u8], is_last: bool) -> Result<()> {
        let mut rest = bytes;
        for output in &job.outputs {
            let (part, after) = rest.split_at(output.len());
            rest = after;
            match (*output, &mut self.sums) {
                (
                    OutputRange::Tensor { tensor_idx, file_bytes, .. },
                    RunningSums::Tensors(hashes),
                ) => {
                    hashes[tensor_idx].write(part);
                    self.write_at(file_bytes, part)?;
                }
                (OutputRange::Record { at, len, .. }, RunningSums::Records { record, .. }) => {
                    record[at..][..len].copy_from_slice(part);
                }
                _ => unreachable!("records and tensors are in files of their own"),
            }
        }
        match job.outputs.first() {
            Some(OutputRange::Record { expert, .. }) if is_last => self.write_record(*expert),
            _ => Ok(()),
        }
    }

    /// Writes the record. Its padding is always zero.
    fn write_record(&mut self, expert: ExpertIdx) -> Result<()> {
        let RunningSums::Records { record, done } = &mut self.sums else {
            unreachable!("a record in a file of records")
        };
        assert_eq!(done.len(), expert.0, "records come in order");
        done.push(XxHash3_64::oneshot(record));
        let record = std::mem::take(record);
        let first = self.plan.header.len() as u64;
        let written = self.write_at(first + expert.0 as u64 * record.len() as u64, &record);
        if let RunningSums::Records { record: buffer, .. } = &mut self.sums {
            *buffer = record;
        }
        written
    }

    fn write_at(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<()> {
        self.reporter.before_change()?;
        let written = write_all_at(self.file, bytes, offset_bytes);
        written.map_err(|error| write_error(self.path, error))?;
        self.reporter.add(bytes.len() as u64)
    }
}

/// Reads a file of a plan back from the drive and compares it with its checksums.
///
/// # Errors
///
/// [`Error::Malformed`] with the bytes that differ; [`Error::Io`], [`Error::Cancelled`].
pub(super) fn read_back(
    plan: &FilePlan,
    path: &Path,
    reporter: &mut ProgressReporter<'_, '_>,
) -> Result<()> {
    let file = ReadFile::open(path).map_err(Error::io("open", path))?;
    file.forget_cached();
    let mut header = vec![0; plan.header.len()];
    read(&file, path, 0, &mut header)?;
    let (sums_at, n_bytes) = plan.sums_extent();
    let mut table = vec![0; n_bytes];
    read(&file, path, sums_at, &mut table)?;
    let (sums, own) = table.split_at(n_bytes - size_of::<u64>());
    if header != plan.header || own_sum(plan.header_text(), sums).to_le_bytes() != own {
        return Err(differs(path, 0, plan.header.len() as u64));
    }
    let mut buffer = vec![0; PIECE_BYTES];
    for ((first, len_bytes), sum) in plan.summed().into_iter().zip(sums.chunks_exact(8)) {
        let mut hash = XxHash3_64::new();
        let mut at = first;
        while at < first + len_bytes {
            let left = usize::try_from(first + len_bytes - at).unwrap_or(usize::MAX);
            let chunk = &mut buffer[..left.min(PIECE_BYTES)];
            read(&file, path, at, chunk)?;
            hash.write(chunk);
            at += chunk.len() as u64;
            reporter.add(chunk.len() as u64)?;
        }
        if hash.finish().to_le_bytes() != sum {
            return Err(differs(path, first, len_bytes));
        }
    }
    Ok(())
}

fn read(file: &ReadFile, path: &Path, offset_bytes: u64, target: &mut [u8]) -> Result<()> {
    file.read_exact_at(offset_bytes, target).map_err(|error| match error {
        ReadError::Device { source, .. } => Error::io("read", path)(source),
        other => Error::malformed(path, other.to_string()),
    })
}

fn differs(path: &Path, first: u64, len_bytes: u64) -> Error {
    let problem = format!(
        "bytes {first} to {} differ from those that were written: the drive or its memory is \
         damaged; the source of these bytes was not deleted",
        first + len_bytes
    );
    Error::malformed(path, problem)
}
