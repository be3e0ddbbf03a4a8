//! Products of unsigned with signed bytes (USDOT): all codes as they are. All else is NEON.
//!
//! **Invariant:** an [`I8mm`] exists only inside the functions of this table.

use std::arch::aarch64::{float32x4_t, int8x16_t, int32x4_t, uint8x16_t, vdupq_n_s32};
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

static TABLE: KernelTable = KernelTable { name: "i8mm", int_matmul, ..KERNELS };

pub(in crate::aarch64) fn table() -> Option<&'static KernelTable> {
    let is_available = super::table().is_some() && std::arch::is_aarch64_feature_detected!("i8mm");
    is_available.then_some(&TABLE)
}

/// Proof that the CPU has NEON and its products of bytes of both kinds.
#[derive(Clone, Copy)]
struct I8mm(());

simd_by_functions!(I8mm, Quarters, float32x4_t, tile rows: 1);
int_simd_by_functions!(I8mm, ByteQuarters, IntQuarters, IntQuarters, int32x4_t);

#[target_feature(enable = "neon,i8mm")]
fn int_matmul(product: &IntProduct<'_>, out: &mut [f32]) {
    matmul(I8mm(()), product, out);
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
fn products(row: &[u8; 32], x: &[i8; 64]) -> int32x4_t {
    let ([a, b, c, d], x) = (row_codes(row), row_values(x));
    let sums = usdot(vdupq_n_s32(0), a, x[0]);
    let sums = usdot(sums, b, x[1]);
    let sums = usdot(sums, c, x[2]);
    usdot(sums, d, x[3])
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
