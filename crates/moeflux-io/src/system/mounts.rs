//! Reads Linux's table of mounted file systems.
//!
//! **Invariant:** lines that cannot be parsed are skipped. Without such a table there are no
//! mounts; nothing fails.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// One mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// `254:0`: the block device, unless the file system has none or several.
    pub device: String,
    /// The mounted folder of the file system.
    pub root: PathBuf,
    /// The mount point.
    pub point: PathBuf,
    /// Type of the file system: `ext4`.
    pub kind: String,
    /// Source of the file system: `/dev/vda`, `server:/export`.
    pub source: String,
    /// Options of the file system: `rw,memory`.
    pub options: String,
}

/// Returns all mounts.
#[must_use]
pub fn mounts() -> Vec<Mount> {
    parse(&fs::read("/proc/self/mountinfo").unwrap_or_default())
}

/// Returns the mount that contains a path: the deepest one; the last of several.
#[must_use]
pub fn mount_of<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let around = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    around.max_by_key(|mount| mount.point.components().count())
}

fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// Parses a line: `27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw`.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = words.iter().position(|word| *word == b"-")?;
    let [_, _, device, root, point, ..] = words[..dash] else { return None };
    let [kind, source, options, ..] = words[dash + 1..] else { return None };
    let text = |word: &[u8]| String::from_utf8_lossy(&unescaped(word)).into_owned();
    Some(Mount {
        device: text(device),
        root: path(root),
        point: path(point),
        kind: text(kind),
        source: text(source),
        options: text(options),
    })
}

#[cfg(unix)]
fn path(word: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStringExt as _;
    PathBuf::from(OsString::from_vec(unescaped(word)))
}

#[cfg(not(unix))]
fn path(word: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from(String::from_utf8_lossy(&unescaped(word)).into_owned()))
}

/// Decodes escapes: blanks and backslashes are written as `\040` and the like.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, after @ ..] = rest {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|it| std::str::from_utf8(it).ok());
        match octal.and_then(|it| u8::from_str_radix(it, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
        27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n\
        31 23 0:28 / /sys/fs/cgroup rw shared:9 master:1 - tmpfs tmpfs rw,mode=755\n\
        35 31 0:32 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        40 27 0:50 / /mnt/my\\040data rw - nfs4 server:/a\\134b rw\n\
        41 27 0:51 / /mnt/my\\040data rw - xfs /dev/sdb rw\n";

    #[test]
    fn lines_with_and_without_optional_words_are_read() {
        let mounts = parse(TABLE.as_bytes());
        assert_eq!(mounts.len(), 5);
        assert_eq!((mounts[0].device.as_str(), mounts[0].kind.as_str()), ("254:0", "ext4"));
        assert_eq!(mounts[1].options, "rw,mode=755");
        assert_eq!(mounts[2].root, Path::new("/docker/x"));
        assert_eq!(mounts[3].source, "server:/a\\b");
        assert_eq!(mounts[3].point, Path::new("/mnt/my data"));
    }

    #[test]
    fn the_deepest_and_last_mount_has_the_path() {
        let mounts = parse(TABLE.as_bytes());
        let kind = |path: &str| mount_of(&mounts, Path::new(path)).map(|it| it.kind.as_str());
        assert_eq!(kind("/home/me"), Some("ext4"));
        assert_eq!(kind("/mnt/my data/model"), Some("xfs"));
        assert_eq!(kind("/mnt/my database"), Some("ext4"));
        assert_eq!(kind("relative"), None);
    }

    #[test]
    fn odd_lines_are_left_out() {
        for text in ["", "\n\n", "a - b", "1 2 3:4 / - ext4", "1 2 3:4 / / rw - ext4 x", "\\", "-"]
        {
            assert_eq!(parse(text.as_bytes()), [], "{text}");
        }
        assert_eq!(unescaped(b"a\\04"), b"a\\04");
        assert_eq!(unescaped(b"\\999\\101"), b"\\999A");
    }
}
