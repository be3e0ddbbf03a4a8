//! AVX-512 VNNI: products of bytes summed in one instruction. All else is AVX-512.
//!
//! **Invariant:** an [`Avx512Vnni`] exists only inside the functions of this table.

use std::arch::x86_64::{
    __m128, __m512, __m512i, _mm512_add_epi32, _mm512_dpbusd_epi32, _mm512_set1_epi32,
};

use super::integers::{
    floats, half_floats, halves, load_quads, no_ints, prefetch, quads, store_quads,
};
use super::{
    KERNELS, add, bytes, codes, fma, fma4, load, load4, mul, reduce4, splat, store, store4,
};
use crate::dispatch::KernelTable;
use crate::int8::{IntProduct, PIECE, int_simd_by_functions, matmul};
use crate::lanes::{LANES, Lanes, simd_by_functions};

static TABLE: KernelTable = KernelTable { name: "avx512vnni", int_matmul, ..KERNELS };

pub(in crate::x86_64) fn table() -> Option<&'static KernelTable> {
    let is_available = super::table().is_some() && is_x86_feature_detected!("avx512vnni");
    is_available.then_some(&TABLE)
}

/// Proof that the CPU has AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
struct Avx512Vnni(());

simd_by_functions!(Avx512Vnni, __m512, __m128, tile rows: 4);
int_simd_by_functions!(Avx512Vnni, __m512i, __m512i);

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn int_matmul(product: &IntProduct<'_>, out: &mut [f32]) {
    matmul(Avx512Vnni(()), product, out);
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn dot_quads<const WIDE: bool>(codes: &[__m512i; 8], x: &[i8; PIECE], acc: __m512i) -> __m512i {
    let (x, _) = x.as_chunks::<4>();
    let x = |i: usize| _mm512_set1_epi32(i32::from_le_bytes(x[i].map(i8::cast_unsigned)));
    // Two chains: one alone would wait for each of its own results.
    let (mut even, mut odd) = (acc, no_ints());
    for i in 0..4 {
        even = _mm512_dpbusd_epi32(even, codes[2 * i], x(2 * i));
        odd = _mm512_dpbusd_epi32(odd, codes[2 * i + 1], x(2 * i + 1));
    }
    _mm512_add_epi32(even, odd)
}
