//! A folder for one test: empty at its start, removed at its end.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A folder that is removed on drop.
#[derive(Debug)]
pub(crate) struct TestDir {
    path: PathBuf,
}

impl TestDir {
    /// Creates an empty folder that no other test uses.
    pub(crate) fn new(name: &str) -> Self {
        static N_MADE: AtomicUsize = AtomicUsize::new(0);
        let serial = N_MADE.fetch_add(1, Ordering::Relaxed);
        let unique = format!("moeflux-cli-{}-{serial}-{name}", std::process::id());
        let path = std::env::temp_dir().join(unique);
        fs::create_dir_all(&path).expect("a folder for temporary files");
        Self { path }
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.path));
    }
}
