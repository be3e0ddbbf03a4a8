//! What comes back from the device: the router's choice and guess, rows of a buffer.
//!
//! **Invariant:** a value that is read is what it is after all that was recorded.

use moeflux::error::Result;
use moeflux::ids::{BufferId, ExpertIdx};
use moeflux::ops::{Routes, RowSet};

use super::{GpuBackend, Guess, KeptRows, Routed};
use crate::kernels::guess_cols;

impl GpuBackend {
    pub(super) fn read(
        &mut self,
        source: &wgpu::Buffer,
        offset_bytes: u64,
        target: &mut [u8],
    ) -> Result<()> {
        if target.is_empty() {
            return Ok(());
        }
        self.catch_up();
        let recorder = (&*self.gpu, &mut self.recorder);
        let n_bytes = target.len() as u64;
        let coming = self.read_back.begin(recorder, (source, offset_bytes), n_bytes)?;
        self.n_submissions += 1;
        self.batches.submitted();
        self.experts.submitted();
        self.record_ahead();
        self.read_back.end(&self.gpu, coming, target)
    }

    pub(super) fn read_values(
        &mut self,
        source: &wgpu::Buffer,
        first: usize,
        n: usize,
    ) -> Result<Vec<f32>> {
        let mut values = vec![0.0; n];
        let target = bytemuck::cast_slice_mut(&mut values);
        self.read(source, (first * size_of::<f32>()) as u64, target)?;
        Ok(values)
    }

    pub(super) fn read_guess(&mut self) -> Result<&Routes> {
        let Some(Guess { view, shape, n_rows }) = self.guess.take() else {
            return Ok(&self.guessed);
        };
        let (source, row_stride) = (self.workspace.buffer.clone(), view.row_stride as usize);
        let values = self.read_values(&source, view.first as usize, n_rows * row_stride)?;
        let Routes { top_k, experts, weights } = &mut self.guessed;
        *top_k = shape.top_k;
        experts.clear();
        weights.clear();
        for row in values.chunks(row_stride) {
            let (named, weighed) = row[..guess_cols(shape.top_k)].split_at(shape.top_k);
            experts.extend(named.iter().map(|it| ExpertIdx(index_of(*it))));
            weights.extend_from_slice(weighed);
        }
        if experts.iter().any(|it| it.0 >= shape.n_experts) {
            return Err(self.gpu.error("its router named an expert that does not exist"));
        }
        Ok(&self.guessed)
    }

    pub(super) fn read_routes(&mut self) -> Result<&Routes> {
        if !self.routed.is_here {
            let Routed { shape, n_rows, .. } = self.routed;
            let mut pairs = vec![[0_u32; 2]; n_rows * shape.top_k];
            let source = self.route_pairs.clone();
            self.read(&source, 0, bytemuck::cast_slice_mut(&mut pairs))?;
            let Routes { top_k, experts, weights } = &mut self.routes;
            *top_k = shape.top_k;
            experts.clear();
            experts.extend(pairs.iter().map(|pair| ExpertIdx(pair[0] as usize)));
            weights.clear();
            weights.extend(pairs.iter().map(|pair| f32::from_bits(pair[1])));
            let last = experts.iter().max();
            if last.is_some_and(|it| it.0 >= shape.n_experts) {
                return Err(self.gpu.error("its router chose an expert that does not exist"));
            }
            self.routed.is_here = true;
        }
        Ok(&self.routes)
    }

    /// One row of what the last plan left. Rows that are read one by one come together.
    pub(super) fn read_output(
        &mut self,
        buffer: BufferId,
        row_idx: usize,
        target: &mut [f32],
    ) -> Result<()> {
        let place = self.workspace.place(buffer);
        assert!(target.len() <= place.n_cols, "a row has {} columns", place.n_cols);
        let (first, row_stride) = (place.first as usize, place.row_stride as usize);
        let n_rows = match place.rows {
            RowSet::All => self.last_rows.0,
            RowSet::Outputs => self.last_rows.1,
        };
        let n_rows = n_rows.max(row_idx + 1);
        let source = self.workspace.buffer.clone();
        if n_rows == 1 {
            let offset_bytes = (first * size_of::<f32>()) as u64;
            return self.read(&source, offset_bytes, bytemuck::cast_slice_mut(target));
        }
        let is_kept =
            |kept: &KeptRows| kept.buffer == buffer && kept.values.len() >= n_rows * row_stride;
        if !self.kept_rows.as_ref().is_some_and(is_kept) {
            let values = self.read_values(&source, first, n_rows * row_stride)?;
            self.kept_rows = Some(KeptRows { buffer, values });
        }
        let kept = self.kept_rows.as_ref().map_or(&[][..], |kept| &kept.values);
        target.copy_from_slice(&kept[row_idx * row_stride..][..target.len()]);
        Ok(())
    }
}

/// An index that a kernel wrote as a float: exact, since no layer has 2^24 experts.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a whole number; what is none becomes one that is checked"
)]
fn index_of(value: f32) -> usize {
    value as usize
}
