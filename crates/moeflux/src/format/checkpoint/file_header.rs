//! Reads the header of a safetensors file and checks it against the file's length.
//!
//! **Invariant:** no allocation or read exceeds the observed length of the file. Tensor data is not
//! read.

use std::path::Path;

use moeflux_io::{FileIdentity, ReadFile};
use twox_hash::XxHash3_64;

use crate::error::{Error, Result};
use crate::format::packed::{PackedFile, parse_packed};
use crate::format::read::{read_into, read_range};
use crate::format::safetensors::header::{PREFIX_BYTES, SafetensorsHeader, parse_header};
use crate::format::{FETCH_AGAIN, ParseError};

/// Upper bound on a header, as in the reference implementation. A 397B checkpoint with one name per
/// expert has 35 MB.
pub(crate) const HEADER_BYTES_MAX: u64 = 100_000_000;

/// The first bytes of a Git LFS pointer, which a clone without LFS has in place of a large file.
const GIT_LFS_PREFIX: &[u8; 8] = b"version ";

/// A header and its position in a file.
#[derive(Debug)]
pub(in crate::format) struct FileHeader {
    pub(in crate::format) header: SafetensorsHeader,
    /// The description of a packed file.
    pub(in crate::format) packed: Option<PackedFile>,
    /// Offset of the data.
    pub(in crate::format) data_at: u64,
    /// Length of the whole file.
    pub(in crate::format) len_bytes: u64,
    /// XXH3 of the header's bytes.
    pub(in crate::format) hash: u64,
    /// Identity of the file; `None` if only the header's bytes were given.
    pub(in crate::format) identity: Option<FileIdentity>,
}

impl FileHeader {
    /// Checks a header, given without its length prefix, against the length of its file.
    pub(in crate::format) fn of_bytes(path: &Path, bytes: &[u8], len_bytes: u64) -> Result<Self> {
        let refused = |problem: ParseError| Error::malformed(path, problem.0);
        let data_at = PREFIX_BYTES + bytes.len() as u64;
        let data_bytes = len_bytes.saturating_sub(data_at);
        let header = parse_header(bytes, data_bytes).map_err(refused)?;
        let packed = parse_packed(&header).map_err(refused)?;
        Ok(Self {
            header,
            packed,
            data_at,
            len_bytes,
            hash: XxHash3_64::oneshot(bytes),
            identity: None,
        })
    }
}

/// Returns whether a file is packed, according to its header.
///
/// # Errors
///
/// As [`read_header`].
pub(crate) fn is_packed(path: &Path) -> Result<bool> {
    Ok(read_header(path)?.packed.is_some())
}

/// Reads and checks the header of a file.
pub(in crate::format) fn read_header(path: &Path) -> Result<FileHeader> {
    let file = ReadFile::open(path).map_err(Error::io("open", path))?;
    let bytes = read_header_bytes(&file, path)?;
    let header = FileHeader::of_bytes(path, &bytes, file.len_bytes())?;
    Ok(FileHeader { identity: Some(file.identity()), ..header })
}

/// Reads the bytes of a header, without its length prefix.
pub(in crate::format) fn read_header_bytes(file: &ReadFile, path: &Path) -> Result<Vec<u8>> {
    let len_bytes = file.len_bytes();
    if len_bytes < PREFIX_BYTES {
        let problem = format!(
            "has only {len_bytes} bytes: fetch it again, or remove it if it is not part of the \
             model"
        );
        return Err(Error::malformed(path, problem));
    }
    let mut prefix = [0; 8];
    read_into(file, path, 0, &mut prefix)?;
    if prefix == *GIT_LFS_PREFIX {
        let problem = "is a Git LFS pointer, not the file it stands for: run `git lfs pull`";
        return Err(Error::malformed(path, problem));
    }
    let header_bytes = u64::from_le_bytes(prefix);
    if header_bytes > HEADER_BYTES_MAX {
        let problem = format!(
            "declares a header of {header_bytes} bytes, more than the limit of {HEADER_BYTES_MAX}: \
             this is not a safetensors file, or it is damaged"
        );
        return Err(Error::malformed(path, problem));
    }
    let data_at = PREFIX_BYTES + header_bytes;
    if data_at > len_bytes {
        let problem = format!(
            "ends at byte {len_bytes}, but its header extends to byte {data_at}: {FETCH_AGAIN}"
        );
        return Err(Error::malformed(path, problem));
    }
    read_range(file, path, PREFIX_BYTES, header_bytes)
}

/// Reads the bytes of a file's header, without its length prefix. A later run needs them if the
/// file is deleted by then.
///
/// # Errors
///
/// As [`crate::format::Checkpoint::open`].
pub(crate) fn header_bytes(path: &Path) -> Result<Vec<u8>> {
    let file = ReadFile::open(path).map_err(Error::io("open", path))?;
    read_header_bytes(&file, path)
}
