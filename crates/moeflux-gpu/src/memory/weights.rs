//! Resident weights on the device: matrices in arenas, vectors in a separate buffer.
//!
//! A matrix is stored as in its file: codes, scales, biases, each part at a multiple of
//! [`PART_ALIGN`] bytes. A matrix larger than a binding is cut into slices by rows. **Invariant:**
//! a slice lies in one arena, and begins at a multiple of [`SLICE_ROWS`] rows.

use moeflux::provider::error::Result;
use moeflux::provider::ids::{MatrixId, VectorId};
use moeflux::provider::weights::Weights;
use moeflux_kernels::{Fp8, Fp8Spread, Matrix, MatrixKind, MatrixLayout};

use crate::device::Gpu;
use crate::memory::{STORAGE, codebooks};
use crate::params::narrow;

/// Alignment of parts: rows of common widths begin at a memory transaction of the device.
pub(crate) const PART_ALIGN: u64 = 256;

/// Row alignment of slices, so that neither a block of FP8 scales nor a tile of rows is cut.
const SLICE_ROWS: usize = 128;

/// Rows of a matrix in one arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatrixSlice {
    /// Index of the arena: see [`crate::step::DispatchStep::weights`].
    pub(crate) arena: usize,
    /// First row of the matrix in this slice.
    pub(crate) first_row: u32,
    /// Number of rows.
    pub(crate) n_rows: u32,
    /// Offset of the codes or values of the first row, in words of 4 bytes; a multiple of 64.
    pub(crate) codes: u32,
    /// Offset of its scales.
    pub(crate) scales: u32,
    /// Offset of its biases.
    pub(crate) biases: u32,
}

/// A matrix on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceMatrix {
    /// Kind and full shape.
    pub(crate) layout: MatrixLayout,
    /// The slices, usually one.
    pub(crate) slices: Vec<MatrixSlice>,
}

#[derive(Debug)]
pub(crate) struct WeightArena {
    pub(crate) buffer: wgpu::Buffer,
    pub(crate) bind_group: wgpu::BindGroup,
}

/// All resident weights.
#[derive(Debug)]
pub(crate) struct DeviceWeights {
    pub(crate) arenas: Vec<WeightArena>,
    pub(crate) vectors: wgpu::Buffer,
    matrices: Vec<DeviceMatrix>,
    vectors_at: Vec<u32>,
}

impl DeviceWeights {
    /// Copies all weights to the device.
    pub(crate) fn upload(gpu: &Gpu, weights: &Weights) -> Result<Self> {
        let (n_matrices, n_vectors) = weights.counts();
        let layouts = (0..n_matrices).map(|idx| weights.matrix(MatrixId(idx)).layout());
        let (matrices, arena_bytes) = placed(layouts, gpu.storage_bytes_max());
        let mut arenas = Vec::with_capacity(arena_bytes.len());
        for n_bytes in arena_bytes {
            let buffer = gpu.buffer("resident weights", n_bytes, STORAGE)?;
            let bind_group = bind(gpu, &buffer);
            arenas.push(WeightArena { buffer, bind_group });
        }
        for (idx, placed) in matrices.iter().enumerate() {
            let matrix = weights.matrix(MatrixId(idx));
            for slice in &placed.slices {
                upload_slice(gpu, (&matrix, slice), &arenas[slice.arena].buffer)?;
            }
        }
        let (mut values, mut vectors_at) = (codebooks::values(), Vec::new());
        for idx in 0..n_vectors {
            vectors_at.push(narrow(values.len()));
            values.extend_from_slice(weights.vector(VectorId(idx)));
            values.resize(values.len().next_multiple_of(4), 0.0);
        }
        let vectors = gpu.buffer("norms and biases", (values.len() * 4) as u64, STORAGE)?;
        gpu.upload(&vectors, 0, bytemuck::cast_slice(&values))?;
        gpu.queue().submit([]);
        gpu.wait()?;
        Ok(Self { arenas, vectors, matrices, vectors_at })
    }

    pub(crate) fn matrix(&self, id: MatrixId) -> &DeviceMatrix {
        &self.matrices[id.0]
    }

