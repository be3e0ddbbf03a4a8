//! What several targets share: a folder for what is read from files, and what a refusal keeps to.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

/// A folder of this process; `fuzz/smoke.sh` removes it with all that a run leaves behind.
pub struct Folder(PathBuf);

impl Folder {
    /// An empty one.
    pub fn new(name: &str) -> Self {
        let name = format!("moeflux-fuzz-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // One of an earlier process with the same number.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder for files");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.0.join(name), bytes).expect("a file in memory or on the drive");
    }
}

/// One line of bounded length, whatever the input says.
pub fn check_refusal(error: &impl Display) {
    let message = error.to_string();
    assert!(!message.contains(['\n', '\r']) && message.len() < 2000, "{message}");
}
