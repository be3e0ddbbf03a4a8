//! Products of a matrix with rows of activations: the generic bodies of every table.
//!
//! Columns are processed in blocks, a few matrix rows at a time: a block is unpacked to f32 once
//! and multiplied by every row of activations. **Invariant:** an output's terms are added in
//! ascending group (or row) order, for any tile.

use std::ops::Range;

use crate::float::activations::Activations;
use crate::lanes::vector::StridedRows;
use crate::lanes::{LANES, Lanes, Simd};
use crate::matrix::decode::{biases, scales, unpack_cols};
use crate::matrix::format::{Matrix, MatrixKind, group_cols};

/// Columns unpacked at a time: whole groups of every kind; four rows of them fit the first-level
/// cache.
const BLOCK_COLS: usize = 512;

/// Matrix rows unpacked at a time.
const ROWS: usize = 4;

/// Rows of a matrix whose outputs are stored together: `[block of rows][pick][row of the block]`.
pub const ROWS_PER_BLOCK: usize = LANES;

const BLOCK_CHUNKS: usize = BLOCK_COLS / LANES;

/// The smallest group is 32 columns.
const BLOCK_GROUPS: usize = BLOCK_COLS / 32;

/// `matrix . x` for some rows of both.
#[derive(Clone, Debug)]
pub struct FloatProduct<'a> {
    /// The weights.
    pub matrix: Matrix<'a>,
    /// Rows of the matrix: outputs.
    pub rows: Range<usize>,
    /// Inputs.
    pub x: &'a Activations,
    /// Picked rows of `x`, in the order of the outputs.
    pub picks: &'a [usize],
}

/// `transposed matrix . x` for some rows and columns.
#[derive(Clone, Debug)]
pub struct TransposedProduct<'a> {
    /// The weights.
    pub matrix: Matrix<'a>,
    /// Rows of the matrix: inputs.
    pub rows: Range<usize>,
    /// Columns of the matrix: outputs. The first is a multiple of 128.
    pub cols: Range<usize>,
    /// One input per row of `rows`, for each row of activations.
    pub x: StridedRows<'a>,
}

impl FloatProduct<'_> {
    /// Returns the number of output values: whole blocks.
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

impl TransposedProduct<'_> {
    pub(crate) fn check(&self, out: &[f32]) {
        let layout = self.matrix.layout();
        assert!(self.rows.start <= self.rows.end && self.rows.end <= layout.n_rows, "rows");
        assert!(self.cols.start <= self.cols.end && self.cols.end <= layout.n_cols, "columns");
        assert!(self.cols.start.is_multiple_of(128), "columns from a whole group");
        assert_eq!(self.x.row_len, self.rows.len(), "inputs");
        assert_eq!(out.len(), self.cols.len() * self.x.n_rows, "outputs");
    }
}

/// Some rows of one block, unpacked.
struct UnpackedBlock {
    values: [[Lanes; BLOCK_CHUNKS]; ROWS],
    scales: [[f32; BLOCK_GROUPS]; ROWS],
    biases: [[f32; BLOCK_GROUPS]; ROWS],
}

impl UnpackedBlock {
    #[inline(always)]
    fn new() -> Self {
        Self {
            values: [[[0.0; LANES]; BLOCK_CHUNKS]; ROWS],
            scales: [[0.0; BLOCK_GROUPS]; ROWS],
            biases: [[0.0; BLOCK_GROUPS]; ROWS],
        }
    }

    /// Unpacks `cols` (whole groups) of at most `ROWS` rows; the other rows keep their contents.
    #[inline(always)]
    fn unpack<S: Simd>(
        &mut self,
        simd: S,
        matrix: &Matrix<'_>,
        rows: Range<usize>,
        cols: Range<usize>,
    ) {
        let group_cols = group_cols(matrix.layout().kind);
        let first_group = cols.start / group_cols;
        for (r, row_idx) in rows.enumerate() {
            let values = &mut self.values[r][..cols.len() / LANES];
            unpack_cols(simd, matrix, row_idx, (cols.start, values));
            let n_groups = cols.len() / group_cols;
            scales(matrix, row_idx, first_group, &mut self.scales[r][..n_groups]);
            biases(matrix, row_idx, first_group, &mut self.biases[r][..n_groups]);
        }
    }
}

