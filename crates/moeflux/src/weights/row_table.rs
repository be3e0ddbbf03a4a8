//! Tables whose rows stay on a drive, and where each row is stored.
//!
//! In a checkpoint, rows follow one another in tensors. In a pack, they are in blocks of whole
//! pages, each of which ends with a checksum: a row is then read with one read of one block, and
//! checked, without sums in memory. The sum depends on the index of its block, so that a block read
//! from elsewhere is not mistaken for it.
//!
//! **Invariant:** each row lies inside its file as it was when the header was read. This module
//! knows places, and the form of blocks; it reads nothing.

use std::ops::Range;

use moeflux_io::BLOCK_BYTES;
use moeflux_kernels::{
    FloatKind, Fp8, Fp8Spread, Matrix, MatrixKind, MatrixLayout, ScaleKind, decode_row,
};
use twox_hash::XxHash3_64;

use crate::format::DType;
use crate::ids::VectorId;
use crate::weights::files::{FiniteFormat, push_floats};
use crate::weights::tensors::{FileExtent, dtype_of};

/// Bytes of the checksum at the end of a block.
const SUM_BYTES: usize = size_of::<u64>();

/// A table whose rows are read one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowTable {
    /// Canonical name without `.weight`.
    pub name: String,
    /// Number of rows.
    pub n_rows: usize,
    /// Values of a row.
    pub n_cols: usize,
    /// How the values are stored.
    pub values: TableValues,
    /// Where the rows are.
    pub storage: RowStorage,
}

/// How the values of a table are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableValues {
    /// Floats.
    Floats(FloatKind),
    /// FP8 e4m3, times the only value of this vector.
    Fp8 {
        /// The factor of all values.
        scale: VectorId,
    },
}

/// Where the rows of a table are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowStorage {
    /// One after the other in tensors, each of which continues the one before.
    Tensors(Vec<RowRun>),
    /// In the blocks of a packed file.
    Blocks(RowBlocks),
}

/// A tensor that holds some rows of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowRun {
    /// First row.
    pub first_row: u64,
    /// All of its rows.
    pub extent: FileExtent,
}

/// The blocks of a packed table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowBlocks {
    /// Index of the file.
    pub file_idx: usize,
    /// Offset of the first block: a multiple of [`crate::format::RECORD_ALIGN`].
    pub first_bytes: u64,
    /// Size and contents of each.
    pub shape: BlockShape,
}

/// The shape of the blocks of packed rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockShape {
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Bytes of a block: whole pages.
    pub block_bytes: usize,
    /// Rows of a block; the last block may have fewer.
    pub n_rows: usize,
}

/// The bytes that are read for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPlace {
    /// The row itself, or its block.
    pub extent: FileExtent,
    /// Offset of the row in it.
    pub row_at: usize,
    /// Index of the block, if it is one.
    pub block: Option<u64>,
}

impl TableValues {
    /// Returns the bytes of a value.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Floats(kind) => kind.bytes(),
            Self::Fp8 { .. } => 1,
        }
    }

    /// Returns the type of the tensors that hold the values.
    #[must_use]
    pub const fn dtype(self) -> DType {
        match self {
            Self::Floats(kind) => dtype_of(kind),
            Self::Fp8 { .. } => DType::F8E4M3,
        }
    }

    /// Returns the vector with the factor of all values, if there is one.
    #[must_use]
    pub const fn scale(self) -> Option<VectorId> {
        match self {
            Self::Floats(_) => None,
            Self::Fp8 { scale } => Some(scale),
        }
    }

    /// Returns the format of rows, whose values must be finite.
    #[must_use]
    pub const fn finite(self) -> FiniteFormat {
        match self {
            Self::Floats(kind) => FiniteFormat::Floats(kind),
            Self::Fp8 { .. } => FiniteFormat::E4m3,
        }
    }

    /// Appends the values of a row as f32. `scale` is the factor of all values, 1 for floats.
    ///
    /// # Panics
    ///
    /// If the row is longer than any matrix's.
    pub fn push(self, row: &[u8], scale: f32, values: &mut Vec<f32>) {
        match self {
            Self::Floats(kind) => push_floats(row, kind, values),
            Self::Fp8 { .. } => {
                let scale_kind = ScaleKind::Float(FloatKind::F32);
                let kind = MatrixKind::Fp8(Fp8 { spread: Fp8Spread::Matrix, scale: scale_kind });
                let layout = MatrixLayout::new(kind, 1, row.len()).expect("a row of FP8");
                let scale = scale.to_le_bytes();
                let first = values.len();
                values.resize(first + row.len(), 0.0);
                decode_row(&Matrix::new(layout, row, &scale, &[]), 0, &mut values[first..]);
            }
        }
    }
}

