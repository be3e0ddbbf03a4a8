//! Int8 products: the generic body behind every table.
//!
//! Sixteen rows of the matrix go by at a time. One row of activations meets the codes as they
//! leave memory; several meet a tile of them that was laid down in the first cache.
//! **Invariant:** an output's groups are added in ascending order, whatever the path.

use std::ops::Range;

use crate::decode::{biases, scales};
use crate::format::{Affine, FloatKind, Matrix, MatrixKind};
use crate::int8::rows::IntRows;
use crate::int8::simd::{HalfKind, IntSimd, PIECE, Pieces};
use crate::lanes::{LANES, Lanes};

/// Rows of a matrix that are computed together: outputs stand in blocks of so many.
pub const ROWS_PER_BLOCK: usize = LANES;

/// Columns of a tile: whole groups of every kind; sixteen rows of it fit the first cache.
const TILE_COLS: usize = 512;

/// Groups of a tile at most.
const TILE_GROUPS: usize = TILE_COLS / PIECE;

/// Quads of a tile.
const TILE_QUADS: usize = TILE_COLS / 4;

/// Bytes that the CPU fetches at once.
const LINE: usize = 64;

/// `matrix . x` for some rows of both, in int8 arithmetic.
#[derive(Clone, Debug)]
pub struct IntProduct<'a> {
    /// The weights: affine.
    pub matrix: Matrix<'a>,
    /// Rows of the matrix: outputs.
    pub rows: Range<usize>,
    /// Inputs.
    pub x: &'a IntRows,
    /// Which rows of `x`, in the order of the outputs.
    pub picks: &'a [usize],
}

impl IntProduct<'_> {
    /// Values of the output: whole blocks.
    #[must_use]
    pub fn n_outputs(&self) -> usize {
        self.rows.len().next_multiple_of(ROWS_PER_BLOCK) * self.picks.len()
    }

    pub(crate) fn check(&self, out: &[f32]) {
        let layout = self.matrix.layout();
        assert!(self.rows.start <= self.rows.end && self.rows.end <= layout.n_rows, "rows");
        assert!(self.x.suits(layout.kind, layout.n_cols), "activations for {layout:?}");
        assert!(self.picks.iter().all(|&pick| pick < self.x.n_rows()), "picked rows");
        assert_eq!(out.len(), self.n_outputs(), "outputs");
    }
}

/// How codes leave their bytes, a piece of columns at a time.
trait Unpack {
    /// Bits of a code.
    const BITS: usize;

    /// The codes of columns `PIECE * piece_idx ..`, in the order of the activations.
    fn piece<S: IntSimd>(simd: S, rows: &RowBlock<'_>, piece_idx: usize) -> [S::Quads; 8];
}

/// 4 bits: two codes in a byte.
struct Nibbles;

/// 8 bits.
struct Bytes;

/// Any other width: one stream of bits.
struct Stream<const BITS: usize>;

impl Unpack for Nibbles {
    const BITS: usize = 4;

    #[inline(always)]
    fn piece<S: IntSimd>(simd: S, rows: &RowBlock<'_>, piece_idx: usize) -> [S::Quads; 8] {
        let [a, b, c, d] =
            simd.quads(&rows.pieces(PIECE / 2 * piece_idx)).map(|it| simd.halves(it));
        [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]]
    }
}

impl Unpack for Bytes {
    const BITS: usize = 8;

    #[inline(always)]
    fn piece<S: IntSimd>(simd: S, rows: &RowBlock<'_>, piece_idx: usize) -> [S::Quads; 8] {
        let [a, b, c, d] = simd.quads(&rows.pieces(PIECE * piece_idx));
        let [e, f, g, h] = simd.quads(&rows.pieces(PIECE * piece_idx + PIECE / 2));
        [a, b, c, d, e, f, g, h]
    }
}

impl<const BITS: usize> Unpack for Stream<BITS> {
    const BITS: usize = BITS;

