//! Int8 products: the generic body of every table.
//!
//! Sixteen rows of the matrix are processed at a time. One row of activations is multiplied by the
//! codes as they are read. Several rows are multiplied by a tile of unpacked codes in the
//! first-level cache, row by row or, if the table uses strips, strip by strip. **Invariant:** an
//! output's groups are added in ascending order, on every path.

use crate::int8::blocks::{
    BlockRows, UnpackBlocks, for_kind, is_wide, multiply_one as multiply_one_by_blocks,
};
use crate::int8::inputs::{IntProduct, IntScratch};
use crate::int8::several::multiply_several;
use crate::int8::simd::IntSimd;
use crate::int8::stream::multiply_one;
use crate::int8::strips::multiply_strips;
use crate::int8::tile::{AffineRows, BitStream, Bytes, Nibbles, TileSource, Unpack};
use crate::matrix::blocks::BlockKind;
use crate::matrix::format::{Affine, Matrix, MatrixKind};

/// Computes `out[block of rows][pick][row of the block]`; `unpack` is the table's.
#[inline(always)]
pub(crate) fn matmul<S: IntSimd>(
    simd: S,
    (product, unpack): (&IntProduct<'_>, UnpackBlocks),
    scratch: &mut IntScratch,
    out: &mut [f32],
) {
    if product.x.picks.is_empty() {
        return;
    }
    match product.matrix.layout().kind {
        MatrixKind::Float(_) | MatrixKind::Fp8(_) => {}
        MatrixKind::Affine(affine) => match affine.bits {
            4 => affine_blocks::<Nibbles, S>(simd, (product, affine), scratch, out),
            8 => affine_blocks::<Bytes, S>(simd, (product, affine), scratch, out),
            _ => affine_blocks::<BitStream, S>(simd, (product, affine), scratch, out),
        },
        MatrixKind::Block(kind) => {
            let matrix = scratch.padded.at_least_sixteen_rows(&product.matrix);
            if product.x.picks.len() == 1 && S::TAKES_BLOCKS {
                for_kind!(
                    kind, Q4_0 Q8_0 Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 MXFP4_APART,
                    K => multiply_one_by_blocks::<K, S>(simd, product, matrix, out),
                    else several_of_blocks(simd, (product, unpack), (matrix, kind), out)
                );
            } else {
                several_of_blocks(simd, (product, unpack), (matrix, kind), out);
            }
        }
    }
}

#[inline(always)]
fn affine_blocks<U: Unpack, S: IntSimd>(
    simd: S,
    (product, affine): (&IntProduct<'_>, Affine),
    scratch: &mut IntScratch,
    out: &mut [f32],
) {
    let matrix = scratch.padded.at_least_sixteen_rows(&product.matrix);
    if product.x.picks.len() == 1 {
        let scratch = (scratch.fetching, &mut scratch.values);
        return multiply_one::<U, S>(simd, product, (matrix, affine), scratch, out);
    }
    several(simd, product, AffineRows::<U>::new((matrix, affine)), out);
}

/// The code that uses tiles is compiled once for all kinds with similar codes.
#[inline(always)]
fn several_of_blocks<S: IntSimd>(
    simd: S,
    (product, unpack): (&IntProduct<'_>, UnpackBlocks),
    matrix: (Matrix<'_>, BlockKind),
    out: &mut [f32],
) {
    match (is_wide(matrix.1) || S::TAKES_STRIPS, matrix.1.has_biases()) {
        (false, false) => {
            several(simd, product, BlockRows::<false, false>::new(matrix, unpack), out);
        }
        (false, true) => several(simd, product, BlockRows::<false, true>::new(matrix, unpack), out),
        (true, false) => several(simd, product, BlockRows::<true, false>::new(matrix, unpack), out),
        (true, true) => several(simd, product, BlockRows::<true, true>::new(matrix, unpack), out),
    }
}

#[inline(always)]
fn several<R: TileSource, S: IntSimd>(simd: S, product: &IntProduct<'_>, rows: R, out: &mut [f32]) {
    if !S::TAKES_STRIPS {
        multiply_several::<true, R, S>(simd, product, rows, out);
    } else if product.x.picks.len() == 1 {
        multiply_several::<false, R, S>(simd, product, rows, out);
    } else {
        multiply_strips(simd, product, rows, out);
    }
}
