//! A file of a snapshot: a relative link to its blob, or the contents themselves where links are
//! not possible.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::ModelFolder;
use crate::error::{Error, Result};
use crate::file;
use crate::hash::BlobId;
use crate::name::file_path;

/// Whether a blob may be moved into a snapshot instead of copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlobAge {
    /// Just created, so not yet in use elsewhere.
    New,
    /// Possibly in use elsewhere.
    Old,
}

impl ModelFolder {
    /// Returns the path of a file in a snapshot.
    ///
    /// # Errors
    ///
    /// [`Error::Answer`] if its name could lead out of the snapshot.
    pub(crate) fn file(&self, commit: &str, path: &str) -> Result<PathBuf> {
        Ok(self.snapshot(commit).join(file_path(path)?))
    }

    /// Puts an existing blob into a snapshot, as a link, or else by moving or copying it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; [`Error::Answer`] as [`ModelFolder::file`].
    pub(crate) fn place_blob(
        &self,
        (commit, path): (&str, &str),
        blob: &BlobId,
        age: BlobAge,
        has_no_links: bool,
    ) -> Result<()> {
        let to = self.file(commit, path)?;
        let up = std::iter::repeat_n("..", path.split('/').count() + 1);
        let target: PathBuf = up.chain(["blobs", blob.digits()]).collect();
        if fs::read_link(&to).is_ok_and(|it| it == target) {
            return Ok(());
        }
        file::make_parent(&to)?;
        file::remove_if_there(&to)?;
        let linked =
            if has_no_links { Err(io::ErrorKind::Unsupported.into()) } else { link(&target, &to) };
        match linked {
            Ok(()) => Ok(()),
            // Another process was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) if is_impossible(&error) => self.put(&self.blob(blob), &to, age),
            Err(error) => Err(Error::io("create the link", &to)(error)),
        }
    }

    fn put(&self, from: &Path, to: &Path, age: BlobAge) -> Result<()> {
        let put = match age {
            BlobAge::New => moeflux_io::rename(from, to),
            BlobAge::Old => fs::copy(from, to).map(|_| ()),
        };
        put.map_err(Error::io("write", to))
    }
}

#[cfg(unix)]
fn link(target: &Path, to: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, to)
}

#[cfg(windows)]
fn link(target: &Path, to: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, to)?;
    // Some systems report success without creating anything, such as Wine 8.
    fs::symlink_metadata(to).map(|_| ())
}

/// Returns whether links cannot be created here: the file system has none, or on Windows the user
/// lacks the permission.
fn is_impossible(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    cfg!(windows) || matches!(error.kind(), Kind::Unsupported | Kind::PermissionDenied)
}