    pub(crate) fn vector(&self, id: VectorId) -> u32 {
        self.vectors_at[id.0]
    }
}

/// Binds a buffer as group 1.
pub(crate) fn bind(gpu: &Gpu, buffer: &wgpu::Buffer) -> wgpu::BindGroup {
    gpu.device().create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &gpu.layouts().weights,
        entries: &[wgpu::BindGroupEntry { binding: 0, resource: buffer.as_entire_binding() }],
    })
}

/// Binds two buffers of slots as group 1, and the counters of expert uses from `uses_at` on.
pub(crate) fn bind_tiers(
    gpu: &Gpu,
    [near, far]: [&wgpu::Buffer; 2],
    (uses, uses_at): (&wgpu::Buffer, u64),
) -> wgpu::BindGroup {
    let counted = wgpu::BufferBinding { buffer: uses, offset: uses_at, size: None };
    let resources =
        [near.as_entire_binding(), far.as_entire_binding(), wgpu::BindingResource::Buffer(counted)];
    let entries = (0..).zip(resources);
    let entries: Vec<_> =
        entries.map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource }).collect();
    gpu.device().create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &gpu.layouts().tiers,
        entries: &entries,
    })
}

fn upload_slice(
    gpu: &Gpu,
    (matrix, slice): (&Matrix<'_>, &MatrixSlice),
    buffer: &wgpu::Buffer,
) -> Result<()> {
    let (first_row, n_rows) = (slice.first_row as usize, slice.n_rows as usize);
    let layout = matrix.layout();
    let part = PartBytes::of(layout);
    for (bytes, at, first, n) in [
        (matrix.codes(), slice.codes, part.codes(first_row), part.codes(n_rows)),
        (matrix.scales(), slice.scales, part.scales_at(first_row), part.scales(n_rows)),
        (matrix.biases(), slice.biases, part.biases(first_row), part.biases(n_rows)),
    ] {
        gpu.upload(buffer, u64::from(at) * 4, &bytes[first..first + n])?;
    }
    Ok(())
}

/// Sizes of the parts of some rows, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartBytes(MatrixLayout);

impl PartBytes {
    pub(crate) const fn of(layout: MatrixLayout) -> Self {
        Self(layout)
    }

    fn codes(self, n_rows: usize) -> usize {
        n_rows * self.0.row_bytes()
    }

    fn scales(self, n_rows: usize) -> usize {
        match self.0.kind {
            MatrixKind::Fp8(fp8) => {
                let n_scales = fp8.scales_per_row(self.0.n_cols);
                n_rows.div_ceil(fp8.rows_per_scale()) * n_scales * fp8.scale.bytes()
            }
            MatrixKind::Affine(_) | MatrixKind::Float(_) | MatrixKind::Block(_) => {
                n_rows * (self.0.scale_bytes() / self.0.n_rows)
            }
        }
    }

    /// Returns the offset of the scales of a slice, which begins at a block boundary of FP8.
    fn scales_at(self, first_row: usize) -> usize {
        match self.0.kind {
            MatrixKind::Fp8(Fp8 { spread: Fp8Spread::Matrix, .. }) => 0,
            _ => self.scales(first_row),
        }
    }

    fn biases(self, n_rows: usize) -> usize {
        n_rows * (self.0.bias_bytes() / self.0.n_rows)
    }

    /// Returns the offsets of scales, biases and the end of some rows, in bytes from the codes.
    pub(crate) fn places(self, n_rows: usize) -> [u64; 3] {
        let scales = (self.codes(n_rows) as u64).next_multiple_of(PART_ALIGN);
        let biases = (scales + self.scales(n_rows) as u64).next_multiple_of(PART_ALIGN);
        let end = (biases + self.biases(n_rows) as u64).next_multiple_of(PART_ALIGN);
        [scales, biases, end]
    }
}

/// Assigns each matrix a place in arenas of at most `arena_bytes_max` bytes. A matrix begins a new
/// arena if the current one cannot hold it whole, and is cut only if none could.
fn placed(
    layouts: impl Iterator<Item = MatrixLayout>,
    arena_bytes_max: u64,
) -> (Vec<DeviceMatrix>, Vec<u64>) {
    let mut arenas: Vec<u64> = Vec::new();
    let mut matrices = Vec::new();
    for layout in layouts {
        let part = PartBytes::of(layout);
        let mut n_rows_most = layout.n_rows;
        while part.places(n_rows_most)[2] > arena_bytes_max {
            n_rows_most = n_rows_most.div_ceil(2).next_multiple_of(SLICE_ROWS);
        }
        let mut slices = Vec::new();
        let mut first_row = 0;
        while first_row < layout.n_rows {
            let n_rows = n_rows_most.min(layout.n_rows - first_row);
            let [scales, biases, end] = part.places(n_rows);
            let fits = |used: &u64| *used + end <= arena_bytes_max;
            let begin = arenas.last().copied().filter(fits);
            if begin.is_none() {
                arenas.push(0);
            }
            let codes = begin.unwrap_or(0);
            let arena = arenas.len() - 1;
            let words =
                |bytes: u64| narrow(usize::try_from((codes + bytes) / 4).unwrap_or(usize::MAX));
            let (codes, scales, biases) = (words(0), words(scales), words(biases));
            let (first, n) = (narrow(first_row), narrow(n_rows));
            slices.push(MatrixSlice { arena, first_row: first, n_rows: n, codes, scales, biases });
            arenas[arena] = begin.unwrap_or(0) + end;
            first_row += n_rows;
        }
        matrices.push(DeviceMatrix { layout, slices });
    }
    (matrices, arenas)
}

#[cfg(test)]
mod tests {
    use moeflux_kernels::{Affine, BlockKind, FloatKind};

    use super::*;

    fn layout(kind: MatrixKind, n_rows: usize, n_cols: usize) -> MatrixLayout {
        MatrixLayout::new(kind, n_rows, n_cols).unwrap()
    }

    #[test]
    fn parts_do_not_overlap_and_large_matrices_are_cut_by_rows() {
        let four = MatrixKind::Affine(Affine::new(4, 64, FloatKind::Bf16));
        let layouts = [
            layout(four, 300, 128),
            layout(MatrixKind::Fp8(Fp8::DEEPSEEK), 1000, 200),
            layout(MatrixKind::Float(FloatKind::F16), 7, 3),
            layout(MatrixKind::Block(BlockKind::Q6_K), 333, 256),
        ];
        let limit = 64 << 10;
        let (matrices, arenas) = placed(layouts.into_iter(), limit);
        assert!(arenas.iter().all(|used| *used <= limit), "{arenas:?}");
        let mut spans = Vec::new();
        for (matrix, layout) in matrices.iter().zip(layouts) {
            assert_eq!(matrix.layout, layout);
            let mut next_row = 0;
            for slice in &matrix.slices {
                assert_eq!(slice.first_row, next_row, "rows follow each other");
                assert!(slice.first_row.is_multiple_of(128));
                next_row += slice.n_rows;
                let part = PartBytes::of(layout);
                let n_rows = slice.n_rows as usize;
                for (at, n_bytes) in [
                    (slice.codes, part.codes(n_rows)),
                    (slice.scales, part.scales(n_rows)),
                    (slice.biases, part.biases(n_rows)),
                ] {
                    assert!(at.is_multiple_of(64));
                    spans.push((slice.arena, at as usize * 4, at as usize * 4 + n_bytes));
                }
            }
            assert_eq!(next_row as usize, layout.n_rows);
        }
        assert!(matrices[1].slices.len() > 1, "200,000 bytes do not fit 64 KiB");
        assert!(matrices[3].slices.len() > 1, "69,930 bytes neither");
        assert_eq!((matrices[0].slices.len(), matrices[2].slices.len()), (1, 1));
        spans.sort_unstable();
        for pair in spans.windows(2) {
            assert!(pair[0].0 < pair[1].0 || pair[0].2 <= pair[1].1, "{pair:?} overlap");
        }
        for (arena, _, end) in spans {
            assert!(end as u64 <= arenas[arena]);
        }
    }
}
