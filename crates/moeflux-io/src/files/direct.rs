//! A file on a drive, read in whole blocks past the page cache, or through it.
//!
//! **Invariant:** [`DriveFile::caching`] is the mode in use, not the requested one. Direct reads
//! need offset, length and address at multiples of [`DriveFile::block_bytes`]. The file's identity
//! when opened is recorded, to detect changes.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::files::identity::{FileChange, FileIdentity, open_regular};

/// The path of bytes from the drive into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Directly into the reader's memory, in whole blocks.
    Direct,
    /// Through a copy in the page cache.
    PageCache,
}

/// Block size where the system does not report one: that of nearly all file systems.
pub const BLOCK_BYTES: usize = 4096;

/// A file opened for positional reads.
#[derive(Debug)]
pub struct DriveFile {
    file: File,
    path: PathBuf,
    caching: Caching,
    block_bytes: usize,
    identity: FileIdentity,
}

/// Properties of a drive's file.
#[derive(Clone, Copy, Debug)]
pub struct FileFacts<'a> {
    /// Path, for messages.
    pub path: &'a Path,
    /// Length when it was opened.
    pub len_bytes: u64,
    /// A power of two of which offsets, lengths and addresses must be multiples.
    pub block_bytes: usize,
}

impl DriveFile {
    /// Opens `path`, for direct reads if these are requested and the file system supports them.
    ///
    /// # Errors
    ///
    /// The system's error; an error that names the kind of file if it is not a regular file.
    pub fn open(path: &Path, caching: Caching) -> io::Result<Self> {
        let opened = match caching {
            Caching::Direct => system::open_direct(path)?,
            Caching::PageCache => None,
        };
        let (file, block_bytes, caching) = match opened {
            Some((file, block_bytes)) => (file, block_bytes, Caching::Direct),
            None => (open_regular(path, system::FLAGS)?.0, 1, Caching::PageCache),
        };
        let identity = FileIdentity::of(&file, &file.metadata()?)?;
        Ok(Self { file, path: path.to_owned(), caching, block_bytes, identity })
    }

    /// Returns the path that was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the length of the file when it was opened.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.identity.len_bytes
    }

    /// Returns how the file is read.
    #[must_use]
    pub fn caching(&self) -> Caching {
        self.caching
    }

    /// Returns the power of two of which offset, length and address of a read must be multiples: 1
    /// through the page cache. Only at the end of the file may a read return fewer bytes than
    /// requested.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Reads what is available from `offset_bytes`, with one system call.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn read_at(&self, offset_bytes: u64, target: &mut [u8]) -> io::Result<usize> {
        system::read_at(&self.file, offset_bytes, target)
    }

    /// Checks that the file has not changed since it was opened.
    ///
    /// # Errors
    ///
    /// The change.
    pub fn check_unchanged(&self) -> Result<(), FileChange> {
        let metadata = self.file.metadata().map_err(FileChange::Unreadable)?;
        let now = FileIdentity::of(&self.file, &metadata).map_err(FileChange::Unreadable)?;
        self.identity.check(now)
    }

    /// Returns the identity of the file when it was opened.
    #[must_use]
    pub fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// Asks the system to drop its cached copies of the file, to measure the drive. Copies in use
    /// by others stay.
    pub fn drop_copies(&self) {
        system::drop_copies(&self.file);
    }

    /// Returns the facts that a drive reports of the file.
    pub(crate) fn facts(&self) -> FileFacts<'_> {
        let (len_bytes, block_bytes) = (self.len_bytes(), self.block_bytes);
        FileFacts { path: &self.path, len_bytes, block_bytes }
    }

    /// Returns the system's file descriptor.
    #[cfg(target_os = "linux")]
    pub(crate) fn descriptor(&self) -> std::os::fd::RawFd {
        std::os::fd::AsRawFd::as_raw_fd(&self.file)
    }
}

#[cfg(unix)]
mod system {
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use crate::files::identity::open_regular;

    /// Flags of every file.
    pub(super) const FLAGS: i32 = 0;

    pub(super) fn read_at(file: &File, offset_bytes: u64, target: &mut [u8]) -> io::Result<usize> {
        file.read_at(target, offset_bytes)
    }

