//! Attention state: a vector per head and position, in one of several storage types.
//!
//! **Invariant:** memory is allocated in pages of [`PAGE_POSITIONS`] positions, which forks share
//! until one of them writes. Values are rounded once, when put; they are read back and saved as
//! stored. No block that attention reads spans two pages. This module is independent of layers and
//! sessions.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};
use moeflux_io::AlignedBytes;
use moeflux_kernels::{
    BLOCK_POSITIONS, CachedRows, CachedValues, CodeShape, Matrix, MatrixLayout, round_to_f16,
};

use crate::backend::session_budget::{Booking, SessionBudget};
use crate::ops::KvKind;

/// Positions per page. Reads are as fast as from one contiguous allocation: the runs of a head's
/// consecutive positions are long enough.
pub(crate) const PAGE_POSITIONS: usize = 1024;

const _: () = assert!(PAGE_POSITIONS.is_multiple_of(BLOCK_POSITIONS));

/// Returns the number of positions allocated once a whole context is in use.
#[must_use]
pub(crate) const fn positions_in_pages(context: usize) -> usize {
    if context <= PAGE_POSITIONS { context } else { context.next_multiple_of(PAGE_POSITIONS) }
}

/// Minimum rows of a page. Kernels process sixteen rows of codes at a time; a smaller table would
/// be copied on each call.
const CODE_ROWS_MIN: usize = 16;

/// A vector per head and position.
///
/// A head's positions are contiguous: attention reads one head after another, and contiguous memory
/// is read in half the time of scattered memory.
#[derive(Debug)]
pub(crate) struct KvTable {
    kind: KvKind,
    n_heads: usize,
    head_dim: usize,
    /// Positions per page: fewer for a short context.
    n_page_rows: usize,
    /// Bytes of one head of one position, for each part.
    part_bytes: [usize; 3],
    pages: Vec<Arc<KvPage>>,
}

/// Memory of consecutive positions.
#[derive(Debug)]
struct KvPage {
    /// Values or codes, scales, biases; each `[n_heads, n_page_rows, part_bytes]`. The system
    /// provides the memory when it is first written.
    parts: [AlignedBytes; 3],
    _booking: Booking,
}

/// Copies of one head of some positions, at most [`BLOCK_POSITIONS`].
#[derive(Debug, Default)]
pub(crate) struct GatheredRows {
    /// Bytes of the parts. Words align the values.
    parts: [Vec<u64>; 3],
}

impl KvTable {
    /// Creates a table without memory, for sessions of at most `context` positions.
    #[must_use]
    pub(crate) fn new(kind: KvKind, (n_heads, head_dim): (usize, usize), context: usize) -> Self {
        let n_page_rows = context.clamp(CODE_ROWS_MIN, PAGE_POSITIONS);
        let part_bytes = kind.part_bytes(head_dim);
        Self { kind, n_heads, head_dim, n_page_rows, part_bytes, pages: Vec::new() }
    }

    /// Returns the bytes that [`KvTable::reserve`] would allocate for these positions.
    #[must_use]
    pub(crate) fn missing_bytes(&self, positions: &Range<usize>) -> usize {
        let n_pages = positions.end.div_ceil(self.n_page_rows).saturating_sub(self.pages.len());
        let is_shared = |page_idx: &usize| Arc::strong_count(&self.pages[*page_idx]) > 1;
        let n_shared = self.pages_of(positions).filter(is_shared).count();
        (n_pages + n_shared) * self.page_bytes()
    }

    /// Allocates unshared memory for these positions, and memory, possibly shared, for all before
    /// them. Returns `false` if memory is short.
    #[must_use]
    pub(crate) fn reserve(
        &mut self,
        positions: &Range<usize>,
        budget: &Arc<SessionBudget>,
    ) -> bool {
        while self.pages.len() * self.n_page_rows < positions.end {
            let Some(page) = self.zeroed_page(budget) else { return false };
            self.pages.push(Arc::new(page));
        }
        self.pages_of(positions).all(|page_idx| self.make_unshared(page_idx, budget))
    }

    /// Returns the existing pages that cover these positions.
    fn pages_of(&self, positions: &Range<usize>) -> Range<usize> {
        let n_pages = self.pages.len();
        let first = (positions.start / self.n_page_rows).min(n_pages);
        first..positions.end.div_ceil(self.n_page_rows).min(n_pages)
    }

