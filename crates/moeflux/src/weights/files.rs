//! Bytes of a checkpoint into memory, with progress, and the checks that only bytes allow.
//!
//! **Invariant:** a target is filled whole or there is an error; between two calls of the watcher
//! at most [`CHUNK_BYTES`] are read. Knows extents, never shapes.

use std::ops::ControlFlow;

use moeflux_io::{ReadError, ReadFile};
use moeflux_kernels::FloatKind;

use crate::error::{ByteCount, Error, Result};
use crate::format::Checkpoint;

/// Small enough to cancel within a moment, large enough for a drive's full speed.
const CHUNK_BYTES: usize = 32 << 20;

/// Values are searched so many bytes at a time.
const STRETCH_BYTES: usize = 4096;

/// How far a load has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes in memory.
    pub done_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// Is told how far a load has come; [`ControlFlow::Break`] cancels it.
pub type Watch<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

/// Whether the system may keep copies of what is read. They would count as this process's, where
/// its memory is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// It may: the next start is faster.
    Kept,
    /// It is asked not to.
    Dropped,
}

/// Counts bytes for a watcher.
pub(crate) struct Meter<'m, 'w> {
    progress: Progress,
    watch: &'m mut Watch<'w>,
}

impl<'m, 'w> Meter<'m, 'w> {
    /// Nothing done yet; says so to the watcher.
    pub(crate) fn new(total_bytes: u64, watch: &'m mut Watch<'w>) -> Result<Self> {
        let mut meter = Self { progress: Progress { done_bytes: 0, total_bytes }, watch };
        meter.add(0)?;
        Ok(meter)
    }

    /// Counts some more.
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
pub(crate) struct Files<'a> {
    checkpoint: &'a Checkpoint,
    files: Vec<ReadFile>,
    copies: Copies,
}

impl<'a> Files<'a> {
    /// Opens all files, and refuses those whose length is not what it was.
    pub(crate) fn open(checkpoint: &'a Checkpoint) -> Result<Self> {
        let mut files = Vec::with_capacity(checkpoint.files.len());
        for shard in &checkpoint.files {
            let file = ReadFile::open(&shard.path).map_err(Error::io("open", &shard.path))?;
            let (now, before) = (file.len_bytes(), shard.len_bytes);
            if now != before {
                let problem = format!(
                    "has {now} bytes, but had {before} when its header was read: the file changed \
                     while loading"
                );
                return Err(Error::malformed(&shard.path, problem));
            }
            files.push(file);
        }
        Ok(Self { checkpoint, files, copies: Copies::Kept })
    }

    /// The same, with or without copies of what is read.
    pub(crate) fn with_copies(self, copies: Copies) -> Self {
        Self { copies, ..self }
    }

    /// Fills `target`.
    pub(crate) fn read(
        &self,
        file_idx: usize,
        offset_bytes: u64,
        target: &mut [u8],
        meter: &mut Meter<'_, '_>,
    ) -> Result<()> {
        let path = &self.checkpoint.files[file_idx].path;
        let mut at = offset_bytes;
        for chunk in target.chunks_mut(CHUNK_BYTES) {
            let read = self.files[file_idx].read_exact_at(at, chunk);
            read.map_err(|error| match error {
                ReadError::Device { source, .. } => Error::io("read", path)(source),
                other => Error::malformed(path, format!("{other}: the file changed while loading")),
            })?;
            at += chunk.len() as u64;
            if self.copies == Copies::Dropped {
                self.files[file_idx].forget_cached();
            }
            meter.add(chunk.len())?;
        }
        Ok(())
    }
}

/// Which value of some little-endian floats is NaN or infinite, if one is.
pub(crate) fn first_non_finite(bytes: &[u8], kind: FloatKind) -> Option<usize> {
    // A float is not finite when all bits of its exponent are set.
    let is_bad_16 = |exponent: u16| {
        move |value: &[u8]| u16::from_le_bytes([value[0], value[1]]) & exponent == exponent
    };
    // Experts are searched each time they come from the drive: many values at a time, and only a
    // stretch that has a bad one value by value.
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

/// The error about a value that is not finite.
pub(crate) fn part_error(tensor: &str, value_idx: u64) -> Error {
    let problem =
        format!("value {value_idx} is NaN or infinite: the file is damaged, fetch it again");
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
            advice: format!(
                "{} of memory are available: close other programs, or use a smaller model or \
                 fewer bits",
                ByteCount(available_bytes)
            ),
        }),
        _ => Ok(()),
    }
}
