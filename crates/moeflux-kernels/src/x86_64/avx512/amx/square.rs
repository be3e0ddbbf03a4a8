//! A square of tiles: the unit of multiplication, and the accumulation of its results.
//!
//! **Invariant:** each sum takes its groups in ascending order, each by the same two operations as
//! in all other tables.

use std::arch::x86_64::{_mm512_cvtepi32_ps, _mm512_load_si512, _mm512_setzero_ps};

use super::super::{fma, load, mul, splat, store};
use super::tiles::{LINE, TileRows, TileSums, TileUnit};
use crate::int8::{Factors, Square};
use crate::lanes::{LANES, Lanes};

/// Blocks of matrix rows, and strips of activations.
pub(super) const SIDE: usize = 2;

/// Groups at a time: their products take 8 KiB. More of them crowd the first-level cache (four
/// groups and two strips were a fifth slower), and fewer load and store the sums so far more often.
pub(super) const GROUPS: usize = 2;

/// Matrix rows that are added at a time: their sums stay in registers.
const ROWS: usize = 4;

/// Some groups of sixteen matrix rows, prepared for the unit.
#[derive(Clone, Copy, Default)]
pub(super) struct CodeGroups<'a> {
    /// Codes, from the first group on.
    pub(super) codes: TileRows,
    /// Scales and biases.
    pub(super) scales: &'a [[Lanes; 2]],
}

/// Some groups of sixteen rows of activations, prepared for the unit.
#[derive(Clone, Copy)]
pub(super) struct StripGroups<'a> {
    /// Values, from the first group on.
    pub(super) values: *const u8,
    /// Steps and sums.
    pub(super) factors: &'a [Factors],
}

/// Products by block, strip and group: memory that the unit fills and the vectors read. Created
/// once, since clearing it would take as long as filling it.
pub(super) struct SquareProducts([[[TileSums; GROUPS]; SIDE]; SIDE]);

impl SquareProducts {
    pub(super) const ZEROS: Self =
        Self([const { [const { [TileSums::ZEROS; GROUPS] }; SIDE] }; SIDE]);
}

/// Adds the results of at most [`GROUPS`] groups to `sums[block][strip]`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn add_square<T: TileUnit>(
    unit: &mut T,
    (sides, strips): (&[CodeGroups<'_>], &[StripGroups<'_>]),
    group: usize,
    products: &mut SquareProducts,
    sums: [&mut [Square]; SIDE],
) {
    let n_groups = strips[0].factors.len();
    for g in 0..n_groups {
        multiply(unit, (sides, strips), (group, g), products);
    }
    for ((side, products), sums) in sides.iter().zip(&products.0).zip(sums) {
        match (strips, sums) {
            ([a], [a_sums]) => {
                add_products([&products[0]], side.scales, [a.factors], [a_sums]);
            }
            ([a, b], [a_sums, b_sums]) => {
                let products = [&products[0], &products[1]];
                let factors = [a.factors, b.factors];
                add_products(products, side.scales, factors, [a_sums, b_sums]);
            }
            _ => unreachable!("one or two strips, and their sums"),
        }
    }
}

/// Computes the products of one group.
#[inline(always)]
fn multiply<T: TileUnit>(
    unit: &mut T,
    (sides, strips): (&[CodeGroups<'_>], &[StripGroups<'_>]),
    (group, group_idx): (usize, usize),
    products: &mut SquareProducts,
) {
    let col = group_idx * group;
    unit.clear();
    for tile in 0..group.div_ceil(LINE) {
        let col = col + tile * LINE;
        // Sixteen bytes of activations for each column.
        let values = |strip: &StripGroups<'_>| strip.values.wrapping_add(col * LANES);
        let codes = |side: &CodeGroups<'_>| {
            let TileRows { first, stride, step } = side.codes;
            let first = first.wrapping_add(col / LINE * step + col % LINE);
            TileRows { first, stride, step }
        };
        // SAFETY: all codes of the columns were repacked, or lie in the matrix.
        unsafe { unit.load_codes::<0>(codes(&sides[0])) };
        // SAFETY: as many activations were repacked.
        unsafe { unit.load_values::<0>(values(&strips[0])) };
        unit.multiply::<0, 0>();
        if let Some(strip) = strips.get(1) {
            // SAFETY: as above.
            unsafe { unit.load_values::<1>(values(strip)) };
            unit.multiply::<0, 1>();
        }
        if let Some(side) = sides.get(1) {
            // SAFETY: as above.
            unsafe { unit.load_codes::<1>(codes(side)) };
            unit.multiply::<1, 0>();
            if strips.len() > 1 {
                unit.multiply::<1, 1>();
            }
        }
    }
    let [first, second] = &mut products.0;
    unit.store::<0, 0>(&mut first[0][group_idx]);
    unit.store::<0, 1>(&mut first[1][group_idx]);
    unit.store::<1, 0>(&mut second[0][group_idx]);
    unit.store::<1, 1>(&mut second[1][group_idx]);
}

/// Adds the products of one block of matrix rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn add_products<const STRIPS: usize>(
    products: [&[TileSums; GROUPS]; STRIPS],
    scales: &[[Lanes; 2]],
    factors: [&[Factors]; STRIPS],
    mut sums: [&mut Square; STRIPS],
) {
    for first in (0..LANES).step_by(ROWS) {
        let mut acc = [[_mm512_setzero_ps(); STRIPS]; ROWS];
        for (k, acc) in acc.iter_mut().enumerate() {
            for (acc, sums) in acc.iter_mut().zip(&sums) {
                *acc = load(&sums.0[first + k]);
            }
        }
        for (g, [scales, biases]) in scales.iter().enumerate() {
            let mut steps = [_mm512_setzero_ps(); STRIPS];
            let mut group_sums = steps;
            for s in 0..STRIPS {
                let [step, sum] = &factors[s][g].0;
                (steps[s], group_sums[s]) = (load(step), load(sum));
            }
            for k in 0..ROWS {
                let (scale, bias) = (splat(scales[first + k]), splat(biases[first + k]));
                for s in 0..STRIPS {
                    let ints = products[s][g].0[first + k].as_ptr();
                    // SAFETY: 64 readable bytes at a multiple of 64.
                    let ints = unsafe { _mm512_load_si512(ints.cast()) };
                    let product = _mm512_cvtepi32_ps(ints);
                    acc[k][s] = fma(mul(scale, steps[s]), product, acc[k][s]);
                    acc[k][s] = fma(bias, group_sums[s], acc[k][s]);
                }
            }
        }
        for (k, acc) in acc.into_iter().enumerate() {
            for (acc, sums) in acc.into_iter().zip(&mut sums) {
                store(acc, &mut sums.0[first + k]);
            }
        }
    }
}
