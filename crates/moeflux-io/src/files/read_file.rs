//! A file opened for positional reads.
//!
//! **Invariant:** a read fills its whole target or reports where the file ended. It never moves a
//! shared cursor, so any number of threads can read one file.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;

use crate::files::identity::{FileIdentity, open_regular};

/// A file that is read at given offsets.
#[derive(Debug)]
pub struct ReadFile {
    file: File,
    identity: FileIdentity,
}

impl ReadFile {
    /// Opens `path` for reading and records its length.
    ///
    /// # Errors
    ///
    /// The system's error; an error that names the kind of file if it is not a regular file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (file, metadata) = open_regular(path, 0)?;
        let identity = FileIdentity::of(&file, &metadata)?;
        Ok(Self { file, identity })
    }

    /// Opens a file that may be absent: returns `None` if it is. A dangling link is an error.
    ///
    /// # Errors
    ///
    /// As [`ReadFile::open`].
    pub fn open_if_there(path: &Path) -> io::Result<Option<Self>> {
        match Self::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Returns the length of the file when it was opened.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.identity.len_bytes
    }

    /// Returns the identity of the file when it was opened.
    #[must_use]
    pub fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// Waits until everything written to the file, by any program, has reached the drive.
    ///
    /// # Errors
    ///
    /// The system's error. Windows refuses this for files opened only for reading.
    pub fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Asks the system to drop the file from the page cache, so that reads come from the drive. Has
    /// no effect on systems other than Linux.
    pub fn forget_cached(&self) {
        self.forget_cached_range(0, 0);
    }

    /// As [`Self::forget_cached`], for `len_bytes` from `offset_bytes`; to the end of the file if
    /// `len_bytes` is 0.
    pub fn forget_cached_range(&self, offset_bytes: u64, len_bytes: u64) {
        #[cfg(target_os = "linux")]
        {
            let len = std::num::NonZeroU64::new(len_bytes);
            // Pages that have not been written back stay: sync first.
            let dont_need = rustix::fs::Advice::DontNeed;
            let advised = rustix::fs::fadvise(&self.file, offset_bytes, len, dont_need);
            // If the file system ignores the advice, reads come from the cache.
            let _ = advised;
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (offset_bytes, len_bytes);
    }

    /// Fills all of `target` from `offset_bytes`, in as many system calls as that takes.
    ///
    /// # Errors
    ///
    /// [`ReadError::UnexpectedEof`] if the file ends inside the range, [`ReadError::Device`] with
    /// the system's error otherwise. `target` is then unspecified.
    pub fn read_exact_at(&self, offset_bytes: u64, target: &mut [u8]) -> Result<(), ReadError> {
        let wanted_bytes = target.len();
        let mut done_bytes = 0;
        while done_bytes < wanted_bytes {
            let at = offset_bytes + done_bytes as u64;
            match read_at(&self.file, at, &mut target[done_bytes..]) {
                Ok(0) => {
                    let available_bytes = done_bytes;
                    return Err(ReadError::UnexpectedEof {
                        offset_bytes,
                        wanted_bytes,
                        available_bytes,
                    });
                }
                Ok(n_bytes) => done_bytes += n_bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(ReadError::Device { offset_bytes: at, source }),
            }
        }
        Ok(())
    }
}

#[cfg(unix)]
fn read_at(file: &File, offset_bytes: u64, target: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, target, offset_bytes)
}

#[cfg(windows)]
fn read_at(file: &File, offset_bytes: u64, target: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, target, offset_bytes)
}

/// A read that did not fill its target.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// The file ends before the range does.
    UnexpectedEof {
        /// Start of the range.
        offset_bytes: u64,
        /// Number of bytes requested.
        wanted_bytes: usize,
        /// Number of bytes available.
        available_bytes: usize,
    },
    /// The system reported an error.
    Device {
        /// Start of the failing read.
        offset_bytes: u64,
        /// The system's error.
        source: io::Error,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnexpectedEof { offset_bytes, wanted_bytes, available_bytes } => write!(
                f,
                "unexpected end of file: requested {wanted_bytes} bytes at offset {offset_bytes}, \
                 got {available_bytes}"
            ),
            Self::Device { offset_bytes, source } => {
                write!(f, "reading at offset {offset_bytes} failed: {source}")
            }
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::UnexpectedEof { .. } => None,
            Self::Device { source, .. } => Some(source),
        }
    }
}
