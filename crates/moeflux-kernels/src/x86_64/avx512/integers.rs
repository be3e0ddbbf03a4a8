//! Integers of sixteen rows in one register.
//!
//! Quarter `q` of a register holds rows `4 q .. 4 q + 4`: sixteen bytes of rows `r`, `r + 4`,
//! `r + 8` and `r + 12` are loaded together, and four such registers are transposed within their
//! quarters.

use std::arch::x86_64::{
    __m512, __m512i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm512_add_epi16,
    _mm512_add_epi32, _mm512_and_si512, _mm512_castsi128_si512, _mm512_castsi512_ps,
    _mm512_cvtepi32_epi16, _mm512_cvtepi32_ps, _mm512_cvtph_ps, _mm512_inserti32x4,
    _mm512_loadu_si512, _mm512_madd_epi16, _mm512_maddubs_epi16, _mm512_set1_epi8,
    _mm512_set1_epi16, _mm512_set1_epi32, _mm512_setzero_si512, _mm512_slli_epi32,
    _mm512_srli_epi16, _mm512_srli_epi32, _mm512_storeu_si512, _mm512_unpackhi_epi16,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi16, _mm512_unpacklo_epi32,
    _mm512_unpacklo_epi64,
};

use crate::int8::{HalfKind, PIECE, Pieces};

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn no_ints() -> __m512i {
    _mm512_setzero_si512()
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn quads(pieces: &Pieces<'_>) -> [__m512i; 4] {
    transpose(four_by_four(pieces))
}

/// Pieces of rows `r`, `r + 4`, `r + 8`, `r + 12` for each `r` below 4.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn four_by_four(pieces: &Pieces<'_>) -> [__m512i; 4] {
    // SAFETY: sixteen readable bytes; the load needs no alignment.
    let piece = |r: usize| unsafe { _mm_loadu_si128(pieces[r].as_ptr().cast()) };
    std::array::from_fn(|r| {
        let rows = _mm512_castsi128_si512(piece(r));
        let rows = _mm512_inserti32x4::<1>(rows, piece(r + 4));
        let rows = _mm512_inserti32x4::<2>(rows, piece(r + 8));
        _mm512_inserti32x4::<3>(rows, piece(r + 12))
    })
}

/// Transposes 4 x 4 words within each quarter.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn transpose([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab, cd),
        _mm512_unpackhi_epi64(ab, cd),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn halves(quads: __m512i) -> [__m512i; 2] {
    let mask = _mm512_set1_epi8(15);
    [_mm512_and_si512(quads, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(quads), mask)]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn load_quads(quads: &[u8; 64]) -> __m512i {
    // SAFETY: 64 readable bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(quads.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn store_quads(quads: __m512i, target: &mut [u8; 64]) {
    // SAFETY: 64 writable bytes; the store needs no alignment.
    unsafe { _mm512_storeu_si512(target.as_mut_ptr().cast(), quads) }
}

/// Without VNNI. Eight products of a half byte and an int8, twice, stay below 2^15.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn dot_quads<const WIDE: bool>(
    codes: &[__m512i; 8],
    x: &[i8; PIECE],
    acc: __m512i,
) -> __m512i {
    let (x, _) = x.as_chunks::<4>();
    let (mut lows, mut highs) = (no_ints(), no_ints());
    for (&codes, x) in codes.iter().zip(x) {
        let x = _mm512_set1_epi32(i32::from_le_bytes(x.map(i8::cast_unsigned)));
        if WIDE {
            let [low, high] = halves(codes);
            lows = _mm512_add_epi16(lows, _mm512_maddubs_epi16(low, x));
            highs = _mm512_add_epi16(highs, _mm512_maddubs_epi16(high, x));
        } else {
            lows = _mm512_add_epi16(lows, _mm512_maddubs_epi16(codes, x));
        }
    }
    let acc = _mm512_add_epi32(acc, _mm512_madd_epi16(lows, _mm512_set1_epi16(1)));
    if !WIDE {
        return acc;
    }
    _mm512_add_epi32(acc, _mm512_madd_epi16(highs, _mm512_set1_epi16(16)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn floats(ints: __m512i) -> __m512 {
    _mm512_cvtepi32_ps(ints)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn half_floats(
    kind: HalfKind,
    scales: &Pieces<'_>,
    biases: &Pieces<'_>,
) -> [[__m512; 2]; 8] {
    let (scales, biases) = (four_by_four(scales), four_by_four(biases));
    // A word holds a scale below a bias.
    let low = std::array::from_fn(|r| _mm512_unpacklo_epi16(scales[r], biases[r]));
    let high = std::array::from_fn(|r| _mm512_unpackhi_epi16(scales[r], biases[r]));
    let (low, high) = (transpose(low), transpose(high));
    std::array::from_fn(|g| {
        let words = if g < 4 { low[g] } else { high[g - 4] };
        match kind {
            HalfKind::Bf16 => {
                let upper = _mm512_set1_epi32(-0x1_0000);
                let bias = _mm512_and_si512(words, upper);
                [_mm512_slli_epi32::<16>(words), bias].map(|it| _mm512_castsi512_ps(it))
            }
            HalfKind::F16 => [words, _mm512_srli_epi32::<16>(words)]
                .map(|it| _mm512_cvtph_ps(_mm512_cvtepi32_epi16(it))),
        }
    })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn prefetch(address: *const u8) {
    _mm_prefetch::<_MM_HINT_T0>(address.cast());
}