impl RowTable {
    /// Returns the stored bytes of a row.
    #[must_use]
    pub const fn row_bytes(&self) -> usize {
        self.n_cols * self.values.bytes()
    }

    /// Returns the bytes of all rows.
    #[must_use]
    pub const fn total_bytes(&self) -> u64 {
        self.row_bytes() as u64 * self.n_rows as u64
    }

    /// Returns the files with rows, each once.
    #[must_use]
    pub fn files(&self) -> Vec<usize> {
        let mut files = match &self.storage {
            RowStorage::Tensors(runs) => runs.iter().map(|run| run.extent.file_idx).collect(),
            RowStorage::Blocks(blocks) => vec![blocks.file_idx],
        };
        files.sort_unstable();
        files.dedup();
        files
    }

    /// Returns the runs of bytes of these rows in the tensors of a checkpoint, in order.
    ///
    /// # Panics
    ///
    /// If the table is packed, or has no such rows.
    #[must_use]
    pub fn extents(&self, rows: &Range<u64>) -> Vec<FileExtent> {
        let RowStorage::Tensors(runs) = &self.storage else {
            unreachable!("`{}` is packed", self.name)
        };
        let row_bytes = self.row_bytes() as u64;
        let mut extents = Vec::new();
        let mut row = rows.start;
        while row < rows.end {
            let run = &runs[runs.partition_point(|run| run.first_row <= row) - 1];
            let run_end = run.first_row + run.extent.len_bytes / row_bytes;
            let end = rows.end.min(run_end);
            let offset_bytes = run.extent.offset_bytes + (row - run.first_row) * row_bytes;
            let len_bytes = (end - row) * row_bytes;
            extents.push(FileExtent { offset_bytes, len_bytes, ..run.extent });
            row = end;
        }
        extents
    }

    /// Returns where a row is stored.
    ///
    /// # Panics
    ///
    /// If the table has no such row.
    #[must_use]
    pub fn place(&self, row: u64) -> RowPlace {
        assert!(row < self.n_rows as u64, "`{}` has no row {row}", self.name);
        let row_bytes = self.row_bytes() as u64;
        match &self.storage {
            RowStorage::Tensors(runs) => {
                let after = runs.partition_point(|run| run.first_row <= row);
                let RowRun { first_row, extent } = &runs[after - 1];
                let offset_bytes = extent.offset_bytes + (row - first_row) * row_bytes;
                let extent = FileExtent { offset_bytes, len_bytes: row_bytes, ..*extent };
                RowPlace { extent, row_at: 0, block: None }
            }
            RowStorage::Blocks(RowBlocks { file_idx, first_bytes, shape }) => {
                let block = row / shape.n_rows as u64;
                let len_bytes = shape.block_bytes as u64;
                let offset_bytes = first_bytes + block * len_bytes;
                let extent = FileExtent { file_idx: *file_idx, offset_bytes, len_bytes };
                let in_block =
                    usize::try_from(row % shape.n_rows as u64).expect("a row of a block");
                RowPlace { extent, row_at: in_block * shape.row_bytes, block: Some(block) }
            }
        }
    }
}

impl BlockShape {
    /// Returns the shape of the smallest blocks with whole rows and a checksum.
    #[must_use]
    pub const fn new(row_bytes: usize) -> Self {
        let block_bytes = (row_bytes + SUM_BYTES).next_multiple_of(BLOCK_BYTES);
        Self { row_bytes, block_bytes, n_rows: (block_bytes - SUM_BYTES) / row_bytes }
    }

    /// Returns the number of blocks for `n_rows` rows.
    #[must_use]
    pub const fn n_blocks(&self, n_rows: usize) -> usize {
        n_rows.div_ceil(self.n_rows)
    }

