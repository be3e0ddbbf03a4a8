//! What goes wrong between here and the hub.
//!
//! **Invariant:** every message is one line that names what, where and the way out.

use std::io;
use std::path::{Path, PathBuf};

/// The result of everything that can fail for outside reasons.
pub type Result<T> = std::result::Result<T, Error>;

/// An outside failure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for can never work: a name, a revision, a pattern.
    #[error("{0}")]
    Asked(String),
    /// The system refused an operation on a file.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried: "read", "create".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The disk became full.
    #[error(
        "the disk became full while {} was written ({source}): what arrived is kept; free some \
         space and try again",
        path.display()
    )]
    DiskFull {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The hub refuses: nobody knows the name, or may read it.
    #[error("{0}")]
    Refused(String),
    /// The hub answers with what is no answer, or cannot be trusted.
    #[error("{0}")]
    Answer(String),
    /// What arrived is not what the hub said it has.
    #[error("{0}")]
    Damaged(String),
    /// The hub cannot be reached, or breaks off too often.
    #[error("{0}")]
    Network(String),
    /// What is in the cache is not what was asked for.
    #[error("{0}")]
    Cache(String),
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

impl Error {
    /// An [`Error::Io`] maker for `map_err`; says so if the disk is full.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { path, source }
            }
            _ => Self::Io { action, path, source },
        }
    }
}
