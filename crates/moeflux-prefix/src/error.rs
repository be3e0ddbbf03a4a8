//! Failures, each in one line: of a folder, of a write, and of an object that cannot be used.

use std::io;
use std::path::{Path, PathBuf};

use moeflux_io::OneLine;

use crate::key::ObjectId;

/// The result of operations on a folder.
pub type Result<T> = std::result::Result<T, Error>;

/// The system refused an operation.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", OneLine::message(&path.to_string_lossy()))]
pub struct Error {
    /// The operation, such as "read" or "create".
    pub action: &'static str,
    /// The file or the folder.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

impl Error {
    /// Returns a closure for `map_err`.
    pub(crate) fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self { action, path, source }
    }
}

/// Why an object was not written. The store is as it was, but for objects that made room.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteRefusal {
    /// The object is there, or another thread writes it.
    #[error("the object is there already")]
    AlreadyThere,
    /// Another process writes to the folder.
    #[error("another process writes to the folder")]
    NotTheWriter,
    /// The bytes that may be written on one day are used up.
    #[error("{wanted_bytes} bytes exceed what may be written today: {left_bytes} bytes are left")]
    OverDayBudget {
        /// Bytes of the object's file.
        wanted_bytes: u64,
        /// What is left of the day's bytes.
        left_bytes: u64,
    },
    /// The object does not fit into the bound, even alone beside those that it depends on.
    #[error("an object of {wanted_bytes} bytes does not fit: the limit is {n_bytes_max} bytes")]
    TooLarge {
        /// Bytes of the object's file.
        wanted_bytes: u64,
        /// The bound of the whole folder.
        n_bytes_max: u64,
    },
    /// The drive has too little room for others' files beside it.
    #[error("{free_bytes} bytes are free on the drive, too few for {wanted_bytes}")]
    DriveFull {
        /// Bytes of the object's file.
        wanted_bytes: u64,
        /// Free bytes.
        free_bytes: u64,
    },
    /// What the caller gives is no object: tokens, positions and bytes contradict each other.
    #[error("not an object: {0}")]
    Invalid(&'static str),
    /// The system refused an operation.
    #[error(transparent)]
    Drive(#[from] Error),
}

/// An object that cannot be used: its tokens have to be computed again.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be used ({reason}); its tokens are computed again", id.file_name())]
pub struct Miss {
    /// The object.
    pub id: ObjectId,
    /// What is wrong with it.
    pub reason: MissReason,
}

/// What is wrong with an object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MissReason {
    /// The index does not have it, or no longer.
    #[error("it is not there")]
    Missing,
    /// The given tokens lead elsewhere.
    #[error("it belongs to other tokens")]
    OtherTokens,
    /// The file is damaged.
    #[error("{0}")]
    Damaged(#[from] ObjectDamage),
    /// The system refused to open it.
    #[error("it cannot be opened: {0}")]
    Drive(io::Error),
}

/// How the bytes of a file contradict themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectDamage {
    /// The file does not begin as an object.
    #[error("not a file of this cache")]
    Magic,
    /// Another version of the format.
    #[error("format {0} instead of {ours}", ours = crate::key::FORMAT_VERSION)]
    Version(u32),
    /// An unknown kind of object.
    #[error("unknown kind {0}")]
    Kind(u8),
    /// Positions that no object has.
    #[error("positions {first}..{end} of no object")]
    Positions {
        /// First position.
        first: u64,
        /// Position after the last.
        end: u64,
    },
    /// The length of the file is not that of its parts.
    #[error("the file has {0} bytes, which its header contradicts")]
    Length(u64),
    /// A checksum differs, or padding is not zero.
    #[error("wrong checksum of the {0}")]
    Sum(&'static str),
    /// The drive cannot read it.
    #[error("the drive cannot read it")]
    Unreadable,
    /// The header is that of another object.
    #[error("its contents are another object")]
    OtherObject,
}
