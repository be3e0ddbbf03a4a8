//! Int8 products: the generic body behind every table.
//!
//! Sixteen rows of the matrix go by at a time. One row of activations meets the codes as they
//! leave memory; several meet a tile of them that was laid down in the first cache, row by row or,
//! where a table lays them down in strips, as those come.
//! **Invariant:** an output's groups are added in ascending order, whatever the path.

use crate::format::{Affine, MatrixKind};
use crate::int8::block::Block;
use crate::int8::inputs::{IntInputs, IntProduct, IntScratch};
use crate::int8::rows::Row;
use crate::int8::simd::IntSimd;
use crate::int8::stream::meet_one;
use crate::int8::strips::meet_strips;
use crate::int8::tile::{Bytes, Nibbles, Part, Scales, Stream, TILE_COLS, Tile, Unpack};
use crate::lanes::{LANES, Lanes};
use crate::upcoming::Upcoming;

/// `out[block of rows][pick][row of the block]`.
#[inline(always)]
pub(crate) fn matmul<S: IntSimd>(
    simd: S,
    product: &IntProduct<'_>,
    scratch: &mut IntScratch,
    out: &mut [f32],
) {
    let MatrixKind::Affine(affine) = product.matrix.layout().kind else { return };
    match affine.bits {
        4 => all_blocks::<Nibbles, S>(simd, (product, affine), scratch, out),
        8 => all_blocks::<Bytes, S>(simd, (product, affine), scratch, out),
        _ => all_blocks::<Stream, S>(simd, (product, affine), scratch, out),
    }
}

#[inline(always)]
fn all_blocks<U: Unpack, S: IntSimd>(
    simd: S,
    (product, affine): (&IntProduct<'_>, Affine),
    scratch: &mut IntScratch,
    out: &mut [f32],
) {
    let n_picks = product.x.picks.len();
    if n_picks == 0 {
        return;
    }
    let matrix_rows = product.matrix.layout().n_rows.max(LANES);
    let matrix = scratch.padded.at_least_sixteen_rows(&product.matrix);
    if S::TAKES_STRIPS && n_picks > 1 {
        return meet_strips::<U, S>(simd, product, (matrix, affine), out);
    }
    if n_picks == 1 {
        let scratch = (scratch.fetching, &mut scratch.values);
        return meet_one::<U, S>(simd, product, (matrix, affine), scratch, out);
    }
    let mut scales = Scales::ZEROS;
    let mut tile = Tile::ZEROS;
    let first_rows = product.rows.clone().step_by(LANES);
    for (row_idx, out) in first_rows.zip(out.chunks_exact_mut(LANES * n_picks)) {
        // Near the end of the matrix the block begins earlier and its first lanes are dropped.
        let first_row = row_idx.min(matrix_rows - LANES);
        let block = Block::new((matrix, affine), first_row);
        let (out, _) = out.as_chunks_mut::<LANES>();
        block.meet::<U, S>(simd, product, (&mut scales, &mut tile), out);
        if first_row != row_idx {
            out.iter_mut().for_each(|lanes| lanes.rotate_left(row_idx - first_row));
        }
    }
}

impl Block<'_> {
    /// Several rows of activations meet the codes, laid down in tiles.
    #[inline(always)]
    fn meet<U: Unpack, S: IntSimd>(
        &self,
        simd: S,
        product: &IntProduct<'_>,
        (scales, tile): (&mut Scales, &mut Tile),
        out: &mut [Lanes],
    ) {
        let codes = self.codes();
        let mut upcoming = self.behind(1, out.len());
        out.fill([0.0; LANES]);
        for first_col in (0..self.matrix.layout().n_cols).step_by(TILE_COLS) {
            let part = self.part(simd, first_col, &mut scales.values);
            part.unpack::<U, S>(simd, &codes, tile);
            let mut picks = Picks { inputs: &product.x, n_done: 0, out: &mut *out };
            part.meet_all::<U, 8, S>(simd, tile, &mut picks, &mut upcoming);
            part.meet_all::<U, 4, S>(simd, tile, &mut picks, &mut upcoming);
            part.meet_all::<U, 2, S>(simd, tile, &mut picks, &mut upcoming);
            part.meet_all::<U, 1, S>(simd, tile, &mut picks, &mut upcoming);
        }
    }
}

impl Part<'_> {
    /// As many picks as there are in steps of `PICKS` meet the tile.
    #[inline(always)]
    fn meet_all<U: Unpack, const PICKS: usize, S: IntSimd>(
        &self,
        simd: S,
        tile: &Tile,
        picks: &mut Picks<'_>,
        upcoming: &mut Upcoming,
    ) {
        while let Some((now, _)) = picks.inputs.picks[picks.n_done..].split_first_chunk::<PICKS>() {
            let mut x = [Row::default(); PICKS];
            for (x, &pick) in x.iter_mut().zip(now) {
                let row = picks.inputs.rows.row(pick);
                let values = &row.values[self.cols.clone()];
                let groups = self.groups.clone();
                *x = Row { values, steps: &row.steps[groups.clone()], sums: &row.sums[groups] };
            }
            let out = &mut picks.out[picks.n_done..][..PICKS];
            self.meet::<U, PICKS, S>(simd, tile, &x, out, upcoming);
            picks.n_done += PICKS;
        }
    }

    #[inline(always)]
    fn meet<U: Unpack, const PICKS: usize, S: IntSimd>(
        &self,
        simd: S,
        tile: &Tile,
        x: &[Row<'_>; PICKS],
        out: &mut [Lanes],
        upcoming: &mut Upcoming,
    ) {
        let (quads, _) = tile.quads.as_chunks::<8>();
        let mut acc = [simd.splat(0.0); PICKS];
        for t in 0..PICKS {
            acc[t] = simd.load(&out[t]);
        }
        let group = self.group();
        for g in 0..self.groups.len() {
            upcoming.step();
            let laid = &quads[g * self.pieces_per_group..][..self.pieces_per_group];
            let mut values: [&[i8]; PICKS] = [&[]; PICKS];
            for t in 0..PICKS {
                values[t] = &x[t].values[g * group..][..group];
            }
            let ints = if U::WIDE {
                simd.dot_laid::<true, PICKS>(laid, &values)
            } else {
                simd.dot_laid::<false, PICKS>(laid, &values)
            };
            let [scales, biases] = &self.scales[g];
            let (scales, biases) = (simd.load(scales), simd.load(biases));
            for t in 0..PICKS {
                let factor = simd.mul(scales, simd.splat(x[t].steps[g]));
                acc[t] = simd.fma(factor, simd.floats(ints[t]), acc[t]);
                acc[t] = simd.fma(biases, simd.splat(x[t].sums[g]), acc[t]);
            }
        }
        for t in 0..PICKS {
            simd.store(acc[t], &mut out[t]);
        }
    }
}

/// Picked rows, and how many of them have met a tile.
struct Picks<'a> {
    inputs: &'a IntInputs<'a>,
    n_done: usize,
    out: &'a mut [Lanes],
}
