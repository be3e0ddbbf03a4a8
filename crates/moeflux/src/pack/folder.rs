//! The folder that a pack is written to: files that appear whole, or not at all.
//!
//! **Invariant:** a file under its own name was synced before it got that name, and the folder
//! after it; so whatever ends the process, a name means a whole file. What has no name yet ends in
//! `.partial` and is written anew.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

const PARTIAL: &str = ".partial";

/// A folder that is being filled.
#[derive(Debug)]
pub(super) struct Folder {
    dir: PathBuf,
    /// Held as long as this process writes here.
    _lock: Option<File>,
}

impl Folder {
    /// Makes the folder, or takes the one that is there, for this process alone.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if another process packs to it.
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

    /// Where it is.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where a file is, or will be.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Where it is written.
    pub(super) fn partial(&self, name: &str) -> PathBuf {
        partial_path(&self.dir, name)
    }

    /// Begins a file, or begins it again.
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

    /// Waits until the drive has a file.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], also if the drive is full: some file systems say so only now.
    pub(super) fn sync(&self, file: &File, name: &str) -> Result<()> {
        file.sync_all().map_err(|error| write_error(&self.partial(name), error))
    }

    /// Gives a file that was synced its name, for good.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub(super) fn publish(&self, name: &str) -> Result<()> {
        let (from, to) = (self.partial(name), self.path(name));
        moeflux_io::rename(&from, &to).map_err(Error::io("rename", &from))?;
        sync_dir(&self.dir)
    }

    /// Writes a small file, whole.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub(super) fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut file = self.create(name)?;
        file.write_all(bytes).map_err(|error| write_error(&self.partial(name), error))?;
        self.sync(&file, name)?;
        self.publish(name)
    }

    /// Removes a file, if it is there, for good.
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

/// Where a file is written before it gets its name.
pub(super) fn partial_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}{PARTIAL}"))
}

/// Names in a folder; none if it is not there.
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

/// What to say of a failed write.
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

/// Folders can be locked and synced where they can be opened.
#[cfg(unix)]
fn lock(dir: &Path) -> Result<Option<File>> {
    let opened = File::open(dir).map_err(Error::io("open", dir))?;
    match opened.try_lock() {
        Err(fs::TryLockError::WouldBlock) => Err(Error::Machine(format!(
            "another process packs to {}: wait until it has ended",
            dir.display()
        ))),
        // Some network file systems have no locks.
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
