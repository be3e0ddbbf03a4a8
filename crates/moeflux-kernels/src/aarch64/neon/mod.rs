//! NEON: sixteen lanes in four registers.
//!
//! One by four outputs take sixteen of the thirty-two registers.
//! **Invariant:** a [`Neon`] exists only inside the functions of this table.

mod integers;
pub(super) mod dotprod;
pub(super) mod i8mm;

use std::arch::aarch64::{
    float32x4_t, vaddq_f32, vandq_u32, vbslq_f32, vcgtq_f32, vcvt_f32_f16, vcvtq_f32_u32,
    vdupq_n_f32, vdupq_n_u32, vextq_f32, vfmaq_f32, vget_high_u8, vget_high_u16, vget_low_u8,
    vget_low_u16, vld1_u16, vld1q_f32, vld1q_s32, vld1q_u8, vmovl_u8, vmovl_u16, vmulq_f32,
    vpaddq_f32, vreinterpret_f16_u16, vshlq_u32, vst1q_f32, vuzp1q_f32,
};

use crate::int8::int_simd_by_functions;
use crate::lanes::{LANES, Lanes, simd_by_functions};
use crate::table::{KernelTable, kernel_table};
use integers::{
    ByteQuarters, IntQuarters, NeonNibbleSums, ShortProducts, add_ints, add_products, close,
    dot_stored, either, field, field_floats, flip, floats, gather, half_floats, half_powers,
    high_halves, interleave, join, load_quads, look_up, low_halves, merge, no_ints, open, prefetch,
    products, reorder_values, store_codes, store_quads, transpose, transpose_lines,
};

kernel_table!("neon", Neon(()), features: "neon");

pub(super) fn table() -> Option<&'static KernelTable> {
    std::arch::is_aarch64_feature_detected!("neon").then_some(&TABLE)
}

/// Proof that the CPU has NEON.
#[derive(Clone, Copy)]
struct Neon(());

/// Lanes 0 to 3, 4 to 7, 8 to 11, 12 to 15.
type Quarters = [float32x4_t; 4];

simd_by_functions!(Neon, Quarters, float32x4_t, tile rows: 1);
int_simd_by_functions!(
    Neon, ByteQuarters, IntQuarters, NeonNibbleSums, ShortProducts, tiles: store_codes, dot_stored
);

#[inline]
#[target_feature(enable = "neon")]
fn splat(value: f32) -> Quarters {
    [vdupq_n_f32(value); 4]
}

#[inline]
#[target_feature(enable = "neon")]
fn load(lanes: &Lanes) -> Quarters {
    let (quarters, _) = lanes.as_chunks::<4>();
    [load4(&quarters[0]), load4(&quarters[1]), load4(&quarters[2]), load4(&quarters[3])]
}

#[inline]
#[target_feature(enable = "neon")]
fn store(vector: Quarters, lanes: &mut Lanes) {
    let (quarters, _) = lanes.as_chunks_mut::<4>();
    for (values, quarter) in vector.into_iter().zip(quarters) {
        *quarter = store4(values);
    }
}

/// These CPUs detect writes of whole lines, and do not read them first.
#[inline]
#[target_feature(enable = "neon")]
fn store_past_cache(vector: Quarters, lanes: &mut Lanes) {
    store(vector, lanes);
}

#[inline]
#[target_feature(enable = "neon")]
fn drain() {}

#[inline]
#[target_feature(enable = "neon")]
fn add(a: Quarters, b: Quarters) -> Quarters {
    [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1]), vaddq_f32(a[2], b[2]), vaddq_f32(a[3], b[3])]
}

#[inline]
#[target_feature(enable = "neon")]
fn mul(a: Quarters, b: Quarters) -> Quarters {
    [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1]), vmulq_f32(a[2], b[2]), vmulq_f32(a[3], b[3])]
}

#[inline]
#[target_feature(enable = "neon")]
fn max(a: Quarters, b: Quarters) -> Quarters {
    // The instruction of this name would return NaN.
    [
        vbslq_f32(vcgtq_f32(a[0], b[0]), a[0], b[0]),
        vbslq_f32(vcgtq_f32(a[1], b[1]), a[1], b[1]),
        vbslq_f32(vcgtq_f32(a[2], b[2]), a[2], b[2]),
        vbslq_f32(vcgtq_f32(a[3], b[3]), a[3], b[3]),
    ]
}

