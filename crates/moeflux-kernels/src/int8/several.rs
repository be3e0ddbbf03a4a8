//! Products of several rows of activations with tiles of codes, row by row.
//!
//! **Invariant:** an output's groups are added in ascending order, on every path.

use std::ops::Range;

use crate::int8::inputs::{IntInputs, IntProduct};
use crate::int8::rows::IntRow;
use crate::int8::simd::IntSimd;
use crate::int8::tile::{CodeTile, TILE_COLS, TileScales, TileSource, add_terms};
use crate::lanes::{LANES, Lanes};
use crate::prefetch::Prefetcher;

/// Computes `out[block of rows][pick][row of the block]`, for a matrix of at least sixteen rows.
/// Unless `MANY`, processes one row of activations at a time.
#[inline(always)]
pub(super) fn multiply_several<const MANY: bool, R: TileSource, S: IntSimd>(
    simd: S,
    product: &IntProduct<'_>,
    rows: R,
    out: &mut [f32],
) {
    let n_picks = product.x.picks.len();
    let last_row = rows.layout().n_rows - LANES;
    let (mut scales, mut tile, mut scratch) = (TileScales::ZEROS, CodeTile::ZEROS, R::SCRATCH);
    let first_rows = product.rows.clone().step_by(LANES);
    for (row_idx, out) in first_rows.zip(out.chunks_exact_mut(LANES * n_picks)) {
        // Near the end of the matrix the block begins earlier and its first lanes are dropped.
        let first_row = row_idx.min(last_row);
        let (out, _) = out.as_chunks_mut::<LANES>();
        let target = (&mut tile, &mut scales, &mut scratch);
        multiply_block::<MANY, R, S>(simd, &product.x, rows.at_row(first_row), target, out);
        if first_row != row_idx {
            out.iter_mut().for_each(|lanes| lanes.rotate_left(row_idx - first_row));
        }
    }
}

#[inline(always)]
fn multiply_block<const MANY: bool, R: TileSource, S: IntSimd>(
    simd: S,
    inputs: &IntInputs<'_>,
    rows: R,
    (tile, scales, scratch): (&mut CodeTile, &mut TileScales, &mut R::UnpackScratch),
    out: &mut [Lanes],
) {
    let mut prefetcher = rows.prefetch_after(1, out.len());
    out.fill([0.0; LANES]);
    for first_col in (0..rows.layout().n_cols).step_by(TILE_COLS) {
        let cols = rows.cols(first_col);
        rows.unpack(simd, cols.clone(), scratch, (tile, scales));
        let part = UnpackedColumns { rows, cols, scales: &scales.values, tile };
        let mut picks = PickProgress { inputs, n_done: 0, out: &mut *out };
        if MANY {
            part.multiply_all::<8, S>(simd, &mut picks, &mut prefetcher);
            part.multiply_all::<4, S>(simd, &mut picks, &mut prefetcher);
            part.multiply_all::<2, S>(simd, &mut picks, &mut prefetcher);
        }
        part.multiply_all::<1, S>(simd, &mut picks, &mut prefetcher);
    }
}

/// Some columns of sixteen rows, unpacked into a tile.
struct UnpackedColumns<'a, R> {
    rows: R,
    cols: Range<usize>,
    scales: &'a [[Lanes; 2]],
    tile: &'a CodeTile,
}

impl<R: TileSource> UnpackedColumns<'_, R> {
    /// Multiplies the tile by the remaining picks, in steps of `PICKS`, as long as they are whole.
    #[inline(always)]
    fn multiply_all<const PICKS: usize, S: IntSimd>(
        &self,
        simd: S,
        picks: &mut PickProgress<'_>,
        prefetcher: &mut Prefetcher,
    ) {
        let group = self.rows.group();
        let groups = self.cols.start / group..self.cols.end / group;
        while let Some((now, _)) = picks.inputs.picks[picks.n_done..].split_first_chunk::<PICKS>() {
            let mut x = [IntRow::default(); PICKS];
            for (x, &pick) in x.iter_mut().zip(now) {
                let row = picks.inputs.rows.row(pick);
                let values = &row.values[self.cols.clone()];
                let groups = groups.clone();
                *x = IntRow { values, steps: &row.steps[groups.clone()], sums: &row.sums[groups] };
            }
            let out = &mut picks.out[picks.n_done..][..PICKS];
            self.multiply::<PICKS, S>(simd, &x, out, prefetcher);
            picks.n_done += PICKS;
        }
    }

    #[inline(always)]
    fn multiply<const PICKS: usize, S: IntSimd>(
        &self,
        simd: S,
        x: &[IntRow<'_>; PICKS],
        out: &mut [Lanes],
        prefetcher: &mut Prefetcher,
    ) {
        let mut acc = [simd.splat(0.0); PICKS];
        for t in 0..PICKS {
            acc[t] = simd.load(&out[t]);
        }
        let (group, correction) = (self.rows.group(), self.rows.correction());
        for g in 0..self.cols.len() / group {
            prefetcher.step();
            let stored = &self.tile.quads[g * (group / 4)..][..group / 4];
            let mut values: [&[i8]; PICKS] = [&[]; PICKS];
            for t in 0..PICKS {
                values[t] = &x[t].values[g * group..][..group];
            }
            let ints = if R::WIDE {
                simd.dot_stored::<true, PICKS>(stored, &values)
            } else {
                simd.dot_stored::<false, PICKS>(stored, &values)
            };
            let scales = (&self.scales[g], correction);
            for t in 0..PICKS {
                let factors = (x[t].steps[g], x[t].sums[g]);
                acc[t] = add_terms::<R, S>(simd, factors, scales, ints[t], acc[t]);
            }
        }
        for t in 0..PICKS {
            simd.store(acc[t], &mut out[t]);
        }
    }
}

/// Picked rows, and the number of those already multiplied by the tile.
struct PickProgress<'a> {
    inputs: &'a IntInputs<'a>,
    n_done: usize,
    out: &'a mut [Lanes],
}
