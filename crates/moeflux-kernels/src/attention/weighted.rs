//! Attention over stored values: the weighted sum of a block's positions.
//!
//! Several queries are multiplied by a block together, so that its data is read once for all of
//! them. **Invariant:** a query's sums do not depend on the other queries: positions ascend, and
//! codes are summed as the crate's documentation states. This module knows neither heads nor
//! windows.

use std::ops::Range;

use crate::attention::{BLOCK_POSITIONS, CacheElement, TypedRows};
use crate::cached::{CachedRows, CachedValues};
use crate::lanes::rounding::from_bf16;
use crate::lanes::vector::dot_lanes;
use crate::lanes::{LANES, Simd};
use crate::matrix::format::{Matrix, MatrixKind};
use crate::prefetch::Prefetcher;

/// Weights and the values they belong to: see [`crate::KernelTable::add_weighted`].
#[derive(Clone, Copy, Debug)]
pub struct WeightedRows<'a> {
    /// `[n_queries, BLOCK_POSITIONS]`.
    pub weights: &'a [f32],
    /// `[n_queries]`: factors applied to the outputs first.
    pub factors: &'a [f32],
    /// `[n_positions, value dim]`.
    pub rows: CachedRows<'a>,
    /// Rows to prefetch for the next call.
    pub next: Option<CachedRows<'a>>,
}

impl WeightedRows<'_> {
    pub(crate) fn check(&self, out: &[f32]) {
        let n_queries = self.factors.len();
        self.rows.check(BLOCK_POSITIONS);
        assert_eq!(self.weights.len(), n_queries * BLOCK_POSITIONS, "a row of weights per query");
        assert_eq!(out.len(), n_queries * self.rows.row_len, "an output per query");
    }
}

#[inline(always)]
pub(crate) fn add_weighted<S: Simd>(simd: S, sum: &WeightedRows<'_>, out: &mut [f32]) {
    let cols = 0..sum.rows.row_len;
    match sum.rows.values {
        CachedValues::F32(values) => {
            add_table(simd, sum, &TypedRows::new(&sum.rows, values), (cols, out));
        }
        CachedValues::F16(values) => {
            add_table(simd, sum, &TypedRows::new(&sum.rows, values), (cols, out));
        }
        CachedValues::Codes { matrix, first_row } => {
            add_codes(simd, sum, (&matrix, first_row), out);
        }
    }
}

/// Queries whose weights are multiplied by scales at a time.
const SCALED_QUERIES: usize = 8;

/// Groups whose scales and biases are transposed to the order of positions at a time.
const GROUPS: usize = 8;

/// One value per position of a block.
type PerPosition = [f32; BLOCK_POSITIONS];

