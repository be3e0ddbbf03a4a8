//! The kinds, with the location of their codes and scales.
#![expect(non_camel_case_types, reason = "the names of kinds")]
#![expect(clippy::needless_range_loop, reason = "iterators move arrays of vectors to memory")]

use super::chunk::{BlockChunk, BlockCodes, Half, PreparedChunk, offset};
use crate::int8::simd::{HalfKind, IntSimd};
use crate::lanes::LANES;
use crate::matrix::blocks::{BlockKind, E2M1_VALUES, IQ4_VALUES};

/// Evaluates an expression with the type `$K` of a kind known at run time if it is among the
/// `$name`s, or else another expression.
macro_rules! for_kind {
    ($kind:expr, $($name:ident)*, $K:ident => $body:expr, else $other:expr) => {
        match $kind {
            $($crate::matrix::blocks::BlockKind::$name => {
                type $K = $crate::int8::blocks::kinds::$name;
                $body
            })*
            _ => $other,
        }
    };
}
pub(in crate::int8) use for_kind;

/// Types that represent kinds.
pub(in crate::int8) struct Q4_0;
pub(in crate::int8) struct Q4_1;
pub(in crate::int8) struct Q8_0;
pub(in crate::int8) struct Q2_K;
pub(in crate::int8) struct Q3_K;
pub(in crate::int8) struct Q4_K;
pub(in crate::int8) struct Q5_K;
pub(in crate::int8) struct Q6_K;
pub(in crate::int8) struct IQ4_NL;
pub(in crate::int8) struct IQ4_XS;
pub(in crate::int8) struct MXFP4;
pub(in crate::int8) struct MXFP4_APART;
pub(in crate::int8) use super::codebooks::{IQ2_XXS, IQ3_XXS};

impl BlockCodes for Q4_0 {
    const KIND: BlockKind = BlockKind::Q4_0;

    #[inline(always)]
    fn prepare<S: IntSimd>(simd: S, chunk: &BlockChunk<'_>, prepared: &mut PreparedChunk) {
        small_scales::<18, S>(simd, chunk, prepared);
    }

    #[inline(always)]
    fn unit<S: IntSimd>(
        simd: S,
        chunk: &BlockChunk<'_>,
        _: &PreparedChunk,
        unit: usize,
    ) -> [Half<S>; 4] {
        nibbles(simd, chunk, [36 * unit + 2, 36 * unit + 20])
    }
}

impl BlockCodes for Q4_1 {
    const KIND: BlockKind = BlockKind::Q4_1;

    #[inline(always)]
    fn prepare<S: IntSimd>(simd: S, chunk: &BlockChunk<'_>, prepared: &mut PreparedChunk) {
        small_scales::<20, S>(simd, chunk, prepared);
        for (block_idx, scales) in prepared.scales[..4].iter_mut().enumerate() {
            let biases = chunk.bytes::<2>(20 * block_idx + 2).map(|it| u16::from_le_bytes(*it));
            simd.store(simd.widened(&biases), &mut scales[1]);
        }
    }

    #[inline(always)]
    fn unit<S: IntSimd>(
        simd: S,
        chunk: &BlockChunk<'_>,
        _: &PreparedChunk,
        unit: usize,
    ) -> [Half<S>; 4] {
        nibbles(simd, chunk, [40 * unit + 4, 40 * unit + 24])
    }
}

impl BlockCodes for Q8_0 {
    const KIND: BlockKind = BlockKind::Q8_0;

    #[inline(always)]
    fn prepare<S: IntSimd>(simd: S, chunk: &BlockChunk<'_>, prepared: &mut PreparedChunk) {
        small_scales::<34, S>(simd, chunk, prepared);
    }

    #[inline(always)]
    fn unit<S: IntSimd>(
        simd: S,
        chunk: &BlockChunk<'_>,
        _: &PreparedChunk,
        unit: usize,
    ) -> [Half<S>; 4] {
        let at = 68 * unit;
        let mut halves = [chunk.quads(simd, at + 2); 4];
        halves[1] = chunk.quads(simd, at + 18);
        halves[2] = chunk.quads(simd, at + 36);
        halves[3] = chunk.quads(simd, at + 52);
        for half in &mut halves {
            for i in 0..4 {
                half[i] = simd.flip(half[i], 128);
            }
        }
        halves
    }
}

