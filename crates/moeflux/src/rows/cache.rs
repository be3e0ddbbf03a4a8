//! Rows in memory: those used last, in a fixed number of bytes.
//!
//! A row may be in one of [`N_WAYS`] entries of its set. Rows of n-grams are hashes, so that sets
//! fill evenly. Room for all rows of a table keeps all of them. **Invariant:** a row that is
//! returned has the bytes that were inserted for it. This module knows no files.

use moeflux_io::AlignedBytes;

use crate::error::{Error, Remedy, Result};

/// Entries in which a row may be: few enough to search, and enough that a row rarely leaves because
/// of others of its set alone.
const N_WAYS: usize = 8;

/// Bytes of an entry beside its row: the row's number, and when it was used.
const ENTRY_BYTES: usize = 2 * size_of::<u64>();

/// The rows of one table in memory.
#[derive(Debug)]
pub(super) struct RowCache {
    row_bytes: usize,
    n_sets: u64,
    /// By entry: number of the row plus 1, or 0 if the entry is empty.
    rows: Vec<u64>,
    /// By entry: when it was used last.
    used_at: Vec<u64>,
    bytes: AlignedBytes,
    now: u64,
}

impl RowCache {
    /// Creates an empty cache of about `cache_bytes` for a table of `n_rows` rows, with room for at
    /// least one set, and at most for all rows.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if memory is short.
    pub(super) fn new((n_rows, row_bytes): (usize, usize), cache_bytes: u64) -> Result<Self> {
        let n_sets = n_sets((n_rows, row_bytes), cache_bytes);
        let n_entries = n_sets * N_WAYS;
        let n_bytes = n_entries.checked_mul(row_bytes);
        let bytes = n_bytes.and_then(AlignedBytes::zeroed).ok_or_else(|| {
            Error::no_room("rows of tables in memory", cache_bytes, Remedy::SmallerBudget)
        })?;
        let (rows, used_at) = (vec![0; n_entries], vec![0; n_entries]);
        Ok(Self { row_bytes, n_sets: n_sets as u64, rows, used_at, bytes, now: 0 })
    }

    /// Returns the bytes that such a cache takes.
    pub(super) fn bytes_of(shape: (usize, usize), cache_bytes: u64) -> u64 {
        let n_entries = (n_sets(shape, cache_bytes) * N_WAYS) as u64;
        n_entries.saturating_mul((shape.1 + ENTRY_BYTES) as u64)
    }

    /// Returns the number of rows with room.
    pub(super) fn n_entries(&self) -> usize {
        self.rows.len()
    }

    /// Returns a row, if it is in memory.
    pub(super) fn get(&mut self, row: u64) -> Option<&[u8]> {
        let entry = self.set_of(row).find(|entry| self.rows[*entry] == row + 1)?;
        self.now += 1;
        self.used_at[entry] = self.now;
        Some(&self.bytes[entry * self.row_bytes..][..self.row_bytes])
    }

    /// Inserts a row in place of the one of its set that was used first.
    pub(super) fn insert(&mut self, row: u64, bytes: &[u8]) {
        let set = self.set_of(row);
        let own = set.clone().find(|entry| self.rows[*entry] == row + 1);
        let oldest = || set.min_by_key(|entry| self.used_at[*entry]);
        let entry = own.or_else(oldest).expect("a set has entries");
        self.now += 1;
        self.used_at[entry] = self.now;
        self.rows[entry] = row + 1;
        self.bytes[entry * self.row_bytes..][..self.row_bytes].copy_from_slice(bytes);
    }

    fn set_of(&self, row: u64) -> std::ops::Range<usize> {
        let set = usize::try_from(row % self.n_sets).expect("one of the sets");
        set * N_WAYS..(set + 1) * N_WAYS
    }
}

fn n_sets((n_rows, row_bytes): (usize, usize), cache_bytes: u64) -> usize {
    let set_bytes = (N_WAYS * (row_bytes + ENTRY_BYTES)) as u64;
    let n_sets = usize::try_from(cache_bytes / set_bytes).unwrap_or(usize::MAX);
    n_sets.clamp(1, n_rows.div_ceil(N_WAYS).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(row: u64) -> [u8; 4] {
        (u32::try_from(row).unwrap() ^ 0x5a5a).to_le_bytes()
    }

    #[test]
    fn room_for_all_rows_keeps_all_rows() {
        let mut cache = RowCache::new((1003, 4), 1 << 20).unwrap();
        assert_eq!(cache.n_entries(), 1008);
        for row in (0..1003).rev() {
            assert_eq!(cache.get(row), None);
            cache.insert(row, &bytes_of(row));
        }
        for row in 0..1003 {
            assert_eq!(cache.get(row), Some(&bytes_of(row)[..]));
        }
    }

    #[test]
    fn the_row_of_a_set_that_was_used_first_leaves() {
        let mut cache = RowCache::new((1000, 4), 1).unwrap();
        assert_eq!((cache.n_entries(), cache.n_sets), (N_WAYS, 1));
        (0..8).for_each(|row| cache.insert(row, &bytes_of(row)));
        assert!(cache.get(0).is_some());
        // An insertion again takes no second entry.
        cache.insert(1, &bytes_of(1));
        cache.insert(8, &bytes_of(8));
        assert_eq!(cache.get(2), None);
        for row in [0, 1, 3, 4, 5, 6, 7, 8] {
            assert_eq!(cache.get(row), Some(&bytes_of(row)[..]), "row {row}");
        }
    }

    #[test]
    fn the_bytes_are_those_allowed() {
        for cache_bytes in [0, 1000, 10_000, 1 << 20, 1 << 40] {
            let shape = (100_000, 320);
            let taken = RowCache::bytes_of(shape, cache_bytes);
            let least = (N_WAYS * (320 + ENTRY_BYTES)) as u64;
            assert!(taken <= cache_bytes.max(least) && taken <= 100_000 * 336);
        }
    }
}
