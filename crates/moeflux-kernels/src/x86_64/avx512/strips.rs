//! Packing of activations into strips.
//!
//! A strip is sixteen picked rows: a line for every four columns, with four bytes of each row.
//! **Invariant:** missing rows of the last strip are zeros.

use std::arch::x86_64::{
    __m512i, _mm512_castsi512_ps, _mm512_maskz_loadu_epi8, _mm512_maskz_loadu_epi32,
    _mm512_setzero_si512, _mm512_store_si512,
};

use super::integers::{join, transpose};
use super::store;
use crate::int8::{CacheLine, Factors, IntRow, IntRows, RepackedRows, ensure_len, strip_lines};
use crate::lanes::LANES;

/// Bytes of a line.
const LINE: usize = size_of::<CacheLine>();

/// Order of the columns of a piece in a strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StripOrder {
    /// As in the rows.
    AsGiven,
    /// For 4-bit codes, all even columns before all odd ones; for blocks that carry their own
    /// scales, a line of 64 columns for each row.
    OfTiles,
}

/// Packs picked rows into strips of sixteen.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn pack_strips(
    rows: &IntRows,
    picks: &[usize],
    order: StripOrder,
    repacked: &mut RepackedRows,
) {
    let (shape, n_strips) = (rows.shape(), picks.len().div_ceil(LANES));
    let strip_lines = strip_lines(shape.n_cols);
    let values = ensure_len(&mut repacked.values, n_strips * strip_lines, CacheLine([0; LINE]));
    let factors =
        ensure_len(&mut repacked.factors, n_strips * shape.n_groups, Factors([[0.0; LANES]; 2]));
    let strips = values.chunks_mut(strip_lines).zip(factors.chunks_mut(shape.n_groups));
    for ((values, factors), picks) in strips.zip(picks.chunks(LANES)) {
        let mut strip = [IntRow::default(); LANES];
        strip.iter_mut().zip(picks).for_each(|(row, &pick)| *row = rows.row(pick));
        if order == StripOrder::OfTiles && shape.is_for_blocks() {
            pack_values(&strip[..picks.len()], values);
            pack_factors(&strip[..picks.len()], factors);
        } else if order == StripOrder::OfTiles && shape.is_even_odd() {
            pack_rows::<true>(&strip[..picks.len()], values, factors);
        } else {
            pack_rows::<false>(&strip[..picks.len()], values, factors);
        }
    }
    (repacked.strip_lines, repacked.n_groups) = (strip_lines, shape.n_groups);
    repacked.n_rows = picks.len();
}

/// Packs at most sixteen rows of activations, padded with zeros, and their steps and sums group by
/// group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn pack_rows<const EVEN_ODD: bool>(
    rows: &[IntRow<'_>],
    tiles: &mut [CacheLine],
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
            // Within each piece, the quads of even columns come first.
            let from = if EVEN_ODD { k / 8 * 8 + k % 4 * 2 + k / 4 % 2 } else { k };
            store_line(words[from], line);
        }
    }
    pack_factors(rows, factors);
}

/// Copies at most sixteen rows of activations in column order, 64 columns at a time, padded with
/// zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn pack_values(rows: &[IntRow<'_>], tiles: &mut [CacheLine]) {
    let (tiles, _) = tiles.as_chunks_mut::<LANES>();
    for (i, tile) in tiles.iter_mut().enumerate() {
        for (r, line) in tile.iter_mut().enumerate() {
            let row = rows.get(r).map(|row| load_bytes(&row.values[i * LINE..]));
            store_line(row.unwrap_or(_mm512_setzero_si512()), line);
        }
    }
}

/// Transposes the steps and sums of at most sixteen rows, group by group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn pack_factors(rows: &[IntRow<'_>], factors: &mut [Factors]) {
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

/// Transposes sixteen words of sixteen rows.
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

/// Loads the first 64 bytes, or as many as exist.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load_bytes(bytes: &[i8]) -> __m512i {
    let mask = u64::MAX >> (LINE - bytes.len().clamp(1, LINE));
    // SAFETY: masked bytes are not read, and the others exist.
    unsafe { _mm512_maskz_loadu_epi8(mask, bytes.as_ptr()) }
}

/// Loads the bits of the first sixteen values, or of as many as exist.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load_floats(values: &[f32]) -> __m512i {
    let mask = u16::MAX >> (LANES - values.len().clamp(1, LANES));
    // SAFETY: masked values are not read, and the others exist.
    unsafe { _mm512_maskz_loadu_epi32(mask, values.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn store_line(bytes: __m512i, line: &mut CacheLine) {
    // SAFETY: 64 writable bytes at a multiple of 64.
    unsafe { _mm512_store_si512(line.0.as_mut_ptr().cast(), bytes) }
}
