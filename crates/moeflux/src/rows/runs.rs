//! From the rows to read to runs of bytes: rows in the same or neighbouring blocks are read
//! together.
//!
//! **Invariant:** each row lies in one run, and a run has at most [`RUN_BYTES_MAX`] bytes in whole
//! blocks, unless a single row needs more.

use moeflux_io::FileIdx;

use crate::weights::{RowPlace, RowTable};

/// Upper bound on the bytes of a run: rows of n-grams are far apart, so that more would rarely be
/// used, and a slot has several runs.
pub(super) const RUN_BYTES_MAX: usize = 16 << 10;

/// Rows of a table that are read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowsRun {
    pub(super) file: FileIdx,
    /// Offset of the first row, or of its block.
    pub(super) offset_bytes: u64,
    /// Bytes to the end of the last one.
    pub(super) len_bytes: usize,
    /// Number of rows.
    pub(super) n_rows: usize,
}

impl RowsRun {
    fn of(place: &RowPlace) -> Self {
        let file = u32::try_from(place.extent.file_idx).expect("files are counted in u32");
        Self {
            file: FileIdx(file),
            offset_bytes: place.extent.offset_bytes,
            len_bytes: usize::try_from(place.extent.len_bytes).expect("a row fits in memory"),
            n_rows: 1,
        }
    }

    /// Returns the whole blocks that a drive reads for it.
    pub(super) fn span_bytes(&self, block_bytes: usize) -> usize {
        let (first, end) = self.blocks(block_bytes);
        usize::try_from((end - first) * block_bytes as u64).expect("a run fits in memory")
    }

    /// Returns the first block, and the one after the last.
    fn blocks(&self, block_bytes: usize) -> (u64, u64) {
        let end = self.offset_bytes + self.len_bytes as u64;
        (self.offset_bytes / block_bytes as u64, end.div_ceil(block_bytes as u64))
    }

    /// Returns both runs as one, if `next` follows so closely that one read is better.
    fn joined(&self, next: &Self, block_bytes: usize) -> Option<Self> {
        let end = (self.offset_bytes + self.len_bytes as u64)
            .max(next.offset_bytes + next.len_bytes as u64);
        let is_near = self.file == next.file
            && self.offset_bytes <= next.offset_bytes
            && next.blocks(block_bytes).0 <= self.blocks(block_bytes).1;
        let len_bytes = usize::try_from(end.checked_sub(self.offset_bytes)?).ok()?;
        let joined = Self { len_bytes, n_rows: self.n_rows + next.n_rows, ..*self };
        (is_near && joined.span_bytes(block_bytes) <= RUN_BYTES_MAX).then_some(joined)
    }
}

/// Returns the bytes of the largest run of a table's rows.
pub(super) fn run_bytes_max(table: &RowTable, block_bytes: usize) -> usize {
    let read_bytes = usize::try_from(table.place(0).extent.len_bytes).expect("a row fits memory");
    // A row may begin at the last byte of a block.
    (read_bytes + block_bytes - 1).next_multiple_of(block_bytes).max(RUN_BYTES_MAX)
}

/// Appends the runs of `rows`, which ascend.
pub(super) fn push_runs(
    table: &RowTable,
    rows: &[u64],
    block_bytes: usize,
    runs: &mut Vec<RowsRun>,
) {
    let n_before = runs.len();
    for row in rows {
        let run = RowsRun::of(&table.place(*row));
        let last = runs[n_before..].last_mut();
        match last.and_then(|last| Some((last.joined(&run, block_bytes)?, last))) {
            Some((joined, last)) => *last = joined,
            None => runs.push(run),
        }
    }
}

#[cfg(test)]
mod tests {
    use moeflux_kernels::FloatKind;
    use moeflux_testing::random::{Rng, seeds};

    use super::*;
    use crate::weights::{FileExtent, RowRun, RowStorage, TableValues};

    fn table(n_cols: usize) -> RowTable {
        let row_bytes = 4 * n_cols as u64;
        let run = |first_row, file_idx, offset_bytes, n_rows| RowRun {
            first_row,
            extent: FileExtent { file_idx, offset_bytes, len_bytes: n_rows * row_bytes },
        };
        let runs = vec![run(0, 0, 1000, 300), run(300, 1, 8, 1), run(301, 0, 8, 10)];
        let storage = RowStorage::Tensors(runs);
        RowTable {
            name: String::new(),
            n_rows: 311,
            n_cols,
            values: TableValues::Floats(FloatKind::F32),
            storage,
        }
    }

    #[test]
    fn rows_of_neighbouring_blocks_are_read_together() {
        let mut runs = Vec::new();
        push_runs(&table(100), &[0, 1, 7, 20, 299, 300, 301, 305], 4096, &mut runs);
        let expected = [
            // Row 7 ends in block 1, and row 20 is in block 2.
            (0, 1000, 8400, 4),
            (0, 120_600, 400, 1),
            (1, 8, 400, 1),
            (0, 8, 2000, 2),
        ];
        let expected = expected.map(|(file, offset_bytes, len_bytes, n_rows)| {
            let file = FileIdx(file);
            RowsRun { file, offset_bytes, len_bytes, n_rows }
        });
        assert_eq!(runs, expected);
    }

    #[test]
    fn each_row_is_in_one_run_of_bounded_size() {
        for seed in seeds(200) {
            let mut rng = Rng::new(seed);
            let table = table(1 + rng.below(3000));
            let block_bytes = [1, 512, 4096][rng.below(3)];
            let mut rows: Vec<u64> = (0..rng.below(100)).map(|_| rng.below(311) as u64).collect();
            rows.sort_unstable();
            rows.dedup();
            let mut runs = Vec::new();
            push_runs(&table, &rows, block_bytes, &mut runs);
            let mut rest = rows.iter();
            for run in &runs {
                assert!(run.span_bytes(block_bytes) <= run_bytes_max(&table, block_bytes));
                for row in rest.by_ref().take(run.n_rows) {
                    let extent = table.place(*row).extent;
                    let end = run.offset_bytes + run.len_bytes as u64;
                    assert_eq!(run.file.0 as usize, extent.file_idx);
                    assert!(run.offset_bytes <= extent.offset_bytes);
                    assert!(extent.offset_bytes + extent.len_bytes <= end, "seed {seed}");
                }
            }
            assert_eq!(rest.next(), None);
        }
    }
}
