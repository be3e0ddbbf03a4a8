//! Products of tiles with blocks that carry their own scales.
//!
//! The operands are swapped compared with affine matrices: codes are stored in the form for
//! vectors, four columns of sixteen rows in a line, and such lines are a tile's second operand. So
//! outputs have the usual order, a matrix row in each lane. **Invariant:** each sum takes its
//! groups in ascending order, each by the same operations as in all other tables.

use super::super::integers::load_ints;
use super::super::vnni::Avx512Vnni;
use super::super::{load, store, unpack_blocks};
use super::tiles::{LINE, TileRows, TileSums, TileUnit};
use crate::int8::{
    BlockRows, CacheLine, CodeTile, Factors, IntProduct, IntScratch, RepackedRows, TILE_COLS,
    TileScales, TileSource, add_terms,
};
use crate::lanes::{LANES, Lanes};
use crate::matrix::format::MatrixKind;
use crate::prefetch::Prefetcher;

/// Blocks of matrix rows, and strips of activations, that are multiplied at a time.
const SIDE: usize = 2;

/// Groups whose products are computed before they are added.
const GROUPS: usize = 2;

/// Computes the product, with tiles shaped for its groups.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni")]
pub(super) fn multiply_blocks<T: TileUnit>(
    unit: &mut T,
    product: &IntProduct<'_>,
    scratch: &mut IntScratch,
    out: &mut [f32],
) {
    let MatrixKind::Block(kind) = product.matrix.layout().kind else { return };
    let matrix = (scratch.padded.at_least_sixteen_rows(&product.matrix), kind);
    if kind.has_biases() {
        multiply_all(unit, product, BlockRows::<true, true>::new(matrix, unpack_blocks), out);
    } else {
        multiply_all(unit, product, BlockRows::<true, false>::new(matrix, unpack_blocks), out);
    }
}

/// Computes `out[block of rows][pick][row of the block]`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni")]
fn multiply_all<R: TileSource, T: TileUnit>(
    unit: &mut T,
    product: &IntProduct<'_>,
    rows: R,
    out: &mut [f32],
) {
    let repacked = product.x.repacked;
    assert_eq!(repacked.n_rows, product.x.picks.len(), "rows that were laid down");
    let layout = rows.layout();
    let last_row = layout.n_rows - LANES;
    let mut blocks = TileBlocks::<R>::ZEROS;
    let (out, _) = out.as_chunks_mut::<LANES>();
    let pairs = product.rows.clone().step_by(SIDE * LANES);
    for (row_idx, out) in pairs.zip(out.chunks_mut(SIDE * repacked.n_rows)) {
        let n_blocks = out.len() / repacked.n_rows;
        // Near the end of the matrix a block begins earlier and its first lanes are dropped.
        let first_rows = [row_idx.min(last_row), (row_idx + LANES).min(last_row)];
        let rows = first_rows.map(|first_row| rows.at_row(first_row));
        let n_steps = layout.n_cols / (GROUPS * rows[0].group()) * repacked.n_rows.div_ceil(32);
        let mut prefetcher = rows[0].prefetch_after_in(n_blocks, n_steps);
        out.fill([0.0; LANES]);
        for first_col in (0..layout.n_cols).step_by(TILE_COLS) {
            blocks.unpack(&rows[..n_blocks], first_col);
            blocks.multiply(unit, (&rows[0], first_col), repacked, &mut prefetcher, out);
        }
        for (i, out) in out.chunks_mut(repacked.n_rows).enumerate() {
            let dropped = row_idx + i * LANES - first_rows[i];
            if dropped > 0 {
                out.iter_mut().for_each(|lanes| lanes.rotate_left(dropped));
            }
        }
    }
}

/// Some columns of one block of sixteen matrix rows, or of two, and products not yet added.
struct TileBlocks<R: TileSource> {
    tiles: [CodeTile; SIDE],
    scales: [TileScales; SIDE],
    products: [[[TileSums; GROUPS]; SIDE]; SIDE],
    scratch: R::UnpackScratch,
}

impl<R: TileSource> TileBlocks<R> {
    const ZEROS: Self = Self {
        tiles: [CodeTile::ZEROS; SIDE],
        scales: [TileScales::ZEROS; SIDE],
        products: [const { [const { [TileSums::ZEROS; GROUPS] }; SIDE] }; SIDE],
        scratch: R::SCRATCH,
    };

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni")]
    fn unpack(&mut self, rows: &[R], first_col: usize) {
        let targets = self.tiles.iter_mut().zip(&mut self.scales);
        for (rows, (tile, scales)) in rows.iter().zip(targets) {
            let cols = rows.cols(first_col);
            rows.unpack(Avx512Vnni::of_table(), cols, &mut self.scratch, (tile, scales));
        }
    }

