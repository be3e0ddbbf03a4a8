//! Product of one row of activations with codes as they are read from memory.
//!
//! Sixteen rows of 4-bit codes are processed together, one line of each at a time, and the
//! following data is prefetched into the cache that suits the CPU. On some CPUs narrow rows are
//! instead read one after the other: memory access is then sequential, and the hardware prefetches
//! it. Their sums are kept until all sixteen rows are done. For wide rows that takes too long: the
//! stream stalls while sums are added up. **Invariant:** an output's groups are added in ascending
//! order, on every path.

use crate::cpu::Fetching;
use crate::int8::block::{AffineBlock, RowBlock};
use crate::int8::inputs::{IntProduct, RowValues};
use crate::int8::rows::IntRow;
use crate::int8::simd::{IntSimd, LINE_COLS, PIECE};
use crate::int8::tile::{
    AFFINE_TILE_GROUPS, BlockColumns, Nibbles, TILE_COLS, TileScales, Unpack, add_group, dot_group,
};
use crate::lanes::{LANES, Lanes};
use crate::matrix::format::{Affine, Matrix};

/// Lines of a tile.
const TILE_LINES: usize = TILE_COLS / LINE_COLS;

/// Zeroed for each product, so no larger than affine tiles need.
type AffineTileScales = TileScales<AFFINE_TILE_GROUPS>;

/// The sums of sixteen narrow rows.
type RowSums<S> = [<S as IntSimd>::LineProducts; LANES];

/// Computes `out[block of rows][row of the block]`.
#[inline(always)]
pub(super) fn multiply_one<U: Unpack, S: IntSimd>(
    simd: S,
    product: &IntProduct<'_>,
    (matrix, affine): (Matrix<'_>, Affine),
    (fetching, values): (Fetching, &mut Vec<RowValues>),
    out: &mut [f32],
) {
    let row = product.x.rows.row(product.x.picks[0]);
    let lines = if U::WIDE { &[][..] } else { reorder_values(simd, row.values, values) };
    let x = StreamInputs { row, lines };
    let last_row = matrix.layout().n_rows - LANES;
    let is_narrow = !U::WIDE && matrix.layout().n_cols <= TILE_COLS;
    let is_in_turn = is_narrow && fetching == Fetching::Streams;
    let mut sums = [simd.products(&[0; LINE_COLS / 2], &[0; LINE_COLS]); LANES];
    let mut scales = AffineTileScales::ZEROS;
    let (out, _) = out.as_chunks_mut::<LANES>();
    for (row_idx, out) in product.rows.clone().step_by(LANES).zip(out) {
        // Near the end of the matrix a block begins earlier and its first lanes are dropped.
        let first_row = row_idx.min(last_row);
        let block = AffineBlock { fetching, ..AffineBlock::new((matrix, affine), first_row) };
        if is_in_turn {
            block.multiply_row_by_row(simd, &x, (&mut sums, &mut scales), out);
        } else {
            block.multiply_together::<U, S>(simd, &x, &mut scales, out);
        }
        out.rotate_left(row_idx - first_row);
    }
}

/// One row of activations.
struct StreamInputs<'a> {
    row: IntRow<'a>,
    /// Its whole lines of values, reordered for lines of 4-bit codes; empty for wider codes.
    lines: &'a [RowValues],
}

#[inline(always)]
fn reorder_values<'a, S: IntSimd>(
    simd: S,
    x: &[i8],
    values: &'a mut Vec<RowValues>,
) -> &'a [RowValues] {
    let (lines, _) = x.as_chunks::<LINE_COLS>();
    values.resize(lines.len(), RowValues([0; LINE_COLS]));
    for (x, values) in lines.iter().zip(&mut *values) {
        simd.reorder_values(x, &mut values.0);
    }
    values
}

impl AffineBlock<'_> {
    /// Multiplies rows of 4-bit codes by the inputs, one row after the other.
    #[inline(always)]
    fn multiply_row_by_row<S: IntSimd>(
        &self,
        simd: S,
        x: &StreamInputs<'_>,
        (sums, scales): (&mut RowSums<S>, &mut AffineTileScales),
        out: &mut Lanes,
    ) {
        let codes = self.codes();
        for (r, sums) in sums.iter_mut().enumerate() {
            let (lines, _) = codes.row(r).as_chunks::<{ LINE_COLS / 2 }>();
            if let Some(row_sums) = sum_row(simd, lines, x.lines) {
                *sums = row_sums;
            }
        }
        let part = self.part(simd, 0, &mut scales.values);
        simd.store(part.add_sums(simd, (&codes, x.row), sums), out);
    }

    /// Multiplies sixteen rows by the inputs together.
    #[inline(always)]
    fn multiply_together<U: Unpack, S: IntSimd>(
        &self,
        simd: S,
        x: &StreamInputs<'_>,
        scales: &mut AffineTileScales,
        out: &mut Lanes,
    ) {
        let codes = self.codes();
        let mut acc = simd.splat(0.0);
        for first_col in (0..self.matrix.layout().n_cols).step_by(TILE_COLS) {
            let part = self.part(simd, first_col, &mut scales.values);
            acc = part.stream::<U, S>(simd, &codes, x, acc);
        }
        simd.store(acc, out);
    }
}

