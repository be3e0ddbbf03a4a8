//! Quantises rows of floats to MLX affine weights, scales and biases.
//!
//! **Invariant:** the result has the same bits as that of mlx-lm on the CPU. All arithmetic is in
//! f32: the scale spans the group, the end of larger magnitude is represented exactly, and weights
//! are quantised with the scale before it is rounded to its stored type. Values must be finite.

use half::{bf16, f16};
use moeflux_kernels::{Affine, FloatKind};

/// Adding this to a number below 2^22 leaves that number, rounded to even, in the lowest bits.
const ROUNDER: f32 = 12_582_912.0;

/// The smallest scale, as in mlx-lm.
const SCALE_MIN: f32 = 1e-7;

/// Quantised weights that fill whole bytes at any bit width.
const CODES_PER_PACK: usize = 8;

/// The destination of a quantised matrix. Lengths must match its values exactly.
#[derive(Debug)]
pub(super) struct AffineTarget<'a> {
    pub(super) codes: &'a mut [u8],
    pub(super) scales: &'a mut [u8],
    pub(super) biases: &'a mut [u8],
}

/// Quantises whole groups.
///
/// # Panics
///
/// If lengths do not match, or the bit width is not supported.
pub(super) fn quantise(values: &[f32], affine: Affine, target: AffineTarget<'_>) {
    match affine.bits {
        2 => quantise_bits::<2>(values, affine, target),
        3 => quantise_bits::<3>(values, affine, target),
        4 => quantise_bits::<4>(values, affine, target),
        5 => quantise_bits::<5>(values, affine, target),
        6 => quantise_bits::<6>(values, affine, target),
        8 => quantise_bits::<8>(values, affine, target),
        bits => unreachable!("{bits}-bit codes: a layout has none"),
    }
}

fn quantise_bits<const BITS: usize>(values: &[f32], affine: Affine, target: AffineTarget<'_>) {
    let AffineTarget { codes, scales, biases } = target;
    let group = usize::from(affine.group);
    let scale_bytes = affine.scale.bytes();
    let n_groups = values.len() / group;
    assert_eq!(values.len(), n_groups * group, "whole groups");
    assert_eq!(codes.len(), values.len() * BITS / 8, "codes of {} values", values.len());
    assert_eq!((scales.len(), biases.len()), (n_groups * scale_bytes, n_groups * scale_bytes));
    let parts = values.chunks_exact(group).zip(codes.chunks_exact_mut(group * BITS / 8));
    let ends = scales.chunks_exact_mut(scale_bytes).zip(biases.chunks_exact_mut(scale_bytes));
    for ((values, codes), (scale_at, bias_at)) in parts.zip(ends) {
        let (scale, bias) = scale_and_bias(values, levels(BITS));
        encode::<BITS>(values, (scale, bias), codes);
        store(scale, affine.scale, scale_at);
        store(bias, affine.scale, bias_at);
    }
}

/// Returns the largest quantised value.
#[expect(clippy::cast_precision_loss, reason = "at most 255")]
const fn levels(bits: usize) -> f32 {
    ((1_u32 << bits) - 1) as f32
}

/// Uses eight lanes, which the compiler keeps in registers.
fn min_and_max(values: &[f32]) -> (f32, f32) {
    let mut min = [f32::INFINITY; 8];
    let mut max = [f32::NEG_INFINITY; 8];
    // Groups are multiples of 32.
    for chunk in values.as_chunks::<8>().0 {
        for lane in 0..8 {
            min[lane] = if chunk[lane] < min[lane] { chunk[lane] } else { min[lane] };
            max[lane] = if chunk[lane] > max[lane] { chunk[lane] } else { max[lane] };
        }
    }
    (min.into_iter().fold(f32::INFINITY, f32::min), max.into_iter().fold(min[0], f32::max))
}

fn scale_and_bias(values: &[f32], levels: f32) -> (f32, f32) {
    let (min, max) = min_and_max(values);
    let is_min_larger = min.abs() > max.abs();
    let span = ((max - min) / levels).max(SCALE_MIN);
    let (scale, edge) = if is_min_larger { (span, min) } else { (-span, max) };
    let code_of_zero = (edge / scale).round_ties_even();
    if code_of_zero == 0.0 { (scale, 0.0) } else { (edge / code_of_zero, edge) }
}

/// Computes `(value - bias) / scale`, rounded, clamped and packed. The quotient is at most twice
/// the largest quantised value, far below the limit of [`ROUNDER`].
fn encode<const BITS: usize>(values: &[f32], (scale, bias): (f32, f32), codes: &mut [u8]) {
    let last = ROUNDER + levels(BITS);
    let packs = values.as_chunks::<CODES_PER_PACK>().0.iter().zip(codes.chunks_exact_mut(BITS));
    for (values, pack) in packs {
        let rounded = values.map(|value| {
            let rounded = (value - bias) / scale + ROUNDER;
            rounded.max(ROUNDER).min(last).to_bits() & 0xff
        });
        let mut bits = 0_u64;
        for (idx, code) in rounded.into_iter().enumerate() {
            bits |= u64::from(code) << (idx * BITS);
        }
        pack.copy_from_slice(&bits.to_le_bytes()[..BITS]);
    }
}

