//! One file of a checkpoint, which is opened repeatedly and checked for changes.
//!
//! **Invariant:** the file opened here is the one whose header was read, by identity and by header,
//! so that bytes of two models never mix.

use std::path::{Path, PathBuf};

use moeflux_io::{FileChange, FileIdentity, ReadFile};
use twox_hash::XxHash3_64;

use crate::error::{Error, Result};
use crate::format::read::read_range;

/// One file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Its length when it was opened.
    pub len_bytes: u64,
    /// XXH3 of the header's bytes: tells apart checkpoints of the same shapes.
    pub header_hash: u64,
    /// Offset of the header. In safetensors its length prefix precedes it.
    pub header_at: u64,
    /// Offset of the first byte after the header.
    pub data_at: u64,
    /// Identity of the file before its header was read; `None` if only its header is known.
    pub identity: Option<FileIdentity>,
}

impl ShardFile {
    /// Opens the file again.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if it is no longer the file whose header was read; [`Error::Io`].
    pub fn open(&self) -> Result<ReadFile> {
        let file = ReadFile::open(&self.path).map_err(Error::io("open", &self.path))?;
        self.check_identity(file.identity())?;
        if file.len_bytes() != self.len_bytes || !self.has_header(&file, &self.path)? {
            return Err(self.changed(&FileChange::Written));
        }
        Ok(file)
    }

    /// Compares the identity of the original file with that of the file just opened.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if they differ.
    pub fn check_identity(&self, now: FileIdentity) -> Result<()> {
        let Some(before) = self.identity else { return Ok(()) };
        before.check(now).map_err(|change| self.changed(&change))
    }

    /// Compares the identity of the original file with that of the file now at its path.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if they differ, or if the file cannot be examined.
    pub fn check_unchanged(&self) -> Result<()> {
        let now = FileIdentity::of_path(&self.path);
        self.check_identity(now.map_err(|error| self.changed(&FileChange::Unreadable(error)))?)
    }

    /// Checks that the file at `path` has the same length and header. It is then taken for a copy
    /// of this one, without reading either in full.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] with `path` if they differ; [`Error::Io`].
    pub fn check_copy(&self, path: &Path) -> Result<()> {
        let file = ReadFile::open(path).map_err(Error::io("open the mirror's", path))?;
        let (now, expected) = (file.len_bytes(), self.len_bytes);
        let differs = |how: &str| {
            let original = self.path.display();
            let problem = format!(
                "of the mirror is not a copy of {original}: {how}; copy the model's folder to the \
                 mirror again"
            );
            Error::malformed(path, problem)
        };
        if now != expected {
            return Err(differs(&format!("it has {now} bytes, not {expected}")));
        }
        if !self.has_header(&file, path)? {
            return Err(differs("its header differs"));
        }
        Ok(())
    }

    /// Returns whether a file of the same length has the same header.
    fn has_header(&self, file: &ReadFile, path: &Path) -> Result<bool> {
        let bytes = read_range(file, path, 0, self.data_at)?;
        let n_before = usize::try_from(self.header_at).unwrap_or(usize::MAX).min(bytes.len());
        let (before, header) = bytes.split_at(n_before);
        let len_bytes = header.len() as u64;
        let is_length = before.is_empty() || before == len_bytes.to_le_bytes();
        Ok(is_length && XxHash3_64::oneshot(header) == self.header_hash)
    }

    fn changed(&self, change: &FileChange) -> Error {
        let what = match change {
            FileChange::Replaced => "was replaced by another file".to_owned(),
            FileChange::Length { was_bytes, is_bytes } => {
                format!("had {was_bytes} bytes and has {is_bytes} now")
            }
            FileChange::Unreadable(error) => format!("can no longer be examined ({error})"),
            _ => "was written to".to_owned(),
        };
        let problem = format!(
            "{what} after its header was read: wait until nothing writes to the model's folder, \
             then try again"
        );
        Error::malformed(&self.path, problem)
    }
}
