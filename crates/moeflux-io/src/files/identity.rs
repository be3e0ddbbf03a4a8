//! Opens regular files, and detects whether a file has changed since it was opened.
//!
//! **Invariant:** nothing here blocks: a pipe without a writer, a socket and a device are refused
//! by their kind. This module is independent of file contents.

use std::fmt;
use std::fs::{self, File, FileType, Metadata};
use std::io;
use std::path::Path;
use std::time::SystemTime;

/// The state of a file at one moment, sufficient to notice that it was replaced or written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// Its length.
    pub len_bytes: u64,
    /// Time of the last write, if the file system reports it.
    pub modified: Option<SystemTime>,
    /// Time of the last change of contents, names or permissions, in nanoseconds since 1970, if the
    /// system reports it. Programs cannot set it. [`FileIdentity::check`] does not compare it,
    /// because many changes leave the contents alone.
    pub changed_ns: Option<i64>,
    /// Device and inode; volume and index on Windows.
    pub number: (u64, u64),
}

impl FileIdentity {
    /// Returns the identity of the file at `path`, as it is now.
    ///
    /// # Errors
    ///
    /// The system's error; [`FileChange::Unreadable`] displays it in one line.
    pub fn of_path(path: &Path) -> io::Result<Self> {
        let (file, metadata) = open_regular(path, 0)?;
        Self::of(&file, &metadata)
    }

    pub(crate) fn of(file: &File, metadata: &Metadata) -> io::Result<Self> {
        Ok(Self {
            len_bytes: metadata.len(),
            modified: metadata.modified().ok(),
            changed_ns: system::changed_ns(metadata),
            number: system::number(file, metadata)?,
        })
    }

    /// Compares this identity with the file's identity `now`.
    ///
    /// # Errors
    ///
    /// The first difference.
    pub fn check(self, now: Self) -> Result<(), FileChange> {
        if now.number != self.number {
            Err(FileChange::Replaced)
        } else if now.len_bytes != self.len_bytes {
            let (was_bytes, is_bytes) = (self.len_bytes, now.len_bytes);
            Err(FileChange::Length { was_bytes, is_bytes })
        } else if now.modified != self.modified {
            Err(FileChange::Written)
        } else {
            Ok(())
        }
    }
}

/// How a file differs from the one that was opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileChange {
    /// Another file has taken its name.
    Replaced,
    /// It was truncated or extended.
    Length {
        /// Length when it was opened.
        was_bytes: u64,
        /// Length now.
        is_bytes: u64,
    },
    /// It was written to.
    Written,
    /// The system cannot examine it any more.
    Unreadable(io::Error),
}

impl fmt::Display for FileChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replaced => f.write_str("was replaced by another file: open it again"),
            Self::Length { was_bytes, is_bytes } => write!(
                f,
                "had {was_bytes} bytes when it was opened and has {is_bytes} now: open it again"
            ),
            Self::Written => write!(f, "was modified after it was opened: open it again"),
            Self::Unreadable(source) => write!(f, "can no longer be examined: {source}"),
        }
    }
}

impl std::error::Error for FileChange {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable(source) => Some(source),
            _ => None,
        }
    }
}

/// Opens a regular file for reading, with additional flags of the system.
///
/// # Errors
///
/// The system's error. Anything but a regular file is refused with its kind; a dangling link is
/// distinguished from a missing file.
pub(crate) fn open_regular(path: &Path, flags: i32) -> io::Result<(File, Metadata)> {
    // Opening some devices has side effects, so the kind is checked first. The path may lead to
    // another file a moment later, so opening must not block either, and the kind is checked again.
    let metadata = fs::metadata(path).map_err(|error| explained(path, error))?;
    check_regular(metadata.file_type())?;
    let file = system::open(path, flags).map_err(|error| explained(path, error))?;
    let metadata = file.metadata()?;
    check_regular(metadata.file_type())?;
    system::make_blocking(&file)?;
    Ok((file, metadata))
}

/// Creates a file, or truncates an existing one. A pipe without a reader is an error.
///
/// # Errors
///
/// The system's error.
pub fn create_file(path: &Path) -> io::Result<File> {
    let file = system::create(path)?;
    system::make_blocking(&file)?;
    Ok(file)
}

