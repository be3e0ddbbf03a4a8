//! Checks whether files to be written fit on their disk.
//!
//! If the system does not report the free space, a full disk is detected while writing.

use std::path::Path;

use moeflux::{Error, Remedy, Result};
use moeflux_io::free_disk_bytes;

/// Margin: blocks are not shared between files, and folders grow too.
const SLACK_BYTES_PER_FILE: u64 = 64 << 10;

/// Refuses files that would not fit.
///
/// # Errors
///
/// [`Error::NoRoom`] with the free space.
pub(crate) fn check_room(dir: &Path, n_files: usize, n_bytes: u64) -> Result<()> {
    match free_disk_bytes(dir) {
        Some(free_bytes) => check_free(dir, free_bytes, n_files, n_bytes),
        // A full disk is detected while writing.
        None => Ok(()),
    }
}

fn check_free(dir: &Path, free_bytes: u64, n_files: usize, n_bytes: u64) -> Result<()> {
    let needed_bytes = n_bytes.saturating_add(SLACK_BYTES_PER_FILE * n_files as u64);
    if needed_bytes <= free_bytes {
        return Ok(());
    }
    Err(Error::NoRoom {
        what: dir.display().to_string(),
        needed_bytes,
        available_bytes: Some(free_bytes),
        needs: Vec::new(),
        remedy: Remedy::FreeDisk,
    })
}

#[cfg(test)]
mod tests {
    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[test]
    fn a_disk_too_small_is_refused_with_numbers() {
        let dir = Path::new("out");
        let needed = 5_000_000_000 + 2 * SLACK_BYTES_PER_FILE;
        assert!(check_free(dir, needed, 2, 5_000_000_000).is_ok());
        let error = check_free(dir, 4_000_000_000, 2, 5_000_000_000).unwrap_err().to_string();
        assert_eq!(
            error,
            "out: needs 5.00 GB (5,000,131,072 bytes); 4.00 GB (4,000,000,000 bytes) are \
             available; free some space, or name another place"
        );
        assert!(check_free(dir, u64::MAX - 1, 1, u64::MAX).is_err());
    }

    #[test]
    fn free_space_is_known_for_folders_that_are_not_there_yet() {
        let temp = TempDir::new();
        assert!(free_disk_bytes(&temp.path().join("not/yet")).is_some_and(|free| free > 0));
        let error = check_room(temp.path(), 1, 1 << 60).unwrap_err();
        assert!(matches!(error, Error::NoRoom { .. }), "{error}");
    }
}
