//! Lists the contents of the cache: models, their revisions, and whether these are complete.
//!
//! **Invariant:** reads only names, lengths and small files. Files that cannot be read count as
//! missing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use moeflux_io::OneLine;
use serde::Deserialize;

use super::ModelFolder;
use super::layout::INCOMPLETE;
use crate::error::{Error, Result};
use crate::file;
use crate::listing::Listing;
use crate::name::{RepoId, file_path, is_commit};
use crate::selection::{FileSelection, is_gguf, is_weights};

/// Maximum size of a listing. Listings have about 200 bytes per file, and the hub advises against
/// more than 100,000 files.
const TREE_BYTES_MAX: u64 = 64 << 20;

/// Maximum size of an index. The largest published ones have 15 MB.
const INDEX_BYTES_MAX: u64 = 256 << 20;

/// Maximum nesting depth of folders; deeper ones are skipped.
const DEPTH_MAX: usize = 32;

/// A model in the cache.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Repo {
    /// The name of the model.
    pub id: RepoId,
    /// The bytes of all its files, complete or not.
    pub n_bytes: u64,
    /// The part of these bytes that belongs to incomplete files.
    pub incomplete_bytes: u64,
    /// The revisions of the model.
    pub snapshots: Vec<Snapshot>,
}

/// A revision of a model.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// The commit of the revision.
    pub commit: String,
    /// The branches and tags that point to it.
    pub refs: Vec<String>,
    /// The folder of the snapshot.
    pub dir: PathBuf,
    /// The bytes of its files.
    pub n_bytes: u64,
    /// Whether it is complete.
    pub state: State,
    /// Whether it contains weights in the format of llama.cpp.
    pub has_gguf: bool,
}

/// The state of a revision in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// All files for running the model are present.
    Whole,
    /// Some files are missing.
    Missing {
        /// The number of missing files.
        n_files: usize,
        /// One of them.
        first: String,
    },
    /// The repository has no weights in safetensors.
    NoWeights,
}

impl State {
    /// Describes the missing files; `None` if the revision is complete or has no weights.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        match self {
            Self::Whole | Self::NoWeights => None,
            Self::Missing { n_files: 1, first } => Some(format!("{first} is missing")),
            Self::Missing { n_files, first } => {
                Some(format!("{n_files} files are missing, the first is {first}"))
            }
        }
    }
}

impl Repo {
    pub(super) fn scan(id: RepoId, folder: &ModelFolder) -> Result<Self> {
        let mut refs = references(folder);
        let mut snapshots = Vec::new();
        for commit in names(&folder.snapshots())?.into_iter().filter(|it| is_commit(it)) {
            let dir = folder.snapshot(&commit);
            if !dir.is_dir() {
                continue;
            }
            let files = files_below(&dir);
            snapshots.push(Snapshot {
                refs: refs.remove(&commit).unwrap_or_default(),
                n_bytes: files.iter().filter_map(|it| file::len_bytes(it)).sum(),
                has_gguf: files.iter().any(|it| is_gguf(&it.to_string_lossy())),
                state: state(folder, &commit)?,
                dir,
                commit,
            });
        }
        let blobs = files_below(&folder.blobs());
        let is_incomplete = |path: &&PathBuf| path.to_string_lossy().ends_with(INCOMPLETE);
        let incomplete_bytes = blobs.iter().filter(is_incomplete).map(|it| taken_bytes(it)).sum();
        let whole = blobs.iter().filter(|it| !is_incomplete(it));
        let whole_bytes: u64 = whole.filter_map(|it| file::len_bytes(it)).sum();
        // Where there are no links, snapshots contain files of their own.
        let copies = snapshots.iter().flat_map(|it| files_below(&it.dir));
        let copied_bytes: u64 = copies.map(|it| own_bytes(&it)).sum();
        let n_bytes = incomplete_bytes + whole_bytes + copied_bytes;
        Ok(Self { id, n_bytes, incomplete_bytes, snapshots })
    }
}

/// Returns the names in a folder, sorted; empty if the folder does not exist.
pub(super) fn names(dir: &Path) -> Result<Vec<String>> {
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(dir).map_err(Error::io("list", dir))?;
    let mut names: Vec<String> =
        entries.flatten().filter_map(|it| it.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

/// Returns files and links below a folder, without following links.
pub(super) fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut dirs = vec![(dir.to_owned(), 0)];
    while let Some((dir, depth)) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth < DEPTH_MAX => {
                    dirs.push((entry.path(), depth + 1));
                }
                Ok(kind) if !kind.is_dir() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files.sort();
    files
}

/// Returns the length of a file; 0 for a link.
pub(super) fn own_bytes(path: &Path) -> u64 {
    let metadata = fs::symlink_metadata(path).ok();
    metadata.filter(fs::Metadata::is_file).map_or(0, |it| it.len())
}

/// Returns the size of a file on the drive, which is less than its length if parts were never
/// written.
pub(super) fn taken_bytes(path: &Path) -> u64 {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file);
        metadata.map_or(0, |it| it.len().min(it.blocks() * 512))
    }
    #[cfg(not(unix))]
    {
        own_bytes(path)
    }
}

