//! Checksums of a checkpoint's bytes, read from its packed files or from a separate file.
//!
//! **Invariant:** each sum covers a range of bytes of one file; ranges do not overlap and are in
//! ascending order. Sums are returned only after their own integrity was checked. Nothing here
//! reads tensor data.

mod units;
mod document;
mod pack;

pub use document::{FileSums, SUMS_FILE_NAME, SumsDocument};
pub use pack::{AlteredDocument, DocumentSum, PackSums};
pub use units::{TensorUnit, tensor_units};

use std::hash::Hasher as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use moeflux_io::{OneLine, ReadFile};
use twox_hash::XxHash3_64;

use crate::error::{Error, Result};
use crate::format::checkpoint::shard::ShardFile;
use crate::format::checkpoint::{Checkpoint, PackedFolder};
use crate::format::read::read_range;

/// A range of bytes of a file, and its XXH3-64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumUnit {
    /// Offset of the first byte.
    pub first_bytes: u64,
    /// Number of bytes.
    pub len_bytes: u64,
    /// XXH3-64 of these bytes.
    pub sum: u64,
}

impl SumUnit {
    /// Returns the offset after the last byte.
    #[must_use]
    pub fn end_bytes(&self) -> u64 {
        self.first_bytes + self.len_bytes
    }
}

/// All known checksums of a checkpoint's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointSums {
    /// Ranges of each of [`Checkpoint::files`], ascending.
    by_file: Vec<Vec<SumUnit>>,
    /// The command that lists all damage, for messages.
    advice: &'static str,
}

impl CheckpointSums {
    /// Loads the checksums of a packed folder, or those in a model's separate sums file. Returns
    /// `None` if there are none.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if the sums are damaged or belong to other files; [`Error::Io`].
    pub fn of(checkpoint: &Checkpoint) -> Result<Option<Self>> {
        if let Some(packed) = &checkpoint.packed {
            return Self::of_packed(checkpoint, packed).map(Some);
        }
        let path = checkpoint.sums_path();
        let Some(document) = SumsDocument::load(&path)? else { return Ok(None) };
        Self::of_document(checkpoint, &document, &path).map(Some)
    }

    fn of_packed(checkpoint: &Checkpoint, packed: &PackedFolder) -> Result<Self> {
        let mut by_file = Vec::with_capacity(checkpoint.files.len());
        for (file_idx, shard) in checkpoint.files.iter().enumerate() {
            let table = PackedTable::read((checkpoint, packed), file_idx, &shard.open()?)?;
            if !table.is_intact {
                let problem = "its header or checksums are damaged: `moeflux verify` lists all \
                               damage; copy the file again";
                return Err(Error::malformed(&shard.path, problem));
            }
            by_file.push(table.units.into_iter().filter(|unit| unit.len_bytes > 0).collect());
        }
        Ok(Self { by_file, advice: "`moeflux verify`" })
    }

    fn of_document(checkpoint: &Checkpoint, document: &SumsDocument, path: &Path) -> Result<Self> {
        let mut by_file = vec![Vec::new(); checkpoint.files.len()];
        let mut sums = document.sums_of(checkpoint, path)?;
        for unit in tensor_units(checkpoint) {
            let Some(sum) = sums(&unit) else {
                let tensor = OneLine::name(&unit.tensor);
                let problem = format!("has no checksum of tensor `{tensor}`: {}", document::ADVICE);
                return Err(Error::malformed(path, problem));
            };
            let TensorUnit { file_idx, first_bytes, len_bytes, .. } = unit;
            if let Some(units) = by_file.get_mut(file_idx) {
                units.push(SumUnit { first_bytes, len_bytes, sum });
            }
        }
        Ok(Self { by_file, advice: "`moeflux doctor --deep`" })
    }

    /// Returns the ranges that overlap `range` of a file.
    #[must_use]
    pub fn overlapping(&self, file_idx: usize, range: &Range<u64>) -> &[SumUnit] {
        let units = self.by_file.get(file_idx).map_or(&[][..], Vec::as_slice);
        let first = units.partition_point(|unit| unit.end_bytes() <= range.start);
        let end = units.partition_point(|unit| unit.first_bytes < range.end);
        units.get(first..end).unwrap_or_default()
    }

