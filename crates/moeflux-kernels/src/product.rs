//! Products of a matrix with rows of activations: the generic bodies behind every table.
//!
//! Columns go by in blocks, a few matrix rows at a time: a block is unpacked to f32 once and meets
//! every row of activations. **Invariant:** an output's terms are added in ascending group (or
//! row) order, whatever the tile.

use std::ops::Range;

use crate::activations::{Activations, group_cols};
use crate::codes::{Bf16, Codes, E4m3, F16, F32, Packed};
use crate::decode::{bias, scale};
use crate::format::{FloatKind, Matrix, MatrixKind};
use crate::lanes::{LANES, Lanes, fma, reduce};
use crate::vector::Rows;

/// Columns unpacked at a time: whole groups of every kind; four rows of them fit the first cache.
const BLOCK_COLS: usize = 512;

const BLOCK_CHUNKS: usize = BLOCK_COLS / LANES;

/// The smallest group is 32 columns.
const BLOCK_GROUPS: usize = BLOCK_COLS / 32;

/// `matrix . x` for some rows of both.
#[derive(Clone, Debug)]
pub struct Product<'a> {
    /// The weights.
    pub matrix: Matrix<'a>,
    /// Rows of the matrix: outputs.
    pub rows: Range<usize>,
    /// Inputs.
    pub x: &'a Activations,
    /// Which rows of `x`, in the order of the outputs.
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
    pub x: Rows<'a>,
}

