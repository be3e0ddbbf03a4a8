//! Products of several rows of activations with tiles of codes, row by row.
//!
//! **Invariant:** an output's groups are added in ascending order, on every path.

use std::ops::Range;

use crate::int8::inputs::{IntInputs, IntProduct};
use crate::int8::rows::Row;
use crate::int8::simd::IntSimd;
use crate::int8::tile::{Scales, Sixteen, TILE_COLS, Tile, add_terms};
use crate::lanes::{LANES, Lanes};
use crate::upcoming::Upcoming;

/// Computes `out[block of rows][pick][row of the block]`, for a matrix of at least sixteen rows.
/// Unless `MANY`, processes one row of activations at a time.
#[inline(always)]
pub(super) fn meet_several<const MANY: bool, R: Sixteen, S: IntSimd>(
    simd: S,
    product: &IntProduct<'_>,
    rows: R,
    out: &mut [f32],
) {
    let n_picks = product.x.picks.len();
    let last_row = rows.layout().n_rows - LANES;
    let (mut scales, mut tile, mut memory) = (Scales::ZEROS, Tile::ZEROS, R::MEMORY);
    let first_rows = product.rows.clone().step_by(LANES);
    for (row_idx, out) in first_rows.zip(out.chunks_exact_mut(LANES * n_picks)) {
        // Near the end of the matrix the block begins earlier and its first lanes are dropped.
        let first_row = row_idx.min(last_row);
        let (out, _) = out.as_chunks_mut::<LANES>();
        let laid = (&mut tile, &mut scales, &mut memory);
        meet_block::<MANY, R, S>(simd, &product.x, rows.at_row(first_row), laid, out);
        if first_row != row_idx {
            out.iter_mut().for_each(|lanes| lanes.rotate_left(row_idx - first_row));
        }
    }
}

#[inline(always)]
fn meet_block<const MANY: bool, R: Sixteen, S: IntSimd>(
    simd: S,
    inputs: &IntInputs<'_>,
    rows: R,
    (tile, scales, memory): (&mut Tile, &mut Scales, &mut R::Memory),
    out: &mut [Lanes],
) {
    let mut upcoming = rows.behind(1, out.len());
    out.fill([0.0; LANES]);
    for first_col in (0..rows.layout().n_cols).step_by(TILE_COLS) {
        let cols = rows.cols(first_col);
        rows.lay(simd, cols.clone(), memory, (tile, scales));
        let part = Part { rows, cols, scales: &scales.values, tile };
        let mut picks = Picks { inputs, n_done: 0, out: &mut *out };
        if MANY {
            part.meet_all::<8, S>(simd, &mut picks, &mut upcoming);
            part.meet_all::<4, S>(simd, &mut picks, &mut upcoming);
            part.meet_all::<2, S>(simd, &mut picks, &mut upcoming);
        }
        part.meet_all::<1, S>(simd, &mut picks, &mut upcoming);
    }
}

/// Some columns of sixteen rows, unpacked into a tile.
struct Part<'a, R> {
    rows: R,
    cols: Range<usize>,
    scales: &'a [[Lanes; 2]],
    tile: &'a Tile,
}

impl<R: Sixteen> Part<'_, R> {
    /// Multiplies the tile by the remaining picks, in steps of `PICKS`, as long as they are whole.
    #[inline(always)]
    fn meet_all<const PICKS: usize, S: IntSimd>(
        &self,
        simd: S,
        picks: &mut Picks<'_>,
        upcoming: &mut Upcoming,
    ) {
        let group = self.rows.group();
        let groups = self.cols.start / group..self.cols.end / group;
        while let Some((now, _)) = picks.inputs.picks[picks.n_done..].split_first_chunk::<PICKS>() {
            let mut x = [Row::default(); PICKS];
            for (x, &pick) in x.iter_mut().zip(now) {
                let row = picks.inputs.rows.row(pick);
                let values = &row.values[self.cols.clone()];
                let groups = groups.clone();
                *x = Row { values, steps: &row.steps[groups.clone()], sums: &row.sums[groups] };
            }
            let out = &mut picks.out[picks.n_done..][..PICKS];
            self.meet::<PICKS, S>(simd, &x, out, upcoming);
            picks.n_done += PICKS;
        }
    }

    #[inline(always)]
    fn meet<const PICKS: usize, S: IntSimd>(
        &self,
        simd: S,
        x: &[Row<'_>; PICKS],
        out: &mut [Lanes],
        upcoming: &mut Upcoming,
    ) {
        let mut acc = [simd.splat(0.0); PICKS];
        for t in 0..PICKS {
            acc[t] = simd.load(&out[t]);
        }
        let (group, correction) = (self.rows.group(), self.rows.correction());
        for g in 0..self.cols.len() / group {
            upcoming.step();
            let laid = &self.tile.quads[g * (group / 4)..][..group / 4];
            let mut values: [&[i8]; PICKS] = [&[]; PICKS];
            for t in 0..PICKS {
                values[t] = &x[t].values[g * group..][..group];
            }
            let ints = if R::WIDE {
                simd.dot_laid::<true, PICKS>(laid, &values)
            } else {
                simd.dot_laid::<false, PICKS>(laid, &values)
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
struct Picks<'a> {
    inputs: &'a IntInputs<'a>,
    n_done: usize,
    out: &'a mut [Lanes],
}