impl BlockCodes for Q2_K {
    const KIND: BlockKind = BlockKind::Q2_K;
    const STRIDED: bool = true;

    #[inline(always)]
    fn prepare<S: IntSimd>(simd: S, chunk: &BlockChunk<'_>, prepared: &mut PreparedChunk) {
        let words = chunk.quads(simd, 0);
        let [scale, least] = simd.half_floats(HalfKind::F16, chunk.quads(simd, 68)[3]);
        let least = simd.mul(least, simd.splat(-1.0));
        for g in 0..16 {
            let byte = 8 * shift(g % 4);
            let [scales, biases] = &mut prepared.scales[g];
            let factor = simd.field_floats(words[g / 4], byte, 15);
            simd.store(simd.mul(scale, factor), scales);
            let factor = simd.field_floats(words[g / 4], byte + 4, 15);
            simd.store(simd.mul(least, factor), biases);
        }
    }

    #[inline(always)]
    fn unit<S: IntSimd>(
        simd: S,
        chunk: &BlockChunk<'_>,
        _: &PreparedChunk,
        unit: usize,
    ) -> [Half<S>; 4] {
        let codes = chunk.quads(simd, 16 + 16 * unit);
        pairs(simd, codes)
    }
}

impl BlockCodes for Q3_K {
    const KIND: BlockKind = BlockKind::Q3_K;
    const STRIDED: bool = true;

    #[inline(always)]
    fn prepare<S: IntSimd>(simd: S, chunk: &BlockChunk<'_>, prepared: &mut PreparedChunk) {
        let [_, low, middle, high] = chunk.quads(simd, 92);
        let [_, scale] = simd.half_floats(HalfKind::F16, chunk.quads(simd, 94)[3]);
        let factors = [
            simd.either(simd.low_halves(low), simd.field(high, 0, 4, 0x30)),
            simd.either(simd.low_halves(middle), simd.field(high, 0, 2, 0x30)),
            simd.either(simd.high_halves(low), simd.field(high, 0, 0, 0x30)),
            simd.either(simd.high_halves(middle), simd.field(high, 2, 0, 0x30)),
        ];
        byte_scales(simd, factors, (scale, -32.0), prepared);
    }

    #[inline(always)]
    fn unit<S: IntSimd>(
        simd: S,
        chunk: &BlockChunk<'_>,
        _: &PreparedChunk,
        unit: usize,
    ) -> [Half<S>; 4] {
        let high = chunk.quads(simd, 16 * (unit % 2));
        let mut halves = pairs(simd, chunk.quads(simd, 32 + 16 * unit));
        for j in 0..4 {
            // Moves the bit of 128 columns and the j-th 32 of them to bit 2.
            let bit = shift(unit / 2 * 4 + j);
            let (right, left) = (bit.saturating_sub(2), 2_u32.saturating_sub(bit));
            for i in 0..4 {
                let third = simd.field(high[i], right, left, 4);
                halves[j][i] = simd.either(halves[j][i], third);
            }
        }
        halves
    }
}

impl BlockCodes for Q4_K {
    const KIND: BlockKind = BlockKind::Q4_K;

    #[inline(always)]
    fn prepare<S: IntSimd>(simd: S, chunk: &BlockChunk<'_>, prepared: &mut PreparedChunk) {
        six_bit_scales(simd, chunk, prepared);
    }

    #[inline(always)]
    fn unit<S: IntSimd>(
        simd: S,
        chunk: &BlockChunk<'_>,
        _: &PreparedChunk,
        unit: usize,
    ) -> [Half<S>; 4] {
        nibbles_of_64(simd, chunk, 16 + 32 * unit)
    }
}

impl BlockCodes for Q5_K {
    const KIND: BlockKind = BlockKind::Q5_K;

