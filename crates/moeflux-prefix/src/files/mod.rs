//! What the store asks of a file system, so that tests can put a simulated one in its place.
//!
//! **Invariant:** a call blocks no longer than the drive: a lock that another process holds is
//! reported, never waited for.

pub(crate) mod real;

use std::fmt::Debug;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderEntry {
    /// Its name; entries whose names are not UTF-8 are not listed.
    pub name: String,
    /// Length of a file.
    pub n_bytes: u64,
    /// When the file was last changed or used, since 1970.
    pub modified: Duration,
    /// Whether it is a folder; what is neither a file nor a folder is not listed.
    pub is_folder: bool,
}

/// A file system, the random numbers of the system, and its locks.
#[expect(clippy::missing_errors_doc, reason = "they are all the system's")]
pub trait Files: Debug + Send + Sync {
    /// Creates a folder that only its user may enter, with its parents. It may be there.
    fn make_folder(&self, path: &Path) -> io::Result<()>;
    /// Lists a folder, in any order.
    fn list(&self, folder: &Path) -> io::Result<Vec<FolderEntry>>;
    /// Opens a file for reading.
    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenedFile>>;
    /// Creates a file that only its user may read. It must not be there.
    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>>;
    /// Renames a file, in place of another one.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Waits until the drive has the entries of a folder.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
    /// Sets the time at which a file was last used, since 1970.
    fn set_modified(&self, path: &Path, time: Duration) -> io::Result<()>;
    /// Returns the free bytes of the drive with this folder, if that is known.
    fn free_bytes(&self, folder: &Path) -> Option<u64>;
    /// Takes the lock of a file, which may not exist; `None` if another process has it.
    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn HeldLock>>>;
    /// Fills `bytes` with random ones.
    fn random(&self, bytes: &mut [u8]) -> io::Result<()>;
}

/// A file that is read at offsets into memory of its own, which suits the drive.
#[expect(clippy::missing_errors_doc, reason = "they are all the system's")]
pub trait OpenedFile: Debug + Send {
    /// Returns the length of the file when it was opened.
    fn len_bytes(&self) -> u64;
    /// Reads `n_bytes` from an offset. [`OpenedFile::loaded`] then returns them.
    fn load(&mut self, offset_bytes: u64, n_bytes: usize) -> io::Result<()>;
    /// Returns the bytes that were read last.
    fn loaded(&self) -> &[u8];
}

/// A file that is being written.
#[expect(clippy::missing_errors_doc, reason = "they are all the system's")]
pub trait NewFile: Write + Debug + Send {
    /// Waits until the drive has its contents.
    fn sync(&mut self) -> io::Result<()>;
}

/// A lock, held until it is dropped or its process ends.
pub trait HeldLock: Debug + Send {}

/// The time of day.
pub trait WallClock: Debug + Send + Sync {
    /// Returns the time since 1970. It may jump.
    fn since_1970(&self) -> Duration;
}
