//! Helpers for the tests of this crate: temporary folders, and seeded random numbers.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A folder that is removed when the test ends.
pub(crate) struct TempFolder(PathBuf);

impl TempFolder {
    /// Creates the folder; each test passes its own `name`.
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("moeflux-io-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let removed = fs::remove_dir_all(&self.0);
        assert!(removed.is_ok() || std::thread::panicking());
    }
}

/// Returns the seeds of a suite that uses `n` of them in `./test.sh`. `MOEFLUX_SEEDS` sets the
/// number for a suite with 200; other suites scale in proportion.
#[expect(clippy::disallowed_methods, reason = "a test's own variable: see TESTING.md")]
pub(crate) fn seeds(n: u64) -> Range<u64> {
    const USUAL: u64 = 200;
    let wanted = std::env::var("MOEFLUX_SEEDS").map_or(USUAL, |it| it.parse().expect("a number"));
    0..(n * wanted.max(USUAL)).div_ceil(USUAL)
}

/// Pseudo-random numbers from a seed.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        crate::mix::mixed(&[self.0])
    }

    /// Returns a number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    pub(crate) fn bytes(&mut self, n_bytes: usize) -> Vec<u8> {
        (0..n_bytes).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}
