//! Filling of activation rows by the kernels of a table: copied and summed for f32 products,
//! rounded for int8 products.
//!
//! **Invariant:** a row is written as a whole, including padding and sums.

use crate::float::activations::{Activations, RowShape};
use crate::int8::{IntRowShape, IntRows, QuantisedRow};
use crate::table::KernelTable;

impl Activations {
    /// Writes one row.
    ///
    /// # Panics
    ///
    /// If `values` is not one row, or `row_idx` is out of range.
    pub fn fill(&mut self, table: &KernelTable, row_idx: usize, values: &[f32]) {
        let (row, rows_values, rows_sums) = self.rows_mut();
        assert!(row_idx < row.n_rows, "row {row_idx} of {}", row.n_rows);
        let target = &mut rows_values[row_idx * row.stride..][..row.stride];
        let sums = &mut rows_sums[row_idx * row.sums_per_row..][..row.sums_per_row];
        row.fill(table, values, target, sums);
    }
}

impl RowShape {
    /// Writes one row and its sums.
    ///
    /// # Panics
    ///
    /// If a length is not that of one row.
    pub fn fill(&self, table: &KernelTable, values: &[f32], row: &mut [f32], sums: &mut [f32]) {
        assert_eq!(values.len(), self.n_cols, "values of a row");
        row[..self.n_cols].copy_from_slice(values);
        self.finish(table, row, sums);
    }

    /// Completes a row whose first `n_cols` values are written: adds padding and sums.
    ///
    /// # Panics
    ///
    /// If a length is not that of one row.
    pub fn finish(&self, table: &KernelTable, row: &mut [f32], sums: &mut [f32]) {
        assert_eq!(row.len(), self.stride, "memory of a row");
        assert_eq!(sums.len(), self.sums_per_row, "sums of a row");
        row[self.n_cols..].fill(0.0);
        if self.sums_per_row != 0 {
            table.group_sums(row, self.group_cols, sums);
        }
    }
}

impl IntRows {
    /// Writes one row.
    ///
    /// # Panics
    ///
    /// If `x` is not one row, or `row_idx` is out of range.
    pub fn fill(&mut self, table: &KernelTable, row_idx: usize, x: &[f32]) {
        let (shape, values, factors) = self.rows_mut();
        assert!(row_idx < shape.n_rows, "row {row_idx} of {}", shape.n_rows);
        let values = &mut values[row_idx * shape.n_cols..][..shape.n_cols];
        let factors = &mut factors[row_idx * 2 * shape.n_groups..][..2 * shape.n_groups];
        shape.fill(table, x, QuantisedRow { values, factors });
    }
}

impl IntRowShape {
    /// Rounds one row.
    ///
    /// # Panics
    ///
    /// If a length is not that of one row.
    pub fn fill(&self, table: &KernelTable, x: &[f32], row: QuantisedRow<'_>) {
        assert_eq!(x.len(), self.n_cols, "values of a row");
        assert_eq!(row.values.len(), self.n_cols, "memory of a row");
        assert_eq!(row.factors.len(), 2 * self.n_groups, "steps and sums of a row");
        table.quantise(x, self.order, row);
    }
}
