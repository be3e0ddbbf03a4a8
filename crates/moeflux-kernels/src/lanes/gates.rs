//! Exponentials and the gates built from them, without library functions.
//!
//! Each value depends on its own inputs alone, by operations that round once, so that every
//! instruction set gives the same bits, however the compiler vectorises them. **Invariant:** NaN
//! stays NaN; no input traps.

use crate::lanes::Simd;

/// Inputs below it give 0: the remaining results would be nearly or fully subnormal.
const EXP_LOWEST: f32 = -87.3;

/// Inputs above it give infinity: the largest number with a finite exponential.
const EXP_HIGHEST: f32 = 88.722_83;

/// Returns `exp(x)` within 2 units in the last place; 0 below -87.3, infinite above 88.72.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; `exp(r)` is its Taylor polynomial of degree 7, whose
/// remainder is below 2^-27.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: f32) -> f32 {
    /// Adding it rounds a number to an integer in the low bits.
    const ROUNDER: f32 = 12_582_912.0;
    /// Upper part of ln 2, with trailing zeros, so that its product with `n` is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;

    let shifted = simd.fma1(x, std::f32::consts::LOG2_E, ROUNDER);
    let n = shifted - ROUNDER;
    let r = simd.fma1(n, -LN_2_LOW, simd.fma1(n, -LN_2_HIGH, x));
    let mut poly = 1.0_f32 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        poly = simd.fma1(poly, r, coefficient);
    }
    // The low bits of `shifted` are n: added to the exponent they multiply by 2^n.
    let value = f32::from_bits(poly.to_bits().wrapping_add(shifted.to_bits() << 23));
    let value = if x < EXP_LOWEST { 0.0 } else { value };
    let value = if x > EXP_HIGHEST { f32::INFINITY } else { value };
    if x.is_nan() { x } else { value }
}

/// Returns `1 / (1 + exp(-x))` within 3 units in the last place or 2^-126.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(simd: S, x: f32) -> f32 {
    1.0 / (1.0 + exp(simd, -x))
}

/// Returns `x * sigmoid(x)` within 3 units in the last place or 2^-119.
#[inline(always)]
pub(crate) fn silu<S: Simd>(simd: S, x: f32) -> f32 {
    x / (1.0 + exp(simd, -x))
}

/// Returns `ln(1 + exp(x))` within 4 units in the last place or 2^-126.
#[inline(always)]
fn softplus<S: Simd>(simd: S, x: f32) -> f32 {
    let positive = if x > 0.0 { x } else { 0.0 };
    positive + ln_1p(simd, exp(simd, -x.abs()))
}

/// Returns `ln(1 + x)` for `0 <= x <= 1`: twice the inverse hyperbolic tangent of
/// `s = x / (2 + x)`, whose series has a remainder below 2^-28 of the result after eight terms.
#[inline(always)]
fn ln_1p<S: Simd>(simd: S, x: f32) -> f32 {
    let s = x / (2.0 + x);
    let square = s * s;
    let mut series = 1.0_f32 / 17.0;
    for odd in [15.0_f32, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        series = simd.fma1(series, square, 1.0 / odd);
    }
    simd.fma1(series * square, 2.0 * s, 2.0 * s)
}

/// Returns `exp(-y)` for `y = exp(a_log) * softplus(a + dt_bias)`. The relative error of `y` is
/// amplified `y` times.
#[inline(always)]
fn decay<S: Simd>(simd: S, a: f32, a_log: f32, dt_bias: f32) -> f32 {
    exp(simd, -(exp(simd, a_log) * softplus(simd, a + dt_bias)))
}

/// Returns gpt_oss's `g * sigmoid(1.702 g) * (u + 1)`, with the gate `g` clamped to at most
/// `limit`, and the up value `u` to `-limit ..= limit`.
#[inline(always)]
fn limited_swiglu<S: Simd>(simd: S, gate: f32, up: f32, limit: f32) -> f32 {
    let gate = if gate > limit { limit } else { gate };
    let up = if up > limit { limit } else { up };
    let up = if up < -limit { -limit } else { up };
    gate * sigmoid(simd, 1.702 * gate) * (up + 1.0)
}

