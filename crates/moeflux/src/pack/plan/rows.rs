//! Reads rows of a stored matrix as f32, rounded as in mlx-lm before quantisation.
//!
//! **Invariant:** all values returned are finite. FP8 is rounded to bf16 first, then every value to
//! the type that the model's config declares. Operates on single matrices.

use std::ops::Range;

use half::{bf16, f16};
use moeflux_kernels::{FloatKind, Matrix, MatrixKind, MatrixLayout, decode_row};

use crate::error::{Error, Result};
use crate::pack::source::SourceFiles;
use crate::weights::FileExtent;

/// A matrix of floats, FP8 or GGUF blocks in a source's files.
#[derive(Clone, Debug)]
pub(in crate::pack) struct FloatRows {
    /// Name of the tensor, for messages.
    pub(in crate::pack) name: String,
    /// Kind, rows and columns as stored.
    pub(in crate::pack) layout: MatrixLayout,
    /// Place of all values.
    pub(in crate::pack) codes: FileExtent,
    /// Place of the scales of FP8.
    pub(in crate::pack) scales: Option<FileExtent>,
    /// Type to which values are rounded.
    pub(in crate::pack) cast: FloatKind,
}

impl FloatRows {
    /// Returns the stored bytes per row.
    pub(in crate::pack) fn row_bytes(&self) -> usize {
        self.layout.row_bytes()
    }

    /// Loads the values of some rows.
    ///
    /// # Errors
    ///
    /// If they cannot be read, or a value is NaN or infinite.
    pub(in crate::pack) fn load(
        &self,
        files: &SourceFiles,
        rows: &Range<usize>,
    ) -> Result<Vec<f32>> {
        let n_cols = self.layout.n_cols;
        // FP8 blocks begin at multiples of their row count.
        let first = match self.layout.kind {
            MatrixKind::Fp8(fp8) => fp8.first_row_with(rows.start),
            MatrixKind::Float(_) | MatrixKind::Affine(_) | MatrixKind::Block(_) => rows.start,
        };
        let layout = MatrixLayout { n_rows: rows.end - first, ..self.layout };
        let [codes_at, scales_at, _] = self.layout.bytes_of_rows(&(first..rows.end));
        let mut codes = vec![0; codes_at.len()];
        let skipped = codes_at.start as u64;
        files.read(self.codes.file_idx, self.codes.offset_bytes + skipped, &mut codes)?;
        let mut scales = vec![0; scales_at.len()];
        if let Some(extent) = self.scales {
            let skipped = scales_at.start as u64;
            files.read(extent.file_idx, extent.offset_bytes + skipped, &mut scales)?;
        }
        let matrix = Matrix::new(layout, &codes, &scales, &[]);
        let mut values = vec![0.0; rows.len() * n_cols];
        for (row_idx, row) in values.chunks_exact_mut(n_cols).enumerate() {
            decode_row(&matrix, rows.start - first + row_idx, row);
        }
        self.round(&mut values);
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(values),
            Some(value_idx) => Err(Error::tensor(
                &self.name,
                format!(
                    "value {} is NaN or infinite and cannot be quantised: the file is damaged; \
                     download it again",
                    rows.start * n_cols + value_idx
                ),
            )),
        }
    }

    fn round(&self, values: &mut [f32]) {
        let stored = match self.layout.kind {
            MatrixKind::Float(kind) => kind,
            MatrixKind::Fp8(_) => {
                round_to(FloatKind::Bf16, values);
                FloatKind::Bf16
            }
            MatrixKind::Block(_) => FloatKind::F32,
            MatrixKind::Affine(_) => unreachable!("`{}` is quantised already", self.name),
        };
        if stored != self.cast {
            round_to(self.cast, values);
        }
    }
}

fn round_to(kind: FloatKind, values: &mut [f32]) {
    match kind {
        FloatKind::F32 => {}
        FloatKind::F16 => values.iter_mut().for_each(|it| *it = f16::from_f32(*it).to_f32()),
        FloatKind::Bf16 => values.iter_mut().for_each(|it| *it = bf16::from_f32(*it).to_f32()),
    }
}
