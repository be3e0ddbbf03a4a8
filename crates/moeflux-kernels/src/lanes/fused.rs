//! A fused multiply-add of single values that rounds once, on every platform.
//!
//! If the processor's instruction is not known to exist, `f32::mul_add` calls the platform's
//! `fmaf`. Some of these round twice: MinGW's result is wrong a third of the time. **Invariant:**
//! the bits of the instruction, for every input; NaN stays NaN.

/// Returns `factor * self + addend`, rounded once.
pub(crate) trait FusedMultiplyAdd {
    fn fused(self, factor: f32, addend: f32) -> f32;
}

impl FusedMultiplyAdd for f32 {
    #[inline(always)]
    fn fused(self, factor: f32, addend: f32) -> f32 {
        if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
            // One instruction.
            #[expect(clippy::disallowed_methods, reason = "the target has the instruction")]
            return self.mul_add(factor, addend);
        }
        by_rounding_to_odd(self, factor, addend)
    }
}

/// The product is exact in f64, and so is the rounding error of the sum. An inexact sum is replaced
/// by its odd neighbour: with 29 bits more than f32, it then rounds to the same value as the exact
/// sum.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
fn by_rounding_to_odd(a: f32, b: f32, addend: f32) -> f32 {
    let (product, addend) = (f64::from(a) * f64::from(b), f64::from(addend));
    let sum = product + addend;
    // Rounding error of the sum: exact, as no value comes near the ends of f64's range. NaN if the
    // sum is not finite, and then no comparison holds.
    let added = sum - product;
    let lost = (product - (sum - added)) + (addend - added);
    let is_inexact = lost.abs() > 0.0;
    let step = if (lost < 0.0) == (sum < 0.0) { 1 } else { u64::MAX };
    let bits = sum.to_bits();
    let is_even = bits & 1 == 0;
    let odd = if is_inexact && is_even { bits.wrapping_add(step) } else { bits };
    f64::from_bits(odd) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use moeflux_testing::random::Rng;

    /// Values that affect rounding: ends of the range, neighbours of powers of two, ties.
    const HARD: [u32; 22] = [
        0,
        1,
        2,
        0x0000_ffff,
        0x007f_ffff,
        0x0080_0000,
        0x0080_0001,
        0x00ff_ffff,
        0x2000_0001,
        0x3380_0000,
        0x337f_ffff,
        0x3f7f_ffff,
        0x3f80_0000,
        0x3f80_0001,
        0x3f80_0800,
        0x4b80_0000,
        0x4b7f_ffff,
        0x5f00_0001,
        0x7f00_0000,
        0x7f7f_ffff,
        0x7f80_0000,
        0x7fc0_0000,
    ];

    /// Hashes the bits with FNV-1a, all NaNs alike.
    fn add(hash: u64, value: f32) -> u64 {
        let bits = if value.is_nan() { 0x7fc0_0000 } else { value.to_bits() };
        bits.to_le_bytes()
            .iter()
            .fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    #[track_caller]
    fn check(a: f32, b: f32, c: f32) -> f32 {
        let (got, expected) = (by_rounding_to_odd(a, b, c), libm::fmaf(a, b, c));
        let same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
        assert!(same, "{a:e} * {b:e} + {c:e}: {got:e}, not {expected:e}");
        got
    }

    #[test]
    fn hard_cases_round_once() {
        let signed = HARD.iter().flat_map(|&bits| [bits, bits | 0x8000_0000]).map(f32::from_bits);
        for a in signed.clone() {
            for b in signed.clone() {
                for c in signed.clone() {
                    check(a, b, c);
                }
                // Sums that cancel, and ties of the product alone.
                check(a, b, -(a * b));
                check(a, b, (a * b).next_up());
            }
        }
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "any other bit counts")]
    fn a_million_cases_give_the_recorded_sum() {
        let mut rng = Rng::new(54);
        let mut hash = 0xcbf2_9ce4_8422_2325;
        let mut n_twice = 0;
        for case in 0..1_000_000_u32 {
            let [a, b, c] = [(); 3].map(|()| (rng.bits() >> 32) as u32);
            // Products and addends of similar size, and arbitrary bits.
            let near = |bits: u32| f32::from_bits(bits & 0x83ff_ffff | 0x3c00_0000);
            let value: fn(u32) -> f32 = if case % 2 == 0 { near } else { f32::from_bits };
            let (a, b, c) = (value(a), value(b), value(c));
            let got = check(a, b, c);
            n_twice += u32::from(a * b + c != got && got.is_finite());
            hash = add(hash, got);
        }
        assert!(n_twice > 50_000, "{n_twice} cases tell two roundings from one");
        assert_eq!(hash, 0xa27e_8bc9_e097_8298, "the sum of the bits: {hash:#x}");
    }
}
