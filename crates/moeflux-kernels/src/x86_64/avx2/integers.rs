//! Integers of sixteen rows in two registers: rows 0 to 7, and 8 to 15.
//!
//! Half `h` of a register holds four rows: sixteen bytes of rows `r` and `r + 4` are loaded
//! together, and four such registers are transposed within their halves.

use std::arch::x86_64::{
    __m256, __m256i, _MM_HINT_T0, _mm_loadu_si128, _mm_packus_epi32, _mm_prefetch,
    _mm256_add_epi16, _mm256_add_epi32, _mm256_and_si256, _mm256_castsi128_si256,
    _mm256_castsi256_ps, _mm256_castsi256_si128, _mm256_cvtepi32_ps, _mm256_cvtph_ps,
    _mm256_extracti128_si256, _mm256_inserti128_si256, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32,
    _mm256_setzero_si256, _mm256_slli_epi32, _mm256_srli_epi16, _mm256_srli_epi32,
    _mm256_storeu_si256, _mm256_unpackhi_epi16, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64,
    _mm256_unpacklo_epi16, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
};

use crate::int8::{HalfKind, PIECE, Pieces};

/// Rows 0 to 7, and 8 to 15.
pub(super) type IntPair = [__m256i; 2];

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn no_ints() -> IntPair {
    [_mm256_setzero_si256(); 2]
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn quads(pieces: &Pieces<'_>) -> [IntPair; 4] {
    let (low, high) = (transpose(four_by_two(pieces, 0)), transpose(four_by_two(pieces, 8)));
    std::array::from_fn(|i| [low[i], high[i]])
}

/// Pieces of rows `first + r` and `first + r + 4` for each `r` below 4.
#[inline]
#[target_feature(enable = "avx2")]
fn four_by_two(pieces: &Pieces<'_>, first: usize) -> [__m256i; 4] {
    // SAFETY: sixteen readable bytes; the load needs no alignment.
    let piece = |r: usize| unsafe { _mm_loadu_si128(pieces[first + r].as_ptr().cast()) };
    std::array::from_fn(|r| {
        _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(piece(r)), piece(r + 4))
    })
}

/// Transposes 4 x 4 words within each half.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab, cd),
        _mm256_unpackhi_epi64(ab, cd),
        _mm256_unpacklo_epi64(ab_high, cd_high),
        _mm256_unpackhi_epi64(ab_high, cd_high),
    ]
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn halves(quads: IntPair) -> [IntPair; 2] {
    let mask = _mm256_set1_epi8(15);
    [
        quads.map(|it| _mm256_and_si256(it, mask)),
        quads.map(|it| _mm256_and_si256(_mm256_srli_epi16::<4>(it), mask)),
    ]
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_quads(quads: &[u8; 64]) -> IntPair {
    let (halves, _) = quads.as_chunks::<32>();
    // SAFETY: 32 readable bytes; the load needs no alignment.
    let load = |half: &[u8; 32]| unsafe { _mm256_loadu_si256(half.as_ptr().cast()) };
    [load(&halves[0]), load(&halves[1])]
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store_quads(quads: IntPair, target: &mut [u8; 64]) {
    let (halves, _) = target.as_chunks_mut::<32>();
    for (half, target) in quads.into_iter().zip(halves) {
        // SAFETY: 32 writable bytes; the store needs no alignment.
        unsafe { _mm256_storeu_si256(target.as_mut_ptr().cast(), half) };
    }
}

/// Without VNNI. Eight products of a half byte and an int8, twice, stay below 2^15.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn dot_quads<const WIDE: bool>(
    codes: &[IntPair; 8],
    x: &[i8; PIECE],
    mut acc: IntPair,
) -> IntPair {
    let (x, _) = x.as_chunks::<4>();
    let (mut lows, mut highs) = (no_ints(), no_ints());
    for (&codes, x) in codes.iter().zip(x) {
        let x = _mm256_set1_epi32(i32::from_le_bytes(x.map(i8::cast_unsigned)));
        let [low, high] = if WIDE { halves(codes) } else { [codes, codes] };
        for h in 0..2 {
            lows[h] = _mm256_add_epi16(lows[h], _mm256_maddubs_epi16(low[h], x));
            if WIDE {
                highs[h] = _mm256_add_epi16(highs[h], _mm256_maddubs_epi16(high[h], x));
            }
        }
    }
    for h in 0..2 {
        let low = _mm256_madd_epi16(lows[h], _mm256_set1_epi16(1));
        acc[h] = _mm256_add_epi32(acc[h], low);
        if WIDE {
            let high = _mm256_madd_epi16(highs[h], _mm256_set1_epi16(16));
            acc[h] = _mm256_add_epi32(acc[h], high);
        }
    }
    acc
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn floats(ints: IntPair) -> [__m256; 2] {
    ints.map(|it| _mm256_cvtepi32_ps(it))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn half_floats(
    kind: HalfKind,
    scales: &Pieces<'_>,
    biases: &Pieces<'_>,
) -> [[[__m256; 2]; 2]; 8] {
    let (low, high) = (words(scales, biases, 0), words(scales, biases, 8));
    std::array::from_fn(|g| {
        let words = [low[g], high[g]];
        match kind {
            HalfKind::Bf16 => {
                let upper = _mm256_set1_epi32(-0x1_0000);
                let scales = words.map(|it| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(it)));
                [scales, words.map(|it| _mm256_castsi256_ps(_mm256_and_si256(it, upper)))]
            }
            HalfKind::F16 => {
                let lower = _mm256_set1_epi32(0xffff);
                let scales = words.map(|it| from_f16(_mm256_and_si256(it, lower)));
                [scales, words.map(|it| from_f16(_mm256_srli_epi32::<16>(it)))]
            }
        }
    })
}

/// For each of eight groups and eight rows from `first`: a scale below a bias.
#[inline]
#[target_feature(enable = "avx2")]
fn words(scales: &Pieces<'_>, biases: &Pieces<'_>, first: usize) -> [__m256i; 8] {
    let (scales, biases) = (four_by_two(scales, first), four_by_two(biases, first));
    let low = std::array::from_fn(|r| _mm256_unpacklo_epi16(scales[r], biases[r]));
    let high = std::array::from_fn(|r| _mm256_unpackhi_epi16(scales[r], biases[r]));
    let (low, high) = (transpose(low), transpose(high));
    std::array::from_fn(|g| if g < 4 { low[g] } else { high[g - 4] })
}

/// The values of f16 in the low halves of words.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn from_f16(words: __m256i) -> __m256 {
    let (low, high) = (_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
    _mm256_cvtph_ps(_mm_packus_epi32(low, high))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn prefetch(address: *const u8) {
    _mm_prefetch::<_MM_HINT_T0>(address.cast());
}
