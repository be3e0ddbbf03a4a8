//! Reads and writes small files, and bytes at offsets.
//!
//! **Invariant:** a file that [`write_atomic`] writes is complete, even for concurrent readers.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use moeflux_io::ReadFile;

use crate::error::{Error, Result};

/// Reads a file of at most `n_bytes_max`; `None` if it does not exist.
pub(crate) fn read_if_there(path: &Path, n_bytes_max: u64) -> Result<Option<Vec<u8>>> {
    // A dangling link or a folder is not a file, either.
    if !path.is_file() {
        return Ok(None);
    }
    let Some(file) = ReadFile::open_if_there(path).map_err(Error::io("read", path))? else {
        return Ok(None);
    };
    let n_bytes = file.len_bytes();
    if n_bytes > n_bytes_max {
        let path = path.display();
        let problem = format!("{path}: has {n_bytes} bytes; the limit is {n_bytes_max}");
        return Err(Error::Cache(problem));
    }
    let mut bytes = vec![0; usize::try_from(n_bytes).unwrap_or(usize::MAX)];
    let read = file.read_exact_at(0, &mut bytes);
    read.map_err(|error| Error::io("read", path)(io::Error::other(error.to_string())))?;
    Ok(Some(bytes))
}

/// Writes a small file, replacing any old one.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    static N_WRITTEN: AtomicU64 = AtomicU64::new(0);
    make_parent(path)?;
    let serial = N_WRITTEN.fetch_add(1, Ordering::Relaxed);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!("{name}.{}-{serial}.tmp", std::process::id()));
    let mut file = File::create(&temporary).map_err(Error::io("create", &temporary))?;
    let written = file.write_all(bytes).and_then(|()| moeflux_io::rename(&temporary, path));
    written.map_err(|error| {
        drop(fs::remove_file(&temporary));
        Error::io("write", path)(error)
    })
}

/// Waits until the drive has stored a file, because after a power failure a mark must not be valid
/// for a file that never reached the drive. Returns whether it has; on Windows a file that is open
/// for reading cannot be flushed.
pub(crate) fn flush_to_drive(path: &Path) -> bool {
    cfg!(windows) || ReadFile::open(path).and_then(|it| it.sync_data()).is_ok()
}

/// Creates the parent folder of a file.
pub(crate) fn make_parent(path: &Path) -> Result<()> {
    let dir = path.parent().unwrap_or(path);
    fs::create_dir_all(dir).map_err(Error::io("create", dir))
}

/// Returns the length of the file at a path, following links; `None` if it is not a file.
pub(crate) fn len_bytes(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|it| it.len())
}

/// Removes a file or a link if it exists; never the target of a link.
pub(crate) fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("delete", path)(error))
        }
        _ => Ok(()),
    }
}

/// Writes all of `bytes` at an offset, without a cursor shared between threads.
pub(crate) fn write_all_at(file: &File, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
    #[cfg(unix)]
    {
        std::os::unix::fs::FileExt::write_all_at(file, bytes, offset_bytes)
    }
    #[cfg(windows)]
    {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset_bytes + done as u64;
            match std::os::windows::fs::FileExt::seek_write(file, &bytes[done..], at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n_written) => done += n_written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Fills `target` from an offset.
pub(crate) fn read_exact_at(file: &File, offset_bytes: u64, target: &mut [u8]) -> io::Result<()> {
    #[cfg(unix)]
    {
        std::os::unix::fs::FileExt::read_exact_at(file, target, offset_bytes)
    }
    #[cfg(windows)]
    {
        let mut done = 0;
        while done < target.len() {
            let at = offset_bytes + done as u64;
            match std::os::windows::fs::FileExt::seek_read(file, &mut target[done..], at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n_read) => done += n_read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