    /// Stores the fifth bits, which all units share, in row order.
    #[inline(always)]
    fn prepare<S: IntSimd>(simd: S, chunk: &BlockChunk<'_>, prepared: &mut PreparedChunk) {
        six_bit_scales(simd, chunk, prepared);
        let (targets, _) = prepared.codes.as_flattened_mut().as_chunks_mut::<64>();
        for (k, targets) in targets[..8].as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let high = chunk.quads(simd, 16 + 16 * k);
            for i in 0..4 {
                simd.store_quads(high[i], &mut targets[i]);
            }
        }
    }

    #[inline(always)]
    fn unit<S: IntSimd>(
        simd: S,
        chunk: &BlockChunk<'_>,
        prepared: &PreparedChunk,
        unit: usize,
    ) -> [Half<S>; 4] {
        let (high, _) = prepared.codes.as_flattened().as_chunks::<64>();
        let mut halves = nibbles_of_64(simd, chunk, 48 + 32 * unit);
        for j in 0..4 {
            // Moves the bit of 32 columns to bit 4.
            let bit = shift(2 * unit + j / 2);
            let (right, left) = (bit.saturating_sub(4), 4_u32.saturating_sub(bit));
            for i in 0..4 {
                let high = simd.load_quads(&high[j % 2 * 4 + i]);
                let fifth = simd.field(high, right, left, 16);
                halves[j][i] = simd.either(halves[j][i], fifth);
            }
        }
        halves
    }
}

impl BlockCodes for Q6_K {
    const KIND: BlockKind = BlockKind::Q6_K;
    const STRIDED: bool = true;

    #[inline(always)]
    fn prepare<S: IntSimd>(simd: S, chunk: &BlockChunk<'_>, prepared: &mut PreparedChunk) {
        let mut factors = chunk.quads(simd, 192);
        for i in 0..4 {
            factors[i] = simd.flip(factors[i], 128);
        }
        let [_, scale] = simd.half_floats(HalfKind::F16, chunk.quads(simd, 194)[3]);
        byte_scales(simd, factors, (scale, -128.0), prepared);
    }

    #[inline(always)]
    fn unit<S: IntSimd>(
        simd: S,
        chunk: &BlockChunk<'_>,
        _: &PreparedChunk,
        unit: usize,
    ) -> [Half<S>; 4] {
        let at = unit / 2 * 64 + unit % 2 * 16;
        let (a, b) = (chunk.quads(simd, at), chunk.quads(simd, at + 32));
        let high = chunk.quads(simd, 128 + 16 * unit);
        let mut halves = [a; 4];
        for i in 0..4 {
            let joined =
                |low, right, left| simd.either(low, simd.field(high[i], right, left, 0x30));
            halves[0][i] = joined(simd.low_halves(a[i]), 0, 4);
            halves[1][i] = joined(simd.low_halves(b[i]), 0, 2);
            halves[2][i] = joined(simd.high_halves(a[i]), 0, 0);
            halves[3][i] = joined(simd.high_halves(b[i]), 2, 0);
        }
        halves
    }
}

/// IQ4's values, minus the smallest.
const IQ4_CODES: [u8; 16] = with_offset(IQ4_VALUES, offset(BlockKind::IQ4_NL));

/// Twice the values of e2m1, minus the smallest.
const E2M1_CODES: [u8; 16] = with_offset(E2M1_VALUES, offset(BlockKind::MXFP4));

const fn with_offset(values: [i8; 16], offset: u8) -> [u8; 16] {
    let mut codes = [0; 16];
    let mut i = 0;
    while i < 16 {
        codes[i] = values[i].cast_unsigned().wrapping_add(offset);
        i += 1;
    }
    codes
}

impl BlockCodes for IQ4_NL {
    const KIND: BlockKind = BlockKind::IQ4_NL;

    #[inline(always)]
    fn prepare<S: IntSimd>(simd: S, chunk: &BlockChunk<'_>, prepared: &mut PreparedChunk) {
        small_scales::<18, S>(simd, chunk, prepared);
    }

    #[inline(always)]
    fn unit<S: IntSimd>(
        simd: S,
        chunk: &BlockChunk<'_>,
        _: &PreparedChunk,
        unit: usize,
    ) -> [Half<S>; 4] {
        let codes = nibbles(simd, chunk, [36 * unit + 2, 36 * unit + 20]);
        looked_up(simd, &IQ4_CODES, codes)
    }
}

