//! A file opened for positional reads.
//!
//! **Invariant:** a read fills its whole target or reports how far the file reached; it never
//! moves a shared cursor, so that many threads may read one file.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;

/// A file that is read by offset.
#[derive(Debug)]
pub struct ReadFile {
    file: File,
    len_bytes: u64,
}

impl ReadFile {
    /// Opens `path` for reading and notes its length.
    ///
    /// # Errors
    ///
    /// What the system says; a directory is refused as such.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "is a directory"));
        }
        Ok(Self { file, len_bytes: metadata.len() })
    }

    /// Length when the file was opened.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Asks the system to forget what it keeps of the file in memory, so that reads come from the
    /// drive; does nothing where the system does not listen.
    pub fn forget_cached(&self) {
        #[cfg(target_os = "linux")]
        {
            // What was written and has not reached the drive stays: sync first.
            let advised = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
            // A file system that keeps it serves it.
            let _ = advised;
        }
    }

    /// Fills all of `target` from `offset_bytes`, however many system calls that takes.
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
        /// Where the range began.
        offset_bytes: u64,
        /// How much was asked for.
        wanted_bytes: usize,
        /// How much there was.
        available_bytes: usize,
    },
    /// The system reported an error.
    Device {
        /// Where the failing read began.
        offset_bytes: u64,
        /// What the system said.
        source: io::Error,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnexpectedEof { offset_bytes, wanted_bytes, available_bytes } => write!(
                f,
                "the file ends early: wanted {wanted_bytes} bytes at offset {offset_bytes}, \
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
