//! Temporary folders for tests.

use std::path::{Path, PathBuf};

/// An empty folder, removed when it is dropped.
#[derive(Debug)]
pub struct TempDir(tempfile::TempDir);

impl TempDir {
    /// Makes an empty folder.
    #[expect(clippy::new_without_default, reason = "it writes to the drive")]
    pub fn new() -> Self {
        Self(tempfile::Builder::new().prefix("moeflux-").tempdir().unwrap())
    }

    /// Makes a folder with copies of another folder's files.
    pub fn copy_of(source: &Path) -> Self {
        let copy = Self::new();
        for entry in std::fs::read_dir(source).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        copy
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The path of a file in the folder, which need not exist.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// Writes a file in the folder and returns its path.
    pub fn write(&self, name: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.file(name);
        std::fs::write(&path, contents).unwrap();
        path
    }
}