#[inline]
#[target_feature(enable = "neon")]
fn fma(a: Quarters, b: Quarters, acc: Quarters) -> Quarters {
    [
        vfmaq_f32(acc[0], a[0], b[0]),
        vfmaq_f32(acc[1], a[1], b[1]),
        vfmaq_f32(acc[2], a[2], b[2]),
        vfmaq_f32(acc[3], a[3], b[3]),
    ]
}

#[inline]
#[target_feature(enable = "neon")]
fn reduce4(vectors: [Quarters; 4]) -> float32x4_t {
    let [a, b, c, d] = vectors;
    // Even lanes hold the sums, odd lanes duplicate them.
    let ab = vpaddq_f32(to_two(a), to_two(b));
    let cd = vpaddq_f32(to_two(c), to_two(d));
    vuzp1q_f32(ab, cd)
}

/// Adds lanes `j` + `j + 8`, then + `j + 4`, then + `j + 2`: two sums, duplicated.
#[inline]
#[target_feature(enable = "neon")]
fn to_two(vector: Quarters) -> float32x4_t {
    let low = vaddq_f32(vector[0], vector[2]);
    let high = vaddq_f32(vector[1], vector[3]);
    let four = vaddq_f32(low, high);
    vaddq_f32(four, vextq_f32::<2>(four, four))
}

#[inline]
#[target_feature(enable = "neon")]
#[expect(clippy::cast_possible_wrap, reason = "at most 24")]
fn codes<const BITS: u32>(quads: [u32; 4]) -> Quarters {
    let bits = BITS as i32;
    let right_shifts = [0, -bits, -2 * bits, -3 * bits];
    // SAFETY: four readable values.
    let right_shifts = unsafe { vld1q_s32(right_shifts.as_ptr()) };
    let mask = vdupq_n_u32((1 << BITS) - 1);
    let [a, b, c, d] = quads.map(|quad| vdupq_n_u32(quad));
    [
        vcvtq_f32_u32(vandq_u32(vshlq_u32(a, right_shifts), mask)),
        vcvtq_f32_u32(vandq_u32(vshlq_u32(b, right_shifts), mask)),
        vcvtq_f32_u32(vandq_u32(vshlq_u32(c, right_shifts), mask)),
        vcvtq_f32_u32(vandq_u32(vshlq_u32(d, right_shifts), mask)),
    ]
}

#[inline]
#[target_feature(enable = "neon")]
fn bytes(codes: &[u8; LANES]) -> Quarters {
    // SAFETY: sixteen readable bytes.
    let codes = unsafe { vld1q_u8(codes.as_ptr()) };
    let low = vmovl_u8(vget_low_u8(codes));
    let high = vmovl_u8(vget_high_u8(codes));
    [
        vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))),
        vcvtq_f32_u32(vmovl_u16(vget_high_u16(low))),
        vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
        vcvtq_f32_u32(vmovl_u16(vget_high_u16(high))),
    ]
}

#[inline]
#[target_feature(enable = "neon")]
fn widened(bits: &[u16; LANES]) -> Quarters {
    let (quarters, _) = bits.as_chunks::<4>();
    [widened4(&quarters[0]), widened4(&quarters[1]), widened4(&quarters[2]), widened4(&quarters[3])]
}

#[inline]
#[target_feature(enable = "neon")]
fn widened4(bits: &[u16; 4]) -> float32x4_t {
    // SAFETY: four readable values.
    let bits = unsafe { vld1_u16(bits.as_ptr()) };
    vcvt_f32_f16(vreinterpret_f16_u16(bits))
}

#[inline]
#[target_feature(enable = "neon")]
fn load4(values: &[f32; 4]) -> float32x4_t {
    // SAFETY: four readable values.
    unsafe { vld1q_f32(values.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn store4(quad: float32x4_t) -> [f32; 4] {
    let mut values = [0.0; 4];
    // SAFETY: four writable values.
    unsafe { vst1q_f32(values.as_mut_ptr(), quad) };
    values
}

#[inline]
#[target_feature(enable = "neon")]
fn fma4(a: float32x4_t, b: float32x4_t, acc: float32x4_t) -> float32x4_t {
    vfmaq_f32(acc, a, b)
}