#[inline(always)]
pub(crate) fn exp_all<S: Simd>(simd: S, values: &mut [f32], shift: f32) {
    for value in values {
        *value = exp(simd, *value - shift);
    }
}

#[inline(always)]
pub(crate) fn sigmoid_all<S: Simd>(simd: S, values: &mut [f32]) {
    for value in values {
        *value = sigmoid(simd, *value);
    }
}

#[inline(always)]
pub(crate) fn silu_all<S: Simd>(simd: S, values: &mut [f32]) {
    for value in values {
        *value = silu(simd, *value);
    }
}

#[inline(always)]
pub(crate) fn mul_sigmoid<S: Simd>(simd: S, values: &mut [f32], gate: &[f32]) {
    for (value, &gate) in values.iter_mut().zip(gate) {
        *value *= sigmoid(simd, gate);
    }
}

#[inline(always)]
pub(crate) fn mul_silu<S: Simd>(simd: S, values: &mut [f32], gate: &[f32]) {
    for (value, &gate) in values.iter_mut().zip(gate) {
        *value *= silu(simd, gate);
    }
}

#[inline(always)]
pub(crate) fn swiglu<S: Simd>(simd: S, gates: &mut [f32], ups: &[f32], limit: Option<f32>) {
    let pairs = gates.iter_mut().zip(ups);
    match limit {
        None => pairs.for_each(|(gate, &up)| *gate = silu(simd, *gate) * up),
        Some(limit) => pairs.for_each(|(gate, &up)| *gate = limited_swiglu(simd, *gate, up, limit)),
    }
}

