//! Rows of activations rounded to int8, group by group.
//!
//! **Invariant:** values have the order in which a matrix's codes are unpacked from words; steps
//! and sums match the values. Memory grows to the largest use and is kept.

use crate::matrix::format::MatrixKind;

/// Groups whose largest magnitude is below it are zeros: `127 / m` could overflow.
const MAGNITUDE_MIN: f32 = f32::from_bits((127 - 100) << 23);

/// The largest group.
const GROUP_MAX: usize = 128;

/// Columns that are rounded together for blocks that carry their own scales, even if they have a
/// scale for each half of them.
const BLOCK_STEP_COLS: usize = 32;

/// Order of the values of eight columns, and form of the groups' sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ValueOrder {
    /// Column order.
    #[default]
    Natural,
    /// Even columns, then odd ones: 4-bit codes are unpacked to low and high halves.
    EvenOdd,
    /// Column order, for blocks whose groups have a bias.
    Block,
    /// The same for blocks without biases: sums of groups are in units of the step.
    CountedBlock,
    /// The same with even columns before odd ones, for blocks whose bytes have both.
    CountedEvenOddBlock,
}

impl ValueOrder {
    /// Returns the order and the group size for matrices of a kind.
    fn of(kind: MatrixKind) -> Option<(Self, usize)> {
        match kind {
            MatrixKind::Affine(affine) => {
                let order = if affine.bits == 4 { Self::EvenOdd } else { Self::Natural };
                Some((order, usize::from(affine.group)))
            }
            MatrixKind::Block(block) => {
                let order = match (block.has_biases(), block.is_even_odd()) {
                    (true, _) => Self::Block,
                    (false, false) => Self::CountedBlock,
                    (false, true) => Self::CountedEvenOddBlock,
                };
                Some((order, block.group_cols()))
            }
            MatrixKind::Float(_) | MatrixKind::Fp8(_) => None,
        }
    }

    /// Returns whether the order is for blocks that carry their own scales.
    fn is_for_blocks(self) -> bool {
        matches!(self, Self::Block | Self::CountedBlock | Self::CountedEvenOddBlock)
    }
}

/// Rows of activations for matrices of one group size and order of codes.
#[derive(Clone, Debug, Default)]
pub struct IntRows {
    shape: IntRowShape,
    values: Vec<i8>,
    factors: Vec<f32>,
}

/// Layout of the rows of an [`IntRows`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntRowShape {
    /// Number of rows.
    pub n_rows: usize,
    /// Values of a row.
    pub n_cols: usize,
    /// Groups of a row: each has a step and a sum.
    pub n_groups: usize,
    pub(crate) order: ValueOrder,
}

/// The memory of one row, to be written with [`IntRowShape::fill`].
#[derive(Debug)]
pub struct QuantisedRow<'a> {
    /// One per column.
    pub values: &'a mut [i8],
    /// The step per group; then per group the sum of its values times the step, or for blocks
    /// without biases the sum alone.
    pub factors: &'a mut [f32],
}

/// One rounded row, or some whole groups of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IntRow<'a> {
    pub(crate) values: &'a [i8],
    pub(crate) steps: &'a [f32],
    pub(crate) sums: &'a [f32],
}

impl IntRows {
    /// Creates an empty set of rows.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the shape for products with matrices of `kind`. All rows must then be written with
    /// [`IntRows::fill`] or through [`IntRows::rows_mut`].
    ///
    /// # Panics
    ///
    /// If matrices of the kind use f32 activations, or columns are not whole groups.
    pub fn reshape(&mut self, kind: MatrixKind, n_rows: usize, n_cols: usize) {
        let Some((order, group)) = ValueOrder::of(kind) else {
            unreachable!("{kind} matrices take f32 activations")
        };
        assert!(n_cols.is_multiple_of(group), "{n_cols} columns are whole groups of {group}");
        let n_groups = n_cols / group;
        self.shape = IntRowShape { n_rows, n_cols, n_groups, order };
        // `fill` writes every value, so that old ones need no clearing.
        if self.values.len() < n_rows * n_cols {
            self.values.resize(n_rows * n_cols, 0);
        }
        if self.factors.len() < n_rows * 2 * n_groups {
            self.factors.resize(n_rows * 2 * n_groups, 0.0);
        }
    }

    /// Returns the rows' memory, for threads that share the filling: `n_cols` values and twice
    /// `n_groups` factors per row.
    pub fn rows_mut(&mut self) -> (IntRowShape, &mut [i8], &mut [f32]) {
        let shape = self.shape;
        let values = &mut self.values[..shape.n_rows * shape.n_cols];
        (shape, values, &mut self.factors[..shape.n_rows * 2 * shape.n_groups])
    }

