//! Dot products (SDOT): four products of signed bytes summed in one instruction. All else is NEON.
//!
//! Wide codes are made signed by taking 128 away; 128 times the activations is added again.
//! **Invariant:** a [`Dotprod`] exists only inside the functions of this table.

use std::arch::aarch64::{
    float32x4_t, int8x16_t, int32x4_t, uint8x16_t, vdupq_n_s8, vdupq_n_s32, vdupq_n_u8, veorq_u8,
    vreinterpretq_s8_u8, vsubq_s32,
};
use std::arch::asm;

use super::integers::{
    ByteQuarters, IntQuarters, add_ints, broadcast, floats, gather, half_floats, high_halves,
    interleave, join, load_quads, low_halves, merge, no_ints, prefetch, row_codes, row_values,
    store_quads, transpose,
};
use super::{
    KERNELS, Quarters, add, bytes, codes, fma, fma4, load, load4, mul, reduce4, splat, store,
    store4,
};
use crate::dispatch::KernelTable;
use crate::int8::{IntProduct, int_simd_by_functions, matmul};
use crate::lanes::{LANES, Lanes, simd_by_functions};

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
int_simd_by_functions!(Dotprod, ByteQuarters, IntQuarters, Sums, int32x4_t);

#[target_feature(enable = "neon,dotprod")]
fn int_matmul(product: &IntProduct<'_>, out: &mut [f32]) {
    matmul(Dotprod(()), product, out);
}

/// The sums of rows, and what is to be taken from each of them: -128 times the activations.
type Sums = (IntQuarters, int32x4_t);

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn open(ints: IntQuarters) -> Sums {
    (ints, vdupq_n_s32(0))
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn add_products<const WIDE: bool>(
    ([a, b, c, d], excess): Sums,
    codes: ByteQuarters,
    x: [i8; 4],
) -> Sums {
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
fn close<const WIDE: bool>(_: IntQuarters, ([a, b, c, d], excess): Sums) -> IntQuarters {
    if !WIDE {
        return [a, b, c, d];
    }
    [vsubq_s32(a, excess), vsubq_s32(b, excess), vsubq_s32(c, excess), vsubq_s32(d, excess)]
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn products(row: &[u8; 32], x: &[i8; 64]) -> int32x4_t {
    let ([a, b, c, d], x) = (row_codes(row), row_values(x));
    let sums = sdot(vdupq_n_s32(0), signed::<false>(a), x[0]);
    let sums = sdot(sums, signed::<false>(b), x[1]);
    let sums = sdot(sums, signed::<false>(c), x[2]);
    sdot(sums, signed::<false>(d), x[3])
}

/// Codes as signed bytes: less 128 if they are wide.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn signed<const WIDE: bool>(codes: uint8x16_t) -> int8x16_t {
    let codes = if WIDE { veorq_u8(codes, vdupq_n_u8(128)) } else { codes };
    vreinterpretq_s8_u8(codes)
}

/// Adds four products to each lane. Its intrinsic is not stable.
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
