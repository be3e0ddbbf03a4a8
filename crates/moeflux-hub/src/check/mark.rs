//! Marks: records of cached files whose hash has been verified, so that 100 GB are not hashed each
//! time.
//!
//! **Invariant:** a mark is valid for a file only while the system reports the same device, inode,
//! length, and times of the last change of its contents and of its inode. Programs cannot set the
//! last of these. A mark that cannot be read or written costs another hash, but never correctness.
//! A mark cannot detect a drive that returns bytes other than those written.

use std::fs::Metadata;
use std::path::Path;
use std::time::Duration;

use crate::cache::ModelFolder;
use crate::error::Result;
use crate::file;
use crate::hash::BlobId;
use crate::stop::StopFlag;

/// The first line of a mark, which identifies its format.
const HEAD: &str = "moeflux-mark 1";

/// Maximum number of files with the same contents: one among the blobs, and copies where links are
/// not possible.
const N_FILES_MAX: usize = 64;

/// Maximum size of a mark. A line has five numbers of at most 40 digits.
const MARK_BYTES_MAX: u64 = 64 << 10;

/// Maximum number of waits for a file system's clock, each twice as long as the one before: eleven
/// waits take 2.047 s. Most clocks advance every few milliseconds, that of FAT every two seconds.
const N_WAITS_MAX: u32 = 11;
const FIRST_WAIT: Duration = Duration::from_millis(1);

/// The metadata that the system reports for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp {
    pub(crate) len_bytes: u64,
    device: u64,
    inode: u64,
    modified_ns: i128,
    changed_ns: i128,
}

