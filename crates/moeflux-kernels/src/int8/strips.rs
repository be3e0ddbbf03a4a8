//! Products with strips: sixteen rows of activations packed together, to be read as one stream.
//!
//! A line of a strip is four columns of its rows. Two blocks of matrix rows are multiplied by eight
//! rows of a strip at a time: the registers hold that many sums, and each load is used more than
//! once. The sums so far stay in memory. **Invariant:** an output's groups are added in ascending
//! order, on every path.

use std::ops::Range;

use crate::int8::inputs::{CacheLine, Factors, IntProduct, RepackedRows};
use crate::int8::simd::IntSimd;
use crate::int8::tile::{CodeTile, TILE_COLS, TileScales, TileSource, add_terms};
use crate::lanes::{LANES, Lanes};
use crate::prefetch::Prefetcher;

/// Columns of a line.
const LINE_COLS: usize = 4;

/// Blocks of matrix rows that are multiplied by a strip together.
const PAIR: usize = 2;

/// Returns the lines of a strip of `n_cols` columns: whole tiles of sixteen.
#[cfg(target_arch = "x86_64")]
pub(crate) fn strip_lines(n_cols: usize) -> usize {
    n_cols.next_multiple_of(LINE_COLS * LANES) / LINE_COLS
}

/// Computes `out[block of rows][pick][row of the block]`.
#[inline(always)]
pub(super) fn multiply_strips<R: TileSource, S: IntSimd>(
    simd: S,
    product: &IntProduct<'_>,
    rows: R,
    out: &mut [f32],
) {
    let repacked = product.x.repacked;
    assert_eq!(repacked.n_rows, product.x.picks.len(), "rows that were laid down");
    let last_row = rows.layout().n_rows - LANES;
    let (mut unpacked, mut scratch) = (UnpackedBlocks::new(), R::SCRATCH);
    let (out, _) = out.as_chunks_mut::<LANES>();
    let pairs = product.rows.clone().step_by(PAIR * LANES);
    for (row_idx, out) in pairs.zip(out.chunks_mut(PAIR * repacked.n_rows)) {
        // Near the end of the matrix a block begins earlier and its first lanes are dropped.
        let first_rows = [row_idx.min(last_row), (row_idx + LANES).min(last_row)];
        let blocks = first_rows.map(|first_row| rows.at_row(first_row));
        if out.len() > repacked.n_rows {
            unpacked.multiply_all::<R, PAIR, S>(simd, &blocks, &mut scratch, repacked, out);
        } else {
            unpacked.multiply_all::<R, 1, S>(simd, &[blocks[0]], &mut scratch, repacked, out);
        }
        for (i, out) in out.chunks_mut(repacked.n_rows).enumerate() {
            let dropped = row_idx + i * LANES - first_rows[i];
            if dropped > 0 {
                out.iter_mut().for_each(|lanes| lanes.rotate_left(dropped));
            }
        }
    }
}

/// Some columns of blocks, unpacked.
struct UnpackedBlocks {
    tiles: [CodeTile; PAIR],
    scales: [TileScales; PAIR],
    /// Prefetches of the data after them in memory.
    prefetcher: Prefetcher,
}

impl UnpackedBlocks {
    fn new() -> Self {
        let (tiles, scales) = ([CodeTile::ZEROS; PAIR], [TileScales::ZEROS; PAIR]);
        Self { tiles, scales, prefetcher: Prefetcher::none() }
    }

    /// Multiplies some blocks by all strips.
    #[inline(always)]
    fn multiply_all<R: TileSource, const BLOCKS: usize, S: IntSimd>(
        &mut self,
        simd: S,
        blocks: &[R; BLOCKS],
        scratch: &mut R::UnpackScratch,
        repacked: &RepackedRows,
        out: &mut [Lanes],
    ) {
        out.fill([0.0; LANES]);
        self.prefetcher = blocks[0].prefetch_after(BLOCKS, repacked.n_rows);
        for first_col in (0..blocks[0].layout().n_cols).step_by(TILE_COLS) {
            let cols = blocks[0].cols(first_col);
            let targets = self.scales.iter_mut().zip(&mut self.tiles);
            for (block, (scales, tile)) in blocks.iter().zip(targets) {
                block.unpack(simd, cols.clone(), scratch, (tile, scales));
            }
            let group = blocks[0].group();
            let groups = cols.start / group..cols.end / group;
            let correction = blocks[0].correction();
            let lines = cols.start / LINE_COLS..cols.end / LINE_COLS;
            let strips = repacked.values.chunks_exact(repacked.strip_lines);
            let strips = strips.zip(repacked.factors.chunks_exact(repacked.n_groups));
            let first_rows = (0..repacked.n_rows).step_by(LANES);
            for (first_row, (values, factors)) in first_rows.zip(strips) {
                let (lines, factors) = (&values[lines.clone()], &factors[groups.clone()]);
                let strip = StripColumns { lines, factors, correction };
                let end = repacked.n_rows.min(first_row + LANES);
                let mut rows =
                    StripProgress { first_row, done: first_row, end, n_rows: repacked.n_rows };
                self.multiply::<R, BLOCKS, 8, S>(simd, strip, &mut rows, out);
                self.multiply::<R, BLOCKS, 4, S>(simd, strip, &mut rows, out);
                self.multiply::<R, BLOCKS, 2, S>(simd, strip, &mut rows, out);
                self.multiply::<R, BLOCKS, 1, S>(simd, strip, &mut rows, out);
            }
        }
    }

