//! Dot products (SDOT): four products of signed bytes summed in one instruction. Everything else is
//! NEON.
//!
//! Wide codes are made signed by subtracting 128; 128 times the activations is added back.
//! **Invariant:** a [`Dotprod`] exists only inside the functions of this table.

use std::arch::aarch64::{
    float32x4_t, int8x16_t, int32x4_t, uint8x16_t, vaddvq_s32, vdupq_n_s8, vdupq_n_s32, vdupq_n_u8,
    veorq_u8, vpaddq_s32, vreinterpretq_s8_u8, vreinterpretq_s32_u8, vreinterpretq_u8_s32,
    vsubq_s32,
};
use std::arch::asm;

use super::integers::{
    ByteQuarters, IntQuarters, add_ints, broadcast, either, field, field_floats, flip, floats,
    gather, half_floats, half_powers, high_halves, interleave, line_codes, line_values, load_quads,
    load_values, look_up, low_halves, no_ints, prefetch, reorder_values, store_codes, store_quads,
    transpose,
};
use super::{
    KERNELS, Quarters, add, bytes, codes, drain, fma, fma4, load, load4, max, mul, reduce4, splat,
    store, store_past_cache, store4, unpack_blocks, widened,
};
use crate::int8::{IntProduct, IntScratch, StoredQuads, int_simd_by_functions, matmul};
use crate::lanes::{LANES, Lanes, simd_by_functions};
use crate::table::KernelTable;

static TABLE: KernelTable = KernelTable { name: "dotprod", int_matmul, ..KERNELS };

pub(in crate::aarch64) fn table() -> Option<&'static KernelTable> {
    let is_available =
        super::table().is_some() && std::arch::is_aarch64_feature_detected!("dotprod");
    is_available.then_some(&TABLE)
}

/// Proof that the CPU has NEON and its dot products.
#[derive(Clone, Copy)]
struct Dotprod(());

simd_by_functions!(Dotprod, Quarters, float32x4_t, tile rows: 1);
int_simd_by_functions!(
    Dotprod, ByteQuarters, IntQuarters, ExcessSums, WordProducts, tiles: store_codes, dot_stored
);

#[target_feature(enable = "neon,dotprod")]
fn int_matmul(product: &IntProduct<'_>, scratch: &mut IntScratch, out: &mut [f32]) {
    matmul(Dotprod(()), (product, unpack_blocks), scratch, out);
}

/// The sums of rows, and the excess to subtract from each of them: -128 times the activations.
type ExcessSums = (IntQuarters, int32x4_t);

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn open(ints: IntQuarters) -> ExcessSums {
    (ints, vdupq_n_s32(0))
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn add_products<const WIDE: bool>(
    ([a, b, c, d], excess): ExcessSums,
    codes: ByteQuarters,
    x: [i8; 4],
) -> ExcessSums {
    let x = broadcast(x);
    let codes = [
        signed::<WIDE>(codes[0]),
        signed::<WIDE>(codes[1]),
        signed::<WIDE>(codes[2]),
        signed::<WIDE>(codes[3]),
    ];
    let ints =
        [sdot(a, codes[0], x), sdot(b, codes[1], x), sdot(c, codes[2], x), sdot(d, codes[3], x)];
    (ints, if WIDE { sdot(excess, vdupq_n_s8(-128), x) } else { excess })
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn close<const WIDE: bool>(_: IntQuarters, ([a, b, c, d], excess): ExcessSums) -> IntQuarters {
    if !WIDE {
        return [a, b, c, d];
    }
    [vsubq_s32(a, excess), vsubq_s32(b, excess), vsubq_s32(c, excess), vsubq_s32(d, excess)]
}

/// For each piece of columns: eight products in each lane.
pub(super) type WordProducts = [int32x4_t; 4];

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn products(line: &[u8; 64], x: &[i8; 128]) -> WordProducts {
    let ([a, b, c, d], x) = (line_codes(line), line_values(x));
    [
        piece_products(a, x[0]),
        piece_products(b, x[1]),
        piece_products(c, x[2]),
        piece_products(d, x[3]),
    ]
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn piece_products([low, high]: [uint8x16_t; 2], [even, odd]: [int8x16_t; 2]) -> int32x4_t {
    let sums = sdot(vdupq_n_s32(0), signed::<false>(low), even);
    sdot(sums, signed::<false>(high), odd)
}

/// Sums the lanes of each input into one lane, for each piece.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn merge([a, b, c, d]: [WordProducts; 4]) -> WordProducts {
    [
        merge_piece([a[0], b[0], c[0], d[0]]),
        merge_piece([a[1], b[1], c[1], d[1]]),
        merge_piece([a[2], b[2], c[2], d[2]]),
        merge_piece([a[3], b[3], c[3], d[3]]),
    ]
}

#[inline]
#[target_feature(enable = "neon")]
fn merge_piece([a, b, c, d]: [int32x4_t; 4]) -> int32x4_t {
    vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d))
}

/// The lanes are words, which [`transpose`] moves as a whole.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn transpose_lines([a, b, c, d]: [WordProducts; 4]) -> [WordProducts; 4] {
    let [a, b, c, d] = transpose([to_bytes(a), to_bytes(b), to_bytes(c), to_bytes(d)]);
    [of_bytes(a), of_bytes(b), of_bytes(c), of_bytes(d)]
}