/// Returns the sums of a narrow row, if it has whole lines.
#[inline(always)]
fn sum_row<S: IntSimd>(
    simd: S,
    lines: &[[u8; LINE_COLS / 2]],
    x: &[RowValues],
) -> Option<S::LineProducts> {
    if let ([a, b, c, d], [p, q, r, s]) = (lines, x) {
        return Some(simd.merge([
            simd.products(a, &p.0),
            simd.products(b, &q.0),
            simd.products(c, &r.0),
            simd.products(d, &s.0),
        ]));
    }
    // Missing lines are never added.
    let mut products = [simd.products(lines.first()?, &x.first()?.0); TILE_LINES];
    for i in 1..lines.len() {
        products[i] = simd.products(&lines[i], &x[i].0);
    }
    Some(simd.merge(products))
}

impl BlockColumns<'_> {
    /// Adds the terms of these columns to the outputs of sixteen rows, which are processed
    /// together.
    #[inline(always)]
    fn stream<U: Unpack, S: IntSimd>(
        &self,
        simd: S,
        codes: &RowBlock<'_>,
        x: &StreamInputs<'_>,
        mut acc: S::Vector,
    ) -> S::Vector {
        let n_lines = if U::WIDE { 0 } else { self.cols.len() / LINE_COLS };
        for line in 0..n_lines {
            let col = self.cols.start + line * LINE_COLS;
            codes.prefetch_next(simd, col / 2, LINE_COLS / 2);
            let values = &x.lines[col / LINE_COLS].0;
            let ints = simd.dot_rows(&codes.pieces(col / 2), values);
            acc = self.add_line(simd, (line, x.row), ints, acc);
        }
        self.add_rest::<U, S>(simd, (codes, x.row), n_lines * LINE_COLS, acc)
    }

    /// Returns the outputs of sixteen narrow rows, from their sums over whole lines.
    #[inline(always)]
    fn add_sums<S: IntSimd>(
        &self,
        simd: S,
        (codes, x): (&RowBlock<'_>, IntRow<'_>),
        sums: &RowSums<S>,
    ) -> S::Vector {
        let n_lines = self.cols.len() / LINE_COLS;
        let mut acc = simd.splat(0.0);
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *sums;
        let (q, r) = (simd.transpose_lines([a, b, c, d]), simd.transpose_lines([e, f, g, h]));
        let (s, t) = (simd.transpose_lines([i, j, k, l]), simd.transpose_lines([m, n, o, p]));
        // Unrolled: an indexed array of vectors would go through memory.
        if n_lines > 0 {
            acc = self.add_line(simd, (0, x), simd.join([q[0], r[0], s[0], t[0]]), acc);
        }
        if n_lines > 1 {
            acc = self.add_line(simd, (1, x), simd.join([q[1], r[1], s[1], t[1]]), acc);
        }
        if n_lines > 2 {
            acc = self.add_line(simd, (2, x), simd.join([q[2], r[2], s[2], t[2]]), acc);
        }
        if n_lines > 3 {
            acc = self.add_line(simd, (3, x), simd.join([q[3], r[3], s[3], t[3]]), acc);
        }
        self.add_rest::<Nibbles, S>(simd, (codes, x), n_lines * LINE_COLS, acc)
    }

    /// Adds the groups of a line of these columns.
    #[inline(always)]
    fn add_line<S: IntSimd>(
        &self,
        simd: S,
        (line, x): (usize, IntRow<'_>),
        [a, b, c, d]: [S::Ints; 4],
        acc: S::Vector,
    ) -> S::Vector {
        match self.pieces_per_group {
            1 => {
                let acc = self.add(simd, (4 * line, x), a, acc);
                let acc = self.add(simd, (4 * line + 1, x), b, acc);
                let acc = self.add(simd, (4 * line + 2, x), c, acc);
                self.add(simd, (4 * line + 3, x), d, acc)
            }
            2 => {
                let acc = self.add(simd, (2 * line, x), simd.add_ints(a, b), acc);
                self.add(simd, (2 * line + 1, x), simd.add_ints(c, d), acc)
            }
            _ => {
                let all = simd.add_ints(simd.add_ints(a, b), simd.add_ints(c, d));
                self.add(simd, (line, x), all, acc)
            }
        }
    }

    /// Adds the groups after the first `n_done` columns of these.
    #[inline(always)]
    fn add_rest<U: Unpack, S: IntSimd>(
        &self,
        simd: S,
        (codes, x): (&RowBlock<'_>, IntRow<'_>),
        n_done: usize,
        mut acc: S::Vector,
    ) -> S::Vector {
        if n_done == self.cols.len() {
            return acc;
        }
        let group = self.group();
        let n_done_groups = n_done / PIECE / self.pieces_per_group;
        let values = &x.values[self.cols.clone()][n_done..];
        for (i, values) in values.chunks_exact(group).enumerate() {
            let ints = dot_group::<U, S>(simd, codes, values, self.cols.start + n_done + i * group);
            acc = self.add(simd, (n_done_groups + i, x), ints, acc);
        }
        acc
    }

    /// Adds a group of these columns.
    #[inline(always)]
    fn add<S: IntSimd>(
        &self,
        simd: S,
        (group_idx, x): (usize, IntRow<'_>),
        ints: S::Ints,
        acc: S::Vector,
    ) -> S::Vector {
        let at = self.groups.start + group_idx;
        add_group(simd, (x.steps[at], x.sums[at]), &self.scales[group_idx], ints, acc)
    }
}
