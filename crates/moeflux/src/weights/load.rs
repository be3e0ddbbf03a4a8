//! Reads the resident tensors of a manifest into owned memory.
//!
//! **Invariant:** what comes out is whole and its scales and vectors are finite, or it is an error.
//! Plain values and codes are not searched: a matrix of gigabytes is read at the drive's speed.

use std::ops::{ControlFlow, Range};

use half::{bf16, f16};
use moeflux_io::available_memory_bytes;
use moeflux_kernels::{FP8_BLOCK, FloatKind, MatrixKind};

use crate::error::Result;
use crate::format::Checkpoint;
use crate::ids::ExpertIdx;
use crate::weights::files::{
    Copies, Files, Meter, Watch, check_room, first_non_finite, part_error,
};
use crate::weights::manifest::{
    Extent, Manifest, MatrixSource, Origin, StoredVector, VectorSource,
};
use crate::weights::resident::{OwnedMatrix, Weights};

/// Reads the resident tensors.
///
/// # Errors
///
/// [`crate::error::Error::NoRoom`] before anything is allocated; when a file changed or cannot be
/// read; when a scale or a vector is not finite; [`crate::error::Error::Cancelled`].
///
/// # Panics
///
/// If the manifest is of an imagined checkpoint.
pub fn load(
    manifest: &Manifest,
    checkpoint: &Checkpoint,
    copies: Copies,
    watch: &mut Watch<'_>,
) -> Result<Weights> {
    assert!(manifest.origin == Origin::Checkpoint, "imagined weights cannot be read");
    let needed_bytes = manifest.resident_bytes();
    check_room("the resident weights", needed_bytes, available_memory_bytes())?;
    let files = Files::open(checkpoint)?.with_copies(copies);
    let mut meter = Meter::new(stored_bytes(manifest), watch)?;
    let mut weights = Weights::default();
    for source in &manifest.matrices {
        weights.push_matrix(read_matrix(source, &files, &mut meter)?);
    }
    for source in &manifest.vectors {
        weights.push_vector(match source {
            VectorSource::Stored(stored) => read_vector(stored, &files, &mut meter)?,
            VectorSource::Constant(values) => values.clone(),
        });
    }
    Ok(weights)
}

/// The first bytes of each part of the first and the last expert of each layer, at most `n_bytes`
/// of each.
///
/// # Errors
///
/// When they cannot be read.
pub(crate) fn expert_samples(
    manifest: &Manifest,
    checkpoint: &Checkpoint,
    n_bytes: usize,
) -> Result<Vec<Vec<u8>>> {
    let files = Files::open(checkpoint)?.with_copies(Copies::Dropped);
    let watch = &mut |_| ControlFlow::Continue(());
    let mut meter = Meter::new(0, watch)?;
    let mut samples = Vec::new();
    for bank in &manifest.banks {
        for expert in [ExpertIdx(0), ExpertIdx(bank.n_experts - 1)] {
            for part in &bank.parts {
                let extent = part.extent(expert);
                let mut sample = vec![0; part.len_bytes.min(n_bytes)];
                files.read(extent.file_idx, extent.offset_bytes, &mut sample, &mut meter)?;
                samples.push(sample);
            }
        }
    }
    Ok(samples)
}

fn stored_bytes(manifest: &Manifest) -> u64 {
    let matrices = manifest.matrices.iter().map(|matrix| matrix.layout.total_bytes() as u64);
    let vectors = manifest.vectors.iter().map(|vector| match vector {
        VectorSource::Stored(stored) => stored.extent.len_bytes,
        VectorSource::Constant(_) => 0,
    });
    matrices.sum::<u64>() + vectors.sum::<u64>()
}

/// One part of a matrix in a file: units of so many rows.
struct Part<'a> {
    name: String,
    /// `None`: the kind has no such part.
    extent: Option<Extent>,
    rows_per_unit: usize,
    unit_bytes: usize,
    /// Of scales and biases, which are searched for what is not finite.
    searched: Option<FloatKind>,
    target: &'a mut [u8],
}

