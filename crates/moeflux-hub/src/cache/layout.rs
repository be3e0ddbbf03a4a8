//! Where what is: the paths of a model in the cache.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::hash::BlobId;
use crate::name::{RepoId, file_path};

/// Ends the names of what is not whole. `huggingface_hub` offers to remove such files.
pub(crate) const INCOMPLETE: &str = ".incomplete";

/// The folder of a model.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    root: PathBuf,
    dir: PathBuf,
    locks: PathBuf,
}

impl Folder {
    pub(crate) fn new(root: &Path, id: &RepoId) -> Self {
        let name = id.folder();
        Self { root: root.to_owned(), dir: root.join(&name), locks: root.join(".locks").join(name) }
    }

    /// Itself.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The cache's folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Contents by hash.
    pub(crate) fn blobs(&self) -> PathBuf {
        self.dir.join("blobs")
    }

    /// Contents.
    pub(crate) fn blob(&self, id: &BlobId) -> PathBuf {
        self.blobs().join(id.digits())
    }

    /// Contents that are not whole, at their places. Older versions of `huggingface_hub` keep what
    /// they have from the beginning in `HASH.incomplete`, which is left alone.
    pub(crate) fn partial(&self, id: &BlobId) -> PathBuf {
        self.blobs().join(format!("{}.moeflux{INCOMPLETE}", id.digits()))
    }

    /// Which pieces of these are there.
    pub(crate) fn pieces(&self, id: &BlobId) -> PathBuf {
        self.blobs().join(format!("{}.moeflux-pieces{INCOMPLETE}", id.digits()))
    }

    /// Folders by commit.
    pub(crate) fn snapshots(&self) -> PathBuf {
        self.dir.join("snapshots")
    }

    /// The files of a commit.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.snapshots().join(commit)
    }

    /// Commits by branch and tag.
    pub(crate) fn references(&self) -> PathBuf {
        self.dir.join("refs")
    }

    /// The commit of a branch or tag.
    pub(crate) fn reference(&self, revision: &str) -> Result<PathBuf> {
        Ok(self.references().join(file_path(revision)?))
    }

    /// All files of the repository at a commit.
    pub(crate) fn tree(&self, commit: &str) -> PathBuf {
        self.dir.join("trees").join(format!("{commit}.json"))
    }

    /// Files that are known not to be in the repository.
    pub(crate) fn no_exist(&self, commit: &str) -> PathBuf {
        self.dir.join(".no_exist").join(commit)
    }

    /// Our own: what is known of contents. No other tool looks here, and who removes the model
    /// removes it, too.
    pub(crate) fn marks(&self) -> PathBuf {
        self.dir.join(".moeflux")
    }

    /// Which files were found to have these contents.
    pub(crate) fn mark(&self, id: &BlobId) -> PathBuf {
        self.marks().join(id.digits())
    }

    /// Locks of all contents.
    pub(crate) fn locks(&self) -> &Path {
        &self.locks
    }

    /// Held by who downloads these contents.
    pub(crate) fn lock(&self, id: &BlobId) -> PathBuf {
        self.locks.join(format!("{}.lock", id.digits()))
    }
}
