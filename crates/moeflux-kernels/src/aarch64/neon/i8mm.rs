//! Products of unsigned with signed bytes: all codes unchanged. Everything else is NEON.
//!
//! One row of activations uses USDOT; tiles use USMMLA, which multiplies two rows of codes by two
//! rows of activations, eight columns at a time. **Invariant:** an [`I8mm`] exists only inside the
//! functions of this table.

use std::arch::aarch64::{
    float32x4_t, int8x16_t, int32x4_t, uint8x16_t, vdupq_n_s8, vdupq_n_s32, vreinterpretq_s8_s64,
    vreinterpretq_s64_s8, vreinterpretq_u8_u32, vreinterpretq_u32_u8, vuzp1q_s32, vuzp2q_s32,
    vzip1q_s64, vzip1q_u32, vzip2q_s64, vzip2q_u32,
};
use std::arch::asm;
use std::ops::Range;

use super::dotprod::{WordProducts, join, merge, transpose_lines};
use super::integers::{
    ByteQuarters, IntQuarters, add_ints, broadcast, either, field, field_floats, flip, floats,
    gather, half_floats, half_powers, high_halves, interleave, line_codes, line_values, load_quads,
    load_values, look_up, low_halves, no_ints, prefetch, reorder_values, store_quads, transpose,
};
use super::{
    KERNELS, Quarters, add, bytes, codes, drain, fma, fma4, load, load4, max, mul, reduce4, splat,
    store, store_past_cache, store4, widened,
};
use crate::int8::{
    BlockMatrix, BlockScratch, CodeTile, IntProduct, IntScratch, StoredQuads, TileScales,
    int_simd_by_functions, matmul,
};
use crate::lanes::{LANES, Lanes, simd_by_functions};
use crate::table::KernelTable;

static TABLE: KernelTable = KernelTable { name: "i8mm", int_matmul, ..KERNELS };

pub(in crate::aarch64) fn table() -> Option<&'static KernelTable> {
    let is_available = super::table().is_some() && std::arch::is_aarch64_feature_detected!("i8mm");
    is_available.then_some(&TABLE)
}

/// Proof that the CPU has NEON and its mixed-sign byte products.
#[derive(Clone, Copy)]
struct I8mm(());

simd_by_functions!(I8mm, Quarters, float32x4_t, tile rows: 1);
int_simd_by_functions!(
    I8mm, ByteQuarters, IntQuarters, IntQuarters, WordProducts, tiles: store_codes, dot_stored
);

#[target_feature(enable = "neon,i8mm")]
fn int_matmul(product: &IntProduct<'_>, scratch: &mut IntScratch, out: &mut [f32]) {
    matmul(I8mm(()), (product, unpack_blocks), scratch, out);
}

/// Unpacks blocks; this table's tiles have their own order.
#[target_feature(enable = "neon,i8mm")]
fn unpack_blocks(
    rows: &BlockMatrix<'_>,
    cols: Range<usize>,
    scratch: &mut BlockScratch,
    target: (&mut CodeTile, &mut TileScales),
) {
    crate::int8::unpack_blocks(I8mm(()), rows, cols, scratch, target);
}

#[inline]
#[target_feature(enable = "neon,i8mm")]
fn open(ints: IntQuarters) -> IntQuarters {
    ints
}

#[inline]
#[target_feature(enable = "neon,i8mm")]
fn add_products<const WIDE: bool>(
    [a, b, c, d]: IntQuarters,
    codes: ByteQuarters,
    x: [i8; 4],
) -> IntQuarters {
    let x = broadcast(x);
    [usdot(a, codes[0], x), usdot(b, codes[1], x), usdot(c, codes[2], x), usdot(d, codes[3], x)]
}

#[inline]
#[target_feature(enable = "neon,i8mm")]
fn close<const WIDE: bool>(_: IntQuarters, sums: IntQuarters) -> IntQuarters {
    sums
}

#[inline]
#[target_feature(enable = "neon,i8mm")]
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
#[target_feature(enable = "neon,i8mm")]
fn piece_products([low, high]: [uint8x16_t; 2], [even, odd]: [int8x16_t; 2]) -> int32x4_t {
    usdot(usdot(vdupq_n_s32(0), low, even), high, odd)
}

/// Stores codes so that eight columns of two rows are adjacent.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn store_codes(codes: &[ByteQuarters; 4], target: &mut [StoredQuads; 4]) {
    let (pairs, _) = codes.as_chunks::<2>();
    let (targets, _) = target.as_chunks_mut::<2>();
    for ([a, b], [first, second]) in pairs.iter().zip(targets) {
        let ([c, d], [e, f]) = (join_words(a[0], b[0]), join_words(a[1], b[1]));
        store_quads([c, d, e, f], first);
        let ([c, d], [e, f]) = (join_words(a[2], b[2]), join_words(a[3], b[3]));
        store_quads([c, d, e, f], second);
    }
}

/// Interleaves the words of `a` and `b`.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn join_words(a: uint8x16_t, b: uint8x16_t) -> [uint8x16_t; 2] {
    let (a, b) = (vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b));
    [vreinterpretq_u8_u32(vzip1q_u32(a, b)), vreinterpretq_u8_u32(vzip2q_u32(a, b))]
}

