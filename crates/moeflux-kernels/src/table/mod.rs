//! The table of kernels of one instruction set.
//!
//! **Invariant:** a table is available only if the CPU has its features; lengths are checked here,
//! once per call, so that kernels need not.

mod fill;

use crate::attention::choice::ChoiceInputs;
use crate::attention::weighted::WeightedRows;
use crate::attention::{ScoreInputs, SoftmaxUpdate};
use crate::delta::DeltaRun;
use crate::float::product::{FloatProduct, TransposedProduct};
use crate::int8::{
    IntInputs, IntProduct, IntRows, IntScratch, QuantisedRow, RepackedRows, ValueOrder,
};
use crate::rowop::RowOp;

/// The kernels of one instruction set. All tables give the same bits.
pub struct KernelTable {
    pub(crate) name: &'static str,
    pub(crate) matmul: unsafe fn(&FloatProduct<'_>, &mut [f32]),
    pub(crate) matmul_transposed: unsafe fn(&TransposedProduct<'_>, &mut [f32]),
    pub(crate) repack_inputs: unsafe fn(&IntRows, &[usize], &mut RepackedRows),
    pub(crate) int_matmul: unsafe fn(&IntProduct<'_>, &mut IntScratch, &mut [f32]),
    pub(crate) quantise: unsafe fn(&[f32], ValueOrder, QuantisedRow<'_>),
    pub(crate) group_sums: unsafe fn(&[f32], usize, &mut [f32]),
    pub(crate) dot: unsafe fn(&[f32], &[f32]) -> f32,
    pub(crate) axpy: unsafe fn(f32, &[f32], &mut [f32]),
    pub(crate) scores: unsafe fn(&ScoreInputs<'_>, &mut [f32]),
    pub(crate) choice_scores: unsafe fn(&ChoiceInputs<'_>, &mut [f32]),
    pub(crate) update_softmax: unsafe fn(&mut SoftmaxUpdate<'_>),
    pub(crate) add_weighted: unsafe fn(&WeightedRows<'_>, &mut [f32]),
    pub(crate) exp_shifted: unsafe fn(&mut [f32], f32) -> f32,
    pub(crate) delta_rule: unsafe fn(&DeltaRun<'_>, &mut [f32], &mut [f32]),
    pub(crate) apply: unsafe fn(&RowOp<'_>, &mut [f32]),
}

impl std::fmt::Debug for KernelTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KernelTable({})", self.name)
    }
}

/// Defines a table and its kernels: the generic bodies, compiled for the stated features.
macro_rules! kernel_table {
    ($name:literal, $simd:expr $(, features: $features:literal)?) => {
        pub(crate) static TABLE: $crate::table::KernelTable = KERNELS;

        const KERNELS: $crate::table::KernelTable = $crate::table::KernelTable {
            name: $name,
            matmul,
            matmul_transposed,
            repack_inputs,
            int_matmul,
            quantise,
            group_sums,
            dot,
            axpy,
            scores,
            choice_scores,
            update_softmax,
            add_weighted,
            exp_shifted,
            delta_rule,
            apply,
        };

        $(#[target_feature(enable = $features)])?
        fn matmul(product: &$crate::float::product::FloatProduct<'_>, out: &mut [f32]) {
            $crate::float::product::matmul($simd, product, out);
        }

        $(#[target_feature(enable = $features)])?
        fn matmul_transposed(
            product: &$crate::float::product::TransposedProduct<'_>,
            out: &mut [f32],
        ) {
            $crate::float::product::matmul_transposed($simd, product, out);
        }

        fn repack_inputs(
            _: &$crate::int8::IntRows,
            _: &[usize],
            _: &mut $crate::int8::RepackedRows,
        ) {
        }

        $(#[target_feature(enable = $features)])?
        fn int_matmul(
            product: &$crate::int8::IntProduct<'_>,
            scratch: &mut $crate::int8::IntScratch,
            out: &mut [f32],
        ) {
            $crate::int8::matmul($simd, (product, unpack_blocks), scratch, out);
        }

        $(#[target_feature(enable = $features)])?
        fn unpack_blocks(
            rows: &$crate::int8::BlockMatrix<'_>,
            cols: std::ops::Range<usize>,
            scratch: &mut $crate::int8::BlockScratch,
            target: (&mut $crate::int8::CodeTile, &mut $crate::int8::TileScales),
        ) {
            $crate::int8::unpack_blocks($simd, rows, cols, scratch, target);
        }

        $(#[target_feature(enable = $features)])?
        fn quantise(
            x: &[f32],
            order: $crate::int8::ValueOrder,
            row: $crate::int8::QuantisedRow<'_>,
        ) {
            $crate::int8::quantise(x, order, row);
        }

        $(#[target_feature(enable = $features)])?
        fn group_sums(row: &[f32], group_cols: usize, sums: &mut [f32]) {
            $crate::lanes::vector::group_sums($simd, row, group_cols, sums);
        }

        $(#[target_feature(enable = $features)])?
        fn dot(a: &[f32], b: &[f32]) -> f32 {
            $crate::lanes::vector::dot($simd, a, b)
        }

        $(#[target_feature(enable = $features)])?
        fn axpy(factor: f32, x: &[f32], y: &mut [f32]) {
            $crate::lanes::vector::axpy($simd, factor, x, y);
        }

        $(#[target_feature(enable = $features)])?
        fn scores(scores: &$crate::attention::ScoreInputs<'_>, out: &mut [f32]) {
            $crate::attention::scores($simd, scores, out);
        }

        $(#[target_feature(enable = $features)])?
        fn choice_scores(inputs: &$crate::attention::choice::ChoiceInputs<'_>, out: &mut [f32]) {
            $crate::attention::choice::choice_scores($simd, inputs, out);
        }

        $(#[target_feature(enable = $features)])?
        fn update_softmax(update: &mut $crate::attention::SoftmaxUpdate<'_>) {
            $crate::attention::update_softmax($simd, update);
        }

        $(#[target_feature(enable = $features)])?
        fn add_weighted(sum: &$crate::attention::weighted::WeightedRows<'_>, out: &mut [f32]) {
            $crate::attention::weighted::add_weighted($simd, sum, out);
        }

        $(#[target_feature(enable = $features)])?
        fn exp_shifted(values: &mut [f32], shift: f32) -> f32 {
            $crate::lanes::vector::exp_shifted($simd, values, shift)
        }

        $(#[target_feature(enable = $features)])?
        fn delta_rule(run: &$crate::delta::DeltaRun<'_>, state: &mut [f32], out: &mut [f32]) {
            $crate::delta::delta_rule($simd, run, state, out);
        }

        $(#[target_feature(enable = $features)])?
        fn apply(op: &$crate::rowop::RowOp<'_>, values: &mut [f32]) {
            $crate::rowop::apply($simd, op, values);
        }
    };
}
pub(crate) use kernel_table;

impl KernelTable {
    /// Returns the name for logs and test failures, such as "avx2".
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Computes `out[block of rows][pick][row of the block]`; missing rows of the last block get
    /// unspecified values.
    ///
    /// # Panics
    ///
    /// If shapes do not match.
    pub fn matmul(&self, product: &FloatProduct<'_>, out: &mut [f32]) {
        product.check(out);
        // SAFETY: the CPU has the table's features (see `available`); shapes are checked above.
        unsafe { (self.matmul)(product, out) }
    }

    /// Computes `out[row of x][column]`.
    ///
    /// # Panics
    ///
    /// If shapes do not match.
    pub fn matmul_transposed(&self, product: &TransposedProduct<'_>, out: &mut [f32]) {
        product.check(out);
        // SAFETY: as in `matmul`.
        unsafe { (self.matmul_transposed)(product, out) }
    }

    /// Prepares some rows for products of this table; `repacked` provides memory.
    ///
    /// # Panics
    ///
    /// If a row is out of range.
    pub fn repack<'a>(
        &self,
        rows: &'a IntRows,
        picks: &'a [usize],
        repacked: &'a mut RepackedRows,
    ) -> IntInputs<'a> {
        assert!(picks.iter().all(|&pick| pick < rows.n_rows()), "picked rows");
        repacked.n_rows = 0;
        // SAFETY: as in `matmul`.
        unsafe { (self.repack_inputs)(rows, picks, repacked) };
        IntInputs { rows, picks, repacked }
    }

    /// Computes `out[block of rows][pick][row of the block]` in int8 arithmetic; missing rows of
    /// the last block get unspecified values.
    ///
    /// # Panics
    ///
    /// If shapes do not match.
    pub fn int_matmul(&self, product: &IntProduct<'_>, scratch: &mut IntScratch, out: &mut [f32]) {
        product.check(out);
        // SAFETY: as in `matmul`.
        unsafe { (self.int_matmul)(product, scratch, out) }
    }

    /// Rounds a row whose lengths match.
    pub(crate) fn quantise(&self, x: &[f32], order: ValueOrder, row: QuantisedRow<'_>) {
        // SAFETY: as in `matmul`.
        unsafe { (self.quantise)(x, order, row) }
    }

    /// Computes the sum of each group of a padded row of activations.
    ///
    /// # Panics
    ///
    /// If `row` is not a whole group for each of `sums`.
    pub fn group_sums(&self, row: &[f32], group_cols: usize, sums: &mut [f32]) {
        assert_eq!(row.len(), group_cols * sums.len(), "whole groups");
        // SAFETY: as in `matmul`.
        unsafe { (self.group_sums)(row, group_cols, sums) }
    }

    /// Returns the dot product, as one group.
    ///
    /// # Panics
    ///
    /// If lengths differ.
    #[must_use]
    pub fn dot(&self, a: &[f32], b: &[f32]) -> f32 {
        assert_eq!(a.len(), b.len(), "vectors of a dot product");
        // SAFETY: as in `matmul`.
        unsafe { (self.dot)(a, b) }
    }

    /// Computes `y = fma(factor, x, y)`.
    ///
    /// # Panics
    ///
    /// If lengths differ.
    pub fn axpy(&self, factor: f32, x: &[f32], y: &mut [f32]) {
        assert_eq!(x.len(), y.len(), "vectors of a sum");
        // SAFETY: as in `matmul`.
        unsafe { (self.axpy)(factor, x, y) }
    }

    /// Computes `out[query][position] = dot(query, key)`, summed over the parts in their order. A
    /// row of `out` has [`crate::BLOCK_POSITIONS`] places; those beyond the keys stay unchanged.
    ///
    /// # Panics
    ///
    /// If shapes do not match.
    pub fn scores(&self, scores: &ScoreInputs<'_>, out: &mut [f32]) {
        scores.parts.iter().for_each(|part| part.check(out));
        // SAFETY: as in `matmul`.
        unsafe { (self.scores)(scores, out) }
    }

    /// Computes `out[key]`, the sum over heads of `weight * max(0, dot(query, key))`; NaN if a
    /// product is.
    ///
    /// # Panics
    ///
    /// If shapes do not match.
    pub fn choice_scores(&self, inputs: &ChoiceInputs<'_>, out: &mut [f32]) {
        inputs.check(out);
        // SAFETY: as in `matmul`.
        unsafe { (self.choice_scores)(inputs, out) }
    }

    /// Takes a block of scores into each query's softmax: turns them into weights relative to the
    /// new maximum, and computes the factors for sums relative to the old one.
    ///
    /// # Panics
    ///
    /// If shapes do not match.
    pub fn update_softmax(&self, update: &mut SoftmaxUpdate<'_>) {
        update.check();
        // SAFETY: as in `matmul`.
        unsafe { (self.update_softmax)(update) }
    }

    /// Computes `out[query] = out[query] * factor[query]`, then
    /// `fma(weight[query][position], row, out)`, position by position in ascending order.
    ///
    /// # Panics
    ///
    /// If shapes do not match.
    pub fn add_weighted(&self, sum: &WeightedRows<'_>, out: &mut [f32]) {
        sum.check(out);
        // SAFETY: as in `matmul`.
        unsafe { (self.add_weighted)(sum, out) }
    }

    /// Computes `values = exp(values - shift)`; returns their sum, as one group. Within 2 units in
    /// the last place; 0 below -87.3, infinite above 88.72.
    pub fn exp_shifted(&self, values: &mut [f32], shift: f32) -> f32 {
        // SAFETY: as in `matmul`.
        unsafe { (self.exp_shifted)(values, shift) }
    }

    /// Computes per token `S *= decay; delta = (v - S k) * beta; S += delta k^T; out = S q`, for
    /// some values of one head's state `S[value][key]`. The state is stored in strips of 16 values,
    /// the last of which may be narrower: `[strip][key][value of the strip]`; outputs as
    /// `[token][value]`. `state` is updated in place, or written from `run.before`.
    ///
    /// # Panics
    ///
    /// If shapes do not match.
    pub fn delta_rule(&self, run: &DeltaRun<'_>, state: &mut [f32], out: &mut [f32]) {
        run.check(state, out);
        // SAFETY: as in `matmul`.
        unsafe { (self.delta_rule)(run, state, out) }
    }

    /// Computes one row in place.
    ///
    /// # Panics
    ///
    /// If shapes do not match.
    pub fn apply(&self, op: &RowOp<'_>, values: &mut [f32]) {
        op.check(values.len());
        // SAFETY: as in `matmul`.
        unsafe { (self.apply)(op, values) }
    }
}
