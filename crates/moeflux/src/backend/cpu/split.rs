//! Splits work on a slice into ranges of items for the pool's threads.
//!
//! **Invariant:** exactly one thread processes an item and owns its values, so the split never
//! changes a result. This module is independent of the kind of items; it allocates nothing in
//! steady state.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use moeflux_threads::{Columns, Pool};

use crate::backend::host::Buffer;
use crate::ops::Heads;

/// Minimum of values touched in total to use several threads: smaller work runs on the caller.
const VALUES_SHARED_MIN: usize = 16384;

/// Minimum number of values that a task touches.
const VALUES_PER_TASK_MIN: usize = 4096;

/// Tasks per thread: several, to even out late threads.
const TASKS_PER_THREAD: usize = 4;

/// The threads and the granularity of their work. Processing an item must not split work again.
#[derive(Debug)]
pub(super) struct WorkSplitter {
    /// Threads of the pool.
    pub(super) n_threads: usize,
    pool: Pool,
    cuts: Mutex<Cuts>,
}

/// Starts of a section's tasks in each slice. Grows to the largest number of tasks and is kept.
#[derive(Debug, Default)]
struct Cuts {
    first: Vec<usize>,
    second: Vec<usize>,
}

impl Cuts {
    fn set(cuts: &mut Vec<usize>, n_tasks: usize, start: impl Fn(usize) -> usize) -> &[usize] {
        cuts.clear();
        cuts.extend((0..=n_tasks).map(start));
        cuts
    }
}

impl WorkSplitter {
    pub(super) fn new(pool: Pool) -> Self {
        Self { n_threads: pool.n_threads(), pool, cuts: Mutex::default() }
    }

    /// Returns the calling thread's index in the pool.
    pub(super) fn thread_idx(&self) -> usize {
        self.pool.thread_idx()
    }

    /// Returns the items per task, for items that each touch about `values_per_item` values.
    fn grain(&self, n_items: usize, values_per_item: usize) -> usize {
        if self.n_threads == 1 || n_items.saturating_mul(values_per_item) < VALUES_SHARED_MIN {
            return n_items.max(1);
        }
        let fair = n_items.div_ceil(self.n_threads * TASKS_PER_THREAD);
        fair.max(VALUES_PER_TASK_MIN.div_ceil(values_per_item))
    }

    /// Calls `f` with ranges of items and their values.
    pub(super) fn ranges<T: Send>(
        &self,
        values: &mut [T],
        items: &SplitItems<impl Fn(usize) -> usize + Sync>,
        f: &(impl Fn(Range<usize>, &mut [T]) + Sync),
    ) {
        let SplitItems { n_items, align, cost, offset } = items;
        let grain = self.grain(*n_items, *cost).next_multiple_of(*align);
        let n_tasks = n_items.div_ceil(grain);
        if n_tasks <= 1 {
            if n_tasks == 1 {
                f(0..*n_items, &mut values[offset(0)..offset(*n_items)]);
            }
            return;
        }
        let start = |task_idx: usize| (*n_items).min(task_idx * grain);
        let mut cuts = self.cuts.lock().unwrap_or_else(PoisonError::into_inner);
        let cuts = Cuts::set(&mut cuts.first, n_tasks, |task_idx| offset(start(task_idx)));
        self.pool.split(values, cuts, &|_, task_idx, values| {
            f(start(task_idx)..start(task_idx + 1), values);
        });
    }

