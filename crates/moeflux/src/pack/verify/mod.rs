//! Reads every byte of a model's files once and checks it.
//!
//! **Invariant:** records and tensors of a packed folder are compared with their checksums,
//! bypassing cached data. In other checkpoints only impossible values are detected: NaN and
//! infinity among scales and vectors. One run finds all damage. Each thread needs one buffer.

pub(super) mod damage;
pub(super) mod sums;
pub(super) mod compare;

use std::collections::BTreeMap;
use std::hash::Hasher as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

use moeflux_io::ReadFile;
use moeflux_kernels::MatrixKind;
use twox_hash::XxHash3_64;

use crate::blueprint::Blueprint;
use crate::error::{Error, Result};
use crate::format::{Checkpoint, PackedFolder, PackedTable};
use crate::ids::ExpertIdx;
use crate::pack::verify::damage::{Damage, DamagedPart};
use crate::pack::verify::sums::{DocumentCheck, Documents};
use crate::weights::{
    ExpertBank, ExpertOffsets, FiniteFormat, Manifest, Progress, ProgressCallback, RowBlocks,
    RowStorage, RowTable, VectorSource,
};

/// Bytes per read: large enough for a drive's full rate with a few threads.
const CHUNK_BYTES: u64 = 8 << 20;

/// Tensors without checksums are read in parts of this length, so that all threads have work.
const PART_BYTES: u64 = 64 << 20;

/// Upper bound on threads: more do not read faster.
const N_THREADS_MAX: usize = 8;

/// The extent of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// Every byte has a checksum.
    Checksums,
    /// There are no checksums. The check covers only that all bytes can be read and that scales and
    /// vectors are finite.
    FiniteOnly,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Extent of the check.
    pub coverage: Coverage,
    /// Number of bytes read.
    pub n_bytes: u64,
    /// Number of experts compared with checksums.
    pub n_records: usize,
    /// Number of other tensors read.
    pub n_tensors: usize,
    /// Number of small files compared with checksums.
    pub n_documents: usize,
    /// Whether this is a pack whose small files have no checksums, or do not match them. If nothing
    /// is damaged (see [`Documents::Accepted`]), [`crate::pack::write_sums`] writes new ones.
    pub needs_pack_sums: bool,
    /// Damage to small files, then to weight files, ordered by file and offset.
    pub damages: Vec<Damage>,
}

/// A byte range that is checked as a whole.
#[derive(Debug)]
struct CheckUnit {
    file_idx: usize,
    first_bytes: u64,
    len_bytes: u64,
    part: DamagedPart,
    sum: Option<u64>,
    finite_ranges: Vec<FiniteRange>,
}

/// Bytes of a unit that must be finite.
#[derive(Clone, Copy, Debug)]
struct FiniteRange {
    /// Offset in the unit.
    first_bytes: u64,
    len_bytes: u64,
    format: FiniteFormat,
    /// Bytes of the same tensor in earlier units.
    skipped_bytes: u64,
}

/// Checks the model in a folder. Damage is part of the result, not an error. So is a small file
/// that has changed since packing; if the model cannot be opened because of such files, only they
/// are reported.
///
/// # Errors
///
/// If config or headers are invalid, or a file cannot be opened; [`Error::Cancelled`].
pub fn verify(dir: &Path, n_threads: usize, watch: &mut ProgressCallback<'_>) -> Result<Verified> {
    verify_with(dir, Documents::AsPacked, n_threads, watch)
}

/// Checks the model in a folder like [`verify`], with `documents` as the reference for small files.
///
/// # Errors
///
/// As [`verify`]; [`Error::Input`] for [`Documents::Accepted`] if the model is not packed.
pub fn verify_with(
    dir: &Path,
    documents: Documents,
    n_threads: usize,
    watch: &mut ProgressCallback<'_>,
) -> Result<Verified> {
    let mut document_check = DocumentCheck::of_folder(dir, documents)?;
    let n_documents = document_check.n_documents();
    let (blueprint, checkpoint) = match Blueprint::read(dir) {
        Err(_) if !document_check.damages.is_empty() => {
            return Ok(Verified {
                n_documents,
                damages: document_check.damages,
                ..Verified::nothing()
            });
        }
        opened => opened?,
    };
    document_check.add_foreign_files(&checkpoint, documents)?;
    let needs_pack_sums = checkpoint.packed.is_some() && document_check.needs_writing();
    let mut damages = document_check.damages;
    let mut files = Vec::new();
    for shard in &checkpoint.files {
        let file = shard.open()?;
        file.forget_cached();
        files.push(file);
    }
    let mut units = match &checkpoint.packed {
        Some(packed) => {
            packed_units(&blueprint.manifest, (&checkpoint, packed), (&files, &mut damages))?
        }
        None => plain_units(&blueprint.manifest, &checkpoint),
    };
    units.sort_by_key(|unit| (unit.file_idx, unit.first_bytes));
    let n_bytes = units.iter().map(|unit| unit.len_bytes).sum();
    let is_record = |unit: &&CheckUnit| matches!(unit.part, DamagedPart::Expert(..));
    let n_records = units.iter().filter(is_record).count();
    let coverage = match checkpoint.packed {
        Some(_) => Coverage::Checksums,
        None => Coverage::FiniteOnly,
    };
    let run = VerifyRun {
        checkpoint: &checkpoint,
        files: &files,
        units: &units,
        next: AtomicUsize::new(0),
        is_stopped: AtomicBool::new(false),
    };
    damages.extend(run.check_all(n_threads.clamp(1, N_THREADS_MAX), n_bytes, watch)?);
    checkpoint.check_unchanged()?;
    let n_tensors = checkpoint.tensors.len();
    Ok(Verified { coverage, n_bytes, n_records, n_tensors, n_documents, needs_pack_sums, damages })
}

