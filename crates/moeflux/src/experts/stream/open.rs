//! Opens a checkpoint's files as drives.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use moeflux_io::{BlockRead, Caching, DriveFile, N_THREADS_MAX, RealClock, ThreadsDrive};

use crate::error::{Error, Result};
use crate::experts::stream::Drives;
use crate::format::Checkpoint;

/// Reads in flight: enough to keep a drive of several GB/s busy between two calls of the loader.
const DEPTH: usize = 64;

/// Reading threads where the system has no better interface.
const N_THREADS: usize = if N_THREADS_MAX < 16 { N_THREADS_MAX } else { 16 };

impl Drives {
    /// Opens the files of a checkpoint, with direct reads or through the page cache; `mirror` is a
    /// folder with the same files.
    ///
    /// # Errors
    ///
    /// When a file cannot be opened, has changed since its header was read, or differs on the
    /// mirror.
    pub fn open(checkpoint: &Checkpoint, caching: Caching, mirror: Option<&Path>) -> Result<Self> {
        let paths: Vec<PathBuf> = checkpoint.files.iter().map(|file| file.path.clone()).collect();
        let primary = drive_of(&paths, caching, &|shard_idx, file| {
            checkpoint.files[shard_idx].check_identity(file.identity())
        })?;
        let mirrored = |folder: &Path| {
            let name = |path: &PathBuf| path.file_name().map(|name| folder.join(name));
            let paths: Vec<PathBuf> = paths.iter().filter_map(name).collect();
            drive_of(&paths, caching, &|shard_idx, file| {
                checkpoint.files[shard_idx].check_copy(file.path())
            })
        };
        let mirror = mirror.map(mirrored).transpose()?;
        Ok(Self { primary, mirror, caching, clock: Arc::new(RealClock::new()) })
    }
}

/// Opens files as a drive; `check` validates each file after it is opened.
fn drive_of(
    paths: &[PathBuf],
    caching: Caching,
    check: &dyn Fn(usize, &DriveFile) -> Result<()>,
) -> Result<Box<dyn BlockRead>> {
    let open = || {
        let opened = paths.iter().enumerate().map(|(shard_idx, path)| {
            let file = DriveFile::open(path, caching).map_err(Error::io("open", path))?;
            check(shard_idx, &file).map(|()| file)
        });
        opened.collect::<Result<Vec<DriveFile>>>()
    };
    drive_over(open, DEPTH)
}

/// Opens the best kind of drive that the system supports, over the files that `open` returns.
pub(super) fn drive_over(
    open: impl Fn() -> Result<Vec<DriveFile>>,
    depth: usize,
) -> Result<Box<dyn BlockRead>> {
    #[cfg(target_os = "linux")]
    if let Ok(drive) = moeflux_io::UringDrive::new(open()?, depth) {
        return Ok(Box::new(drive));
    }
    let files = open()?;
    let first = files.first().map_or(PathBuf::new(), |file| file.path().to_owned());
    let drive = ThreadsDrive::new(files, depth.min(N_THREADS), depth);
    Ok(Box::new(drive.map_err(Error::io("read with threads from", &first))?))
}
