//! Integers of sixteen rows in two registers: rows 0 to 7, and 8 to 15.
//!
//! Half `h` of a register holds four rows: sixteen bytes of rows `r` and `r + 4` are loaded
//! together, and four such registers are transposed within their halves.

use std::arch::x86_64::{
    __m256, __m256i, _MM_HINT_T0, _MM_HINT_T1, _mm_cvtsi32_si128, _mm_loadu_si128,
    _mm_packus_epi32, _mm_prefetch, _mm256_add_epi16, _mm256_add_epi32, _mm256_and_si256,
    _mm256_broadcastsi128_si256, _mm256_castsi128_si256, _mm256_castsi256_ps,
    _mm256_castsi256_si128, _mm256_cmpeq_epi32, _mm256_cvtepi32_ps, _mm256_cvtph_ps,
    _mm256_extracti128_si256, _mm256_inserti128_si256, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_max_epu32, _mm256_mul_ps, _mm256_or_si256, _mm256_packs_epi32,
    _mm256_permute2x128_si256, _mm256_permutevar8x32_epi32, _mm256_set1_epi8, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi32, _mm256_setzero_si256,
    _mm256_shuffle_epi8, _mm256_sll_epi16, _mm256_slli_epi32, _mm256_srl_epi16, _mm256_srl_epi32,
    _mm256_srli_epi16, _mm256_srli_epi32, _mm256_storeu_si256, _mm256_unpackhi_epi16,
    _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi16, _mm256_unpacklo_epi32,
    _mm256_unpacklo_epi64, _mm256_xor_si256,
};

use crate::int8::HalfKind;

/// Rows 0 to 7, and 8 to 15.
pub(super) type IntPair = [__m256i; 2];

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn gather(pieces: [&[u8; 16]; 4]) -> IntPair {
    // SAFETY: sixteen readable bytes; the load needs no alignment.
    let piece = |i: usize| unsafe { _mm_loadu_si128(pieces[i].as_ptr().cast()) };
    [
        _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(piece(0)), piece(1)),
        _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(piece(2)), piece(3)),
    ]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn transpose([a, b, c, d]: [IntPair; 4]) -> [IntPair; 4] {
    let [e, f, g, h] = transpose_words([a[0], b[0], c[0], d[0]]);
    let [i, j, k, l] = transpose_words([a[1], b[1], c[1], d[1]]);
    [[e, i], [f, j], [g, k], [h, l]]
}

