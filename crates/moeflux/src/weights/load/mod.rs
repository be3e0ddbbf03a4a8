//! Reads the resident tensors of a manifest into owned memory.
//!
//! **Invariant:** the result is complete, and its vectors and scales, including those in blocks,
//! are finite; otherwise there is an error. Plain values and codes are not checked: a matrix of
//! gigabytes is read at the drive's speed.

pub(super) mod fill;

use std::ops::Range;

use moeflux_io::available_memory_bytes;
use moeflux_kernels::MatrixKind;

use crate::error::{Error, Result};
use crate::format::{Checkpoint, CheckpointSums};
use crate::ids::ExpertIdx;
use crate::spec::plain_frequency;
use crate::weights::files::{
    CheckpointFiles, FiniteFormat, PageCaching, ProgressCallback, ProgressMeter, check_room,
    part_error, push_floats,
};
use crate::weights::load::fill::{FiniteCheck, ReadSegment, fill};
use crate::weights::manifest::{
    KnownIntegers, Manifest, ManifestOrigin, MatrixSource, StoredVector, ValueSelection,
    ValueTransform, VectorSource,
};
use crate::weights::resident::{OwnedMatrix, Weights};
use crate::weights::tensors::{FileExtent, PartNames};

/// Reads the resident tensors, and compares them with `sums` if there are any.
///
/// # Errors
///
/// [`crate::error::Error::NoRoom`] if memory is short, which is checked before anything is
/// allocated; [`crate::error::Error::Cancelled`]; also when a file has changed or cannot be read,
/// and when a scale or a vector is not finite.
///
/// # Panics
///
/// If the manifest is of a synthetic checkpoint.
pub fn load(
    manifest: &Manifest,
    checkpoint: &Checkpoint,
    (sums, page_caching): (Option<&CheckpointSums>, PageCaching),
    watch: &mut ProgressCallback<'_>,
) -> Result<Weights> {
    assert!(manifest.origin == ManifestOrigin::Checkpoint, "imagined weights cannot be read");
    let needed_bytes = manifest.resident_bytes();
    check_room("the resident weights", needed_bytes, available_memory_bytes())?;
    let files = CheckpointFiles::open(checkpoint)?.with_sums(sums).with_page_caching(page_caching);
    check_integers(manifest, &files)?;
    let mut meter = ProgressMeter::new(stored_bytes(manifest), watch)?;
    let zeroed = manifest.matrices.iter().map(|source| OwnedMatrix::zeroed(source.layout));
    let mut matrices: Vec<OwnedMatrix> = zeroed.collect::<Result<_>>()?;
    let mut vectors: Vec<Vec<u8>> =
        manifest.vectors.iter().map(|vector| vec![0; vector_bytes(vector)]).collect();
    let part_names =
        |source| part_names(source).map(|name| checkpoint.name_here(&name).into_owned());
    let names: Vec<[String; 3]> = manifest.matrices.iter().map(part_names).collect();
    let mut segments = Vec::new();
    for ((source, matrix), names) in manifest.matrices.iter().zip(&mut matrices).zip(&names) {
        push_matrix((source, matrix), names, &mut segments);
    }
    for (source, bytes) in manifest.vectors.iter().zip(&mut vectors) {
        if let VectorSource::Stored(stored) = source {
            segments.push(vector_segment(stored, bytes));
        }
    }
    fill(segments, &files, &mut meter)?;
    let mut weights = Weights::default();
    for matrix in matrices {
        weights.push_matrix(matrix);
    }
    for (source, bytes) in manifest.vectors.iter().zip(vectors) {
        weights.push_vector(match source {
            VectorSource::Stored(stored) => values_of(stored, &bytes)?,
            VectorSource::Constant(values) => values.clone(),
        });
    }
    Ok(weights)
}

/// Reads the first bytes of each part of the first and the last expert of each layer, at most
/// `n_bytes` of each.
///
/// # Errors
///
/// When they cannot be read.
pub(crate) fn expert_samples(
    manifest: &Manifest,
    checkpoint: &Checkpoint,
    n_bytes: usize,
) -> Result<Vec<Vec<u8>>> {
    let files = CheckpointFiles::open(checkpoint)?.with_page_caching(PageCaching::Dropped);
    let mut samples = Vec::new();
    for bank in &manifest.banks {
        for expert in [ExpertIdx(0), ExpertIdx(bank.n_experts - 1)] {
            for part in &bank.parts {
                let extent = part.extent(expert);
                let mut sample = vec![0; part.len_bytes.min(n_bytes)];
                files.read(extent.file_idx, extent.offset_bytes, &mut sample)?;
                samples.push(sample);
            }
        }
    }
    Ok(samples)
}

/// Reads the first and the last row of each table.
///
/// # Errors
///
/// When they cannot be read.
pub(crate) fn table_samples(manifest: &Manifest, checkpoint: &Checkpoint) -> Result<Vec<Vec<u8>>> {
    let files = CheckpointFiles::open(checkpoint)?.with_page_caching(PageCaching::Dropped);
    let mut samples = Vec::new();
    for table in &manifest.tables {
        for row in [0, table.n_rows as u64 - 1] {
            let place = table.place(row);
            let mut sample = vec![0; table.row_bytes()];
            let at = place.extent.offset_bytes + place.row_at as u64;
            files.read(place.extent.file_idx, at, &mut sample)?;
            samples.push(sample);
        }
    }
    Ok(samples)
}

