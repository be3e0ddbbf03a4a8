//! What goes wrong between here and the hub.
//!
//! **Invariant:** every message is one line that names what, where and the way out; whatever the
//! hub says in it is harmless on a terminal, and is cut where it is long.

use std::io;
use std::path::{Path, PathBuf};

use moeflux_io::OneLine;

/// The result of everything that can fail for outside reasons.
pub type Result<T> = std::result::Result<T, Error>;

/// An outside failure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for can never work: a name, a revision, a pattern.
    #[error("{}", OneLine::message(.0))]
    Asked(String),
    /// The system refused an operation on a file.
    #[error("cannot {action} {}: {source}", OneLine::message(&path.to_string_lossy()))]
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
        OneLine::message(&path.to_string_lossy())
    )]
    DiskFull {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The hub refuses: nobody knows the name, or may read it.
    #[error("{}", OneLine::message(.0))]
    Refused(String),
    /// The hub answers with what is no answer, or cannot be trusted.
    #[error("{}", OneLine::message(.0))]
    Answer(String),
    /// What arrived is not what the hub said it has.
    #[error("{}", OneLine::message(.0))]
    Damaged(String),
    /// The hub cannot be reached, or breaks off too often.
    #[error("{}", OneLine::message(.0))]
    Network(String),
    /// What is in the cache is not what was asked for.
    #[error("{}", OneLine::message(.0))]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_harmless_line_of_bounded_length() {
        let evil = format!("a\x1b[2J\x07\u{9b}\u{202e}\n{}", "x".repeat(1 << 20));
        let path = Path::new(&evil);
        for error in [
            Error::Asked(evil.clone()),
            Error::Refused(evil.clone()),
            Error::Answer(evil.clone()),
            Error::Damaged(evil.clone()),
            Error::Network(evil.clone()),
            Error::Cache(evil.clone()),
            Error::io("read", path)(io::ErrorKind::NotFound.into()),
            Error::io("write", path)(io::ErrorKind::StorageFull.into()),
        ] {
            let said = error.to_string();
            assert!(!said.contains(moeflux_io::is_harmful) && said.len() < 5000, "{said:.100?}");
        }
    }
}