    #[inline(always)]
    fn piece<S: IntSimd>(simd: S, rows: &RowBlock<'_>, piece_idx: usize) -> [S::Quads; 8] {
        let mut bytes = [[0; PIECE]; LANES];
        for (r, bytes) in bytes.iter_mut().enumerate() {
            let packed = &rows.row(r)[piece_idx * PIECE / 8 * BITS..][..PIECE / 8 * BITS];
            let (eights, _) = bytes.as_chunks_mut::<8>();
            for (eight, packed) in eights.iter_mut().zip(packed.chunks_exact(BITS)) {
                let mut word = [0; 8];
                word[..BITS].copy_from_slice(packed);
                let word = u64::from_le_bytes(word);
                let mask = (1 << BITS) - 1;
                *eight = std::array::from_fn(|i| ((word >> (i * BITS)) & mask).to_le_bytes()[0]);
            }
        }
        let low = bytes.each_ref().map(|row| &row.as_chunks::<16>().0[0]);
        let high = bytes.each_ref().map(|row| &row.as_chunks::<16>().0[1]);
        let [a, b, c, d] = simd.quads(&low);
        let [e, f, g, h] = simd.quads(&high);
        [a, b, c, d, e, f, g, h]
    }
}

/// `acc + sum of codes * x` over a piece.
#[inline(always)]
fn dot<U: Unpack, S: IntSimd>(
    simd: S,
    codes: &[S::Quads; 8],
    x: &[i8; PIECE],
    acc: S::Ints,
) -> S::Ints {
    if U::BITS > 4 {
        simd.dot_quads::<true>(codes, x, acc)
    } else {
        simd.dot_quads::<false>(codes, x, acc)
    }
}

/// Sixteen rows of bytes at equal distances.
struct RowBlock<'a> {
    bytes: &'a [u8],
    row_bytes: usize,
}

impl<'a> RowBlock<'a> {
    /// Sixteen rows of `row_bytes` from `first_row`.
    #[inline(always)]
    fn new(bytes: &'a [u8], row_bytes: usize, first_row: usize) -> Self {
        let bytes = &bytes[first_row * row_bytes..];
        assert!(LANES * row_bytes <= bytes.len(), "sixteen rows");
        Self { bytes, row_bytes }
    }

    #[inline(always)]
    fn row(&self, r: usize) -> &'a [u8] {
        &self.bytes[r * self.row_bytes..][..self.row_bytes]
    }

    /// Bytes `at .. at + 16` of each row.
    #[inline(always)]
    fn pieces(&self, at: usize) -> Pieces<'a> {
        assert!(at + 16 <= self.row_bytes, "a piece within its row");
        std::array::from_fn(|r| {
            // SAFETY: `new` checked that there are sixteen rows of `row_bytes` at this stride, and
            // the piece lies within its row.
            unsafe { &*self.bytes.as_ptr().add(r * self.row_bytes + at).cast::<[u8; 16]>() }
        })
    }
}

/// What a block of sixteen rows needs beside its codes: a tile's scales and biases.
#[repr(align(64))]
struct Scales {
    values: [[Lanes; 2]; TILE_GROUPS],
}

/// Codes of a tile, four columns of sixteen rows at a time.
#[repr(align(64))]
struct Tile {
    quads: [[u8; 4 * LANES]; TILE_QUADS],
}

/// `out[block of rows][pick][row of the block]`.
#[inline(always)]
pub(crate) fn matmul<S: IntSimd>(simd: S, product: &IntProduct<'_>, out: &mut [f32]) {
    let MatrixKind::Affine(affine) = product.matrix.layout().kind else { return };
    match affine.bits {
        2 => all_blocks::<Stream<2>, S>(simd, product, affine, out),
        3 => all_blocks::<Stream<3>, S>(simd, product, affine, out),
        4 => all_blocks::<Nibbles, S>(simd, product, affine, out),
        5 => all_blocks::<Stream<5>, S>(simd, product, affine, out),
        6 => all_blocks::<Stream<6>, S>(simd, product, affine, out),
        _ => all_blocks::<Bytes, S>(simd, product, affine, out),
    }
}

