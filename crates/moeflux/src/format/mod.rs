//! Files to tables of contents: which tensors lie where, and what `config.json` says.
//!
//! **Invariant:** every length, offset and count that comes out was checked against the file it
//! describes. Nothing here reads a tensor's bytes or knows what a tensor means.
#![deny(clippy::indexing_slicing)]

mod checkpoint;
mod config;
mod dtype;
mod header;
mod index;
mod new_file;
mod npy;
mod packed;
mod safetensors;
#[cfg(test)]
mod tests;

pub use checkpoint::{Checkpoint, Packed, ShardFile, TensorEntry, canonical_name};
pub use config::{RawConfig, Section};
pub use dtype::DType;
pub use header::{Header, HeaderTensor, parse_header};
pub use index::{ShardIndex, parse_index};
pub use new_file::{NewTensor, new_header, new_index};
pub use npy::NpyWriter;
pub use packed::{
    PACK_JOURNAL, PACKED_FORMAT, PACKED_VERSION, PackedBank, PackedFile, PackedKind, PackedMatrix,
    PackedNorms, PackedRole, RECORD_ALIGN, SumTable, packed_metadata, parse_packed,
};
pub use safetensors::{HEADER_BYTES_MAX, header_bytes};

use std::fmt;
use std::path::Path;

use moeflux_io::{ReadError, ReadFile};

use crate::error::{Error, Result};

/// What is wrong with a file's bytes, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem(pub String);

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const FETCH_AGAIN: &str = "the download is incomplete, fetch it again";

/// Characters of a hostile name or value that a message repeats.
const QUOTED_CHARS_MAX: usize = 160;

/// `text` in one printable line of bounded length.
fn quoted(text: &str) -> String {
    let mut line: String =
        text.chars().take(QUOTED_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(QUOTED_CHARS_MAX).is_some() {
        line.push_str("...");
    }
    line
}

/// Reads a whole file that must not be larger than `bytes_max`.
fn read_small_file(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let file = ReadFile::open(path).map_err(Error::io("open", path))?;
    let len_bytes = file.len_bytes();
    if len_bytes > bytes_max {
        let problem = format!("has {len_bytes} bytes, more than the limit of {bytes_max}");
        return Err(Error::malformed(path, problem));
    }
    read_range(&file, path, 0, len_bytes)
}

/// Reads `len_bytes` from `offset_bytes`; the caller has checked both against the file's length.
fn read_range(file: &ReadFile, path: &Path, offset_bytes: u64, len_bytes: u64) -> Result<Vec<u8>> {
    let len = usize::try_from(len_bytes)
        .map_err(|_| Error::malformed(path, format!("{len_bytes} bytes do not fit in memory")))?;
    let mut bytes = vec![0; len];
    read_into(file, path, offset_bytes, &mut bytes)?;
    Ok(bytes)
}

fn read_into(file: &ReadFile, path: &Path, offset_bytes: u64, target: &mut [u8]) -> Result<()> {
    file.read_exact_at(offset_bytes, target).map_err(|error| match error {
        ReadError::Device { source, .. } => Error::io("read", path)(source),
        other => Error::malformed(path, other.to_string()),
    })
}
