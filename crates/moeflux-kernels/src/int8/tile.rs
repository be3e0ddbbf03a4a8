//! Tiles: some columns of sixteen rows of a matrix, with their codes unpacked, and their scales and
//! biases.
//!
//! **Invariant:** a tile is whole groups. Activations are seen only one group at a time.

use std::marker::PhantomData;
use std::ops::Range;

use crate::int8::block::{AffineBlock, RowBlock, expand_codes};
use crate::int8::simd::{IntSimd, PIECE};
use crate::lanes::{LANES, Lanes};
use crate::matrix::format::{Affine, Matrix, MatrixLayout};
use crate::prefetch::Prefetcher;

/// Columns of a tile: whole groups of every kind; sixteen rows of it fit the first-level cache.
pub(crate) const TILE_COLS: usize = 512;

/// Upper bound on the groups of a tile.
const TILE_GROUPS: usize = TILE_COLS / (PIECE / 2);

/// The same for an affine matrix.
pub(super) const AFFINE_TILE_GROUPS: usize = TILE_COLS / PIECE;

/// Quads of a tile.
const TILE_QUADS: usize = TILE_COLS / 4;

/// Sixteen rows of a matrix that can be unpacked into tiles.
pub(crate) trait TileSource: Copy {
    /// Whether codes may have more than 4 bits.
    const WIDE: bool;

    /// Whether a group's weights have a bias; otherwise codes have an offset.
    const BIASED: bool;

    /// Scratch memory for unpacking.
    type UnpackScratch;

    /// Unused scratch memory.
    const SCRATCH: Self::UnpackScratch;

    /// Returns the same from another row on.
    fn at_row(self, first_row: usize) -> Self;

    /// Returns the layout of the matrix.
    fn layout(&self) -> MatrixLayout;

    /// Returns the columns of a group.
    fn group(&self) -> usize;

    /// Returns the correction to add to a code to get its value.
    fn correction(&self) -> f32;

    /// Returns the address of the first code of these rows.
    fn address(&self) -> *const u8;

    /// Returns the distance between rows in memory, in rows.
    #[inline(always)]
    fn row_step(&self) -> usize {
        1
    }

    /// Unpacks some columns, from the beginning of a tile.
    fn unpack<S: IntSimd>(
        &self,
        simd: S,
        cols: Range<usize>,
        scratch: &mut Self::UnpackScratch,
        target: (&mut CodeTile, &mut TileScales),
    );

    /// Returns the columns of a tile.
    #[inline(always)]
    fn cols(&self, first_col: usize) -> Range<usize> {
        first_col..self.layout().n_cols.min(first_col + TILE_COLS)
    }

    /// Returns a prefetch of the codes that follow `n_blocks` blocks, of the same size, spread over
    /// groups and over passes of eight rows of activations and a rest.
    #[inline(always)]
    fn prefetch_after(&self, n_blocks: usize, n_rows: usize) -> Prefetcher {
        let n_passes = n_rows / 8 + (n_rows % 8).count_ones() as usize;
        self.prefetch_after_in(n_blocks, n_passes * (self.layout().n_cols / self.group()))
    }

    /// The same, spread over `n_steps` steps.
    #[inline(always)]
    fn prefetch_after_in(&self, n_blocks: usize, n_steps: usize) -> Prefetcher {
        let (row_bytes, row_step) = (self.layout().row_bytes(), self.row_step());
        let n_rows = n_blocks * LANES;
        let next = self.address().wrapping_add(n_rows * row_step * row_bytes);
        if row_step == 1 {
            return Prefetcher::range(next, n_rows * row_bytes, n_steps);
        }
        Prefetcher::ranges(next, (n_rows, row_bytes), row_step * row_bytes, n_steps)
    }
}

/// Sixteen rows of an affine matrix.
#[derive(Clone, Copy)]
pub(super) struct AffineRows<'a, U> {
    block: AffineBlock<'a>,
    unpack: PhantomData<U>,
}

impl<'a, U> AffineRows<'a, U> {
    pub(super) fn new(matrix: (Matrix<'a>, Affine)) -> Self {
        Self { block: AffineBlock::new(matrix, 0), unpack: PhantomData }
    }
}

impl<U: Unpack> TileSource for AffineRows<'_, U> {
    const WIDE: bool = U::WIDE;
    const BIASED: bool = true;

    type UnpackScratch = ();
    const SCRATCH: () = ();