/// Renames a file, and replaces an existing one. Some systems cannot replace a file that another
/// program has open: there, this retries for a short time.
///
/// # Errors
///
/// The system's error.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    system::rename(from, to)
}

/// Distinguishes a dangling link from a missing file: an optional file must not be considered
/// absent because of one.
fn explained(path: &Path, error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::NotFound {
        return error;
    }
    match fs::read_link(path) {
        Ok(target) => io::Error::new(
            io::ErrorKind::InvalidData,
            format!("is a link to {}, which does not exist", target.display()),
        ),
        Err(_) => error,
    }
}

fn check_regular(kind: FileType) -> io::Result<()> {
    if kind.is_file() {
        return Ok(());
    }
    if kind.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "is a directory"));
    }
    let problem = format!("is {}, not a regular file", system::kind_name(kind));
    Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
}

#[cfg(unix)]
mod system {
    use std::fs::{File, FileType, Metadata};
    use std::io;
    use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
    use std::path::Path;

    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    pub(super) fn open(path: &Path, flags: i32) -> io::Result<File> {
        let flags = flags | OFlags::NONBLOCK.bits().cast_signed();
        File::options().read(true).custom_flags(flags).open(path)
    }

    pub(super) fn create(path: &Path) -> io::Result<File> {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let mut options = File::options();
        let opened = options.write(true).create(true).truncate(true).custom_flags(flags).open(path);
        opened.map_err(|error| match error.raw_os_error() {
            Some(code) if code == rustix::io::Errno::NXIO.raw_os_error() => {
                io::Error::new(error.kind(), "is a pipe or device without a reader")
            }
            _ => error,
        })
    }

    /// If this flag stayed set on a file, `io_uring` would not wait for the drive.
    pub(super) fn make_blocking(file: &File) -> io::Result<()> {
        let flags = fcntl_getfl(file)?;
        Ok(fcntl_setfl(file, flags - OFlags::NONBLOCK)?)
    }

    #[expect(
        clippy::unnecessary_wraps,
        reason = "on other systems it reads the file, which may fail"
    )]
    pub(super) fn number(_: &File, metadata: &Metadata) -> io::Result<(u64, u64)> {
        Ok((metadata.dev(), metadata.ino()))
    }

    pub(super) fn changed_ns(metadata: &Metadata) -> Option<i64> {
        metadata.ctime().checked_mul(1_000_000_000)?.checked_add(metadata.ctime_nsec())
    }

    pub(super) fn kind_name(kind: FileType) -> &'static str {
        if kind.is_fifo() {
            "a pipe"
        } else if kind.is_socket() {
            "a socket"
        } else if kind.is_block_device() || kind.is_char_device() {
            "a device"
        } else {
            "of an unknown kind"
        }
    }
}

#[cfg(windows)]
mod system {
    use std::fs::{File, FileType, Metadata};
    use std::io;
    use std::os::windows::fs::OpenOptionsExt;
    use std::path::Path;
    use std::time::Duration;

    /// Other programs, such as virus scanners, hold a file open briefly: retry for 2 s.
    const N_TRIES: usize = 100;
    const PAUSE: Duration = Duration::from_millis(20);
    const ERROR_ACCESS_DENIED: i32 = 5;
    const ERROR_SHARING_VIOLATION: i32 = 32;

    pub(super) fn open(path: &Path, flags: i32) -> io::Result<File> {
        let open = || File::options().read(true).custom_flags(flags.cast_unsigned()).open(path);
        patiently(&[ERROR_SHARING_VIOLATION], open)
    }