impl Stamp {
    /// Returns the stamp of the file at a path, following links; `None` if it is not a file.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
        Some(Self::of_metadata(&metadata))
    }

    #[cfg(unix)]
    fn of_metadata(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        Self {
            len_bytes: metadata.len(),
            device: metadata.dev(),
            inode: metadata.ino(),
            modified_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Uses the time of creation as the inode, because Windows reports no inode change time; it
    /// detects at least a file that was replaced.
    #[cfg(windows)]
    fn of_metadata(metadata: &Metadata) -> Self {
        use std::os::windows::fs::MetadataExt as _;
        Self {
            len_bytes: metadata.len(),
            device: 0,
            inode: metadata.creation_time(),
            modified_ns: metadata.last_write_time().into(),
            changed_ns: metadata.last_write_time().into(),
        }
    }

    fn line(&self) -> String {
        let Self { len_bytes, device, inode, modified_ns, changed_ns } = self;
        format!("{len_bytes} {device} {inode} {modified_ns} {changed_ns}\n")
    }
}

/// Returns whether a mark is valid for a file with this stamp.
pub(crate) fn is_valid(folder: &ModelFolder, blob: &BlobId, stamp: &Stamp) -> bool {
    lines(&folder.mark(blob)).contains(&stamp.line())
}

/// Records that a file has the right contents.
pub(crate) fn add(folder: &ModelFolder, blob: &BlobId, stamp: &Stamp) {
    let path = folder.mark(blob);
    let mut lines = lines(&path);
    if lines.contains(&stamp.line()) {
        return;
    }
    let n_old = lines.len().saturating_sub(N_FILES_MAX - 1);
    lines.drain(..n_old);
    lines.push(stamp.line());
    // If this fails, the file is hashed again.
    drop(file::write_atomic(&path, (HEAD.to_owned() + "\n" + &lines.concat()).as_bytes()));
}

fn lines(path: &Path) -> Vec<String> {
    let bytes = file::read_if_there(path, MARK_BYTES_MAX).ok().flatten().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.split_inclusive('\n');
    if lines.next().is_none_or(|head| head.trim_end() != HEAD) {
        return Vec::new();
    }
    lines.map(str::to_owned).collect()
}

/// Waits until the file system's clock has passed the last change of these files, so that a later
/// change gets a different time. Returns whether it has.
///
/// # Errors
///
/// [`Error::Cancelled`](crate::Error::Cancelled).
pub(crate) fn wait_for_clock(
    folder: &ModelFolder,
    files: &[Stamp],
    stop: &StopFlag,
) -> Result<bool> {
    let Some(youngest) = files.iter().map(|it| it.changed_ns).max() else { return Ok(true) };
    let path = folder.marks().join(format!("clock-{}", std::process::id()));
    let mut wait = FIRST_WAIT;
    let mut has_passed = false;
    for _ in 0..N_WAITS_MAX {
        // If nothing can be written here, neither can a mark.
        if file::write_atomic(&path, b"").is_err() {
            break;
        }
        has_passed = Stamp::of(&path).is_some_and(|it| it.changed_ns > youngest);
        if has_passed {
            break;
        }
        stop.wait(wait).inspect_err(|_| drop(file::remove_if_there(&path)))?;
        wait *= 2;
    }
    drop(file::remove_if_there(&path));
    Ok(has_passed)
}

#[cfg(test)]
mod tests {

    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[test]
    fn a_mark_vouches_for_a_file_until_anything_of_it_changes() {
        let temp = TempDir::new();
        let root = temp.path().to_owned();
        let folder = ModelFolder::new(&root, &"a/b".parse().unwrap());
        let blob = BlobId::git(&"0a".repeat(20)).unwrap();
        let stamp =
            Stamp { len_bytes: 1, device: 2, inode: 3, modified_ns: -4, changed_ns: 1 << 80 };
        assert!(!is_valid(&folder, &blob, &stamp));
        add(&folder, &blob, &stamp);
        assert!(is_valid(&folder, &blob, &stamp));
        assert!(!is_valid(&folder, &BlobId::git(&"0b".repeat(20)).unwrap(), &stamp));
        for other in [
            Stamp { len_bytes: 0, ..stamp },
            Stamp { device: 0, ..stamp },
            Stamp { inode: 0, ..stamp },
            Stamp { modified_ns: 0, ..stamp },
            Stamp { changed_ns: 0, ..stamp },
        ] {
            assert!(!is_valid(&folder, &blob, &other), "{other:?}");
        }
        // Of many files with the same contents, the last ones are kept.
        for inode in 0..N_FILES_MAX as u64 {
            add(&folder, &blob, &Stamp { inode: 100 + inode, ..stamp });
        }
        assert!(!is_valid(&folder, &blob, &stamp));
        assert!(is_valid(&folder, &blob, &Stamp { inode: 100, ..stamp }));
        assert_eq!(lines(&folder.mark(&blob)).len(), N_FILES_MAX);

        // A mark in an unknown format is valid for nothing.
        let text = std::fs::read_to_string(folder.mark(&blob)).unwrap();
        let last = Stamp { inode: 99 + N_FILES_MAX as u64, ..stamp };
        for wrong in [
            "",
            &text[1..],
            &text[..text.len() - 1],
            &(text.clone() + &" ".repeat(usize::try_from(MARK_BYTES_MAX).unwrap())),
        ] {
            std::fs::write(folder.mark(&blob), wrong).unwrap();
            assert!(!is_valid(&folder, &blob, &last), "{:.60}", wrong);
        }
    }

    #[test]
    fn waiting_for_a_stopped_clock_ends() {
        let temp = TempDir::new();
        let root = temp.path().to_owned();
        let folder = ModelFolder::new(&root, &"a/b".parse().unwrap());
        std::fs::create_dir_all(folder.dir()).unwrap();
        std::fs::write(root.join("file"), "x").unwrap();
        let now = Stamp::of(&root.join("file")).unwrap();
        let stop = StopFlag::default();
        assert!(wait_for_clock(&folder, &[], &stop).unwrap());
        assert!(wait_for_clock(&folder, &[now], &stop).unwrap());
        let later = Stamp { changed_ns: i128::MAX, ..now };
        assert!(!wait_for_clock(&folder, &[now, later], &stop).unwrap());
        assert_eq!(std::fs::read_dir(folder.marks()).unwrap().count(), 0);
        stop.set();
        assert!(wait_for_clock(&folder, &[later], &stop).is_err());
        // If nothing can be written, there is no wait.
        std::fs::remove_dir_all(folder.marks()).unwrap();
        std::fs::write(folder.marks(), "a file").unwrap();
        assert!(!wait_for_clock(&folder, &[now], &StopFlag::default()).unwrap());
    }
}
