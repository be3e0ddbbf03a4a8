//! AMX int8: products of tiles, sixteen matrix rows with sixteen rows of activations.
//!
//! A tile's sums belong to one group. They are converted to floats and added to the sums so far,
//! which costs as much as the tiles themselves. So the unit fills a small square of tiles, of two
//! blocks of matrix rows with two strips of activations, for a few groups, and then all are added.
//! Everything else is AVX-512 VNNI. **Invariant:** lanes are rows of activations here; outputs are
//! transposed at the end.

mod layout;
mod tiles;
mod square;
mod blocks;

use std::arch::x86_64::{_mm512_castps_si512, _mm512_castsi512_ps};
use std::ops::Range;

use super::strips::{StripOrder, pack_strips, transposed};
use super::vnni::Avx512Vnni;
use super::{KERNELS, load, splat, store, unpack_blocks};
use crate::int8::{
    AffineBlock, CacheLine, IntProduct, IntRows, IntScratch, PIECE, RepackedRows, RowBlock, Square,
    ensure_len, matmul, strip_lines,
};
use crate::lanes::{LANES, Lanes};
use crate::matrix::format::{Affine, MatrixKind};
use crate::prefetch::Prefetcher;
use crate::table::KernelTable;
use blocks::multiply_blocks;
use layout::{convert_any, convert_nibbles};
use square::{CodeGroups, GROUPS, SIDE, SquareProducts, StripGroups, add_square};
use tiles::{Amx, LINE, TILE_BYTES, TileRows, TileUnit};

/// Minimum rows of activations: fewer leave most of a tile empty, and vectors are faster.
const PICKS_MIN: usize = 4;

static TABLE: KernelTable = KernelTable { name: "amx", repack_inputs, int_matmul, ..KERNELS };

