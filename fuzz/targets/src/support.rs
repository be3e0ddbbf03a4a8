//! What several targets share: a folder for what is read from files, and what a refusal keeps to.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

/// A folder of this process, removed with its owner. Programs of libFuzzer end without dropping
/// anything: `tools/check/fuzz.sh` removes what they leave.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// An empty one.
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("moeflux-fuzz-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // One of an earlier process with the same number.
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

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// One line of bounded length, whatever the input says.
pub(crate) fn check_refusal(error: &impl Display) {
    let message = error.to_string();
    assert!(!message.contains(['\n', '\r']) && message.len() < 2000, "{message}");
}