impl Verified {
    /// Returns the result for a pack of which nothing was read.
    fn nothing() -> Self {
        Self {
            coverage: Coverage::Checksums,
            n_bytes: 0,
            n_records: 0,
            n_tensors: 0,
            n_documents: 0,
            needs_pack_sums: false,
            damages: Vec::new(),
        }
    }
}

/// Returns the formats of all data that `weights` checks for non-finite values, by file and offset.
fn finite_tensors(manifest: &Manifest) -> BTreeMap<(usize, u64), FiniteFormat> {
    let mut formats = BTreeMap::new();
    for matrix in &manifest.matrices {
        if let MatrixKind::Block(kind) = matrix.layout.kind {
            let place = (matrix.codes.file_idx, matrix.codes.offset_bytes);
            formats.insert(place, FiniteFormat::Blocks(kind));
        }
        let Some(kind) = matrix.layout.kind.scale_kind() else { continue };
        for extent in [matrix.scales, matrix.biases].into_iter().flatten() {
            formats.insert((extent.file_idx, extent.offset_bytes), FiniteFormat::of_scales(kind));
        }
    }
    for vector in &manifest.vectors {
        if let VectorSource::Stored(stored) = vector {
            let place = (stored.extent.file_idx, stored.extent.offset_bytes);
            formats.insert(place, FiniteFormat::Floats(stored.kind));
        }
    }
    for table in &manifest.tables {
        if let RowStorage::Tensors(runs) = &table.storage {
            let places = runs.iter().map(|run| (run.extent.file_idx, run.extent.offset_bytes));
            formats.extend(places.map(|place| (place, table.values.finite())));
        }
    }
    let unpacked = manifest.banks.iter().filter(|bank| bank.records.is_none());
    for part in unpacked.flat_map(|bank| &bank.parts) {
        let Some(format) = part.role.finite() else { continue };
        match &part.offsets {
            ExpertOffsets::Strided { file_idx, first_bytes, .. } => {
                formats.insert((*file_idx, *first_bytes), format);
            }
            ExpertOffsets::Each(offsets) => formats.extend(offsets.iter().map(|at| (*at, format))),
        }
    }
    formats
}

fn plain_units(manifest: &Manifest, checkpoint: &Checkpoint) -> Vec<CheckUnit> {
    let finite_formats = finite_tensors(manifest);
    let mut units = Vec::new();
    for entry in checkpoint.tensors.values() {
        let format = finite_formats.get(&(entry.file_idx, entry.offset_bytes));
        let mut skipped = 0;
        while skipped < entry.len_bytes {
            let len_bytes = PART_BYTES.min(entry.len_bytes - skipped);
            units.push(CheckUnit {
                file_idx: entry.file_idx,
                first_bytes: entry.offset_bytes + skipped,
                len_bytes,
                part: DamagedPart::Tensor(entry.name.clone()),
                sum: None,
                finite_ranges: format
                    .map(|format| finite_range(len_bytes, *format, skipped))
                    .into_iter()
                    .collect(),
            });
            skipped += len_bytes;
        }
    }
    units
}

/// Returns a range at the beginning of a unit.
fn finite_range(len_bytes: u64, format: FiniteFormat, skipped_bytes: u64) -> FiniteRange {
    FiniteRange { first_bytes: 0, len_bytes, format, skipped_bytes }
}

