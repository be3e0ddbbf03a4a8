// Functions accurate to a unit in the last place or two. WGSL's own need not be: some drivers
// compute `exp` to six digits. NaN stays NaN.

const LOG2_E: f32 = 1.44269504;
// ln 2 in two parts. The first has so few bits that its product with a small integer is exact.
const LN_2_HIGH: f32 = 0.693359375;
const LN_2_LOW: f32 = -2.12194440e-4;

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

// 2 to a power from -126 to 127.
fn power_of_two(power: i32) -> f32 {
    return bitcast<f32>(u32(power + 127) << 23u);
}

fn exp_of(x: f32) -> f32 {
    // Beyond these the result is 0 or infinite.
    let bounded = clamp(x, -104.0, 89.0);
    let n = round(bounded * LOG2_E);
    let r = (bounded - n * LN_2_HIGH) - n * LN_2_LOW;
    var sum = 1.9875691500e-4;
    sum = sum * r + 1.3981999507e-3;
    sum = sum * r + 8.3334519073e-3;
    sum = sum * r + 4.1665795894e-2;
    sum = sum * r + 1.6666665459e-1;
    sum = sum * r + 5.0000001201e-1;
    let value = sum * r * r + r + 1.0;
    // Two factors, since the power alone may exceed the range of f32.
    let power = i32(n);
    let half = power >> 1u;
    return select(value * power_of_two(half) * power_of_two(power - half), x, is_nan(x));
}

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp_of(-x));
}

fn silu(x: f32) -> f32 {
    return x * sigmoid(x);
}

// ln(1 + x) for x from 0 to 1: 2 atanh(x / (2 + x)) as a series of odd powers up to 1/3.
fn ln_1p(x: f32) -> f32 {
    let s = x / (2.0 + x);
    let square = s * s;
    var sum = 1.0 / 17.0;
    sum = sum * square + 1.0 / 15.0;
    sum = sum * square + 1.0 / 13.0;
    sum = sum * square + 1.0 / 11.0;
    sum = sum * square + 1.0 / 9.0;
    sum = sum * square + 1.0 / 7.0;
    sum = sum * square + 1.0 / 5.0;
    sum = sum * square + 1.0 / 3.0;
    return 2.0 * s + 2.0 * s * square * sum;
}

// ln(1 + exp(x)): the exponential cannot overflow.
fn softplus(x: f32) -> f32 {
    return select(max(x, 0.0) + ln_1p(exp_of(-abs(x))), x, is_nan(x));
}
