//! Integers of sixteen rows in four registers of four rows each.
//!
//! Sixteen bytes of rows `r`, `r + 4`, `r + 8` and `r + 12` are loaded together, and four such
//! loads are transposed, register by register. **Invariant:** sums in 16 bits stay below 2^15: a
//! half byte times an int8 is at most 15 * 127, and a lane sums at most sixteen of them.

use std::arch::aarch64::{
    float32x4_t, int8x16_t, int16x8_t, int32x4_t, uint8x16_t, uint32x4_t, vaddq_s32, vandq_u8,
    vandq_u32, vceqq_u32, vcvt_f32_f16, vcvtq_f32_s32, vcvtq_f32_u32, vdupq_n_s8, vdupq_n_s16,
    vdupq_n_s32, vdupq_n_u8, vdupq_n_u32, veorq_u8, vget_low_s8, vld1q_s8, vld1q_u8, vmaxq_u32,
    vmlal_high_s8, vmlal_s8, vmovn_u32, vmull_s8, vmulq_n_f32, vorrq_u8, vorrq_u32, vpadalq_s16,
    vpaddlq_s16, vpaddq_s16, vqtbl1q_u8, vreinterpret_f16_u16, vreinterpretq_f32_u32,
    vreinterpretq_s8_s32, vreinterpretq_s8_u8, vreinterpretq_s16_u8, vreinterpretq_s32_s8,
    vreinterpretq_u8_s16, vreinterpretq_u8_u16, vreinterpretq_u8_u64, vreinterpretq_u16_u8,
    vreinterpretq_u32_u8, vreinterpretq_u64_u32, vshlq_n_s32, vshlq_n_u32, vshlq_u8, vshlq_u32,
    vshrn_n_u32, vshrq_n_u8, vst1q_s8, vst1q_u8, vuzp1q_s32, vuzp2q_s32, vzip1q_u16, vzip1q_u32,
    vzip1q_u64, vzip2q_u16, vzip2q_u32, vzip2q_u64,
};
use std::arch::asm;

use super::Quarters;
use crate::int8::{HalfKind, StoredQuads};

/// Four bytes of rows 0 to 3, 4 to 7, 8 to 11, 12 to 15.
pub(super) type ByteQuarters = [uint8x16_t; 4];

/// Rows 0 to 3, 4 to 7, 8 to 11, 12 to 15.
pub(super) type IntQuarters = [int32x4_t; 4];

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load16(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: sixteen readable bytes.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_values(values: &[i8; 16]) -> int8x16_t {
    // SAFETY: sixteen readable bytes.
    unsafe { vld1q_s8(values.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn store16(bytes: uint8x16_t, target: &mut [u8; 16]) {
    // SAFETY: sixteen writable bytes.
    unsafe { vst1q_u8(target.as_mut_ptr(), bytes) };
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn gather(pieces: [&[u8; 16]; 4]) -> ByteQuarters {
    [load16(pieces[0]), load16(pieces[1]), load16(pieces[2]), load16(pieces[3])]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn transpose([a, b, c, d]: [ByteQuarters; 4]) -> [ByteQuarters; 4] {
    let [e, f, g, h] = transpose_words([a[0], b[0], c[0], d[0]]);
    let [i, j, k, l] = transpose_words([a[1], b[1], c[1], d[1]]);
    let [m, n, o, p] = transpose_words([a[2], b[2], c[2], d[2]]);
    let [q, r, s, t] = transpose_words([a[3], b[3], c[3], d[3]]);
    [[e, i, m, q], [f, j, n, r], [g, k, o, s], [h, l, p, t]]
}

/// Transposes 4 x 4 words.
#[inline]
#[target_feature(enable = "neon")]
fn transpose_words([a, b, c, d]: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
    let (a, b) = (vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b));
    let (c, d) = (vreinterpretq_u32_u8(c), vreinterpretq_u32_u8(d));
    let (ab, cd) = (vzip1q_u32(a, b), vzip1q_u32(c, d));
    let (ab_high, cd_high) = (vzip2q_u32(a, b), vzip2q_u32(c, d));
    [
        low_parts(ab, cd),
        high_parts(ab, cd),
        low_parts(ab_high, cd_high),
        high_parts(ab_high, cd_high),
    ]
}

#[inline]
#[target_feature(enable = "neon")]
fn low_parts(a: uint32x4_t, b: uint32x4_t) -> uint8x16_t {
    vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)))
}

#[inline]
#[target_feature(enable = "neon")]
fn high_parts(a: uint32x4_t, b: uint32x4_t) -> uint8x16_t {
    vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)))
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn interleave(low: ByteQuarters, high: ByteQuarters) -> [ByteQuarters; 2] {
    let [a, e] = interleave_words(low[0], high[0]);
    let [b, f] = interleave_words(low[1], high[1]);
    let [c, g] = interleave_words(low[2], high[2]);
    let [d, h] = interleave_words(low[3], high[3]);
    [[a, b, c, d], [e, f, g, h]]
}

