//! Decodes stored weights to f32, one row at a time.
//!
//! **Invariant:** bytes may be at any address. Each value is computed as its format defines: codes
//! from the little-endian bit stream of their row, `code * scale + bias` in f32 with two roundings,
//! as mlx does. Blocks with scales of their own are decoded by the scalar kernel, where every kind
//! has a golden test.

use half::{bf16, f16};
use moeflux_kernels::{
    Affine, Biases, FloatKind, Fp8Spread, Matrix, MatrixKind, ScaleKind, decode_row,
};

/// Decodes one row of a matrix.
pub(super) fn row(matrix: &Matrix<'_>, row_idx: usize) -> Vec<f32> {
    let layout = matrix.layout();
    assert!(row_idx < layout.n_rows, "row {row_idx} of {layout:?}");
    let (codes, n_cols) = (matrix.row(row_idx), layout.n_cols);
    match layout.kind {
        MatrixKind::Float(kind) => (0..n_cols).map(|col_idx| float(kind, codes, col_idx)).collect(),
        MatrixKind::Fp8(fp8) => {
            let value = |(col_idx, code): (usize, &u8)| {
                let scale_idx = match fp8.spread {
                    Fp8Spread::Block { n_rows, n_cols: shared } => {
                        let shared = usize::from(shared);
                        row_idx / usize::from(n_rows) * n_cols.div_ceil(shared) + col_idx / shared
                    }
                    Fp8Spread::Row => row_idx,
                    Fp8Spread::Matrix => 0,
                };
                let scale = match fp8.scale {
                    ScaleKind::Float(kind) => float(kind, matrix.scales(), scale_idx),
                    ScaleKind::E8m0 => power_of_two(matrix.scales()[scale_idx]),
                };
                fp8_e4m3(*code) * scale
            };
            codes.iter().enumerate().map(value).collect()
        }
        MatrixKind::Affine(affine) => {
            let group = usize::from(affine.group);
            let n_groups = n_cols / group;
            let values = |group_idx: usize| {
                let idx = row_idx * n_groups + group_idx;
                let scale = float(affine.scale, matrix.scales(), idx);
                let bias = match affine.biases {
                    Biases::Stored => float(affine.scale, matrix.biases(), idx),
                    Biases::Implied => -scale * f32::from(1_u16 << (affine.bits - 1)),
                };
                let cols = group_idx * group..(group_idx + 1) * group;
                cols.map(move |col_idx| f32::from(code(affine, codes, col_idx)) * scale + bias)
            };
            (0..n_groups).flat_map(values).collect()
        }
        MatrixKind::Block(_) => {
            let mut values = vec![0.0; n_cols];
            decode_row(matrix, row_idx, &mut values);
            values
        }
    }
}

/// Returns the value at index `idx` of an array of floats.
fn float(kind: FloatKind, bytes: &[u8], idx: usize) -> f32 {
    let at = &bytes[idx * kind.bytes()..][..kind.bytes()];
    match kind {
        FloatKind::F32 => f32::from_le_bytes([at[0], at[1], at[2], at[3]]),
        FloatKind::F16 => f16::from_le_bytes([at[0], at[1]]).to_f32(),
        FloatKind::Bf16 => bf16::from_le_bytes([at[0], at[1]]).to_f32(),
    }
}

/// Returns the code of a column: its bit `b` is bit `col_idx * bits + b` of the row.
fn code(affine: Affine, codes: &[u8], col_idx: usize) -> u8 {
    let bits = usize::from(affine.bits);
    let at = col_idx * bits;
    // The last code ends in the last byte.
    let next = codes.get(at / 8 + 1).copied().unwrap_or(0);
    let [low, _] = (u16::from_le_bytes([codes[at / 8], next]) >> (at % 8)).to_le_bytes();
    low & (u8::MAX >> (8 - bits))
}

/// Decodes eight bits of exponent (bias 127); all ones is NaN.
fn power_of_two(exponent: u8) -> f32 {
    if exponent == 0xFF { f32::NAN } else { (f32::from(exponent) - 127.0).exp2() }
}

