//! Gradual prefetching of memory during other computation.
//!
//! A burst of prefetches fills the CPU's list of outstanding requests, and then everything waits:
//! in bursts, reading a cache and computing took as long as one after the other. **Invariant:**
//! changes speed, never a result.

use crate::cached::{CachedRows, CachedValues};
use crate::cpu::prefetch;

/// Size of a cache line.
const LINE_BYTES: usize = 64;

/// Lines of some rows that are not yet prefetched.
pub(crate) struct Prefetcher {
    address: *const u8,
    n_left: usize,
    lines_per_row: usize,
    left_in_row: usize,
    /// Distance from the end of a row's last line to the next row.
    gap_bytes: usize,
    lines_per_step: usize,
}

impl Prefetcher {
    /// Spreads the prefetching of rows over `n_steps` steps.
    #[inline(always)]
    pub(crate) fn new(rows: Option<&CachedRows<'_>>, n_steps: usize) -> Self {
        let Some(rows) = rows else { return Self::none() };
        let (address, value_bytes) = match rows.values {
            CachedValues::F32(values) => (values.as_ptr().cast::<u8>(), size_of::<f32>()),
            CachedValues::F16(values) => (values.as_ptr().cast::<u8>(), size_of::<u16>()),
            // Scales and biases are few, and adjacent.
            CachedValues::Codes { matrix, first_row } => {
                (matrix.codes().as_ptr().wrapping_add(first_row * rows.stride), size_of::<u8>())
            }
        };
        let lines_per_row = (rows.row_len * value_bytes).div_ceil(LINE_BYTES);
        let n_left = rows.n_rows * lines_per_row;
        Self {
            address,
            n_left,
            lines_per_row,
            left_in_row: lines_per_row,
            gap_bytes: (rows.stride * value_bytes).wrapping_sub(lines_per_row * LINE_BYTES),
            lines_per_step: n_left.div_ceil(n_steps.max(1)),
        }
    }

    /// Spreads the prefetching of `n_bytes` bytes over `n_steps` steps. The address may be invalid.
    #[inline(always)]
    pub(crate) fn range(address: *const u8, n_bytes: usize, n_steps: usize) -> Self {
        let n_left = n_bytes.div_ceil(LINE_BYTES);
        let lines_per_step = n_left.div_ceil(n_steps.max(1));
        let (lines_per_row, left_in_row) = (n_left, n_left);
        Self { address, n_left, lines_per_row, left_in_row, gap_bytes: 0, lines_per_step }
    }

    /// Does the same for `n` ranges at equal distances.
    #[inline(always)]
    pub(crate) fn ranges(
        address: *const u8,
        (n, n_bytes): (usize, usize),
        stride: usize,
        n_steps: usize,
    ) -> Self {
        let lines_per_row = n_bytes.div_ceil(LINE_BYTES);
        let n_left = n * lines_per_row;
        Self {
            address,
            n_left,
            lines_per_row,
            left_in_row: lines_per_row,
            gap_bytes: stride.wrapping_sub(lines_per_row * LINE_BYTES),
            lines_per_step: n_left.div_ceil(n_steps.max(1)),
        }
    }

    /// Prefetches nothing.
    #[inline(always)]
    pub(crate) fn none() -> Self {
        Self {
            address: std::ptr::null(),
            n_left: 0,
            lines_per_row: 0,
            left_in_row: 0,
            gap_bytes: 0,
            lines_per_step: 0,
        }
    }

    /// Prefetches a step's share.
    #[inline(always)]
    pub(crate) fn step(&mut self) {
        let mut n_now = self.lines_per_step.min(self.n_left);
        self.n_left -= n_now;
        while n_now > 0 {
            let n_of_row = n_now.min(self.left_in_row);
            for line_idx in 0..n_of_row {
                prefetch(self.address.wrapping_add(line_idx * LINE_BYTES));
            }
            self.address = self.address.wrapping_add(n_of_row * LINE_BYTES);
            self.left_in_row -= n_of_row;
            n_now -= n_of_row;
            if self.left_in_row == 0 {
                self.left_in_row = self.lines_per_row;
                self.address = self.address.wrapping_add(self.gap_bytes);
            }
        }
    }
}