/// Multiplies four rows of activations by sixteen of codes in sixteen registers of sums. A single
/// row is computed twice, which takes no more instructions than USDOT.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn dot_stored<const WIDE: bool, const PICKS: usize>(
    stored: &[StoredQuads],
    x: &[&[i8]; PICKS],
) -> [IntQuarters; PICKS] {
    let (fours, _) = stored.as_chunks::<4>();
    let mut ints = [no_ints(); PICKS];
    let (ints_by_four, ints_left) = ints.as_chunks_mut::<4>();
    let (x_by_four, x_left) = x.as_chunks::<4>();
    for (ints, [a, b, c, d]) in ints_by_four.iter_mut().zip(x_by_four) {
        let [[e, f], [g, h]] = dot_pairs([[a, b], [c, d]], fours);
        *ints = [e, f, g, h];
    }
    let (ints_by_two, ints_left) = ints_left.as_chunks_mut::<2>();
    let (x_by_two, x_left) = x_left.as_chunks::<2>();
    for (ints, [a, b]) in ints_by_two.iter_mut().zip(x_by_two) {
        [*ints] = dot_pairs([[a, b]], fours);
    }
    for (ints, x) in ints_left.iter_mut().zip(x_left) {
        [[*ints, _]] = dot_pairs([[x, x]], fours);
    }
    ints
}

/// The sums of two rows of activations with rows `2 i` and `2 i + 1` of codes: by rows of codes,
/// then of activations.
type PairSums = [int32x4_t; 8];

#[inline]
#[target_feature(enable = "neon,i8mm")]
fn dot_pairs<const PAIRS: usize>(
    x: [[&[i8]; 2]; PAIRS],
    fours: &[[StoredQuads; 4]],
) -> [[IntQuarters; 2]; PAIRS] {
    let mut pieces: [[&[[i8; 16]]; 2]; PAIRS] = [[&[]; 2]; PAIRS];
    for t in 0..PAIRS {
        pieces[t] = [&x[t][0].as_chunks().0[..fours.len()], &x[t][1].as_chunks().0[..fours.len()]];
    }
    let mut sums = [[vdupq_n_s32(0); 8]; PAIRS];
    for (i, [a, b, c, d]) in fours.iter().enumerate() {
        let mut values = [[vdupq_n_s8(0); 2]; PAIRS];
        for t in 0..PAIRS {
            values[t] = values_of_two(&pieces[t][0][i], &pieces[t][1][i]);
        }
        let (low, high) = (load_quads(a), load_quads(b));
        for t in 0..PAIRS {
            sums[t] = multiply_add(sums[t], [low, high], values[t][0]);
        }
        let (low, high) = (load_quads(c), load_quads(d));
        for t in 0..PAIRS {
            sums[t] = multiply_add(sums[t], [low, high], values[t][1]);
        }
    }
    let mut ints = [[no_ints(); 2]; PAIRS];
    for t in 0..PAIRS {
        ints[t] = by_activations(sums[t]);
    }
    ints
}

/// Loads sixteen columns of two rows, eight of both at a time.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn values_of_two(a: &[i8; 16], b: &[i8; 16]) -> [int8x16_t; 2] {
    let (a, b) = (vreinterpretq_s64_s8(load_values(a)), vreinterpretq_s64_s8(load_values(b)));
    [vreinterpretq_s8_s64(vzip1q_s64(a, b)), vreinterpretq_s8_s64(vzip2q_s64(a, b))]
}

#[inline]
#[target_feature(enable = "neon,i8mm")]
fn multiply_add(sums: PairSums, [low, high]: [ByteQuarters; 2], x: int8x16_t) -> PairSums {
    let [a, b, c, d, e, f, g, h] = sums;
    [
        usmmla(a, low[0], x),
        usmmla(b, low[1], x),
        usmmla(c, low[2], x),
        usmmla(d, low[3], x),
        usmmla(e, high[0], x),
        usmmla(f, high[1], x),
        usmmla(g, high[2], x),
        usmmla(h, high[3], x),
    ]
}

/// Returns the sums of the first row of activations, then of the second.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn by_activations([a, b, c, d, e, f, g, h]: PairSums) -> [IntQuarters; 2] {
    [
        [vuzp1q_s32(a, b), vuzp1q_s32(c, d), vuzp1q_s32(e, f), vuzp1q_s32(g, h)],
        [vuzp2q_s32(a, b), vuzp2q_s32(c, d), vuzp2q_s32(e, f), vuzp2q_s32(g, h)],
    ]
}

/// Adds four products to each lane. Its intrinsic is not stable.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn usdot(mut sums: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: changes one register; this function has the feature.
    unsafe {
        asm!(
            "usdot {sums:v}.4s, {codes:v}.16b, {x:v}.16b",
            sums = inout(vreg) sums, codes = in(vreg) codes, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Adds eight products to each lane: rows of eight codes by rows of eight values. Its intrinsic is
/// not stable.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn usmmla(mut sums: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: changes one register; this function has the feature.
    unsafe {
        asm!(
            "usmmla {sums:v}.4s, {codes:v}.16b, {x:v}.16b",
            sums = inout(vreg) sums, codes = in(vreg) codes, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}