    /// Replaces a page shared with forks by a copy of this table's own.
    fn make_unshared(&mut self, page_idx: usize, budget: &Arc<SessionBudget>) -> bool {
        if Arc::get_mut(&mut self.pages[page_idx]).is_some() {
            return true;
        }
        let Some(mut copy) = self.zeroed_page(budget) else { return false };
        for (copy, part) in copy.parts.iter_mut().zip(&self.pages[page_idx].parts) {
            copy.copy_from_slice(part);
        }
        self.pages[page_idx] = Arc::new(copy);
        true
    }

    fn zeroed_page(&self, budget: &Arc<SessionBudget>) -> Option<KvPage> {
        let part = |n_bytes: usize| {
            AlignedBytes::zeroed(self.n_heads.checked_mul(self.n_page_rows)?.checked_mul(n_bytes)?)
        };
        let [values, scales, biases] = self.part_bytes;
        let booking = budget.book(self.page_bytes() as u64, &String::new).ok()?;
        Some(KvPage { parts: [part(values)?, part(scales)?, part(biases)?], _booking: booking })
    }

    /// Returns a table with the same contents. Both share memory until one of them writes there.
    #[must_use]
    pub(crate) fn fork(&self) -> Self {
        Self { pages: self.pages.clone(), ..*self }
    }

    /// Returns the positions that follow these within their page, before `end` and at most
    /// `n_max`.
    #[must_use]
    pub(crate) fn following(
        &self,
        positions: &Range<usize>,
        end: usize,
        n_max: usize,
    ) -> Range<usize> {
        let page_end = (positions.end / self.n_page_rows + 1) * self.n_page_rows;
        positions.end..end.min(positions.end + n_max).min(page_end).max(positions.end)
    }

    /// Returns the number of heads, and the values of one head of a position.
    #[must_use]
    pub(crate) const fn shape(&self) -> (usize, usize) {
        (self.n_heads, self.head_dim)
    }

    /// Returns the layout of codes, if codes are stored.
    #[must_use]
    pub(crate) fn code_shape(&self) -> Option<CodeShape> {
        (self.kind == KvKind::Codes).then(|| CodeShape::of(self.head_dim))
    }