/// Computes `out[block of rows][pick][row of the block]`, a few rows at a time.
#[inline(always)]
pub(crate) fn matmul<S: Simd>(simd: S, product: &FloatProduct<'_>, out: &mut [f32]) {
    let n_picks = product.picks.len();
    if n_picks == 0 {
        return;
    }
    let mut block = UnpackedBlock::new();
    out.fill(0.0);
    for (i, first_row) in product.rows.clone().step_by(ROWS).enumerate() {
        let first_lane = i * ROWS % LANES;
        let (out, _) = out[i * ROWS / LANES * LANES * n_picks..].as_chunks_mut::<LANES>();
        let rows = first_row..product.rows.end.min(first_row + ROWS);
        for first_col in (0..product.x.stride()).step_by(BLOCK_COLS) {
            let cols = first_col..product.x.stride().min(first_col + BLOCK_COLS);
            block.unpack(simd, &product.matrix, rows.clone(), cols.clone());
            let out = (first_lane, &mut *out);
            match group_cols(product.matrix.layout().kind) {
                32 => all_picks::<S, 2>(simd, product, &block, (cols, out)),
                64 => all_picks::<S, 4>(simd, product, &block, (cols, out)),
                _ => all_picks::<S, 8>(simd, product, &block, (cols, out)),
            }
        }
    }
}

/// Adds one block's groups to the outputs of its rows, which begin at `first_lane` in each of
/// `out`. Rows that the product does not have are computed from arbitrary contents of the block.
#[inline(always)]
fn all_picks<S: Simd, const CHUNKS: usize>(
    simd: S,
    product: &FloatProduct<'_>,
    block: &UnpackedBlock,
    (cols, (first_lane, out)): (Range<usize>, (usize, &mut [Lanes])),
) {
    let (quads, singles) = product.picks.as_chunks::<4>();
    let (quad_outs, single_outs) = out.split_at_mut(4 * quads.len());
    for (picks, out) in quads.iter().zip(quad_outs.as_chunks_mut::<4>().0) {
        let x = picks.map(|pick| BlockInputs::<CHUNKS>::new(product, pick, &cols));
        for first_row in (0..ROWS).step_by(S::TILE_ROWS) {
            let rows = (first_row, first_lane);
            if S::TILE_ROWS == ROWS {
                add_tile::<S, ROWS, CHUNKS>(simd, block, &x, (rows, out));
            } else {
                add_tile::<S, 1, CHUNKS>(simd, block, &x, (rows, out));
            }
        }
    }
    for (&pick, out) in singles.iter().zip(single_outs) {
        let x = BlockInputs::<CHUNKS>::new(product, pick, &cols);
        let (fours, _) = out.as_chunks_mut::<ROWS>();
        add_column(simd, block, &x, &mut fours[first_lane / ROWS]);
    }
}

/// The part of one row of activations that a block covers.
#[derive(Clone, Copy)]
struct BlockInputs<'a, const CHUNKS: usize> {
    groups: &'a [[Lanes; CHUNKS]],
    /// One per group, or none.
    sums: &'a [f32],
}

impl<'a, const CHUNKS: usize> BlockInputs<'a, CHUNKS> {
    #[inline(always)]
    fn new(product: &FloatProduct<'a>, pick: usize, cols: &Range<usize>) -> Self {
        let (chunks, _) = product.x.row(pick)[cols.clone()].as_chunks::<LANES>();
        let (groups, _) = chunks.as_chunks::<CHUNKS>();
        let sums = product.x.sums(pick);
        let first_group = cols.start / (CHUNKS * LANES);
        let sums = if sums.is_empty() { sums } else { &sums[first_group..][..groups.len()] };
        Self { groups, sums }
    }
}