    /// Multiplies the blocks by the remaining rows, in steps of `ROWS`, as long as they are whole.
    #[inline(always)]
    fn multiply<R: TileSource, const BLOCKS: usize, const ROWS: usize, S: IntSimd>(
        &mut self,
        simd: S,
        strip: StripColumns<'_>,
        rows: &mut StripProgress,
        out: &mut [Lanes],
    ) {
        let group_lines = strip.lines.len() / strip.factors.len();
        while rows.done + ROWS <= rows.end {
            let at = rows.done - rows.first_row;
            for (g, factors) in strip.factors.iter().enumerate() {
                self.prefetcher.step();
                let lines = g * group_lines..(g + 1) * group_lines;
                let ints = self.dot::<BLOCKS, ROWS, S>(simd, strip.lines, lines, at);
                let [steps, sums] = &factors.0;
                let (steps, sums) = (&steps[at..][..ROWS], &sums[at..][..ROWS]);
                for b in 0..BLOCKS {
                    let out = &mut out[b * rows.n_rows + rows.done..][..ROWS];
                    let scales = (&self.scales[b].values[g], strip.correction);
                    add::<R, ROWS, S>(simd, scales, (steps, sums), &ints[b], out);
                }
            }
            rows.done += ROWS;
        }
    }

    /// Returns the sums of a group's codes times rows of a strip from row `at`.
    #[inline(always)]
    fn dot<const BLOCKS: usize, const ROWS: usize, S: IntSimd>(
        &self,
        simd: S,
        strip: &[CacheLine],
        lines: Range<usize>,
        at: usize,
    ) -> [[S::Ints; ROWS]; BLOCKS] {
        let mut sums = [[simd.open(simd.no_ints()); ROWS]; BLOCKS];
        for i in lines {
            let mut codes = [simd.load_quads(&self.tiles[0].quads[i]); BLOCKS];
            #[expect(clippy::needless_range_loop, reason = "iterators move arrays to memory")]
            for b in 1..BLOCKS {
                codes[b] = simd.load_quads(&self.tiles[b].quads[i]);
            }
            let (x, _) = strip[i].0[LINE_COLS * at..][..LINE_COLS * ROWS].as_chunks();
            for t in 0..ROWS {
                let [p, q, r, s]: [u8; LINE_COLS] = x[t];
                let x = [p.cast_signed(), q.cast_signed(), r.cast_signed(), s.cast_signed()];
                for b in 0..BLOCKS {
                    sums[b][t] = simd.add_products::<true>(sums[b][t], codes[b], x);
                }
            }
        }
        let mut ints = [[simd.no_ints(); ROWS]; BLOCKS];
        for b in 0..BLOCKS {
            for t in 0..ROWS {
                ints[b][t] = simd.close::<true>(ints[b][t], sums[b][t]);
            }
        }
        ints
    }
}

/// Adds a group's terms to the outputs of a block for rows of a strip.
#[inline(always)]
fn add<R: TileSource, const ROWS: usize, S: IntSimd>(
    simd: S,
    scales: (&[Lanes; 2], f32),
    (steps, sums): (&[f32], &[f32]),
    ints: &[S::Ints; ROWS],
    out: &mut [Lanes],
) {
    for t in 0..ROWS {
        let acc = simd.load(&out[t]);
        let acc = add_terms::<R, S>(simd, (steps[t], sums[t]), scales, ints[t], acc);
        simd.store(acc, &mut out[t]);
    }
}

/// Some columns of a strip.
#[derive(Clone, Copy)]
struct StripColumns<'a> {
    lines: &'a [CacheLine],
    factors: &'a [Factors],
    /// Correction of the codes multiplied by it.
    correction: f32,
}

/// Rows of a strip, and their progress.
struct StripProgress {
    first_row: usize,
    done: usize,
    end: usize,
    /// Rows of all strips.
    n_rows: usize,
}
