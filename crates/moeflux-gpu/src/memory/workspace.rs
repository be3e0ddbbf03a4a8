//! The activation buffers of a model in one storage buffer, followed by scratch memory.
//!
//! **Invariant:** an assigned place never changes: the buffer only grows at its end. Rows begin at
//! multiples of four values.

use std::collections::HashMap;

use moeflux::provider::error::{Error, Remedy, Result};
use moeflux::provider::ids::BufferId;
use moeflux::provider::ops::{Heads, N_OUTPUTS_MAX, RowSet, Workspace};

use crate::device::Gpu;
use crate::memory::STORAGE;
use crate::params::{View, narrow};

/// Inverse of the upper bound on scratch, as a fraction of the model's own activations.
const SCRATCH_SHARE: u64 = 2;

/// An activation buffer: its location in the workspace, and its shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActivationBuffer {
    pub(crate) first: u32,
    pub(crate) row_stride: u32,
    pub(crate) n_cols: usize,
    pub(crate) rows: RowSet,
}

/// All activations.
#[derive(Debug)]
pub(crate) struct DeviceWorkspace {
    pub(crate) buffer: wgpu::Buffer,
    pub(crate) n_rows_max: usize,
    activations: Vec<ActivationBuffer>,
    scratch: HashMap<(&'static str, RowSet), (u32, View)>,
    /// Number of assigned values.
    n_values: u64,
    /// Rows swapped out of each buffer, and the memory for the next swap.
    swapped: HashMap<usize, [wgpu::Buffer; 2]>,
}

impl DeviceWorkspace {
    /// Allocates a workspace for steps of at most `n_rows_max` rows, or of fewer if the adapter's
    /// limit is reached.
    pub(crate) fn new(gpu: &Gpu, workspace: &Workspace, n_rows_max: usize) -> Result<Self> {
        let mut n_rows_max = n_rows_max.min(gpu.n_groups_max() as usize);
        let limit_bytes = gpu.storage_bytes_max() / (SCRATCH_SHARE + 1) * SCRATCH_SHARE;
        while n_rows_max > 1 && activations_for(workspace, n_rows_max).1 * 4 > limit_bytes {
            n_rows_max = n_rows_max.div_ceil(2);
        }
        let (activations, n_values) = activations_for(workspace, n_rows_max);
        if n_values > gpu.storage_bytes_max() / 4 {
            let problem = format!(
                "one row of activations takes {} bytes, but kernels can address at most {}",
                n_values * 4,
                gpu.storage_bytes_max()
            );
            return Err(gpu.error(&problem));
        }
        let buffer = gpu.buffer("the activations of a step", n_values * 4, STORAGE)?;
        Ok(Self {
            buffer,
            n_rows_max,
            activations,
            scratch: HashMap::new(),
            n_values,
            swapped: HashMap::new(),
        })
    }

    pub(crate) fn activation(&self, buffer: BufferId) -> ActivationBuffer {
        self.activations[buffer.0]
    }

    pub(crate) fn view(&self, heads: &Heads) -> View {
        let activation = self.activation(heads.buffer);
        View {
            first: activation.first + narrow(heads.first_col),
            row_stride: activation.row_stride,
            head_stride: narrow(heads.stride),
        }
    }

