//! The source files of a pack: opened, read, and deleted once all their contents are packed.
//!
//! **Invariant:** an existing file has the header from which the plan was made. Files may be
//! missing, because an earlier run may have deleted them; only reading from a missing file is an
//! error.
//!
//! A shard may be a link, as in the cache of Hugging Face, where `snapshots` links to `blobs`.
//! Reads follow links. Deleting a link frees no space, so its target is deleted first.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use moeflux_io::{ReadError, ReadFile};

use crate::error::{Error, Result};
use crate::format::{Checkpoint, ShardFile};

/// The shards of a checkpoint. Those that still exist are open.
#[derive(Debug)]
pub(super) struct SourceFiles {
    shards: Vec<SourceShard>,
}

#[derive(Debug)]
struct SourceShard {
    shard: ShardFile,
    path: PathBuf,
    file: Option<ReadFile>,
    deletion: DeletionEffect,
}

/// The effects of deleting a shard.
#[derive(Clone, Debug)]
struct DeletionEffect {
    /// Target of the path, if it is a link.
    target: Option<PathBuf>,
    /// Space freed by deleting the file; `None` if the file has other hard links.
    freed: Option<FreedSpace>,
}

/// Space freed by deleting a file. A sparse file takes less than its length.
#[derive(Clone, Copy, Debug)]
struct FreedSpace {
    device: u64,
    n_bytes: u64,
}

impl SourceFiles {
    /// Opens the files that exist.
    ///
    /// # Errors
    ///
    /// If an existing file is not the one whose header is known.
    pub(super) fn open(checkpoint: &Checkpoint) -> Result<Self> {
        let shards: Result<_> = checkpoint.files.iter().map(SourceShard::open).collect();
        Ok(Self { shards: shards? })
    }

    /// Fills `target` from a file.
    ///
    /// # Errors
    ///
    /// If the file is missing, has changed or cannot be read.
    pub(super) fn read(&self, file_idx: usize, offset_bytes: u64, target: &mut [u8]) -> Result<()> {
        let shard = &self.shards[file_idx];
        let Some(file) = &shard.file else {
            let problem =
                "is gone, but was not yet packed: fetch it again, then repeat the command";
            return Err(Error::malformed(&shard.path, problem));
        };
        file.read_exact_at(offset_bytes, target).map_err(|error| match error {
            ReadError::Device { source, .. } => Error::io("read", &shard.path)(source),
            // The file was long enough when its header was checked, so its change is the better
            // error.
            other => self.check_unchanged(file_idx).err().unwrap_or_else(|| {
                let problem = format!("{other}: the file changed while it was packed");
                Error::malformed(&shard.path, problem)
            }),
        })
    }

    /// Refuses a file that was replaced or written to after its header was read: the bytes read may
    /// be a mixture.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`].
    pub(super) fn check_unchanged(&self, file_idx: usize) -> Result<()> {
        let SourceShard { shard, file, .. } = &self.shards[file_idx];
        if file.is_some() { shard.check_unchanged() } else { Ok(()) }
    }

    /// Returns whether the file exists.
    pub(super) fn is_there(&self, file_idx: usize) -> bool {
        self.shards[file_idx].file.is_some()
    }

    /// Returns whether the path is a dangling link, which an interrupted deletion leaves.
    pub(super) fn is_dead_link(&self, file_idx: usize) -> bool {
        let path = &self.shards[file_idx].path;
        fs::symlink_metadata(path).is_ok() && !path.exists()
    }

    /// Returns the bytes that deleting a file frees on the file system `device`.
    pub(super) fn freed_bytes(&self, file_idx: usize, device: Option<u64>) -> u64 {
        let shard = &self.shards[file_idx];
        let freed = shard.deletion.freed.filter(|freed| Some(freed.device) == device);
        freed.filter(|_| shard.file.is_some()).map_or(0, |freed| freed.n_bytes)
    }

    /// Refuses to delete files that other folders may use.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] with the link. Only a link from a cache's `snapshots` to its `blobs` may be
    /// deleted, and only if no other snapshot has it too.
    pub(super) fn check_deletable(&self) -> Result<()> {
        for shard in &self.shards {
            let Some(target) = &shard.deletion.target else { continue };
            if let Some(reason) = reason_to_keep(&shard.path, target)? {
                return Err(Error::Input(format!(
                    "{} is a link to {}, {reason}: replacing the source would delete that file; \
                     name the folder that has the files themselves, or keep the source",
                    shard.path.display(),
                    target.display()
                )));
            }
        }
        Ok(())
    }