fn packed_units(
    manifest: &Manifest,
    (checkpoint, packed): (&Checkpoint, &PackedFolder),
    (files, damages): (&[ReadFile], &mut Vec<Damage>),
) -> Result<Vec<CheckUnit>> {
    let finite_formats = finite_tensors(manifest);
    let mut units = Vec::new();
    for (file_idx, shard) in checkpoint.files.iter().enumerate() {
        let table = PackedTable::read((checkpoint, packed), file_idx, &files[file_idx])?;
        let table_at = table.first_bytes;
        if !table.is_intact {
            // A damaged table cannot show that its file is from another pack: report only damage.
            damages.retain(|it| it.part != DamagedPart::ForeignFile || it.file != shard.path);
            damages.push(Damage {
                part: DamagedPart::Checksums,
                file: shard.path.clone(),
                first_bytes: 0,
                len_bytes: shard.data_at,
                problem: format!("the header or the checksums at byte {table_at} were modified"),
            });
        }
        let sums: Vec<u64> = table.units.iter().map(|unit| unit.sum).collect();
        let bank = manifest
            .banks
            .iter()
            .find(|bank| bank.records.is_some_and(|records| records.file_idx == file_idx));
        let row_table = manifest.tables.iter().find_map(|it| match it.storage {
            RowStorage::Blocks(blocks) if blocks.file_idx == file_idx => Some((it, blocks)),
            _ => None,
        });
        if let (Some(row_table), [sum]) = (row_table, &*sums) {
            units.push(blocks_unit(row_table, *sum));
            continue;
        }
        match bank {
            Some(bank) => push_records(bank, &sums, &mut units),
            None => push_tensors((checkpoint, file_idx), &sums, &finite_formats, &mut units),
        }
    }
    Ok(units)
}

/// Returns the unit of all blocks of a table.
fn blocks_unit((table, blocks): (&RowTable, RowBlocks), sum: u64) -> CheckUnit {
    let n_blocks = blocks.shape.n_blocks(table.n_rows);
    CheckUnit {
        file_idx: blocks.file_idx,
        first_bytes: blocks.first_bytes,
        len_bytes: n_blocks as u64 * blocks.shape.block_bytes as u64,
        part: DamagedPart::Tensor(format!("{}.blocks", table.name)),
        sum: Some(sum),
        finite_ranges: Vec::new(),
    }
}

fn push_records(bank: &ExpertBank, sums: &[u64], units: &mut Vec<CheckUnit>) {
    let Some(records) = bank.records else { return };
    let finite_ranges: Vec<_> = bank
        .parts
        .iter()
        .filter_map(|part| {
            let format = part.role.finite()?;
            let all = finite_range(part.len_bytes as u64, format, 0);
            Some(FiniteRange { first_bytes: part.record_at as u64, ..all })
        })
        .collect();
    for (expert, sum) in (0..bank.n_experts).map(ExpertIdx).zip(sums) {
        let extent = records.extent(expert);
        units.push(CheckUnit {
            file_idx: extent.file_idx,
            first_bytes: extent.offset_bytes,
            len_bytes: extent.len_bytes,
            part: DamagedPart::Expert(bank.layer, expert),
            sum: Some(*sum),
            finite_ranges: finite_ranges.clone(),
        });
    }
}

fn push_tensors(
    (checkpoint, file_idx): (&Checkpoint, usize),
    sums: &[u64],
    finite_formats: &BTreeMap<(usize, u64), FiniteFormat>,
    units: &mut Vec<CheckUnit>,
) {
    let in_file = checkpoint.tensors.values().filter(|entry| entry.file_idx == file_idx);
    let mut tensors: Vec<_> = in_file.collect();
    tensors.sort_by_key(|entry| (entry.offset_bytes, entry.len_bytes));
    for (entry, sum) in tensors.into_iter().zip(sums) {
        let format = finite_formats.get(&(file_idx, entry.offset_bytes));
        units.push(CheckUnit {
            file_idx,
            first_bytes: entry.offset_bytes,
            len_bytes: entry.len_bytes,
            part: DamagedPart::Tensor(entry.name.clone()),
            sum: Some(*sum),
            finite_ranges: format
                .map(|format| finite_range(entry.len_bytes, *format, 0))
                .into_iter()
                .collect(),
        });
    }
}

/// The state of a check that its threads share.
struct VerifyRun<'a> {
    checkpoint: &'a Checkpoint,
    files: &'a [ReadFile],
    units: &'a [CheckUnit],
    next: AtomicUsize,
    is_stopped: AtomicBool,
}

/// A message from a thread that checks.
enum WorkerMessage {
    /// Number of bytes read since the last message.
    Read(u64),
    /// Index of a unit, and its damage.
    Damaged(usize, Damage),
}

