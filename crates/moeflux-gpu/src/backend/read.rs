//! Reads results back from the device: the router's choice and guess, and rows of a buffer.
//!
//! **Invariant:** a read value reflects all commands recorded before.

use moeflux::provider::error::Result;
use moeflux::provider::ids::{BufferId, ExpertIdx};
use moeflux::provider::ops::{Routes, RowSet};

use super::{GpuBackend, PendingGuess, ReadBackRows, RouterOutput};
use crate::device::read_back::BufferRange;
use crate::kernels::guess_cols;

impl GpuBackend {
    pub(super) fn read(&mut self, ranges: &[BufferRange<'_>], target: &mut [u8]) -> Result<()> {
        if target.is_empty() {
            return Ok(());
        }
        self.record_pending();
        let coming = self.read_back.begin(&mut self.recorder, ranges)?;
        self.batches.submitted();
        self.experts.submitted();
        self.prerecord_next();
        self.read_back.end(&self.gpu, coming, target)
    }

    pub(super) fn read_values(
        &mut self,
        source: &wgpu::Buffer,
        first: usize,
        n: usize,
    ) -> Result<Vec<f32>> {
        let mut values = vec![0.0; n];
        self.read(&[values_of(source, first, n)], bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    /// Reads ranges of a buffer into consecutive positions of `target`. A range is a first value
    /// and a count.
    pub(super) fn read_ranges(
        &mut self,
        source: &wgpu::Buffer,
        firsts_and_counts: &[(usize, usize)],
        target: &mut [f32],
    ) -> Result<()> {
        let ranges = firsts_and_counts.iter().map(|&(first, n)| values_of(source, first, n));
        let ranges: Vec<_> = ranges.collect();
        self.read(&ranges, bytemuck::cast_slice_mut(target))
    }

    pub(super) fn read_guess(&mut self) -> Result<&Routes> {
        if let Some(guess) = self.guess.take() {
            let source = self.workspace.buffer.clone();
            let values = self.read_values(&source, guess.view.first as usize, guess.n_values())?;
            self.store_guess(guess, &values)?;
        }
        Ok(&self.guessed)
    }

    fn store_guess(&mut self, guess: PendingGuess, values: &[f32]) -> Result<()> {
        let PendingGuess { view, shape, .. } = guess;
        let Routes { top_k, experts, weights } = &mut self.guessed;
        *top_k = shape.top_k;
        experts.clear();
        weights.clear();
        for row in values.chunks(view.row_stride as usize) {
            let (named, weighed) = row[..guess_cols(shape.top_k)].split_at(shape.top_k);
            experts.extend(named.iter().map(|it| ExpertIdx(index_of(*it))));
            weights.extend_from_slice(weighed);
        }
        if experts.iter().any(|it| it.0 >= shape.n_experts) {
            return Err(self.gpu.error("its router named an expert that does not exist"));
        }
        Ok(())
    }

    pub(super) fn read_routes(&mut self) -> Result<&Routes> {
        if self.router_output.is_on_host {
            return Ok(&self.routes);
        }
        let RouterOutput { shape, n_rows, .. } = self.router_output;
        // A pending guess is read along with the routes.
        let guess = self.guess.take();
        let n_guessed = guess.as_ref().map_or(0, PendingGuess::n_values);
        let n_words = 2 * n_rows * shape.top_k;
        let mut words = vec![0_u32; n_words + n_guessed];
        let (chosen, workspace) = (self.route_pairs.clone(), self.workspace.buffer.clone());
        let guessed_at = guess.as_ref().map_or(0, |guess| guess.view.first as usize);
        let ranges = [values_of(&chosen, 0, n_words), values_of(&workspace, guessed_at, n_guessed)];
        let n_ranges = 1 + usize::from(guess.is_some());
        self.read(&ranges[..n_ranges], bytemuck::cast_slice_mut(&mut words))?;
        let (pairs, values) = words.split_at(n_words);
        if let Some(guess) = guess {
            self.store_guess(guess, bytemuck::cast_slice(values))?;
        }
        let pairs = pairs.as_chunks::<2>().0.iter();
        let Routes { top_k, experts, weights } = &mut self.routes;
        *top_k = shape.top_k;
        experts.clear();
        experts.extend(pairs.clone().map(|pair| ExpertIdx(pair[0] as usize)));
        weights.clear();
        weights.extend(pairs.map(|pair| f32::from_bits(pair[1])));
        let last = experts.iter().max();
        if last.is_some_and(|it| it.0 >= shape.n_experts) {
            return Err(self.gpu.error("its router chose an expert that does not exist"));
        }
        self.router_output.is_on_host = true;
        Ok(&self.routes)
    }

    /// Reads one row of the last plan's output. All rows are read back at once, on the first call.
    pub(super) fn read_output(
        &mut self,
        buffer: BufferId,
        row_idx: usize,
        target: &mut [f32],
    ) -> Result<()> {
        let activation = self.workspace.activation(buffer);
        assert!(target.len() <= activation.n_cols, "a row has {} columns", activation.n_cols);
        let (first, row_stride) = (activation.first as usize, activation.row_stride as usize);
        let n_rows = match activation.rows {
            RowSet::All => self.last_rows.0,
            RowSet::Outputs => self.last_rows.1,
        };
        let n_rows = n_rows.max(row_idx + 1);
        let source = self.workspace.buffer.clone();
        if n_rows == 1 {
            let range = values_of(&source, first, target.len());
            return self.read(&[range], bytemuck::cast_slice_mut(target));
        }
        let is_kept =
            |kept: &ReadBackRows| kept.buffer == buffer && kept.values.len() >= n_rows * row_stride;
        if !self.rows_read_back.as_ref().is_some_and(is_kept) {
            let values = self.read_values(&source, first, n_rows * row_stride)?;
            self.rows_read_back = Some(ReadBackRows { buffer, values });
        }
        let kept = self.rows_read_back.as_ref().map_or(&[][..], |kept| &kept.values);
        target.copy_from_slice(&kept[row_idx * row_stride..][..target.len()]);
        Ok(())
    }
}

/// Returns the range of `n` values, or words, from `first` on.
const fn values_of(source: &wgpu::Buffer, first: usize, n: usize) -> BufferRange<'_> {
    const VALUE_BYTES: u64 = size_of::<f32>() as u64;
    BufferRange {
        source,
        offset_bytes: first as u64 * VALUE_BYTES,
        n_bytes: n as u64 * VALUE_BYTES,
    }
}

/// Converts an index that a kernel wrote as a float. Exact, since no layer has 2^24 experts.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a whole number; the cast makes any other value one, and it is checked"
)]
fn index_of(value: f32) -> usize {
    value as usize
}
