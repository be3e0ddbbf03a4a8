//! Errors between this process and the hub.
//!
//! **Invariant:** every message is one line that states the problem, the place and a way out; text
//! from the hub in it is sanitised for a terminal and truncated.

use std::io;
use std::path::{Path, PathBuf};

use moeflux_io::OneLine;

/// The result of operations that can fail for external reasons.
pub type Result<T> = std::result::Result<T, Error>;

/// An external failure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request can never succeed: an invalid name, revision or pattern.
    #[error("{}", OneLine::message(.0))]
    Asked(String),
    /// The system refused an operation on a file.
    #[error("cannot {action} {}: {source}", OneLine::message(&path.to_string_lossy()))]
    Io {
        /// The attempted operation, such as "read" or "create".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
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
        /// The system's error.
        source: io::Error,
    },
    /// The hub refuses access: the name is unknown, or may not be read.
    #[error("{}", OneLine::message(.0))]
    Refused(String),
    /// The hub's answer is invalid, or cannot be trusted.
    #[error("{}", OneLine::message(.0))]
    Answer(String),
    /// The received contents differ from those that the hub lists.
    #[error("{}", OneLine::message(.0))]
    Damaged(String),
    /// The hub cannot be reached, or interrupts transfers too often.
    #[error("{}", OneLine::message(.0))]
    Network(String),
    /// The cache does not contain the requested files, or cannot be used.
    #[error("{}", OneLine::message(.0))]
    Cache(String),
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

impl Error {
    /// Returns a closure for `map_err` that makes an [`Error::Io`], or an [`Error::DiskFull`] if
    /// the disk is full.
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
            let message = error.to_string();
            assert!(
                !message.contains(moeflux_io::is_harmful) && message.len() < 5000,
                "{message:.100?}"
            );
        }
    }
}