/// Adds the groups of rows `first_row .. + R` of a block to the outputs of four picks.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "indices name registers of several arrays")]
fn add_tile<S: Simd, const R: usize, const CHUNKS: usize>(
    simd: S,
    block: &UnpackedBlock,
    x: &[BlockInputs<'_, CHUNKS>; 4],
    ((first_row, first_lane), out): ((usize, usize), &mut [Lanes; 4]),
) {
    let lane = first_lane + first_row;
    let zero = simd.splat(0.0);
    let mut acc = [simd.load4(&[0.0; 4]); R];
    for r in 0..R {
        let at = lane + r;
        acc[r] = simd.load4(&[out[0][at], out[1][at], out[2][at], out[3][at]]);
    }
    // The second bound removes the checks of every access to the block.
    let n_groups = x[0].groups.len().min(BLOCK_CHUNKS / CHUNKS);
    for g in 0..n_groups {
        let mut lanes = [[zero; 4]; R];
        let groups = [&x[0].groups[g], &x[1].groups[g], &x[2].groups[g], &x[3].groups[g]];
        for c in 0..CHUNKS {
            for r in 0..R {
                let weights = simd.load(&block.values[first_row + r][g * CHUNKS + c]);
                for t in 0..4 {
                    lanes[r][t] = simd.fma(weights, simd.load(&groups[t][c]), lanes[r][t]);
                }
            }
        }
        for r in 0..R {
            // A scale of 1 makes this the plain addition of floats, bit for bit.
            let scale = simd.load4(&[block.scales[first_row + r][g]; 4]);
            acc[r] = simd.fma4(scale, simd.reduce4(lanes[r]), acc[r]);
        }
        if !x[0].sums.is_empty() {
            let sums = simd.load4(&[x[0].sums[g], x[1].sums[g], x[2].sums[g], x[3].sums[g]]);
            for r in 0..R {
                let bias = simd.load4(&[block.biases[first_row + r][g]; 4]);
                acc[r] = simd.fma4(bias, sums, acc[r]);
            }
        }
    }
    for r in 0..R {
        let values = simd.store4(acc[r]);
        for t in 0..4 {
            out[t][lane + r] = values[t];
        }
    }
}

/// Adds one block's groups to the outputs of its rows for one pick.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "indices name registers of several arrays")]
fn add_column<S: Simd, const CHUNKS: usize>(
    simd: S,
    block: &UnpackedBlock,
    x: &BlockInputs<'_, CHUNKS>,
    out: &mut [f32; ROWS],
) {
    let zero = simd.splat(0.0);
    let mut acc = simd.load4(out);
    // The second bound removes the checks of every access to the block.
    let n_groups = x.groups.len().min(BLOCK_CHUNKS / CHUNKS);
    for g in 0..n_groups {
        let group = &x.groups[g];
        let mut lanes = [zero; ROWS];
        for c in 0..CHUNKS {
            let inputs = simd.load(&group[c]);
            for r in 0..ROWS {
                lanes[r] = simd.fma(simd.load(&block.values[r][g * CHUNKS + c]), inputs, lanes[r]);
            }
        }
        acc = simd.fma4(simd.load4(&column(&block.scales, g)), simd.reduce4(lanes), acc);
        if !x.sums.is_empty() {
            acc =
                simd.fma4(simd.load4(&column(&block.biases, g)), simd.load4(&[x.sums[g]; 4]), acc);
        }
    }
    *out = simd.store4(acc);
}

/// Computes `out[x row][column]`.
#[inline(always)]
pub(crate) fn matmul_transposed<S: Simd>(
    simd: S,
    product: &TransposedProduct<'_>,
    out: &mut [f32],
) {
    let kind = product.matrix.layout().kind;
    out.fill(0.0);
    let mut block = UnpackedBlock::new();
    for first_col in product.cols.clone().step_by(BLOCK_COLS) {
        let cols = first_col..product.cols.end.min(first_col + BLOCK_COLS);
        let whole = cols.start..cols.start + cols.len().next_multiple_of(group_cols(kind));
        for first_row in product.rows.clone().step_by(ROWS) {
            let rows = first_row..product.rows.end.min(first_row + ROWS);
            block.unpack(simd, &product.matrix, rows.clone(), whole.clone());
            block.decode(simd, kind, whole.len());
            add_rows(simd, product, &block, (rows, cols.clone(), out));
        }
    }
}

impl UnpackedBlock {
    /// Converts codes to weights.
    #[inline(always)]
    fn decode<S: Simd>(&mut self, simd: S, kind: MatrixKind, n_cols: usize) {
        let group_chunks = group_cols(kind) / LANES;
        for r in 0..ROWS {
            for c in 0..n_cols / LANES {
                let scale = simd.splat(self.scales[r][c / group_chunks]);
                let bias = simd.splat(self.biases[r][c / group_chunks]);
                let value = simd.load(&self.values[r][c]);
                let weight = match kind {
                    MatrixKind::Float(_) | MatrixKind::Block(_) => value,
                    MatrixKind::Fp8(_) => simd.mul(value, scale),
                    MatrixKind::Affine(_) => simd.fma(value, scale, bias),
                };
                simd.store(weight, &mut self.values[r][c]);
            }
        }
    }
}

#[inline(always)]
fn add_rows<S: Simd>(
    simd: S,
    product: &TransposedProduct<'_>,
    block: &UnpackedBlock,
    (rows, cols, out): (Range<usize>, Range<usize>, &mut [f32]),
) {
    let out_cols = product.cols.len();
    let first_out = cols.start - product.cols.start;
    for t in 0..product.x.n_rows {
        let x = &product.x.row(t)[rows.start - product.rows.start..][..rows.len()];
        let out = &mut out[t * out_cols + first_out..][..cols.len()];
        let (chunks, rest) = out.as_chunks_mut::<LANES>();
        let n_chunks = chunks.len();
        for (c, out) in chunks.iter_mut().enumerate() {
            let mut acc = simd.load(out);
            for (&x, weights) in x.iter().zip(&block.values) {
                acc = simd.fma(simd.splat(x), simd.load(&weights[c]), acc);
            }
            simd.store(acc, out);
        }
        for (j, acc) in rest.iter_mut().enumerate() {
            for (&x, weights) in x.iter().zip(&block.values) {
                *acc = simd.fma1(x, weights[n_chunks][j], *acc);
            }
        }
    }
}

/// Returns one group's scale or bias of each row.
#[inline(always)]
fn column(rows: &[[f32; BLOCK_GROUPS]; ROWS], group_idx: usize) -> [f32; ROWS] {
    let [a, b, c, d] = rows;
    [a[group_idx], b[group_idx], c[group_idx], d[group_idx]]
}