    #[inline(always)]
    fn at_row(mut self, first_row: usize) -> Self {
        self.block.first_row = first_row;
        self
    }

    #[inline(always)]
    fn layout(&self) -> MatrixLayout {
        self.block.matrix.layout()
    }

    #[inline(always)]
    fn group(&self) -> usize {
        usize::from(self.block.affine.group)
    }

    #[inline(always)]
    fn correction(&self) -> f32 {
        0.0
    }

    #[inline(always)]
    fn address(&self) -> *const u8 {
        self.block.codes().row(0).as_ptr()
    }

    #[inline(always)]
    fn unpack<S: IntSimd>(
        &self,
        simd: S,
        cols: Range<usize>,
        (): &mut (),
        (tile, scales): (&mut CodeTile, &mut TileScales),
    ) {
        let codes = self.block.codes();
        self.block.load_scales(simd, self.block.groups(&cols), &mut scales.values);
        let (targets, _) = tile.quads.as_chunks_mut::<4>();
        let pieces = cols.start / PIECE..cols.end / PIECE;
        for (piece_idx, targets) in pieces.zip(targets.as_chunks_mut::<2>().0) {
            let [a, b, c, d, e, f, g, h] = U::piece(simd, &codes, piece_idx);
            simd.store_codes(&[a, b, c, d], &mut targets[0]);
            simd.store_codes(&[e, f, g, h], &mut targets[1]);
        }
    }
}

/// Method of unpacking codes, a piece of columns at a time.
pub(super) trait Unpack: Copy {
    /// Whether codes may have more than 4 bits.
    const WIDE: bool;

    /// Returns the codes of columns `PIECE * piece_idx ..`, in the order of the activations.
    fn piece<S: IntSimd>(simd: S, rows: &RowBlock<'_>, piece_idx: usize) -> [S::Quads; 8];
}

/// 4 bits: two codes in a byte.
#[derive(Clone, Copy)]
pub(super) struct Nibbles;

/// 8 bits.
#[derive(Clone, Copy)]
pub(super) struct Bytes;

/// Any other width: one bit stream. Unpacked without vectors for every width, so that the rest is
/// compiled once.
#[derive(Clone, Copy)]
pub(super) struct BitStream;

impl Unpack for Nibbles {
    const WIDE: bool = false;

    #[inline(always)]
    fn piece<S: IntSimd>(simd: S, rows: &RowBlock<'_>, piece_idx: usize) -> [S::Quads; 8] {
        let [a, b, c, d] = simd.quads(&rows.pieces(PIECE / 2 * piece_idx));
        let (a, b, c, d) = (halves(simd, a), halves(simd, b), halves(simd, c), halves(simd, d));
        [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]]
    }
}

impl Unpack for Bytes {
    const WIDE: bool = true;

    #[inline(always)]
    fn piece<S: IntSimd>(simd: S, rows: &RowBlock<'_>, piece_idx: usize) -> [S::Quads; 8] {
        let [a, b, c, d] = simd.quads(&rows.pieces(PIECE * piece_idx));
        let [e, f, g, h] = simd.quads(&rows.pieces(PIECE * piece_idx + PIECE / 2));
        [a, b, c, d, e, f, g, h]
    }
}

impl Unpack for BitStream {
    const WIDE: bool = true;

    #[inline(always)]
    fn piece<S: IntSimd>(simd: S, rows: &RowBlock<'_>, piece_idx: usize) -> [S::Quads; 8] {
        let mut bytes = [[0; PIECE]; LANES];
        let piece_bytes = rows.bits * PIECE / 8;
        for (r, bytes) in bytes.iter_mut().enumerate() {
            expand_codes(rows.bits, &rows.row(r)[piece_idx * piece_bytes..][..piece_bytes], bytes);
        }
        let bytes = RowBlock::new(bytes.as_flattened(), (8, PIECE), 0);
        Bytes::piece(simd, &bytes, 0)
    }
}

/// Returns `ints + sum of codes * x` over a piece.
#[inline(always)]
fn dot<U: Unpack, S: IntSimd>(
    simd: S,
    codes: &[S::Quads; 8],
    x: &[i8; PIECE],
    ints: S::Ints,
) -> S::Ints {
    if U::WIDE { simd.dot::<true>(codes, x, ints) } else { simd.dot::<false>(codes, x, ints) }
}

/// Returns the low and the high half of each byte.
#[inline(always)]
fn halves<S: IntSimd>(simd: S, quads: S::Quads) -> [S::Quads; 2] {
    [simd.low_halves(quads), simd.high_halves(quads)]
}

