//! Unpacking of sixteen rows of blocks into tiles.

use std::ops::Range;

use super::chunk::{
    BlockChunk, BlockCodes, Half, PreparedChunk, SPAN_COLS, chunk_blocks, offset, prepare_any,
    prepared_unit,
};
use super::kinds::for_kind;
use crate::int8::block::RowBlock;
use crate::int8::simd::{IntSimd, PIECE};
use crate::int8::tile::{CodeTile, TileScales, TileSource};
use crate::lanes::LANES;
use crate::matrix::blocks::BlockKind;
use crate::matrix::format::{Matrix, MatrixLayout};

/// Columns of half a piece.
pub(super) const HALF_COLS: usize = PIECE / 2;

/// Columns of a unit.
const UNIT_COLS: usize = 4 * HALF_COLS;

/// Small blocks of a chunk.
const TAIL_BLOCKS: usize = 4;

/// Bytes of that many blocks of the largest small kind.
const TAIL_BYTES: usize = TAIL_BLOCKS * 34;

/// Unpacks some columns of blocks, beginning with a chunk: a function of the table, compiled once
/// for all code that uses tiles.
pub(crate) type UnpackBlocks =
    unsafe fn(&BlockMatrix<'_>, Range<usize>, &mut BlockScratch, (&mut CodeTile, &mut TileScales));

/// A matrix of blocks, from a row on.
#[derive(Clone, Copy)]
pub(crate) struct BlockMatrix<'a> {
    pub(crate) matrix: Matrix<'a>,
    pub(crate) kind: BlockKind,
    pub(crate) first_row: usize,
}

/// Sixteen rows of a matrix of blocks, by width of codes and presence of biases.
#[derive(Clone, Copy)]
pub(crate) struct BlockRows<'a, const WIDE: bool, const BIASED: bool> {
    rows: BlockMatrix<'a>,
    unpack: UnpackBlocks,
}

impl<'a, const WIDE: bool, const BIASED: bool> BlockRows<'a, WIDE, BIASED> {
    /// Creates the rows from row 0; `unpack` is the table's.
    pub(crate) fn new((matrix, kind): (Matrix<'a>, BlockKind), unpack: UnpackBlocks) -> Self {
        Self { rows: BlockMatrix { matrix, kind, first_row: 0 }, unpack }
    }
}

impl<const WIDE: bool, const BIASED: bool> TileSource for BlockRows<'_, WIDE, BIASED> {
    const WIDE: bool = WIDE;
    const BIASED: bool = BIASED;

    type UnpackScratch = BlockScratch;
    const SCRATCH: BlockScratch = BlockScratch::ZEROS;

    #[inline(always)]
    fn at_row(self, first_row: usize) -> Self {
        Self { rows: BlockMatrix { first_row, ..self.rows }, ..self }
    }

    #[inline(always)]
    fn layout(&self) -> MatrixLayout {
        self.rows.matrix.layout()
    }

    #[inline(always)]
    fn group(&self) -> usize {
        self.rows.kind.group_cols()
    }

    #[inline(always)]
    fn correction(&self) -> f32 {
        -f32::from(offset(self.rows.kind))
    }

    #[inline(always)]
    fn address(&self) -> *const u8 {
        self.rows.matrix.row(self.rows.first_row).as_ptr()
    }

    #[inline(always)]
    fn row_step(&self) -> usize {
        self.rows.matrix.row_step()
    }

    #[inline(always)]
    fn unpack<S: IntSimd>(
        &self,
        _: S,
        cols: Range<usize>,
        scratch: &mut BlockScratch,
        target: (&mut CodeTile, &mut TileScales),
    ) {
        // SAFETY: the function is that of a table with the features that `S` is the proof of.
        unsafe { (self.unpack)(&self.rows, cols, scratch, target) };
    }
}

/// Scratch memory for unpacking blocks.
pub(crate) struct BlockScratch {
    pub(super) prepared: PreparedChunk,
    pub(super) tail: TailBlocks,
}

impl BlockScratch {
    pub(super) const ZEROS: Self = Self { prepared: PreparedChunk::ZEROS, tail: TailBlocks::ZEROS };
}

/// The last blocks of sixteen rows, if they do not fill a chunk.
pub(super) struct TailBlocks {
    blocks: [[u8; TAIL_BYTES]; LANES],
    scales: [[u8; TAIL_BLOCKS]; LANES],
}

impl BlockMatrix<'_> {
    /// Returns the chunk from a column on; a partial one is padded with zeros.
    #[inline(always)]
    pub(super) fn chunk<'t>(
        &'t self,
        kind: BlockKind,
        col: usize,
        tail: &'t mut TailBlocks,
    ) -> BlockChunk<'t> {
        let layout = self.matrix.layout();
        let every = |bytes, row_bytes| {
            RowBlock::of_every(self.matrix.row_step(), bytes, (8, row_bytes), self.first_row)
        };
        let row_bytes = layout.row_bytes();
        let rows = every(self.matrix.codes(), row_bytes);
        // A constant for each kind: other kinds have no code for it.
        let scales = match kind.scale_bytes() {
            0 => RowBlock::new(&[], (8, 0), 0),
            _ => every(self.matrix.scales(), layout.scale_row_bytes()),
        };
        let block_idx = col / kind.block_cols();
        let at = block_idx * kind.block_bytes();
        let scales_at = block_idx * kind.scale_bytes();
        let chunk = BlockChunk { rows, at, scales, scales_at };
        // At least one block exists, or the column would be beyond the row.
        let n_blocks = chunk_blocks(kind);
        if n_blocks == 1 || at + n_blocks * kind.block_bytes() <= row_bytes {
            return chunk;
        }
        tail.fill(chunk);
        tail.chunk()
    }
}

