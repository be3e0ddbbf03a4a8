//! Locks between processes, as `huggingface_hub` takes them: a lock of the system on a file that
//! stays.

use std::fs::{File, TryLockError};
use std::path::Path;

use crate::error::{Error, Result};
use crate::file;

/// A lock that is held until it is dropped, or its process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes a lock; none if another process holds it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]. Where files cannot be locked, nobody is kept away: two downloads of the same
    /// file then write the same bytes to the same places.
    pub(crate) fn try_take(path: &Path) -> Result<Option<Self>> {
        file::make_parent(path)?;
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        // Whoever shares the cache can wait for it.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o664);
        let file = options.open(path).map_err(Error::io("create", path))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => Ok(None),
            Ok(()) | Err(TryLockError::Error(_)) => Ok(Some(Self { _file: file })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_once() {
        let dir = std::env::temp_dir().join(format!("moeflux-hub-lock-{}", std::process::id()));
        let path = dir.join("a/b.lock");
        let held = Lock::try_take(&path).unwrap();
        assert!(held.is_some());
        assert!(Lock::try_take(&path).unwrap().is_none());
        drop(held);
        assert!(Lock::try_take(&path).unwrap().is_some());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
