//! Lays matrix codes and activations down as tiles want them.
//!
//! A tile of codes is 64 columns of sixteen matrix rows, a line of 64 bytes for each row. A tile of
//! activations is the same columns of sixteen picked rows: a line for every four columns, four
//! bytes of each row in it. **Invariant:** both have the columns of a piece in the same order: even
//! ones before odd ones where codes have 4 bits, ascending otherwise.

use std::arch::x86_64::{
    __m512i, _mm256_loadu_si256, _mm512_castsi256_si512, _mm512_castsi512_ps,
    _mm512_gf2p8affine_epi64_epi8, _mm512_maskz_loadu_epi8, _mm512_maskz_loadu_epi32,
    _mm512_set_epi64, _mm512_setzero_si512, _mm512_shuffle_i64x2, _mm512_store_si512,
};
use std::ops::Range;

use super::super::integers::{join, transpose};
use super::super::store;
use super::tiles::LINE;
use crate::int8::{Factors, Line, PIECE, Row, RowBlock, take_apart};
use crate::lanes::LANES;

/// Lays 4-bit codes down, from byte `at` of each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,gfni")]
pub(super) fn lay_nibbles(rows: &RowBlock<'_>, at: usize, tiles: &mut [Line]) {
    let (tiles, _) = tiles.as_chunks_mut::<LANES>();
    for (i, tile) in tiles.iter_mut().enumerate() {
        let at = at + i * PIECE;
        if at + PIECE <= rows.row_bytes {
            lay_tile(rows.pieces::<PIECE>(at), tile);
        } else {
            // Half a tile at the end of rows that are not whole tiles.
            let mut padded = [[0; PIECE]; LANES];
            for (padded, piece) in padded.iter_mut().zip(rows.pieces::<{ PIECE / 2 }>(at)) {
                padded[..PIECE / 2].copy_from_slice(piece);
            }
            lay_tile(padded.each_ref(), tile);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,gfni")]
fn lay_tile(pieces: [&[u8; PIECE]; LANES], tile: &mut [Line; LANES]) {
    // As matrices over bits: the low, or the high half of a byte, in its low half.
    const LOW: i64 = 0x0102_0408_0000_0000;
    const HIGH: i64 = 0x1020_4080_0000_0000;
    let halves = _mm512_set_epi64(HIGH, HIGH, LOW, LOW, HIGH, HIGH, LOW, LOW);
    for (piece, line) in pieces.into_iter().zip(tile) {
        // SAFETY: 32 readable bytes; the load needs no alignment.
        let bytes = unsafe { _mm256_loadu_si256(piece.as_ptr().cast()) };
        let bytes = _mm512_castsi256_si512(bytes);
        let twice = _mm512_shuffle_i64x2::<0b01_01_00_00>(bytes, bytes);
        store_line(_mm512_gf2p8affine_epi64_epi8::<0>(twice, halves), line);
    }
}

/// Lays some pieces of codes of any width down, a byte each.
pub(super) fn lay_any(rows: &RowBlock<'_>, pieces: Range<usize>, tiles: &mut [Line]) {
    let piece_bytes = rows.bits * PIECE / 8;
    for (i, piece_idx) in pieces.enumerate() {
        let tile = &mut tiles[i / 2 * LANES..][..LANES];
        for (r, line) in tile.iter_mut().enumerate() {
            let packed = &rows.row(r)[piece_idx * piece_bytes..][..piece_bytes];
            let (halves, _) = line.0.as_chunks_mut::<PIECE>();
            take_apart(rows.bits, packed, &mut halves[i % 2]);
        }
    }
}

/// Lays at most sixteen rows of activations down, filled up with zeros, and their steps and sums
/// group by group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn lay_rows<const EVEN_ODD: bool>(
    rows: &[Row<'_>],
    tiles: &mut [Line],
    factors: &mut [Factors],
) {
    let (tiles, _) = tiles.as_chunks_mut::<LANES>();
    for (i, tile) in tiles.iter_mut().enumerate() {
        let mut words = [_mm512_setzero_si512(); LANES];
        for (words, row) in words.iter_mut().zip(rows) {
            *words = load_bytes(&row.values[i * LINE..]);
        }
        let words = transposed(words);
        for (k, line) in tile.iter_mut().enumerate() {
            // Of each piece, the quads of even columns come first.
            let from = if EVEN_ODD { k / 8 * 8 + k % 4 * 2 + k / 4 % 2 } else { k };
            store_line(words[from], line);
        }
    }
    for (i, factors) in factors.chunks_mut(LANES).enumerate() {
        let mut steps = [_mm512_setzero_si512(); LANES];
        let mut sums = steps;
        for ((steps, sums), row) in steps.iter_mut().zip(&mut sums).zip(rows) {
            *steps = load_floats(&row.steps[i * LANES..]);
            *sums = load_floats(&row.sums[i * LANES..]);
        }
        let (steps, sums) = (transposed(steps), transposed(sums));
        for (factors, (steps, sums)) in factors.iter_mut().zip(steps.into_iter().zip(sums)) {
            let [to_steps, to_sums] = &mut factors.0;
            store(_mm512_castsi512_ps(steps), to_steps);
            store(_mm512_castsi512_ps(sums), to_sums);
        }
    }
}

/// Sixteen words of sixteen rows, word by word.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn transposed(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = rows;
    let (abcd, efgh) = (transpose([a, b, c, d]), transpose([e, f, g, h]));
    let (ijkl, mnop) = (transpose([i, j, k, l]), transpose([m, n, o, p]));
    let [a, e, i, m] = join([abcd[0], efgh[0], ijkl[0], mnop[0]]);
    let [b, f, j, n] = join([abcd[1], efgh[1], ijkl[1], mnop[1]]);
    let [c, g, k, o] = join([abcd[2], efgh[2], ijkl[2], mnop[2]]);
    let [d, h, l, p] = join([abcd[3], efgh[3], ijkl[3], mnop[3]]);
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
}

/// The first 64 bytes, or as many as there are.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load_bytes(bytes: &[i8]) -> __m512i {
    let mask = u64::MAX >> (LINE - bytes.len().clamp(1, LINE));
    // SAFETY: masked bytes are not read, and the others exist.
    unsafe { _mm512_maskz_loadu_epi8(mask, bytes.as_ptr()) }
}

/// The bits of the first sixteen values, or of as many as there are.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load_floats(values: &[f32]) -> __m512i {
    let mask = u16::MAX >> (LANES - values.len().clamp(1, LANES));
    // SAFETY: masked values are not read, and the others exist.
    unsafe { _mm512_maskz_loadu_epi32(mask, values.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn store_line(bytes: __m512i, line: &mut Line) {
    // SAFETY: 64 writable bytes at a multiple of 64.
    unsafe { _mm512_store_si512(line.0.as_mut_ptr().cast(), bytes) }
}
