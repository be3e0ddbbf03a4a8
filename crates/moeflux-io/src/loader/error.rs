//! The reasons why a job failed, in one line with file, bytes and attempts.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::files::identity::FileChange;

/// The final failure of a job.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// A range could not be read in any attempt.
    Read {
        /// The file.
        path: PathBuf,
        /// Start of the range.
        offset_bytes: u64,
        /// Its length.
        len_bytes: usize,
        /// Number of attempts, on all drives together.
        n_attempts: u32,
        /// Number of drives tried.
        n_drives: u32,
        /// The last error.
        source: io::Error,
    },
    /// A part exceeds the end of its file.
    PastEnd {
        /// The file.
        path: PathBuf,
        /// Start of the part.
        offset_bytes: u64,
        /// Its length.
        len_bytes: usize,
        /// Length of the file when it was opened.
        file_bytes: u64,
    },
    /// The file has changed since it was opened.
    Changed {
        /// The file.
        path: PathBuf,
        /// The change.
        change: FileChange,
    },
    /// A drive has failed as a whole.
    Drive {
        /// Kind of the drive.
        name: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, offset_bytes, len_bytes, n_attempts, n_drives, source } => write!(
                f,
                "{}: {len_bytes} bytes at offset {offset_bytes} could not be read in \
                 {n_attempts} attempts on {n_drives} drive(s): {source}",
                path.display()
            ),
            Self::PastEnd { path, offset_bytes, len_bytes, file_bytes } => write!(
                f,
                "{}: {len_bytes} bytes at offset {offset_bytes} were requested, but the file has \
                 {file_bytes}",
                path.display()
            ),
            Self::Changed { path, change } => write!(f, "{}: the file {change}", path.display()),
            Self::Drive { name, source } => {
                write!(f, "reading with {name} failed: {source}")
            }
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { source, .. } | Self::Drive { source, .. } => Some(source),
            Self::Changed { change, .. } => Some(change),
            Self::PastEnd { .. } => None,
        }
    }
}