/// Decodes a sign, four bits of exponent (bias 7) and three of mantissa. There are no infinities;
/// all ones is NaN.
fn fp8_e4m3(code: u8) -> f32 {
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let exponent = code >> 3 & 0xF;
    let mantissa = f32::from(code & 0x7);
    let magnitude = match (exponent, code & 0x7) {
        (0xF, 0x7) => f32::NAN,
        (0, _) => mantissa / 8.0 * (-6.0_f32).exp2(),
        _ => (1.0 + mantissa / 8.0) * (f32::from(exponent) - 7.0).exp2(),
    };
    sign * magnitude
}

#[cfg(test)]
mod tests {
    use moeflux_kernels::{Fp8, MatrixLayout};

    use super::*;
    use crate::backend::reference::fixture::assert_close;

    #[test]
    fn fp8_values_of_the_definition() {
        let table = [
            (0x00, 0.0),
            (0x01, 0.001_953_125),
            (0x07, 0.013_671_875),
            (0x08, 0.015_625),
            (0x38, 1.0),
            (0x3C, 1.5),
            (0xB8, -1.0),
            (0x7E, 448.0),
            (0xFE, -448.0),
        ];
        for (code, expected) in table {
            assert_eq!(fp8_e4m3(code).to_bits(), f32::to_bits(expected), "code {code:#x}");
        }
        assert!(fp8_e4m3(0x7F).is_nan() && fp8_e4m3(0xFF).is_nan());
    }

    #[test]
    fn codes_are_a_little_endian_bit_stream() {
        // The codes 1, 2, 3, 4, 5, 6, 7, 0 of three bits each: 0b000_111_110_101_100_011_010_001.
        let stream = 0b0001_1111_0101_1000_1101_0001_u32.to_le_bytes();
        let affine = Affine::new(3, 32, FloatKind::F32);
        let codes: Vec<u8> = (0..8).map(|col_idx| code(affine, &stream, col_idx)).collect();
        assert_eq!(codes, [1, 2, 3, 4, 5, 6, 7, 0]);
        let affine = Affine { bits: 5, ..affine };
        let stream = 0b01010_11111_00001_u32.to_le_bytes();
        let codes: Vec<u8> = (0..3).map(|col_idx| code(affine, &stream, col_idx)).collect();
        assert_eq!(codes, [1, 31, 10]);
    }

    #[test]
    fn affine_rows_use_their_own_groups_at_an_odd_address() {
        let affine = Affine::new(4, 32, FloatKind::F32);
        let layout = MatrixLayout::new(MatrixKind::Affine(affine), 2, 64).unwrap();
        let padded: Vec<u8> = std::iter::once(0).chain([0x21; 64]).collect();
        let floats = |values: [f32; 4]| values.map(f32::to_le_bytes).concat();
        let scales = floats([1.0, 2.0, -3.0, 0.5]);
        let biases = floats([0.0, 10.0, 100.0, -1.0]);
        let matrix = Matrix::new(layout, &padded[1..], &scales, &biases);
        let [first, second] = [row(&matrix, 0), row(&matrix, 1)];
        assert_close(&[first[0], first[1], first[32], first[33]], &[1.0, 2.0, 12.0, 14.0]);
        assert_close(&[second[30], second[31], second[62], second[63]], &[97.0, 94.0, -0.5, 0.0]);
    }

    #[test]
    fn fp8_scales_are_per_block() {
        let layout = MatrixLayout::new(MatrixKind::Fp8(Fp8::DEEPSEEK), 129, 130).unwrap();
        let codes = vec![0x38; layout.code_bytes()];
        let scales = [1.0_f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat();
        let matrix = Matrix::new(layout, &codes, &scales, &[]);
        let [first, last] = [row(&matrix, 127), row(&matrix, 128)];
        assert_close(&[first[127], first[128], last[127], last[128]], &[1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn halves_and_upper_halves() {
        let read = |kind, bytes: [u8; 2]| float(kind, &bytes, 0);
        assert_eq!(read(FloatKind::F16, 0xC500_u16.to_le_bytes()).to_bits(), (-5.0_f32).to_bits());
        assert_eq!(read(FloatKind::Bf16, 0x40A0_u16.to_le_bytes()).to_bits(), 5.0_f32.to_bits());
    }
}
