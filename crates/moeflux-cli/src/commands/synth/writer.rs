//! Writes the tensors of one shard into its file, block by block, on several threads.
//!
//! **Invariant:** memory is one block per thread, whatever the size of a tensor; every byte of the
//! file is written once. This module is independent of values.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use moeflux::provider::format::DType;
use moeflux::provider::spec::ModelSpec;
use moeflux::provider::weights::SyntheticTensor;
use moeflux::{Error, Result};

use super::shards::Shard;
use super::values::TensorValues;
use crate::output::progress::Bar;

/// Large enough that system calls cost nothing, small enough that Ctrl-C takes effect at once.
const BLOCK_BYTES: u64 = 4 << 20;

/// Writes the shards of a checkpoint.
#[derive(Debug)]
pub(super) struct ShardWriter<'a> {
    pub(super) spec: &'a ModelSpec,
    pub(super) tensors: &'a [SyntheticTensor],
    pub(super) seed: u64,
    pub(super) n_threads: usize,
    pub(super) cancel: &'a AtomicBool,
    pub(super) bar: &'a Bar,
}

/// A part of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TensorBlock {
    tensor_idx: usize,
    /// Offset in the tensor.
    offset_bytes: u64,
    /// Offset in the file.
    file_bytes: u64,
    len: usize,
}

/// The destination of a shard's bytes.
#[derive(Clone, Copy)]
struct OutputFile<'a> {
    file: &'a File,
    path: &'a Path,
}

/// The blocks of one shard that threads have yet to write.
struct BlockQueue<'a> {
    output: OutputFile<'a>,
    blocks: Vec<TensorBlock>,
    /// Index of the first block that no thread has taken.
    next: AtomicUsize,
    /// The first error.
    failure: Mutex<Option<Error>>,
}

impl ShardWriter<'_> {
    /// Writes a whole shard, and waits until it is on the disk: some file systems report only then
    /// that they are full.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::NoRoom`] if the disk is full, or [`Error::Cancelled`].
    pub(super) fn write(&self, shard: &Shard, file: &File, path: &Path) -> Result<()> {
        let output = OutputFile { file, path };
        // Also if the last tensor ends before the file does.
        file.set_len(shard.len_bytes).map_err(|error| write_error(path, error))?;
        self.put(output, 0, &shard.header)?;
        let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
        let queue = BlockQueue { output, blocks: self.blocks(shard), next, failure };
        std::thread::scope(|scope| {
            for thread_idx in 0..self.n_threads.min(queue.blocks.len()) {
                let write = || self.write_blocks(&queue);
                let thread = std::thread::Builder::new().name(format!("synth-{thread_idx}"));
                if thread.spawn_scoped(scope, write).is_err() && thread_idx == 0 {
                    // The system has no threads left: slower, but it works.
                    write();
                }
            }
        });
        match queue.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => file.sync_data().map_err(|error| write_error(path, error)),
        }
    }

    fn blocks(&self, shard: &Shard) -> Vec<TensorBlock> {
        let mut blocks = Vec::new();
        for (tensor_idx, &tensor_at) in shard.tensors.clone().zip(&shard.places) {
            let tensor = &self.tensors[tensor_idx];
            let len_bytes = tensor.len_bytes;
            let most_bytes = match tensor.dtype {
                DType::Block(block) => BLOCK_BYTES / block.n_bytes() * block.n_bytes(),
                _ => BLOCK_BYTES,
            };
            let mut offset_bytes = 0;
            while offset_bytes < len_bytes {
                let n_bytes = most_bytes.min(len_bytes - offset_bytes);
                let len = usize::try_from(n_bytes).expect("a block fits in memory");
                let file_bytes = tensor_at + offset_bytes;
                blocks.push(TensorBlock { tensor_idx, offset_bytes, file_bytes, len });
                offset_bytes += n_bytes;
            }
        }
        blocks
    }

    fn write_blocks(&self, queue: &BlockQueue<'_>) {
        let mut buffer = Vec::new();
        while let Some(block) = queue.blocks.get(queue.next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = self.write_block(queue.output, block, &mut buffer) {
                // Leaves the other threads nothing to do.
                queue.next.store(queue.blocks.len(), Ordering::Relaxed);
                let mut failure = queue.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(error);
            }
        }
    }

    fn write_block(
        &self,
        output: OutputFile<'_>,
        block: &TensorBlock,
        buffer: &mut Vec<u8>,
    ) -> Result<()> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        buffer.resize(block.len, 0);
        let values = TensorValues::new(self.seed, &self.tensors[block.tensor_idx], self.spec);
        values.fill(block.offset_bytes, buffer);
        self.put(output, block.file_bytes, buffer)
    }

    fn put(&self, output: OutputFile<'_>, offset_bytes: u64, bytes: &[u8]) -> Result<()> {
        let written = write_all_at(output.file, bytes, offset_bytes);
        written.map_err(|error| write_error(output.path, error))?;
        self.bar.add(bytes.len() as u64);
        Ok(())
    }
}

/// Returns the error for a failed write.
pub(super) fn write_error(path: &Path, error: io::Error) -> Error {
    let is_full = matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    );
    if !is_full {
        return Error::io("write", path)(error);
    }
    let dir = path.parent().unwrap_or(path).display();
    Error::Input(format!(
        "the disk became full while {dir} was written ({error}): nothing was kept; free some space \
         or write to another disk"
    ))
}

#[cfg(unix)]
fn write_all_at(file: &File, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset_bytes)
}

#[cfg(windows)]
fn write_all_at(file: &File, mut bytes: &[u8], mut offset_bytes: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let n_bytes = std::os::windows::fs::FileExt::seek_write(file, bytes, offset_bytes)?;
        if n_bytes == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[n_bytes..];
        offset_bytes += n_bytes as u64;
    }
    Ok(())
}