    /// Deletes a file. The target of a link is deleted first, so that an interruption leaves a
    /// dangling link and not a file without a name.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; as [`SourceFiles::check_unchanged`], in which case nothing is deleted.
    pub(super) fn delete(&mut self, file_idx: usize) -> Result<()> {
        self.check_unchanged(file_idx)?;
        let shard = &mut self.shards[file_idx];
        // The space is freed only after all handles are closed.
        shard.file = None;
        if let Some(target) = &shard.deletion.target {
            remove(target)?;
        }
        remove(&shard.path)
    }
}

impl SourceShard {
    fn open(shard: &ShardFile) -> Result<Self> {
        let path = &shard.path;
        // An interrupted deletion leaves a dangling link.
        let file = if path.exists() { Some(shard.open()?) } else { None };
        let deletion = DeletionEffect::of(path)?;
        // A resumed run knows headers only from its journal.
        let identity = shard.identity.or(file.as_ref().map(ReadFile::identity));
        let shard = ShardFile { identity, ..shard.clone() };
        Ok(Self { path: path.clone(), shard, file, deletion })
    }
}

impl DeletionEffect {
    fn of(path: &Path) -> Result<Self> {
        let metadata = match fs::symlink_metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Self { target: None, freed: None });
            }
            Err(error) => return Err(Error::io("look at", path)(error)),
        };
        if !metadata.is_symlink() {
            return Ok(Self { target: None, freed: freed_by(&metadata) });
        }
        // A dangling link, left by an interrupted deletion.
        let Ok(target) = fs::canonicalize(path) else {
            return Ok(Self { target: None, freed: None });
        };
        let metadata = fs::metadata(&target).map_err(Error::io("look at", &target))?;
        Ok(Self { target: Some(target), freed: freed_by(&metadata) })
    }
}

/// Returns the space that deleting a file frees, if it has no other hard link.
#[cfg(unix)]
fn freed_by(metadata: &fs::Metadata) -> Option<FreedSpace> {
    use std::os::unix::fs::MetadataExt as _;

    // `blocks` counts units of 512 bytes, independent of the file system's block size.
    let n_bytes = metadata.blocks().saturating_mul(512).min(metadata.len());
    (metadata.nlink() == 1).then(|| FreedSpace { device: metadata.dev(), n_bytes })
}

#[cfg(not(unix))]
fn freed_by(_metadata: &fs::Metadata) -> Option<FreedSpace> {
    None
}

/// Returns the file system of a folder, or of its nearest existing parent.
#[cfg(unix)]
pub(super) fn device_of(dir: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;

    let dir = std::path::absolute(dir).ok()?;
    let found = dir.ancestors().find_map(|it| fs::metadata(it).ok())?;
    Some(found.dev())
}

#[cfg(not(unix))]
pub(super) fn device_of(_dir: &Path) -> Option<u64> {
    None
}

/// Returns the reason why a link's target must be kept, if there is one.
fn reason_to_keep(link: &Path, target: &Path) -> Result<Option<&'static str>> {
    let snapshot = link.parent().and_then(|dir| fs::canonicalize(dir).ok());
    let snapshots = snapshot.as_deref().and_then(Path::parent);
    let repository = snapshots.and_then(Path::parent);
    let is_cache = snapshots.is_some_and(|dir| dir.ends_with("snapshots"))
        && repository.map(|dir| dir.join("blobs")).as_deref() == target.parent();
    let (Some(snapshots), true) = (snapshots, is_cache) else {
        return Ok(Some("outside of the folder"));
    };
    for entry in fs::read_dir(snapshots).map_err(Error::io("list", snapshots))? {
        let other = entry.map_err(Error::io("list", snapshots))?.path();
        if Some(other.as_path()) == snapshot.as_deref() || !other.is_dir() {
            continue;
        }
        for entry in fs::read_dir(&other).map_err(Error::io("list", &other))? {
            let path = entry.map_err(Error::io("list", &other))?.path();
            if fs::canonicalize(&path).is_ok_and(|it| it == target) {
                return Ok(Some("which another snapshot of the same cache uses too"));
            }
        }
    }
    Ok(None)
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("delete", path)(error)),
        _ => Ok(()),
    }
}
