//! Reads every byte of a model once: a packed model is checked as by `moeflux verify`; for another
//! model, the first run writes checksums and later runs compare them.
//!
//! **Invariant:** each damage is one line with tensor, file and bytes. Checksums are written only
//! after everything was read; existing ones are never replaced.

use std::hash::Hasher as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;

use moeflux::provider::format::{
    Checkpoint, FileSums, ShardFile, SumsDocument, TensorUnit, tensor_units,
};
use moeflux::provider::pack::verify;
use moeflux::{ByteCount, Error, Result};
use moeflux_io::ReadFile;
use serde_json::{Value, json};
use twox_hash::XxHash3_64;

use super::checksum_file::{ChecksumFile, name_of};
use crate::output::progress::Bar;
use crate::system::interrupt::Interrupt;

/// Bytes that each thread reads at once.
const CHUNK_BYTES: usize = 8 << 20;

/// More threads than this do not read faster.
const N_THREADS_MAX: usize = 8;

/// The reference that a model was compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChecksumSource {
    /// The checksums of a packed folder.
    Packed,
    /// The checksums of an earlier run, in this file.
    Earlier(PathBuf),
    /// None: the checksums were written to this file.
    Nothing(PathBuf),
}

/// The result of reading every byte of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeepReport {
    pub(super) compared: ChecksumSource,
    pub(super) n_bytes: u64,
    pub(super) n_sums: usize,
    /// One line for each.
    pub(super) damages: Vec<String>,
}

impl DeepReport {
    /// Returns the message for an undamaged model.
    pub(super) fn summary(&self) -> String {
        let (n_bytes, n_sums) = (ByteCount(self.n_bytes), self.n_sums);
        match &self.compared {
            ChecksumSource::Packed => {
                format!("{n_bytes}: {n_sums} experts and tensors match their checksums")
            }
            ChecksumSource::Earlier(file) => {
                format!("{n_bytes}: all {n_sums} checksums match those of {}", file.display())
            }
            ChecksumSource::Nothing(file) => format!(
                "{n_bytes} read; {n_sums} checksums written to {}: the same command will find \
                 later changes, but not earlier damage",
                file.display()
            ),
        }
    }

    /// Returns the result as JSON.
    pub(super) fn json(&self) -> Value {
        let (compared, file) = match &self.compared {
            ChecksumSource::Packed => ("packed", None),
            ChecksumSource::Earlier(file) => ("earlier", Some(file.display().to_string())),
            ChecksumSource::Nothing(file) => ("nothing", Some(file.display().to_string())),
        };
        json!({
            "compared_with": compared,
            "sums_file": file,
            "n_bytes": self.n_bytes,
            "n_sums": self.n_sums,
            "damages": self.damages,
        })
    }
}

/// Reads the model in `dir`. The sums of a model that is not packed are in `sums_path`, or beside
/// it.
///
/// # Errors
///
/// Fails if the headers or the file of sums are invalid, and with [`Error::Cancelled`]. Damage is
/// part of the result rather than an error, unless there are no sums yet: unreadable data has no
/// checksum.
pub(super) fn deep_check(
    dir: &Path,
    sums_path: Option<&Path>,
    n_threads: usize,
    interrupt: &Interrupt,
) -> Result<DeepReport> {
    let n_threads = n_threads.clamp(1, N_THREADS_MAX);
    let checkpoint = Checkpoint::open(dir)?;
    if checkpoint.packed.is_some() {
        return packed(dir, n_threads, interrupt);
    }
    let sums_path = &sums_path.map_or_else(|| checkpoint.sums_path(), Path::to_owned);
    let units = tensor_units(&checkpoint);
    let earlier = SumsDocument::load(sums_path)?;
    let checksum_file =
        if earlier.is_none() { Some(ChecksumFile::begin(sums_path)?) } else { None };
    let files = open(&checkpoint)?;
    let n_bytes = units.iter().map(|unit| unit.len_bytes).sum();
    let run = ChecksumRun {
        files: &files,
        units: &units,
        next: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
    };
    let found = run.all(n_threads, n_bytes, interrupt)?;
    checkpoint.check_unchanged()?;
    let n_sums = units.len();
    if let Some(earlier) = earlier {
        let damages = compare(&checkpoint, &earlier, &units, &found);
        let compared = ChecksumSource::Earlier(sums_path.to_owned());
        return Ok(DeepReport { compared, n_bytes, n_sums, damages });
    }
    let mut all = Vec::with_capacity(found.len());
    for (unit, sum) in units.iter().zip(found) {
        let path = &checkpoint.files[unit.file_idx].path;
        all.push(sum.map_err(|problem| Error::malformed(path, place(unit, &problem)))?);
    }
    if let Some(checksum_file) = checksum_file {
        checksum_file.finish(&SumsDocument::new(&checkpoint, &units, &all))?;
    }
    let compared = ChecksumSource::Nothing(sums_path.to_owned());
    Ok(DeepReport { compared, n_bytes, n_sums, damages: Vec::new() })
}

fn packed(dir: &Path, n_threads: usize, interrupt: &Interrupt) -> Result<DeepReport> {
    let mut bar = None;
    let verified = verify(dir, n_threads, &mut |progress| {
        let bar = bar.get_or_insert_with(|| Bar::bytes("reading all", progress.total_bytes));
        bar.set(progress.done_bytes);
        interrupt.poll()
    })?;
    Ok(DeepReport {
        compared: ChecksumSource::Packed,
        n_bytes: verified.n_bytes,
        n_sums: verified.n_records + verified.n_tensors,
        damages: verified.damages.iter().map(ToString::to_string).collect(),
    })
}

