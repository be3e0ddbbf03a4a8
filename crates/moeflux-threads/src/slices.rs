//! Slices divided into parts, one for each task.
//!
//! **Invariant:** the cuts ascend and stay within the slice, which is checked before any task runs.
//! So no two tasks share a value.

use std::marker::PhantomData;

use crate::pool::Pool;

impl Pool {
    /// Calls `f(thread_idx, part_idx, part)` for each part of `values`. Part `i` extends from
    /// `cuts[i]` to `cuts[i + 1]`.
    ///
    /// # Panics
    ///
    /// As [`Pool::run`], and if the cuts do not ascend or exceed the slice.
    pub fn split<T: Send>(
        &self,
        values: &mut [T],
        cuts: &[usize],
        f: &(impl Fn(usize, usize, &mut [T]) + Sync),
    ) {
        let cut = CutSlice::new(values, cuts);
        self.run(cut.n_parts(), &|thread_idx, part_idx| {
            // SAFETY: `run` passes each index to one task, once.
            let part = unsafe { cut.part(part_idx) };
            f(thread_idx, part_idx, part);
        });
    }

    /// As [`Pool::split`] for two slices, each with its own cuts, in the same number of parts.
    ///
    /// # Panics
    ///
    /// As [`Pool::split`], and if the numbers of parts differ.
    pub fn split_two<A: Send, B: Send>(
        &self,
        (a, a_cuts): (&mut [A], &[usize]),
        (b, b_cuts): (&mut [B], &[usize]),
        f: &(impl Fn(usize, usize, &mut [A], &mut [B]) + Sync),
    ) {
        let (a, b) = (CutSlice::new(a, a_cuts), CutSlice::new(b, b_cuts));
        assert_eq!(a.n_parts(), b.n_parts(), "parts of two slices");
        self.run(a.n_parts(), &|thread_idx, part_idx| {
            // SAFETY: `run` passes each index to one task, once.
            let a = unsafe { a.part(part_idx) };
            // SAFETY: the same.
            let b = unsafe { b.part(part_idx) };
            f(thread_idx, part_idx, a, b);
        });
    }
}

impl Pool {
    /// Calls `f(thread_idx, part_idx, columns)` for each part of the columns of a matrix, whose
    /// rows of `row_len` values are `values`. Part `i` extends from column `cuts[i]` to column
    /// `cuts[i + 1]`.
    ///
    /// # Panics
    ///
    /// As [`Pool::run`], and if the last row is incomplete, or the cuts do not ascend or exceed the
    /// row.
    pub fn split_columns<T: Send>(
        &self,
        (values, row_len): (&mut [T], usize),
        cuts: &[usize],
        f: &(impl Fn(usize, usize, Columns<'_, T>) + Sync),
    ) {
        let cut = CutColumns::new(values, row_len, cuts);
        self.run(cuts.len().saturating_sub(1), &|thread_idx, part_idx| {
            // SAFETY: `run` passes each index to one task, once.
            let columns = unsafe { cut.part(part_idx) };
            f(thread_idx, part_idx, columns);
        });
    }
}

/// Mutable access to some columns of a matrix.
#[derive(Debug)]
pub struct Columns<'a, T> {
    /// Points to the first value of the first row.
    first: *mut T,
    n_rows: usize,
    row_len: usize,
    n_cols: usize,
    values: PhantomData<&'a mut [T]>,
}

impl<T> Columns<'_, T> {
    /// Returns the number of rows of the matrix.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns these columns of one row.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn row_mut(&mut self, row_idx: usize) -> &mut [T] {
        assert!(row_idx < self.n_rows, "row {row_idx} of {}", self.n_rows);
        // SAFETY: the row exists, and its values lie within the slice that is borrowed.
        let first = unsafe { self.first.add(row_idx * self.row_len) };
        // SAFETY: these columns lie within the row; no other value has the same columns, and
        // `&mut self` makes this borrow the only one of this value's.
        unsafe { std::slice::from_raw_parts_mut(first, self.n_cols) }
    }
}

/// A matrix that is borrowed in parts, by columns.
struct CutColumns<'a, T> {
    first: *mut T,
    n_rows: usize,
    row_len: usize,
    cuts: &'a [usize],
    values: PhantomData<&'a mut [T]>,
}

// SAFETY: as for `CutSlice`: no other thread has the same columns.
unsafe impl<T: Send> Sync for CutColumns<'_, T> {}

impl<'a, T> CutColumns<'a, T> {
    fn new(values: &'a mut [T], row_len: usize, cuts: &'a [usize]) -> Self {
        assert!(cuts.is_sorted(), "cuts ascend");
        let end = cuts.last().copied().unwrap_or(0);
        assert!(end <= row_len, "a cut at {end} of {row_len} columns");
        let n_rows = values.len().checked_div(row_len).unwrap_or(0);
        assert_eq!(n_rows * row_len, values.len(), "whole rows");
        Self { first: values.as_mut_ptr(), n_rows, row_len, cuts, values: PhantomData }
    }

    /// Returns one part.
    ///
    /// # Safety
    ///
    /// Each part may be requested only once.
    unsafe fn part(&self, part_idx: usize) -> Columns<'a, T> {
        let (start, end) = (self.cuts[part_idx], self.cuts[part_idx + 1]);
        let Self { n_rows, row_len, .. } = *self;
        // Without rows, there is no value to point to.
        let skipped = if n_rows == 0 { 0 } else { start };
        // SAFETY: `new` has checked that the column lies within the first row, or at its end.
        let first = unsafe { self.first.add(skipped) };
        Columns { first, n_rows, row_len, n_cols: end - start, values: PhantomData }
    }
}

/// A slice that is borrowed in parts.
struct CutSlice<'a, T> {
    first: *mut T,
    cuts: &'a [usize],
    values: PhantomData<&'a mut [T]>,
}

// SAFETY: a thread accesses the values only as `&mut [T]`, and only parts that no other thread has;
// that is equivalent to sending them, which `T: Send` allows.
unsafe impl<T: Send> Sync for CutSlice<'_, T> {}

impl<'a, T> CutSlice<'a, T> {
    fn new(values: &'a mut [T], cuts: &'a [usize]) -> Self {
        assert!(cuts.is_sorted(), "cuts ascend");
        let end = cuts.last().copied().unwrap_or(0);
        assert!(end <= values.len(), "a cut at {end} of {} values", values.len());
        Self { first: values.as_mut_ptr(), cuts, values: PhantomData }
    }

    fn n_parts(&self) -> usize {
        self.cuts.len().saturating_sub(1)
    }

    /// Returns one part.
    ///
    /// # Safety
    ///
    /// Each part may be requested only once.
    unsafe fn part(&self, part_idx: usize) -> &'a mut [T] {
        let (start, end) = (self.cuts[part_idx], self.cuts[part_idx + 1]);
        // SAFETY: `new` has checked that `start` is within the slice or at its end.
        let first = unsafe { self.first.add(start) };
        // SAFETY: `new` has checked that `start <= end` and that both are within the slice, which
        // is borrowed for `'a`; parts do not overlap, and this one is requested only once.
        unsafe { std::slice::from_raw_parts_mut(first, end - start) }
    }
}
