//! AVX-VNNI: products of bytes summed in one instruction of 256 bits. All else is AVX2.
//!
//! **Invariant:** an [`AvxVnni`] exists only inside the functions of this table.

use std::arch::x86_64::{__m128, _mm256_dpbusd_avx_epi32, _mm256_set1_epi32};

use super::integers::{
    IntPair, floats, half_floats, halves, load_quads, no_ints, prefetch, quads, store_quads,
};
use super::{
    KERNELS, Pair, add, bytes, codes, fma, fma4, load, load4, mul, reduce4, splat, store, store4,
};
use crate::dispatch::KernelTable;
use crate::int8::{IntProduct, PIECE, int_simd_by_functions, matmul};
use crate::lanes::{LANES, Lanes, simd_by_functions};

static TABLE: KernelTable = KernelTable { name: "avxvnni", int_matmul, ..KERNELS };

pub(in crate::x86_64) fn table() -> Option<&'static KernelTable> {
    let is_available = super::table().is_some() && is_x86_feature_detected!("avxvnni");
    is_available.then_some(&TABLE)
}

/// Proof that the CPU has AVX2, FMA and AVX-VNNI.
#[derive(Clone, Copy)]
struct AvxVnni(());

simd_by_functions!(AvxVnni, Pair, __m128, tile rows: 1);
int_simd_by_functions!(AvxVnni, IntPair, IntPair);

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn int_matmul(product: &IntProduct<'_>, out: &mut [f32]) {
    matmul(AvxVnni(()), product, out);
}

#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn dot_quads<const WIDE: bool>(codes: &[IntPair; 8], x: &[i8; PIECE], acc: IntPair) -> IntPair {
    let (x, _) = x.as_chunks::<4>();
    let [mut low, mut high] = acc;
    for (codes, x) in codes.iter().zip(x) {
        let x = _mm256_set1_epi32(i32::from_le_bytes(x.map(i8::cast_unsigned)));
        low = _mm256_dpbusd_avx_epi32(low, codes[0], x);
        high = _mm256_dpbusd_avx_epi32(high, codes[1], x);
    }
    [low, high]
}
