//! Rows of activations prepared for products: padded to whole groups, with the groups' sums.
//!
//! **Invariant:** columns beyond `n_cols` are zero; sums match the values. Memory grows to the
//! largest use and is kept.

use crate::matrix::format::{MatrixKind, group_cols};

/// Rows of activations for matrices of one group size.
#[derive(Clone, Debug, Default)]
pub struct Activations {
    n_rows: usize,
    n_cols: usize,
    group_cols: usize,
    has_sums: bool,
    values: Vec<f32>,
    sums: Vec<f32>,
}

impl Activations {
    /// Creates an empty set of rows.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the shape for products with matrices of `kind`. All rows must then be filled with
    /// [`Activations::fill`] or through [`Activations::rows_mut`].
    pub fn reshape(&mut self, kind: MatrixKind, n_rows: usize, n_cols: usize) {
        self.n_rows = n_rows;
        self.n_cols = n_cols;
        self.group_cols = group_cols(kind);
        self.has_sums = matches!(kind, MatrixKind::Affine(_));
        let n_values = n_rows * self.stride();
        let n_sums = n_rows * self.sums_per_row();
        // `RowShape::fill` writes every value, so that old ones need no clearing.
        if self.values.len() < n_values {
            self.values.resize(n_values, 0.0);
        }
        if self.sums.len() < n_sums {
            self.sums.resize(n_sums, 0.0);
        }
    }

    /// Returns the rows' memory, for threads that share the filling: `stride` values and
    /// `sums_per_row` sums per row, each to be written with [`RowShape::fill`].
    pub fn rows_mut(&mut self) -> (RowShape, &mut [f32], &mut [f32]) {
        let shape = RowShape {
            n_rows: self.n_rows,
            n_cols: self.n_cols,
            stride: self.stride(),
            group_cols: self.group_cols,
            sums_per_row: self.sums_per_row(),
        };
        let values = &mut self.values[..shape.n_rows * shape.stride];
        (shape, values, &mut self.sums[..shape.n_rows * shape.sums_per_row])
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns whether these rows can be multiplied by a matrix of this kind and width.
    #[must_use]
    pub fn suits(&self, kind: MatrixKind, n_cols: usize) -> bool {
        let has_sums = self.has_sums || !matches!(kind, MatrixKind::Affine(_));
        self.n_cols == n_cols && self.group_cols == group_cols(kind) && has_sums
    }

    /// Returns the columns including padding: whole groups.
    pub(crate) fn stride(&self) -> usize {
        self.n_cols.next_multiple_of(self.group_cols.max(1))
    }

    /// Returns one row, including padding.
    #[inline(always)]
    pub(crate) fn row(&self, row_idx: usize) -> &[f32] {
        let stride = self.stride();
        &self.values[row_idx * stride..][..stride]
    }

    /// Returns the sums of one row's groups; empty for kinds without biases.
    #[inline(always)]
    pub(crate) fn sums(&self, row_idx: usize) -> &[f32] {
        let sums_per_row = self.sums_per_row();
        &self.sums[row_idx * sums_per_row..][..sums_per_row]
    }

    fn sums_per_row(&self) -> usize {
        if self.has_sums { self.n_cols / self.group_cols } else { 0 }
    }
}

/// Layout of the rows of an [`Activations`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowShape {
    /// Number of rows.
    pub n_rows: usize,
    /// Values of a row.
    pub n_cols: usize,
    /// Distance between rows, in values: whole groups.
    pub stride: usize,
    /// Sums of a row; zero for kinds without biases.
    pub sums_per_row: usize,
    pub(crate) group_cols: usize,
}