/// Transposes 4 x 4 words within each half.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn transpose_words([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
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
#[target_feature(enable = "avx2,f16c")]
pub(super) fn interleave([a, b]: IntPair, [c, d]: IntPair) -> [IntPair; 2] {
    [
        [_mm256_unpacklo_epi16(a, c), _mm256_unpacklo_epi16(b, d)],
        [_mm256_unpackhi_epi16(a, c), _mm256_unpackhi_epi16(b, d)],
    ]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn half_floats(kind: HalfKind, [a, b]: IntPair) -> [[__m256; 2]; 2] {
    match kind {
        HalfKind::Bf16 => [[low_bf16(a), low_bf16(b)], [high_bf16(a), high_bf16(b)]],
        HalfKind::F16 => {
            let lower = _mm256_set1_epi32(0xffff);
            [
                [from_f16(_mm256_and_si256(a, lower)), from_f16(_mm256_and_si256(b, lower))],
                [from_f16(_mm256_srli_epi32::<16>(a)), from_f16(_mm256_srli_epi32::<16>(b))],
            ]
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn low_bf16(words: __m256i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn high_bf16(words: __m256i) -> __m256 {
    _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(-0x1_0000)))
}

/// Converts f16 in the low halves of words whose high halves are zero.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn from_f16(words: __m256i) -> __m256 {
    let (low, high) = (_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
    _mm256_cvtph_ps(_mm_packus_epi32(low, high))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn low_halves([a, b]: IntPair) -> IntPair {
    let mask = _mm256_set1_epi8(15);
    [_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn high_halves([a, b]: IntPair) -> IntPair {
    low_halves([_mm256_srli_epi16::<4>(a), _mm256_srli_epi16::<4>(b)])
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn field([a, b]: IntPair, right: u32, left: u32, mask: u8) -> IntPair {
    let (right, left) =
        (_mm_cvtsi32_si128(right.cast_signed()), _mm_cvtsi32_si128(left.cast_signed()));
    let mask = _mm256_set1_epi8(mask.cast_signed());
    let (a, b) = (_mm256_srl_epi16(a, right), _mm256_srl_epi16(b, right));
    let (a, b) = (_mm256_sll_epi16(a, left), _mm256_sll_epi16(b, left));
    [_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn either([a, b]: IntPair, [c, d]: IntPair) -> IntPair {
    [_mm256_or_si256(a, c), _mm256_or_si256(b, d)]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn flip([a, b]: IntPair, bits: u8) -> IntPair {
    let bits = _mm256_set1_epi8(bits.cast_signed());
    [_mm256_xor_si256(a, bits), _mm256_xor_si256(b, bits)]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn look_up(table: &[u8; 16], [a, b]: IntPair) -> IntPair {
    // SAFETY: sixteen readable bytes; the load needs no alignment.
    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    let table = _mm256_broadcastsi128_si256(table);
    [_mm256_shuffle_epi8(table, a), _mm256_shuffle_epi8(table, b)]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn field_floats([a, b]: IntPair, right: u32, mask: i32) -> [__m256; 2] {
    let (right, mask) = (_mm_cvtsi32_si128(right.cast_signed()), _mm256_set1_epi32(mask));
    let (a, b) = (_mm256_srl_epi32(a, right), _mm256_srl_epi32(b, right));
    floats([_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)])
}

/// A byte of 0 encodes 2^-127: as a float, no exponent and the highest bit of the fraction. A byte
/// of 255 encodes NaN.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn half_powers([a, b]: IntPair, right: u32) -> [__m256; 2] {
    let right = _mm_cvtsi32_si128(right.cast_signed());
    [powers_of(_mm256_srl_epi32(a, right)), powers_of(_mm256_srl_epi32(b, right))]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn powers_of(bytes: __m256i) -> __m256 {
    let all = _mm256_set1_epi32(0x7f80_0000);
    let exponents = _mm256_and_si256(_mm256_slli_epi32::<23>(bytes), all);
    let highest = _mm256_set1_epi32(0x40_0000);
    let quiet = _mm256_and_si256(_mm256_cmpeq_epi32(exponents, all), highest);
    let powers = _mm256_or_si256(_mm256_max_epu32(exponents, highest), quiet);
    let powers = _mm256_castsi256_ps(powers);
    _mm256_mul_ps(powers, _mm256_set1_ps(0.5))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn load_quads(quads: &[u8; 64]) -> IntPair {
    let (halves, _) = quads.as_chunks::<32>();
    // SAFETY: 32 readable bytes; the load needs no alignment.
    let load = |half: &[u8; 32]| unsafe { _mm256_loadu_si256(half.as_ptr().cast()) };
    [load(&halves[0]), load(&halves[1])]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn store_quads(quads: IntPair, target: &mut [u8; 64]) {
    let (halves, _) = target.as_chunks_mut::<32>();
    for (half, target) in quads.into_iter().zip(halves) {
        // SAFETY: 32 writable bytes; the store needs no alignment.
        unsafe { _mm256_storeu_si256(target.as_mut_ptr().cast(), half) };
    }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn no_ints() -> IntPair {
    [_mm256_setzero_si256(); 2]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn add_ints([a, b]: IntPair, [c, d]: IntPair) -> IntPair {
    [_mm256_add_epi32(a, c), _mm256_add_epi32(b, d)]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn floats([a, b]: IntPair) -> [__m256; 2] {
    [_mm256_cvtepi32_ps(a), _mm256_cvtepi32_ps(b)]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn prefetch<const NEAR: bool>(address: *const u8) {
    if NEAR {
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    } else {
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn broadcast([a, b, c, d]: [i8; 4]) -> __m256i {
    let bytes = [a.cast_unsigned(), b.cast_unsigned(), c.cast_unsigned(), d.cast_unsigned()];
    _mm256_set1_epi32(i32::from_le_bytes(bytes))
}

/// Returns the codes of a line: for each half of its bytes, low halves and high halves of bytes.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn line_codes(line: &[u8; 64]) -> [IntPair; 2] {
    let [a, b] = load_quads(line);
    [low_halves([a, _mm256_srli_epi16::<4>(a)]), low_halves([b, _mm256_srli_epi16::<4>(b)])]
}

/// Reorders values to match [`line_codes`].
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn reorder_values(x: &[i8; 128], target: &mut [i8; 128]) {
    let order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    let (halves, _) = target.as_chunks_mut::<64>();
    for (target, [a, b]) in halves.iter_mut().zip(line_values(x)) {
        let a = _mm256_permutevar8x32_epi32(a, order);
        let b = _mm256_permutevar8x32_epi32(b, order);
        let parts = [low_parts(a, b), high_parts(a, b)];
        for (target, part) in target.as_chunks_mut::<32>().0.iter_mut().zip(parts) {
            // SAFETY: 32 writable bytes; the store needs no alignment.
            unsafe { _mm256_storeu_si256(target.as_mut_ptr().cast(), part) };
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn line_values(x: &[i8; 128]) -> [IntPair; 2] {
    let (parts, _) = x.as_chunks::<32>();
    // SAFETY: 32 readable bytes; the load needs no alignment.
    let load = |part: &[i8; 32]| unsafe { _mm256_loadu_si256(part.as_ptr().cast()) };
    [[load(&parts[0]), load(&parts[1])], [load(&parts[2]), load(&parts[3])]]
}

/// Each half of a register holds a piece of columns, four products per lane.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn products(line: &[u8; 64], x: &[i8; 128]) -> IntPair {
    let ([a, b], [x, y]) = (line_codes(line), line_values(x));
    [half_products(a, x), half_products(b, y)]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn half_products([low, high]: IntPair, [even, odd]: IntPair) -> __m256i {
    let (low, high) = (_mm256_maddubs_epi16(low, even), _mm256_maddubs_epi16(high, odd));
    _mm256_madd_epi16(_mm256_add_epi16(low, high), _mm256_set1_epi16(1))
}

/// Lanes hold 8 products each, then 16, then 32; at most 16 are packed: 16 * 15 * 127 < 2^15.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn merge([a, b, c, d]: [IntPair; 4]) -> IntPair {
    [merge_halves([a[0], b[0], c[0], d[0]]), merge_halves([a[1], b[1], c[1], d[1]])]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn merge_halves([a, b, c, d]: [__m256i; 4]) -> __m256i {
    let ones = _mm256_set1_epi16(1);
    let ab = _mm256_madd_epi16(_mm256_packs_epi32(a, b), ones);
    let cd = _mm256_madd_epi16(_mm256_packs_epi32(c, d), ones);
    _mm256_madd_epi16(_mm256_packs_epi32(ab, cd), ones)
}

/// Transposes halves: from four rows of each piece to a piece of all rows.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn join([a, b, c, d]: [IntPair; 4]) -> [IntPair; 4] {
    [
        [low_parts(a[0], b[0]), low_parts(c[0], d[0])],
        [high_parts(a[0], b[0]), high_parts(c[0], d[0])],
        [low_parts(a[1], b[1]), low_parts(c[1], d[1])],
        [high_parts(a[1], b[1]), high_parts(c[1], d[1])],
    ]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn low_parts(a: __m256i, b: __m256i) -> __m256i {
    _mm256_permute2x128_si256::<0x20>(a, b)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn high_parts(a: __m256i, b: __m256i) -> __m256i {
    _mm256_permute2x128_si256::<0x31>(a, b)
}

/// Pairs of products in 16 bits: of the low halves of codes and, if codes are wide, of the high
/// halves. Eight products of a half byte and an int8, twice, stay below 2^15.
pub(super) type NibbleSums = [IntPair; 2];

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn open(_: IntPair) -> NibbleSums {
    [no_ints(); 2]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn add_products<const WIDE: bool>(
    [low, high]: NibbleSums,
    codes: IntPair,
    x: [i8; 4],
) -> NibbleSums {
    let x = broadcast(x);
    if !WIDE {
        return [multiply_add(low, codes, x), high];
    }
    [multiply_add(low, low_halves(codes), x), multiply_add(high, high_halves(codes), x)]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn multiply_add([a, b]: IntPair, [low, high]: IntPair, x: __m256i) -> IntPair {
    [
        _mm256_add_epi16(a, _mm256_maddubs_epi16(low, x)),
        _mm256_add_epi16(b, _mm256_maddubs_epi16(high, x)),
    ]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn close<const WIDE: bool>(ints: IntPair, [low, high]: NibbleSums) -> IntPair {
    let ints = add_pairs(ints, low, 1);
    if WIDE { add_pairs(ints, high, 16) } else { ints }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn add_pairs([a, b]: IntPair, [low, high]: IntPair, factor: i16) -> IntPair {
    let factor = _mm256_set1_epi16(factor);
    [
        _mm256_add_epi32(a, _mm256_madd_epi16(low, factor)),
        _mm256_add_epi32(b, _mm256_madd_epi16(high, factor)),
    ]
}
