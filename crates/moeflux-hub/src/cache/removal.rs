//! Removes a model, or a revision with the blobs that only it uses.
//!
//! **Invariant:** a reference is removed before its snapshot and a snapshot before its blobs, so
//! that an interruption leaves nothing that looks complete but is not. Links are removed, but not
//! their targets; the only exception is the store in the cache's own folder that `huggingface_hub`
//! shares between models.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::ModelFolder;
use super::lock::Lock;
use super::scan::{files_below, names, own_bytes, references, taken_bytes};
use crate::error::{Error, Result};
use crate::file;
use crate::name::{ModelRef, RepoId, is_commit, is_hex};

/// Maximum size of the list of links to a blob in the shared store.
const MANIFEST_BYTES_MAX: u64 = 16 << 20;

/// A prepared removal.
#[derive(Debug)]
pub struct Removal {
    folder: ModelFolder,
    scope: RemovalScope,
    /// The bytes that are freed on the drive, without blobs of the shared store.
    n_bytes: u64,
    n_revisions_left: usize,
    /// Locks that prevent a concurrent download.
    locks: Vec<Lock>,
}

/// The files that a removal covers.
#[derive(Debug)]
enum RemovalScope {
    All,
    Commit { commit: String, refs: Vec<String>, blobs: Vec<PathBuf> },
}

impl Removal {
    /// Prepares the removal of a whole model.
    pub(super) fn of_all(folder: &ModelFolder, model: &ModelRef) -> Result<Self> {
        let locks = locks(folder, model)?;
        let n_bytes = files_below(folder.dir()).iter().map(|it| taken_bytes(it)).sum();
        let folder = folder.clone();
        Ok(Self { folder, scope: RemovalScope::All, n_bytes, n_revisions_left: 0, locks })
    }

    /// Prepares the removal of a revision, or of the whole model if it is the only one.
    pub(super) fn of_commit(folder: &ModelFolder, model: &ModelRef, commit: &str) -> Result<Self> {
        let commits = names(&folder.snapshots())?;
        let others: Vec<&String> = commits.iter().filter(|it| *it != commit).collect();
        if !others.iter().any(|it| is_commit(it)) {
            return Self::of_all(folder, model);
        }
        let locks = locks(folder, model)?;
        check_folder(&folder.snapshot(commit))?;
        let used = |commit: &str| -> BTreeSet<PathBuf> {
            let files = files_below(&folder.snapshot(commit));
            files.iter().filter_map(|it| blob_of(folder, it)).collect()
        };
        let mut blobs = used(commit);
        for other in &others {
            let kept = used(other);
            blobs.retain(|it| !kept.contains(it));
        }
        let copies = files_below(&folder.snapshot(commit));
        let n_bytes = blobs.iter().chain(&copies).map(|it| own_bytes(it)).sum();
        let scope = RemovalScope::Commit {
            refs: references(folder).remove(commit).unwrap_or_default(),
            commit: commit.to_owned(),
            blobs: blobs.into_iter().collect(),
        };
        let (folder, n_revisions_left) = (folder.clone(), others.len());
        Ok(Self { folder, scope, n_bytes, n_revisions_left, locks })
    }

    /// Returns the number of bytes that are freed.
    #[must_use]
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Returns the number of other revisions, which stay.
    #[must_use]
    pub fn n_revisions_left(&self) -> usize {
        self.n_revisions_left
    }

    /// Removes the files. Returns the number of freed bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; a repeated call continues where this one ended.
    pub fn run(self) -> Result<u64> {
        let folder = &self.folder;
        let blobs = match &self.scope {
            RemovalScope::All => files_below(&folder.blobs()),
            RemovalScope::Commit { blobs, .. } => blobs.clone(),
        };
        let shared: Vec<PathBuf> =
            blobs.iter().filter_map(|it| shared_contents(folder.root(), it)).collect();
        match &self.scope {
            RemovalScope::All => remove_dir(folder.dir())?,
            RemovalScope::Commit { commit, refs, blobs } => {
                for name in refs {
                    file::remove_if_there(&folder.reference(name)?)?;
                }
                remove_dir(&folder.snapshot(commit))?;
                file::remove_if_there(&folder.tree(commit))?;
                remove_dir(&folder.no_exist(commit))?;
                for blob in blobs {
                    file::remove_if_there(blob)?;
                    let mark = folder.marks().join(blob.file_name().unwrap_or_default());
                    file::remove_if_there(&mark)?;
                }
            }
        }
        let freed = shared.iter().map(|it| remove_unused(folder.root(), it));
        let freed_bytes: u64 = freed.sum::<Result<u64>>()?;
        drop(self.locks);
        Ok(self.n_bytes + freed_bytes)
    }
}

