//! The files of this machine, read past the page cache where the system can.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use moeflux_io::{AlignedBytes, Caching, DriveFile};

use crate::files::{Files, FolderEntry, HeldLock, NewFile, OpenedFile};

/// The files of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct MachineFiles;

#[derive(Debug)]
struct BlockFile {
    file: DriveFile,
    memory: AlignedBytes,
    /// What of the memory was asked for.
    start: usize,
    end: usize,
}

#[derive(Debug)]
struct CreatedFile(File);

#[derive(Debug)]
struct FileLock {
    _file: File,
}

impl HeldLock for FileLock {}

impl Files for MachineFiles {
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<FolderEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            // A file may go while its folder is listed. Links are not followed.
            let (Ok(facts), Ok(name)) = (entry.metadata(), entry.file_name().into_string()) else {
                continue;
            };
            if !facts.is_file() && !facts.is_dir() {
                continue;
            }
            let modified = facts.modified().ok().and_then(|it| it.duration_since(UNIX_EPOCH).ok());
            let (n_bytes, is_folder) = (facts.len(), facts.is_dir());
            let modified = modified.unwrap_or_default();
            entries.push(FolderEntry { name, n_bytes, modified, is_folder });
        }
        Ok(entries)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenedFile>> {
        Ok(Box::new(BlockFile::open(path, Caching::Direct)?))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>> {
        let mut options = File::options();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        Ok(Box::new(CreatedFile(options.open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        moeflux_io::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        // Windows cannot open folders so; its file systems keep their entries in a journal.
        if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
    }

    fn set_modified(&self, path: &Path, time: Duration) -> io::Result<()> {
        let time = UNIX_EPOCH.checked_add(time).ok_or(io::ErrorKind::InvalidInput)?;
        File::options().write(true).open(path)?.set_modified(time)
    }

    fn free_bytes(&self, folder: &Path) -> Option<u64> {
        moeflux_io::free_disk_bytes(folder)
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn HeldLock>>> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(FileLock { _file: file }))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        getrandom::fill(bytes).map_err(|error| io::Error::other(error.to_string()))
    }
}

impl BlockFile {
    fn open(path: &Path, caching: Caching) -> io::Result<Self> {
        let file = DriveFile::open(path, caching)?;
        let memory = AlignedBytes::zeroed(0).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { file, memory, start: 0, end: 0 })
    }
}

impl OpenedFile for BlockFile {
    fn len_bytes(&self) -> u64 {
        self.file.len_bytes()
    }

    fn load(&mut self, offset_bytes: u64, n_bytes: usize) -> io::Result<()> {
        (self.start, self.end) = (0, 0);
        let block = self.file.block_bytes() as u64;
        let before = offset_bytes % block;
        let start = usize::try_from(before).map_err(io::Error::other)?;
        let end = start.checked_add(n_bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let memory_bytes = end.next_multiple_of(self.file.block_bytes());
        if memory_bytes > self.memory.len() {
            self.memory = AlignedBytes::zeroed(memory_bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        }
        let mut n_read = 0;
        while n_read < end {
            let target = &mut self.memory[n_read..memory_bytes];
            let n_bytes = match self.file.read_at(offset_bytes - before + n_read as u64, target) {
                Ok(n_bytes) => n_bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            n_read += n_bytes;
            // Only the end of the file cuts a block.
            if n_bytes == 0 || (n_read < end && !(n_read as u64).is_multiple_of(block)) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        (self.start, self.end) = (start, end);
        Ok(())
    }

    fn loaded(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }
}

impl Write for CreatedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl NewFile for CreatedFile {
    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[test]
    fn any_range_is_read_directly_or_through_the_page_cache() {
        let folder = TempDir::new();
        let bytes: Vec<u8> = (0..20_001_u32).map(|it| (it * 7 % 251) as u8).collect();
        let path = folder.write("f", &bytes);
        for caching in [Caching::Direct, Caching::PageCache] {
            let mut file = BlockFile::open(&path, caching).unwrap();
            assert_eq!((file.len_bytes(), file.loaded()), (20_001, &[][..]));
            for (offset, n_bytes) in [
                (0, 1),
                (0, 4096),
                (1, 4096),
                (4095, 2),
                (4096, 8192),
                (8192, 11_809),
                (16_384, 3_617),
                (20_000, 1),
                (0, 20_001),
            ] {
                file.load(offset as u64, n_bytes).unwrap();
                assert_eq!(file.loaded(), &bytes[offset..offset + n_bytes]);
            }
            for (offset, n_bytes) in [(20_001, 1), (20_000, 2), (16_384, 4096), (1 << 40, 1)] {
                let error = file.load(offset, n_bytes).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
                assert!(file.loaded().is_empty());
            }
        }
    }
}
