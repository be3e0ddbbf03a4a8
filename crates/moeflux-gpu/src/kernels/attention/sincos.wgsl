// Sine and cosine of any angle, with an absolute error of a unit in the last place or two of 1.
//
// WGSL guarantees nothing beyond pi. The angle is reduced in integers, from its bits, so that it is
// exactly the rounded f32, however a compiler would contract a product and a following difference.

// 1 / (2 pi) in 96 bits after the binary point.
const TURN_HIGH: u32 = 0x28be60dbu;
const TURN_MIDDLE: u32 = 0x9391054au;
const TURN_LOW: u32 = 0x7f09d5f4u;
// 2 pi / 2^32.
const RADIANS: f32 = 1.4629180792671596e-9;

// Returns the upper half of a product; `small` has at most 24 bits. Accurate to four units.
fn upper_half(small: u32, large: u32) -> u32 {
    let high = large >> 16u;
    let low = large & 0xffffu;
    let upper = small >> 8u;
    let lower = small & 0xffu;
    return ((upper * high) >> 8u) + ((upper * low) >> 24u) + ((lower * high) >> 16u);
}

// Returns the fraction of a full rotation of an angle of at least 0.5, in units of 2^-32; `bits`
// has no sign.
fn part_of_turn(bits: u32) -> u32 {
    let significand = (bits & 0x7fffffu) | 0x800000u;
    let power = i32(bits >> 23u) - 150;
    var high = TURN_HIGH;
    var low = TURN_MIDDLE;
    if power < 0 {
        let shift = u32(-power) & 31u;
        high = TURN_HIGH >> shift;
        low = (TURN_HIGH << (32u - shift)) | (TURN_MIDDLE >> shift);
    } else if power > 0 {
        // Angles of 2^55 and more do not occur for positions.
        let shift = u32(min(power, 31));
        high = (TURN_HIGH << shift) | (TURN_MIDDLE >> (32u - shift));
        low = (TURN_MIDDLE << shift) | (TURN_LOW >> (32u - shift));
    }
    return significand * high + upper_half(significand, low);
}

// Returns (cos, sin) of r from -pi/4 to pi/4.
fn turn_of_small(r: f32) -> vec2<f32> {
    let square = r * r;
    let sine = ((-1.9515295891e-4 * square + 8.3321608736e-3) * square - 1.6666654611e-1) * square;
    let cosine =
        ((2.443315711809948e-5 * square - 1.388731625493765e-3) * square + 4.166664568298827e-2)
            * square * square;
    return vec2(cosine - 0.5 * square + 1.0, sine * r + r);
}

// Returns (cos, sin) of an angle.
fn turn_of(angle: f32) -> vec2<f32> {
    let bits = bitcast<u32>(angle) & 0x7fffffffu;
    var quarter = 0u;
    var r = bitcast<f32>(bits);
    if bits >= 0x3f000000u {
        let part = part_of_turn(bits);
        quarter = (part + 0x20000000u) >> 30u;
        r = f32(bitcast<i32>(part - (quarter << 30u))) * RADIANS;
    }
    let small = turn_of_small(r);
    var turn = select(small, vec2(-small.y, small.x), (quarter & 1u) == 1u);
    turn = select(turn, -turn, (quarter & 2u) == 2u);
    return select(turn, vec2(turn.x, -turn.y), angle < 0.0);
}
