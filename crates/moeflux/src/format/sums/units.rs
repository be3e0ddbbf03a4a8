//! Which runs of a checkpoint's bytes have a sum of their own in `moeflux-sums.json`.
//!
//! **Invariant:** follows from headers alone, so that the file of sums need not say it.

use super::super::checkpoint::{Checkpoint, TensorEntry};

/// Longer tensors have a sum for each so many bytes, so that damage is found more closely and all
/// threads have work.
const UNIT_BYTES: u64 = 64 << 20;

/// Slices of stacked experts have a sum each, so that one that is streamed can be compared alone.
/// The slices of a convolution are shorter: their sums would be as large as they are.
const SLICE_BYTES_MIN: u64 = 64;

/// Bytes of a tensor that have one sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorUnit {
    /// Which of [`Checkpoint::files`].
    pub file_idx: usize,
    /// First byte.
    pub first_bytes: u64,
    /// Number of bytes.
    pub len_bytes: u64,
    /// The tensor's name in its file.
    pub tensor: String,
    /// Which of the tensor's slices, if it has any.
    pub slice: Option<u64>,
}

/// All units of a checkpoint, in the order of files and bytes.
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
