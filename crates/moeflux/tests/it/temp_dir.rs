//! Folders of a test's own: what tests of all crates that write files share.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of its own, removed at the end.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    /// An empty folder.
    pub(crate) fn new() -> Self {
        static N_MADE: AtomicU32 = AtomicU32::new(0);
        let n_made = N_MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("moeflux-it-{}-{n_made}", std::process::id());
        let target = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&target).unwrap();
        Self(target)
    }

    /// A copy of a folder's files.
    pub(crate) fn copy_of(source: &Path) -> Self {
        let copy = Self::new();
        let target = copy.path();
        for entry in std::fs::read_dir(source).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), target.join(entry.file_name())).unwrap();
        }
        copy
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}
