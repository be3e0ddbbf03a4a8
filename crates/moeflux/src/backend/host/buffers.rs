//! The activation buffers of a model.
//!
//! **Invariant:** sized at creation and by [`Buffers::set_rows_max`]; nothing here computes.

use std::ops::{Deref, DerefMut};

use bytemuck::{cast_slice, cast_slice_mut};
use moeflux_io::AlignedBytes;

use crate::error::{Error, Remedy, Result};
use crate::ids::BufferId;
use crate::ops::{Heads, Workspace};

/// The activation buffers of a model, for steps of at most `n_rows_max` rows.
#[derive(Debug)]
pub(crate) struct Buffers {
    workspace: Workspace,
    buffers: Vec<Buffer>,
    n_rows_max: usize,
    /// Number of times that each buffer may have been written.
    n_writes: Vec<u64>,
    /// Rows of each buffer swapped out by [`Buffers::swap_rows`].
    swapped_out: Vec<Vec<f32>>,
}

/// One activation buffer.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    /// Columns of a row.
    pub n_cols: usize,
    /// Row after row, in memory that returns to the system when it is freed: an allocator might
    /// keep memory that slots need next.
    pub values: Floats,
}

impl Buffer {
    /// Returns one row.
    #[must_use]
    pub(crate) fn row(&self, row_idx: usize) -> &[f32] {
        &self.values[row_idx * self.n_cols..][..self.n_cols]
    }

    /// Returns one row, mutably.
    pub(crate) fn row_mut(&mut self, row_idx: usize) -> &mut [f32] {
        &mut self.values[row_idx * self.n_cols..][..self.n_cols]
    }
}

impl Buffers {
    /// Creates zeroed buffers for steps of at most `n_rows_max` rows.
    ///
    /// # Panics
    ///
    /// If the system lacks the memory.
    #[must_use]
    pub(crate) fn new(workspace: &Workspace, n_rows_max: usize) -> Self {
        let n_buffers = workspace.buffers().len();
        let (n_writes, swapped_out) = (vec![0; n_buffers], vec![Vec::new(); n_buffers]);
        let mut buffers = Self {
            workspace: workspace.clone(),
            buffers: Vec::new(),
            n_rows_max,
            n_writes,
            swapped_out,
        };
        buffers.fill(n_rows_max).expect("memory for a step's activations");
        buffers
    }

    /// Replaces the buffers by zeroed ones of another size. The old memory is freed first.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if memory is short; the buffers then have their previous size, zeroed.
    ///
    /// # Panics
    ///
    /// If not even the freed memory can be allocated again.
    pub(crate) fn set_rows_max(&mut self, n_rows_max: usize) -> Result<()> {
        self.n_writes.iter_mut().for_each(|n_writes| *n_writes += 1);
        if let Err(e) = self.fill(n_rows_max) {
            self.fill(self.n_rows_max).expect("memory that was there before");
            return Err(e);
        }
        self.n_rows_max = n_rows_max;
        Ok(())
    }

    fn fill(&mut self, n_rows_max: usize) -> Result<()> {
        self.buffers.clear();
        for spec in self.workspace.buffers() {
            let values = Floats::zeroed(spec.n_cols * spec.n_rows(n_rows_max));
            let values = values.ok_or_else(|| {
                let what = format!("a step of {n_rows_max} rows");
                Error::no_room(what, self.workspace.bytes(n_rows_max), Remedy::SmallerSteps)
            })?;
            self.buffers.push(Buffer { n_cols: spec.n_cols, values });
        }
        Ok(())
    }

    /// Returns how often a buffer may have been written. Anything derived from it is valid while
    /// this number is unchanged.
    #[must_use]
    pub(crate) fn n_writes(&self, id: BufferId) -> u64 {
        self.n_writes[id.0]
    }

    /// Returns a buffer.
    #[must_use]
    pub(crate) fn get(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0]
    }

    /// Returns a buffer, mutably.
    pub(crate) fn get_mut(&mut self, id: BufferId) -> &mut Buffer {
        self.n_writes[id.0] += 1;
        &mut self.buffers[id.0]
    }

    /// Swaps the first rows of a buffer with those swapped out before, or with zeros.
    pub(crate) fn swap_rows(&mut self, id: BufferId, n_rows: usize) {
        self.n_writes[id.0] += 1;
        let Self { buffers, swapped_out, .. } = self;
        let Buffer { n_cols, values } = &mut buffers[id.0];
        let n_values = *n_cols * n_rows;
        let swapped_out = &mut swapped_out[id.0];
        swapped_out.resize(n_values.max(swapped_out.len()), 0.0);
        values[..n_values].swap_with_slice(&mut swapped_out[..n_values]);
    }

    /// Returns the values of one head of one row.
    #[must_use]
    pub(crate) fn head(&self, heads: &Heads, row_idx: usize, head_idx: usize) -> &[f32] {
        &self.get(heads.buffer).row(row_idx)[heads.cols(head_idx)]
    }

    /// Returns the values of one head of one row, mutably.
    pub(crate) fn head_mut(
        &mut self,
        heads: &Heads,
        row_idx: usize,
        head_idx: usize,
    ) -> &mut [f32] {
        &mut self.get_mut(heads.buffer).row_mut(row_idx)[heads.cols(head_idx)]
    }

    /// Takes a buffer out, so that it can be written while others are read. [`Buffers::put`]
    /// returns it.
    #[must_use]
    pub(crate) fn take(&mut self, id: BufferId) -> Buffer {
        let buffer = &mut self.buffers[id.0];
        Buffer { n_cols: buffer.n_cols, values: std::mem::take(&mut buffer.values) }
    }

    /// Puts a buffer back.
    pub(crate) fn put(&mut self, id: BufferId, buffer: Buffer) {
        self.n_writes[id.0] += 1;
        self.buffers[id.0] = buffer;
    }
}

/// Zeroed values. The system allocates pages when they are first written, so a long context costs
/// nothing until it is used.
#[derive(Debug)]
pub(crate) struct Floats(AlignedBytes);

impl Floats {
    /// Allocates `n_values` zeros; `None` if memory is short.
    #[must_use]
    pub(crate) fn zeroed(n_values: usize) -> Option<Self> {
        n_values.checked_mul(size_of::<f32>()).and_then(AlignedBytes::zeroed).map(Self)
    }

    /// Copies `values` to the front, growing if needed. Values after them are unspecified.
    ///
    /// # Panics
    ///
    /// If the system lacks the memory.
    pub(crate) fn copy(&mut self, values: &[f32]) {
        if self.len() < values.len() {
            *self = Self::zeroed(values.len()).expect("memory for a copy of a step's activations");
        }
        self[..values.len()].copy_from_slice(values);
    }
}

impl Default for Floats {
    fn default() -> Self {
        Self::zeroed(0).expect("no values take no memory")
    }
}

impl Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        cast_slice(&self.0)
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        cast_slice_mut(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_that_have_no_room_stay_as_they_were() {
        let mut workspace = Workspace::default();
        let x = workspace.buffer("x", 4).buffer;
        let mut buffers = Buffers::new(&workspace, 3);
        let error = buffers.set_rows_max(1 << 50).unwrap_err();
        assert!(matches!(error, Error::NoRoom { .. }), "{error}");
        assert_eq!(buffers.get(x).row(2), [0.0; 4]);
        assert_eq!(buffers.get(x).values.len(), 12);
        buffers.set_rows_max(5).unwrap();
        assert_eq!(buffers.get(x).row(4), [0.0; 4]);
    }
}