#[inline(always)]
fn all_blocks<U: Unpack, S: IntSimd>(
    simd: S,
    product: &IntProduct<'_>,
    affine: Affine,
    out: &mut [f32],
) {
    let n_picks = product.picks.len();
    if n_picks == 0 {
        return;
    }
    let matrix_rows = product.matrix.layout().n_rows;
    let mut padded = Padded::default();
    let matrix = padded.at_least_sixteen_rows(&product.matrix);
    let first_rows = product.rows.clone().step_by(LANES);
    for (first_row, out) in first_rows.zip(out.chunks_exact_mut(LANES * n_picks)) {
        // Near the end of the matrix the block begins earlier and its first lanes are dropped.
        let start = first_row.min(matrix_rows.max(LANES) - LANES);
        let block = Block { matrix, affine, first_row: start };
        let (out, _) = out.as_chunks_mut::<LANES>();
        block.run::<U, S>(simd, product, out);
        let n_dropped = first_row - start;
        if n_dropped != 0 {
            out.iter_mut().for_each(|lanes| lanes.rotate_left(n_dropped));
        }
    }
}

/// Room for a matrix of fewer than sixteen rows, filled up with rows of zeros.
#[derive(Default)]
struct Padded {
    parts: [Vec<u8>; 3],
}

impl Padded {
    #[inline(always)]
    fn at_least_sixteen_rows<'a>(&'a mut self, matrix: &Matrix<'a>) -> Matrix<'a> {
        let layout = matrix.layout();
        if layout.n_rows >= LANES { *matrix } else { self.fill(matrix) }
    }

    #[cold]
    fn fill<'a>(&'a mut self, matrix: &Matrix<'a>) -> Matrix<'a> {
        let layout = crate::format::MatrixLayout { n_rows: LANES, ..matrix.layout() };
        let sizes = [layout.code_bytes(), layout.scale_bytes(), layout.bias_bytes()];
        let sources = [matrix.codes(), matrix.scales(), matrix.biases()];
        for ((part, size), source) in self.parts.iter_mut().zip(sizes).zip(sources) {
            part.extend_from_slice(source);
            part.resize(size, 0);
        }
        let [codes, scales, biases] = &self.parts;
        Matrix::new(layout, codes, scales, biases)
    }
}

/// Sixteen rows of a matrix.
struct Block<'a> {
    matrix: Matrix<'a>,
    affine: Affine,
    first_row: usize,
}

