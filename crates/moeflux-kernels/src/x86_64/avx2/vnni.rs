//! AVX-VNNI: products of bytes summed in one instruction of 256 bits. Everything else is AVX2.
//!
//! **Invariant:** an [`AvxVnni`] exists only inside the functions of this table.

use std::arch::x86_64::{__m128, __m256i, _mm256_dpbusd_avx_epi32, _mm256_setzero_si256};

use super::integers::{
    IntPair, add_ints, broadcast, either, field, field_floats, flip, floats, gather, half_floats,
    half_powers, high_halves, interleave, join, line_codes, line_values, load_quads, look_up,
    low_halves, merge, no_ints, prefetch, reorder_values, store_quads, transpose,
    transpose as transpose_lines,
};
use super::{
    KERNELS, Pair, add, bytes, codes, drain, fma, fma4, load, load4, max, mul, reduce4, splat,
    store, store_past_cache, store4, unpack_blocks, widened,
};
use crate::int8::{IntProduct, IntScratch, int_simd_by_functions, matmul};
use crate::lanes::{LANES, Lanes, simd_by_functions};
use crate::table::KernelTable;

static TABLE: KernelTable = KernelTable { name: "avxvnni", int_matmul, ..KERNELS };

pub(in crate::x86_64) fn table() -> Option<&'static KernelTable> {
    let is_available = super::table().is_some() && is_x86_feature_detected!("avxvnni");
    is_available.then_some(&TABLE)
}

/// Proof that the CPU has AVX2, FMA and AVX-VNNI.
#[derive(Clone, Copy)]
struct AvxVnni(());

simd_by_functions!(AvxVnni, Pair, __m128, tile rows: 1);
int_simd_by_functions!(AvxVnni, IntPair, IntPair, IntPair, IntPair);

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn int_matmul(product: &IntProduct<'_>, scratch: &mut IntScratch, out: &mut [f32]) {
    matmul(AvxVnni(()), (product, unpack_blocks), scratch, out);
}

#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn open(ints: IntPair) -> IntPair {
    ints
}

#[inline]
#[target_feature(enable = "avx2,f16c,avxvnni")]
fn add_products<const WIDE: bool>([low, high]: IntPair, codes: IntPair, x: [i8; 4]) -> IntPair {
    let x = broadcast(x);
    [_mm256_dpbusd_avx_epi32(low, codes[0], x), _mm256_dpbusd_avx_epi32(high, codes[1], x)]
}

#[inline]
#[target_feature(enable = "avx2,f16c,avxvnni")]
fn products(line: &[u8; 64], x: &[i8; 128]) -> IntPair {
    let ([a, b], [x, y]) = (line_codes(line), line_values(x));
    [half_products(a, x), half_products(b, y)]
}

#[inline]
#[target_feature(enable = "avx2,f16c,avxvnni")]
fn half_products([low, high]: IntPair, [even, odd]: IntPair) -> __m256i {
    let sums = _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), low, even);
    _mm256_dpbusd_avx_epi32(sums, high, odd)
}

#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn close<const WIDE: bool>(_: IntPair, sums: IntPair) -> IntPair {
    sums
}