/// Scales and biases of a tile, for a block of sixteen rows.
#[repr(align(64))]
pub(crate) struct TileScales<const GROUPS: usize = TILE_GROUPS> {
    pub(crate) values: [[Lanes; 2]; GROUPS],
}

impl<const GROUPS: usize> TileScales<GROUPS> {
    pub(crate) const ZEROS: Self = Self { values: [[[0.0; LANES]; 2]; GROUPS] };
}

/// Codes of a tile, four columns of sixteen rows at a time.
#[repr(align(64))]
pub(crate) struct CodeTile {
    pub(crate) quads: [[u8; 4 * LANES]; TILE_QUADS],
}

impl CodeTile {
    pub(crate) const ZEROS: Self = Self { quads: [[0; 4 * LANES]; TILE_QUADS] };
}

impl AffineBlock<'_> {
    /// Returns a tile's columns, with their scales and biases in lane order.
    #[inline(always)]
    pub(super) fn part<'a, S: IntSimd>(
        &self,
        simd: S,
        first_col: usize,
        scales: &'a mut [[Lanes; 2]],
    ) -> BlockColumns<'a> {
        let cols = self.cols(first_col);
        let groups = self.groups(&cols);
        self.load_scales(simd, groups.clone(), scales);
        BlockColumns {
            cols,
            groups,
            scales,
            pieces_per_group: usize::from(self.affine.group) / PIECE,
        }
    }

    /// Returns the columns of a tile.
    #[inline(always)]
    pub(super) fn cols(&self, first_col: usize) -> Range<usize> {
        first_col..self.matrix.layout().n_cols.min(first_col + TILE_COLS)
    }

    /// Returns the groups of some columns.
    #[inline(always)]
    pub(super) fn groups(&self, cols: &Range<usize>) -> Range<usize> {
        self.affine.n_groups(cols.start)..self.affine.n_groups(cols.end)
    }
}

/// Some columns of a block of rows.
pub(super) struct BlockColumns<'a> {
    pub(super) cols: Range<usize>,
    pub(super) groups: Range<usize>,
    pub(super) scales: &'a [[Lanes; 2]],
    pub(super) pieces_per_group: usize,
}

impl BlockColumns<'_> {
    /// Returns the columns of a group.
    #[inline(always)]
    pub(super) fn group(&self) -> usize {
        self.pieces_per_group * PIECE
    }
}

/// Adds a group's term to each row's output, from the activations' step and sum, and the rows'
/// scales and biases.
#[inline(always)]
pub(super) fn add_group<S: IntSimd>(
    simd: S,
    (step, sum): (f32, f32),
    [scales, biases]: &[Lanes; 2],
    ints: S::Ints,
    acc: S::Vector,
) -> S::Vector {
    let factor = simd.mul(simd.load(scales), simd.splat(step));
    let acc = simd.fma(factor, simd.floats(ints), acc);
    simd.fma(simd.load(biases), simd.splat(sum), acc)
}

/// The same for any rows: the correction is exact, like the sum it is added to.
#[inline(always)]
pub(crate) fn add_terms<R: TileSource, S: IntSimd>(
    simd: S,
    (step, sum): (f32, f32),
    (scales, correction): (&[Lanes; 2], f32),
    ints: S::Ints,
    acc: S::Vector,
) -> S::Vector {
    if R::BIASED {
        return add_group(simd, (step, sum), scales, ints, acc);
    }
    let exact = simd.fma(simd.splat(sum), simd.splat(correction), simd.floats(ints));
    let factor = simd.mul(simd.load(&scales[0]), simd.splat(step));
    simd.fma(factor, exact, acc)
}

/// Returns the sum of codes times `x` over a group from column `col`, for each row.
#[inline(always)]
pub(super) fn dot_group<U: Unpack, S: IntSimd>(
    simd: S,
    rows: &RowBlock<'_>,
    x: &[i8],
    col: usize,
) -> S::Ints {
    let mut ints = simd.no_ints();
    let (pieces, _) = x.as_chunks::<PIECE>();
    for (i, x) in pieces.iter().enumerate() {
        let piece_idx = col / PIECE + i;
        let piece_bytes = PIECE * rows.bits / 8;
        rows.prefetch_next(simd, piece_idx * piece_bytes, piece_bytes);
        let codes = U::piece(simd, rows, piece_idx);
        ints = dot::<U, S>(simd, &codes, x, ints);
    }
    ints
}