    /// Calls `f` with ranges of items and their columns of a matrix with rows of `row_len` values.
    pub(super) fn columns(
        &self,
        (values, row_len): (&mut [f32], usize),
        items: &SplitItems<impl Fn(usize) -> usize + Sync>,
        f: &(impl Fn(Range<usize>, Columns<'_, f32>) + Sync),
    ) {
        let SplitItems { n_items, align, cost, offset } = items;
        let grain = self.grain(*n_items, *cost).next_multiple_of(*align);
        let start = |task_idx: usize| (*n_items).min(task_idx * grain);
        let mut cuts = self.cuts.lock().unwrap_or_else(PoisonError::into_inner);
        let n_tasks = n_items.div_ceil(grain);
        let cuts = Cuts::set(&mut cuts.first, n_tasks, |task_idx| offset(start(task_idx)));
        self.pool.split_columns((values, row_len), cuts, &|_, task_idx, columns| {
            f(start(task_idx)..start(task_idx + 1), columns);
        });
    }

    /// Calls `f` with each item's index and its values of both slices.
    pub(super) fn pairs<A: Send, B: Send>(
        &self,
        (a, b): (&mut [A], &mut [B]),
        n_items: usize,
        cost: usize,
        f: &(impl Fn(usize, &mut [A], &mut [B]) + Sync),
    ) {
        if n_items == 0 {
            return;
        }
        let (a_len, b_len) = (a.len() / n_items, b.len() / n_items);
        let each = |items: Range<usize>, a: &mut [A], b: &mut [B]| {
            for (i, item) in items.enumerate() {
                f(item, &mut a[i * a_len..][..a_len], &mut b[i * b_len..][..b_len]);
            }
        };
        let grain = self.grain(n_items, cost);
        let n_tasks = n_items.div_ceil(grain);
        if n_tasks == 1 {
            return each(0..n_items, a, b);
        }
        let start = |task_idx: usize| n_items.min(task_idx * grain);
        let mut cuts = self.cuts.lock().unwrap_or_else(PoisonError::into_inner);
        let Cuts { first, second } = &mut *cuts;
        let a_cuts = Cuts::set(first, n_tasks, |task_idx| start(task_idx) * a_len);
        let b_cuts = Cuts::set(second, n_tasks, |task_idx| start(task_idx) * b_len);
        self.pool.split_two((a, a_cuts), (b, b_cuts), &|_, task_idx, a, b| {
            each(start(task_idx)..start(task_idx + 1), a, b);
        });
    }

    /// Calls `f(row, part, values)` for every part of the first `n_rows` rows.
    pub(super) fn parts(
        &self,
        buffer: &mut Buffer,
        n_rows: usize,
        parts: &RowParts,
        f: &(impl Fn(usize, usize, &mut [f32]) + Sync),
    ) {
        let n_cols = buffer.n_cols;
        let offset = |item: usize| {
            let (row_idx, part_idx) = (item / parts.n_parts, item % parts.n_parts);
            row_idx * n_cols + if part_idx == 0 { 0 } else { parts.cols(part_idx).start }
        };
        let items =
            SplitItems { n_items: n_rows * parts.n_parts, align: 1, cost: parts.cost, offset };
        self.ranges(&mut buffer.values, &items, &|range, values| {
            let base = offset(range.start);
            for item in range {
                let (row_idx, part_idx) = (item / parts.n_parts, item % parts.n_parts);
                let cols = parts.cols(part_idx);
                let start = row_idx * n_cols + cols.start - base;
                f(row_idx, part_idx, &mut values[start..start + cols.len()]);
            }
        });
    }
}

/// Items stored one after another in a slice.
pub(super) struct SplitItems<P> {
    /// Number of items.
    pub(super) n_items: usize,
    /// Ranges begin at multiples of this.
    pub(super) align: usize,
    /// Values that one item touches, reads included.
    pub(super) cost: usize,
    /// First value of an item; of item `n_items`, the end of the last.
    pub(super) offset: P,
}

/// Disjoint parts of a buffer's rows, in ascending order of columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowParts {
    n_parts: usize,
    first_col: usize,
    width: usize,
    stride: usize,
    end_col: usize,
    cost: usize,
}

impl RowParts {
    /// Divides a row into parts of `heads_per_part` adjacent heads (the last may have fewer).
    pub(super) fn heads(heads: &Heads, heads_per_part: usize) -> Self {
        let width = (heads_per_part - 1) * heads.stride + heads.head_dim;
        Self {
            n_parts: heads.n_heads.div_ceil(heads_per_part),
            first_col: heads.first_col,
            width,
            stride: heads_per_part * heads.stride,
            end_col: heads.end_col(),
            cost: width,
        }
    }

    /// Divides a plain row into parts of `width` columns (the last may have fewer).
    pub(super) fn columns(row: &Heads, width: usize) -> Self {
        assert_eq!(row.n_heads, 1, "a plain row");
        Self {
            n_parts: row.head_dim.div_ceil(width),
            first_col: row.first_col,
            width,
            stride: width,
            end_col: row.end_col(),
            cost: width,
        }
    }

    /// Sets the estimated cost of a part, in values touched.
    pub(super) fn with_cost(self, cost: usize) -> Self {
        Self { cost, ..self }
    }

    /// Returns the columns of a part.
    pub(super) fn cols(&self, part_idx: usize) -> Range<usize> {
        let start = self.first_col + part_idx * self.stride;
        start..(start + self.width).min(self.end_col)
    }
}
