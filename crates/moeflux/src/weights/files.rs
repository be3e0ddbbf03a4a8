//! The open files of a checkpoint, with progress and the checks that need bytes.
//!
//! **Invariant:** only files whose headers were read are read from. This module knows extents,
//! never shapes.

use std::ops::ControlFlow;
use std::path::Path;

use half::{bf16, f16};
use moeflux_io::ReadFile;
use moeflux_kernels::{BlockKind, FloatKind, ScaleKind};

use crate::error::{Error, Remedy, Result};
use crate::format::{Checkpoint, CheckpointSums, ShardFile, SumUnit, read_into};

/// Bytes of values that are searched at a time.
const STRETCH_BYTES: usize = 4096;

/// Progress of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes in memory so far.
    pub done_bytes: u64,
    /// Bytes in total.
    pub total_bytes: u64,
}

/// A callback for the progress of a load; [`ControlFlow::Break`] cancels the load.
pub(crate) type ProgressCallback<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

/// Whether the system may cache what is read. Cached pages count towards this process where its
/// memory is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCaching {
    /// They may stay cached: the next start is faster.
    Kept,
    /// The system is asked to drop them.
    Dropped,
}

/// Counts bytes and reports them to a watcher.
pub(crate) struct ProgressMeter<'m, 'w> {
    progress: Progress,
    watch: &'m mut ProgressCallback<'w>,
}

impl<'m, 'w> ProgressMeter<'m, 'w> {
    /// Creates a meter at 0 bytes and reports that to the watcher.
    pub(crate) fn new(total_bytes: u64, watch: &'m mut ProgressCallback<'w>) -> Result<Self> {
        let mut meter = Self { progress: Progress { done_bytes: 0, total_bytes }, watch };
        meter.add(0)?;
        Ok(meter)
    }

    /// Counts `n_bytes` more.
    pub(crate) fn add(&mut self, n_bytes: usize) -> Result<()> {
        self.progress.done_bytes += n_bytes as u64;
        match (self.watch)(self.progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Cancelled),
        }
    }
}

/// The opened files of a checkpoint.
#[derive(Debug)]
pub(crate) struct CheckpointFiles<'a> {
    checkpoint: &'a Checkpoint,
    files: Vec<ReadFile>,
    sums: Option<&'a CheckpointSums>,
    page_caching: PageCaching,
}

impl<'a> CheckpointFiles<'a> {
    /// Opens all files, and refuses those that have changed since their headers were read.
    pub(crate) fn open(checkpoint: &'a Checkpoint) -> Result<Self> {
        let files = checkpoint.files.iter().map(ShardFile::open).collect::<Result<_>>()?;
        Ok(Self { checkpoint, files, sums: None, page_caching: PageCaching::Kept })
    }

    /// Returns these files with checksums to compare with.
    pub(crate) fn with_sums(self, sums: Option<&'a CheckpointSums>) -> Self {
        Self { sums, ..self }
    }

    /// Returns these files with this caching of what is read.
    pub(crate) fn with_page_caching(self, page_caching: PageCaching) -> Self {
        Self { page_caching, ..self }
    }

    /// Returns the checksums to compare with.
    pub(crate) fn sums(&self) -> Option<&'a CheckpointSums> {
        self.sums
    }

    pub(crate) fn path(&self, file_idx: usize) -> &'a Path {
        &self.checkpoint.files[file_idx].path
    }

    /// Returns the name of the tensor or section that contains a byte of a file, for messages.
    pub(crate) fn name_at(&self, file_idx: usize, at: u64) -> String {
        self.checkpoint.name_at(file_idx, at)
    }

    /// Returns the error about bytes that do not match their checksum.
    pub(crate) fn mismatch(
        &self,
        (file_idx, unit): (usize, SumUnit),
        found: u64,
        n_reads: u32,
    ) -> Error {
        let name = self.checkpoint.name_at(file_idx, unit.first_bytes);
        let how = self.sums.map(|sums| sums.mismatch(&unit, found, n_reads)).unwrap_or_default();
        Error::malformed(self.path(file_idx), format!("{name}: {how}"))
    }

    /// Asks the system to drop its cached pages of a file, so that the next read comes from the
    /// drive.
    pub(crate) fn forget_cached(&self, file_idx: usize) {
        self.files[file_idx].forget_cached();
    }

    /// Fills `target` without comparing or checking it.
    pub(crate) fn read(&self, file_idx: usize, at: u64, target: &mut [u8]) -> Result<()> {
        let file = &self.files[file_idx];
        read_into(file, self.path(file_idx), at, target)?;
        if self.page_caching == PageCaching::Dropped {
            file.forget_cached_range(at, target.len() as u64);
        }
        Ok(())
    }
}

/// Format of bytes whose values must be finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FiniteFormat {
    /// Floats of this kind.
    Floats(FloatKind),
    /// Blocks of this kind: their factors, and thereby all values, must be finite.
    Blocks(BlockKind),
    /// Exponents of powers of two.
    Exponents,
    /// FP8 e4m3.
    E4m3,
}