impl Block<'_> {
    #[inline(always)]
    fn run<U: Unpack, S: IntSimd>(&self, simd: S, product: &IntProduct<'_>, out: &mut [Lanes]) {
        let layout = self.matrix.layout();
        let codes = RowBlock::new(self.matrix.codes(), layout.row_bytes(), self.first_row);
        let group = usize::from(self.affine.group);
        let mut scales = Scales { values: [[[0.0; LANES]; 2]; TILE_GROUPS] };
        out.fill([0.0; LANES]);
        let mut tile = Tile { quads: [[0; 4 * LANES]; TILE_QUADS] };
        for first_col in (0..layout.n_cols).step_by(TILE_COLS) {
            let cols = first_col..layout.n_cols.min(first_col + TILE_COLS);
            let groups = cols.start / group..cols.end / group;
            self.scales(simd, groups.clone(), &mut scales);
            let part = Part { cols, groups, scales: &scales, pieces_per_group: group / PIECE };
            if let ([pick], [out]) = (product.picks, &mut *out) {
                part.stream::<U, S>(simd, &codes, product.x.row(*pick), out);
                continue;
            }
            part.unpack::<U, S>(simd, &codes, &mut tile);
            let (mut picks, mut out) = (product.picks, &mut *out);
            part.meet_all::<U, 8, S>(simd, &tile, product.x, (&mut picks, &mut out));
            part.meet_all::<U, 4, S>(simd, &tile, product.x, (&mut picks, &mut out));
            part.meet_all::<U, 2, S>(simd, &tile, product.x, (&mut picks, &mut out));
            part.meet_all::<U, 1, S>(simd, &tile, product.x, (&mut picks, &mut out));
        }
    }

    /// Brings scales and biases of some groups into the order of lanes.
    #[inline(always)]
    fn scales<S: IntSimd>(&self, simd: S, groups: Range<usize>, target: &mut Scales) {
        let kind = match self.affine.scale {
            FloatKind::F16 => HalfKind::F16,
            FloatKind::Bf16 => HalfKind::Bf16,
            FloatKind::F32 => return self.full_scales(groups, target),
        };
        let row_bytes = 2 * (self.matrix.layout().n_cols / usize::from(self.affine.group));
        let scales = RowBlock::new(self.matrix.scales(), row_bytes, self.first_row);
        let biases = RowBlock::new(self.matrix.biases(), row_bytes, self.first_row);
        for (eight, target) in groups.clone().step_by(8).zip(target.values.chunks_mut(8)) {
            let vectors = if eight + 8 <= groups.end {
                let (scales, biases) = (scales.pieces(2 * eight), biases.pieces(2 * eight));
                simd.half_floats(kind, &scales, &biases)
            } else {
                let n_bytes = 2 * (groups.end - eight);
                let scales = ragged(&scales, 2 * eight, n_bytes);
                let biases = ragged(&biases, 2 * eight, n_bytes);
                simd.half_floats(kind, &scales.each_ref(), &biases.each_ref())
            };
            for (vectors, target) in vectors.iter().zip(target) {
                simd.store(vectors[0], &mut target[0]);
                simd.store(vectors[1], &mut target[1]);
            }
        }
    }

    fn full_scales(&self, groups: Range<usize>, target: &mut Scales) {
        let mut values = [0.0; TILE_GROUPS];
        let values = &mut values[..groups.len()];
        for r in 0..LANES {
            scales(&self.matrix, self.first_row + r, groups.start, values);
            target.values.iter_mut().zip(&*values).for_each(|(it, &value)| it[0][r] = value);
            biases(&self.matrix, self.first_row + r, groups.start, values);
            target.values.iter_mut().zip(&*values).for_each(|(it, &value)| it[1][r] = value);
        }
    }
}

/// Fewer than sixteen bytes of each row, filled up with zeros.
#[inline(always)]
fn ragged(rows: &RowBlock<'_>, at: usize, n_bytes: usize) -> [[u8; 16]; LANES] {
    std::array::from_fn(|r| {
        let mut piece = [0; 16];
        piece[..n_bytes].copy_from_slice(&rows.row(r)[at..][..n_bytes]);
        piece
    })
}

/// Some columns of a block of rows.
struct Part<'a> {
    cols: Range<usize>,
    groups: Range<usize>,
    scales: &'a Scales,
    pieces_per_group: usize,
}

