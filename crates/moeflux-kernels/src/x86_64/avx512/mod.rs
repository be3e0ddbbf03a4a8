//! AVX-512 (F, BW, DQ, VL): sixteen lanes in one register.
//!
//! Four by four outputs take sixteen of the thirty-two registers.
//! **Invariant:** an [`Avx512`] exists only inside the functions of this table.

mod integers;
mod strips;
pub(super) mod vnni;
pub(super) mod amx;

use std::arch::x86_64::{
    __m128, __m512, __m512i, _mm_fmadd_ps, _mm_loadu_ps, _mm_loadu_si128, _mm_setr_epi32,
    _mm_sfence, _mm_storeu_ps, _mm256_loadu_si256, _mm512_add_ps, _mm512_and_si512,
    _mm512_broadcast_i32x4, _mm512_castps512_ps128, _mm512_castsi128_si512, _mm512_cvtepi32_ps,
    _mm512_cvtepu8_epi32, _mm512_cvtph_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_max_ps,
    _mm512_mul_ps, _mm512_permute_ps, _mm512_permutexvar_epi32, _mm512_permutexvar_ps,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setr_epi32, _mm512_shuffle_f32x4, _mm512_srlv_epi32,
    _mm512_storeu_ps, _mm512_stream_ps,
};

use crate::int8::int_simd_by_functions;
use crate::lanes::{LANES, Lanes, simd_by_functions};
use crate::table::{KernelTable, kernel_table};
use integers::{
    NibbleSums, add_ints, add_products, close, either, field, field_floats, flip, floats, gather,
    half_floats, half_powers, high_halves, interleave, join, load_quads, look_up, low_halves,
    merge, no_ints, open, prefetch, products, reorder_values, store_quads, transpose,
    transpose as transpose_lines,
};

kernel_table!(
    "avx512", Avx512(()), features: "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"
);

pub(super) fn table() -> Option<&'static KernelTable> {
    let is_available = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    is_available.then_some(&TABLE)
}

/// Proof that the CPU has AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy)]
struct Avx512(());

simd_by_functions!(Avx512, __m512, __m128, tile rows: 4);
int_simd_by_functions!(Avx512, __m512i, __m512i, NibbleSums, __m512i, near bytes: 0);

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn splat(value: f32) -> __m512 {
    _mm512_set1_ps(value)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load(lanes: &Lanes) -> __m512 {
    // SAFETY: sixteen readable values; the load needs no alignment.
    unsafe { _mm512_loadu_ps(lanes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn store(vector: __m512, lanes: &mut Lanes) {
    // SAFETY: sixteen writable values; the store needs no alignment.
    unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), vector) };
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn store_past_cache(vector: __m512, lanes: &mut Lanes) {
    if !lanes.as_ptr().cast::<__m512>().is_aligned() {
        return store(vector, lanes);
    }
    // SAFETY: sixteen writable values at a multiple of 64 bytes; `drain` orders the store.
    unsafe { _mm512_stream_ps(lanes.as_mut_ptr(), vector) };
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn drain() {
    _mm_sfence();
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn add(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn mul(a: __m512, b: __m512) -> __m512 {
    _mm512_mul_ps(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn max(a: __m512, b: __m512) -> __m512 {
    _mm512_max_ps(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn fma(a: __m512, b: __m512, acc: __m512) -> __m512 {
    _mm512_fmadd_ps(a, b, acc)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn reduce4([a, b, c, d]: [__m512; 4]) -> __m128 {
    let ab = low_and_high_halves(a, b);
    let cd = low_and_high_halves(c, d);
    // Even 128-bit parts hold lanes 0..4 of each partial sum, odd ones lanes 4..8.
    let four = _mm512_add_ps(
        _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd),
        _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd),
    );
    let two = _mm512_add_ps(four, _mm512_permute_ps::<0b01_00_11_10>(four));
    let one = _mm512_add_ps(two, _mm512_permute_ps::<0b10_11_00_01>(two));
    let firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, one))
}

/// Adds lanes `j` + `j + 8` of `a`, then of `b`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn low_and_high_halves(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(
        _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
        _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b),
    )
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[expect(clippy::cast_possible_wrap, reason = "the same bits")]
fn codes<const BITS: u32>(quads: [u32; 4]) -> __m512 {
    let [a, b, c, d] = quads.map(|quad| quad as i32);
    let (bits, mask) = (BITS as i32, (1 << BITS) - 1);
    let shifts = _mm512_broadcast_i32x4(_mm_setr_epi32(0, bits, 2 * bits, 3 * bits));
    let spread = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    let words = _mm512_castsi128_si512(_mm_setr_epi32(a, b, c, d));
    let words = _mm512_permutexvar_epi32(spread, words);
    let codes = _mm512_and_si512(_mm512_srlv_epi32(words, shifts), _mm512_set1_epi32(mask));
    _mm512_cvtepi32_ps(codes)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn bytes(bytes: &[u8; LANES]) -> __m512 {
    // SAFETY: sixteen readable bytes; the load needs no alignment.
    let codes = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
    _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn widened(bits: &[u16; LANES]) -> __m512 {
    // SAFETY: thirty-two readable bytes; the load needs no alignment.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(bits.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load4(values: &[f32; 4]) -> __m128 {
    // SAFETY: four readable values; the load needs no alignment.
    unsafe { _mm_loadu_ps(values.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn store4(quad: __m128) -> [f32; 4] {
    let mut values = [0.0; 4];
    // SAFETY: four writable values; the store needs no alignment.
    unsafe { _mm_storeu_ps(values.as_mut_ptr(), quad) };
    values
}

#[inline]
#[target_feature(enable = "fma,avx512f,avx512bw,avx512dq,avx512vl")]
fn fma4(a: __m128, b: __m128, acc: __m128) -> __m128 {
    _mm_fmadd_ps(a, b, acc)
}
