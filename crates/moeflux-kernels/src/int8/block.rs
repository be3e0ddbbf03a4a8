//! Access to sixteen rows of a matrix in memory, and to their scales and biases in lanes.
//!
//! **Invariant:** reads stay within the matrix; prefetches may reach beyond it. This module knows
//! the layout of codes, but not the activations.

use std::ops::Range;

use crate::cpu::Fetching;
use crate::int8::simd::{HalfKind, IntSimd, PIECE};
use crate::lanes::{LANES, Lanes};
use crate::matrix::decode::{biases, scales};
use crate::matrix::format::{Affine, FloatKind, Matrix};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Minimum distance of prefetches into the second-level cache: 4 KiB are read before they arrive.
const AHEAD_BYTES_MIN: usize = 8 << 10;

/// The same for scales and biases prefetched into the first-level cache.
const NEAR_SCALES_AHEAD_BYTES_MIN: usize = 2 << 10;

/// Groups whose f32 scales are transposed at a time, without vectors.
const FULL_GROUPS: usize = 16;

/// Sixteen rows of values at equal distances.
#[derive(Clone, Copy)]
pub(crate) struct RowBlock<'a> {
    bytes: &'a [u8],
    pub(crate) row_bytes: usize,
    /// Distance between rows, in bytes.
    stride: usize,
    pub(crate) bits: usize,
    prefetch: PrefetchPolicy,
}

/// Prefetch policy for the data after the rows.
#[derive(Clone, Copy)]
struct PrefetchPolicy {
    /// Whether to prefetch into the first-level cache even if it has no room.
    is_near: bool,
    /// Minimum distance, unless the first-level cache has room.
    bytes_min: usize,
}

impl PrefetchPolicy {
    const FAR: Self = Self { is_near: false, bytes_min: AHEAD_BYTES_MIN };
}

impl<'a> RowBlock<'a> {
    /// Returns sixteen rows of `row_bytes` bytes from `first_row`, with values of `bits` each.
    #[inline(always)]
    pub(crate) fn new(
        bytes: &'a [u8],
        (bits, row_bytes): (usize, usize),
        first_row: usize,
    ) -> Self {
        Self::of_every(1, bytes, (bits, row_bytes), first_row)
    }

    /// The same for every `row_step`-th row.
    #[inline(always)]
    pub(crate) fn of_every(
        row_step: usize,
        bytes: &'a [u8],
        (bits, row_bytes): (usize, usize),
        first_row: usize,
    ) -> Self {
        let stride = row_step * row_bytes;
        let bytes = &bytes[first_row * stride..];
        assert!((LANES - 1) * stride + row_bytes <= bytes.len(), "sixteen rows");
        Self { bytes, row_bytes, stride, bits, prefetch: PrefetchPolicy::FAR }
    }

    #[inline(always)]
    pub(crate) fn row(&self, r: usize) -> &'a [u8] {
        &self.bytes[r * self.stride..][..self.row_bytes]
    }

    /// Returns bytes `at .. at + N` of each row.
    #[inline(always)]
    pub(crate) fn pieces<const N: usize>(&self, at: usize) -> [&'a [u8; N]; LANES] {
        assert!(at + N <= self.row_bytes, "a piece within its row");
        let mut pieces = [&[0; N]; LANES];
        for (r, piece) in pieces.iter_mut().enumerate() {
            let at = self.bytes.as_ptr().wrapping_add(r * self.stride + at);
            // SAFETY: `of_every` checked that there are sixteen rows of `row_bytes`, `stride` bytes
            // apart, and the piece lies within its row.
            *piece = unsafe { &*at.cast::<[u8; N]>() };
        }
        pieces
    }

    /// Prefetches a part of the next sixteen rows in memory, or of later ones: the same fraction of
    /// them that bytes `at .. at + n_bytes` are of each of these rows. If other rows may be
    /// interleaved, [`RowBlock::prefetch_next_of_every`] prefetches the right bytes.
    #[inline(always)]
    pub(crate) fn prefetch_next<S: IntSimd>(&self, simd: S, at: usize, n_bytes: usize) {
        let block_bytes = LANES * self.row_bytes;
        let has_room = block_bytes <= S::NEAR_BYTES_MAX && !self.prefetch.is_near;
        let distance =
            if has_room { block_bytes } else { block_bytes.max(self.prefetch.bytes_min) };
        let next = self.bytes.as_ptr().wrapping_add(distance + LANES * at);
        if has_room || self.prefetch.is_near {
            prefetch_lines::<true, S>(simd, next, LANES * n_bytes);
        } else {
            prefetch_lines::<false, S>(simd, next, LANES * n_bytes);
        }
    }

    /// The same if other rows may be interleaved: prefetches the lines of each row that begin in
    /// these bytes. Separate from [`RowBlock::prefetch_next`], because the compiler computes its
    /// sixteen addresses before a loop, even if the loop does not need them: 14 % more instructions
    /// in a product with IQ4_XS on AVX2.
    #[inline(always)]
    pub(crate) fn prefetch_next_of_every<S: IntSimd>(&self, simd: S, at: usize, n_bytes: usize) {
        if self.stride == self.row_bytes {
            return self.prefetch_next(simd, at, n_bytes);
        }
        let first = at.next_multiple_of(LINE);
        if first >= at + n_bytes {
            return;
        }
        for r in LANES..2 * LANES {
            let row = self.bytes.as_ptr().wrapping_add(r * self.stride);
            prefetch_lines::<false, S>(simd, row.wrapping_add(first), at + n_bytes - first);
        }
    }
}

