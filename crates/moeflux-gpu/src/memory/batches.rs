//! The rows of batches on the device: token, position, segment and wanted row of each.
//!
//! **Invariant:** commands that were recorded and not submitted find the rows they were recorded
//! for: a batch that differs gets another place, and the places begin anew after a submission.

use moeflux::provider::error::Result;
use moeflux::provider::ops::{Batch, N_OUTPUTS_MAX, Row};

use crate::device::Gpu;
use crate::memory::STORAGE;
use crate::params::narrow;

/// Batches that can be recorded before they must be submitted, when all are as large as can be.
const N_BATCHES: usize = 4;

#[derive(Debug)]
pub(crate) struct Batches {
    pub(crate) buffer: wgpu::Buffer,
    n_rows: usize,
    /// Rows in use since the last submission.
    n_used: usize,
    /// The last batch, and where it is.
    last: Vec<[u32; 4]>,
    last_at: usize,
    scratch: Vec<[u32; 4]>,
}

impl Batches {
    pub(crate) fn new(gpu: &Gpu, n_rows_max: usize) -> Result<Self> {
        let n_rows = N_BATCHES * n_rows_max.max(N_OUTPUTS_MAX);
        let buffer = gpu.buffer("the rows of a step", ((n_rows + 1) * 16) as u64, STORAGE)?;
        let (last, scratch) = (Vec::new(), Vec::new());
        Ok(Self { buffer, n_rows, n_used: 0, last, last_at: 0, scratch })
    }

    /// Whether this batch can be written without a submission before.
    pub(crate) fn has_room(&mut self, batch: &Batch<'_>) -> bool {
        let n_needed = batch.rows.len().max(batch.outputs.len());
        self.fill(batch);
        self.scratch == self.last || self.n_used + n_needed <= self.n_rows
    }

    /// The place of a row that is alone in its step: behind all others.
    pub(crate) fn lone_at(&self) -> u32 {
        narrow(self.n_rows)
    }

    /// Writes the row of that place, for all that is submitted later.
    pub(crate) fn write_lone(&self, gpu: &Gpu, row: &Row) {
        let entry = [row.token.0, narrow(row.position.0), 0, 0];
        gpu.write(&self.buffer, (self.n_rows * 16) as u64, bytemuck::bytes_of(&entry));
    }

    /// All places are free again. The last batch stays where it is.
    pub(crate) fn submitted(&mut self) {
        self.n_used = 0;
        self.last.clear();
    }

    /// Where the rows of the batch are; writes them if they are not yet there.
    pub(crate) fn place(&mut self, gpu: &Gpu, batch: &Batch<'_>) -> u32 {
        self.fill(batch);
        if self.scratch != self.last {
            std::mem::swap(&mut self.scratch, &mut self.last);
            assert!(self.n_used + self.last.len() <= self.n_rows, "there is room for the batch");
            self.last_at = self.n_used;
            self.n_used += self.last.len();
            let bytes = bytemuck::cast_slice(&self.last);
            gpu.write(&self.buffer, (self.last_at * 16) as u64, bytes);
        }
        narrow(self.last_at)
    }

    fn fill(&mut self, batch: &Batch<'_>) {
        let n_needed = batch.rows.len().max(batch.outputs.len());
        self.scratch.clear();
        self.scratch.resize(n_needed, [0; 4]);
        for (entry, row) in self.scratch.iter_mut().zip(batch.rows) {
            (entry[0], entry[1]) = (row.token.0, narrow(row.position.0));
        }
        for (segment_idx, segment) in batch.segments.iter().enumerate() {
            for entry in &mut self.scratch[segment.rows.clone()] {
                entry[2] = narrow(segment_idx);
            }
        }
        for (entry, &output) in self.scratch.iter_mut().zip(batch.outputs) {
            entry[3] = narrow(output);
        }
    }
}
