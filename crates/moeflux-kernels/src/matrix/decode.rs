//! Decoding of one row of a matrix to f32, each weight rounded as the format's own library rounds
//! it.
//!
//! **Invariant:** affine is `code * scale + bias` in two roundings; FP8 is `value * scale` in one;
//! blocks that carry their own scales give `code * scale`, which is exact, or that plus a bias.

use crate::lanes::codes::{Bf16, ByteCodes, E4m3, F16, F32, PackedCodes, ValueFormat};
use crate::lanes::rounding::{from_bf16, from_f16};
use crate::lanes::{LANES, Lanes, Portable, Simd};
use crate::matrix::blocks::{BlockKind, DecodedBlock, power};
use crate::matrix::format::{FloatKind, Fp8Spread, Matrix, MatrixKind, ScaleKind, group_cols};

/// Writes the weights of row `row_idx` to `out`.
///
/// # Panics
///
/// If there is no such row, or `out` is not one row.
pub fn decode_row(matrix: &Matrix<'_>, row_idx: usize, out: &mut [f32]) {
    let layout = matrix.layout();
    assert_eq!(out.len(), layout.n_cols, "a row of {layout:?}");
    if let MatrixKind::Block(kind) = layout.kind {
        return decode_blocks(kind, (matrix.row(row_idx), matrix.scale_row(row_idx)), 0, out);
    }
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
            MatrixKind::Float(_) | MatrixKind::Block(_) => {}
            MatrixKind::Fp8(_) => out.iter_mut().for_each(|it| *it *= scale),
            MatrixKind::Affine(_) => out.iter_mut().for_each(|it| *it = *it * scale + bias),
        }
    }
}

/// Writes the scales of a row's groups from `first_group` to `out`. They are 1 for plain floats and
/// for blocks, which are decoded to weights.
#[inline(always)]
pub(crate) fn scales(matrix: &Matrix<'_>, row_idx: usize, first_group: usize, out: &mut [f32]) {
    let layout = matrix.layout();
    match layout.kind {
        MatrixKind::Float(_) | MatrixKind::Block(_) => out.fill(1.0),
        MatrixKind::Fp8(fp8) => {
            let first = row_idx / fp8.rows_per_scale() * fp8.scales_per_row(layout.n_cols);
            match fp8.spread {
                Fp8Spread::Block { .. } => {
                    any_scales(matrix.scales(), fp8.scale, first + first_group, out);
                }
                Fp8Spread::Row | Fp8Spread::Matrix => {
                    let mut one = [0.0];
                    any_scales(matrix.scales(), fp8.scale, first, &mut one);
                    out.fill(one[0]);
                }
            }
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
        match affine.implied_factor() {
            None => floats(matrix.biases(), affine.scale, first, out),
            Some(factor) => {
                floats(matrix.scales(), affine.scale, first, out);
                out.iter_mut().for_each(|it| *it *= factor);
            }
        }
    }
}

/// Writes the requested scales, as many as exist.
#[inline(always)]
fn any_scales(bytes: &[u8], kind: ScaleKind, first: usize, out: &mut [f32]) {
    match kind {
        ScaleKind::Float(kind) => floats(bytes, kind, first, out),
        ScaleKind::E8m0 => {
            let exponents = bytes[first..].iter();
            out.iter_mut().zip(exponents).for_each(|(it, &exponent)| *it = power(exponent));
        }
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

/// Decodes codes or values of one row from `first_col`, or weights of blocks; columns beyond the
/// row are zero.
#[inline(always)]
pub(crate) fn unpack_cols<S: Simd>(
    simd: S,
    matrix: &Matrix<'_>,
    row_idx: usize,
    (first_col, out): (usize, &mut [Lanes]),
) {
    let row = matrix.row(row_idx);
    match matrix.layout().kind {
        MatrixKind::Float(FloatKind::F32) => unpack::<F32, S>(simd, row, first_col, out),
        MatrixKind::Float(FloatKind::F16) => unpack::<F16, S>(simd, row, first_col, out),
        MatrixKind::Float(FloatKind::Bf16) => unpack::<Bf16, S>(simd, row, first_col, out),
        MatrixKind::Fp8(_) => unpack::<E4m3, S>(simd, row, first_col, out),
        MatrixKind::Affine(affine) => match affine.bits {
            2 => unpack::<PackedCodes<2>, S>(simd, row, first_col, out),
            3 => unpack::<PackedCodes<3>, S>(simd, row, first_col, out),
            4 => unpack::<PackedCodes<4>, S>(simd, row, first_col, out),
            5 => unpack::<PackedCodes<5>, S>(simd, row, first_col, out),
            6 => unpack::<PackedCodes<6>, S>(simd, row, first_col, out),
            _ => unpack::<ByteCodes, S>(simd, row, first_col, out),
        },
        MatrixKind::Block(kind) => {
            let row = (row, matrix.scale_row(row_idx));
            decode_blocks(kind, row, first_col, out.as_flattened_mut());
        }
    }
}

/// Decodes weights of the blocks of a row from `first_col`, which may be inside one; pads with
/// zeros.
fn decode_blocks(
    kind: BlockKind,
    (row, scales): (&[u8], &[u8]),
    first_col: usize,
    mut out: &mut [f32],
) {
    let (block_cols, group_cols) = (kind.block_cols(), kind.group_cols());
    let mut decoded = DecodedBlock::ZEROS;
    let mut skipped = first_col % block_cols;
    let blocks = row.chunks_exact(kind.block_bytes()).enumerate();
    for (block_idx, block) in blocks.skip(first_col / block_cols) {
        if out.is_empty() {
            return;
        }
        let n_scales = kind.scale_bytes();
        decoded.decode(kind, block, &scales[block_idx * n_scales..][..n_scales]);
        let cols = skipped..block_cols.min(skipped + out.len());
        let (now, later) = out.split_at_mut(cols.len());
        for (col, weight) in cols.zip(now) {
            let group_idx = col / group_cols;
            let product = f32::from(decoded.codes[col]) * decoded.scales[group_idx];
            let is_biased = kind.has_biases();
            *weight = if is_biased { product + decoded.biases[group_idx] } else { product };
        }
        (out, skipped) = (later, 0);
    }
    out.fill(0.0);
}

#[inline(always)]
fn unpack<C: ValueFormat, S: Simd>(simd: S, row: &[u8], first_col: usize, out: &mut [Lanes]) {
    let bytes = &row[first_col / LANES * C::BYTES..];
    let n_whole = (bytes.len() / C::BYTES).min(out.len());
    let (whole, rest) = out.split_at_mut(n_whole);
    for (lanes, bytes) in whole.iter_mut().zip(bytes.chunks_exact(C::BYTES)) {
        simd.store(C::unpack(simd, bytes), lanes);
    }
    if let Some((last, beyond)) = rest.split_first_mut() {
        // Only floats and FP8 have ragged rows; their zero bytes are zeros.
        let tail = &bytes[n_whole * C::BYTES..];
        let mut filled = [0; 64];
        filled[..tail.len()].copy_from_slice(tail);
        simd.store(C::unpack(simd, &filled[..C::BYTES]), last);
        beyond.fill([0.0; LANES]);
    }
}
