//! Some blocks of sixteen rows, and the unpacking of a kind's codes and scales.

use crate::int8::block::RowBlock;
use crate::int8::rows::sort_even_odd;
use crate::int8::simd::{IntSimd, PIECE};
use crate::lanes::{LANES, Lanes};
use crate::matrix::blocks::{BlockKind, DecodedBlock};

/// Columns that are summed up before their terms are added.
pub(super) const SPAN_COLS: usize = 4 * PIECE;

/// Columns of a large block.
pub(super) const CHUNK_COLS_MAX: usize = 2 * SPAN_COLS;

/// Upper bound on the groups of a chunk.
const CHUNK_GROUPS_MAX: usize = CHUNK_COLS_MAX / (PIECE / 2);

/// A large block, or four small ones, of each of sixteen rows.
pub(in crate::int8) struct BlockChunk<'a> {
    pub(super) rows: RowBlock<'a>,
    /// Offset of the first byte in each row.
    pub(super) at: usize,
    /// Separately stored scales of blocks.
    pub(super) scales: RowBlock<'a>,
    /// Offset of the first scale byte in each row.
    pub(super) scales_at: usize,
}

impl<'a> BlockChunk<'a> {
    /// Returns sixteen bytes of each row from a byte of the chunk, four at a time.
    #[inline(always)]
    pub(super) fn quads<S: IntSimd>(&self, simd: S, at: usize) -> [S::Quads; 4] {
        simd.quads(&self.rows.pieces(self.at + at))
    }

    #[inline(always)]
    pub(super) fn bytes<const N: usize>(&self, at: usize) -> [&'a [u8; N]; LANES] {
        self.rows.pieces(self.at + at)
    }
}

/// Preprocessed data of a chunk.
#[repr(align(64))]
pub(in crate::int8) struct PreparedChunk {
    /// Sixteen rows of codes, for kinds whose codes are not unpacked by vectors.
    pub(super) codes: [[u8; CHUNK_COLS_MAX]; LANES],
    /// Scales and biases of the groups.
    pub(super) scales: [[Lanes; 2]; CHUNK_GROUPS_MAX],
}

impl PreparedChunk {
    pub(super) const ZEROS: Self =
        Self { codes: [[0; CHUNK_COLS_MAX]; LANES], scales: [[[0.0; LANES]; 2]; CHUNK_GROUPS_MAX] };
}

/// Sixteen columns of sixteen rows, four at a time.
pub(in crate::int8) type Half<S> = [<S as IntSimd>::Quads; 4];

/// Returns the offset that makes a kind's signed codes unsigned; zero if groups have a bias.
pub(in crate::int8) const fn offset(kind: BlockKind) -> u8 {
    match kind {
        BlockKind::Q4_1 | BlockKind::Q5_1 | BlockKind::Q2_K | BlockKind::Q4_K | BlockKind::Q5_K => {
            0
        }
        BlockKind::Q3_K => 4,
        BlockKind::Q4_0 => 8,
        BlockKind::MXFP4 | BlockKind::MXFP4_APART => 12,
        BlockKind::Q5_0 | BlockKind::IQ3_S => 16,
        BlockKind::Q6_K => 32,
        BlockKind::IQ2_XXS | BlockKind::IQ2_XS | BlockKind::IQ2_S | BlockKind::IQ3_XXS => 64,
        BlockKind::IQ4_NL | BlockKind::IQ4_XS => 127,
        BlockKind::Q8_0 => 128,
    }
}

/// Returns whether codes of a kind have more than 4 bits, once they are unsigned.
pub(in crate::int8) const fn is_wide(kind: BlockKind) -> bool {
    !matches!(
        kind,
        BlockKind::Q4_0 | BlockKind::Q4_1 | BlockKind::Q2_K | BlockKind::Q3_K | BlockKind::Q4_K
    )
}

/// Returns the blocks of a chunk.
pub(super) const fn chunk_blocks(kind: BlockKind) -> usize {
    SPAN_COLS.div_ceil(kind.block_cols())
}

/// Unpacking of a kind's codes by vectors.
pub(in crate::int8) trait BlockCodes {
    const KIND: BlockKind;

    /// Whether the halves of a unit are [`PIECE`] columns apart.
    const STRIDED: bool = false;

    /// Prepares a chunk's scales and biases, and other data for [`BlockCodes::unit`].
    fn prepare<S: IntSimd>(simd: S, chunk: &BlockChunk<'_>, prepared: &mut PreparedChunk);

    /// Returns the codes of 64 columns.
    fn unit<S: IntSimd>(
        simd: S,
        chunk: &BlockChunk<'_>,
        prepared: &PreparedChunk,
        unit: usize,
    ) -> [Half<S>; 4];

    /// Returns the half of a span that the `j`-th half of a unit is.
    #[inline(always)]
    fn place(unit: usize, j: usize) -> usize {
        if Self::STRIDED { 2 * j + unit % 2 } else { unit % 2 * 4 + j }
    }
}

/// Returns 64 columns of prepared codes.
#[inline(always)]
pub(super) fn prepared_unit<S: IntSimd>(
    simd: S,
    prepared: &PreparedChunk,
    unit: usize,
) -> [Half<S>; 4] {
    let rows = RowBlock::new(prepared.codes.as_flattened(), (8, CHUNK_COLS_MAX), 0);
    let scales = RowBlock::new(&[], (8, 0), 0);
    let chunk = BlockChunk { rows, at: 64 * unit, scales, scales_at: 0 };
    [chunk.quads(simd, 0), chunk.quads(simd, 16), chunk.quads(simd, 32), chunk.quads(simd, 48)]
}

/// Prepares a chunk of any kind, without vectors.
pub(super) fn prepare_any(kind: BlockKind, chunk: &BlockChunk<'_>, prepared: &mut PreparedChunk) {
    let (block_cols, block_bytes) = (kind.block_cols(), kind.block_bytes());
    let n_groups = block_cols / kind.group_cols();
    let mut decoded = DecodedBlock::ZEROS;
    for (r, codes) in prepared.codes.iter_mut().enumerate() {
        let row = &chunk.rows.row(r)[chunk.at..][..chunk_blocks(kind) * block_bytes];
        let n_scales = kind.scale_bytes();
        let scales = &chunk.scales.row(r)[chunk.scales_at..];
        let blocks = row.chunks_exact(block_bytes).zip(codes.chunks_exact_mut(block_cols));
        for (block_idx, (block, codes)) in blocks.enumerate() {
            decoded.decode(kind, block, &scales[block_idx * n_scales..][..n_scales]);
            if kind.is_even_odd() {
                sort_even_odd(&mut decoded.codes[..block_cols]);
            }
            for (code, value) in codes.iter_mut().zip(decoded.codes) {
                *code = value.cast_unsigned().wrapping_add(offset(kind));
            }
            for g in 0..n_groups {
                let [scales, biases] = &mut prepared.scales[block_idx * n_groups + g];
                (scales[r], biases[r]) = (decoded.scales[g], decoded.biases[g]);
            }
        }
    }
}