/// Refuses folders outside the cache and models that are being downloaded; returns the locks of the
/// model.
fn locks(folder: &ModelFolder, model: &ModelRef) -> Result<Vec<Lock>> {
    for dir in [folder.dir(), &folder.blobs(), &folder.snapshots(), &folder.references()] {
        check_folder(dir)?;
    }
    let mut locks = Vec::new();
    for name in names(folder.locks())?.iter().filter(|it| it.ends_with(".lock")) {
        let Some(lock) = Lock::try_take(&folder.locks().join(name))? else {
            let problem =
                format!("{model} is being downloaded by another process: stop that process first");
            return Err(Error::Cache(problem));
        };
        locks.push(lock);
    }
    Ok(locks)
}

/// Refuses a folder that is a link, because its target is not part of the cache.
fn check_folder(dir: &Path) -> Result<()> {
    if !dir.symlink_metadata().is_ok_and(|it| it.is_symlink()) {
        return Ok(());
    }
    let target = fs::read_link(dir).unwrap_or_default();
    Err(Error::Cache(format!(
        "{} is a link to {}, which is not part of the cache: remove both by hand",
        dir.display(),
        target.display()
    )))
}

/// Removes a folder if it exists; links in it are removed, not followed.
fn remove_dir(dir: &Path) -> Result<()> {
    if dir.symlink_metadata().is_err() {
        return Ok(());
    }
    fs::remove_dir_all(dir).map_err(Error::io("delete", dir))
}

/// Returns the blob that a file of a snapshot links to, if it is the model's own.
fn blob_of(folder: &ModelFolder, path: &Path) -> Option<PathBuf> {
    let target = resolved(path)?;
    (target.parent()? == folder.blobs()).then_some(target)
}

/// Returns the target of a link, from its text alone.
fn resolved(link: &Path) -> Option<PathBuf> {
    let target = fs::read_link(link).ok()?;
    let mut path = if target.is_absolute() { PathBuf::new() } else { link.parent()?.to_owned() };
    for part in target.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(path.pop()),
            other => path.push(other),
        }
    }
    Some(path)
}

/// Returns the blob in the shared store that a model's blob links to: `blobs/01/0123..`, below the
/// cache's folder.
fn shared_contents(root: &Path, blob: &Path) -> Option<PathBuf> {
    let target = resolved(blob)?;
    let name = target.file_name()?.to_str().filter(|it| is_hex(it, 64))?;
    (target == root.join("blobs").join(&name[..2]).join(name)).then_some(target)
}

/// Removes a blob from the shared store if no model links to it any more.
fn remove_unused(root: &Path, shared: &Path) -> Result<u64> {
    let Some(_lock) = Lock::try_take(&shared.with_extension("lock"))? else { return Ok(0) };
    let manifest = shared.with_extension("refs");
    // Without a list its other users are unknown.
    let Some(bytes) = file::read_if_there(&manifest, MANIFEST_BYTES_MAX)? else { return Ok(0) };
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let is_used = text.lines().any(|line| {
        let mut parts = line.split('/');
        let (repo, blobs, name) = (parts.next(), parts.next(), parts.next());
        let is_blob = blobs == Some("blobs") && name.is_some_and(|it| !it.contains(".."));
        let is_ours = repo.is_some_and(|it| RepoId::of_folder(it).is_some());
        // A line in an unknown form might refer to it.
        !(is_blob && is_ours) || resolved(&root.join(line)).is_some_and(|it| it == shared)
    });
    if is_used {
        return Ok(0);
    }
    let n_bytes = own_bytes(shared);
    file::remove_if_there(shared)?;
    file::remove_if_there(&manifest)?;
    Ok(n_bytes)
}
