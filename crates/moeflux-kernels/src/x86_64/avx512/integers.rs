//! Integers of sixteen rows in one register.
//!
//! Quarter `q` of a register holds rows `4 q .. 4 q + 4`: sixteen bytes of rows `r`, `r + 4`,
//! `r + 8` and `r + 12` are loaded together, and four such registers are transposed within their
//! quarters.

use std::arch::x86_64::{
    __m512, __m512i, _MM_HINT_T0, _MM_HINT_T1, _mm_cvtsi32_si128, _mm_loadu_si128, _mm_prefetch,
    _mm512_add_epi16, _mm512_add_epi32, _mm512_and_si512, _mm512_broadcast_i32x4,
    _mm512_castsi128_si512, _mm512_castsi512_ps, _mm512_cmpeq_epi32_mask, _mm512_cvtepi32_epi16,
    _mm512_cvtepi32_ps, _mm512_cvtph_ps, _mm512_inserti32x4, _mm512_loadu_si512, _mm512_madd_epi16,
    _mm512_maddubs_epi16, _mm512_mask_or_epi32, _mm512_max_epu32, _mm512_mul_ps, _mm512_or_si512,
    _mm512_packs_epi32, _mm512_permutex2var_epi32, _mm512_set1_epi8, _mm512_set1_epi16,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setr_epi32, _mm512_setzero_si512,
    _mm512_shuffle_epi8, _mm512_shuffle_i32x4, _mm512_sll_epi16, _mm512_slli_epi32,
    _mm512_srl_epi16, _mm512_srl_epi32, _mm512_srli_epi16, _mm512_srli_epi32, _mm512_storeu_si512,
    _mm512_unpackhi_epi16, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi16,
    _mm512_unpacklo_epi32, _mm512_unpacklo_epi64, _mm512_xor_si512,
};