pub(in crate::x86_64) fn table() -> Option<&'static KernelTable> {
    let is_available =
        super::vnni::table().is_some() && is_x86_feature_detected!("gfni") && Amx::get().is_some();
    is_available.then_some(&TABLE)
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni")]
fn repack_inputs(rows: &IntRows, picks: &[usize], repacked: &mut RepackedRows) {
    match picks.len() {
        0 | 1 => {}
        2..PICKS_MIN => pack_strips(rows, picks, StripOrder::AsGiven, repacked),
        PICKS_MIN.. => pack_strips(rows, picks, StripOrder::OfTiles, repacked),
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni")]
fn int_matmul(product: &IntProduct<'_>, scratch: &mut IntScratch, out: &mut [f32]) {
    match product.matrix.layout().kind {
        MatrixKind::Affine(affine) if product.x.repacked.n_rows >= PICKS_MIN => {
            let mut amx = Amx::get().expect("the table is had only where the unit is");
            let _configured = amx.configured(usize::from(affine.group));
            multiply(&mut amx, (product, affine), scratch, out);
        }
        MatrixKind::Block(kind) if product.x.repacked.n_rows >= PICKS_MIN => {
            let mut amx = Amx::get().expect("the table is had only where the unit is");
            let _configured = amx.configured(kind.group_cols());
            multiply_blocks(&mut amx, product, scratch, out);
        }
        _ => matmul(Avx512Vnni::of_table(), (product, unpack_blocks), scratch, out),
    }
}

/// Returns the table as on a CPU with the unit. Tests run it on every CPU that has its vectors.
#[cfg(any(test, feature = "emulated"))]
pub(crate) fn emulated() -> Option<&'static KernelTable> {
    static TABLE: KernelTable = KernelTable {
        name: "amx, emulated",
        repack_inputs: repack_all_inputs,
        int_matmul: int_matmul_emulated,
        ..KERNELS
    };
    let is_available = super::vnni::table().is_some() && is_x86_feature_detected!("gfni");
    is_available.then_some(&TABLE)
}

#[cfg(any(test, feature = "emulated"))]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni")]
fn repack_all_inputs(rows: &IntRows, picks: &[usize], repacked: &mut RepackedRows) {
    pack_strips(rows, picks, StripOrder::OfTiles, repacked);
}

#[cfg(any(test, feature = "emulated"))]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni")]
fn int_matmul_emulated(product: &IntProduct<'_>, scratch: &mut IntScratch, out: &mut [f32]) {
    if product.x.repacked.n_rows == 0 {
        return;
    }
    match product.matrix.layout().kind {
        MatrixKind::Affine(affine) => {
            let mut unit = tiles::EmulatedAmx::new(usize::from(affine.group));
            multiply(&mut unit, (product, affine), scratch, out);
        }
        MatrixKind::Block(kind) => {
            let mut unit = tiles::EmulatedAmx::new(kind.group_cols());
            multiply_blocks(&mut unit, product, scratch, out);
        }
        MatrixKind::Float(_) | MatrixKind::Fp8(_) => {}
    }
}

/// Computes the product, with tiles shaped for its groups.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni")]
fn multiply<T: TileUnit>(
    unit: &mut T,
    (product, affine): (&IntProduct<'_>, Affine),
    scratch: &mut IntScratch,
    out: &mut [f32],
) {
    let (n_picks, layout) = (product.x.repacked.n_rows, product.matrix.layout());
    assert_eq!(n_picks, product.x.picks.len(), "rows that were laid down");
    let n_strips = n_picks.div_ceil(LANES);
    let group = usize::from(affine.group);
    let n_groups = layout.n_cols / group;
    let IntScratch { codes, scales, sums, padded, .. } = scratch;
    let matrix = padded.at_least_sixteen_rows(&product.matrix);
    let sums = ensure_len(sums, SIDE * n_strips, Square([[0.0; LANES]; LANES]));
    let codes = ensure_len(codes, SIDE * strip_lines(GROUPS * group), CacheLine([0; LINE]));
    let scales = ensure_len(scales, SIDE * n_groups, [[0.0; LANES]; 2]);
    let mut products = SquareProducts::ZEROS;
    let rows = product.rows.clone().step_by(SIDE * LANES);
    for (row_idx, out) in rows.zip(out.chunks_mut(SIDE * LANES * n_picks)) {
        let n_blocks = (product.rows.end - row_idx).div_ceil(LANES).min(SIDE);
        // Near the end of the matrix a block begins earlier and its first lanes are dropped.
        let last_row = layout.n_rows.max(LANES) - LANES;
        let first_row = |i: usize| (row_idx + i * LANES).min(last_row);
        let mut blocks = [const { None }; SIDE];
        for (i, (it, scales)) in blocks.iter_mut().zip(scales.chunks_mut(n_groups)).enumerate() {
            if i < n_blocks {
                let block = AffineBlock::new((matrix, affine), first_row(i));
                block.load_scales(Avx512Vnni::of_table(), 0..n_groups, scales);
                *it = Some(block.codes());
            }
        }
        let sums = &mut sums[..n_blocks * n_strips];
        sums.fill(Square([[0.0; LANES]; LANES]));
        let blocks = AffineBlocks { codes: blocks, scales, row_bytes: layout.row_bytes() };
        blocks.multiply(unit, (product.x.repacked, group), (codes, &mut products), sums);
        let (out, _) = out.as_chunks_mut::<LANES>();
        for (i, (sums, out)) in sums.chunks(n_strips).zip(out.chunks_mut(n_picks)).enumerate() {
            for (sums, out) in sums.iter().zip(out.chunks_mut(LANES)) {
                transpose_square(sums, out);
            }
            let dropped = row_idx + i * LANES - first_row(i);
            if dropped > 0 {
                out.iter_mut().for_each(|lanes| lanes.rotate_left(dropped));
            }
        }
    }
}

/// One block of sixteen matrix rows, or two.
struct AffineBlocks<'a> {
    codes: [Option<RowBlock<'a>>; SIDE],
    /// Scales of all groups, block by block.
    scales: &'a [[Lanes; 2]],
    row_bytes: usize,
}

impl AffineBlocks<'_> {
    /// Multiplies the blocks by all strips of activations: `sums[block][strip]`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,gfni")]
    fn multiply<T: TileUnit>(
        &self,
        unit: &mut T,
        (repacked, group): (&RepackedRows, usize),
        (codes, products): (&mut [CacheLine], &mut SquareProducts),
        sums: &mut [Square],
    ) {
        let n_strips = repacked.n_rows.div_ceil(LANES);
        let n_blocks = sums.len() / n_strips;
        let n_groups = self.scales.len() / SIDE;
        let strip_lines = strip_lines(n_groups * group);
        assert!(n_strips * strip_lines <= repacked.values.len(), "strips that were laid down");
        let (some, more) = sums.split_at_mut(n_strips);
        let n_steps = n_groups.div_ceil(GROUPS) * n_strips.div_ceil(SIDE);
        let n_bytes = n_blocks * LANES * self.row_bytes;
        let first = self.codes[0].as_ref().map_or(std::ptr::null(), |it| it.row(0).as_ptr());
        let mut prefetcher = Prefetcher::range(first.wrapping_add(n_bytes), n_bytes, n_steps);
        for first_group in (0..n_groups).step_by(GROUPS) {
            let groups = first_group..n_groups.min(first_group + GROUPS);
            let cols = groups.start * group..groups.end * group;
            let mut sides = [CodeGroups::default(); SIDE];
            let n_lines = codes.len() / SIDE;
            let rows = self.codes.iter().flatten().zip(codes.chunks_mut(n_lines));
            for (i, (side, (rows, lines))) in sides.iter_mut().zip(rows).enumerate() {
                let scales = &self.scales[i * n_groups..][groups.clone()];
                *side = CodeGroups { codes: prepared(rows, &cols, lines), scales };
            }
            let strip = |idx: usize| {
                let values = &repacked.values[idx * strip_lines..][cols.start / LINE * LANES..];
                let factors = &repacked.factors[idx * n_groups..][groups.clone()];
                StripGroups { values: values.as_ptr().cast(), factors }
            };
            for first in (0..n_strips).step_by(SIDE) {
                prefetcher.step();
                let n_now = SIDE.min(n_strips - first);
                let strips = [strip(first), strip(first + n_now - 1)];
                let more = if n_blocks == SIDE { &mut more[first..][..n_now] } else { &mut [] };
                let sums = [&mut some[first..][..n_now], more];
                let square = (&sides[..n_blocks], &strips[..n_now]);
                add_square(unit, square, group, products, sums);
            }
        }
    }
}

/// Converts some columns of sixteen matrix rows to tile order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,gfni")]
fn prepared(rows: &RowBlock<'_>, cols: &Range<usize>, lines: &mut [CacheLine]) -> TileRows {
    if rows.bits == 8 {
        let first = rows.row(0)[cols.start..].as_ptr();
        return TileRows { first, stride: rows.row_bytes, step: LINE };
    }
    let lines = &mut lines[..strip_lines(cols.len())];
    if rows.bits == 4 {
        convert_nibbles(rows, cols.start / 2, lines);
    } else {
        convert_any(rows, cols.start / PIECE..cols.end / PIECE, lines);
    }
    TileRows { first: lines.as_ptr().cast(), stride: LINE, step: TILE_BYTES }
}

/// Transposes sixteen activations of each matrix row to sixteen matrix rows of each activation.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn transpose_square(sums: &Square, out: &mut [Lanes]) {
    let mut rows = [_mm512_castps_si512(splat(0.0)); LANES];
    for (row, sums) in rows.iter_mut().zip(&sums.0) {
        *row = _mm512_castps_si512(load(sums));
    }
    for (lanes, out) in transposed(rows).into_iter().zip(out) {
        store(_mm512_castsi512_ps(lanes), out);
    }
}