fn read_matrix(
    source: &MatrixSource,
    files: &Files<'_>,
    meter: &mut Meter<'_, '_>,
) -> Result<OwnedMatrix> {
    let mut matrix = OwnedMatrix::zeroed(source.layout)?;
    let layout = source.layout;
    let (rows_per_unit, scale_kind, scales_name) = match layout.kind {
        MatrixKind::Float(kind) => (1, kind, ""),
        MatrixKind::Fp8Block => (FP8_BLOCK, FloatKind::F32, "weight_scale_inv"),
        MatrixKind::Affine(affine) => (1, affine.scale, "scales"),
    };
    let unit_bytes = layout.scale_bytes() / layout.n_rows.div_ceil(rows_per_unit);
    let (codes, scales, biases) = matrix.parts_mut();
    let name = |part: &str| format!("{}.{part}", source.name);
    let codes = Part {
        name: name("weight"),
        extent: Some(source.codes),
        rows_per_unit: 1,
        unit_bytes: layout.row_bytes(),
        searched: None,
        target: codes,
    };
    let searched = Some(scale_kind);
    let scales = Part {
        name: name(scales_name),
        extent: source.scales,
        rows_per_unit,
        unit_bytes,
        searched,
        target: scales,
    };
    let biases = Part {
        name: name("biases"),
        extent: source.biases,
        rows_per_unit,
        unit_bytes,
        searched,
        target: biases,
    };
    for part in [codes, scales, biases] {
        read_part(part, &source.rows, files, meter)?;
    }
    Ok(matrix)
}

/// Gathers the wanted rows of a part, one range after the other.
fn read_part(
    part: Part<'_>,
    rows: &[Range<usize>],
    files: &Files<'_>,
    meter: &mut Meter<'_, '_>,
) -> Result<()> {
    let Part { name, extent, rows_per_unit, unit_bytes, searched, target } = part;
    let Some(extent) = extent else {
        assert!(target.is_empty(), "`{name}` has no extent");
        return Ok(());
    };
    let mut filled = 0;
    for range in rows {
        let skip_bytes = (range.start / rows_per_unit * unit_bytes) as u64;
        let n_bytes = range.len().div_ceil(rows_per_unit) * unit_bytes;
        assert!(skip_bytes + n_bytes as u64 <= extent.len_bytes, "`{name}` has rows {range:?}");
        let chunk = &mut target[filled..][..n_bytes];
        files.read(extent.file_idx, extent.offset_bytes + skip_bytes, chunk, meter)?;
        filled += n_bytes;
        let Some(kind) = searched else { continue };
        if let Some(value_idx) = first_non_finite(chunk, kind) {
            return Err(part_error(&name, skip_bytes / kind.bytes() as u64 + value_idx as u64));
        }
    }
    assert_eq!(filled, target.len(), "rows of `{name}`");
    Ok(())
}

fn read_vector(
    stored: &StoredVector,
    files: &Files<'_>,
    meter: &mut Meter<'_, '_>,
) -> Result<Vec<f32>> {
    let mut bytes = vec![0; stored.n_values * stored.kind.bytes()];
    files.read(stored.extent.file_idx, stored.extent.offset_bytes, &mut bytes, meter)?;
    if let Some(value_idx) = first_non_finite(&bytes, stored.kind) {
        return Err(part_error(&stored.name, value_idx as u64));
    }
    let mut values = widened(&bytes, stored.kind);
    if stored.adds_one {
        values.iter_mut().for_each(|value| *value += 1.0);
    }
    Ok(values)
}

fn widened(bytes: &[u8], kind: FloatKind) -> Vec<f32> {
    match kind {
        FloatKind::F32 => {
            let values = bytes.chunks_exact(4);
            values.map(|it| f32::from_le_bytes([it[0], it[1], it[2], it[3]])).collect()
        }
        FloatKind::F16 => {
            bytes.chunks_exact(2).map(|it| f16::from_le_bytes([it[0], it[1]]).to_f32()).collect()
        }
        FloatKind::Bf16 => {
            bytes.chunks_exact(2).map(|it| bf16::from_le_bytes([it[0], it[1]]).to_f32()).collect()
        }
    }
}
