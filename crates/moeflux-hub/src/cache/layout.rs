//! Layout of the cache: the paths of a model.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::hash::BlobId;
use crate::name::{RepoId, file_path};

/// The suffix of incomplete files. `huggingface_hub` offers to remove such files.
pub(crate) const INCOMPLETE: &str = ".incomplete";

/// The folder of a model in the cache.
#[derive(Clone, Debug)]
pub(crate) struct ModelFolder {
    root: PathBuf,
    dir: PathBuf,
    locks: PathBuf,
}

impl ModelFolder {
    pub(crate) fn new(root: &Path, id: &RepoId) -> Self {
        let name = id.folder();
        Self { root: root.to_owned(), dir: root.join(&name), locks: root.join(".locks").join(name) }
    }

    /// Returns the folder itself.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the cache's folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the folder of blobs.
    pub(crate) fn blobs(&self) -> PathBuf {
        self.dir.join("blobs")
    }

    /// Returns the path of a blob.
    pub(crate) fn blob(&self, id: &BlobId) -> PathBuf {
        self.blobs().join(id.digits())
    }

    /// Returns the path of an incomplete blob, with its pieces at their final offsets. Older
    /// versions of `huggingface_hub` store the beginning of a blob in `HASH.incomplete`, which is
    /// left alone.
    pub(crate) fn partial(&self, id: &BlobId) -> PathBuf {
        self.blobs().join(format!("{}.moeflux{INCOMPLETE}", id.digits()))
    }

    /// Returns the path of the list of its pieces.
    pub(crate) fn pieces(&self, id: &BlobId) -> PathBuf {
        self.blobs().join(format!("{}.moeflux-pieces{INCOMPLETE}", id.digits()))
    }

    /// Returns the folder of snapshots, which are named by commit.
    pub(crate) fn snapshots(&self) -> PathBuf {
        self.dir.join("snapshots")
    }

    /// Returns the folder with the files of a commit.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.snapshots().join(commit)
    }

    /// Returns the folder of references, named by branch or tag.
    pub(crate) fn references(&self) -> PathBuf {
        self.dir.join("refs")
    }

    /// Returns the path of the reference for a branch or tag.
    pub(crate) fn reference(&self, revision: &str) -> Result<PathBuf> {
        Ok(self.references().join(file_path(revision)?))
    }

    /// Returns the path of the listing of all files at a commit.
    pub(crate) fn tree(&self, commit: &str) -> PathBuf {
        self.dir.join("trees").join(format!("{commit}.json"))
    }

    /// Returns the folder of files that are known to be missing in the repository.
    pub(crate) fn no_exist(&self, commit: &str) -> PathBuf {
        self.dir.join(".no_exist").join(commit)
    }

    /// Returns the folder of moeflux's own marks. Other tools do not look here, and remove it with
    /// the model.
    pub(crate) fn marks(&self) -> PathBuf {
        self.dir.join(".moeflux")
    }

    /// Returns the path of the mark for a blob.
    pub(crate) fn mark(&self, id: &BlobId) -> PathBuf {
        self.marks().join(id.digits())
    }

    /// Returns the folder of locks.
    pub(crate) fn locks(&self) -> &Path {
        &self.locks
    }

    /// Returns the path of the lock that is held while a blob is downloaded.
    pub(crate) fn lock(&self, id: &BlobId) -> PathBuf {
        self.locks.join(format!("{}.lock", id.digits()))
    }
}