    /// Returns a message for a range whose bytes do not match their checksum.
    #[must_use]
    pub fn mismatch(&self, unit: &SumUnit, found: u64, n_reads: u32) -> String {
        let SumUnit { first_bytes, len_bytes, sum } = unit;
        format!(
            "{len_bytes} bytes at offset {first_bytes} have checksum {found:016x}, not {sum:016x}, \
             in {n_reads} reads: the file is damaged, {} lists all damage",
            self.advice
        )
    }
}

impl Checkpoint {
    /// Returns the path of the checksums of a model that is not packed. The file may be absent.
    #[must_use]
    pub fn sums_path(&self) -> PathBuf {
        if self.gguf.is_none() || self.packed.is_some() {
            return self.dir.join(SUMS_FILE_NAME);
        }
        // Several models may share a folder.
        let name = self.dir.file_name().unwrap_or_default().to_string_lossy();
        self.dir.with_file_name(format!("{name}.{SUMS_FILE_NAME}"))
    }
}

/// The checksums stored in one packed file.
#[derive(Clone, Debug)]
pub(crate) struct PackedTable {
    /// One per record in a file of experts, one per tensor in any other file.
    pub(crate) units: Vec<SumUnit>,
    /// Offset of the table.
    pub(crate) first_bytes: u64,
    /// Whether the stored checksum of header and sums matches.
    pub(crate) is_intact: bool,
}

impl PackedTable {
    pub(crate) fn read(
        (checkpoint, packed): (&Checkpoint, &PackedFolder),
        file_idx: usize,
        file: &ReadFile,
    ) -> Result<Self> {
        let (Some(shard), Some(table)) =
            (checkpoint.files.get(file_idx), packed.sums.get(file_idx))
        else {
            unreachable!("file {file_idx} has a table of sums")
        };
        let ShardFile { path, data_at, .. } = shard;
        let first_bytes = data_at + table.begin_bytes;
        // Cannot overflow: the header was checked against the file's length.
        let n_bytes = (table.n_sums as u64 + 1) * size_of::<u64>() as u64;
        let bytes = read_range(file, path, first_bytes, n_bytes)?;
        let (sums, own) = bytes.split_at(bytes.len().saturating_sub(size_of::<u64>()));
        let header = read_range(file, path, 8, data_at.saturating_sub(8))?;
        let is_intact = own_sum(&header, sums).to_le_bytes() == own;
        let (sums, _) = sums.as_chunks::<8>();
        let sums = sums.iter().map(|sum| u64::from_le_bytes(*sum));
        let unit = |((first_bytes, len_bytes), sum)| SumUnit { first_bytes, len_bytes, sum };
        let units = summed_runs((checkpoint, packed), file_idx).into_iter().zip(sums).map(unit);
        Ok(Self { units: units.collect(), first_bytes, is_intact })
    }
}

/// Returns first byte and length of each range that has a checksum, in the order of the checksums.
fn summed_runs(
    (checkpoint, packed): (&Checkpoint, &PackedFolder),
    file_idx: usize,
) -> Vec<(u64, u64)> {
    let bank = packed.banks.values().find(|(bank_file_idx, _)| *bank_file_idx == file_idx);
    if let (Some((_, bank)), Some(shard)) = (bank, checkpoint.files.get(file_idx)) {
        let record_bytes = bank.record_bytes as u64;
        let first = shard.data_at + bank.begin_bytes;
        return (0..bank.n_experts as u64)
            .map(|expert| (first + expert * record_bytes, record_bytes))
            .collect();
    }
    let rows = packed.tables.values().find(|(rows_file_idx, _)| *rows_file_idx == file_idx);
    if let (Some((_, rows)), Some(shard)) = (rows, checkpoint.files.get(file_idx)) {
        return vec![(shard.data_at + rows.begin_bytes, rows.len_bytes())];
    }
    let in_file = checkpoint.tensors.values().filter(|entry| entry.file_idx == file_idx);
    let mut runs: Vec<_> = in_file.map(|entry| (entry.offset_bytes, entry.len_bytes)).collect();
    runs.sort_unstable();
    runs
}

/// Computes the checksum at the end of a packed file: of the header without its length prefix,
/// followed by the other checksums.
pub(crate) fn own_sum(header_text: &[u8], sums: &[u8]) -> u64 {
    let mut hash = XxHash3_64::new();
    hash.write(header_text);
    hash.write(sums);
    hash.finish()
}

#[cfg(test)]
mod tests;