impl Part<'_> {
    /// One row of activations meets the codes as they come.
    #[inline(always)]
    fn stream<U: Unpack, S: IntSimd>(
        &self,
        simd: S,
        rows: &RowBlock<'_>,
        (x, steps, sums): (&[i8], &[f32], &[f32]),
        out: &mut Lanes,
    ) {
        let (x, _) = x[self.cols.clone()].as_chunks::<PIECE>();
        let mut pieces = x.iter().zip(self.cols.start / PIECE..);
        // The next sixteen rows follow these in memory: asked for evenly, a whole line at a time,
        // while these are computed.
        let next = rows.bytes.as_ptr().wrapping_add(LANES * rows.row_bytes);
        let mut acc = simd.load(out);
        let steps = &steps[self.groups.clone()];
        let sums = &sums[self.groups.clone()];
        for ((&step, &sum), [scales, biases]) in steps.iter().zip(sums).zip(&self.scales.values) {
            let mut ints = simd.no_ints();
            for (x, piece_idx) in pieces.by_ref().take(self.pieces_per_group) {
                for line in 0..LANES * PIECE / 8 * U::BITS / LINE {
                    let at = (piece_idx * LANES * PIECE / 8 * U::BITS) + line * LINE;
                    simd.prefetch(next.wrapping_add(at));
                }
                let codes = U::piece(simd, rows, piece_idx);
                ints = dot::<U, S>(simd, &codes, x, ints);
            }
            let factor = simd.mul(simd.load(scales), simd.splat(step));
            acc = simd.fma(factor, simd.floats(ints), acc);
            acc = simd.fma(simd.load(biases), simd.splat(sum), acc);
        }
        simd.store(acc, out);
    }

    /// Lays the codes of these columns down.
    #[inline(always)]
    fn unpack<U: Unpack, S: IntSimd>(&self, simd: S, rows: &RowBlock<'_>, tile: &mut Tile) {
        let (targets, _) = tile.quads.as_chunks_mut::<8>();
        let pieces = self.cols.start / PIECE..self.cols.end / PIECE;
        for (piece_idx, targets) in pieces.zip(targets) {
            let codes = U::piece(simd, rows, piece_idx);
            for (codes, target) in codes.into_iter().zip(targets) {
                simd.store_quads(codes, target);
            }
        }
    }

    /// As many picks as there are in steps of `PICKS` meet the tile.
    #[inline(always)]
    fn meet_all<U: Unpack, const PICKS: usize, S: IntSimd>(
        &self,
        simd: S,
        tile: &Tile,
        x: &IntRows,
        (picks, out): (&mut &[usize], &mut &mut [Lanes]),
    ) {
        while let Some((now, later)) = picks.split_first_chunk::<PICKS>() {
            let (target, rest) = std::mem::take(out).split_at_mut(PICKS);
            self.meet::<U, PICKS, S>(simd, tile, now.map(|pick| x.row(pick)), target);
            (*picks, *out) = (later, rest);
        }
    }

    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "indices name registers of several arrays")]
    fn meet<U: Unpack, const PICKS: usize, S: IntSimd>(
        &self,
        simd: S,
        tile: &Tile,
        x: [(&[i8], &[f32], &[f32]); PICKS],
        out: &mut [Lanes],
    ) {
        let values = x.map(|(values, ..)| values[self.cols.clone()].as_chunks::<PIECE>().0);
        let steps = x.map(|(_, steps, _)| &steps[self.groups.clone()]);
        let sums = x.map(|(.., sums)| &sums[self.groups.clone()]);
        let (quads, _) = tile.quads.as_chunks::<8>();
        let mut acc = [simd.splat(0.0); PICKS];
        for t in 0..PICKS {
            acc[t] = simd.load(&out[t]);
        }
        for g in 0..self.groups.len() {
            let mut ints = [simd.no_ints(); PICKS];
            for p in g * self.pieces_per_group..(g + 1) * self.pieces_per_group {
                let codes: [S::Quads; 8] = std::array::from_fn(|i| simd.load_quads(&quads[p][i]));
                for t in 0..PICKS {
                    ints[t] = dot::<U, S>(simd, &codes, &values[t][p], ints[t]);
                }
            }
            let [scales, biases] = self.scales.values[g].each_ref().map(|it| simd.load(it));
            for t in 0..PICKS {
                let factor = simd.mul(scales, simd.splat(steps[t][g]));
                acc[t] = simd.fma(factor, simd.floats(ints[t]), acc[t]);
                acc[t] = simd.fma(biases, simd.splat(sums[t][g]), acc[t]);
            }
        }
        for t in 0..PICKS {
            simd.store(acc[t], &mut out[t]);
        }
    }
}
