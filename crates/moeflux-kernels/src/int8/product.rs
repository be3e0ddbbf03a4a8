//! Int8 products: the generic body behind every table.
//!
//! Sixteen rows of the matrix go by at a time. One row of activations meets the codes as they
//! leave memory; several meet a tile of them that was laid down in the first cache, row by row or,
//! where a table lays them down in strips, as those come.
//! **Invariant:** an output's groups are added in ascending order, whatever the path.

use std::ops::Range;

use crate::format::{Affine, Matrix, MatrixKind};
use crate::int8::block::{Block, RowBlock, take_apart};
use crate::int8::inputs::{IntInputs, IntScratch};
use crate::int8::rows::Row;
use crate::int8::simd::{IntSimd, PIECE};
use crate::int8::stream::meet_one;
use crate::int8::strips::meet_strips;
use crate::lanes::{LANES, Lanes};
use crate::upcoming::Upcoming;

/// Columns of a tile: whole groups of every kind; sixteen rows of it fit the first cache.
pub(super) const TILE_COLS: usize = 512;

/// Groups of a tile at most.
const TILE_GROUPS: usize = TILE_COLS / PIECE;

/// Quads of a tile.
const TILE_QUADS: usize = TILE_COLS / 4;

/// `matrix . x` for some rows of both, in int8 arithmetic.
#[derive(Clone, Debug)]
pub struct IntProduct<'a> {
    /// The weights: affine.
    pub matrix: Matrix<'a>,
    /// Rows of the matrix: outputs.
    pub rows: Range<usize>,
    /// Inputs, in the order of the outputs.
    pub x: IntInputs<'a>,
}

impl IntProduct<'_> {
    /// Values of the output: whole blocks.
    #[must_use]
    pub fn n_outputs(&self) -> usize {
        self.rows.len().next_multiple_of(LANES) * self.x.picks.len()
    }

    pub(crate) fn check(&self, out: &[f32]) {
        let layout = self.matrix.layout();
        assert!(self.rows.start <= self.rows.end && self.rows.end <= layout.n_rows, "rows");
        assert!(self.x.rows.suits(layout.kind, layout.n_cols), "activations for {layout:?}");
        assert_eq!(out.len(), self.n_outputs(), "outputs");
    }
}

/// How codes leave their bytes, a piece of columns at a time.
pub(super) trait Unpack {
    /// Whether codes may have more than 4 bits.
    const WIDE: bool;

    /// The codes of columns `PIECE * piece_idx ..`, in the order of the activations.
    fn piece<S: IntSimd>(simd: S, rows: &RowBlock<'_>, piece_idx: usize) -> [S::Quads; 8];
}

/// 4 bits: two codes in a byte.
pub(super) struct Nibbles;

/// 8 bits.
struct Bytes;

/// Any other width: one stream of bits. Taken apart without vectors, whatever the width, so that
/// the rest is compiled once.
struct Stream;

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

impl Unpack for Stream {
    const WIDE: bool = true;