impl TailBlocks {
    const ZEROS: Self =
        Self { blocks: [[0; TAIL_BYTES]; LANES], scales: [[0; TAIL_BLOCKS]; LANES] };

    /// Copies a partial chunk. Takes it by value: if its address escaped, it would be kept in
    /// memory, and with it everything read from it.
    #[cold]
    fn fill(&mut self, chunk: BlockChunk<'_>) {
        for (r, (blocks, scales)) in self.blocks.iter_mut().zip(&mut self.scales).enumerate() {
            fill_up(blocks, &chunk.rows.row(r)[chunk.at..]);
            fill_up(scales, &chunk.scales.row(r)[chunk.scales_at..]);
        }
    }

    #[inline(always)]
    fn chunk(&self) -> BlockChunk<'_> {
        let rows = RowBlock::new(self.blocks.as_flattened(), (8, TAIL_BYTES), 0);
        let scales = RowBlock::new(self.scales.as_flattened(), (8, TAIL_BLOCKS), 0);
        BlockChunk { rows, at: 0, scales, scales_at: 0 }
    }
}

/// Copies the bytes and pads with zeros.
fn fill_up(target: &mut [u8], bytes: &[u8]) {
    target[..bytes.len()].copy_from_slice(bytes);
    target[bytes.len()..].fill(0);
}

/// The body of a table's [`UnpackBlocks`].
#[inline(always)]
pub(crate) fn unpack_blocks<S: IntSimd>(
    simd: S,
    rows: &BlockMatrix<'_>,
    cols: Range<usize>,
    scratch: &mut BlockScratch,
    target: (&mut CodeTile, &mut TileScales),
) {
    if !S::TAKES_BLOCKS {
        return unpack_any(simd, rows, cols, scratch, target);
    }
    for_kind!(
        rows.kind,
        Q4_0 Q4_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ3_XXS IQ4_NL IQ4_XS MXFP4 MXFP4_APART,
        K => unpack_chunks::<K, S>(simd, rows, cols, scratch, target),
        else unpack_any(simd, rows, cols, scratch, target)
    );
}

#[inline(always)]
fn unpack_chunks<K: BlockCodes, S: IntSimd>(
    simd: S,
    rows: &BlockMatrix<'_>,
    cols: Range<usize>,
    BlockScratch { prepared, tail }: &mut BlockScratch,
    (tile, scales): (&mut CodeTile, &mut TileScales),
) {
    let chunk_cols = chunk_blocks(K::KIND) * K::KIND.block_cols();
    for first_col in (0..cols.len()).step_by(chunk_cols) {
        let chunk = rows.chunk(K::KIND, cols.start + first_col, tail);
        K::prepare(simd, &chunk, prepared);
        scales.copy_from(K::KIND, (first_col, cols.len()), prepared);
        for span in 0..chunk_cols / SPAN_COLS {
            let halves = tile.span(first_col + span * SPAN_COLS);
            let first = K::unit(simd, &chunk, prepared, 2 * span);
            store_unit::<K, S>(simd, 0, &first, halves);
            let second = K::unit(simd, &chunk, prepared, 2 * span + 1);
            store_unit::<K, S>(simd, 1, &second, halves);
        }
    }
}

#[inline(always)]
fn store_unit<K: BlockCodes, S: IntSimd>(
    simd: S,
    unit: usize,
    codes: &[Half<S>; 4],
    halves: &mut [[[u8; 64]; 4]; SPAN_COLS / HALF_COLS],
) {
    for j in 0..4 {
        simd.store_codes(&codes[j], &mut halves[K::place(unit, j)]);
    }
}

/// Unpacks any kind without vectors.
#[inline(always)]
fn unpack_any<S: IntSimd>(
    simd: S,
    rows: &BlockMatrix<'_>,
    cols: Range<usize>,
    BlockScratch { prepared, tail }: &mut BlockScratch,
    (tile, scales): (&mut CodeTile, &mut TileScales),
) {
    let chunk_cols = chunk_blocks(rows.kind) * rows.kind.block_cols();
    for first_col in (0..cols.len()).step_by(chunk_cols) {
        let chunk = rows.chunk(rows.kind, cols.start + first_col, tail);
        prepare_any(rows.kind, &chunk, prepared);
        scales.copy_from(rows.kind, (first_col, cols.len()), prepared);
        for unit in 0..chunk_cols / UNIT_COLS {
            let halves = tile.span(first_col + unit / 2 * SPAN_COLS);
            let codes = prepared_unit(simd, prepared, unit);
            for j in 0..4 {
                simd.store_codes(&codes[j], &mut halves[unit % 2 * 4 + j]);
            }
        }
    }
}

impl TileScales {
    /// Copies the scales of a chunk, as far as it is within the columns.
    #[inline(always)]
    fn copy_from(
        &mut self,
        kind: BlockKind,
        (col, n_cols): (usize, usize),
        prepared: &PreparedChunk,
    ) {
        let n_groups = (n_cols - col) / kind.group_cols();
        let targets = &mut self.values[col / kind.group_cols()..][..n_groups];
        targets.iter_mut().zip(&prepared.scales).for_each(|(it, scales)| *it = *scales);
    }
}

impl CodeTile {
    /// Returns the columns of a span, sixteen at a time. There is space for whole spans, even if
    /// the row ends within one.
    #[inline(always)]
    fn span(&mut self, col: usize) -> &mut [[[u8; 64]; 4]; SPAN_COLS / HALF_COLS] {
        let (halves, _) = self.quads.as_chunks_mut::<4>();
        halves[col / HALF_COLS..].first_chunk_mut().expect("a tile is whole spans")
    }
}