#[inline(always)]
fn prefetch_lines<const NEAR: bool, S: IntSimd>(simd: S, address: *const u8, n_bytes: usize) {
    for line in (0..n_bytes).step_by(LINE) {
        simd.prefetch::<NEAR>(address.wrapping_add(line));
    }
}

/// Memory for a matrix of fewer than sixteen rows, padded with rows of zeros.
#[derive(Debug, Default)]
pub(crate) struct PaddedMatrix {
    parts: [Vec<u8>; 3],
}

impl PaddedMatrix {
    #[inline(always)]
    pub(crate) fn at_least_sixteen_rows<'a>(&'a mut self, matrix: &Matrix<'a>) -> Matrix<'a> {
        let layout = matrix.layout();
        if layout.n_rows >= LANES { *matrix } else { self.fill(matrix) }
    }

    #[cold]
    fn fill<'a>(&'a mut self, matrix: &Matrix<'a>) -> Matrix<'a> {
        let layout = crate::matrix::format::MatrixLayout { n_rows: LANES, ..matrix.layout() };
        let sizes = [layout.code_bytes(), layout.scale_bytes(), layout.bias_bytes()];
        let [codes, scales, biases] = &mut self.parts;
        [&mut *codes, scales, biases].into_iter().for_each(Vec::clear);
        if matrix.row_step() == 1 {
            scales.extend_from_slice(matrix.scales());
            codes.extend_from_slice(matrix.codes());
        } else {
            for row_idx in 0..matrix.layout().n_rows {
                codes.extend_from_slice(matrix.row(row_idx));
                scales.extend_from_slice(matrix.scale_row(row_idx));
            }
        }
        biases.extend_from_slice(matrix.biases());
        [&mut *codes, scales, biases].into_iter().zip(sizes).for_each(|(it, n)| it.resize(n, 0));

        Matrix::new(layout, codes, scales, biases)
    }
}

/// Sixteen rows of a matrix.
#[derive(Clone, Copy)]
pub(crate) struct AffineBlock<'a> {
    pub(crate) matrix: Matrix<'a>,
    pub(crate) affine: Affine,
    pub(crate) first_row: usize,
    pub(crate) fetching: Fetching,
}

impl<'a> AffineBlock<'a> {
    /// Returns sixteen rows from `first_row`.
    #[inline(always)]
    pub(crate) fn new((matrix, affine): (Matrix<'a>, Affine), first_row: usize) -> Self {
        Self { matrix, affine, first_row, fetching: Fetching::Requests }
    }

    #[inline(always)]
    pub(crate) fn codes(&self) -> RowBlock<'a> {
        let (bits, row_bytes) = (self.affine.bits, self.matrix.layout().row_bytes());
        let is_near = self.fetching == Fetching::NearRequests;
        let prefetch = PrefetchPolicy { is_near, bytes_min: AHEAD_BYTES_MIN };
        let shape = (usize::from(bits), row_bytes);
        RowBlock { prefetch, ..RowBlock::new(self.matrix.codes(), shape, self.first_row) }
    }

