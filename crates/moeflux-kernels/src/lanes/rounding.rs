//! Rounding of f32 to half precision, for caches, and conversion back from it and from bfloat16.
//!
//! **Invariant:** integer operations and one f32 operation, so that every CPU gives the same bits.
//! Conversion back is exact.

/// The smallest magnitude that half precision cannot hold, 65520: half a unit above 65504.
const TOO_LARGE: u32 = 0x477f_f000;

/// The smallest normal value of half precision, 2^-14, as f32.
const NORMAL_MIN: u32 = 0x3880_0000;

/// Rounds to the nearest value of half precision, ties to even. A magnitude that rounds to more
/// than 65504, or infinity, becomes NaN, so that a value out of range is noticed. NaN stays NaN.
///
/// # Panics
///
/// If lengths differ.
pub fn round_to_f16(values: &[f32], out: &mut [u16]) {
    assert_eq!(values.len(), out.len(), "a place for each value");
    for (value, out) in values.iter().zip(out) {
        *out = rounded(*value);
    }
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the value is below 2^16")]
fn rounded(value: f32) -> u16 {
    let sign = (value.to_bits() >> 16) & 0x8000;
    let magnitude = value.to_bits() & 0x7fff_ffff;
    // Half a unit of the last remaining bit, minus one if that bit is even; then the exponent's
    // bias of 127 becomes 15.
    let to_even = 0x0fff + ((magnitude >> 13) & 1);
    let normal = (magnitude.wrapping_add(to_even) >> 13).wrapping_sub(112 << 10);
    // The last place of 0.5 is 2^-24, the unit of subnormals: the addition rounds.
    let units = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let finite = if magnitude < NORMAL_MIN { units } else { normal };
    let bits = if magnitude >= TOO_LARGE { 0x7e00 } else { finite };
    (bits | sign) as u16
}

/// Returns the value of an f16's bits, without branches or denormal operands, which are slow on
/// some CPUs.
#[inline(always)]
pub(crate) fn from_f16(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff);
    let sign = u32::from(bits & 0x8000) << 16;
    let normal = (magnitude << 13) + (112 << 23);
    let subnormal = (exact(magnitude) * (1.0 / 16_777_216.0)).to_bits();
    let special = (magnitude << 13) | 0x7f80_0000;
    let value = if magnitude < 0x0400 { subnormal } else { normal };
    let value = if magnitude >= 0x7c00 { special } else { value };
    f32::from_bits(value | sign)
}

/// Returns the value of a bf16's bits.
#[inline(always)]
pub(crate) fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Converts an integer below 2^24, exactly. Goes through `i32`, which every instruction set
/// converts.
#[inline(always)]
#[expect(clippy::cast_possible_wrap, reason = "far below 2^31")]
pub(crate) fn exact(code: u32) -> f32 {
    code as i32 as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(value: f32) -> u16 {
        let mut out = [0];
        round_to_f16(&[value], &mut out);
        out[0]
    }

    #[test]
    fn roundings_are_those_of_the_standard() {
        let check = |value: f32| {
            let expected = half::f16::from_f32(value);
            let expected = match value {
                _ if value.is_nan() => half::f16::from_bits(0x7e00).copysign(expected),
                _ if expected.is_infinite() => half::f16::from_bits(0x7e00).copysign(expected),
                _ => expected,
            };
            assert_eq!(bits(value), expected.to_bits(), "{value:e}, {:x}", value.to_bits());
        };
        // Every half, the midpoints between them, and the neighbours of both.
        for half in 0..=u16::MAX {
            let value = half::f16::from_bits(half).to_f32();
            let next = half::f16::from_bits(half.wrapping_add(1)).to_f32();
            for value in [value, (value + next) / 2.0] {
                [value, value.next_up(), value.next_down()].into_iter().for_each(check);
            }
        }
        for exponent in 0..=0xff_u32 {
            for fraction in (0..0x80_0000_u32).step_by(9973) {
                let value = f32::from_bits((exponent << 23) | fraction);
                [value, -value].into_iter().for_each(check);
            }
        }
    }

    #[test]
    fn values_too_large_for_f16_become_nan() {
        assert_eq!(bits(65_504.0), 0x7bff);
        assert_eq!(bits(65_520.0_f32.next_down()), 0x7bff);
        assert_eq!(bits(65_520.0), 0x7e00);
        assert_eq!(bits(f32::MAX), 0x7e00);
        assert_eq!(bits(f32::NEG_INFINITY), 0xfe00);
        assert_eq!(bits(-f32::NAN) & 0x7fff, 0x7e00);
    }
}