    /// Returns the layout of the rows.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn shape(&self) -> IntRowShape {
        self.shape
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.shape.n_rows
    }

    /// Returns whether these rows can be multiplied by a matrix of this kind and width.
    #[must_use]
    pub fn suits(&self, kind: MatrixKind, n_cols: usize) -> bool {
        let Some((order, group)) = ValueOrder::of(kind) else { return false };
        let shape = &self.shape;
        shape.n_cols == n_cols && shape.n_groups * group == n_cols && shape.order == order
    }

    /// Returns one row.
    #[inline(always)]
    pub(crate) fn row(&self, row_idx: usize) -> IntRow<'_> {
        let IntRowShape { n_cols, n_groups, .. } = self.shape;
        let factors = &self.factors[row_idx * 2 * n_groups..][..2 * n_groups];
        let (steps, sums) = factors.split_at(n_groups);
        IntRow { values: &self.values[row_idx * n_cols..][..n_cols], steps, sums }
    }
}

impl IntRowShape {
    /// Returns whether even columns precede odd ones.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn is_even_odd(&self) -> bool {
        self.order == ValueOrder::EvenOdd
    }

    /// Returns whether the rows are for blocks that carry their own scales.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn is_for_blocks(&self) -> bool {
        self.order.is_for_blocks()
    }
}

/// Rounds a row whose lengths match.
#[inline(always)]
pub(crate) fn quantise(x: &[f32], order: ValueOrder, row: QuantisedRow<'_>) {
    let (steps, sums) = row.factors.split_at_mut(row.factors.len() / 2);
    let Some(group) = x.len().checked_div(steps.len()) else { return };
    if order.is_for_blocks() {
        return quantise_for_blocks(x, order, row.values, (steps, sums));
    }
    let groups = x.chunks_exact(group).zip(row.values.chunks_exact_mut(group));
    for ((x, values), (step, sum)) in groups.zip(steps.iter_mut().zip(sums)) {
        let n;
        (*step, n) = round_group(x, values);
        *sum = *step * n;
        if order == ValueOrder::EvenOdd {
            sort_even_odd(values);
        }
    }
}

/// Reorders each eight values: those at even places before those at odd ones.
#[inline(always)]
pub(crate) fn sort_even_odd(values: &mut [i8]) {
    let (eights, _) = values.as_chunks_mut::<8>();
    for eight in eights {
        let [a, b, c, d, e, f, g, h] = *eight;
        *eight = [a, c, e, g, b, d, f, h];
    }
}

/// The same for blocks: groups may be halves of the columns that are rounded together.
#[inline(always)]
#[expect(clippy::cast_precision_loss, reason = "at most 127 * 32")]
fn quantise_for_blocks(
    x: &[f32],
    order: ValueOrder,
    values: &mut [i8],
    (steps, sums): (&mut [f32], &mut [f32]),
) {
    let group = x.len() / steps.len();
    let n_groups = BLOCK_STEP_COLS / group;
    let pieces = x.chunks_exact(BLOCK_STEP_COLS).zip(values.chunks_exact_mut(BLOCK_STEP_COLS));
    let factors = steps.chunks_exact_mut(n_groups).zip(sums.chunks_exact_mut(n_groups));
    for ((x, values), (steps, sums)) in pieces.zip(factors) {
        let (step, _) = round_group(x, values);
        steps.fill(step);
        for (sum, values) in sums.iter_mut().zip(values.chunks_exact(group)) {
            let n = values.iter().map(|&it| i32::from(it)).sum::<i32>() as f32;
            *sum = if order == ValueOrder::Block { step * n } else { n };
        }
        if order == ValueOrder::CountedEvenOddBlock {
            sort_even_odd(values);
        }
    }
}

/// Rounds one group; returns its step and the sum of its values.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "values lie within 127")]
#[expect(clippy::cast_possible_wrap, reason = "both bit patterns lie near each other")]
#[expect(clippy::cast_precision_loss, reason = "at most 127 * 128")]
fn round_group(x: &[f32], values: &mut [i8]) -> (f32, f32) {
    /// Adding it rounds a number to an integer in the low bits.
    const ROUNDER: f32 = 12_582_912.0;

    // Magnitudes of floats have the order of their bits, infinities and NaN last.
    let magnitude = x.iter().fold(0, |max, it| max.max(it.to_bits() & 0x7fff_ffff));
    let magnitude = f32::from_bits(magnitude);
    if !(magnitude >= MAGNITUDE_MIN && magnitude.is_finite()) {
        values.fill(0);
        return (if magnitude.is_finite() { 0.0 } else { f32::NAN }, 0.0);
    }
    let inverse = 127.0 / magnitude;
    let mut rounded = [0; GROUP_MAX];
    let rounded = &mut rounded[..x.len()];
    for (rounded, x) in rounded.iter_mut().zip(x) {
        let bits = (x * inverse + ROUNDER).to_bits();
        *rounded = bits.wrapping_sub(ROUNDER.to_bits()) as i32;
    }
    for (value, rounded) in values.iter_mut().zip(&*rounded) {
        *value = *rounded as i8;
    }
    (magnitude / 127.0, rounded.iter().sum::<i32>() as f32)
}