#[inline]
#[target_feature(enable = "neon")]
fn to_bytes([a, b, c, d]: WordProducts) -> ByteQuarters {
    let (a, b) = (vreinterpretq_u8_s32(a), vreinterpretq_u8_s32(b));
    [a, b, vreinterpretq_u8_s32(c), vreinterpretq_u8_s32(d)]
}

#[inline]
#[target_feature(enable = "neon")]
fn of_bytes([a, b, c, d]: ByteQuarters) -> WordProducts {
    let (a, b) = (vreinterpretq_s32_u8(a), vreinterpretq_s32_u8(b));
    [a, b, vreinterpretq_s32_u8(c), vreinterpretq_s32_u8(d)]
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn join([a, b, c, d]: [WordProducts; 4]) -> [IntQuarters; 4] {
    [
        [a[0], b[0], c[0], d[0]],
        [a[1], b[1], c[1], d[1]],
        [a[2], b[2], c[2], d[2]],
        [a[3], b[3], c[3], d[3]],
    ]
}

/// Multiplies four rows of activations at a time by sixteen rows of codes, into sixteen registers
/// of sums. Rows left over go two at a time, then one.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_stored<const WIDE: bool, const PICKS: usize>(
    stored: &[StoredQuads],
    x: &[&[i8]; PICKS],
) -> [IntQuarters; PICKS] {
    let (fours, _) = stored.as_chunks::<4>();
    let mut ints = [no_ints(); PICKS];
    let (ints_by_four, ints_left) = ints.as_chunks_mut::<4>();
    let (x_by_four, x_left) = x.as_chunks::<4>();
    for (ints, x) in ints_by_four.iter_mut().zip(x_by_four) {
        *ints = dot_some::<WIDE, 4>(fours, x);
    }
    let (ints_by_two, ints_left) = ints_left.as_chunks_mut::<2>();
    let (x_by_two, x_left) = x_left.as_chunks::<2>();
    for (ints, x) in ints_by_two.iter_mut().zip(x_by_two) {
        *ints = dot_some::<WIDE, 2>(fours, x);
    }
    for (ints, x) in ints_left.iter_mut().zip(x_left) {
        [*ints] = dot_some::<WIDE, 1>(fours, &[x]);
    }
    ints
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_some<const WIDE: bool, const PICKS: usize>(
    fours: &[[StoredQuads; 4]],
    x: &[&[i8]; PICKS],
) -> [IntQuarters; PICKS] {
    let mut pieces: [&[[i8; 16]]; PICKS] = [&[]; PICKS];
    for t in 0..PICKS {
        pieces[t] = &x[t].as_chunks().0[..fours.len()];
    }
    let mut sums = [open(no_ints()); PICKS];
    for (i, four) in fours.iter().enumerate() {
        let mut values = [vdupq_n_s8(0); PICKS];
        for t in 0..PICKS {
            values[t] = load_values(&pieces[t][i]);
            if WIDE {
                sums[t].1 = sdot(sums[t].1, vdupq_n_s8(-128), values[t]);
            }
        }
        let codes = signed_quads::<WIDE>(&four[0]);
        for t in 0..PICKS {
            sums[t].0 = add_lane::<0>(sums[t].0, codes, values[t]);
        }
        let codes = signed_quads::<WIDE>(&four[1]);
        for t in 0..PICKS {
            sums[t].0 = add_lane::<1>(sums[t].0, codes, values[t]);
        }
        let codes = signed_quads::<WIDE>(&four[2]);
        for t in 0..PICKS {
            sums[t].0 = add_lane::<2>(sums[t].0, codes, values[t]);
        }
        let codes = signed_quads::<WIDE>(&four[3]);
        for t in 0..PICKS {
            sums[t].0 = add_lane::<3>(sums[t].0, codes, values[t]);
        }
    }
    let mut ints = [no_ints(); PICKS];
    for t in 0..PICKS {
        // Each lane has summed different columns here.
        let excess = vdupq_n_s32(vaddvq_s32(sums[t].1));
        ints[t] = close::<WIDE>(no_ints(), (sums[t].0, excess));
    }
    ints
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn signed_quads<const WIDE: bool>(quads: &StoredQuads) -> [int8x16_t; 4] {
    let [a, b, c, d] = load_quads(quads);
    [signed::<WIDE>(a), signed::<WIDE>(b), signed::<WIDE>(c), signed::<WIDE>(d)]
}

/// Adds the products of sixteen rows with four values: word `LANE` of `x`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn add_lane<const LANE: usize>(
    [a, b, c, d]: IntQuarters,
    codes: [int8x16_t; 4],
    x: int8x16_t,
) -> IntQuarters {
    [
        sdot_lane::<LANE>(a, codes[0], x),
        sdot_lane::<LANE>(b, codes[1], x),
        sdot_lane::<LANE>(c, codes[2], x),
        sdot_lane::<LANE>(d, codes[3], x),
    ]
}

/// Returns codes as signed bytes: minus 128 if they are wide.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn signed<const WIDE: bool>(codes: uint8x16_t) -> int8x16_t {
    let codes = if WIDE { veorq_u8(codes, vdupq_n_u8(128)) } else { codes };
    vreinterpretq_s8_u8(codes)
}

/// Adds four products to each lane. This is assembly because the intrinsic is not stable.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: changes one register; this function has the feature.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b",
            sums = inout(vreg) sums, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// As [`sdot`], with word `LANE` of `b` for each word of `a`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot_lane<const LANE: usize>(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: changes one register; this function has the feature.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {a:v}.16b, {b:v}.4b[{lane}]",
            sums = inout(vreg) sums, a = in(vreg) a, b = in(vreg) b, lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}