/// Refuses integers that differ from those that follow from the config.
fn check_integers(manifest: &Manifest, files: &CheckpointFiles<'_>) -> Result<()> {
    for KnownIntegers { name, extent, values } in &manifest.integers {
        let mut bytes = vec![0; size_of_val(&**values)];
        files.read(extent.file_idx, extent.offset_bytes, &mut bytes)?;
        let found = bytes.as_chunks().0.iter().map(|value| i64::from_le_bytes(*value));
        let mut pairs = found.zip(values).enumerate();
        if let Some((idx, (found, value))) = pairs.find(|(_, (found, value))| found != *value) {
            let problem = format!(
                "has {found} at index {idx}, but {value} follows from the config: the file is \
                 damaged, or it belongs to another model"
            );
            return Err(Error::tensor(name, problem));
        }
    }
    Ok(())
}

fn stored_bytes(manifest: &Manifest) -> u64 {
    let matrices = manifest.matrices.iter().map(|matrix| matrix.layout.total_bytes() as u64);
    let vectors = manifest.vectors.iter().map(|vector| vector_bytes(vector) as u64);
    matrices.sum::<u64>() + vectors.sum::<u64>()
}

/// Returns the stored bytes of a vector.
fn vector_bytes(vector: &VectorSource) -> usize {
    match vector {
        VectorSource::Stored(stored) => stored.stored_bytes(),
        VectorSource::Constant(_) => 0,
    }
}

/// One part of a matrix in a file.
struct MatrixPart<'a> {
    name: &'a str,
    /// `None` if the kind has no such part.
    extent: Option<FileExtent>,
    /// Format of scales, biases and blocks, which are checked for non-finite values.
    finite: Option<FiniteFormat>,
    target: &'a mut [u8],
}

/// Returns the names of a matrix's codes, scales and biases for messages.
fn part_names(source: &MatrixSource) -> [String; 3] {
    let PartNames { codes, scales, biases } = source.parts;
    [codes, scales, biases].map(|part| format!("{}.{part}", source.name))
}

fn push_matrix<'a>(
    (source, matrix): (&MatrixSource, &'a mut OwnedMatrix),
    names: &'a [String; 3],
    segments: &mut Vec<ReadSegment<'a>>,
) {
    let layout = source.layout;
    let (codes, scales, biases) = matrix.parts_mut();
    let [codes_name, scales_name, biases_name] = names;
    let codes = MatrixPart {
        name: codes_name,
        extent: Some(source.codes),
        finite: match layout.kind {
            MatrixKind::Block(kind) => Some(FiniteFormat::Blocks(kind)),
            MatrixKind::Float(_) | MatrixKind::Fp8(_) | MatrixKind::Affine(_) => None,
        },
        target: codes,
    };
    let finite = layout.kind.scale_kind().map(FiniteFormat::of_scales);
    let scales = MatrixPart { name: scales_name, extent: source.scales, finite, target: scales };
    let biases = MatrixPart { name: biases_name, extent: source.biases, finite, target: biases };
    for (part_idx, part) in [codes, scales, biases].into_iter().enumerate() {
        let ranges = source.rows.iter().map(|rows| layout.bytes_of_rows(rows)[part_idx].clone());
        push_part(part, ranges, segments);
    }
}

/// Adds a segment for each range of a part's bytes, in order.
fn push_part<'a>(
    part: MatrixPart<'a>,
    ranges: impl Iterator<Item = Range<usize>>,
    segments: &mut Vec<ReadSegment<'a>>,
) {
    let MatrixPart { name, extent, finite, target } = part;
    let Some(extent) = extent else {
        assert!(target.is_empty(), "`{name}` has no extent");
        return;
    };
    let mut rest = target;
    for Range { start: skipped, end } in ranges {
        assert!(end as u64 <= extent.len_bytes, "`{name}` has bytes {skipped}..{end}");
        let (target, after) = rest.split_at_mut(end - skipped);
        rest = after;
        let finite_check = finite.map_or(FiniteCheck::Nothing, |finite| FiniteCheck::Tensor {
            name,
            finite,
            skipped,
        });
        let at = extent.offset_bytes + skipped as u64;
        segments.push(ReadSegment { file_idx: extent.file_idx, at, target, finite_check });
    }
    assert!(rest.is_empty(), "rows of `{name}`");
}

fn vector_segment<'a>(stored: &'a StoredVector, target: &'a mut [u8]) -> ReadSegment<'a> {
    let StoredVector { name, kind, extent, .. } = stored;
    let finite_check =
        FiniteCheck::Tensor { name, finite: FiniteFormat::Floats(*kind), skipped: 0 };
    ReadSegment { file_idx: extent.file_idx, at: extent.offset_bytes, target, finite_check }
}

fn values_of(stored: &StoredVector, bytes: &[u8]) -> Result<Vec<f32>> {
    let mut values = Vec::new();
    push_floats(bytes, stored.kind, &mut values);
    if let ValueSelection::EveryOther { first } = stored.selection {
        values = values.into_iter().skip(first).step_by(2).collect();
    }
    match stored.transform {
        ValueTransform::None => {}
        ValueTransform::AddOne => values.iter_mut().for_each(|value| *value += 1.0),
        ValueTransform::LogOfNegated => {
            values.iter_mut().for_each(|value| *value = log_of_negated(*value));
        }
        ValueTransform::FrequencyDivisor { theta } => {
            let n_rotated = 2 * values.len();
            for (pair, value) in values.iter_mut().enumerate() {
                *value = divided(plain_frequency(theta, pair, n_rotated), *value);
            }
        }
    }
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(values),
        Some(value_idx) => Err(part_error(&stored.name, value_idx as u64)),
    }
}

/// Inverts the converter's `-exp(x)`, to within an ulp of `x`.
#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
fn log_of_negated(value: f32) -> f32 {
    libm::log(-f64::from(value)) as f32
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
fn divided(frequency: f64, divisor: f32) -> f32 {
    (frequency / f64::from(divisor)) as f32
}
