//! The byte ranges of a checkpoint that have separate checksums in `moeflux-sums.json`.
//!
//! **Invariant:** the ranges follow from headers alone, so that the document need not store them.

use crate::format::checkpoint::{Checkpoint, TensorEntry};

/// A longer tensor has a checksum for each `UNIT_BYTES`, which locates damage more precisely and
/// gives all threads work.
const UNIT_BYTES: u64 = 64 << 20;

/// Each slice of stacked experts has a checksum, so that a streamed slice can be checked alone. The
/// slices of a convolution are shorter than this: their checksums would be as large as the data.
const SLICE_BYTES_MIN: u64 = 64;

/// A byte range of a tensor that has one checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorUnit {
    /// Index into [`Checkpoint::files`].
    pub file_idx: usize,
    /// Offset of the first byte.
    pub first_bytes: u64,
    /// Number of bytes.
    pub len_bytes: u64,
    /// The tensor's name in its file.
    pub tensor: String,
    /// Index of the slice, if the tensor is divided into slices.
    pub slice: Option<u64>,
}

/// Returns all units of a checkpoint, ordered by file and offset.
#[must_use]
pub fn tensor_units(checkpoint: &Checkpoint) -> Vec<TensorUnit> {
    let mut units: Vec<TensorUnit> = checkpoint.tensors.values().flat_map(units_of).collect();
    units.sort_by_key(|it| (it.file_idx, it.first_bytes, it.len_bytes));
    units
}

pub(super) fn units_of(entry: &TensorEntry) -> impl Iterator<Item = TensorUnit> {
    let slice_bytes = match entry.shape[..] {
        [n_slices, _, _] if n_slices > 1 => entry.len_bytes / n_slices as u64,
        _ => 0,
    };
    let is_sliced = slice_bytes >= SLICE_BYTES_MIN;
    let unit_bytes = if is_sliced { slice_bytes } else { UNIT_BYTES };
    (0..entry.len_bytes.div_ceil(unit_bytes)).map(move |number| {
        let skipped = number * unit_bytes;
        TensorUnit {
            file_idx: entry.file_idx,
            first_bytes: entry.offset_bytes + skipped,
            len_bytes: unit_bytes.min(entry.len_bytes - skipped),
            tensor: entry.name.clone(),
            slice: is_sliced.then_some(number),
        }
    })
}