impl BlockCodes for IQ4_XS {
    const KIND: BlockKind = BlockKind::IQ4_XS;

    #[inline(always)]
    fn prepare<S: IntSimd>(simd: S, chunk: &BlockChunk<'_>, prepared: &mut PreparedChunk) {
        let [first, low, _, _] = chunk.quads(simd, 0);
        let [scale, _] = simd.half_floats(HalfKind::F16, first);
        for g in 0..8 {
            let high = simd.field_floats(first, 16 + 2 * shift(g), 3);
            let low = simd.field_floats(low, 4 * shift(g), 15);
            let factor = simd.add(simd.fma(high, simd.splat(16.0), low), simd.splat(-32.0));
            simd.store(simd.mul(scale, factor), &mut prepared.scales[g][0]);
        }
    }

    #[inline(always)]
    fn unit<S: IntSimd>(
        simd: S,
        chunk: &BlockChunk<'_>,
        _: &PreparedChunk,
        unit: usize,
    ) -> [Half<S>; 4] {
        let codes = nibbles(simd, chunk, [8 + 32 * unit, 24 + 32 * unit]);
        looked_up(simd, &IQ4_CODES, codes)
    }
}

impl BlockCodes for MXFP4 {
    const KIND: BlockKind = BlockKind::MXFP4;

    #[inline(always)]
    fn prepare<S: IntSimd>(simd: S, chunk: &BlockChunk<'_>, prepared: &mut PreparedChunk) {
        for (block_idx, [scales, _]) in prepared.scales[..4].iter_mut().enumerate() {
            let [first, ..] = chunk.quads(simd, 17 * block_idx);
            simd.store(simd.half_powers(first, 0), scales);
        }
    }

    #[inline(always)]
    fn unit<S: IntSimd>(
        simd: S,
        chunk: &BlockChunk<'_>,
        _: &PreparedChunk,
        unit: usize,
    ) -> [Half<S>; 4] {
        let codes = nibbles(simd, chunk, [34 * unit + 1, 34 * unit + 18]);
        looked_up(simd, &E2M1_CODES, codes)
    }
}

impl BlockCodes for MXFP4_APART {
    const KIND: BlockKind = BlockKind::MXFP4_APART;

    #[inline(always)]
    fn prepare<S: IntSimd>(simd: S, chunk: &BlockChunk<'_>, prepared: &mut PreparedChunk) {
        let exponents = words(simd, chunk.scales.pieces(chunk.scales_at));
        for block_idx in 0..4 {
            let scales = simd.half_powers(exponents, 8 * shift(block_idx));
            simd.store(scales, &mut prepared.scales[block_idx][0]);
        }
    }

    /// Activations have the order in which even and odd columns are unpacked from bytes.
    #[inline(always)]
    fn unit<S: IntSimd>(
        simd: S,
        chunk: &BlockChunk<'_>,
        _: &PreparedChunk,
        unit: usize,
    ) -> [Half<S>; 4] {
        let (a, b) = (chunk.quads(simd, 32 * unit), chunk.quads(simd, 32 * unit + 16));
        let mut halves = [a; 4];
        for i in 0..4 {
            let (to, at) = (i / 2, 2 * (i % 2));
            halves[to][at] = simd.low_halves(a[i]);
            halves[to][at + 1] = simd.high_halves(a[i]);
            halves[to + 2][at] = simd.low_halves(b[i]);
            halves[to + 2][at + 1] = simd.high_halves(b[i]);
        }
        looked_up(simd, &E2M1_CODES, halves)
    }
}

/// Loads four bytes of each row.
#[inline(always)]
fn words<S: IntSimd>(simd: S, pieces: [&[u8; 4]; LANES]) -> S::Quads {
    let mut words = [0; 4 * LANES];
    let (targets, _) = words.as_chunks_mut::<4>();
    for r in 0..LANES {
        targets[r] = *pieces[r];
    }
    simd.load_quads(&words)
}

/// Converts a number of bits for vector shifts.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "at most 31")]
const fn shift(n: usize) -> u32 {
    n as u32
}

