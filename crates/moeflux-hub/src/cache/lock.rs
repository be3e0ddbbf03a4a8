//! Locks between processes, compatible with `huggingface_hub`: a system lock on a file that is
//! kept.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::Path;

use crate::error::{Error, Result};
use crate::file;

/// A lock that is held until it is dropped or its process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes a lock; `None` if another process holds it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]. Without file locks there is no exclusion: two downloads of the same file then
    /// write the same bytes to the same places.
    pub(crate) fn try_take(path: &Path) -> Result<Option<Self>> {
        file::make_parent(path)?;
        let mut options = File::options();
        options.read(true).write(true);
        let file = match options.clone().create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => options.open(path),
            created => created.inspect(share),
        };
        let file = file.map_err(Error::io("open", path))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => Ok(None),
            Ok(()) | Err(TryLockError::Error(_)) => Ok(Some(Self { _file: file })),
        }
    }
}

/// Allows other users of the cache to take the lock, too.
fn share(file: &File) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        // A failure is harmless: a file system without permissions restricts no user.
        drop(file.set_permissions(std::fs::Permissions::from_mode(0o664)));
    }
    #[cfg(not(unix))]
    let _ = file;
}

#[cfg(test)]
mod tests {

    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[test]
    fn a_lock_is_held_once() {
        let temp = TempDir::new();
        let dir = temp.path().to_owned();
        let path = dir.join("a/b.lock");
        let held = Lock::try_take(&path).unwrap();
        assert!(held.is_some());
        assert!(Lock::try_take(&path).unwrap().is_none());
        drop(held);
        assert!(Lock::try_take(&path).unwrap().is_some());
    }
}