    /// Returns the file and its block size; `None` if its file system reads only through the page
    /// cache.
    #[cfg(target_os = "linux")]
    pub(super) fn open_direct(path: &Path) -> io::Result<Option<(File, usize)>> {
        use rustix::fs::{AtFlags, OFlags, StatxFlags, statx};

        let flags = OFlags::DIRECT.bits().cast_signed();
        let file = match open_regular(path, flags) {
            Ok((file, _)) => file,
            Err(error) if is_refusal(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let facts = statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
        let told = facts.filter(|it| it.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
        if let Some(facts) = told {
            let block = facts.stx_dio_offset_align.max(facts.stx_dio_mem_align) as usize;
            let can = facts.stx_dio_offset_align > 0 && block.is_power_of_two();
            return Ok((can && block <= crate::memory::slots::SLOT_ALIGN).then_some((file, block)));
        }
        // Kernels before 6.1 and some file systems do not report this: only a read shows it.
        let mut block = crate::memory::aligned::AlignedBytes::zeroed(super::BLOCK_BYTES)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        match file.read_at(&mut block, 0) {
            Ok(_) => Ok(Some((file, super::BLOCK_BYTES))),
            Err(error) if is_refusal(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether a file system refuses direct reads with this error.
    #[cfg(target_os = "linux")]
    fn is_refusal(error: &io::Error) -> bool {
        let code = error.raw_os_error();
        [libc::EINVAL, libc::EOPNOTSUPP].iter().any(|&it| code == Some(it))
    }

    #[cfg(target_vendor = "apple")]
    pub(super) fn open_direct(path: &Path) -> io::Result<Option<(File, usize)>> {
        let (file, _) = open_regular(path, 0)?;
        let is_direct = rustix::fs::fcntl_nocache(&file, true).is_ok();
        Ok(is_direct.then_some((file, super::BLOCK_BYTES)))
    }

    #[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
    pub(super) fn open_direct(_: &Path) -> io::Result<Option<(File, usize)>> {
        Ok(None)
    }

    #[cfg(target_os = "linux")]
    pub(super) fn drop_copies(file: &File) {
        let all = None;
        let asked = rustix::fs::fadvise(file, 0, all, rustix::fs::Advice::DontNeed);
        // A file system without a page cache has nothing to drop.
        let _ = asked;
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn drop_copies(_: &File) {}
}

#[cfg(windows)]
mod system {
    use std::fs::File;
    use std::io;
    use std::path::Path;

    use crate::files::identity::open_regular;
    use crate::files::overlapped::FILE_FLAG_OVERLAPPED;

    pub(super) use crate::files::overlapped::read_at;

    const FILE_FLAG_NO_BUFFERING: i32 = 0x2000_0000;

    /// Flags of every file.
    pub(super) const FLAGS: i32 = FILE_FLAG_OVERLAPPED;

    pub(super) fn open_direct(path: &Path) -> io::Result<Option<(File, usize)>> {
        match open_regular(path, FLAGS | FILE_FLAG_NO_BUFFERING) {
            Ok((file, _)) => Ok(Some((file, super::BLOCK_BYTES))),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn drop_copies(_: &File) {}
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[test]
    fn both_kinds_of_caching_read_the_same_bytes() {
        let folder = TempDir::new();
        let bytes: Vec<u8> = (0..20_001u32).map(|it| (it * 7 % 251) as u8).collect();
        let path = folder.write("f", &bytes);
        for asked in [Caching::Direct, Caching::PageCache] {
            let file = DriveFile::open(&path, asked).unwrap();
            assert_eq!(file.len_bytes(), 20_001);
            assert!(file.block_bytes().is_power_of_two());
            assert_eq!(file.block_bytes() == 1, file.caching() == Caching::PageCache);
            let mut read = crate::AlignedBytes::zeroed(24_576).unwrap();
            let n_bytes = file.read_at(0, &mut read).unwrap();
            assert_eq!(read[..n_bytes], bytes[..n_bytes]);
            assert_eq!(n_bytes, 20_001);
            file.drop_copies();
            file.check_unchanged().unwrap();
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_file_system_without_direct_reads_serves_the_page_cache() {
        let file = DriveFile::open(Path::new("/proc/version"), Caching::Direct).unwrap();
        assert_eq!((file.caching(), file.block_bytes()), (Caching::PageCache, 1));
    }

    #[test]
    fn only_files_can_be_opened() {
        let folder = TempDir::new();
        for caching in [Caching::Direct, Caching::PageCache] {
            DriveFile::open(folder.path(), caching).unwrap_err();
            let error = DriveFile::open(&folder.path().join("none"), caching).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn changes_are_noticed() {
        let folder = TempDir::new();
        let path = folder.write("f", [1; 5000]);
        let open = || DriveFile::open(&path, Caching::Direct).unwrap();
        let file = open();
        fs::write(&path, [1; 4999]).unwrap();
        let found = file.check_unchanged().unwrap_err();
        assert!(matches!(found, FileChange::Length { was_bytes: 5000, is_bytes: 4999 }));
        assert!(found.to_string().contains("4999"));

        let file = open();
        let writer = File::options().write(true).open(&path).unwrap();
        let before = writer.metadata().unwrap().modified().unwrap();
        writer.set_modified(before + Duration::from_secs(1)).unwrap();
        assert!(matches!(file.check_unchanged(), Err(FileChange::Written)));

        let file = open();
        fs::rename(&path, folder.path().join("g")).unwrap();
        // Replacing a file under its name leaves the opened one unchanged.
        file.check_unchanged().unwrap();
    }
}