    /// Returns one head of some positions, all in one page.
    #[must_use]
    pub(crate) fn rows(&self, head_idx: usize, positions: &Range<usize>) -> CachedRows<'_> {
        let values = match self.kind {
            KvKind::F32 => CachedValues::F32(cast_slice(self.part(0, head_idx, positions))),
            KvKind::F16 => CachedValues::F16(cast_slice(self.part(0, head_idx, positions))),
            KvKind::Codes => CachedValues::Codes {
                matrix: self.matrix(head_idx, positions.start / self.n_page_rows),
                first_row: positions.start % self.n_page_rows,
            },
        };
        let stride = self.code_shape().map_or(self.head_dim, |shape| shape.n_cols);
        CachedRows { values, n_rows: positions.len(), row_len: self.head_dim, stride }
    }

    /// Copies one head of some positions, which may lie in any pages. Returns the copies.
    pub(crate) fn gather<'a>(
        &self,
        head_idx: usize,
        positions: &[usize],
        target: &'a mut GatheredRows,
    ) -> CachedRows<'a> {
        assert!(positions.len() <= BLOCK_POSITIONS, "{} positions", positions.len());
        for (part_idx, target) in target.parts.iter_mut().enumerate() {
            let n_bytes = self.part_bytes[part_idx];
            let n_words = (BLOCK_POSITIONS * n_bytes).div_ceil(size_of::<u64>());
            target.resize(n_words.max(target.len()), 0);
            let target: &mut [u8] = cast_slice_mut(target);
            for (row_idx, &position) in positions.iter().enumerate() {
                let row = self.part(part_idx, head_idx, &(position..position + 1));
                target[row_idx * n_bytes..][..n_bytes].copy_from_slice(row);
            }
        }
        let parts = target.parts.each_ref();
        let bytes = |part_idx: usize, n_rows: usize| -> &'a [u8] {
            let bytes: &[u8] = cast_slice(parts[part_idx]);
            &bytes[..n_rows * self.part_bytes[part_idx]]
        };
        let n_rows = positions.len();
        let values = match self.kind {
            KvKind::F32 => CachedValues::F32(cast_slice(bytes(0, n_rows))),
            KvKind::F16 => CachedValues::F16(cast_slice(bytes(0, n_rows))),
            KvKind::Codes => {
                let (shape, n_rows) = (CodeShape::of(self.head_dim), BLOCK_POSITIONS);
                let layout = MatrixLayout { kind: shape.kind(), n_rows, n_cols: shape.n_cols };
                let [codes, scales, biases] = [0, 1, 2].map(|part_idx| bytes(part_idx, n_rows));
                CachedValues::Codes {
                    matrix: Matrix::new(layout, codes, scales, biases),
                    first_row: 0,
                }
            }
        };
        let stride = self.code_shape().map_or(self.head_dim, |shape| shape.n_cols);
        CachedRows { values, n_rows, row_len: self.head_dim, stride }
    }

    /// Returns the codes of one head in one page: a row per position.
    fn matrix(&self, head_idx: usize, page_idx: usize) -> Matrix<'_> {
        let (shape, n_rows) = (CodeShape::of(self.head_dim), self.n_page_rows);
        let layout = MatrixLayout { kind: shape.kind(), n_rows, n_cols: shape.n_cols };
        let first = page_idx * n_rows;
        let [codes, scales, biases] =
            [0, 1, 2].map(|part_idx| self.part(part_idx, head_idx, &(first..first + n_rows)));
        Matrix::new(layout, codes, scales, biases)
    }

    /// Stores one head of one position. Codes may have values beyond the head, up to whole groups.
    pub(crate) fn put(&mut self, head_idx: usize, position: usize, values: &[f32]) {
        let row = position..position + 1;
        let ranges = [0, 1, 2].map(|part_idx| self.byte_range(part_idx, head_idx, &row));
        let (kind, head_dim) = (self.kind, self.head_dim);
        let [bytes, scales, biases] = &mut self.page_mut(position).parts;
        let bytes = &mut bytes[ranges[0].clone()];
        match kind {
            KvKind::F32 => cast_slice_mut(bytes).copy_from_slice(values),
            KvKind::F16 => round_to_f16(values, cast_slice_mut(bytes)),
            KvKind::Codes => {
                let factors = [&mut scales[ranges[1].clone()], &mut biases[ranges[2].clone()]];
                CodeShape::of(head_dim).round(values, bytes, factors);
            }
        }
    }

    /// Returns the bytes of a page.
    #[must_use]
    pub(crate) fn page_bytes(&self) -> usize {
        self.n_bytes(self.n_page_rows)
    }

    /// Returns the bytes of `n` positions.
    #[must_use]
    pub(crate) fn n_bytes(&self, n: usize) -> usize {
        n * self.n_heads * self.part_bytes.iter().sum::<usize>()
    }

    /// Returns one part of one head of some positions in one page.
    fn part(&self, part_idx: usize, head_idx: usize, positions: &Range<usize>) -> &[u8] {
        let page = &self.pages[positions.start / self.n_page_rows];
        &page.parts[part_idx][self.byte_range(part_idx, head_idx, positions)]
    }

    /// Returns the page of a position, for writing.
    fn page_mut(&mut self, position: usize) -> &mut KvPage {
        let page = &mut self.pages[position / self.n_page_rows];
        Arc::get_mut(page).expect("what is written has room of its own")
    }

    /// Returns the byte range of some positions within their page.
    fn byte_range(
        &self,
        part_idx: usize,
        head_idx: usize,
        positions: &Range<usize>,
    ) -> Range<usize> {
        assert!(head_idx < self.n_heads, "head {head_idx} of {}", self.n_heads);
        let first = positions.start % self.n_page_rows;
        let end = first + positions.len();
        assert!(end <= self.n_page_rows, "{positions:?} span pieces of {}", self.n_page_rows);
        let offset = |row| (head_idx * self.n_page_rows + row) * self.part_bytes[part_idx];
        offset(first)..offset(end)
    }

    /// Yields head and part of one position's state, in the order in which it is saved.
    fn parts_of_a_position(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        (0..self.n_heads).flat_map(|head_idx| [0, 1, 2].map(|part_idx| (head_idx, part_idx)))
    }

    /// Copies `n` positions from `first` to `target`: `[position, head, part]`.
    pub(crate) fn read(&self, (first, n): (usize, usize), mut target: &mut [u8]) {
        for position in first..first + n {
            for (head_idx, part_idx) in self.parts_of_a_position() {
                let part = self.part(part_idx, head_idx, &(position..position + 1));
                let (bytes, rest) = target.split_at_mut(part.len());
                bytes.copy_from_slice(part);
                target = rest;
            }
        }
    }

    /// Overwrites `n` positions from `first`, in the order of [`KvTable::read`].
    pub(crate) fn write(&mut self, (first, n): (usize, usize), mut source: &[u8]) {
        for position in first..first + n {
            for (head_idx, part_idx) in self.parts_of_a_position() {
                let range = self.byte_range(part_idx, head_idx, &(position..position + 1));
                let (bytes, rest) = source.split_at(range.len());
                self.page_mut(position).parts[part_idx][range].copy_from_slice(bytes);
                source = rest;
            }
        }
    }
}