impl VerifyRun<'_> {
    fn check_all(
        &self,
        n_threads: usize,
        total_bytes: u64,
        watch: &mut ProgressCallback<'_>,
    ) -> Result<Vec<Damage>> {
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            let mut n_started = 0;
            for thread_idx in 0..n_threads {
                let sender = sender.clone();
                let builder = Builder::new().name(format!("moeflux-verify-{thread_idx}"));
                let thread = builder.spawn_scoped(scope, move || self.work(&sender));
                n_started += usize::from(thread.is_ok());
            }
            if n_started == 0 {
                // The system has no threads left: run here, which is slower.
                self.work(&sender);
            }
            drop(sender);
            self.receive(&receiver, total_bytes, watch)
        })
    }

    fn receive(
        &self,
        messages: &Receiver<WorkerMessage>,
        total_bytes: u64,
        watch: &mut ProgressCallback<'_>,
    ) -> Result<Vec<Damage>> {
        let mut damages = BTreeMap::new();
        let mut progress = Progress { done_bytes: 0, total_bytes };
        let mut report = |progress: Progress| {
            if watch(progress) == ControlFlow::Break(()) {
                self.is_stopped.store(true, Ordering::Relaxed);
            }
        };
        report(progress);
        for message in messages {
            match message {
                WorkerMessage::Damaged(unit_idx, damage) => {
                    damages.insert(unit_idx, damage);
                }
                WorkerMessage::Read(n_bytes) => {
                    progress.done_bytes += n_bytes;
                    report(progress);
                }
            }
        }
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        Ok(damages.into_values().collect())
    }

    fn work(&self, messages: &Sender<WorkerMessage>) {
        let mut buffer = Vec::new();
        loop {
            let unit_idx = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(unit) = self.units.get(unit_idx) else { return };
            if self.is_stopped.load(Ordering::Relaxed) {
                return;
            }
            if let Err(problem) = self.check_unit(unit, &mut buffer, messages) {
                let damage = Damage {
                    part: unit.part.clone(),
                    file: self.checkpoint.files[unit.file_idx].path.clone(),
                    first_bytes: unit.first_bytes,
                    len_bytes: unit.len_bytes,
                    problem,
                };
                // Sending fails only if the receiver has panicked.
                drop(messages.send(WorkerMessage::Damaged(unit_idx, damage)));
            }
        }
    }

    fn check_unit(
        &self,
        unit: &CheckUnit,
        buffer: &mut Vec<u8>,
        messages: &Sender<WorkerMessage>,
    ) -> std::result::Result<(), String> {
        let mut hash = XxHash3_64::new();
        let mut non_finite = None;
        let mut done_bytes = 0;
        while done_bytes < unit.len_bytes && !self.is_stopped.load(Ordering::Relaxed) {
            let n_bytes = CHUNK_BYTES.min(unit.len_bytes - done_bytes);
            buffer.resize(usize::try_from(n_bytes).unwrap_or(usize::MAX), 0);
            let read =
                self.files[unit.file_idx].read_exact_at(unit.first_bytes + done_bytes, buffer);
            read.map_err(|error| format!("cannot be read: {error}"))?;
            if unit.sum.is_some() {
                hash.write(buffer);
            }
            non_finite = non_finite.or(unit.first_non_finite(done_bytes, buffer));
            done_bytes += n_bytes;
            drop(messages.send(WorkerMessage::Read(n_bytes)));
        }
        if self.is_stopped.load(Ordering::Relaxed) {
            return Ok(());
        }
        if let Some(sum) = unit.sum.filter(|sum| *sum != hash.finish()) {
            return Err(format!("checksum {:016x}, should be {sum:016x}", hash.finish()));
        }
        match non_finite {
            None => Ok(()),
            Some(at) => Err(format!("a scale or value at byte {at} is NaN or infinite")),
        }
    }
}

impl CheckUnit {
    /// Finds the first value in this chunk that should be finite and is not. Returns the offset of
    /// it, or of its block, in the file. Chunks and units begin at multiples of a float's size.
    fn first_non_finite(&self, skipped: u64, chunk: &[u8]) -> Option<u64> {
        let end = skipped + chunk.len() as u64;
        let in_range = |range: &FiniteRange| {
            let range_end = range.first_bytes + range.len_bytes;
            let (first, last) = (range.first_bytes.max(skipped), range_end.min(end));
            let bytes = usize::try_from(first.checked_sub(skipped)?).ok()?
                ..usize::try_from(last.checked_sub(skipped)?).ok()?;
            let before = usize::try_from(first - range.first_bytes + range.skipped_bytes).ok()?;
            let value_idx = range.format.first_bad(before, chunk.get(bytes)?)?;
            let byte_idx = range.format.byte_of(value_idx) as u64;
            Some(
                (self.first_bytes + range.first_bytes + byte_idx)
                    .saturating_sub(range.skipped_bytes),
            )
        };
        self.finite_ranges.iter().filter_map(in_range).min()
    }
}