    /// Windows does not replace a file that another program has open: it denies access until the
    /// file is closed.
    pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
        patiently(&[ERROR_SHARING_VIOLATION, ERROR_ACCESS_DENIED], || std::fs::rename(from, to))
    }

    /// Retries while one of these errors occurs.
    fn patiently<T>(passing: &[i32], mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        for _ in 1..N_TRIES {
            match act() {
                Err(error) if error.raw_os_error().is_some_and(|it| passing.contains(&it)) => {
                    std::thread::park_timeout(PAUSE);
                }
                done => return done,
            }
        }
        act()
    }

    pub(super) fn create(path: &Path) -> io::Result<File> {
        File::create(path)
    }

    #[expect(clippy::unnecessary_wraps, reason = "other systems change a flag, which may fail")]
    pub(super) fn make_blocking(_: &File) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn number(file: &File, _: &Metadata) -> io::Result<(u64, u64)> {
        let facts = winapi_util::file::information(file)?;
        Ok((facts.volume_serial_number(), facts.file_index()))
    }

    /// The standard library does not provide it.
    pub(super) fn changed_ns(_: &Metadata) -> Option<i64> {
        None
    }

    pub(super) fn kind_name(_: FileType) -> &'static str {
        "a device"
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[test]
    fn changes_are_distinguished() {
        let folder = TempDir::new();
        let path = folder.write("f", b"0123456789");
        let look = || FileIdentity::of_path(&path).unwrap();
        let before = look();
        before.check(look()).unwrap();

        let file = File::options().write(true).open(&path).unwrap();
        let earlier = file.metadata().unwrap().modified().unwrap() - Duration::from_secs(5);
        file.set_modified(earlier).unwrap();
        assert!(matches!(before.check(look()), Err(FileChange::Written)));
        file.set_len(4).unwrap();
        let change = before.check(look()).unwrap_err();
        assert!(matches!(change, FileChange::Length { was_bytes: 10, is_bytes: 4 }));
        // Not all systems can replace an open file.
        drop(file);

        // Another file with the same length and time.
        let other = folder.write("other", b"0123456789");
        let file = File::options().write(true).open(&other).unwrap();
        file.set_modified(before.modified.unwrap()).unwrap();
        fs::rename(&other, &path).unwrap();
        let change = before.check(look()).unwrap_err();
        assert!(change.to_string().starts_with("was replaced"), "{change}");
    }

    #[test]
    #[cfg(unix)]
    fn times_that_are_set_back_leave_a_trace() {
        let folder = TempDir::new();
        let path = folder.write("f", b"0123456789");
        let before = FileIdentity::of_path(&path).unwrap();
        // The clock of the file system is coarse: until its next step, the change is invisible.
        let now = loop {
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(before.modified.unwrap()).unwrap();
            let now = FileIdentity::of_path(&path).unwrap();
            if now.changed_ns != before.changed_ns {
                break now;
            }
        };
        before.check(now).unwrap();
        assert_eq!((now.number, now.modified), (before.number, before.modified));
    }

    #[test]
    #[cfg(windows)]
    fn a_file_that_another_program_holds_is_tried_again() {
        use std::os::windows::fs::OpenOptionsExt as _;

        let folder = TempDir::new();
        let path = folder.write("f", b"0123456789");
        let hold = || File::options().read(true).share_mode(0).open(&path).unwrap();
        let held = hold();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::park_timeout(Duration::from_millis(300));
                drop(held);
            });
            open_regular(&path, 0).unwrap();
        });
        let _held = hold();
        assert_eq!(open_regular(&path, 0).unwrap_err().raw_os_error(), Some(32));
    }

    #[test]
    #[cfg(unix)]
    fn only_regular_files_are_opened_and_nothing_waits() {
        let folder = TempDir::new();
        let pipe = folder.path().join("pipe");
        // rustix provides `mkfifo` only on some systems; the command exists on all.
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        let error = create_file(&pipe).unwrap_err();
        assert_eq!(error.to_string(), "is a pipe or device without a reader");
        for (path, kind) in [
            (&*pipe, "is a pipe, not a regular file"),
            (&link, "is a pipe, not a regular file"),
            (&socket, "is a socket, not a regular file"),
            (Path::new("/dev/zero"), "is a device, not a regular file"),
            (folder.path(), "is a directory"),
        ] {
            assert_eq!(open_regular(path, 0).unwrap_err().to_string(), kind, "{}", path.display());
        }
    }

    #[test]
    #[cfg(unix)]
    fn a_link_that_leads_nowhere_is_not_an_absent_file() {
        let folder = TempDir::new();
        let (link, gone) = (folder.path().join("link"), folder.path().join("gone"));
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        let error = open_regular(&link, 0).unwrap_err();
        assert_eq!(error.to_string(), "is a link to nowhere, which does not exist");
        assert_ne!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(open_regular(&gone, 0).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
