//! Why a job could not be done, in one line with file, bytes and attempts.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::identity::FileChange;

/// What went wrong for good.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// A range could not be read, however often it was tried.
    Read {
        /// The file.
        path: PathBuf,
        /// Where the range begins.
        offset_bytes: u64,
        /// How long it is.
        len_bytes: usize,
        /// How often it was asked for, on all drives together.
        n_attempts: u32,
        /// How many drives were tried.
        n_drives: u32,
        /// The last answer.
        source: io::Error,
    },
    /// A part lies behind the end of its file.
    BehindEnd {
        /// The file.
        path: PathBuf,
        /// Where the part begins.
        offset_bytes: u64,
        /// How long it is.
        len_bytes: usize,
        /// How long the file was when it was opened.
        file_bytes: u64,
    },
    /// The file is no longer what was opened.
    Changed {
        /// The file.
        path: PathBuf,
        /// How it differs.
        change: FileChange,
    },
    /// A drive as a whole does not work any more.
    Drive {
        /// What kind of drive.
        name: &'static str,
        /// The system's answer.
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
            Self::BehindEnd { path, offset_bytes, len_bytes, file_bytes } => write!(
                f,
                "{}: {len_bytes} bytes at offset {offset_bytes} were requested, but the file has \
                 {file_bytes}",
                path.display()
            ),
            Self::Changed { path, change } => write!(f, "{}: the file {change}", path.display()),
            Self::Drive { name, source } => {
                write!(f, "reading with {name} no longer works: {source}")
            }
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { source, .. } | Self::Drive { source, .. } => Some(source),
            Self::Changed { change, .. } => Some(change),
            Self::BehindEnd { .. } => None,
        }
    }
}