    #[inline(always)]
    fn piece<S: IntSimd>(simd: S, rows: &RowBlock<'_>, piece_idx: usize) -> [S::Quads; 8] {
        let mut bytes = [[0; PIECE]; LANES];
        let piece_bytes = rows.bits * PIECE / 8;
        for (r, bytes) in bytes.iter_mut().enumerate() {
            take_apart(rows.bits, &rows.row(r)[piece_idx * piece_bytes..][..piece_bytes], bytes);
        }
        let bytes = RowBlock::new(bytes.as_flattened(), (8, PIECE), 0);
        Bytes::piece(simd, &bytes, 0)
    }
}

/// `ints + sum of codes * x` over a piece.
#[inline(always)]
fn dot<U: Unpack, S: IntSimd>(
    simd: S,
    codes: &[S::Quads; 8],
    x: &[i8; PIECE],
    ints: S::Ints,
) -> S::Ints {
    if U::WIDE { simd.dot::<true>(codes, x, ints) } else { simd.dot::<false>(codes, x, ints) }
}

/// The low and the high half of each byte.
#[inline(always)]
fn halves<S: IntSimd>(simd: S, quads: S::Quads) -> [S::Quads; 2] {
    [simd.low_halves(quads), simd.high_halves(quads)]
}

/// What a block of sixteen rows needs beside its codes: a tile's scales and biases.
#[repr(align(64))]
pub(super) struct Scales {
    pub(super) values: [[Lanes; 2]; TILE_GROUPS],
}

impl Scales {
    pub(super) const ZEROS: Self = Self { values: [[[0.0; LANES]; 2]; TILE_GROUPS] };
}

/// Codes of a tile, four columns of sixteen rows at a time.
#[repr(align(64))]
pub(super) struct Tile {
    pub(super) quads: [[u8; 4 * LANES]; TILE_QUADS],
}

impl Tile {
    pub(super) const ZEROS: Self = Self { quads: [[0; 4 * LANES]; TILE_QUADS] };
}

/// `out[block of rows][pick][row of the block]`.
#[inline(always)]
pub(crate) fn matmul<S: IntSimd>(
    simd: S,
    product: &IntProduct<'_>,
    scratch: &mut IntScratch,
    out: &mut [f32],
) {
    let MatrixKind::Affine(affine) = product.matrix.layout().kind else { return };
    match affine.bits {
        4 => all_blocks::<Nibbles, S>(simd, (product, affine), scratch, out),
        8 => all_blocks::<Bytes, S>(simd, (product, affine), scratch, out),
        _ => all_blocks::<Stream, S>(simd, (product, affine), scratch, out),
    }
}

#[inline(always)]
fn all_blocks<U: Unpack, S: IntSimd>(
    simd: S,
    (product, affine): (&IntProduct<'_>, Affine),
    scratch: &mut IntScratch,
    out: &mut [f32],
) {
    let n_picks = product.x.picks.len();
    if n_picks == 0 {
        return;
    }
    let matrix_rows = product.matrix.layout().n_rows.max(LANES);
    let matrix = scratch.padded.at_least_sixteen_rows(&product.matrix);
    if S::TAKES_STRIPS && n_picks > 1 {
        return meet_strips::<U, S>(simd, product, (matrix, affine), out);
    }
    if n_picks == 1 {
        let scratch = (scratch.fetching, &mut scratch.values);
        return meet_one::<U, S>(simd, product, (matrix, affine), scratch, out);
    }
    let mut scales = Scales::ZEROS;
    let mut tile = Tile::ZEROS;
    let first_rows = product.rows.clone().step_by(LANES);
    for (row_idx, out) in first_rows.zip(out.chunks_exact_mut(LANES * n_picks)) {
        // Near the end of the matrix the block begins earlier and its first lanes are dropped.
        let first_row = row_idx.min(matrix_rows - LANES);
        let block = Block::new((matrix, affine), first_row);
        let (out, _) = out.as_chunks_mut::<LANES>();
        block.meet::<U, S>(simd, product, (&mut scales, &mut tile), out);
        if first_row != row_idx {
            out.iter_mut().for_each(|lanes| lanes.rotate_left(row_idx - first_row));
        }
    }
}

impl Block<'_> {
    /// Several rows of activations meet the codes, laid down in tiles.
    #[inline(always)]
    fn meet<U: Unpack, S: IntSimd>(
        &self,
        simd: S,
        product: &IntProduct<'_>,
        (scales, tile): (&mut Scales, &mut Tile),
        out: &mut [Lanes],
    ) {
        let codes = self.codes();
        let mut upcoming = self.behind(1, out.len());
        out.fill([0.0; LANES]);
        for first_col in (0..self.matrix.layout().n_cols).step_by(TILE_COLS) {
            let part = self.part(simd, first_col, &mut scales.values);
            part.unpack::<U, S>(simd, &codes, tile);
            let mut picks = Picks { inputs: &product.x, n_done: 0, out: &mut *out };
            part.meet_all::<U, 8, S>(simd, tile, &mut picks, &mut upcoming);
            part.meet_all::<U, 4, S>(simd, tile, &mut picks, &mut upcoming);
            part.meet_all::<U, 2, S>(simd, tile, &mut picks, &mut upcoming);
            part.meet_all::<U, 1, S>(simd, tile, &mut picks, &mut upcoming);
        }
    }

    /// A tile's columns, with their scales and biases brought into the order of lanes.
    #[inline(always)]
    pub(super) fn part<'a, S: IntSimd>(
        &self,
        simd: S,
        first_col: usize,
        scales: &'a mut [[Lanes; 2]],
    ) -> Part<'a> {
        let cols = self.cols(first_col);
        let groups = self.groups(&cols);
        self.lay_scales(simd, groups.clone(), scales);
        Part { cols, groups, scales, pieces_per_group: usize::from(self.affine.group) / PIECE }
    }

    /// As many codes as `n_blocks` from this one on have, and which follow them in memory: to be
    /// asked for group by group, while each meets rows of activations in eights and a rest.
    #[inline(always)]
    pub(super) fn behind(&self, n_blocks: usize, n_rows: usize) -> Upcoming {
        let layout = self.matrix.layout();
        let n_bytes = n_blocks * LANES * layout.row_bytes();
        let next = self.codes().row(0).as_ptr().wrapping_add(n_bytes);
        let n_passes = n_rows / 8 + (n_rows % 8).count_ones() as usize;
        Upcoming::stretch(
            next,
            n_bytes,
            n_passes * (layout.n_cols / usize::from(self.affine.group)),
        )
    }

    /// The columns of a tile.
    #[inline(always)]
    pub(super) fn cols(&self, first_col: usize) -> Range<usize> {
        first_col..self.matrix.layout().n_cols.min(first_col + TILE_COLS)
    }

    /// The groups of some columns.
    #[inline(always)]
    pub(super) fn groups(&self, cols: &Range<usize>) -> Range<usize> {
        self.affine.n_groups(cols.start)..self.affine.n_groups(cols.end)
    }
}