    /// Returns `n_cols` values per row of a set, used by kernels only. Requests with the same name
    /// and set share them.
    pub(crate) fn scratch(
        &mut self,
        gpu: &Gpu,
        name: &'static str,
        (n_cols, rows): (u32, RowSet),
    ) -> Result<View> {
        let known = self.scratch.get(&(name, rows)).filter(|(known_cols, _)| *known_cols >= n_cols);
        if let Some(&(_, view)) = known {
            return Ok(view);
        }
        let row_stride = n_cols.next_multiple_of(4);
        let n_rows = match rows {
            RowSet::All => self.n_rows_max,
            RowSet::Outputs => N_OUTPUTS_MAX,
        };
        let n_new = u64::from(row_stride) * n_rows as u64;
        let first = self.n_values;
        let n_values = first + n_new;
        if n_values > gpu.storage_bytes_max() / 4 {
            return Err(Error::NoRoom {
                what: format!("activations of {} rows on {}", self.n_rows_max, gpu.facts().name),
                needed_bytes: n_values * 4,
                available_bytes: Some(gpu.storage_bytes_max()),
                needs: Vec::new(),
                remedy: Remedy::SmallerSteps,
            });
        }
        self.n_values = n_values;
        let first = u32::try_from(first).expect("places in a buffer fit 32 bits");
        let view = View { first, row_stride, head_stride: row_stride };
        self.scratch.insert((name, rows), (n_cols, view));
        Ok(view)
    }

    /// Exchanges the first rows of a buffer with those exchanged before, or with zeros.
    pub(crate) fn swap_rows(
        &mut self,
        (gpu, encoder): (&Gpu, &mut wgpu::CommandEncoder),
        buffer: BufferId,
        n_rows: usize,
    ) -> Result<()> {
        let activation = self.activation(buffer);
        let n_bytes = 4 * u64::from(activation.row_stride) * n_rows as u64;
        let at_bytes = 4 * u64::from(activation.first);
        let known = self.swapped.get(&buffer.0);
        if known.is_none_or(|[swapped, _]| swapped.size() < n_bytes) {
            let made = || gpu.buffer("rows set aside", n_bytes, STORAGE);
            self.swapped.insert(buffer.0, [made()?, made()?]);
        }
        let Some([kept, next]) = self.swapped.get_mut(&buffer.0) else {
            unreachable!("both were made")
        };
        encoder.copy_buffer_to_buffer(&self.buffer, at_bytes, next, 0, n_bytes);
        encoder.copy_buffer_to_buffer(kept, 0, &self.buffer, at_bytes, n_bytes);
        std::mem::swap(kept, next);
        Ok(())
    }

    /// Writes the first rows of a buffer before the next submission: `[n_rows, n_cols]`.
    pub(crate) fn write_rows(&self, gpu: &Gpu, buffer: BufferId, values: &[f32]) {
        let activation = self.activation(buffer);
        let row_stride = activation.row_stride as usize;
        // Rows without padding follow one another.
        let is_dense = row_stride == activation.n_cols;
        let n_at_once = if is_dense { values.len().max(1) } else { activation.n_cols };
        for (idx, values) in values.chunks(n_at_once).enumerate() {
            let first = u64::from(activation.first) + (idx * row_stride) as u64;
            gpu.queue().write_buffer(&self.buffer, 4 * first, bytemuck::cast_slice(values));
        }
    }

    /// Returns a larger buffer, if assigned places exceed the current one.
    pub(crate) fn grown(&self, gpu: &Gpu) -> Result<Option<wgpu::Buffer>> {
        let needed_bytes = self.n_values * 4;
        if needed_bytes <= self.buffer.size() {
            return Ok(None);
        }
        gpu.buffer("the activations of a step", needed_bytes, STORAGE).map(Some)
    }
}

fn activations_for(workspace: &Workspace, n_rows_max: usize) -> (Vec<ActivationBuffer>, u64) {
    let mut n_values = 0_u64;
    let mut activations = Vec::new();
    for spec in workspace.buffers() {
        let row_stride = spec.n_cols.next_multiple_of(4);
        // A size beyond 32 bits is refused before a place is used.
        let first = u32::try_from(n_values).unwrap_or(u32::MAX);
        let (row_stride_words, n_cols, rows) = (narrow(row_stride), spec.n_cols, spec.rows);
        activations.push(ActivationBuffer { first, row_stride: row_stride_words, n_cols, rows });
        n_values += (row_stride * spec.n_rows(n_rows_max)) as u64;
    }
    (activations, n_values)
}
