//! Exponentials with the same result on every platform.
//!
//! **Invariant:** additions and multiplications only, in a fixed order, so that a seed gives the
//! same answer everywhere. The system's `exp` differs in the last bit between systems.

/// ln 2 in two parts. The first has trailing zeros, so its product with a small integer is exact.
const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
/// Below this the result would be subnormal; such a weight is treated as 0.
const LEAST: f64 = -708.0;
/// Terms of the series. The next term is below 1e-17 in the range used, |x| <= ln 2 / 2.
const N_TERMS: usize = 14;
const INVERSE_FACTORIALS: [f64; N_TERMS] = inverse_factorials();

/// Rounds to an integer: if a much smaller number is added, the last bits of the sum hold that
/// number rounded, ties to even.
const ROUNDS: f64 = 6_755_399_441_055_744.0;

/// Returns e to the power of `x`, for `x` at most 0. Has no branches, so that loops are vectorised.
#[inline]
pub(super) fn exp_negative(x: f64) -> f64 {
    debug_assert!(x <= 0.0, "only for exponents up to 0");
    let bounded = if x < LEAST { LEAST } else { x };
    let rounded = bounded * std::f64::consts::LOG2_E + ROUNDS;
    let power = rounded - ROUNDS;
    let rest = (bounded - power * LN_2_HIGH) - power * LN_2_LOW;
    let mut sum = 0.0;
    for factor in INVERSE_FACTORIALS.iter().rev() {
        sum = sum * rest + factor;
    }
    // 2 to the power of an integer from -1022 to 0, built from its exponent bits.
    let scale = f64::from_bits(rounded.to_bits().wrapping_add(1023) << 52);
    if x < LEAST { 0.0 } else { sum * scale }
}

/// For f32: ln 2 in two parts, the smallest exponent, and the rounding constant.
const LN_2_HIGH_F32: f32 = 0.693_359_4;
const LN_2_LOW_F32: f32 = -2.121_944_4e-4;
const LEAST_F32: f32 = -87.0;
const ROUNDS_F32: f32 = 12_582_912.0;
/// 1/7! to 1/2!. The next term is below 1e-8 in the range used, |x| <= ln 2 / 2.
const TERMS_F32: [f32; 6] =
    [1.984_127e-4, 1.388_889e-3, 8.333_334e-3, 4.166_666_6e-2, 1.666_666_7e-1, 0.5];

/// As [`exp_negative`], with a relative error of about 1e-7, for sums over a whole vocabulary. The
/// last bit of a logit of 20 has ten times that effect.
#[inline]
pub(super) fn exp_negative_f32(x: f32) -> f32 {
    let bounded = if x < LEAST_F32 { LEAST_F32 } else { x };
    let rounded = bounded * std::f32::consts::LOG2_E + ROUNDS_F32;
    let power = rounded - ROUNDS_F32;
    let rest = (bounded - power * LN_2_HIGH_F32) - power * LN_2_LOW_F32;
    let mut sum = TERMS_F32[0];
    for factor in &TERMS_F32[1..] {
        sum = sum * rest + factor;
    }
    let sum = (sum * rest + 1.0) * rest + 1.0;
    let scale = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    if x < LEAST_F32 { 0.0 } else { sum * scale }
}

const fn inverse_factorials() -> [f64; N_TERMS] {
    let mut factors = [1.0; N_TERMS];
    let mut factorial = 1.0;
    let mut n = 1;
    let mut step = 1.0;
    while n < N_TERMS {
        factorial *= step;
        factors[n] = 1.0 / factorial;
        step += 1.0;
        n += 1;
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_systems_exp_to_the_last_bits() {
        let mut x = 0.0;
        while x > LEAST {
            let (got, expected) = (exp_negative(x), x.exp());
            assert!((got - expected).abs() <= 4.0 * f64::EPSILON * expected, "{x}: {got}");
            x -= 0.013_7;
        }
    }

    #[test]
    fn that_of_f32_agrees_to_a_few_of_its_last_bits() {
        let mut x = 0.0_f32;
        while x > LEAST_F32 {
            let (got, expected) = (f64::from(exp_negative_f32(x)), f64::from(x).exp());
            assert!((got - expected).abs() <= 2e-7 * expected, "{x}: {got}");
            x -= 0.001_37;
        }
        assert_eq!(exp_negative_f32(0.0).to_bits(), 1.0_f32.to_bits());
        assert_eq!(exp_negative_f32(-88.0).to_bits(), 0.0_f32.to_bits());
        assert_eq!(exp_negative_f32(f32::NEG_INFINITY).to_bits(), 0.0_f32.to_bits());
    }

    #[test]
    fn edges() {
        assert_eq!(exp_negative(0.0).to_bits(), 1.0_f64.to_bits());
        assert_eq!(exp_negative(-0.0).to_bits(), 1.0_f64.to_bits());
        assert_eq!(exp_negative(-709.0).to_bits(), 0.0_f64.to_bits());
        assert_eq!(exp_negative(f64::NEG_INFINITY).to_bits(), 0.0_f64.to_bits());
        assert!(exp_negative(LEAST) > 0.0);
    }
}