/// Unpacks, of two times sixteen bytes, the low halves, then the high ones.
#[inline(always)]
fn nibbles<S: IntSimd>(simd: S, chunk: &BlockChunk<'_>, [a, b]: [usize; 2]) -> [Half<S>; 4] {
    let (a, b) = (chunk.quads(simd, a), chunk.quads(simd, b));
    // Indexed loops everywhere: closures would be functions without the instruction set.
    let mut halves = [a; 4];
    for i in 0..4 {
        halves[0][i] = simd.low_halves(a[i]);
        halves[1][i] = simd.high_halves(a[i]);
        halves[2][i] = simd.low_halves(b[i]);
        halves[3][i] = simd.high_halves(b[i]);
    }
    halves
}

/// Looks up each code in a table.
#[inline(always)]
fn looked_up<S: IntSimd>(simd: S, table: &[u8; 16], mut halves: [Half<S>; 4]) -> [Half<S>; 4] {
    for half in &mut halves {
        for i in 0..4 {
            half[i] = simd.look_up(table, half[i]);
        }
    }
    halves
}

/// Unpacks the low halves of 32 bytes, then the high ones.
#[inline(always)]
fn nibbles_of_64<S: IntSimd>(simd: S, chunk: &BlockChunk<'_>, at: usize) -> [Half<S>; 4] {
    let [a, b, c, d] = nibbles(simd, chunk, [at, at + 16]);
    [a, c, b, d]
}

/// Unpacks 2-bit codes: the lowest of each byte, then the next.
#[inline(always)]
fn pairs<S: IntSimd>(simd: S, bytes: Half<S>) -> [Half<S>; 4] {
    let mut halves = [bytes; 4];
    for j in 0..4 {
        for i in 0..4 {
            halves[j][i] = simd.field(bytes[i], 2 * shift(j), 0, 3);
        }
    }
    halves
}

/// Stores the scales of four small blocks, which begin with them.
#[inline(always)]
fn small_scales<const BYTES: usize, S: IntSimd>(
    simd: S,
    chunk: &BlockChunk<'_>,
    prepared: &mut PreparedChunk,
) {
    for (block_idx, scales) in prepared.scales[..4].iter_mut().enumerate() {
        let bits = chunk.bytes::<2>(BYTES * block_idx).map(|it| u16::from_le_bytes(*it));
        simd.store(simd.widened(&bits), &mut scales[0]);
    }
}

/// Stores sixteen scales of one byte each, minus a number.
#[inline(always)]
fn byte_scales<S: IntSimd>(
    simd: S,
    factors: [S::Quads; 4],
    (scale, less): (S::Vector, f32),
    prepared: &mut PreparedChunk,
) {
    for g in 0..16 {
        let factor = simd.field_floats(factors[g / 4], 8 * shift(g % 4), 255);
        let factor = simd.add(factor, simd.splat(less));
        simd.store(simd.mul(scale, factor), &mut prepared.scales[g][0]);
    }
}

/// Stores the scales and biases of Q4_K and Q5_K.
#[inline(always)]
fn six_bit_scales<S: IntSimd>(simd: S, chunk: &BlockChunk<'_>, prepared: &mut PreparedChunk) {
    let [first, low, middle, high] = chunk.quads(simd, 0);
    let [scale, least] = simd.half_floats(HalfKind::F16, first);
    let least = simd.mul(least, simd.splat(-1.0));
    let scales = [
        simd.field(low, 0, 0, 63),
        simd.either(simd.low_halves(high), simd.field(low, 2, 0, 0x30)),
    ];
    let minima = [
        simd.field(middle, 0, 0, 63),
        simd.either(simd.high_halves(high), simd.field(middle, 2, 0, 0x30)),
    ];
    for g in 0..8 {
        let byte = 8 * shift(g % 4);
        let [to_scales, to_biases] = &mut prepared.scales[g];
        simd.store(simd.mul(scale, simd.field_floats(scales[g / 4], byte, 255)), to_scales);
        simd.store(simd.mul(least, simd.field_floats(minima[g / 4], byte, 255)), to_biases);
    }
}
