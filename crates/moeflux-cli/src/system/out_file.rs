//! A result file that never exists incomplete under its final name.
//!
//! A regular file, or a new one, is written next to its final name and renamed when complete. A
//! pipe, a device or a dangling link is written directly: renaming would replace it with a file.
//! **Invariant:** a link's target is replaced, never the link; after a failure, the temporary file
//! is removed.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use moeflux::{Error, Result};

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct OutFile {
    written: PathBuf,
    /// The final name, if the file is written under another.
    final_name: Option<PathBuf>,
}

impl OutFile {
    /// Chooses where to write the result for `path`. Creates nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the path cannot be examined.
    pub(crate) fn new(path: &Path) -> Result<Self> {
        let target = match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => path.to_owned(),
            Err(error) => return Err(Error::io("create", path)(error)),
            Ok(metadata) if metadata.is_file() => path.to_owned(),
            Ok(metadata) if metadata.is_symlink() => match dunce::canonicalize(path) {
                Ok(target) if target.is_file() => target,
                _ => return Ok(Self::direct(path)),
            },
            Ok(_) => return Ok(Self::direct(path)),
        };
        let mut name = target.file_name().map(OsString::from).unwrap_or_default();
        name.push(".partial");
        Ok(Self { written: target.with_file_name(name), final_name: Some(target) })
    }

    fn direct(path: &Path) -> Self {
        Self { written: path.to_owned(), final_name: None }
    }

    /// Returns the path to write to.
    pub(crate) fn path(&self) -> &Path {
        &self.written
    }

    /// Gives the file its final name; it must be complete and closed.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file cannot be renamed.
    pub(crate) fn finish(mut self) -> Result<()> {
        let Some(name) = &self.final_name else { return Ok(()) };
        moeflux_io::rename(&self.written, name).map_err(Error::io("write", name))?;
        self.final_name = None;
        Ok(())
    }
}

impl Drop for OutFile {
    fn drop(&mut self) {
        if self.final_name.is_some() {
            // The error that led here matters more, and a leftover file is harmless.
            drop(std::fs::remove_file(&self.written));
        }
    }
}

#[cfg(test)]
mod tests {
    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[test]
    fn two_results_never_share_a_temporary_name() {
        let dir = TempDir::new();
        let path = |name: &str| dir.path().join(name);
        let [one, two] = ["a.bin", "a.npy"].map(|name| OutFile::new(&path(name)).unwrap());
        assert_eq!(one.path(), path("a.bin.partial"));
        assert_eq!(two.path(), path("a.npy.partial"));
        std::fs::write(one.path(), "whole").unwrap();
        std::fs::write(two.path(), "half").unwrap();
        one.finish().unwrap();
        drop(two);
        assert_eq!(std::fs::read_to_string(path("a.bin")).unwrap(), "whole");
        assert!(!path("a.npy").exists() && !path("a.npy.partial").exists());
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_and_devices_are_written_through() {
        let dir = TempDir::new();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("file"), "old").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        let out = OutFile::new(&path("link")).unwrap();
        std::fs::write(out.path(), "new").unwrap();
        out.finish().unwrap();
        assert!(std::fs::symlink_metadata(path("link")).unwrap().is_symlink());
        assert_eq!(std::fs::read_to_string(path("file")).unwrap(), "new");

        std::os::unix::fs::symlink(path("nothing"), path("dangling")).unwrap();
        assert_eq!(OutFile::new(&path("dangling")).unwrap().path(), path("dangling"));
        std::os::unix::fs::symlink("/dev/null", path("device")).unwrap();
        assert_eq!(OutFile::new(&path("device")).unwrap().path(), path("device"));
    }
}
