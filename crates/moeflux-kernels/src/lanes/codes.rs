//! Decoding of sixteen stored codes or values at a time to f32.
//!
//! **Invariant:** exact (every code and value is an f32), for any address of the bytes. This module
//! knows neither scales nor groups.

use crate::lanes::rounding::{exact, from_bf16, from_f16};
use crate::lanes::{LANES, Simd};

/// Storage format of values.
pub(crate) trait ValueFormat {
    /// Bytes of sixteen values.
    const BYTES: usize;

    /// Decodes sixteen values from exactly [`ValueFormat::BYTES`] bytes.
    fn unpack<S: Simd>(simd: S, bytes: &[u8]) -> S::Vector;
}

/// Unsigned codes of `BITS` bits, in one little-endian stream.
pub(crate) struct PackedCodes<const BITS: u32>;

/// Unsigned codes of 8 bits.
pub(crate) struct ByteCodes;

/// IEEE single precision.
pub(crate) struct F32;

/// IEEE half precision.
pub(crate) struct F16;

/// The upper half of an f32.
pub(crate) struct Bf16;

/// FP8 e4m3: no infinity, NaN if all lower bits are set.
pub(crate) struct E4m3;

impl<const BITS: u32> ValueFormat for PackedCodes<BITS> {
    const BYTES: usize = 2 * BITS as usize;

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, bytes: &[u8]) -> S::Vector {
        let (low, high) = bytes.split_at(BITS as usize);
        let (low, high) = (word(low), word(high));
        let quads = [low, low >> (4 * BITS), high, high >> (4 * BITS)];
        simd.codes::<BITS>(quads.map(low_half))
    }
}

impl ValueFormat for ByteCodes {
    const BYTES: usize = LANES;

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, bytes: &[u8]) -> S::Vector {
        let (codes, _) = bytes.as_chunks::<LANES>();
        simd.bytes(&codes[0])
    }
}

impl ValueFormat for F32 {
    const BYTES: usize = 4 * LANES;

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, bytes: &[u8]) -> S::Vector {
        let (values, _) = bytes.as_chunks::<4>();
        let mut lanes = [0.0; LANES];
        for (lane, value) in lanes.iter_mut().zip(values) {
            *lane = f32::from_le_bytes(*value);
        }
        simd.load(&lanes)
    }
}

impl ValueFormat for F16 {
    const BYTES: usize = 2 * LANES;

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, bytes: &[u8]) -> S::Vector {
        let (values, _) = bytes.as_chunks::<2>();
        let mut lanes = [0.0; LANES];
        for (lane, value) in lanes.iter_mut().zip(values) {
            *lane = from_f16(u16::from_le_bytes(*value));
        }
        simd.load(&lanes)
    }
}

impl ValueFormat for Bf16 {
    const BYTES: usize = 2 * LANES;

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, bytes: &[u8]) -> S::Vector {
        let (values, _) = bytes.as_chunks::<2>();
        let mut lanes = [0.0; LANES];
        for (lane, value) in lanes.iter_mut().zip(values) {
            *lane = from_bf16(u16::from_le_bytes(*value));
        }
        simd.load(&lanes)
    }
}

impl ValueFormat for E4m3 {
    const BYTES: usize = LANES;

    #[inline(always)]
    fn unpack<S: Simd>(simd: S, bytes: &[u8]) -> S::Vector {
        let mut lanes = [0.0; LANES];
        for (lane, byte) in lanes.iter_mut().zip(bytes) {
            *lane = from_e4m3(*byte);
        }
        simd.load(&lanes)
    }
}

/// Returns the value of an e4m3's bits: exponent bias 7, subnormals in steps of 2^-9.
#[inline(always)]
pub(crate) fn from_e4m3(bits: u8) -> f32 {
    let magnitude = u32::from(bits & 0x7f);
    let sign = u32::from(bits & 0x80) << 24;
    let normal = (magnitude << 20) + (120 << 23);
    let subnormal = (exact(magnitude) * (1.0 / 512.0)).to_bits();
    let value = if magnitude < 8 { subnormal } else { normal };
    let value = if magnitude == 0x7f { f32::NAN.to_bits() } else { value };
    f32::from_bits(value | sign)
}

/// Loads eight codes of at most 6 bits.
#[inline(always)]
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "upper bits belong to the next quad")]
fn low_half(word: u64) -> u32 {
    word as u32
}