#[inline]
#[target_feature(enable = "neon")]
fn interleave_words(low: uint8x16_t, high: uint8x16_t) -> [uint8x16_t; 2] {
    let (low, high) = (vreinterpretq_u16_u8(low), vreinterpretq_u16_u8(high));
    [vreinterpretq_u8_u16(vzip1q_u16(low, high)), vreinterpretq_u8_u16(vzip2q_u16(low, high))]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn half_floats(kind: HalfKind, [a, b, c, d]: ByteQuarters) -> [Quarters; 2] {
    let (a, b) = (vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b));
    let (c, d) = (vreinterpretq_u32_u8(c), vreinterpretq_u32_u8(d));
    match kind {
        HalfKind::Bf16 => [
            [low_bf16(a), low_bf16(b), low_bf16(c), low_bf16(d)],
            [high_bf16(a), high_bf16(b), high_bf16(c), high_bf16(d)],
        ],
        HalfKind::F16 => [
            [low_f16(a), low_f16(b), low_f16(c), low_f16(d)],
            [high_f16(a), high_f16(b), high_f16(c), high_f16(d)],
        ],
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn low_bf16(words: uint32x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(vshlq_n_u32::<16>(words))
}

#[inline]
#[target_feature(enable = "neon")]
fn high_bf16(words: uint32x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(vandq_u32(words, vdupq_n_u32(0xffff_0000)))
}

#[inline]
#[target_feature(enable = "neon")]
fn low_f16(words: uint32x4_t) -> float32x4_t {
    vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(words)))
}