/// Returns branches and tags by commit.
pub(super) fn references(folder: &ModelFolder) -> BTreeMap<String, Vec<String>> {
    let dir = folder.references();
    let mut by_commit: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in files_below(&dir) {
        let bytes = file::read_if_there(&path, super::REFERENCE_BYTES_MAX).ok().flatten();
        let commit = bytes.and_then(|it| String::from_utf8(it).ok());
        let name = path.strip_prefix(&dir).unwrap_or(&path).to_string_lossy().replace('\\', "/");
        if let Some(commit) = commit {
            by_commit.entry(commit.trim().to_owned()).or_default().push(name);
        }
    }
    by_commit
}

/// Returns the state of a commit.
///
/// # Errors
///
/// [`Error::Io`].
pub(crate) fn state(folder: &ModelFolder, commit: &str) -> Result<State> {
    let dir = folder.snapshot(commit);
    let cached = file::read_if_there(&folder.tree(commit), TREE_BYTES_MAX)?;
    let missing: Vec<String> = match cached.and_then(|it| Listing::of_cached(&it)) {
        Some(listing) => {
            if !listing.files().any(|(path, _)| is_weights(path)) {
                return Ok(State::NoWeights);
            }
            let has = |path: &str| {
                let file = file_path(path).ok().map(|it| dir.join(it));
                let len_bytes = file.and_then(|it| file::len_bytes(&it));
                len_bytes.is_some() && len_bytes == listing.get(path).map(|it| it.n_bytes)
            };
            let wanted = FileSelection::Usual.of(&listing);
            wanted.into_iter().filter(|path| !has(path)).map(str::to_owned).collect()
        }
        None => match missing_by_names(&dir)? {
            Some(missing) => missing,
            None => return Ok(State::NoWeights),
        },
    };
    Ok(match missing.first() {
        None => State::Whole,
        Some(first) => {
            State::Missing { n_files: missing.len(), first: OneLine::name(first).to_string() }
        }
    })
}

/// Returns the files that a folder without a listing lacks, from its index and the numbers in its
/// names; `None` if it has no weights.
fn missing_by_names(dir: &Path) -> Result<Option<Vec<String>>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let index = file::read_if_there(&dir.join("model.safetensors.index.json"), INDEX_BYTES_MAX)?;
    let index: Option<Index> = index.and_then(|it| serde_json::from_slice(&it).ok());
    let mut wanted: BTreeSet<String> =
        index.into_iter().flat_map(|it| it.weight_map.into_values()).collect();
    for name in names(dir)?.into_iter().filter(|name| is_weights(name)) {
        wanted.extend(siblings(&name));
        wanted.insert(name);
    }
    if wanted.is_empty() {
        return Ok(None);
    }
    wanted.insert("config.json".to_owned());
    let is_missing =
        |name: &String| file_path(name).map_or(true, |it| file::len_bytes(&dir.join(it)).is_none());
    Ok(Some(wanted.into_iter().filter(is_missing).collect()))
}

/// Returns all names of a series, such as `model-00001-of-00003.safetensors`, from one of them.
fn siblings(name: &str) -> Vec<String> {
    /// Maximum number of files in a series; no model has more.
    const N_FILES_MAX: usize = 10_000;
    let parts = || {
        let stem = name.strip_suffix(".safetensors")?;
        let (before, n_files) = stem.rsplit_once("-of-")?;
        let (prefix, number) = before.rsplit_once('-')?;
        let is_number = number.bytes().all(|it| it.is_ascii_digit());
        Some((prefix, number.len(), n_files)).filter(|_| is_number)
    };
    let Some((prefix, width, n_files)) = parts() else { return Vec::new() };
    let n_files_read: usize = n_files.parse().unwrap_or(0);
    let numbers = 1..=n_files_read.min(N_FILES_MAX);
    numbers.map(|it| format!("{prefix}-{it:0width$}-of-{n_files}.safetensors")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_shard_names_the_others() {
        assert_eq!(
            siblings("model-00002-of-00002.safetensors"),
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        );
        for name in ["model.safetensors", "a-of-b.safetensors", "x-1-of-9", "m-x-of-2.safetensors"]
        {
            assert!(siblings(name).is_empty(), "{name}");
        }
        assert_eq!(siblings("m-1-of-99999999999.safetensors").len(), 10_000);
    }
}
