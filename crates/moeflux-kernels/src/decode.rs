//! One row of a matrix as f32, each weight rounded as the format's own library rounds it.
//!
//! **Invariant:** affine is `code * scale + bias` in two roundings; FP8 is `value * scale` in one.

use crate::activations::group_cols;
use crate::codes::{from_bf16, from_f16};
use crate::format::{FloatKind, Matrix, MatrixKind};
use crate::lanes::{LANES, Portable};
use crate::product::unpack_cols;

/// Writes the weights of row `row_idx` to `out`.
///
/// # Panics
///
/// If there is no such row, or `out` is not one row.
pub fn decode_row(matrix: &Matrix<'_>, row_idx: usize, out: &mut [f32]) {
    let layout = matrix.layout();
    assert_eq!(out.len(), layout.n_cols, "a row of {layout:?}");
    let group_cols = group_cols(layout.kind);
    let mut values = [[0.0; LANES]; 128 / LANES];
    for (group_idx, out) in out.chunks_mut(group_cols).enumerate() {
        let values = &mut values[..group_cols / LANES];
        unpack_cols(Portable, matrix, row_idx, (group_idx * group_cols, values));
        out.copy_from_slice(&values.as_flattened()[..out.len()]);
        match layout.kind {
            MatrixKind::Float(_) => {}
            MatrixKind::Fp8Block => {
                let scale = scale(matrix, row_idx, group_idx);
                out.iter_mut().for_each(|it| *it *= scale);
            }
            MatrixKind::Affine(_) => {
                let (scale, bias) =
                    (scale(matrix, row_idx, group_idx), bias(matrix, row_idx, group_idx));
                out.iter_mut().for_each(|it| *it = *it * scale + bias);
            }
        }
    }
}

/// The scale of one group of one row; 1 for plain floats.
#[inline(always)]
pub(crate) fn scale(matrix: &Matrix<'_>, row_idx: usize, group_idx: usize) -> f32 {
    let layout = matrix.layout();
    match layout.kind {
        MatrixKind::Float(_) => 1.0,
        MatrixKind::Fp8Block => {
            let group_cols = group_cols(layout.kind);
            let groups_per_row = layout.n_cols.div_ceil(group_cols);
            let at = row_idx / group_cols * groups_per_row + group_idx;
            float_at(matrix.scales(), FloatKind::F32, at)
        }
        MatrixKind::Affine(affine) => {
            let groups_per_row = layout.n_cols / usize::from(affine.group);
            float_at(matrix.scales(), affine.scale, row_idx * groups_per_row + group_idx)
        }
    }
}

/// The bias of one group of one row; 0 for kinds without.
#[inline(always)]
pub(crate) fn bias(matrix: &Matrix<'_>, row_idx: usize, group_idx: usize) -> f32 {
    let layout = matrix.layout();
    match layout.kind {
        MatrixKind::Float(_) | MatrixKind::Fp8Block => 0.0,
        MatrixKind::Affine(affine) => {
            let groups_per_row = layout.n_cols / usize::from(affine.group);
            float_at(matrix.biases(), affine.scale, row_idx * groups_per_row + group_idx)
        }
    }
}

#[inline(always)]
fn float_at(bytes: &[u8], kind: FloatKind, at: usize) -> f32 {
    match kind {
        FloatKind::F32 => {
            let (values, _) = bytes.as_chunks::<4>();
            f32::from_le_bytes(values[at])
        }
        FloatKind::F16 => {
            let (values, _) = bytes.as_chunks::<2>();
            from_f16(u16::from_le_bytes(values[at]))
        }
        FloatKind::Bf16 => {
            let (values, _) = bytes.as_chunks::<2>();
            from_bf16(u16::from_le_bytes(values[at]))
        }
    }
}

