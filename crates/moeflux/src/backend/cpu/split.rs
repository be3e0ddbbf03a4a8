//! Cuts work on one slice into ranges of items for the pool's threads.
//!
//! **Invariant:** every item is done by exactly one thread and owns its values, so the split never
//! changes a result. Knows nothing of what the items are; allocates nothing.

use std::ops::Range;

use rayon_core::join;

use crate::backend::host::Buffer;
use crate::ops::Heads;

/// Work below so many values is not worth another thread's attention.
const VALUES_PER_TASK_MIN: usize = 4096;

/// Tasks per thread: more of them even out threads that are late.
const TASKS_PER_THREAD: usize = 4;

/// How finely work is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    /// Threads of the pool.
    pub(super) n_threads: usize,
}

impl Split {
    /// Items per task, for items that each touch about `values_per_item` values.
    fn grain(self, n_items: usize, values_per_item: usize) -> usize {
        let fair = n_items.div_ceil(self.n_threads * TASKS_PER_THREAD);
        let worthwhile = VALUES_PER_TASK_MIN.div_ceil(values_per_item.max(1));
        if self.n_threads == 1 { n_items.max(1) } else { fair.max(worthwhile).max(1) }
    }

    /// Calls `f` with ranges of items and their values.
    pub(super) fn ranges<T: Send>(
        self,
        values: &mut [T],
        items: &Items<impl Fn(usize) -> usize + Sync>,
        f: &(impl Fn(Range<usize>, &mut [T]) + Sync),
    ) {
        let grain = self.grain(items.n_items, items.cost).next_multiple_of(items.align);
        let n_values = (items.place)(items.n_items);
        halve(&mut values[..n_values], (0..items.n_items, grain), items, f);
    }

    /// Calls `f` with each item's index and its values of both slices.
    pub(super) fn pairs<A: Send, B: Send>(
        self,
        (a, b): (&mut [A], &mut [B]),
        n_items: usize,
        cost: usize,
        f: &(impl Fn(usize, &mut [A], &mut [B]) + Sync),
    ) {
        let grain = self.grain(n_items, cost);
        if n_items != 0 {
            halve_pairs((a, b), 0..n_items, grain, f);
        }
    }

    /// Calls `f(row, part, values)` for every part of the first `n_rows` rows.
    pub(super) fn parts(
        self,
        buffer: &mut Buffer,
        n_rows: usize,
        parts: &Parts,
        f: &(impl Fn(usize, usize, &mut [f32]) + Sync),
    ) {
        let n_cols = buffer.n_cols;
        let place = |item: usize| {
            let (row_idx, part_idx) = (item / parts.n_parts, item % parts.n_parts);
            row_idx * n_cols + if part_idx == 0 { 0 } else { parts.cols(part_idx).start }
        };
        let items = Items { n_items: n_rows * parts.n_parts, align: 1, cost: parts.cost, place };
        self.ranges(&mut buffer.values, &items, &|range, values| {
            let base = place(range.start);
            for item in range {
                let (row_idx, part_idx) = (item / parts.n_parts, item % parts.n_parts);
                let cols = parts.cols(part_idx);
                let start = row_idx * n_cols + cols.start - base;
                f(row_idx, part_idx, &mut values[start..start + cols.len()]);
            }
        });
    }
}

/// Items that lie one after another in a slice.
pub(super) struct Items<P> {
    /// How many.
    pub(super) n_items: usize,
    /// Ranges begin at multiples of this.
    pub(super) align: usize,
    /// Values that one item touches, reads included.
    pub(super) cost: usize,
    /// First value of an item; of item `n_items`, the end of the last.
    pub(super) place: P,
}

/// Disjoint parts of a buffer's rows, in ascending order of columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    n_parts: usize,
    first_col: usize,
    width: usize,
    stride: usize,
    end_col: usize,
    cost: usize,
}

impl Parts {
    /// Each part is so many heads that follow each other (the last may have fewer).
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

    /// Each part is so many columns of a plain row (the last may have fewer).
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

    /// With another estimate of what a part costs, in values touched.
    pub(super) fn with_cost(self, cost: usize) -> Self {
        Self { cost, ..self }
    }

    /// Columns of a part.
    pub(super) fn cols(&self, part_idx: usize) -> Range<usize> {
        let start = self.first_col + part_idx * self.stride;
        start..(start + self.width).min(self.end_col)
    }
}

fn halve<T: Send>(
    values: &mut [T],
    (items, grain): (Range<usize>, usize),
    all: &Items<impl Fn(usize) -> usize + Sync>,
    f: &(impl Fn(Range<usize>, &mut [T]) + Sync),
) {
    let mid = (items.start + items.len() / 2).next_multiple_of(all.align);
    if items.len() <= grain || mid >= items.end {
        if !items.is_empty() {
            f(items, values);
        }
        return;
    }
    let (low, high) = values.split_at_mut((all.place)(mid) - (all.place)(items.start));
    join(
        || halve(low, (items.start..mid, grain), all, f),
        || halve(high, (mid..items.end, grain), all, f),
    );
}

fn halve_pairs<A: Send, B: Send>(
    (a, b): (&mut [A], &mut [B]),
    items: Range<usize>,
    grain: usize,
    f: &(impl Fn(usize, &mut [A], &mut [B]) + Sync),
) {
    let n_items = items.len();
    let (a_len, b_len) = (a.len() / n_items, b.len() / n_items);
    if n_items <= grain {
        for (i, item) in items.enumerate() {
            f(item, &mut a[i * a_len..][..a_len], &mut b[i * b_len..][..b_len]);
        }
        return;
    }
    let (low, mid) = (n_items / 2, items.start + n_items / 2);
    let (a_low, a_high) = a.split_at_mut(low * a_len);
    let (b_low, b_high) = b.split_at_mut(low * b_len);
    join(
        || halve_pairs((a_low, b_low), items.start..mid, grain, f),
        || halve_pairs((a_high, b_high), mid..items.end, grain, f),
    );
}
