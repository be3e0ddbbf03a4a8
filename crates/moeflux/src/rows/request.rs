//! The rows that a batch needs from a table: asked for, and as they arrive.
//!
//! **Invariant:** each row is wanted once, however often it was asked for. This module knows no
//! files and no cache.

/// Memory is freed if it is this many times as large as needed, and large.
const SPARE_SHARE: usize = 4;
const SPARE_BYTES_MIN: usize = 1 << 20;

/// The rows of one batch.
#[derive(Debug, Default)]
pub(super) struct RowRequest {
    table_idx: usize,
    /// In the order of the batch.
    asked: Vec<u64>,
    /// Ascending, each once.
    wanted: Vec<u64>,
    /// By wanted row.
    is_here: Vec<bool>,
    /// `[n_wanted, row_bytes]`.
    bytes: Vec<u8>,
    row_bytes: usize,
    n_missing: usize,
}

impl RowRequest {
    /// Returns whether this request is for these rows.
    pub(super) fn is_for(&self, table_idx: usize, rows: &[u64]) -> bool {
        self.table_idx == table_idx && self.asked == rows
    }

    /// Begins a request, in place of the one before.
    pub(super) fn begin(&mut self, (table_idx, row_bytes): (usize, usize), rows: &[u64]) {
        self.clear();
        (self.table_idx, self.row_bytes) = (table_idx, row_bytes);
        self.asked.extend_from_slice(rows);
        self.wanted.extend_from_slice(rows);
        self.wanted.sort_unstable();
        self.wanted.dedup();
        self.n_missing = self.wanted.len();
        self.is_here.resize(self.wanted.len(), false);
        let n_bytes = self.wanted.len() * row_bytes;
        if self.bytes.capacity() / SPARE_SHARE > n_bytes.max(SPARE_BYTES_MIN) {
            // A long step is over: its memory was lent.
            self.bytes = Vec::new();
        }
        // What was there is overwritten before it is read.
        self.bytes.resize(n_bytes, 0);
    }

    /// Forgets the request.
    pub(super) fn clear(&mut self) {
        self.asked.clear();
        self.wanted.clear();
        self.is_here.clear();
        self.n_missing = 0;
    }

    /// Returns the number of wanted rows that have not arrived.
    pub(super) fn n_missing(&self) -> usize {
        self.n_missing
    }

    /// Returns the table of the rows.
    pub(super) fn table_idx(&self) -> usize {
        self.table_idx
    }

    /// Yields the wanted rows, ascending.
    pub(super) fn wanted(&self) -> impl Iterator<Item = u64> {
        self.wanted.iter().copied()
    }

    /// Returns whether a row is wanted and has not arrived.
    pub(super) fn misses(&self, table_idx: usize, row: u64) -> bool {
        self.missing_idx(table_idx, row).is_some()
    }

    /// Accepts a row, if it is wanted.
    pub(super) fn accept(&mut self, table_idx: usize, row: u64, bytes: &[u8]) {
        if let Some(idx) = self.missing_idx(table_idx, row) {
            self.bytes[idx * self.row_bytes..][..self.row_bytes].copy_from_slice(bytes);
            self.is_here[idx] = true;
            self.n_missing -= 1;
        }
    }

    /// Yields the bytes of the rows in the order of the batch.
    ///
    /// # Panics
    ///
    /// If rows are missing.
    pub(super) fn rows(&self) -> impl Iterator<Item = &[u8]> {
        assert_eq!(self.n_missing, 0, "all rows have arrived");
        self.asked.iter().map(|row| {
            let idx = self.wanted.binary_search(row).expect("what was asked for is wanted");
            &self.bytes[idx * self.row_bytes..][..self.row_bytes]
        })
    }

    fn missing_idx(&self, table_idx: usize, row: u64) -> Option<usize> {
        let idx = self.wanted.binary_search(&row).ok()?;
        (self.table_idx == table_idx && !self.is_here[idx]).then_some(idx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_in_the_order_in_which_they_were_asked_for() {
        let mut request = RowRequest::default();
        request.begin((1, 2), &[9, 4, 9, 7]);
        assert_eq!(request.wanted().collect::<Vec<_>>(), [4, 7, 9]);
        assert!(request.misses(1, 9) && !request.misses(0, 9) && !request.misses(1, 5));
        for (row, bytes) in [(7, [70, 71]), (9, [90, 91]), (8, [1, 1]), (9, [0, 0]), (4, [40, 41])]
        {
            request.accept(1, row, &bytes);
        }
        assert_eq!(request.n_missing(), 0);
        assert_eq!(request.rows().collect::<Vec<_>>().concat(), [90, 91, 40, 41, 90, 91, 70, 71]);
        assert!(request.is_for(1, &[9, 4, 9, 7]) && !request.is_for(1, &[9, 4, 7]));
        request.begin((0, 1), &[9]);
        assert_eq!((request.misses(0, 9), request.n_missing(), request.table_idx()), (true, 1, 0));
    }
}
