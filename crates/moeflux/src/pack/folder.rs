//! The target folder of a pack, where files appear atomically.
//!
//! **Invariant:** a file is synced before it is renamed to its final name, and the folder after
//! that, so that a final name always means a complete file, however the process ends. Unfinished
//! files end in `.partial` and are rewritten.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

const PARTIAL: &str = ".partial";

/// A folder to which a pack is written.
#[derive(Debug)]
pub(super) struct PackFolder {
    dir: PathBuf,
    /// Held while this process writes to the folder.
    _lock: Option<File>,
}

impl PackFolder {
    /// Opens the folder exclusively, and creates it if needed.
    ///
    /// # Errors
    ///
    /// [`Error::Machine`] if another process packs to it; [`Error::Io`].
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let is_new = !dir.exists();
        fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        let lock = lock(dir)?;
        let folder = Self { dir: dir.to_owned(), _lock: lock };
        if let (true, Some(parent)) = (is_new, dir.parent().filter(|it| it.is_dir())) {
            sync_dir(parent)?;
        }
        Ok(folder)
    }

    /// Returns the path of the folder.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the final path of a file.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns the path at which a file is written.
    pub(super) fn partial(&self, name: &str) -> PathBuf {
        partial_path(&self.dir, name)
    }

    /// Creates a partial file, or truncates an existing one.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub(super) fn create(&self, name: &str) -> Result<File> {
        let path = self.partial(name);
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true).open(&path);
        file.map_err(Error::io("create", &path))
    }

    /// Waits until a file is on the drive.
    ///
    /// # Errors
    ///
    /// [`Error::DiskFull`], because some file systems report a full drive only now; [`Error::Io`].
    pub(super) fn sync(&self, file: &File, name: &str) -> Result<()> {
        file.sync_all().map_err(|error| write_error(&self.partial(name), error))
    }

    /// Durably renames a synced file to its final name.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub(super) fn publish(&self, name: &str) -> Result<()> {
        let (from, to) = (self.partial(name), self.path(name));
        moeflux_io::rename(&from, &to).map_err(Error::io("rename", &from))?;
        sync_dir(&self.dir)
    }

    /// Atomically writes a small file.
    ///
    /// # Errors
    ///
    /// [`Error::DiskFull`], [`Error::Io`].
    pub(super) fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut file = self.create(name)?;
        file.write_all(bytes).map_err(|error| write_error(&self.partial(name), error))?;
        self.sync(&file, name)?;
        self.publish(name)
    }

    /// Durably removes a file, if it exists.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::io("delete", &path)(error))
            }
            _ => sync_dir(&self.dir),
        }
    }
}

/// Returns the path at which a file is written before it is renamed.
pub(super) fn partial_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}{PARTIAL}"))
}

/// Returns the names in a folder; none if it does not exist.
///
/// # Errors
///
/// [`Error::Io`].
pub(super) fn names(dir: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("list", dir)(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::io("list", dir))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Returns the error for a failed write.
pub(super) fn write_error(path: &Path, error: io::Error) -> Error {
    let is_full = matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    );
    if !is_full {
        return Error::io("write", path)(error);
    }
    Error::DiskFull { path: path.to_owned(), source: error.into() }
}

/// Locking and syncing a folder needs an open handle, which only Unix provides.
#[cfg(unix)]
fn lock(dir: &Path) -> Result<Option<File>> {
    let opened = File::open(dir).map_err(Error::io("open", dir))?;
    match opened.try_lock() {
        Err(fs::TryLockError::WouldBlock) => Err(Error::Machine(format!(
            "another process packs to {}: wait until it has ended",
            dir.display()
        ))),
        // Some network file systems do not support locks.
        Err(fs::TryLockError::Error(_)) => Ok(None),
        Ok(()) => Ok(Some(opened)),
    }
}

#[cfg(not(unix))]
fn lock(_dir: &Path) -> Result<Option<File>> {
    Ok(None)
}

#[cfg(unix)]
fn sync_dir(dir: &Path) -> Result<()> {
    let opened = File::open(dir).map_err(Error::io("open", dir))?;
    opened.sync_all().map_err(Error::io("sync", dir))
}

#[cfg(not(unix))]
fn sync_dir(_dir: &Path) -> Result<()> {
    Ok(())
}

#[cfg(unix)]
pub(super) fn write_all_at(file: &File, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset_bytes)
}

#[cfg(windows)]
pub(super) fn write_all_at(file: &File, mut bytes: &[u8], mut offset_bytes: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let n_bytes = std::os::windows::fs::FileExt::seek_write(file, bytes, offset_bytes)?;
        if n_bytes == 0 {
            return Err(ErrorKind::WriteZero.into());
        }
        bytes = &bytes[n_bytes..];
        offset_bytes += n_bytes as u64;
    }
    Ok(())
}
