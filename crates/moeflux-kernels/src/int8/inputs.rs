//! Picked rows of activations, prepared for products, and the description of a product.
//!
//! Tables that use strips or tiles repack the rows once, for all matrices multiplied by them.
//! **Invariant:** the repacked data matches the picked rows; memory grows to the largest use and is
//! kept.

use std::ops::Range;

use crate::cpu::Fetching;
use crate::int8::block::PaddedMatrix;
use crate::int8::rows::IntRows;
use crate::int8::simd::LINE_COLS;
use crate::lanes::{LANES, Lanes};
use crate::matrix::format::Matrix;

/// A cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct CacheLine(pub(crate) [u8; 64]);

/// Values of a row of activations, in the order in which a line of 4-bit codes is unpacked.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct RowValues(pub(crate) [i8; LINE_COLS]);

/// Two factors of sixteen lanes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Factors(pub(crate) [Lanes; 2]);

/// Partial sums of sixteen lanes, for sixteen rows.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Square(pub(crate) [Lanes; LANES]);

/// Rows of activations repacked for a table's unit; empty for tables that use them directly.
#[derive(Debug, Default)]
pub struct RepackedRows {
    /// Number of repacked rows, in strips of sixteen.
    pub(crate) n_rows: usize,
    /// Lines of a strip.
    pub(crate) strip_lines: usize,
    /// Groups of a row.
    pub(crate) n_groups: usize,
    pub(crate) values: Vec<CacheLine>,
    pub(crate) factors: Vec<Factors>,
}

/// Some rows of activations.
#[derive(Clone, Copy, Debug)]
pub struct IntInputs<'a> {
    pub(crate) rows: &'a IntRows,
    pub(crate) picks: &'a [usize],
    pub(crate) repacked: &'a RepackedRows,
}

/// `matrix . x` for some rows of both, in int8 arithmetic.
#[derive(Clone, Debug)]
pub struct IntProduct<'a> {
    /// The weights: affine, or blocks that carry their own scales.
    pub matrix: Matrix<'a>,
    /// Rows of the matrix: outputs.
    pub rows: Range<usize>,
    /// Inputs, in the order of the outputs.
    pub x: IntInputs<'a>,
}

impl RepackedRows {
    /// Returns the rows that [`crate::KernelTable::repack`] repacked here, for products of the same
    /// table. The rows and picks must be the same, and the rows unchanged since.
    ///
    /// # Panics
    ///
    /// If the number of rows differs, or a row is out of range.
    #[must_use]
    pub fn inputs<'a>(&'a self, rows: &'a IntRows, picks: &'a [usize]) -> IntInputs<'a> {
        assert!(self.n_rows == 0 || self.n_rows == picks.len(), "rows that were laid down");
        assert!(picks.iter().all(|&pick| pick < rows.n_rows()), "picked rows");
        IntInputs { rows, picks, repacked: self }
    }
}

impl IntProduct<'_> {
    /// Returns the number of output values: whole blocks.
    #[must_use]
    pub fn n_outputs(&self) -> usize {
        self.rows.len().next_multiple_of(LANES) * self.x.picks.len()
    }

    pub(crate) fn check(&self, out: &[f32]) {
        let layout = self.matrix.layout();
        assert!(self.rows.start <= self.rows.end && self.rows.end <= layout.n_rows, "rows");
        assert!(self.x.rows.suits(layout.kind, layout.n_cols), "activations for {layout:?}");
        assert_eq!(out.len(), self.n_outputs(), "outputs");
    }
}

/// Per-thread memory of products, besides their operands.
#[derive(Debug, Default)]
pub struct IntScratch {
    pub(crate) fetching: Fetching,
    /// A matrix of few rows.
    pub(crate) padded: PaddedMatrix,
    /// One row of activations.
    pub(crate) values: Vec<RowValues>,
    #[cfg(target_arch = "x86_64")]
    pub(crate) codes: Vec<CacheLine>,
    #[cfg(target_arch = "x86_64")]
    pub(crate) scales: Vec<[Lanes; 2]>,
    #[cfg(target_arch = "x86_64")]
    pub(crate) sums: Vec<Square>,
}

/// Returns the first `n` items; their contents are unspecified.
#[cfg(target_arch = "x86_64")]
pub(crate) fn ensure_len<T: Copy>(items: &mut Vec<T>, n: usize, filler: T) -> &mut [T] {
    if items.len() < n {
        items.resize(n, filler);
    }
    &mut items[..n]
}
