//! Keys and values as stored in a cache: in full, in half precision, or as 8-bit codes.
//!
//! **Invariant:** codes are those of an affine matrix with a row per position, so that scores are
//! products of that matrix with rounded queries. Rounding uses integer operations and single f32
//! operations, so that every CPU gives the same codes.

use crate::matrix::format::{Affine, FloatKind, Matrix, MatrixKind};

/// Larger magnitudes are treated as NaN: up to it, no difference of two overflows.
const LARGEST: f32 = f32::from_bits((127 + 100) << 23);

/// Groups with a smaller scale are stored as their bias alone: below it, `1 / scale` could
/// overflow.
const SCALE_MIN: f32 = f32::from_bits((127 - 100) << 23);

/// The largest code.
const CODE_MAX: f32 = 255.0;

/// Keys or values as stored in a cache.
#[derive(Clone, Copy, Debug)]
pub enum CachedValues<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Bits of half precision: see [`crate::round_to_f16`].
    F16(&'a [u16]),
    /// 8-bit codes: rows of a matrix from `first_row`, see [`CodeShape`].
    Codes {
        /// A row per position.
        matrix: Matrix<'a>,
        /// Row of the first position.
        first_row: usize,
    },
}

/// Positions of a cache.
#[derive(Clone, Copy, Debug)]
pub struct CachedRows<'a> {
    /// Values from the first one of the first position on.
    pub values: CachedValues<'a>,
    /// Number of positions.
    pub n_rows: usize,
    /// Values of one position.
    pub row_len: usize,
    /// Distance between positions, in values.
    pub stride: usize,
}

impl CachedRows<'_> {
    /// Checks that all positions exist.
    pub(crate) fn check(&self, n_rows_max: usize) {
        assert!(self.n_rows <= n_rows_max, "{} positions in a block", self.n_rows);
        assert!(self.row_len <= self.stride, "positions do not overlap");
        let (first, len) = match self.values {
            CachedValues::F32(values) => (0, values.len()),
            CachedValues::F16(values) => (0, values.len()),
            CachedValues::Codes { matrix, first_row } => {
                assert!(is_cached_kind(matrix.layout().kind), "codes as a cache keeps them");
                assert_eq!(matrix.layout().n_cols, self.stride, "a row per position");
                (first_row * self.stride, matrix.codes().len())
            }
        };
        let last = self.n_rows.checked_sub(1);
        let end = last.map_or(0, |last| first + last * self.stride + self.row_len);
        assert!(end <= len, "{end} values of a cache of {len}");
    }
}

fn is_cached_kind(kind: MatrixKind) -> bool {
    matches!(kind, MatrixKind::Affine(Affine { bits: 8, scale: FloatKind::Bf16, .. }))
}

/// Layout of a vector's codes: groups of 64 columns, or of 32 if that wastes less, each with a
/// scale and a bias in bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeShape {
    /// Columns including the padding of the last group.
    pub n_cols: usize,
    /// Columns of a group.
    pub group: u8,
}

impl CodeShape {
    /// Returns the layout for vectors of `n_values` values.
    #[must_use]
    pub const fn of(n_values: usize) -> Self {
        let n_cols = n_values.next_multiple_of(32);
        Self { n_cols, group: if n_cols.is_multiple_of(64) { 64 } else { 32 } }
    }

    /// Returns the kind of matrix whose rows the codes are.
    #[must_use]
    pub const fn kind(self) -> MatrixKind {
        MatrixKind::Affine(Affine::new(8, self.group, FloatKind::Bf16))
    }

    /// Returns the bytes of one vector's codes, scales and biases.
    #[must_use]
    pub const fn part_bytes(self) -> [usize; 3] {
        let factor_bytes = self.n_cols / self.group as usize * FloatKind::Bf16.bytes();
        [self.n_cols, factor_bytes, factor_bytes]
    }

    /// Rounds a vector. A group's bias is its minimum, rounded down; its scale is a 255th of the
    /// distance from there to the maximum, rounded up; and `code = rint((value - bias) / scale)`. A
    /// group with a NaN or a magnitude above 2^100 is all NaN.
    ///
    /// # Panics
    ///
    /// If the length of a part differs from [`CodeShape::part_bytes`].
    pub fn round(self, values: &[f32], codes: &mut [u8], [scales, biases]: [&mut [u8]; 2]) {
        let lengths = [codes.len(), scales.len(), biases.len()];
        assert_eq!((Self::of(values.len()), lengths), (self, self.part_bytes()), "parts");
        let group = usize::from(self.group);
        let (scales, _) = scales.as_chunks_mut::<2>();
        let (biases, _) = biases.as_chunks_mut::<2>();
        let factors = scales.iter_mut().zip(biases);
        let groups = values.chunks(group).zip(codes.chunks_exact_mut(group));
        for ((values, codes), (scale, bias)) in groups.zip(factors) {
            let rounded = round_group(values, codes);
            (*scale, *bias) = (rounded[0].to_le_bytes(), rounded[1].to_le_bytes());
        }
    }
}