#[inline]
#[target_feature(enable = "neon")]
fn high_f16(words: uint32x4_t) -> float32x4_t {
    vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32::<16>(words)))
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn low_halves([a, b, c, d]: ByteQuarters) -> ByteQuarters {
    let mask = vdupq_n_u8(15);
    [vandq_u8(a, mask), vandq_u8(b, mask), vandq_u8(c, mask), vandq_u8(d, mask)]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn high_halves([a, b, c, d]: ByteQuarters) -> ByteQuarters {
    [vshrq_n_u8::<4>(a), vshrq_n_u8::<4>(b), vshrq_n_u8::<4>(c), vshrq_n_u8::<4>(d)]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn field(quads: ByteQuarters, right: u32, left: u32, mask: u8) -> ByteQuarters {
    let [places, _, _, _] = (left.cast_signed() - right.cast_signed()).to_le_bytes();
    let (places, mask) = (vdupq_n_s8(places.cast_signed()), vdupq_n_u8(mask));
    [
        vandq_u8(vshlq_u8(quads[0], places), mask),
        vandq_u8(vshlq_u8(quads[1], places), mask),
        vandq_u8(vshlq_u8(quads[2], places), mask),
        vandq_u8(vshlq_u8(quads[3], places), mask),
    ]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn either(a: ByteQuarters, b: ByteQuarters) -> ByteQuarters {
    [vorrq_u8(a[0], b[0]), vorrq_u8(a[1], b[1]), vorrq_u8(a[2], b[2]), vorrq_u8(a[3], b[3])]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn flip([a, b, c, d]: ByteQuarters, bits: u8) -> ByteQuarters {
    let bits = vdupq_n_u8(bits);
    [veorq_u8(a, bits), veorq_u8(b, bits), veorq_u8(c, bits), veorq_u8(d, bits)]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn look_up(table: &[u8; 16], [a, b, c, d]: ByteQuarters) -> ByteQuarters {
    let table = load16(table);
    [vqtbl1q_u8(table, a), vqtbl1q_u8(table, b), vqtbl1q_u8(table, c), vqtbl1q_u8(table, d)]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn field_floats([a, b, c, d]: ByteQuarters, right: u32, mask: i32) -> Quarters {
    [
        word_floats(a, right, mask),
        word_floats(b, right, mask),
        word_floats(c, right, mask),
        word_floats(d, right, mask),
    ]
}

/// A byte of 0 encodes 2^-127: as a float, no exponent and the highest bit of the fraction. A byte
/// of 255 encodes NaN.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn half_powers([a, b, c, d]: ByteQuarters, right: u32) -> Quarters {
    [word_powers(a, right), word_powers(b, right), word_powers(c, right), word_powers(d, right)]
}

#[inline]
#[target_feature(enable = "neon")]
fn word_powers(words: uint8x16_t, right: u32) -> float32x4_t {
    let bytes = vshlq_u32(vreinterpretq_u32_u8(words), vdupq_n_s32(-right.cast_signed()));
    let all = vdupq_n_u32(0x7f80_0000);
    let exponents = vandq_u32(vshlq_n_u32::<23>(bytes), all);
    let highest = vdupq_n_u32(0x40_0000);
    let quiet = vandq_u32(vceqq_u32(exponents, all), highest);
    let powers = vorrq_u32(vmaxq_u32(exponents, highest), quiet);
    vmulq_n_f32(vreinterpretq_f32_u32(powers), 0.5)
}

#[inline]
#[target_feature(enable = "neon")]
fn word_floats(words: uint8x16_t, right: u32, mask: i32) -> float32x4_t {
    let words = vshlq_u32(vreinterpretq_u32_u8(words), vdupq_n_s32(-right.cast_signed()));
    vcvtq_f32_u32(vandq_u32(words, vdupq_n_u32(mask.cast_unsigned())))
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn load_quads(quads: &[u8; 64]) -> ByteQuarters {
    let (quarters, _) = quads.as_chunks::<16>();
    [load16(&quarters[0]), load16(&quarters[1]), load16(&quarters[2]), load16(&quarters[3])]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn store_quads([a, b, c, d]: ByteQuarters, target: &mut [u8; 64]) {
    let (quarters, _) = target.as_chunks_mut::<16>();
    store16(a, &mut quarters[0]);
    store16(b, &mut quarters[1]);
    store16(c, &mut quarters[2]);
    store16(d, &mut quarters[3]);
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn no_ints() -> IntQuarters {
    [vdupq_n_s32(0); 4]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn add_ints(a: IntQuarters, b: IntQuarters) -> IntQuarters {
    [vaddq_s32(a[0], b[0]), vaddq_s32(a[1], b[1]), vaddq_s32(a[2], b[2]), vaddq_s32(a[3], b[3])]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn floats([a, b, c, d]: IntQuarters) -> Quarters {
    [vcvtq_f32_s32(a), vcvtq_f32_s32(b), vcvtq_f32_s32(c), vcvtq_f32_s32(d)]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn prefetch<const NEAR: bool>(address: *const u8) {
    if !NEAR {
        crate::cpu::prefetch(address);
        return;
    }
    // SAFETY: a hint: no address faults.
    unsafe {
        asm!(
            "prfm pldl1keep, [{}]",
            in(reg) address,
            options(nostack, readonly, preserves_flags),
        );
    }
}

/// Repeats the four values in each word.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn broadcast(values: [i8; 4]) -> int8x16_t {
    let [a, b, c, d] = values;
    let bytes = [a.cast_unsigned(), b.cast_unsigned(), c.cast_unsigned(), d.cast_unsigned()];
    vreinterpretq_s8_s32(vdupq_n_s32(i32::from_le_bytes(bytes)))
}

/// Returns the codes of a line: for each sixteen bytes, low halves and high halves.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn line_codes(line: &[u8; 64]) -> [[uint8x16_t; 2]; 4] {
    let [a, b, c, d] = load_quads(line);
    [both_halves(a), both_halves(b), both_halves(c), both_halves(d)]
}

#[inline]
#[target_feature(enable = "neon")]
fn both_halves(bytes: uint8x16_t) -> [uint8x16_t; 2] {
    [vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes)]
}

/// Reorders values to match [`line_codes`].
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn reorder_values(x: &[i8; 128], target: &mut [i8; 128]) {
    let (pieces, _) = target.as_chunks_mut::<32>();
    for (x, target) in x.as_chunks::<32>().0.iter().zip(pieces) {
        let (x, _) = x.as_chunks::<16>();
        let (a, b) = (load_words(&x[0]), load_words(&x[1]));
        let halves = [vuzp1q_s32(a, b), vuzp2q_s32(a, b)];
        for (target, half) in target.as_chunks_mut::<16>().0.iter_mut().zip(halves) {
            // SAFETY: sixteen writable bytes.
            unsafe { vst1q_s8(target.as_mut_ptr(), vreinterpretq_s8_s32(half)) };
        }
    }
}

/// Loads the values of a line in the order of [`line_codes`].
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn line_values(x: &[i8; 128]) -> [[int8x16_t; 2]; 4] {
    let (x, _) = x.as_chunks::<16>();
    [
        [load_values(&x[0]), load_values(&x[1])],
        [load_values(&x[2]), load_values(&x[3])],
        [load_values(&x[4]), load_values(&x[5])],
        [load_values(&x[6]), load_values(&x[7])],
    ]
}

#[inline]
#[target_feature(enable = "neon")]
fn load_words(values: &[i8; 16]) -> int32x4_t {
    vreinterpretq_s32_s8(load_values(values))
}

/// For each piece of columns: four products in each lane.
pub(super) type ShortProducts = [int16x8_t; 4];

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn products(line: &[u8; 64], x: &[i8; 128]) -> ShortProducts {
    let ([a, b, c, d], x) = (line_codes(line), line_values(x));
    [
        piece_products(a, x[0]),
        piece_products(b, x[1]),
        piece_products(c, x[2]),
        piece_products(d, x[3]),
    ]
}

#[inline]
#[target_feature(enable = "neon")]
fn piece_products([low, high]: [uint8x16_t; 2], [even, odd]: [int8x16_t; 2]) -> int16x8_t {
    let (low, high) = (vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(high));
    let sums = vmull_s8(vget_low_s8(low), vget_low_s8(even));
    let sums = vmlal_high_s8(sums, low, even);
    let sums = vmlal_s8(sums, vget_low_s8(high), vget_low_s8(odd));
    vmlal_high_s8(sums, high, odd)
}

/// Merges four into two lanes each, with sixteen products per lane: at most 16 * 15 * 127 < 2^15.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn merge([a, b, c, d]: [ShortProducts; 4]) -> ShortProducts {
    [
        merge_piece([a[0], b[0], c[0], d[0]]),
        merge_piece([a[1], b[1], c[1], d[1]]),
        merge_piece([a[2], b[2], c[2], d[2]]),
        merge_piece([a[3], b[3], c[3], d[3]]),
    ]
}

#[inline]
#[target_feature(enable = "neon")]
fn merge_piece([a, b, c, d]: [int16x8_t; 4]) -> int16x8_t {
    vpaddq_s16(vpaddq_s16(a, b), vpaddq_s16(c, d))
}

/// Pairs of lanes are the words that [`transpose`] moves.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn transpose_lines([a, b, c, d]: [ShortProducts; 4]) -> [ShortProducts; 4] {
    let [a, b, c, d] = transpose([to_bytes(a), to_bytes(b), to_bytes(c), to_bytes(d)]);
    [of_bytes(a), of_bytes(b), of_bytes(c), of_bytes(d)]
}

#[inline]
#[target_feature(enable = "neon")]
fn to_bytes([a, b, c, d]: ShortProducts) -> ByteQuarters {
    let (a, b) = (vreinterpretq_u8_s16(a), vreinterpretq_u8_s16(b));
    [a, b, vreinterpretq_u8_s16(c), vreinterpretq_u8_s16(d)]
}

#[inline]
#[target_feature(enable = "neon")]
fn of_bytes([a, b, c, d]: ByteQuarters) -> ShortProducts {
    let (a, b) = (vreinterpretq_s16_u8(a), vreinterpretq_s16_u8(b));
    [a, b, vreinterpretq_s16_u8(c), vreinterpretq_s16_u8(d)]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn join([a, b, c, d]: [ShortProducts; 4]) -> [IntQuarters; 4] {
    [
        join_piece([a[0], b[0], c[0], d[0]]),
        join_piece([a[1], b[1], c[1], d[1]]),
        join_piece([a[2], b[2], c[2], d[2]]),
        join_piece([a[3], b[3], c[3], d[3]]),
    ]
}

#[inline]
#[target_feature(enable = "neon")]
fn join_piece([a, b, c, d]: [int16x8_t; 4]) -> IntQuarters {
    [vpaddlq_s16(a), vpaddlq_s16(b), vpaddlq_s16(c), vpaddlq_s16(d)]
}

/// Products in 16 bits, four per row: two rows in a register.
pub(super) type Shorts = [[int16x8_t; 2]; 4];

/// Sums of the low halves of codes and, if codes are wide, of the high halves.
pub(super) type NeonNibbleSums = [Shorts; 2];

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn open(_: IntQuarters) -> NeonNibbleSums {
    [[[vdupq_n_s16(0); 2]; 4]; 2]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn add_products<const WIDE: bool>(
    [low, high]: NeonNibbleSums,
    codes: ByteQuarters,
    x: [i8; 4],
) -> NeonNibbleSums {
    let x = broadcast(x);
    if !WIDE {
        return [multiply_add(low, codes, x), high];
    }
    [multiply_add(low, low_halves(codes), x), multiply_add(high, high_halves(codes), x)]
}

#[inline]
#[target_feature(enable = "neon")]
fn multiply_add(sums: Shorts, codes: ByteQuarters, x: int8x16_t) -> Shorts {
    [
        multiply_rows(sums[0], codes[0], x),
        multiply_rows(sums[1], codes[1], x),
        multiply_rows(sums[2], codes[2], x),
        multiply_rows(sums[3], codes[3], x),
    ]
}

#[inline]
#[target_feature(enable = "neon")]
fn multiply_rows([a, b]: [int16x8_t; 2], codes: uint8x16_t, x: int8x16_t) -> [int16x8_t; 2] {
    let codes = vreinterpretq_s8_u8(codes);
    [vmlal_s8(a, vget_low_s8(codes), vget_low_s8(x)), vmlal_high_s8(b, codes, x)]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn close<const WIDE: bool>(
    ints: IntQuarters,
    [low, high]: NeonNibbleSums,
) -> IntQuarters {
    let ints = add_rows(ints, low);
    if !WIDE {
        return ints;
    }
    let [a, b, c, d] = add_rows(no_ints(), high);
    let sixteenfold =
        [vshlq_n_s32::<4>(a), vshlq_n_s32::<4>(b), vshlq_n_s32::<4>(c), vshlq_n_s32::<4>(d)];
    add_ints(ints, sixteenfold)
}

#[inline]
#[target_feature(enable = "neon")]
fn add_rows(ints: IntQuarters, sums: Shorts) -> IntQuarters {
    [
        add_fours(ints[0], sums[0]),
        add_fours(ints[1], sums[1]),
        add_fours(ints[2], sums[2]),
        add_fours(ints[3], sums[3]),
    ]
}

/// Adds the sum of each four lanes. Sums of two still fit 16 bits: 2 * 8 * 15 * 127 < 2^15.
#[inline]
#[target_feature(enable = "neon")]
fn add_fours(ints: int32x4_t, [a, b]: [int16x8_t; 2]) -> int32x4_t {
    vpadalq_s16(ints, vpaddq_s16(a, b))
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn store_codes(codes: &[ByteQuarters; 4], target: &mut [StoredQuads; 4]) {
    for (codes, target) in codes.iter().zip(target) {
        store_quads(*codes, target);
    }
}

/// Processes one row of activations at a time: its 16-bit sums leave no registers for more.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn dot_stored<const WIDE: bool, const PICKS: usize>(
    stored: &[StoredQuads],
    x: &[&[i8]; PICKS],
) -> [IntQuarters; PICKS] {
    let mut ints = [no_ints(); PICKS];
    for (ints, x) in ints.iter_mut().zip(x) {
        *ints = dot_row::<WIDE>(stored, x);
    }
    ints
}

#[inline]
#[target_feature(enable = "neon")]
fn dot_row<const WIDE: bool>(stored: &[StoredQuads], x: &[i8]) -> IntQuarters {
    let mut ints = no_ints();
    for (stored, x) in stored.chunks(8).zip(x.as_chunks::<4>().0.chunks(8)) {
        let mut sums = open(ints);
        for (quads, x) in stored.iter().zip(x) {
            sums = add_products::<WIDE>(sums, load_quads(quads), *x);
        }
        ints = close::<WIDE>(ints, sums);
    }
    ints
}
