//! Helpers of several targets: a directory for files, and the check of a refusal.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

/// A directory of this process, removed when dropped. libFuzzer programs end without dropping
/// anything: `tools/check/fuzz.sh` removes their directories.
#[derive(Debug)]
pub(crate) struct TempFolder(PathBuf);

impl TempFolder {
    /// Creates an empty directory.
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("moeflux-fuzz-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // An earlier process with the same id may have left one.
        fs::remove_dir_all(&path).ok();
        fs::create_dir_all(&path).expect("a folder for files");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.0.join(name), bytes).expect("a file in memory or on the drive");
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Checks that a message is one line of bounded length, whatever the input contains.
pub(crate) fn check_refusal(error: &impl Display) {
    let message = error.to_string();
    assert!(!message.contains(['\n', '\r']) && message.len() < 2000, "{message}");
}
