//! On-disk cache of compiled kernels, so that a model opens without the driver's compiler.
//!
//! **Invariant:** a file that is truncated, corrupt, or of another adapter is treated as missing,
//! and a failed write only costs the next run time.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use moeflux::provider::format::read_file;
use twox_hash::XxHash3_64;

/// Magic bytes of a file: its type and version.
const MAGIC: &[u8; 8] = b"moeflux1";

/// Magic, and the checksum of the data after it.
const HEADER_BYTES: usize = 16;

/// Upper bound on the file size; a larger file is not ours.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Compiled kernels of one adapter.
#[derive(Debug)]
pub(crate) struct PipelineCacheFile {
    pub(crate) cache: wgpu::PipelineCache,
    path: PathBuf,
    /// Checksum of the file's data.
    saved_sum: Mutex<u64>,
}

impl PipelineCacheFile {
    /// Creates the cache from the data that [`read`] returned.
    pub(crate) fn new(cache: wgpu::PipelineCache, path: PathBuf, data: Option<&[u8]>) -> Self {
        Self { cache, path, saved_sum: Mutex::new(data.map_or(0, XxHash3_64::oneshot)) }
    }

    /// Writes the file atomically if kernels were compiled since it was last read or written.
    pub(crate) fn save(&self) -> io::Result<()> {
        let Some(data) = self.cache.get_data() else { return Ok(()) };
        let sum = XxHash3_64::oneshot(&data);
        let mut saved_sum = self.saved_sum.lock().unwrap_or_else(PoisonError::into_inner);
        if *saved_sum != sum {
            write(&self.path, &data)?;
            *saved_sum = sum;
        }
        Ok(())
    }
}

/// Returns the path of an adapter's file in a folder, if its API supports caches.
pub(crate) fn path_of(folder: &Path, adapter: &wgpu::AdapterInfo) -> Option<PathBuf> {
    wgpu::util::pipeline_cache_key(adapter).map(|key| folder.join(key))
}

/// Returns the data of a file, if it is intact.
pub(crate) fn read(path: &Path) -> Option<Vec<u8>> {
    let bytes = read_file(path, FILE_BYTES_MAX).ok()?;
    let (header, data) = bytes.split_at_checked(HEADER_BYTES)?;
    let (magic, sum) = header.split_at(MAGIC.len());
    let is_whole = magic == MAGIC && sum == XxHash3_64::oneshot(data).to_le_bytes();
    is_whole.then(|| data.to_vec())
}

fn write(path: &Path, data: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // All processes share one name, so that the next run overwrites the file of a killed one. If
    // two write concurrently, the checksum detects the mixture, and the kernels are compiled again.
    let unfinished = path.with_extension("unfinished");
    let sum = XxHash3_64::oneshot(data).to_le_bytes();
    let done = fs::write(&unfinished, [&MAGIC[..], &sum, data].concat());
    let done = done.and_then(|()| fs::rename(&unfinished, path));
    if done.is_err() {
        fs::remove_file(&unfinished).ok();
    }
    done
}

#[cfg(test)]
mod tests {

    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[test]
    fn only_a_whole_file_is_read() {
        let temp = TempDir::new();
        let folder = temp.path().to_owned();
        let path = folder.join("kernels");
        assert_eq!(read(&path), None, "there is no file");
        write(&path, b"compiled").unwrap();
        assert_eq!(read(&path).as_deref(), Some(&b"compiled"[..]));
        write(&path, b"compiled again").unwrap();
        assert_eq!(read(&path).as_deref(), Some(&b"compiled again"[..]));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing unfinished is left");
        let whole = fs::read(&path).unwrap();
        for n_bytes in 0..whole.len() {
            fs::write(&path, &whole[..n_bytes]).unwrap();
            assert_eq!(read(&path), None, "the first {n_bytes} bytes");
        }
        for changed in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[changed] ^= 1;
            fs::write(&path, bytes).unwrap();
            assert_eq!(read(&path), None, "byte {changed} changed");
        }
    }
}
