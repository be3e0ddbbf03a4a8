//! Exponentials and the gates made of them, without a library's functions.
//!
//! Each value depends on its own inputs alone, by operations that round once: so every instruction
//! set gives the same bits, whichever of them the compiler takes many at a time.
//! **Invariant:** NaN stays NaN; no input traps.

/// Below it the result is 0: the last exponents are those of numbers without leading ones.
const EXP_LOWEST: f32 = -87.3;

/// Above it the result is infinite: the largest number whose exponential is not.
const EXP_HIGHEST: f32 = 88.722_83;

/// `exp(x)` within 2 units in the last place; 0 below -87.3, infinite above 88.72.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; `exp(r)` is its Taylor polynomial of degree 7, whose
/// remainder is below 2^-27.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    /// Adding it leaves a number rounded to an integer in the low bits.
    const ROUNDER: f32 = 12_582_912.0;
    /// Upper part of ln 2, with zeros at the end, so that its product with `n` is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;

    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUNDER);
    let n = shifted - ROUNDER;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let mut poly = 1.0_f32 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        poly = poly.mul_add(r, coefficient);
    }
    // The low bits of `shifted` are n: added to the exponent they multiply by 2^n.
    let value = f32::from_bits(poly.to_bits().wrapping_add(shifted.to_bits() << 23));
    let value = if x < EXP_LOWEST { 0.0 } else { value };
    let value = if x > EXP_HIGHEST { f32::INFINITY } else { value };
    if x.is_nan() { x } else { value }
}

/// `1 / (1 + exp(-x))` within 3 units in the last place or 2^-126.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x * sigmoid(x)` within 3 units in the last place or 2^-119.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `ln(1 + exp(x))` within 4 units in the last place or 2^-126.
#[inline(always)]
fn softplus(x: f32) -> f32 {
    let positive = if x > 0.0 { x } else { 0.0 };
    positive + ln_1p(exp(-x.abs()))
}

/// `ln(1 + x)` for `0 <= x <= 1`: twice the area tangent of `s = x / (2 + x)`, whose series has
/// a remainder below 2^-28 of the result after eight terms.
#[inline(always)]
fn ln_1p(x: f32) -> f32 {
    let s = x / (2.0 + x);
    let square = s * s;
    let mut series = 1.0_f32 / 17.0;
    for odd in [15.0_f32, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        series = series.mul_add(square, 1.0 / odd);
    }
    (series * square).mul_add(2.0 * s, 2.0 * s)
}

/// `exp(-y)` of `y = exp(a_log) * softplus(a + dt_bias)`: the error of `y` counts `y` times.
#[inline(always)]
fn decay(a: f32, a_log: f32, dt_bias: f32) -> f32 {
    exp(-(exp(a_log) * softplus(a + dt_bias)))
}

/// gpt_oss: `g * sigmoid(1.702 g) * (u + 1)`, after `g` is cut to at most `limit` and `u` to
/// `-limit ..= limit`.
#[inline(always)]
fn limited_swiglu(gate: f32, up: f32, limit: f32) -> f32 {
    let gate = if gate > limit { limit } else { gate };
    let up = if up > limit { limit } else { up };
    let up = if up < -limit { -limit } else { up };
    gate * sigmoid(1.702 * gate) * (up + 1.0)
}

#[inline(always)]
pub(crate) fn exp_all(values: &mut [f32], shift: f32) {
    for value in values {
        *value = exp(*value - shift);
    }
}

#[inline(always)]
pub(crate) fn sigmoid_all(values: &mut [f32]) {
    for value in values {
        *value = sigmoid(*value);
    }
}

#[inline(always)]
pub(crate) fn silu_all(values: &mut [f32]) {
    for value in values {
        *value = silu(*value);
    }
}

#[inline(always)]
pub(crate) fn mul_sigmoid(values: &mut [f32], gate: &[f32]) {
    for (value, &gate) in values.iter_mut().zip(gate) {
        *value *= sigmoid(gate);
    }
}

#[inline(always)]
pub(crate) fn mul_silu(values: &mut [f32], gate: &[f32]) {
    for (value, &gate) in values.iter_mut().zip(gate) {
        *value *= silu(gate);
    }
}

#[inline(always)]
pub(crate) fn swiglu(gates: &mut [f32], ups: &[f32], limit: Option<f32>) {
    let pairs = gates.iter_mut().zip(ups);
    match limit {
        None => pairs.for_each(|(gate, &up)| *gate = silu(*gate) * up),
        Some(limit) => pairs.for_each(|(gate, &up)| *gate = limited_swiglu(*gate, up, limit)),
    }
}

#[inline(always)]
pub(crate) fn decay_all(values: &mut [f32], a_log: &[f32], dt_bias: &[f32]) {
    for ((value, &a_log), &dt_bias) in values.iter_mut().zip(a_log).zip(dt_bias) {
        *value = decay(*value, a_log, dt_bias);
    }
}
