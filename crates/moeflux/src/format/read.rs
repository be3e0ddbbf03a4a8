//! Reads whole small files.
//!
//! **Invariant:** no result is longer than the caller's limit. Opening never blocks, and only
//! regular files are read.

use std::path::Path;

use moeflux_io::{ReadError, ReadFile};

use crate::error::{Error, Result, grouped};

/// Reads a file of at most `bytes_max` bytes.
///
/// # Errors
///
/// [`Error::Io`]; [`Error::Malformed`] if the file is longer.
pub fn read_file(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let file = ReadFile::open(path).map_err(Error::io("open", path))?;
    read_whole(&file, path, bytes_max)
}

/// Reads a file like [`read_file`]; `None` if it is absent. A dangling link is an error.
///
/// # Errors
///
/// As [`read_file`].
pub(crate) fn read_file_if_there(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>> {
    let file = ReadFile::open_if_there(path).map_err(Error::io("open", path))?;
    file.map(|file| read_whole(&file, path, bytes_max)).transpose()
}

fn read_whole(file: &ReadFile, path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let len_bytes = file.len_bytes();
    if len_bytes > bytes_max {
        let (len_bytes, bytes_max) = (grouped(len_bytes), grouped(bytes_max));
        let problem =
            format!("has {len_bytes} bytes, more than the limit of {bytes_max} for such a file");
        return Err(Error::malformed(path, problem));
    }
    read_range(file, path, 0, len_bytes)
}

/// Reads `len_bytes` at `offset_bytes`. The caller has checked both against the file's length.
pub(crate) fn read_range(
    file: &ReadFile,
    path: &Path,
    offset_bytes: u64,
    len_bytes: u64,
) -> Result<Vec<u8>> {
    let len = usize::try_from(len_bytes)
        .map_err(|_| Error::malformed(path, format!("{len_bytes} bytes do not fit in memory")))?;
    let mut bytes = vec![0; len];
    read_into(file, path, offset_bytes, &mut bytes)?;
    Ok(bytes)
}

/// Fills `target` with the bytes at `offset_bytes`.
pub(crate) fn read_into(
    file: &ReadFile,
    path: &Path,
    offset_bytes: u64,
    target: &mut [u8],
) -> Result<()> {
    file.read_exact_at(offset_bytes, target).map_err(|error| match error {
        ReadError::Device { source, .. } => Error::io("read", path)(source),
        other => Error::malformed(path, other.to_string()),
    })
}