/// Some columns of a block of rows.
pub(super) struct Part<'a> {
    pub(super) cols: Range<usize>,
    pub(super) groups: Range<usize>,
    pub(super) scales: &'a [[Lanes; 2]],
    pub(super) pieces_per_group: usize,
}

impl Part<'_> {
    /// Columns of a group.
    #[inline(always)]
    pub(super) fn group(&self) -> usize {
        self.pieces_per_group * PIECE
    }

    /// Lays the codes of these columns down.
    #[inline(always)]
    pub(super) fn unpack<U: Unpack, S: IntSimd>(
        &self,
        simd: S,
        rows: &RowBlock<'_>,
        tile: &mut Tile,
    ) {
        let (targets, _) = tile.quads.as_chunks_mut::<8>();
        let pieces = self.cols.start / PIECE..self.cols.end / PIECE;
        for (piece_idx, targets) in pieces.zip(targets) {
            let codes = U::piece(simd, rows, piece_idx);
            simd.lay(&codes, targets);
        }
    }

    /// As many picks as there are in steps of `PICKS` meet the tile.
    #[inline(always)]
    fn meet_all<U: Unpack, const PICKS: usize, S: IntSimd>(
        &self,
        simd: S,
        tile: &Tile,
        picks: &mut Picks<'_>,
        upcoming: &mut Upcoming,
    ) {
        while let Some((now, _)) = picks.inputs.picks[picks.n_done..].split_first_chunk::<PICKS>() {
            let mut x = [Row::default(); PICKS];
            for (x, &pick) in x.iter_mut().zip(now) {
                let row = picks.inputs.rows.row(pick);
                let values = &row.values[self.cols.clone()];
                let groups = self.groups.clone();
                *x = Row { values, steps: &row.steps[groups.clone()], sums: &row.sums[groups] };
            }
            let out = &mut picks.out[picks.n_done..][..PICKS];
            self.meet::<U, PICKS, S>(simd, tile, &x, out, upcoming);
            picks.n_done += PICKS;
        }
    }

    #[inline(always)]
    fn meet<U: Unpack, const PICKS: usize, S: IntSimd>(
        &self,
        simd: S,
        tile: &Tile,
        x: &[Row<'_>; PICKS],
        out: &mut [Lanes],
        upcoming: &mut Upcoming,
    ) {
        let (quads, _) = tile.quads.as_chunks::<8>();
        let mut acc = [simd.splat(0.0); PICKS];
        for t in 0..PICKS {
            acc[t] = simd.load(&out[t]);
        }
        let group = self.group();
        for g in 0..self.groups.len() {
            upcoming.step();
            let laid = &quads[g * self.pieces_per_group..][..self.pieces_per_group];
            let mut values: [&[i8]; PICKS] = [&[]; PICKS];
            for t in 0..PICKS {
                values[t] = &x[t].values[g * group..][..group];
            }
            let ints = if U::WIDE {
                simd.dot_laid::<true, PICKS>(laid, &values)
            } else {
                simd.dot_laid::<false, PICKS>(laid, &values)
            };
            let [scales, biases] = &self.scales[g];
            let (scales, biases) = (simd.load(scales), simd.load(biases));
            for t in 0..PICKS {
                let factor = simd.mul(scales, simd.splat(x[t].steps[g]));
                acc[t] = simd.fma(factor, simd.floats(ints[t]), acc[t]);
                acc[t] = simd.fma(biases, simd.splat(x[t].sums[g]), acc[t]);
            }
        }
        for t in 0..PICKS {
            simd.store(acc[t], &mut out[t]);
        }
    }
}

/// Picked rows, and how many of them have met a tile.
struct Picks<'a> {
    inputs: &'a IntInputs<'a>,
    n_done: usize,
    out: &'a mut [Lanes],
}

/// Adds a group's term to each row's output: the activations' step and sum, and the rows' scales
/// and biases.
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

/// The sum of codes times `x` over a group from column `col`, for each row.
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
