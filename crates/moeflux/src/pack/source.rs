//! The files that are packed: opened, read, and deleted once all that they hold is elsewhere.
//!
//! **Invariant:** a file that is there has the header that the plan was made from. Files may be
//! missing: an earlier run may have replaced them; only reading from one is an error.
//!
//! A shard may be a link, as in the cache of Hugging Face, where it points from `snapshots` to
//! `blobs`. Reading follows links; deleting one would free nothing, so that its target goes first.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use moeflux_io::{ReadError, ReadFile};

use crate::error::{Error, Result};
use crate::format::{Checkpoint, ShardFile};

/// The shards of a checkpoint, those that are still there opened.
#[derive(Debug)]
pub(super) struct SourceFiles {
    shards: Vec<SourceShard>,
}

#[derive(Debug)]
struct SourceShard {
    shard: ShardFile,
    path: PathBuf,
    file: Option<ReadFile>,
    disposal: Disposal,
}

/// What deleting a shard takes and brings.
#[derive(Clone, Debug)]
struct Disposal {
    /// What the path points to, where it is a link.
    target: Option<PathBuf>,
    /// The file system that gains room, and how much; `None`: none does, because the file has other
    /// names.
    freed: Option<Freed>,
}

/// Room that deleting a file makes. A file with holes takes less than its length.
#[derive(Clone, Copy, Debug)]
struct Freed {
    device: u64,
    n_bytes: u64,
}

impl SourceFiles {
    /// Opens what is there.
    ///
    /// # Errors
    ///
    /// If a file is there and is not the one whose header is known.
    pub(super) fn open(checkpoint: &Checkpoint) -> Result<Self> {
        let shards: Result<_> = checkpoint.files.iter().map(SourceShard::open).collect();
        Ok(Self { shards: shards? })
    }

    /// Fills `target` from a file.
    ///
    /// # Errors
    ///
    /// When the file is gone, ends early or cannot be read.
    pub(super) fn read(&self, file_idx: usize, offset_bytes: u64, target: &mut [u8]) -> Result<()> {
        let shard = &self.shards[file_idx];
        let Some(file) = &shard.file else {
            let problem =
                "is gone, but was not yet packed: fetch it again, then repeat the command";
            return Err(Error::malformed(&shard.path, problem));
        };
        file.read_exact_at(offset_bytes, target).map_err(|error| match error {
            ReadError::Device { source, .. } => Error::io("read", &shard.path)(source),
            // It was long enough when its header was checked: what became of it says more.
            other => self.check_unchanged(file_idx).err().unwrap_or_else(|| {
                let problem = format!("{other}: the file changed while it was packed");
                Error::malformed(&shard.path, problem)
            }),
        })
    }

    /// Refuses a file that was replaced or written to since its header was read: what was read of
    /// it may be a mixture.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`].
    pub(super) fn check_unchanged(&self, file_idx: usize) -> Result<()> {
        let SourceShard { shard, file, .. } = &self.shards[file_idx];
        if file.is_some() { shard.check_unchanged() } else { Ok(()) }
    }

    /// Whether the file is there.
    pub(super) fn is_there(&self, file_idx: usize) -> bool {
        self.shards[file_idx].file.is_some()
    }

    /// Whether the name is still there and leads nowhere: an interrupted deletion.
    pub(super) fn is_dead_link(&self, file_idx: usize) -> bool {
        let path = &self.shards[file_idx].path;
        fs::symlink_metadata(path).is_ok() && !path.exists()
    }

    /// Bytes that deleting a file gives back to this file system.
    pub(super) fn freed_bytes(&self, file_idx: usize, device: Option<u64>) -> u64 {
        let shard = &self.shards[file_idx];
        let freed = shard.disposal.freed.filter(|freed| Some(freed.device) == device);
        freed.filter(|_| shard.file.is_some()).map_or(0, |freed| freed.n_bytes)
    }

    /// Refuses to delete what other folders may use.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] naming a link that leads elsewhere than a cache's `snapshots` to its
    /// `blobs`, or that another snapshot has too.
    pub(super) fn check_deletable(&self) -> Result<()> {
        for shard in &self.shards {
            let Some(target) = &shard.disposal.target else { continue };
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

    /// Deletes a file: what a link leads to first, so that an interruption leaves a dead link and
    /// not a file without a name.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; as [`SourceFiles::check_unchanged`], then nothing is deleted.
    pub(super) fn delete(&mut self, file_idx: usize) -> Result<()> {
        self.check_unchanged(file_idx)?;
        let shard = &mut self.shards[file_idx];
        // Its room is given back when nobody has it open.
        shard.file = None;
        if let Some(target) = &shard.disposal.target {
            remove(target)?;
        }
        remove(&shard.path)
    }
}

impl SourceShard {
    fn open(shard: &ShardFile) -> Result<Self> {
        let path = &shard.path;
        // What an interrupted deletion leaves is a link to nothing.
        let file = if path.exists() { Some(shard.open()?) } else { None };
        let disposal = Disposal::of(path)?;
        // A run that goes on knows headers from its journal only.
        let identity = shard.identity.or(file.as_ref().map(ReadFile::identity));
        let shard = ShardFile { identity, ..shard.clone() };
        Ok(Self { path: path.clone(), shard, file, disposal })
    }
}

impl Disposal {
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
        // A dead link is what an interrupted deletion leaves.
        let Ok(target) = fs::canonicalize(path) else {
            return Ok(Self { target: None, freed: None });
        };
        let metadata = fs::metadata(&target).map_err(Error::io("look at", &target))?;
        Ok(Self { target: Some(target), freed: freed_by(&metadata) })
    }
}

/// What deleting a file frees, if that file has no other name.
#[cfg(unix)]
fn freed_by(metadata: &fs::Metadata) -> Option<Freed> {
    use std::os::unix::fs::MetadataExt as _;

    // The unit of the count, whatever the file system's blocks.
    let n_bytes = metadata.blocks().saturating_mul(512).min(metadata.len());
    (metadata.nlink() == 1).then(|| Freed { device: metadata.dev(), n_bytes })
}

#[cfg(not(unix))]
fn freed_by(_metadata: &fs::Metadata) -> Option<Freed> {
    None
}

/// The file system that a folder, or the first of its parents that is there, lies on.
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

/// Why the target of a link must stay, if it must.
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
