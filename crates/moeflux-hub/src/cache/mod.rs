//! The cache on the drive: locates, lists and removes models.
//!
//! **Invariant:** nothing is written or removed outside the cache's folder; links are read and
//! removed, and never followed for a change.

mod layout;
mod lock;
mod link;
pub(crate) mod journal;
mod scan;
mod removal;

pub(crate) use layout::ModelFolder;
pub(crate) use link::BlobAge;
pub(crate) use lock::Lock;
pub use removal::Removal;
pub use scan::{Repo, Snapshot, State};

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::file;
use crate::name::quant::{self, Quant};
use crate::name::{ModelRef, RepoId, is_commit};

/// Minimum length of an abbreviated commit; shorter ones are ambiguous.
const COMMIT_DIGITS_MIN: usize = 5;

/// Maximum size of a reference, which contains forty digits.
const REFERENCE_BYTES_MAX: u64 = 4096;

/// A cache of the hub.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// Creates the cache in a folder, which need not exist.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Returns the folder of the cache.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the folder of a model.
    pub(crate) fn folder(&self, id: &RepoId) -> ModelFolder {
        ModelFolder::new(&self.root, id)
    }

    /// Lists the models in the cache, by name.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the folder cannot be listed; a missing cache is empty.
    pub fn repos(&self) -> Result<Vec<Repo>> {
        let names = scan::names(&self.root)?;
        let ids = names.iter().filter_map(|name| RepoId::of_folder(name));
        let mut repos = Vec::new();
        for id in ids {
            let folder = self.folder(&id);
            if folder.dir().is_dir() {
                repos.push(Repo::scan(id, &folder)?);
            }
        }
        repos.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(repos)
    }

    /// Returns whether the cache contains anything of a model.
    #[must_use]
    pub fn has(&self, id: &RepoId) -> bool {
        self.folder(id).dir().is_dir()
    }

    /// Returns the folder of a model that is complete, or its GGUF file of the requested kind; of
    /// several parts, the first.
    ///
    /// # Errors
    ///
    /// [`Error::Cache`] that names the missing files.
    pub fn find(&self, model: &ModelRef) -> Result<PathBuf> {
        let folder = self.folder(&model.id);
        let root = self.root.display();
        if !folder.dir().is_dir() {
            return Err(Error::Cache(format!("{} is not in the cache {root}", model.id)));
        }
        let Some(commit) = commit(&folder, model)? else {
            let problem = format!("{model} is not in the cache {root}, or is incomplete");
            return Err(Error::Cache(problem));
        };
        let dir = folder.snapshot(&commit);
        match scan::state(&folder, &commit)?.missing() {
            None => match model.quant() {
                Some(quant) => gguf(&dir, model, quant),
                None => Ok(dir),
            },
            Some(missing) => {
                let dir = dir.display();
                Err(Error::Cache(format!("{model} is incomplete: in {dir}, {missing}")))
            }
        }
    }

    /// Prepares the removal of a model, or of one of its revisions.
    ///
    /// # Errors
    ///
    /// [`Error::Cache`] if it is not in the cache, or is being downloaded; [`Error::Io`].
    pub fn removal(&self, model: &ModelRef) -> Result<Removal> {
        let folder = self.folder(&model.id);
        let root = self.root.display();
        if folder.dir().symlink_metadata().is_err() {
            return Err(Error::Cache(format!("{} is not in the cache {root}", model.id)));
        }
        if model.named_revision().is_none() {
            return Removal::of_all(&folder, model);
        }
        match commit(&folder, model)? {
            Some(commit) => Removal::of_commit(&folder, model, &commit),
            None => Err(Error::Cache(format!("{model} is not in the cache {root}"))),
        }
    }
}

/// Returns the GGUF file of this kind in a snapshot's folder.
fn gguf(dir: &Path, model: &ModelRef, quant: &Quant) -> Result<PathBuf> {
    let relative = |path: &Path| {
        Some(path.strip_prefix(dir).ok()?.to_str()?.replace(std::path::MAIN_SEPARATOR, "/"))
    };
    let mut paths: Vec<String> =
        scan::files_below(dir).iter().filter_map(|it| relative(it)).collect();
    paths.sort_unstable();
    let found = quant.of(paths.iter().map(String::as_str));
    let models: Vec<&str> = quant::models(&found).into_iter().collect();
    match (models.as_slice(), found.first()) {
        ([_], Some(first)) => Ok(dir.join(first)),
        ([one, other, ..], _) => Err(Error::Cache(format!(
            "{model} matches several files of {}, such as {one} and {other}: name the path of one",
            dir.display()
        ))),
        _ => Err(Error::Cache(format!("{model} is not in {}", dir.display()))),
    }
}

/// Returns the requested commit, if there is a snapshot of it.
fn commit(folder: &ModelFolder, model: &ModelRef) -> Result<Option<String>> {
    let revision = model.revision();
    let named = file::read_if_there(&folder.reference(revision)?, REFERENCE_BYTES_MAX)?;
    let named = named.and_then(|it| String::from_utf8(it).ok()).map(|it| it.trim().to_owned());
    let commits = scan::names(&folder.snapshots())?;
    if let Some(commit) = named.filter(|it| is_commit(it)) {
        return Ok(commits.into_iter().find(|it| *it == commit));
    }
    let is_part = revision.len() >= COMMIT_DIGITS_MIN;
    let mut found = commits.into_iter().filter(|it| is_commit(it) && it.starts_with(revision));
    let first = found.next().filter(|_| is_part);
    Ok(if found.next().is_some() { None } else { first })
}