#[inline(always)]
pub(crate) fn decay_all<S: Simd>(simd: S, values: &mut [f32], a_log: &[f32], dt_bias: &[f32]) {
    for ((value, &a_log), &dt_bias) in values.iter_mut().zip(a_log).zip(dt_bias) {
        *value = decay(simd, *value, a_log, dt_bias);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::Portable;
    use crate::tests::{same_bits, scalar};
    use crate::{RowOp, available};

    /// Returns a dense sweep of the range where values are neither 0 nor infinite, then every
    /// 4099th bit pattern of all.
    fn inputs() -> Vec<f32> {
        let walk = (-220_000..220_000).map(|i| i as f32 * 0.000_5);
        walk.chain((0..u32::MAX).step_by(4099).map(f32::from_bits)).collect()
    }

    #[expect(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
    fn rounded(value: f64) -> f32 {
        value as f32
    }

    /// Returns the error in units in the last place of the exact value's f32.
    fn units(value: f32, exact: f64) -> f64 {
        let near = rounded(exact.abs()).max(f32::MIN_POSITIVE);
        (f64::from(value) - exact).abs() / f64::from(near.next_up() - near)
    }

    /// Runs all inputs through every table. Fails if errors exceed `units_max`, or tables differ in
    /// a bit.
    fn check(
        what: &str,
        run: impl Fn(&crate::KernelTable, &mut [f32]),
        exact: impl Fn(f64) -> f64,
        units_max: impl Fn(f64) -> f64,
    ) {
        let inputs = inputs();
        let mut expected = inputs.clone();
        run(scalar(), &mut expected);
        let mut worst = 0.0_f64;
        for (&x, &value) in inputs.iter().zip(&expected) {
            let exact = exact(f64::from(x));
            if exact.is_nan() {
                assert!(value.is_nan(), "{what}({x:e}) = {value:e}");
                continue;
            }
            if exact.abs() < f64::from(f32::MAX) {
                let error = units(value, exact) / units_max(f64::from(x));
                assert!(error <= 1.0, "{what}({x:e}) = {value:e}, not {exact:e}: {error} of limit");
                worst = worst.max(error);
            }
        }
        assert!(worst > 0.2, "{what}: the limit is far from {worst}");
        for table in available() {
            let mut values = inputs.clone();
            run(table, &mut values);
            same_bits(&values, &expected, &format!("{what}, {}", table.name()));
        }
    }

    fn exact_exp(x: f64) -> f64 {
        if x < f64::from(EXP_LOWEST) { 0.0 } else { x.exp() }
    }

    fn exact_sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    #[test]
    fn exponentials_are_within_two_units() {
        let run = |table: &crate::KernelTable, values: &mut [f32]| {
            table.exp_shifted(values, 0.0);
        };
        check("exp", run, exact_exp, |_| 2.0);
        let edges = [f32::NEG_INFINITY, f32::NAN, 0.0, -0.0, f32::INFINITY, 88.722_83, 88.722_84];
        for table in available() {
            let mut values = edges;
            table.exp_shifted(&mut values, 0.0);
            let expected = [0.0, f32::NAN, 1.0, 1.0, f32::INFINITY, f32::NAN];
            same_bits(&values[..5], &expected[..5], table.name());
            assert!(units(values[5], exact_exp(f64::from(edges[5]))) <= 2.0, "{:e}", values[5]);
            assert!(values[6].is_infinite());
            let mut none = [f32::NEG_INFINITY];
            table.exp_shifted(&mut none, 3.0);
            same_bits(&none, &[0.0], table.name());
        }
    }

    #[test]
    fn sigmoids_and_silus_are_within_three_units() {
        let sigmoid = |table: &crate::KernelTable, values: &mut [f32]| {
            table.apply(&RowOp::Sigmoid, values);
        };
        // 2^-126 is 2^23 units of the smallest normal number.
        let limit = |x: f64| if x < -86.0 { f64::from(1 << 23) } else { 3.0 };
        check("sigmoid", sigmoid, exact_sigmoid, limit);
        let silu = |table: &crate::KernelTable, values: &mut [f32]| {
            let up = vec![1.0; values.len()];
            table.apply(&RowOp::SwiGlu { up: &up, limit: None }, values);
        };
        let limit = |x: f64| if x < -80.0 { f64::from(1 << 30) } else { 3.0 };
        check("silu", silu, |x| x / (1.0 + (-x).exp()), limit);
    }

    #[test]
    fn decays_are_within_stated_units() {
        for (a_log, dt_bias) in [(0.0_f32, 0.0_f32), (-3.5, 0.25), (1.5, -1.0)] {
            let run = |table: &crate::KernelTable, values: &mut [f32]| {
                let n = values.len();
                let (a_log, dt_bias) = (vec![a_log; n], vec![dt_bias; n]);
                table.apply(&RowOp::Decay { a_log: &a_log, dt_bias: &dt_bias }, values);
            };
            let y = move |x: f64| {
                // The sum is rounded to f32, which is not an error of the gate.
                let x = f64::from(rounded(x) + dt_bias);
                f64::from(a_log).exp() * (x.max(0.0) + (-x.abs()).exp().ln_1p())
            };
            // Below -87.3 the result counts as 0.
            let exact = move |x: f64| exact_exp(-y(x));
            check("decay", run, exact, move |x| {
                if y(x) > 87.2 { f64::from(1 << 30) } else { 2.0 + 6.0 * y(x) }
            });
        }
    }

    #[test]
    fn softplus_is_within_four_units() {
        for x in inputs() {
            let exact = f64::from(x).max(0.0) + (-f64::from(x).abs()).exp().ln_1p();
            let value = softplus(Portable, x);
            if x.is_nan() {
                assert!(value.is_nan());
            } else if x.is_finite() {
                // exp counts as 0 below -87.3.
                let limit = if x < -87.2 { 1e9 } else { 4.0 };
                assert!(units(value, exact) <= limit, "softplus({x:e}) = {value:e}, not {exact:e}");
            }
        }
    }

    #[test]
    fn gpt_oss_cuts_before_it_multiplies() {
        for table in available() {
            let mut gates = [9.0, -9.0, 0.5, f32::NAN, 1.0];
            let up = [2.0, -9.0, 9.0, 1.0, f32::NAN];
            table.apply(&RowOp::SwiGlu { up: &up, limit: Some(7.0) }, &mut gates);
            let exact = |gate: f64, up: f64| gate * exact_sigmoid(1.702 * gate) * (up + 1.0);
            let expected = [exact(7.0, 2.0), exact(-9.0, -7.0), exact(0.5, 7.0)];
            for (value, exact) in gates.into_iter().zip(expected) {
                // 1.702 times a gate is rounded before its sigmoid.
                assert!(units(value, exact) <= 32.0, "{}: {value}, not {exact}", table.name());
            }
            assert!(gates[3].is_nan() && gates[4].is_nan());
        }
    }
}