fn open(checkpoint: &Checkpoint) -> Result<Vec<ReadFile>> {
    let open = |shard: &ShardFile| {
        let file = shard.open()?;
        // Reads from the drive, not from the page cache.
        file.forget_cached();
        Ok(file)
    };
    checkpoint.files.iter().map(open).collect()
}

/// Formats tensor and byte range, to follow a file's name.
fn place(unit: &TensorUnit, problem: &str) -> String {
    let TensorUnit { first_bytes, len_bytes, tensor, slice, .. } = unit;
    let slice = slice.map(|number| format!(", slice {number}")).unwrap_or_default();
    let end = first_bytes + len_bytes;
    format!(
        "tensor `{}`{slice}, bytes {first_bytes} to {end}: {problem}",
        moeflux_io::OneLine::name(tensor)
    )
}

/// The checksum of a unit, or why it cannot be read.
type UnitChecksum = std::result::Result<u64, String>;

fn compare(
    checkpoint: &Checkpoint,
    earlier: &SumsDocument,
    units: &[TensorUnit],
    found: &[UnitChecksum],
) -> Vec<String> {
    let mut damages = Vec::new();
    let mut known = Vec::new();
    for shard in &checkpoint.files {
        let path = shard.path.display();
        let sums = earlier.files.get(&name_of(&shard.path));
        let is_same =
            |it: &FileSums| it.len_bytes == shard.len_bytes && it.header == shard.header_hash;
        match sums {
            None => damages.push(format!("{path}: did not exist when the checksums were written")),
            Some(sums) if !is_same(sums) => damages.push(format!(
                "{path}: its {} bytes and its header do not match the checksums, which describe \
                 {} bytes",
                shard.len_bytes, sums.len_bytes
            )),
            Some(_) => {}
        }
        known.push(sums.filter(|sums| is_same(sums)));
    }
    let names: Vec<String> = checkpoint.files.iter().map(|shard| name_of(&shard.path)).collect();
    let missing = earlier.files.keys().filter(|name| !names.contains(name));
    damages.extend(
        missing.map(|name| format!("{}: no longer exists", checkpoint.dir.join(name).display())),
    );
    // Units of the same tensor are adjacent.
    let mut last: Option<(&TensorUnit, usize)> = None;
    for (unit, found) in units.iter().zip(found) {
        let number = match last {
            Some((before, number)) if before.tensor == unit.tensor => number + 1,
            _ => 0,
        };
        last = Some((unit, number));
        let Some(file) = known[unit.file_idx] else { continue };
        let expected = file.tensors.get(&unit.tensor).and_then(|sums| sums.get(number));
        let problem = match (found, expected) {
            (Ok(found), Some(expected)) if found == expected => continue,
            (Ok(_), Some(_)) => "its bytes have changed".to_owned(),
            (Ok(_), None) => "has no checksum".to_owned(),
            (Err(problem), _) => problem.clone(),
        };
        let path = checkpoint.files[unit.file_idx].path.display();
        damages.push(format!("{path}: {}", place(unit, &problem)));
    }
    damages
}

/// A run over all units of a checkpoint, shared by the threads.
struct ChecksumRun<'a> {
    files: &'a [ReadFile],
    units: &'a [TensorUnit],
    next: AtomicUsize,
    stop: AtomicBool,
}

impl ChecksumRun<'_> {
    /// Returns the checksum of every unit, in order.
    fn all(
        &self,
        n_threads: usize,
        n_bytes: u64,
        interrupt: &Interrupt,
    ) -> Result<Vec<UnitChecksum>> {
        let mut found: Vec<UnitChecksum> = vec![Ok(0); self.units.len()];
        let bar = Bar::bytes("reading all", n_bytes);
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            let mut n_started = 0;
            for thread_idx in 0..n_threads {
                let sender = sender.clone();
                let builder = Builder::new().name(format!("moeflux-deep-{thread_idx}"));
                let thread = builder.spawn_scoped(scope, move || self.work(&sender));
                n_started += usize::from(thread.is_ok());
            }
            if n_started == 0 {
                self.work(&sender);
            }
            drop(sender);
            for (unit_idx, sum) in receiver {
                found[unit_idx] = sum;
                bar.add(self.units[unit_idx].len_bytes);
                if interrupt.is_set() {
                    self.stop.store(true, Ordering::Relaxed);
                }
            }
        });
        if interrupt.is_set() { Err(Error::Cancelled) } else { Ok(found) }
    }

    fn work(&self, sender: &Sender<(usize, UnitChecksum)>) {
        let mut chunk = vec![0_u8; CHUNK_BYTES];
        while !self.stop.load(Ordering::Relaxed) {
            let unit_idx = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(unit) = self.units.get(unit_idx) else { return };
            let sum = sum(&self.files[unit.file_idx], unit, &mut chunk);
            // The receiver is gone after a cancellation.
            if sender.send((unit_idx, sum)).is_err() {
                return;
            }
        }
    }
}

fn sum(file: &ReadFile, unit: &TensorUnit, chunk: &mut [u8]) -> UnitChecksum {
    let mut hash = XxHash3_64::new();
    let mut done_bytes = 0;
    while done_bytes < unit.len_bytes {
        let left = usize::try_from(unit.len_bytes - done_bytes).unwrap_or(usize::MAX);
        let part = &mut chunk[..left.min(CHUNK_BYTES)];
        let read = file.read_exact_at(unit.first_bytes + done_bytes, part);
        read.map_err(|error| error.to_string())?;
        hash.write(part);
        done_bytes += part.len() as u64;
    }
    Ok(hash.finish())
}
