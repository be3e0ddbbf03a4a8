//! Executes a piece of work and returns its bytes.
//!
//! **Invariant:** pure apart from reading; results are concatenated, with the lengths of the job's
//! output ranges.

use moeflux_kernels::{MatrixKind, MatrixLayout};

use crate::error::Result;
use crate::pack::plan::file::{InputPiece, OutputRange, PackJob};
use crate::pack::source::SourceFiles;
use crate::pack::write::quantise::{AffineTarget, quantise, store};

/// Executes a job.
///
/// # Errors
///
/// If the source cannot be read or has a value that cannot be quantised.
pub(in crate::pack) fn compute(job: &PackJob, files: &SourceFiles) -> Result<Vec<u8>> {
    let mut out = vec![0; job.outputs.iter().map(|output| OutputRange::len(*output)).sum()];
    match &job.piece {
        InputPiece::Copied(extent) => files.read(extent.file_idx, extent.offset_bytes, &mut out)?,
        InputPiece::Deinterleaved { extent, row_bytes } => {
            let mut rows = vec![0; out.len()];
            files.read(extent.file_idx, extent.offset_bytes, &mut rows)?;
            deinterleave(&rows, *row_bytes, &mut out);
        }
        InputPiece::Rows { rows, range, layout } => {
            emit(&rows.load(files, range)?, *layout, &mut out);
        }
        InputPiece::Columns { rows, range, layout } => {
            let values = rows.load(files, range)?;
            emit(&transposed(&values, rows.layout.n_cols), *layout, &mut out);
        }
        InputPiece::Blocks { table, shape, blocks } => {
            let own_rows = shape.rows_of(blocks, table.n_rows);
            let mut rows = Vec::new();
            for extent in table.extents(&own_rows) {
                let begin = rows.len();
                let n_bytes = usize::try_from(extent.len_bytes).expect("a piece fits in memory");
                rows.resize(begin + n_bytes, 0);
                files.read(extent.file_idx, extent.offset_bytes, &mut rows[begin..])?;
            }
            let targets = out.chunks_exact_mut(shape.block_bytes);
            let of_blocks = rows.chunks(shape.n_rows * shape.row_bytes);
            for ((block, rows), target) in blocks.clone().zip(of_blocks).zip(targets) {
                shape.fill(block, rows, target);
            }
        }
    }
    Ok(out)
}

/// Writes quantised weights, scales and biases, or plain values.
fn emit(values: &[f32], layout: MatrixLayout, out: &mut [u8]) {
    assert_eq!(values.len(), layout.n_rows * layout.n_cols, "values of {layout:?}");
    match layout.kind {
        MatrixKind::Affine(affine) => {
            let (codes, rest) = out.split_at_mut(layout.code_bytes());
            let (scales, biases) = rest.split_at_mut(layout.scale_bytes());
            quantise(values, affine, AffineTarget { codes, scales, biases });
        }
        MatrixKind::Float(kind) => {
            let targets = out.chunks_exact_mut(kind.bytes());
            values.iter().zip(targets).for_each(|(value, target)| store(*value, kind, target));
        }
        MatrixKind::Fp8(_) | MatrixKind::Block(_) => {
            unreachable!("nothing is written as {}", layout.kind)
        }
    }
}

/// Writes rows at even places, then those at odd places.
fn deinterleave(rows: &[u8], row_bytes: usize, out: &mut [u8]) {
    let (even, odd) = out.split_at_mut(rows.len() / 2);
    let targets = even.chunks_exact_mut(row_bytes).zip(odd.chunks_exact_mut(row_bytes));
    for (pair, (even, odd)) in rows.chunks_exact(2 * row_bytes).zip(targets) {
        let (first, second) = pair.split_at(row_bytes);
        even.copy_from_slice(first);
        odd.copy_from_slice(second);
    }
}

fn transposed(values: &[f32], n_cols: usize) -> Vec<f32> {
    let columns = (0..n_cols).map(|col| values.iter().skip(col).step_by(n_cols));
    columns.flatten().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_take_turns_are_taken_apart() {
        let mut out = [0; 12];
        deinterleave(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], 3, &mut out);
        assert_eq!(out, [1, 2, 3, 7, 8, 9, 4, 5, 6, 10, 11, 12]);
    }

    #[test]
    fn rows_become_columns() {
        assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
