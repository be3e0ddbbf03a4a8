//! Reads results back from the device: the router's choice and guess, and rows of a buffer.
//!
//! **Invariant:** a read value reflects all commands recorded before.

use moeflux::provider::error::Result;
use moeflux::provider::ids::BufferId;
use moeflux::provider::ops::Routes;

use super::GpuBackend;
use super::routing::PendingGuess;
use crate::device::read_back::BufferRange;

impl GpuBackend {
    pub(super) fn read(&mut self, ranges: &[BufferRange<'_>], target: &mut [u8]) -> Result<()> {
        if target.is_empty() {
            return Ok(());
        }
        self.record_pending();
        let coming = self.read_back.begin(&mut self.recorder, ranges)?;
        self.memory.submitted();
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
        if let Some(guess) = self.routing.take_guess() {
            let source = self.memory.workspace.buffer.clone();
            let values = self.read_values(&source, guess.view.first as usize, guess.n_values())?;
            self.routing.store_guess(&self.gpu, guess, &values)?;
        }
        Ok(self.routing.guessed())
    }

    pub(super) fn read_routes(&mut self) -> Result<&Routes> {
        if self.routing.is_on_host() {
            return Ok(self.routing.routes());
        }
        // A pending guess is read along with the routes.
        let guess = self.routing.take_guess();
        let n_guessed = guess.as_ref().map_or(0, PendingGuess::n_values);
        let n_words = 2 * self.routing.n_rows() * self.routing.shape().top_k;
        let mut words = vec![0_u32; n_words + n_guessed];
        let chosen = self.memory.route_pairs.clone();
        let workspace = self.memory.workspace.buffer.clone();
        let guessed_at = guess.as_ref().map_or(0, |guess| guess.view.first as usize);
        let ranges = [values_of(&chosen, 0, n_words), values_of(&workspace, guessed_at, n_guessed)];
        let n_ranges = 1 + usize::from(guess.is_some());
        self.read(&ranges[..n_ranges], bytemuck::cast_slice_mut(&mut words))?;
        let (pairs, values) = words.split_at(n_words);
        if let Some(guess) = guess {
            self.routing.store_guess(&self.gpu, guess, bytemuck::cast_slice(values))?;
        }
        self.routing.store_routes(&self.gpu, pairs)?;
        Ok(self.routing.routes())
    }

    /// Reads one row of the last plan's output. All rows are read back at once, on the first call.
    pub(super) fn read_output(
        &mut self,
        buffer: BufferId,
        row_idx: usize,
        target: &mut [f32],
    ) -> Result<()> {
        let activation = self.memory.workspace.activation(buffer);
        assert!(target.len() <= activation.n_cols, "a row has {} columns", activation.n_cols);
        let (first, row_stride) = (activation.first as usize, activation.row_stride as usize);
        let n_rows = self.outputs.n_rows(activation.rows).max(row_idx + 1);
        let source = self.memory.workspace.buffer.clone();
        if n_rows == 1 {
            let range = values_of(&source, first, target.len());
            return self.read(&[range], bytemuck::cast_slice_mut(target));
        }
        let n_values = n_rows * row_stride;
        if self.outputs.values(buffer, n_values).is_none() {
            let values = self.read_values(&source, first, n_values)?;
            self.outputs.keep(buffer, values);
        }
        let values = self.outputs.values(buffer, n_values).expect("the rows were read back");
        target.copy_from_slice(&values[row_idx * row_stride..][..target.len()]);
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
