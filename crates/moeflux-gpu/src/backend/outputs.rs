//! The output rows of the last plan: their number, and those that were read back.
//!
//! **Invariant:** rows that are kept here are those that the device has.

use moeflux::provider::ids::BufferId;
use moeflux::provider::ops::{Batch, N_OUTPUTS_MAX, RowSet};

/// Rows that were read back together.
#[derive(Debug)]
struct ReadBackRows {
    buffer: BufferId,
    values: Vec<f32>,
}

/// Output rows of the last plan.
#[derive(Debug, Default)]
pub(super) struct OutputRows {
    n_rows: usize,
    n_outputs: usize,
    read_back: Option<ReadBackRows>,
}

impl OutputRows {
    /// Notes that a plan was recorded or submitted for a batch.
    pub(super) fn note(&mut self, batch: &Batch<'_>) {
        self.n_rows = batch.rows.len();
        self.n_outputs = batch.outputs.len().min(N_OUTPUTS_MAX);
        self.discard();
    }

    /// Drops the rows that were read back, because the device changes them.
    pub(super) fn discard(&mut self) {
        self.read_back = None;
    }

    /// Returns the number of rows of a set.
    pub(super) const fn n_rows(&self, rows: RowSet) -> usize {
        match rows {
            RowSet::All => self.n_rows,
            RowSet::Outputs => self.n_outputs,
        }
    }

    /// Returns at least `n_values` values from the start of a buffer, if they were read back.
    pub(super) fn values(&self, buffer: BufferId, n_values: usize) -> Option<&[f32]> {
        let is_kept = |kept: &&ReadBackRows| kept.buffer == buffer && kept.values.len() >= n_values;
        self.read_back.as_ref().filter(is_kept).map(|kept| kept.values.as_slice())
    }

    /// Keeps values from the start of a buffer.
    pub(super) fn keep(&mut self, buffer: BufferId, values: Vec<f32>) {
        self.read_back = Some(ReadBackRows { buffer, values });
    }
}