    /// Returns the rows of some blocks of a table with `n_rows` rows.
    #[must_use]
    pub fn rows_of(&self, blocks: &Range<u64>, n_rows: usize) -> Range<u64> {
        let first = |block: u64| (block * self.n_rows as u64).min(n_rows as u64);
        first(blocks.start)..first(blocks.end)
    }

    /// Writes the checksum of a block at its end.
    pub fn seal(&self, block: u64, bytes: &mut [u8]) {
        let (values, sum) = bytes.split_at_mut(self.block_bytes - SUM_BYTES);
        sum.copy_from_slice(&XxHash3_64::oneshot_with_seed(block, values).to_le_bytes());
    }

    /// Writes rows, which follow one another in `rows`, and the checksum of block number `block`.
    ///
    /// # Panics
    ///
    /// If there are more rows than a block has.
    pub fn fill(&self, block: u64, rows: &[u8], bytes: &mut [u8]) {
        assert!(rows.len() <= self.n_rows * self.row_bytes, "rows of a block");
        bytes[..rows.len()].copy_from_slice(rows);
        self.seal(block, bytes);
    }

    /// Returns whether a block has its checksum.
    #[must_use]
    pub fn is_intact(&self, block: u64, bytes: &[u8]) -> bool {
        let (values, sum) = bytes.split_at(self.block_bytes - SUM_BYTES);
        XxHash3_64::oneshot_with_seed(block, values).to_le_bytes() == sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(n_rows: usize, n_cols: usize, storage: RowStorage) -> RowTable {
        let values = TableValues::Floats(FloatKind::Bf16);
        RowTable { name: "table".to_owned(), n_rows, n_cols, values, storage }
    }

    #[test]
    fn rows_continue_in_the_next_tensor() {
        let extent = |file_idx, offset_bytes, n_rows: u64| FileExtent {
            file_idx,
            offset_bytes,
            len_bytes: 20 * n_rows,
        };
        let runs = [(0, extent(1, 100, 3)), (3, extent(0, 7, 1)), (4, extent(1, 500, 2))];
        let runs = runs.map(|(first_row, extent)| RowRun { first_row, extent });
        let table = table(6, 10, RowStorage::Tensors(runs.to_vec()));
        let place = |row| {
            let RowPlace { extent, row_at, block } = table.place(row);
            assert_eq!((extent.len_bytes, row_at, block), (20, 0, None));
            (extent.file_idx, extent.offset_bytes)
        };
        assert_eq!([0, 2, 3, 4, 5].map(place), [(1, 100), (1, 140), (0, 7), (1, 500), (1, 520)]);
        assert_eq!((table.files(), table.total_bytes()), (vec![0, 1], 120));
        assert_eq!(table.extents(&(1..5)), [extent(1, 120, 2), extent(0, 7, 1), extent(1, 500, 1)]);
        assert_eq!(table.extents(&(2..2)), []);
    }

    #[test]
    fn a_block_has_whole_rows_and_its_own_checksum() {
        for (row_bytes, block_bytes, n_rows) in
            [(320, 4096, 12), (2, 4096, 2044), (4088, 4096, 1), (4089, 8192, 2), (8192, 12288, 1)]
        {
            let shape = BlockShape { row_bytes, block_bytes, n_rows };
            assert_eq!(BlockShape::new(row_bytes), shape);
            assert!(n_rows * row_bytes + SUM_BYTES <= block_bytes);
        }
        let shape = BlockShape::new(320);
        assert_eq!((shape.n_blocks(24), shape.n_blocks(25)), (2, 3));
        let blocks = RowBlocks { file_idx: 3, first_bytes: 1 << 14, shape };
        let table = table(25, 160, RowStorage::Blocks(blocks));
        let extent = FileExtent { file_idx: 3, offset_bytes: (1 << 14) + 4096, len_bytes: 4096 };
        let expected = RowPlace { extent, row_at: 320, block: Some(1) };
        assert_eq!(table.place(13), expected);
        let mut bytes = vec![7; 4096];
        shape.seal(1, &mut bytes);
        assert!(shape.is_intact(1, &bytes) && !shape.is_intact(2, &bytes));
        bytes[5] ^= 1;
        assert!(!shape.is_intact(1, &bytes));
    }
}