    /// Returns the same rows of scales or biases.
    #[inline(always)]
    fn halves(&self, bytes: &'a [u8]) -> RowBlock<'a> {
        let row_bytes = 2 * self.affine.n_groups(self.matrix.layout().n_cols);
        let prefetch = if self.fetching == Fetching::NearRequests {
            PrefetchPolicy { is_near: true, bytes_min: NEAR_SCALES_AHEAD_BYTES_MIN }
        } else {
            PrefetchPolicy::FAR
        };
        RowBlock { prefetch, ..RowBlock::new(bytes, (16, row_bytes), self.first_row) }
    }

    /// Writes scales and biases of some groups in lane order.
    #[inline(always)]
    pub(crate) fn load_scales<S: IntSimd>(
        &self,
        simd: S,
        groups: Range<usize>,
        target: &mut [[Lanes; 2]],
    ) {
        match self.affine.scale {
            FloatKind::F16 => self.half_scales(simd, HalfKind::F16, groups, target),
            FloatKind::Bf16 => self.half_scales(simd, HalfKind::Bf16, groups, target),
            FloatKind::F32 => self.full_scales(groups, target),
        }
    }

    #[inline(always)]
    fn half_scales<S: IntSimd>(
        &self,
        simd: S,
        kind: HalfKind,
        groups: Range<usize>,
        target: &mut [[Lanes; 2]],
    ) {
        let implied = self.affine.implied_factor();
        let scales = self.halves(self.matrix.scales());
        // Selects bytes, not rows, so that the compiler still knows that the rows are contiguous.
        let bias_bytes =
            if implied.is_some() { self.matrix.scales() } else { self.matrix.biases() };
        let biases = self.halves(bias_bytes);
        for (first, target) in groups.clone().step_by(8).zip(target.chunks_mut(8)) {
            let n_groups = (groups.end - first).min(8);
            let words = if n_groups == 8 {
                scales.prefetch_next(simd, 2 * first, 16);
                if implied.is_none() {
                    biases.prefetch_next(simd, 2 * first, 16);
                }
                simd.scale_words(&scales.pieces(2 * first), &biases.pieces(2 * first))
            } else {
                let scales = few_pieces(scales, 2 * first, 2 * n_groups);
                let biases = few_pieces(biases, 2 * first, 2 * n_groups);
                simd.scale_words(&scales.each_ref(), &biases.each_ref())
            };
            let n_stored = target.len().min(n_groups);
            for (words, target) in words.iter().zip(&mut target[..n_stored]) {
                let [scales, biases] = simd.half_floats(kind, *words);
                simd.store(scales, &mut target[0]);
                simd.store(biases, &mut target[1]);
            }
        }
        // In a loop of its own: in the loop above the choice would be made for each group.
        if let Some(factor) = implied {
            for [scales, biases] in target.iter_mut().take(groups.len()) {
                simd.store(simd.mul(simd.load(scales), simd.splat(factor)), biases);
            }
        }
    }

    fn full_scales(&self, groups: Range<usize>, target: &mut [[Lanes; 2]]) {
        let mut values = [0.0; FULL_GROUPS];
        for (first, target) in
            groups.clone().step_by(FULL_GROUPS).zip(target.chunks_mut(FULL_GROUPS))
        {
            let values = &mut values[..FULL_GROUPS.min(groups.end - first)];
            for r in 0..LANES {
                scales(&self.matrix, self.first_row + r, first, values);
                target.iter_mut().zip(&*values).for_each(|(it, &value)| it[0][r] = value);
                biases(&self.matrix, self.first_row + r, first, values);
                target.iter_mut().zip(&*values).for_each(|(it, &value)| it[1][r] = value);
            }
        }
    }
}

/// Loads fewer than sixteen bytes of each row. A separate function, so that its addresses are not
/// computed where there are sixteen. Takes rows by value, so that they are not written to memory
/// there.
#[inline(never)]
fn few_pieces(rows: RowBlock<'_>, at: usize, n_bytes: usize) -> [[u8; 16]; LANES] {
    let mut pieces = [[0; 16]; LANES];
    match n_bytes {
        // Sizes known to the compiler are single moves.
        2 => copy_known::<2>(&rows, at, &mut pieces),
        4 => copy_known::<4>(&rows, at, &mut pieces),
        8 => copy_known::<8>(&rows, at, &mut pieces),
        _ => {
            for (r, piece) in pieces.iter_mut().enumerate() {
                let row = &rows.row(r)[at..][..n_bytes];
                piece.iter_mut().zip(row).for_each(|(it, &byte)| *it = byte);
            }
        }
    }
    pieces
}

#[inline(always)]
fn copy_known<const N: usize>(rows: &RowBlock<'_>, at: usize, target: &mut [[u8; 16]; LANES]) {
    for (piece, source) in target.iter_mut().zip(rows.pieces::<N>(at)) {
        piece[..N].copy_from_slice(source);
    }
}

/// Expands each code of `bits` bits to a byte.
pub(crate) fn expand_codes(bits: usize, packed: &[u8], bytes: &mut [u8; PIECE]) {
    let (eights, _) = bytes.as_chunks_mut::<8>();
    for (eight, packed) in eights.iter_mut().zip(packed.chunks_exact(bits)) {
        let mut word = [0; 8];
        word[..bits].copy_from_slice(packed);
        let word = u64::from_le_bytes(word);
        let mask = (1 << bits) - 1;
        for (i, byte) in eight.iter_mut().enumerate() {
            *byte = ((word >> (i * bits)) & mask).to_le_bytes()[0];
        }
    }
}
