//! AVX2 and FMA: sixteen lanes in two registers.
//!
//! One by four outputs take eight of the sixteen registers.
//! **Invariant:** an [`Avx2`] exists only inside the functions of this table.

mod integers;
pub(super) mod vnni;

use std::arch::x86_64::{
    __m128, __m256, _mm_add_ps, _mm_fmadd_ps, _mm_loadl_epi64, _mm_loadu_ps, _mm_loadu_si128,
    _mm_movehl_ps, _mm_movelh_ps, _mm_sfence, _mm_shuffle_ps, _mm_storeu_ps, _mm256_add_ps,
    _mm256_and_si256, _mm256_castps256_ps128, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32,
    _mm256_cvtph_ps, _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_max_ps,
    _mm256_mul_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi32, _mm256_srlv_epi32,
    _mm256_storeu_ps, _mm256_stream_ps,
};

use crate::int8::int_simd_by_functions;
use crate::lanes::{LANES, Lanes, simd_by_functions};
use crate::table::{KernelTable, kernel_table};
use integers::{
    IntPair, NibbleSums, add_ints, add_products, close, either, field, field_floats, flip, floats,
    gather, half_floats, half_powers, high_halves, interleave, join, load_quads, look_up,
    low_halves, merge, no_ints, open, prefetch, products, reorder_values, store_quads, transpose,
    transpose as transpose_lines,
};

kernel_table!("avx2", Avx2(()), features: "avx2,fma,f16c");

pub(super) fn table() -> Option<&'static KernelTable> {
    let is_available = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    is_available.then_some(&TABLE)
}

/// Proof that the CPU has AVX2 and FMA.
#[derive(Clone, Copy)]
struct Avx2(());

/// Lanes 0 to 7 and 8 to 15.
type Pair = [__m256; 2];

simd_by_functions!(Avx2, Pair, __m128, tile rows: 1);
int_simd_by_functions!(Avx2, IntPair, IntPair, NibbleSums, IntPair);

#[inline]
#[target_feature(enable = "avx2,fma")]
fn splat(value: f32) -> Pair {
    [_mm256_set1_ps(value); 2]
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn load(lanes: &Lanes) -> Pair {
    let (halves, _) = lanes.as_chunks::<8>();
    [load8(&halves[0]), load8(&halves[1])]
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn load8(values: &[f32; 8]) -> __m256 {
    // SAFETY: eight readable values; the load needs no alignment.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn store(vector: Pair, lanes: &mut Lanes) {
    let (halves, _) = lanes.as_chunks_mut::<8>();
    for (values, half) in vector.into_iter().zip(halves) {
        // SAFETY: eight writable values; the store needs no alignment.
        unsafe { _mm256_storeu_ps(half.as_mut_ptr(), values) };
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn store_past_cache(vector: Pair, lanes: &mut Lanes) {
    if !lanes.as_ptr().cast::<[__m256; 2]>().is_aligned() {
        return store(vector, lanes);
    }
    let (halves, _) = lanes.as_chunks_mut::<8>();
    for (values, half) in vector.into_iter().zip(halves) {
        // SAFETY: eight writable values at a multiple of 32 bytes; `drain` orders the store.
        unsafe { _mm256_stream_ps(half.as_mut_ptr(), values) };
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn drain() {
    _mm_sfence();
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn add(a: Pair, b: Pair) -> Pair {
    [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])]
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn mul(a: Pair, b: Pair) -> Pair {
    [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])]
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn max(a: Pair, b: Pair) -> Pair {
    [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])]
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn fma(a: Pair, b: Pair, acc: Pair) -> Pair {
    [_mm256_fmadd_ps(a[0], b[0], acc[0]), _mm256_fmadd_ps(a[1], b[1], acc[1])]
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn reduce4(vectors: [Pair; 4]) -> __m128 {
    let [a, b, c, d] = vectors;
    quarter_sums([to_four(a), to_four(b), to_four(c), to_four(d)])
}

/// Adds lanes `j` + `j + 8`, then + `j + 4`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn to_four(vector: Pair) -> __m128 {
    let eight = _mm256_add_ps(vector[0], vector[1]);
    _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight))
}

/// Adds, in each register, lanes `j` + `j + 2`, then + `j + 1`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn quarter_sums([a, b, c, d]: [__m128; 4]) -> __m128 {
    let ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
    let cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
    _mm_add_ps(_mm_shuffle_ps::<0b10_00_10_00>(ab, cd), _mm_shuffle_ps::<0b11_01_11_01>(ab, cd))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
#[expect(clippy::cast_possible_wrap, reason = "the same bits")]
fn codes<const BITS: u32>(quads: [u32; 4]) -> Pair {
    let [a, b, c, d] = quads.map(|quad| quad as i32);
    let (bits, mask) = (BITS as i32, (1 << BITS) - 1);
    let shifts = _mm256_setr_epi32(0, bits, 2 * bits, 3 * bits, 0, bits, 2 * bits, 3 * bits);
    let unpack = |low: i32, high: i32| {
        let words = _mm256_setr_epi32(low, low, low, low, high, high, high, high);
        let codes = _mm256_and_si256(_mm256_srlv_epi32(words, shifts), _mm256_set1_epi32(mask));
        _mm256_cvtepi32_ps(codes)
    };
    [unpack(a, b), unpack(c, d)]
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn bytes(bytes: &[u8; LANES]) -> Pair {
    let (halves, _) = bytes.as_chunks::<8>();
    [bytes8(&halves[0]), bytes8(&halves[1])]
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn bytes8(bytes: &[u8; 8]) -> __m256 {
    // SAFETY: eight readable bytes, all that this load reads.
    let codes = unsafe { _mm_loadl_epi64(bytes.as_ptr().cast()) };
    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widened(bits: &[u16; LANES]) -> Pair {
    let (halves, _) = bits.as_chunks::<8>();
    [widened8(&halves[0]), widened8(&halves[1])]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widened8(bits: &[u16; 8]) -> __m256 {
    // SAFETY: sixteen readable bytes; the load needs no alignment.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(bits.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn load4(values: &[f32; 4]) -> __m128 {
    // SAFETY: four readable values; the load needs no alignment.
    unsafe { _mm_loadu_ps(values.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn store4(quad: __m128) -> [f32; 4] {
    let mut values = [0.0; 4];
    // SAFETY: four writable values; the store needs no alignment.
    unsafe { _mm_storeu_ps(values.as_mut_ptr(), quad) };
    values
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn fma4(a: __m128, b: __m128, acc: __m128) -> __m128 {
    _mm_fmadd_ps(a, b, acc)
}