/// Adds group by group: a group's scales are multiplied into the weights, and the contribution of
/// the biases to each of its columns is added last.
#[inline(always)]
fn add_codes<S: Simd>(
    simd: S,
    sum: &WeightedRows<'_>,
    (matrix, first_row): (&Matrix<'_>, usize),
    out: &mut [f32],
) {
    let MatrixKind::Affine(affine) = matrix.layout().kind else { return };
    let (group, n_cols) = (usize::from(affine.group), sum.rows.row_len);
    let codes = TypedRows::new(&sum.rows, &matrix.codes()[first_row * sum.rows.stride..]);
    let mut factors = [[[0.0; BLOCK_POSITIONS]; GROUPS]; 2];
    let mut next = sum.next;
    for (group_idx, first_col) in (0..n_cols).step_by(group).enumerate() {
        if group_idx % GROUPS == 0 {
            let [scales, biases] = &mut factors;
            let rows = first_row..first_row + sum.rows.n_rows;
            by_position(matrix, matrix.scales(), (&rows, group_idx), scales);
            by_position(matrix, matrix.biases(), (&rows, group_idx), biases);
        }
        let part = WeightedRows { next: next.take(), ..*sum };
        let cols = first_col..n_cols.min(first_col + group);
        let factors = factors.each_ref().map(|it| &it[group_idx % GROUPS]);
        add_group(simd, &part, (&codes, factors), (cols, &mut *out));
    }
}

/// Adds one group of columns, for all queries.
#[inline(always)]
fn add_group<S: Simd>(
    simd: S,
    sum: &WeightedRows<'_>,
    (codes, [scales, biases]): (&TypedRows<'_, u8>, [&PerPosition; 2]),
    (cols, out): (Range<usize>, &mut [f32]),
) {
    let mut scaled = [[0.0; BLOCK_POSITIONS]; SCALED_QUERIES];
    let (weights, _) = sum.weights.as_chunks::<BLOCK_POSITIONS>();
    let queries = sum.factors.chunks(SCALED_QUERIES).zip(weights.chunks(SCALED_QUERIES));
    let mut next = sum.next;
    for ((factors, weights), out) in queries.zip(out.chunks_mut(SCALED_QUERIES * codes.row_len)) {
        let mut added = [0.0; SCALED_QUERIES];
        for (weights, added) in weights.chunks(4).zip(added.chunks_mut(4)) {
            let mut lanes = [simd.splat(0.0); 4];
            for (lanes, weights) in lanes.iter_mut().zip(weights) {
                *lanes = bias_lanes(simd, weights, biases, codes.n_rows);
            }
            added.copy_from_slice(&simd.store4(simd.reduce4(lanes)));
        }
        for (scaled, weights) in scaled.iter_mut().zip(weights) {
            // Entries beyond the positions are undefined and never read.
            for ((it, weight), scale) in scaled.iter_mut().zip(weights).zip(scales) {
                *it = weight * scale;
            }
        }
        let weights = scaled.as_flattened();
        let part = WeightedRows { weights, factors, rows: sum.rows, next: next.take() };
        add_table(simd, &part, codes, (cols.clone(), &mut *out));
        for (out, added) in out.chunks_exact_mut(codes.row_len).zip(added) {
            out[cols.clone()].iter_mut().for_each(|it| *it += added);
        }
    }
}

/// Returns the lanes of the sum of weight times bias.
#[inline(always)]
fn bias_lanes<S: Simd>(
    simd: S,
    weights: &PerPosition,
    biases: &PerPosition,
    n_positions: usize,
) -> S::Vector {
    if n_positions == BLOCK_POSITIONS {
        dot_lanes(simd, weights, biases)
    } else {
        dot_lanes(simd, &weights[..n_positions], &biases[..n_positions])
    }
}

/// Transposes scales or biases of some rows, from a group on, to the order of positions.
#[inline(always)]
fn by_position(
    matrix: &Matrix<'_>,
    values: &[u8],
    (rows, first_group): (&Range<usize>, usize),
    out: &mut [PerPosition; GROUPS],
) {
    let (values, _) = values.as_chunks::<2>();
    let n_groups = values.len() / matrix.layout().n_rows;
    let values = &values[rows.start * n_groups..rows.end * n_groups];
    match n_groups {
        1 => transpose_all::<1>(values, out),
        2 => transpose_all::<2>(values, out),
        4 => transpose_all::<4>(values, out),
        8 => transpose_all::<8>(values, out),
        _ => {
            let n_groups_now = GROUPS.min(n_groups - first_group);
            for (position, values) in values.chunks_exact(n_groups).enumerate() {
                for (out, value) in out.iter_mut().zip(&values[first_group..][..n_groups_now]) {
                    out[position] = from_bf16(u16::from_le_bytes(*value));
                }
            }
        }
    }
}

/// Does the same for all of `G` groups.
#[inline(always)]
fn transpose_all<const G: usize>(values: &[[u8; 2]], out: &mut [PerPosition; GROUPS]) {
    let (rows, _) = values.as_chunks::<G>();
    for (group_idx, out) in out.iter_mut().take(G).enumerate() {
        for (out, row) in out.iter_mut().zip(rows) {
            *out = from_bf16(u16::from_le_bytes(row[group_idx]));
        }
    }
}

/// Adds some columns of all positions.
#[inline(always)]
fn add_table<S: Simd, K: CacheElement>(
    simd: S,
    sum: &WeightedRows<'_>,
    table: &TypedRows<'_, K>,
    (cols, out): (Range<usize>, &mut [f32]),
) {
    let n_tiles = sum.factors.len().div_ceil(S::SQUARE) * cols.len().div_ceil(S::SQUARE * LANES);
    let mut prefetcher = Prefetcher::new(sum.next.as_ref(), n_tiles * table.n_rows);
    let mut col = cols.start;
    while S::SQUARE >= 4 && col + 4 * LANES <= cols.end {
        add_cols::<S, K, 4>(simd, sum, table, (col, out), &mut prefetcher);
        col += 4 * LANES;
    }
    while S::SQUARE < 4 && col + 2 * LANES <= cols.end {
        add_cols::<S, K, 2>(simd, sum, table, (col, out), &mut prefetcher);
        col += 2 * LANES;
    }
    while col + LANES <= cols.end {
        add_cols::<S, K, 1>(simd, sum, table, (col, out), &mut prefetcher);
        col += LANES;
    }
    for (query, out) in out.chunks_exact_mut(table.row_len.max(1)).enumerate() {
        let weights = &sum.weights[query * BLOCK_POSITIONS..][..table.n_rows];
        for (j, out) in out.iter_mut().enumerate().take(cols.end).skip(col) {
            *out *= sum.factors[query];
            for (position, weight) in weights.iter().enumerate() {
                *out = simd.fma1(*weight, table.row(position)[j].value(), *out);
            }
        }
    }
}

/// Adds `C` chunks of columns from `col`, for all queries.
#[inline(always)]
fn add_cols<S: Simd, K: CacheElement, const C: usize>(
    simd: S,
    sum: &WeightedRows<'_>,
    table: &TypedRows<'_, K>,
    (col, out): (usize, &mut [f32]),
    prefetcher: &mut Prefetcher,
) {
    let n_queries = sum.factors.len();
    let mut query = 0;
    while S::SQUARE >= 4 && query + 4 <= n_queries {
        add_tile::<S, K, 4, C>(simd, sum, table, (query, col, out), prefetcher);
        query += 4;
    }
    while query + 2 <= n_queries {
        add_tile::<S, K, 2, C>(simd, sum, table, (query, col, out), prefetcher);
        query += 2;
    }
    if query < n_queries {
        add_tile::<S, K, 1, C>(simd, sum, table, (query, col, out), prefetcher);
    }
}

/// Adds `C` chunks of columns from `col` for `Q` queries from `first_query`.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "indices name registers of several arrays")]
fn add_tile<S: Simd, K: CacheElement, const Q: usize, const C: usize>(
    simd: S,
    sum: &WeightedRows<'_>,
    table: &TypedRows<'_, K>,
    (first_query, col, out): (usize, usize, &mut [f32]),
    prefetcher: &mut Prefetcher,
) {
    let n_cols = table.row_len;
    let n_positions = table.n_rows;
    let weights: [&[f32]; Q] =
        std::array::from_fn(|r| &sum.weights[(first_query + r) * BLOCK_POSITIONS..][..n_positions]);
    let mut acc = [[simd.splat(0.0); C]; Q];
    for r in 0..Q {
        let factor = simd.splat(sum.factors[first_query + r]);
        let out = &out[(first_query + r) * n_cols + col..][..C * LANES];
        for c in 0..C {
            acc[r][c] = simd.mul(simd.load(&out.as_chunks().0[c]), factor);
        }
    }
    for position in 0..n_positions {
        prefetcher.step();
        let row = &table.values[position * table.stride + col..][..C * LANES];
        let values: [S::Vector; C] = std::array::from_fn(|c| K::lanes(simd, &row.as_chunks().0[c]));
        for r in 0..Q {
            let weight = simd.splat(weights[r][position]);
            for c in 0..C {
                acc[r][c] = simd.fma(weight, values[c], acc[r][c]);
            }
        }
    }
    for r in 0..Q {
        let out = &mut out[(first_query + r) * n_cols + col..][..C * LANES];
        for c in 0..C {
            simd.store(acc[r][c], &mut out.as_chunks_mut().0[c]);
        }
    }
}