use crate::int8::HalfKind;

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn gather(pieces: [&[u8; 16]; 4]) -> __m512i {
    // SAFETY: sixteen readable bytes; the load needs no alignment.
    let piece = |i: usize| unsafe { _mm_loadu_si128(pieces[i].as_ptr().cast()) };
    let rows = _mm512_castsi128_si512(piece(0));
    let rows = _mm512_inserti32x4::<1>(rows, piece(1));
    let rows = _mm512_inserti32x4::<2>(rows, piece(2));
    _mm512_inserti32x4::<3>(rows, piece(3))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn transpose([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
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
pub(super) fn interleave(low: __m512i, high: __m512i) -> [__m512i; 2] {
    [_mm512_unpacklo_epi16(low, high), _mm512_unpackhi_epi16(low, high)]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn half_floats(kind: HalfKind, words: __m512i) -> [__m512; 2] {
    match kind {
        HalfKind::Bf16 => {
            let upper = _mm512_and_si512(words, _mm512_set1_epi32(-0x1_0000));
            [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)), _mm512_castsi512_ps(upper)]
        }
        HalfKind::F16 => {
            let upper = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(words));
            [_mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)), _mm512_cvtph_ps(upper)]
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn low_halves(quads: __m512i) -> __m512i {
    _mm512_and_si512(quads, _mm512_set1_epi8(15))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn high_halves(quads: __m512i) -> __m512i {
    _mm512_and_si512(_mm512_srli_epi16::<4>(quads), _mm512_set1_epi8(15))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn field(quads: __m512i, right: u32, left: u32, mask: u8) -> __m512i {
    let (right, left) =
        (_mm_cvtsi32_si128(right.cast_signed()), _mm_cvtsi32_si128(left.cast_signed()));
    let shifted = _mm512_sll_epi16(_mm512_srl_epi16(quads, right), left);
    _mm512_and_si512(shifted, _mm512_set1_epi8(mask.cast_signed()))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn either(a: __m512i, b: __m512i) -> __m512i {
    _mm512_or_si512(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn flip(quads: __m512i, bits: u8) -> __m512i {
    _mm512_xor_si512(quads, _mm512_set1_epi8(bits.cast_signed()))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn look_up(table: &[u8; 16], quads: __m512i) -> __m512i {
    // SAFETY: sixteen readable bytes; the load needs no alignment.
    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), quads)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn field_floats(words: __m512i, right: u32, mask: i32) -> __m512 {
    let shifted = _mm512_srl_epi32(words, _mm_cvtsi32_si128(right.cast_signed()));
    _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(mask)))
}

/// A byte of 0 encodes 2^-127: as a float, no exponent and the highest bit of the fraction. A byte
/// of 255 encodes NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn half_powers(words: __m512i, right: u32) -> __m512 {
    let bytes = _mm512_srl_epi32(words, _mm_cvtsi32_si128(right.cast_signed()));
    let all = _mm512_set1_epi32(0x7f80_0000);
    let exponents = _mm512_and_si512(_mm512_slli_epi32::<23>(bytes), all);
    let highest = _mm512_set1_epi32(0x40_0000);
    let powers = _mm512_max_epu32(exponents, highest);
    let is_nan = _mm512_cmpeq_epi32_mask(exponents, all);
    let powers = _mm512_mask_or_epi32(powers, is_nan, powers, highest);
    _mm512_mul_ps(_mm512_castsi512_ps(powers), _mm512_set1_ps(0.5))
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

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn no_ints() -> __m512i {
    _mm512_setzero_si512()
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn load_ints(ints: &[i32; 16]) -> __m512i {
    // SAFETY: 64 readable bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(ints.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn add_ints(a: __m512i, b: __m512i) -> __m512i {
    _mm512_add_epi32(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn floats(ints: __m512i) -> __m512 {
    _mm512_cvtepi32_ps(ints)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn prefetch<const NEAR: bool>(address: *const u8) {
    if NEAR {
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    } else {
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn broadcast([a, b, c, d]: [i8; 4]) -> __m512i {
    let bytes = [a.cast_unsigned(), b.cast_unsigned(), c.cast_unsigned(), d.cast_unsigned()];
    _mm512_set1_epi32(i32::from_le_bytes(bytes))
}

/// Returns the codes of a line: low halves of bytes, and high halves.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn line_codes(line: &[u8; 64]) -> [__m512i; 2] {
    let bytes = load_quads(line);
    [low_halves(bytes), high_halves(bytes)]
}

/// Reorders values to match [`line_codes`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn reorder_values(x: &[i8; 128], target: &mut [i8; 128]) {
    let [a, b] = line_values(x);
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    let halves = [_mm512_permutex2var_epi32(a, even, b), _mm512_permutex2var_epi32(a, odd, b)];
    for (target, half) in target.as_chunks_mut::<64>().0.iter_mut().zip(halves) {
        // SAFETY: 64 writable bytes; the store needs no alignment.
        unsafe { _mm512_storeu_si512(target.as_mut_ptr().cast(), half) };
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn line_values(x: &[i8; 128]) -> [__m512i; 2] {
    let (halves, _) = x.as_chunks::<64>();
    // SAFETY: 64 readable bytes; the load needs no alignment.
    let load = |half: &[i8; 64]| unsafe { _mm512_loadu_si512(half.as_ptr().cast()) };
    [load(&halves[0]), load(&halves[1])]
}

/// Each quarter of a register holds a piece of columns, four products per lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn products(line: &[u8; 64], x: &[i8; 128]) -> __m512i {
    let ([low, high], [even, odd]) = (line_codes(line), line_values(x));
    let (low, high) = (_mm512_maddubs_epi16(low, even), _mm512_maddubs_epi16(high, odd));
    _mm512_madd_epi16(_mm512_add_epi16(low, high), _mm512_set1_epi16(1))
}

/// Lanes hold 8 products each, then 16, then 32; at most 16 are packed: 16 * 15 * 127 < 2^15.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn merge([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let ones = _mm512_set1_epi16(1);
    let ab = _mm512_madd_epi16(_mm512_packs_epi32(a, b), ones);
    let cd = _mm512_madd_epi16(_mm512_packs_epi32(c, d), ones);
    _mm512_madd_epi16(_mm512_packs_epi32(ab, cd), ones)
}

/// Transposes quarters: from four rows of each piece to a piece of all rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn join([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab, cd) = (low_quarters(a, b), low_quarters(c, d));
    let (ab_high, cd_high) = (high_quarters(a, b), high_quarters(c, d));
    [
        _mm512_shuffle_i32x4::<0b10_00_10_00>(ab, cd),
        _mm512_shuffle_i32x4::<0b11_01_11_01>(ab, cd),
        _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_high, cd_high),
        _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_high, cd_high),
    ]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn low_quarters(a: __m512i, b: __m512i) -> __m512i {
    _mm512_shuffle_i32x4::<0b01_00_01_00>(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn high_quarters(a: __m512i, b: __m512i) -> __m512i {
    _mm512_shuffle_i32x4::<0b11_10_11_10>(a, b)
}

/// Pairs of products in 16 bits: of the low halves of codes and, if codes are wide, of the high
/// halves. Eight products of a half byte and an int8, twice, stay below 2^15.
pub(super) type NibbleSums = [__m512i; 2];

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn open(_: __m512i) -> NibbleSums {
    [_mm512_setzero_si512(); 2]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn add_products<const WIDE: bool>(
    [low, high]: NibbleSums,
    codes: __m512i,
    x: [i8; 4],
) -> NibbleSums {
    let x = broadcast(x);
    if !WIDE {
        return [_mm512_add_epi16(low, _mm512_maddubs_epi16(codes, x)), high];
    }
    [
        _mm512_add_epi16(low, _mm512_maddubs_epi16(low_halves(codes), x)),
        _mm512_add_epi16(high, _mm512_maddubs_epi16(high_halves(codes), x)),
    ]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn close<const WIDE: bool>(ints: __m512i, [low, high]: NibbleSums) -> __m512i {
    let ints = _mm512_add_epi32(ints, _mm512_madd_epi16(low, _mm512_set1_epi16(1)));
    if !WIDE {
        return ints;
    }
    _mm512_add_epi32(ints, _mm512_madd_epi16(high, _mm512_set1_epi16(16)))
}
