//! One row of a matrix as f32, each weight rounded as the format's own library rounds it.
//!
//! **Invariant:** affine is `code * scale + bias` in two roundings; FP8 is `value * scale` in one.

use crate::activations::group_cols;
use crate::codes::{from_bf16, from_f16};
use crate::format::{FP8_BLOCK, FloatKind, Matrix, MatrixKind};
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
        let (mut scale, mut bias) = ([1.0], [0.0]);
        scales(matrix, row_idx, group_idx, &mut scale);
        biases(matrix, row_idx, group_idx, &mut bias);
        let ([scale], [bias]) = (scale, bias);
        match layout.kind {
            MatrixKind::Float(_) => {}
            MatrixKind::Fp8Block => out.iter_mut().for_each(|it| *it *= scale),
            MatrixKind::Affine(_) => out.iter_mut().for_each(|it| *it = *it * scale + bias),
        }
    }
}

/// Writes the scales of a row's groups from `first_group` to `out`; 1 for plain floats.
#[inline(always)]
pub(crate) fn scales(matrix: &Matrix<'_>, row_idx: usize, first_group: usize, out: &mut [f32]) {
    let layout = matrix.layout();
    match layout.kind {
        MatrixKind::Float(_) => out.fill(1.0),
        MatrixKind::Fp8Block => {
            let groups_per_row = layout.n_cols.div_ceil(FP8_BLOCK);
            let first = row_idx / FP8_BLOCK * groups_per_row + first_group;
            floats(matrix.scales(), FloatKind::F32, first, out);
        }
        MatrixKind::Affine(affine) => {
            let first = row_idx * (layout.n_cols / usize::from(affine.group)) + first_group;
            floats(matrix.scales(), affine.scale, first, out);
        }
    }
}

/// Writes the biases of a row's groups, like [`scales`]; nothing for kinds without.
#[inline(always)]
pub(crate) fn biases(matrix: &Matrix<'_>, row_idx: usize, first_group: usize, out: &mut [f32]) {
    let layout = matrix.layout();
    if let MatrixKind::Affine(affine) = layout.kind {
        let first = row_idx * (layout.n_cols / usize::from(affine.group)) + first_group;
        floats(matrix.biases(), affine.scale, first, out);
    }
}

#[inline(always)]
fn floats(bytes: &[u8], kind: FloatKind, first: usize, out: &mut [f32]) {
    let bytes = &bytes[first * kind.bytes()..];
    match kind {
        FloatKind::F32 => {
            let (values, _) = bytes.as_chunks::<4>();
            out.iter_mut().zip(values).for_each(|(it, value)| *it = f32::from_le_bytes(*value));
        }
        FloatKind::F16 => {
            let (values, _) = bytes.as_chunks::<2>();
            out.iter_mut()
                .zip(values)
                .for_each(|(it, value)| *it = from_f16(u16::from_le_bytes(*value)));
        }
        FloatKind::Bf16 => {
            let (values, _) = bytes.as_chunks::<2>();
            out.iter_mut()
                .zip(values)
                .for_each(|(it, value)| *it = from_bf16(u16::from_le_bytes(*value)));
        }
    }
}
