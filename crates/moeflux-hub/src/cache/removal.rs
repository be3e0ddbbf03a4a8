//! A model that goes, or a revision of it with what only it uses.
//!
//! **Invariant:** a reference goes before its snapshot and a snapshot before its contents, so that
//! an interruption leaves nothing that looks whole and is not. Links are removed, not what they
//! lead to; the one exception is the store that `huggingface_hub` shares between models, in the
//! cache's own folder.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::Folder;
use super::lock::Lock;
use super::scan::{files_below, names, own_bytes, references, taken_bytes};
use crate::error::{Error, Result};
use crate::file;
use crate::name::{RepoId, Wanted, is_commit, is_hex};

/// A list of the links to contents of the shared store.
const MANIFEST_BYTES_MAX: u64 = 16 << 20;

/// What is to be removed.
#[derive(Debug)]
pub struct Removal {
    folder: Folder,
    what: What,
    /// What the drive gains, besides contents of the shared store.
    n_bytes: u64,
    n_revisions_left: usize,
    /// Nobody downloads meanwhile.
    locks: Vec<Lock>,
}

#[derive(Debug)]
enum What {
    All,
    Commit { commit: String, refs: Vec<String>, blobs: Vec<PathBuf> },
}

impl Removal {
    /// All of a model.
    pub(super) fn of_all(folder: &Folder, wanted: &Wanted) -> Result<Self> {
        let locks = locks(folder, wanted)?;
        let n_bytes = files_below(folder.dir()).iter().map(|it| taken_bytes(it)).sum();
        let folder = folder.clone();
        Ok(Self { folder, what: What::All, n_bytes, n_revisions_left: 0, locks })
    }

    /// A revision of a model; all of the model if it is the only one.
    pub(super) fn of_commit(folder: &Folder, wanted: &Wanted, commit: &str) -> Result<Self> {
        let commits = names(&folder.snapshots())?;
        let others: Vec<&String> = commits.iter().filter(|it| *it != commit).collect();
        if !others.iter().any(|it| is_commit(it)) {
            return Self::of_all(folder, wanted);
        }
        let locks = locks(folder, wanted)?;
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
        let what = What::Commit {
            refs: references(folder).remove(commit).unwrap_or_default(),
            commit: commit.to_owned(),
            blobs: blobs.into_iter().collect(),
        };
        let (folder, n_revisions_left) = (folder.clone(), others.len());
        Ok(Self { folder, what, n_bytes, n_revisions_left, locks })
    }

    /// How much the drive gains.
    #[must_use]
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// How many other revisions stay.
    #[must_use]
    pub fn n_revisions_left(&self) -> usize {
        self.n_revisions_left
    }

    /// Removes it; answers how much the drive gained.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; the same call goes on where this one ended.
    pub fn run(self) -> Result<u64> {
        let folder = &self.folder;
        let blobs = match &self.what {
            What::All => files_below(&folder.blobs()),
            What::Commit { blobs, .. } => blobs.clone(),
        };
        let shared: Vec<PathBuf> =
            blobs.iter().filter_map(|it| shared_contents(folder.root(), it)).collect();
        match &self.what {
            What::All => remove_dir(folder.dir())?,
            What::Commit { commit, refs, blobs } => {
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

/// Refuses what lies elsewhere, and what is being downloaded.
fn locks(folder: &Folder, wanted: &Wanted) -> Result<Vec<Lock>> {
    for dir in [folder.dir(), &folder.blobs(), &folder.snapshots(), &folder.references()] {
        check_folder(dir)?;
    }
    let mut locks = Vec::new();
    for name in names(folder.locks())?.iter().filter(|it| it.ends_with(".lock")) {
        let Some(lock) = Lock::try_take(&folder.locks().join(name))? else {
            let problem =
                format!("{wanted} is being downloaded by another process: end that first");
            return Err(Error::Cache(problem));
        };
        locks.push(lock);
    }
    Ok(locks)
}

/// Refuses a folder that is a link: what it leads to is not the cache's.
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

/// Removes a folder if it is there; links in it are removed, not followed.
fn remove_dir(dir: &Path) -> Result<()> {
    if dir.symlink_metadata().is_err() {
        return Ok(());
    }
    fs::remove_dir_all(dir).map_err(Error::io("delete", dir))
}

/// The contents that a file of a snapshot is a link to, if these are the model's own.
fn blob_of(folder: &Folder, path: &Path) -> Option<PathBuf> {
    let target = resolved(path)?;
    (target.parent()? == folder.blobs()).then_some(target)
}

/// Where a link leads, by its text alone.
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

/// The contents of the shared store that contents of a model are a link to:
/// `blobs/01/0123..`, below the cache's folder.
fn shared_contents(root: &Path, blob: &Path) -> Option<PathBuf> {
    let target = resolved(blob)?;
    let name = target.file_name()?.to_str().filter(|it| is_hex(it, 64))?;
    (target == root.join("blobs").join(&name[..2]).join(name)).then_some(target)
}

/// Removes contents of the shared store if no model has a link to them any more.
fn remove_unused(root: &Path, shared: &Path) -> Result<u64> {
    let Some(_lock) = Lock::try_take(&shared.with_extension("lock"))? else { return Ok(0) };
    let manifest = shared.with_extension("refs");
    // Without a list nobody knows who else uses them.
    let Some(bytes) = file::read_if_there(&manifest, MANIFEST_BYTES_MAX)? else { return Ok(0) };
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let is_used = text.lines().any(|line| {
        let mut parts = line.split('/');
        let (repo, blobs, name) = (parts.next(), parts.next(), parts.next());
        let is_blob = blobs == Some("blobs") && name.is_some_and(|it| !it.contains(".."));
        let is_ours = repo.is_some_and(|it| RepoId::of_folder(it).is_some());
        // A line of another form may mean anything.
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
