//! The kinds with codebooks: eight columns are a lookup in memory.
#![expect(non_camel_case_types, reason = "the names of kinds")]
#![expect(clippy::needless_range_loop, reason = "iterators move arrays of vectors to memory")]

use super::chunk::{BlockChunk, BlockCodes, Half, PreparedChunk, offset, prepared_unit};
use crate::int8::simd::IntSimd;
use crate::matrix::blocks::{BlockKind, IQ2_XXS_GRID, IQ3_XXS_GRID, SIGNS};

/// Offset of eight magnitudes of IQ2_XXS, or of IQ3_XXS.
const OFFSETS: u64 = u64::from_le_bytes([offset(BlockKind::IQ2_XXS); 8]);

const _: () = assert!(offset(BlockKind::IQ3_XXS) == offset(BlockKind::IQ2_XXS), "one for both");

pub(in crate::int8) struct IQ2_XXS;
pub(in crate::int8) struct IQ3_XXS;

impl BlockCodes for IQ2_XXS {
    const KIND: BlockKind = BlockKind::IQ2_XXS;

    #[inline(always)]
    fn prepare<S: IntSimd>(simd: S, chunk: &BlockChunk<'_>, prepared: &mut PreparedChunk) {
        let scale = block_scale(simd, chunk);
        for g in 0..4 {
            let [_, first, _, second] = chunk.quads(simd, 2 + 16 * g);
            store_scale(simd, first, (scale, 0.25), prepared, 2 * g);
            store_scale(simd, second, (scale, 0.25), prepared, 2 * g + 1);
        }
        for (words, codes) in chunk.bytes::<64>(2).iter().zip(&mut prepared.codes) {
            let (words, _) = words.as_chunks::<8>();
            let (targets, _) = codes.as_chunks_mut::<32>();
            for ([a, b, c, d, signs @ ..], target) in words.iter().zip(targets) {
                let magnitudes = [a, b, c, d].map(|&it| IQ2_XXS_GRID[usize::from(it)]);
                store_piece(magnitudes, u32::from_le_bytes(*signs), target);
            }
        }
    }

    #[inline(always)]
    fn unit<S: IntSimd>(
        simd: S,
        _: &BlockChunk<'_>,
        prepared: &PreparedChunk,
        unit: usize,
    ) -> [Half<S>; 4] {
        prepared_unit(simd, prepared, unit)
    }
}

impl BlockCodes for IQ3_XXS {
    const KIND: BlockKind = BlockKind::IQ3_XXS;

    #[inline(always)]
    fn prepare<S: IntSimd>(simd: S, chunk: &BlockChunk<'_>, prepared: &mut PreparedChunk) {
        let scale = block_scale(simd, chunk);
        for (k, at) in [66, 82].into_iter().enumerate() {
            let words = chunk.quads(simd, at);
            for i in 0..4 {
                store_scale(simd, words[i], (scale, 0.5), prepared, 4 * k + i);
            }
        }
        for (bytes, codes) in chunk.bytes::<96>(2).iter().zip(&mut prepared.codes) {
            let (indices, signs) = bytes.split_at(64);
            let (indices, signs) = (indices.as_chunks::<8>().0, signs.as_chunks::<4>().0);
            let (targets, _) = codes.as_chunks_mut::<32>();
            for ((indices, signs), target) in indices.iter().zip(signs).zip(targets) {
                let fours = indices.map(|it| u64::from(IQ3_XXS_GRID[usize::from(it)]));
                let [a, b, c, d, e, f, g, h] = fours;
                let magnitudes = [a | b << 32, c | d << 32, e | f << 32, g | h << 32];
                store_piece(magnitudes, u32::from_le_bytes(*signs), target);
            }
        }
    }

    #[inline(always)]
    fn unit<S: IntSimd>(
        simd: S,
        _: &BlockChunk<'_>,
        prepared: &PreparedChunk,
        unit: usize,
    ) -> [Half<S>; 4] {
        prepared_unit(simd, prepared, unit)
    }
}

#[inline(always)]
fn block_scale<S: IntSimd>(simd: S, chunk: &BlockChunk<'_>) -> S::Vector {
    simd.widened(&chunk.bytes::<2>(0).map(|it| u16::from_le_bytes(*it)))
}

/// Stores a group's scale: the highest 4 bits of its word plus one half, in units of `unit`.
#[inline(always)]
fn store_scale<S: IntSimd>(
    simd: S,
    words: S::Quads,
    (scale, unit): (S::Vector, f32),
    prepared: &mut PreparedChunk,
    g: usize,
) {
    let factor = simd.add(simd.field_floats(words, 28, 15), simd.splat(0.5));
    let factor = simd.mul(factor, simd.splat(unit));
    simd.store(simd.mul(scale, factor), &mut prepared.scales[g][0]);
}

/// Stores the codes of 32 columns: four times eight magnitudes, and seven signs for each.
#[inline(always)]
fn store_piece(magnitudes: [u64; 4], signs: u32, target: &mut [u8; 32]) {
    let (eights, _) = target.as_chunks_mut::<8>();
    for (i, (magnitudes, eight)) in magnitudes.into_iter().zip(eights).enumerate() {
        let negative = SIGNS[(signs >> (7 * i) & 127) as usize];
        // Bytes stay within 2 and 126, so that none borrows from another.
        let codes = OFFSETS + magnitudes - 2 * (magnitudes & negative);
        *eight = codes.to_le_bytes();
    }
}
