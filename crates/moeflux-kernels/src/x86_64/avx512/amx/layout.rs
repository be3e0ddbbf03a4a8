//! Conversion of matrix codes to the form of tiles.
//!
//! A tile of codes is 64 columns of sixteen matrix rows, a line of 64 bytes for each row.
//! **Invariant:** the columns of a piece have the same order as in a strip of activations for
//! tiles: even ones before odd ones if codes have 4 bits, ascending otherwise.

use std::arch::x86_64::{
    _mm256_loadu_si256, _mm512_castsi256_si512, _mm512_gf2p8affine_epi64_epi8, _mm512_set_epi64,
    _mm512_shuffle_i64x2,
};
use std::ops::Range;

use super::super::strips::store_line;
use crate::int8::{CacheLine, PIECE, RowBlock, expand_codes};
use crate::lanes::LANES;

/// Converts 4-bit codes, from byte `at` of each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,gfni")]
pub(super) fn convert_nibbles(rows: &RowBlock<'_>, at: usize, tiles: &mut [CacheLine]) {
    let (tiles, _) = tiles.as_chunks_mut::<LANES>();
    for (i, tile) in tiles.iter_mut().enumerate() {
        let at = at + i * PIECE;
        if at + PIECE <= rows.row_bytes {
            convert_tile(rows.pieces::<PIECE>(at), tile);
        } else {
            // Half a tile at the end of rows that are not whole tiles.
            let mut padded = [[0; PIECE]; LANES];
            for (padded, piece) in padded.iter_mut().zip(rows.pieces::<{ PIECE / 2 }>(at)) {
                padded[..PIECE / 2].copy_from_slice(piece);
            }
            convert_tile(padded.each_ref(), tile);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,gfni")]
fn convert_tile(pieces: [&[u8; PIECE]; LANES], tile: &mut [CacheLine; LANES]) {
    // As matrices over bits: move the low, or the high half of a byte, to its low half.
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

/// Converts some pieces of codes of any width to a byte each.
pub(super) fn convert_any(rows: &RowBlock<'_>, pieces: Range<usize>, tiles: &mut [CacheLine]) {
    let piece_bytes = rows.bits * PIECE / 8;
    for (i, piece_idx) in pieces.enumerate() {
        let tile = &mut tiles[i / 2 * LANES..][..LANES];
        for (r, line) in tile.iter_mut().enumerate() {
            let packed = &rows.row(r)[piece_idx * piece_bytes..][..piece_bytes];
            let (halves, _) = line.0.as_chunks_mut::<PIECE>();
            expand_codes(rows.bits, packed, &mut halves[i % 2]);
        }
    }
}
