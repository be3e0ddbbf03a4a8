//! Product of one row of activations with the codes of blocks as they are read from memory.
//!
//! **Invariant:** an output's groups are added in ascending order, on every path.

use super::chunk::{
    BlockChunk, BlockCodes, Half, PreparedChunk, SPAN_COLS, chunk_blocks, is_wide, offset,
};
use super::rows::{BlockMatrix, BlockRows, BlockScratch, HALF_COLS};
use crate::int8::inputs::IntProduct;
use crate::int8::rows::IntRow;
use crate::int8::simd::IntSimd;
use crate::int8::tile::add_terms;
use crate::lanes::{LANES, Lanes};
use crate::matrix::blocks::BlockKind;
use crate::matrix::format::Matrix;

/// Values of a span, sixteen at a time.
type SpanValues = [[i8; HALF_COLS]; SPAN_COLS / HALF_COLS];

/// Returns the columns of a chunk, and its bytes per row.
const fn chunk_size(kind: BlockKind) -> (usize, usize) {
    (chunk_blocks(kind) * kind.block_cols(), chunk_blocks(kind) * kind.block_bytes())
}

/// Computes `out[block of rows][row of the block]`, for a matrix of at least sixteen rows.
#[inline(always)]
pub(in crate::int8) fn multiply_one<K: BlockCodes, S: IntSimd>(
    simd: S,
    product: &IntProduct<'_>,
    matrix: Matrix<'_>,
    out: &mut [f32],
) {
    let x = product.x.rows.row(product.x.picks[0]);
    let layout = matrix.layout();
    let last_row = layout.n_rows - LANES;
    let BlockScratch { mut prepared, mut tail } = BlockScratch::ZEROS;
    let (out, _) = out.as_chunks_mut::<LANES>();
    for (row_idx, out) in product.rows.clone().step_by(LANES).zip(out) {
        // Near the end of the matrix a block begins earlier and its first lanes are dropped.
        let first_row = row_idx.min(last_row);
        let rows = BlockMatrix { matrix, kind: K::KIND, first_row };
        let mut acc = simd.splat(0.0);
        for col in (0..layout.n_cols).step_by(chunk_size(K::KIND).0) {
            let chunk = rows.chunk(K::KIND, col, &mut tail);
            K::prepare(simd, &chunk, &mut prepared);
            for span in 0..chunk_size(K::KIND).0 / SPAN_COLS {
                let col = col + span * SPAN_COLS;
                acc = multiply_span::<K, S>(simd, (&chunk, &prepared), span, (&x, col), acc);
            }
        }
        simd.store(acc, out);
        out.rotate_left(row_idx - first_row);
    }
}

/// Adds the groups of a span.
#[inline(always)]
fn multiply_span<K: BlockCodes, S: IntSimd>(
    simd: S,
    (chunk, prepared): (&BlockChunk<'_>, &PreparedChunk),
    span: usize,
    (x, col): (&IntRow<'_>, usize),
    acc: S::Vector,
) -> S::Vector {
    let (from, to) = (span_byte(K::KIND, span), span_byte(K::KIND, span + 1));
    // Models interleave rows only for kinds whose scales are stored separately. Interleaved rows of
    // other kinds are computed correctly, but the prefetched bytes are useless.
    if K::KIND.scale_bytes() > 0 {
        chunk.rows.prefetch_next_of_every(simd, chunk.at + from, to - from);
    } else {
        chunk.rows.prefetch_next(simd, chunk.at + from, to - from);
    }
    let padded;
    let values = &x.values[col..];
    let values = if values.len() < SPAN_COLS {
        padded = last_values(values);
        &padded
    } else {
        let (halves, _) = values.as_chunks::<HALF_COLS>();
        halves.first_chunk().expect("a whole span")
    };
    let mut ints = [simd.no_ints(); 8];
    let first = K::unit(simd, chunk, prepared, 2 * span);
    multiply_unit::<K, S>(simd, (0, &first), values, &mut ints);
    let second = K::unit(simd, chunk, prepared, 2 * span + 1);
    multiply_unit::<K, S>(simd, (1, &second), values, &mut ints);
    let (first_group, span_groups) = (col / K::KIND.group_cols(), SPAN_COLS / K::KIND.group_cols());
    let scales = &prepared.scales[span * span_groups..][..span_groups];
    add_groups::<K, S>(simd, (&x.steps[first_group..], &x.sums[first_group..]), scales, &ints, acc)
}

/// Returns the last values of a row, padded with zeros.
#[cold]
fn last_values(x: &[i8]) -> SpanValues {
    let mut values = [[0; HALF_COLS]; SPAN_COLS / HALF_COLS];
    values.as_flattened_mut()[..x.len()].copy_from_slice(x);
    values
}

/// Returns the first byte of a span of a chunk, or one near it.
const fn span_byte(kind: BlockKind, span: usize) -> usize {
    let (n_cols, n_bytes) = chunk_size(kind);
    n_bytes * span / (n_cols / SPAN_COLS)
}

/// Adds a unit's products to the sums of groups.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "iterators move arrays of vectors to memory")]
fn multiply_unit<K: BlockCodes, S: IntSimd>(
    simd: S,
    (unit, codes): (usize, &[Half<S>; 4]),
    x: &SpanValues,
    ints: &mut [S::Ints; 8],
) {
    for j in 0..4 {
        let half = K::place(unit, j);
        // Both halves of a larger group share one sum.
        let target = half * HALF_COLS / K::KIND.group_cols();
        ints[target] = if is_wide(K::KIND) {
            simd.dot_half::<true>(&codes[j], &x[half], ints[target])
        } else {
            simd.dot_half::<false>(&codes[j], &x[half], ints[target])
        };
    }
}

/// Adds the groups of a span, as many as the row has.
#[inline(always)]
fn add_groups<K: BlockCodes, S: IntSimd>(
    simd: S,
    (steps, sums): (&[f32], &[f32]),
    scales: &[[Lanes; 2]],
    ints: &[S::Ints; 8],
    mut acc: S::Vector,
) -> S::Vector {
    for (g, scales) in scales.iter().enumerate() {
        let (Some(&step), Some(&sum)) = (steps.get(g), sums.get(g)) else { break };
        let scales = (scales, -f32::from(offset(K::KIND)));
        acc = if K::KIND.has_biases() {
            add_terms::<BlockRows<'_, true, true>, S>(simd, (step, sum), scales, ints[g], acc)
        } else {
            add_terms::<BlockRows<'_, true, false>, S>(simd, (step, sum), scales, ints[g], acc)
        };
    }
    acc
}