impl FiniteFormat {
    /// Returns the format of such scales.
    #[must_use]
    pub const fn of_scales(kind: ScaleKind) -> Self {
        match kind {
            ScaleKind::Float(kind) => Self::Floats(kind),
            ScaleKind::E8m0 => Self::Exponents,
        }
    }

    /// Returns the index of the first value that is NaN or infinite, counted from the start of a
    /// part; `bytes` begin `skipped` bytes after that. In a block, it is the index of the block's
    /// first value.
    pub(crate) fn first_bad(self, skipped: usize, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::Floats(kind) => {
                first_non_finite(bytes, kind).map(|value_idx| skipped / kind.bytes() + value_idx)
            }
            Self::Blocks(kind) => {
                kind.first_non_finite(skipped, bytes).map(|block_idx| block_idx * kind.block_cols())
            }
            Self::Exponents => bytes.iter().position(|it| *it == 0xff).map(|idx| skipped + idx),
            // It has no infinity.
            Self::E4m3 => bytes.iter().position(|it| it & 0x7f == 0x7f).map(|idx| skipped + idx),
        }
    }

    /// Returns the number of values in `n_bytes`.
    pub(crate) fn n_values(self, n_bytes: usize) -> usize {
        match self {
            Self::Floats(kind) => n_bytes / kind.bytes(),
            Self::Blocks(kind) => n_bytes / kind.block_bytes() * kind.block_cols(),
            Self::Exponents | Self::E4m3 => n_bytes,
        }
    }

    /// Returns the offset of the first byte of a value, or of its block.
    pub(crate) fn byte_of(self, value_idx: usize) -> usize {
        match self {
            Self::Floats(kind) => value_idx * kind.bytes(),
            Self::Blocks(kind) => value_idx / kind.block_cols() * kind.block_bytes(),
            Self::Exponents | Self::E4m3 => value_idx,
        }
    }
}

/// Returns the index of the first little-endian float that is NaN or infinite.
pub(crate) fn first_non_finite(bytes: &[u8], kind: FloatKind) -> Option<usize> {
    // A float is not finite when all bits of its exponent are set.
    let is_bad_16 = |exponent: u16| {
        move |value: &[u8]| u16::from_le_bytes([value[0], value[1]]) & exponent == exponent
    };
    // Experts are searched each time they are read from the drive. To be fast, whole stretches are
    // tested, and only a stretch with a bad value is searched value by value.
    let first_16 = |exponent: u16| {
        let has_bad = |stretch: &[u8]| {
            let bad = |value: &[u8; 2]| u16::from_le_bytes(*value) & exponent == exponent;
            stretch.as_chunks().0.iter().fold(false, |any, value| any | bad(value))
        };
        let mut stretches = bytes.chunks(STRETCH_BYTES).enumerate();
        let (stretch_idx, stretch) = stretches.find(|(_, stretch)| has_bad(stretch))?;
        let within = stretch.chunks_exact(2).position(is_bad_16(exponent))?;
        Some(stretch_idx * (STRETCH_BYTES / 2) + within)
    };
    match kind {
        FloatKind::F16 => first_16(0x7c00),
        FloatKind::Bf16 => first_16(0x7f80),
        FloatKind::F32 => bytes.chunks_exact(4).position(|value| {
            !f32::from_le_bytes([value[0], value[1], value[2], value[3]]).is_finite()
        }),
    }
}

/// Returns the error about a value that is not finite.
pub(crate) fn part_error(tensor: &str, value_idx: u64) -> Error {
    let problem =
        format!("value {value_idx} is NaN or infinite: the file is damaged; download it again");
    Error::tensor(tensor, problem)
}

/// Refuses to load what cannot fit, before any of it is read.
pub(crate) fn check_room(
    what: &str,
    needed_bytes: u64,
    available_bytes: Option<u64>,
) -> Result<()> {
    match available_bytes {
        Some(available_bytes) if available_bytes < needed_bytes => Err(Error::NoRoom {
            what: what.to_owned(),
            needed_bytes,
            available_bytes: Some(available_bytes),
            needs: Vec::new(),
            remedy: Remedy::SmallerModel,
        }),
        _ => Ok(()),
    }
}

/// Appends stored floats as f32.
pub(crate) fn push_floats(bytes: &[u8], kind: FloatKind, values: &mut Vec<f32>) {
    match kind {
        FloatKind::F32 => {
            values.extend(bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)));
        }
        FloatKind::F16 => {
            values.extend(bytes.as_chunks().0.iter().map(|it| f16::from_le_bytes(*it).to_f32()));
        }
        FloatKind::Bf16 => {
            values.extend(bytes.as_chunks().0.iter().map(|it| bf16::from_le_bytes(*it).to_f32()));
        }
    }
}