    /// Multiplies the columns by all strips.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni")]
    fn multiply<T: TileUnit>(
        &mut self,
        unit: &mut T,
        (rows, first_col): (&R, usize),
        repacked: &RepackedRows,
        prefetcher: &mut Prefetcher,
        out: &mut [Lanes],
    ) {
        let (cols, group) = (rows.cols(first_col), rows.group());
        let n_groups = cols.len() / group;
        let n_strips = repacked.n_rows.div_ceil(LANES);
        for first_strip in (0..n_strips).step_by(SIDE) {
            let last_strip = n_strips.min(first_strip + SIDE) - 1;
            let strips = [first_strip, last_strip].map(|strip| {
                let lines =
                    &repacked.values[strip * repacked.strip_lines..][..repacked.strip_lines];
                let factors = &repacked.factors[strip * repacked.n_groups..][..repacked.n_groups];
                TileStrip { lines, factors, first_col, group }
            });
            let n_now = 1 + last_strip - first_strip;
            for first_group in (0..n_groups).step_by(GROUPS) {
                prefetcher.step();
                let n_groups = GROUPS.min(n_groups - first_group);
                for g in 0..n_groups {
                    self.multiply_group(
                        unit,
                        &strips[..n_now],
                        (first_group + g, g),
                        out.len() / repacked.n_rows,
                    );
                }
                let squares = (&strips[..n_now], first_strip);
                let groups = (first_group, n_groups);
                self.add_all(squares, groups, rows.correction(), (repacked.n_rows, &mut *out));
            }
        }
    }

    /// Adds the products of some groups, of all blocks with some strips from `first_strip`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni")]
    fn add_all(
        &self,
        (strips, first_strip): (&[TileStrip<'_>], usize),
        (first_group, n_groups): (usize, usize),
        correction: f32,
        (n_rows, out): (usize, &mut [Lanes]),
    ) {
        for (s, strip) in strips.iter().enumerate() {
            let first_row = (first_strip + s) * LANES;
            for (b, out) in out.chunks_mut(n_rows).enumerate() {
                let out = &mut out[first_row..n_rows.min(first_row + LANES)];
                // A single group if their number is odd.
                if n_groups == GROUPS {
                    self.add::<GROUPS>((b, s), strip, first_group, correction, out);
                } else {
                    self.add::<1>((b, s), strip, first_group, correction, out);
                }
            }
        }
    }

    /// Computes the products of one group of these columns.
    #[inline(always)]
    fn multiply_group<T: TileUnit>(
        &mut self,
        unit: &mut T,
        strips: &[TileStrip<'_>],
        (group_idx, place): (usize, usize),
        n_blocks: usize,
    ) {
        let group = strips[0].group;
        let codes = |tile: &CodeTile| tile.quads[group_idx * (group / 4)].as_ptr();
        unit.clear();
        // SAFETY: as many lines as a group's columns take were repacked, for each of these.
        unsafe { unit.load_codes::<0>(strips[0].rows(group_idx)) };
        // SAFETY: as above.
        unsafe { unit.load_values::<0>(codes(&self.tiles[0])) };
        unit.multiply_swapped::<0, 0>();
        if let Some(strip) = strips.get(1) {
            // SAFETY: as above.
            unsafe { unit.load_codes::<1>(strip.rows(group_idx)) };
            unit.multiply_swapped::<1, 0>();
        }
        if n_blocks > 1 {
            // SAFETY: as above.
            unsafe { unit.load_values::<1>(codes(&self.tiles[1])) };
            unit.multiply_swapped::<0, 1>();
            if strips.len() > 1 {
                unit.multiply_swapped::<1, 1>();
            }
        }
        let [first, second] = &mut self.products;
        unit.store::<0, 0>(&mut first[0][place]);
        unit.store::<0, 1>(&mut second[0][place]);
        if strips.len() > 1 {
            unit.store::<1, 0>(&mut first[1][place]);
            unit.store::<1, 1>(&mut second[1][place]);
        }
    }

    /// Adds the products of some groups to the outputs of a block and a strip.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,gfni")]
    fn add<const N: usize>(
        &self,
        (block, strip_idx): (usize, usize),
        strip: &TileStrip<'_>,
        first_group: usize,
        correction: f32,
        out: &mut [Lanes],
    ) {
        let simd = Avx512Vnni::of_table();
        let products = &self.products[block][strip_idx];
        let first = strip.first_col / strip.group + first_group;
        let some = self.scales[block].values[first_group..].first_chunk::<N>();
        let factors = strip.factors[first..].first_chunk::<N>();
        let (Some(scales), Some(factors)) = (some, factors) else { unreachable!("groups") };
        // The upper bound of a strip, which removes bounds checks.
        for (m, out) in out.iter_mut().take(LANES).enumerate() {
            let mut acc = load(out);
            for g in 0..N {
                let ints = load_ints(&products[g].0[m]);
                let [steps, sums] = &factors[g].0;
                let factors = (steps[m], sums[m]);
                acc = add_terms::<R, _>(simd, factors, (&scales[g], correction), ints, acc);
            }
            store(acc, out);
        }
    }
}

/// Sixteen rows of activations, from the first column of the tiles.
struct TileStrip<'a> {
    lines: &'a [CacheLine],
    factors: &'a [Factors],
    first_col: usize,
    group: usize,
}

impl TileStrip<'_> {
    /// Returns the columns of a group of the tiles.
    #[inline(always)]
    fn rows(&self, group_idx: usize) -> TileRows {
        let col = self.first_col + group_idx * self.group;
        let first = self.lines[col / LINE * LANES..].as_ptr().cast::<u8>();
        TileRows { first: first.wrapping_add(col % LINE), stride: LINE, step: 0 }
    }
}