/// Writes the codes of one group; returns the bits of its scale and bias.
#[expect(clippy::cast_possible_truncation, reason = "a code is at most 255")]
#[expect(clippy::cast_sign_loss, reason = "a code is not negative")]
fn round_group(values: &[f32], codes: &mut [u8]) -> [u16; 2] {
    let (mut least, mut largest, mut is_whole) = (LARGEST, -LARGEST, true);
    for &value in values {
        least = if value < least { value } else { least };
        largest = if value > largest { value } else { largest };
        is_whole &= value.abs() <= LARGEST;
    }
    codes.fill(0);
    if !is_whole {
        return [0x7fc0, 0];
    }
    let bias = rounded_down(least);
    let scale = (largest - widened(bias)) / CODE_MAX;
    if scale < SCALE_MIN {
        return [0, bias];
    }
    let scale = rounded_up(scale);
    let (bias_value, inverse) = (widened(bias), 1.0 / widened(scale));
    for (code, &value) in codes.iter_mut().zip(values) {
        let rounded = ((value - bias_value) * inverse).round_ties_even();
        *code = rounded.clamp(0.0, CODE_MAX) as u8;
    }
    [scale, bias]
}

fn widened(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Returns the largest bf16 that is not above a number.
fn rounded_down(value: f32) -> u16 {
    if value < 0.0 { away_from_zero(value) } else { towards_zero(value) }
}

/// Returns the smallest bf16 that is not below a positive number.
fn rounded_up(value: f32) -> u16 {
    away_from_zero(value)
}

fn towards_zero(value: f32) -> u16 {
    (value.to_bits() >> 16) as u16
}

fn away_from_zero(value: f32) -> u16 {
    let is_exact = value.to_bits() & 0xffff == 0;
    towards_zero(value) + u16::from(!is_exact)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MatrixLayout, decode_row};
    use moeflux_testing::random::Rng;

    /// Rounds a vector and decodes it again.
    fn kept(values: &[f32]) -> Vec<f32> {
        let shape = CodeShape::of(values.len());
        let [mut codes, mut scales, mut biases] = shape.part_bytes().map(|n| vec![0x55; n]);
        shape.round(values, &mut codes, [&mut scales, &mut biases]);
        let layout = MatrixLayout::new(shape.kind(), 1, shape.n_cols).unwrap();
        let mut out = vec![0.0; shape.n_cols];
        decode_row(&Matrix::new(layout, &codes, &scales, &biases), 0, &mut out);
        out.truncate(values.len());
        out
    }

    #[test]
    fn a_vector_has_whole_groups() {
        for (n_values, n_cols, group) in [
            (1, 32, 32),
            (32, 32, 32),
            (33, 64, 64),
            (64, 64, 64),
            (80, 96, 32),
            (128, 128, 64),
            (192, 192, 64),
            (512, 512, 64),
        ] {
            assert_eq!(CodeShape::of(n_values), CodeShape { n_cols, group });
        }
        assert_eq!(CodeShape::of(256).part_bytes(), [256, 8, 8]);
    }

    /// Checks one group: the bias is at most a 128th of the minimum below it, and the scale at most
    /// a 128th too large.
    fn check_errors(values: &[f32], kept: &[f32]) {
        let wide =
            |fold: fn(f32, f32) -> f32| f64::from(values.iter().copied().reduce(fold).unwrap());
        let (least, largest) = (wide(f32::min), wide(f32::max));
        let scale = (largest - least + least.abs() / 128.0) / 255.0 * (1.0 + 1.0 / 128.0);
        for (value, kept) in values.iter().zip(kept) {
            let error = (f64::from(*value) - f64::from(*kept)).abs();
            assert!(error <= 0.51 * scale, "{value} became {kept}, scale {scale}");
        }
    }

    #[test]
    fn errors_are_at_most_half_a_code() {
        let mut rng = Rng::new(60);
        for n_values in [1, 31, 32, 64, 70, 256] {
            let group = usize::from(CodeShape::of(n_values).group);
            for factor in [1e-20, 1e-3, 1.0, 300.0, 1e20] {
                let offset = rng.unit() * factor;
                let values: Vec<f32> =
                    rng.units(n_values).iter().map(|it| it * factor + offset).collect();
                let kept = kept(&values);
                let groups = values.chunks(group).zip(kept.chunks(group));
                groups.for_each(|(values, kept)| check_errors(values, kept));
            }
        }
    }

    #[test]
    fn edges_are_kept() {
        assert_eq!(kept(&[0.0; 40]), [0.0; 40]);
        assert_eq!(kept(&[1.0; 3]), [1.0; 3]);
        assert_eq!(kept(&[-0.5])[0].to_bits(), (-0.5_f32).to_bits());
        let tiny = [1e-40, -1e-40, 0.0];
        kept(&tiny).iter().for_each(|it| assert!(it.abs() <= 2e-38, "{it}"));
        assert!(kept(&[1.0, f32::NAN, 2.0]).iter().all(|it| it.is_nan()));
        for too_large in [f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -LARGEST.next_up()] {
            assert!(kept(&[0.0, too_large]).iter().all(|it| it.is_nan()), "{too_large}");
        }
        assert!(kept(&[LARGEST, -LARGEST]).iter().all(|it| it.is_finite()));
        let mut values = vec![1.0; 128];
        values[100] = f32::NAN;
        let kept = kept(&values);
        assert!(kept[..64].iter().all(|it| (*it - 1.0).abs() < 1e-6));
        assert!(kept[64..].iter().all(|it| it.is_nan()));
    }
}