/// Stores a value, rounded to the stored type.
pub(super) fn store(value: f32, kind: FloatKind, target: &mut [u8]) {
    match kind {
        FloatKind::F32 => target.copy_from_slice(&value.to_le_bytes()),
        FloatKind::F16 => target.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        FloatKind::Bf16 => target.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "codes are whole numbers from 0 to 255"
    )]
    fn as_code(value: f32) -> u64 {
        value as u64
    }

    /// The literal definition, one value at a time.
    fn by_definition(values: &[f32], bits: u32) -> (Vec<u64>, f32, f32) {
        let n_bins = ((1_u32 << bits) - 1) as f32;
        let min = values.iter().copied().fold(f32::INFINITY, f32::min);
        let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut scale = ((max - min) / n_bins).max(1e-7);
        if min.abs() <= max.abs() {
            scale = -scale;
        }
        let edge = if min.abs() > max.abs() { min } else { max };
        let q0 = (edge / scale).round_ties_even();
        let mut bias = 0.0;
        if q0 != 0.0 {
            scale = edge / q0;
            bias = edge;
        }
        let code = |value: &f32| ((value - bias) / scale).round_ties_even().clamp(0.0, n_bins);
        (values.iter().map(|value| as_code(code(value))).collect(), scale, bias)
    }

    fn check(values: &[f32], affine: Affine) {
        let n_groups = values.len() / usize::from(affine.group);
        let n_bits = usize::from(affine.bits);
        let mut codes = vec![0; values.len() * n_bits / 8];
        let [mut scales, mut biases] = [(); 2].map(|()| vec![0; n_groups * 4]);
        let target = AffineTarget { codes: &mut codes, scales: &mut scales, biases: &mut biases };
        quantise(values, affine, target);
        for (idx, group) in values.chunks_exact(usize::from(affine.group)).enumerate() {
            let (expected, scale, bias) = by_definition(group, u32::from(affine.bits));
            assert_eq!(scales[idx * 4..][..4], scale.to_le_bytes(), "{affine:?}");
            assert_eq!(biases[idx * 4..][..4], bias.to_le_bytes(), "{affine:?}");
            for (at, code) in expected.into_iter().enumerate() {
                let first_bit = (idx * usize::from(affine.group) + at) * n_bits;
                let found = (0..n_bits).fold(0_u64, |found, bit| {
                    let bit_at = first_bit + bit;
                    found | (u64::from(codes[bit_at / 8] >> (bit_at % 8) & 1) << bit)
                });
                assert_eq!(found, code, "{affine:?}, value {at} of group {idx}: {group:?}");
            }
        }
    }

    #[test]
    fn every_width_and_group_follows_the_definition() {
        let mut state = 1_u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        for bits in [2, 3, 4, 5, 6, 8] {
            for group in [32, 64, 128] {
                let affine = Affine::new(bits, group, FloatKind::F32);
                for shift in [0.0, 0.6, -0.6, 5.0, -1000.0] {
                    let values: Vec<f32> =
                        (0..1024).map(|_| (random() + shift) * (random() * 9.0).exp()).collect();
                    check(&values, affine);
                }
                check(&[0.0; 256], affine);
                check(&[-0.0; 128], affine);
                check(&[3.5; 128], affine);
                check(&[-1e-9; 128], affine);
                check(&[1e-40; 128], affine);
                let ramp: Vec<f32> = (0..256).map(|n| n as f32 * 0.125 - 16.0).collect();
                check(&ramp, affine);
            }
        }
    }

    #[test]
    fn scales_are_rounded_after_the_codes() {
        let values: Vec<f32> = (0..32).map(|n| n as f32 * 0.01).collect();
        for (kind, n_bytes) in [(FloatKind::F16, 2), (FloatKind::Bf16, 2), (FloatKind::F32, 4)] {
            let affine = Affine::new(8, 32, kind);
            let mut codes = vec![0; 32];
            let [mut scales, mut biases] = [(); 2].map(|()| vec![0; n_bytes]);
            let target =
                AffineTarget { codes: &mut codes, scales: &mut scales, biases: &mut biases };
            quantise(&values, affine, target);
            let (expected, scale, _) = by_definition(&values, 8);
            assert!(codes.iter().zip(expected).all(|(&code, it)| u64::from(code) == it));
            let mut stored = vec![0; n_bytes];
            store(scale, kind, &mut stored);
            assert_eq!(scales, stored);
        }
    }
}