impl Product<'_> {
    pub(crate) fn check(&self, out: &[f32]) {
        let layout = self.matrix.layout();
        assert!(self.rows.start <= self.rows.end && self.rows.end <= layout.n_rows, "rows");
        assert!(self.x.suits(layout.kind, layout.n_cols), "activations for {layout:?}");
        assert!(self.picks.iter().all(|&pick| pick < self.x.n_rows()), "picked rows");
        assert_eq!(out.len(), self.rows.len() * self.picks.len(), "outputs");
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

/// `R` rows of one block, unpacked.
struct Block<const R: usize> {
    values: [[Lanes; BLOCK_CHUNKS]; R],
    scales: [[f32; BLOCK_GROUPS]; R],
    biases: [[f32; BLOCK_GROUPS]; R],
}

impl<const R: usize> Block<R> {
    #[inline(always)]
    fn new() -> Self {
        Self {
            values: [[[0.0; LANES]; BLOCK_CHUNKS]; R],
            scales: [[0.0; BLOCK_GROUPS]; R],
            biases: [[0.0; BLOCK_GROUPS]; R],
        }
    }

    /// Unpacks columns `first_col ..` of rows `first_row ..`, `n_cols` of them (whole groups).
    #[inline(always)]
    fn unpack(&mut self, matrix: &Matrix<'_>, first_row: usize, first_col: usize, n_cols: usize) {
        let group_cols = group_cols(matrix.layout().kind);
        let first_group = first_col / group_cols;
        for r in 0..R {
            let values = &mut self.values[r][..n_cols / LANES];
            unpack_cols(matrix, first_row + r, first_col, values);
            for g in 0..n_cols / group_cols {
                self.scales[r][g] = scale(matrix, first_row + r, first_group + g);
                self.biases[r][g] = bias(matrix, first_row + r, first_group + g);
            }
        }
    }
}

/// `out[row][pick]`, by tiles of `R` rows and `T` picks.
#[inline(always)]
pub(crate) fn matmul<const R: usize, const T: usize>(product: &Product<'_>, out: &mut [f32]) {
    let n_picks = product.picks.len();
    if n_picks == 0 {
        return;
    }
    let mut block = Block::<R>::new();
    let mut single = Block::<1>::new();
    for (i, out) in out.chunks_mut(R * n_picks).enumerate() {
        let first_row = product.rows.start + i * R;
        if out.len() == R * n_picks {
            few_rows::<R, T>(product, first_row, &mut block, out);
        } else {
            for (r, out) in out.chunks_mut(n_picks).enumerate() {
                few_rows::<1, T>(product, first_row + r, &mut single, out);
            }
        }
    }
}

#[inline(always)]
fn few_rows<const R: usize, const T: usize>(
    product: &Product<'_>,
    first_row: usize,
    block: &mut Block<R>,
    out: &mut [f32],
) {
    out.fill(0.0);
    let n_cols = product.x.stride();
    for first_col in (0..n_cols).step_by(BLOCK_COLS) {
        let n_cols = (n_cols - first_col).min(BLOCK_COLS);
        block.unpack(&product.matrix, first_row, first_col, n_cols);
        match group_cols(product.matrix.layout().kind) {
            32 => all_picks::<R, T, 2>(product, block, first_col..first_col + n_cols, out),
            64 => all_picks::<R, T, 4>(product, block, first_col..first_col + n_cols, out),
            _ => all_picks::<R, T, 8>(product, block, first_col..first_col + n_cols, out),
        }
    }
}

#[inline(always)]
fn all_picks<const R: usize, const T: usize, const CHUNKS: usize>(
    product: &Product<'_>,
    block: &Block<R>,
    cols: Range<usize>,
    out: &mut [f32],
) {
    let n_picks = product.picks.len();
    let mut t = 0;
    while t + T <= n_picks {
        tile::<R, T, CHUNKS>(product, block, cols.clone(), (t, out));
        t += T;
    }
    while t < n_picks {
        tile::<R, 1, CHUNKS>(product, block, cols.clone(), (t, out));
        t += 1;
    }
}

/// Adds one block's groups to `R` x `T` outputs from pick `first_pick`.
#[inline(always)]
fn tile<const R: usize, const T: usize, const CHUNKS: usize>(
    product: &Product<'_>,
    block: &Block<R>,
    cols: Range<usize>,
    (first_pick, out): (usize, &mut [f32]),
) {
    let n_picks = product.picks.len();
    let n_groups = cols.len() / (CHUNKS * LANES);
    let first_group = cols.start / (CHUNKS * LANES);
    let has_biases = matches!(product.matrix.layout().kind, MatrixKind::Affine(_));

    let mut x: [&[[Lanes; CHUNKS]]; T] = [&[]; T];
    let mut sums: [&[f32]; T] = [&[]; T];
    let mut acc = [[0.0; T]; R];
    for t in 0..T {
        let pick = product.picks[first_pick + t];
        let (chunks, _) = product.x.row(pick)[cols.clone()].as_chunks::<LANES>();
        (x[t], _) = chunks.as_chunks::<CHUNKS>();
        if has_biases {
            sums[t] = &product.x.sums(pick)[first_group..][..n_groups];
        }
        for r in 0..R {
            acc[r][t] = out[r * n_picks + first_pick + t];
        }
    }
    for g in 0..n_groups {
        let mut lanes = [[[0.0; LANES]; T]; R];
        for c in 0..CHUNKS {
            for r in 0..R {
                for t in 0..T {
                    fma(&block.values[r][g * CHUNKS + c], &x[t][g][c], &mut lanes[r][t]);
                }
            }
        }
        for r in 0..R {
            for t in 0..T {
                // A scale of 1 makes this the plain addition of floats, bit for bit.
                acc[r][t] = block.scales[r][g].mul_add(reduce(&lanes[r][t]), acc[r][t]);
                if has_biases {
                    acc[r][t] = block.biases[r][g].mul_add(sums[t][g], acc[r][t]);
                }
            }
        }
    }
    for r in 0..R {
        for t in 0..T {
            out[r * n_picks + first_pick + t] = acc[r][t];
        }
    }
}

/// `out[x row][column]`.
#[inline(always)]
pub(crate) fn matmul_transposed(product: &TransposedProduct<'_>, out: &mut [f32]) {
    const R: usize = 4;
    out.fill(0.0);
    let mut block = Block::<R>::new();
    let mut single = Block::<1>::new();
    for first_col in product.cols.clone().step_by(BLOCK_COLS) {
        let cols = first_col..product.cols.end.min(first_col + BLOCK_COLS);
        let mut row = product.rows.start;
        while row + R <= product.rows.end {
            add_rows::<R>(product, row, &mut block, (cols.clone(), out));
            row += R;
        }
        while row < product.rows.end {
            add_rows::<1>(product, row, &mut single, (cols.clone(), out));
            row += 1;
        }
    }
}

#[inline(always)]
fn add_rows<const R: usize>(
    product: &TransposedProduct<'_>,
    first_row: usize,
    block: &mut Block<R>,
    (cols, out): (Range<usize>, &mut [f32]),
) {
    let kind = product.matrix.layout().kind;
    let group_chunks = group_cols(kind) / LANES;
    block.unpack(&product.matrix, first_row, cols.start, padded_cols(kind, cols.len()));
    for r in 0..R {
        for c in 0..cols.len().div_ceil(LANES) {
            let (scale, bias) =
                (block.scales[r][c / group_chunks], block.biases[r][c / group_chunks]);
            for value in &mut block.values[r][c] {
                *value = match kind {
                    MatrixKind::Float(_) => *value,
                    MatrixKind::Fp8Block => *value * scale,
                    MatrixKind::Affine(_) => value.mul_add(scale, bias),
                };
            }
        }
    }
    let out_cols = product.cols.len();
    for t in 0..product.x.n_rows {
        let x = &product.x.row(t)[first_row - product.rows.start..][..R];
        let out = &mut out[t * out_cols + cols.start - product.cols.start..][..cols.len()];
        let (chunks, rest) = out.as_chunks_mut::<LANES>();
        let n_chunks = chunks.len();
        for (c, acc) in chunks.iter_mut().enumerate() {
            for r in 0..R {
                fma(&[x[r]; LANES], &block.values[r][c], acc);
            }
        }
        for (j, acc) in rest.iter_mut().enumerate() {
            for r in 0..R {
                *acc = x[r].mul_add(block.values[r][n_chunks][j], *acc);
            }
        }
    }
}

/// `n_cols`, rounded up to whole groups.
#[inline(always)]
fn padded_cols(kind: MatrixKind, n_cols: usize) -> usize {
    n_cols.next_multiple_of(group_cols(kind))
}

/// Codes or values of one row from `first_col`; columns beyond the row are zero.
#[inline(always)]
pub(crate) fn unpack_cols(
    matrix: &Matrix<'_>,
    row_idx: usize,
    first_col: usize,
    out: &mut [Lanes],
) {
    let row = matrix.row(row_idx);
    match matrix.layout().kind {
        MatrixKind::Float(FloatKind::F32) => unpack::<F32>(row, first_col, out),
        MatrixKind::Float(FloatKind::F16) => unpack::<F16>(row, first_col, out),
        MatrixKind::Float(FloatKind::Bf16) => unpack::<Bf16>(row, first_col, out),
        MatrixKind::Fp8Block => unpack::<E4m3>(row, first_col, out),
        MatrixKind::Affine(affine) => match affine.bits {
            2 => unpack::<Packed<2>>(row, first_col, out),
            3 => unpack::<Packed<3>>(row, first_col, out),
            4 => unpack::<Packed<4>>(row, first_col, out),
            5 => unpack::<Packed<5>>(row, first_col, out),
            6 => unpack::<Packed<6>>(row, first_col, out),
            _ => unpack::<Packed<8>>(row, first_col, out),
        },
    }
}

#[inline(always)]
fn unpack<C: Codes>(row: &[u8], first_col: usize, out: &mut [Lanes]) {
    let bytes = &row[first_col / LANES * C::BYTES..];
    let n_whole = (bytes.len() / C::BYTES).min(out.len());
    let (whole, rest) = out.split_at_mut(n_whole);
    for (lanes, bytes) in whole.iter_mut().zip(bytes.chunks_exact(C::BYTES)) {
        *lanes = C::unpack(bytes);
    }
    if let Some((last, beyond)) = rest.split_first_mut() {
        // Only floats and FP8 have ragged rows; their zero bytes are zeros.
        let tail = &bytes[n_whole * C::BYTES..];
        let mut filled = [0; 64];
        filled[..tail.len()].copy_from_slice(tail);
        *last = C::unpack(&filled[..C::BYTES]);
        beyond.fill([0.0; LANES]);
    }
}
