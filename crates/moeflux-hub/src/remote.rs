//! A repository of the hub: its commit, its files, and which of them are chosen and present.
//!
//! **Invariant:** nothing but marks is written; the name of every chosen file stays in its folder,
//! and its length is plausible.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;

use crate::cache::journal::{self, PieceLayout};
use crate::cache::{Cache, ModelFolder};
use crate::check::{Condition, PullProgress, Trust, Verifier};
use crate::client::{Client, quoted};
use crate::error::{Error, Result};
use crate::file;
use crate::listing::{Listing, RepoFile};
use crate::name::{ModelRef, file_path, is_commit};
use crate::selection::{FileSelection, is_gguf, is_weights};
use crate::settings::Settings;
use crate::stop::StopFlag;

/// Maximum size of the hub's information on a revision. It has some kilobytes, or some hundred with
/// a model card.
const INFO_BYTES_MAX: u64 = 16 << 20;

/// Maximum size of a page, which lists 1,000 files.
const PAGE_BYTES_MAX: u64 = 16 << 20;

/// Maximum number of entries; the hub advises against more files.
const N_ENTRIES_MAX: usize = 100_000;

/// Maximum number of pages, ten times what these entries need: a hub may have shorter pages, but
/// not one file on each.
const N_PAGES_MAX: usize = 1_000;

/// Maximum size of all pages together; more could not be stored in the cache.
const PAGES_BYTES_MAX: u64 = TREE_BYTES_MAX;

/// Maximum size of a listing in the cache.
const TREE_BYTES_MAX: u64 = 64 << 20;

/// Maximum size of a `config.json`. Published ones have at most 1 MB.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Maximum size of a file, ten times what the hub accepts.
const FILE_BYTES_MAX: u64 = 1 << 42;

/// A hub with a local cache.
#[derive(Debug)]
pub struct Hub {
    settings: Settings,
    cache: Cache,
    stop: StopFlag,
    client: Client,
    verifier: Verifier,
}

/// A repository at a commit, with the chosen files.
#[derive(Clone, Debug)]
pub struct Remote {
    model: ModelRef,
    commit: String,
    listing: Listing,
    chosen: Vec<String>,
}

/// How much of the chosen files is present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Presence {
    /// The number of chosen files.
    pub n_files: usize,
    /// The number of bytes of the chosen files.
    pub n_bytes: u64,
    /// The number of chosen files that are present and complete.
    pub n_files_here: usize,
    /// The number of chosen bytes that are present, in complete files and pieces.
    pub here_bytes: u64,
    /// Files that are present, but whose contents differ from those that the hub lists. They count
    /// as missing.
    pub damaged: Vec<String>,
    /// The number of bytes that were read for hashing.
    pub hashed_bytes: u64,
}

impl Hub {
    /// Creates a hub with these settings; `stop` ends its operations.
    #[must_use]
    pub fn new(settings: Settings, trust: Trust, stop: StopFlag) -> Self {
        let client = Client::new(&settings, 1, &stop);
        let (cache, verifier) = (Cache::new(&settings.cache), Verifier::new(trust));
        Self { cache, settings, stop, client, verifier }
    }

    /// Returns the cache for downloaded files.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Returns the settings of the hub.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn stop(&self) -> &StopFlag {
        &self.stop
    }

    pub(crate) fn verifier(&self) -> &Verifier {
        &self.verifier
    }

    pub(crate) fn folder(&self, remote: &Remote) -> ModelFolder {
        self.cache.folder(&remote.model.id)
    }

    /// Requests the contents of a repository, and chooses files.
    ///
    /// # Errors
    ///
    /// [`Error::Network`] if the hub cannot be reached or must not be used; [`Error::Refused`] if
    /// it denies access; [`Error::Answer`] if its answer is invalid; [`Error::Io`] or
    /// [`Error::Cache`] if a cached listing cannot be read; [`Error::Cancelled`].
    pub fn resolve(&self, model: &ModelRef, selection: &FileSelection) -> Result<Remote> {
        if self.settings.is_offline {
            let problem = format!(
                "HF_HUB_OFFLINE is set, so {model} cannot be downloaded: unset it, or set it to 0"
            );
            return Err(Error::Network(problem));
        }
        let commit = self.commit(model)?;
        let listing = self.listing(model, &commit)?;
        let chosen: Vec<String> = selection.of(&listing).into_iter().map(str::to_owned).collect();
        for path in &chosen {
            file_path(path).map_err(|error| Error::Answer(format!("{}: {error}", model.id)))?;
            let n_bytes = listing.get(path).map_or(0, |it| it.n_bytes);
            if n_bytes > FILE_BYTES_MAX {
                let problem = format!("{}: {path} is listed with {n_bytes} bytes", model.id);
                return Err(Error::Answer(problem + ", which is implausible"));
            }
        }
        Ok(Remote { model: model.clone(), commit, listing, chosen })
    }

    fn commit(&self, model: &ModelRef) -> Result<String> {
        let revision = model.revision();
        if is_commit(revision) {
            return Ok(revision.to_owned());
        }
        let (endpoint, id) = (self.client.endpoint(), &model.id);
        let url = format!("{endpoint}/api/models/{id}/revision/{}", quoted(revision, false));
        let (bytes, _) = self.client.read(model, &url, INFO_BYTES_MAX)?;
        let info: serde_json::Value = serde_json::from_slice(&bytes)
            .map_err(|error| not_a_hub(endpoint, &error.to_string()))?;
        let commit = info.get("sha").and_then(serde_json::Value::as_str);
        let commit = commit.filter(|it| is_commit(it));
        commit.map(str::to_owned).ok_or_else(|| not_a_hub(endpoint, "no commit"))
    }

    /// Returns the listing from the cache, or from the hub page by page.
    fn listing(&self, model: &ModelRef, commit: &str) -> Result<Listing> {
        let cached = self.cache.folder(&model.id).tree(commit);
        let cached = file::read_if_there(&cached, TREE_BYTES_MAX)?;
        if let Some(listing) = cached.and_then(|it| Listing::of_cached(&it)) {
            return Ok(listing);
        }
        let (endpoint, id) = (self.client.endpoint(), &model.id);
        let url = format!("{endpoint}/api/models/{id}/tree/{commit}?recursive=true&expand=false");
        let (mut listing, mut next) = (Listing::default(), Some(url));
        let (mut n_pages, mut n_entries, mut n_bytes) = (0, 0, 0);
        while let Some(url) = next {
            let (bytes, following) = self.client.read(model, &url, PAGE_BYTES_MAX)?;
            let added = listing.add_page(&bytes);
            let n_added = added.map_err(|problem| not_a_hub(endpoint, &problem))?;
            n_pages += 1;
            n_entries += n_added;
            n_bytes += bytes.len() as u64;
            let what = if n_entries > N_ENTRIES_MAX {
                Some(format!("has more than {N_ENTRIES_MAX} entries"))
            } else if n_bytes > PAGES_BYTES_MAX {
                Some(format!("has more than {PAGES_BYTES_MAX} bytes"))
            } else if n_pages == N_PAGES_MAX && following.is_some() {
                Some(format!("has more than {N_PAGES_MAX} pages"))
            } else if n_added == 0 && following.is_some() {
                Some(format!("continues after the empty page {n_pages}"))
            } else {
                None
            };
            if let Some(what) = what {
                let problem = format!("{id}: the list of files that {endpoint} sends {what}");
                return Err(Error::Answer(problem + ": check HF_ENDPOINT"));
            }
            next = following;
        }
        Ok(listing)
    }

    /// Returns the `config.json` of a repository, if it has one; from the cache if it is there.
    ///
    /// # Errors
    ///
    /// As [`Hub::resolve`]; [`Error::Damaged`] if its hash differs from the listed one.
    pub fn config(&self, remote: &Remote) -> Result<Option<Vec<u8>>> {
        const NAME: &str = "config.json";
        let Some(repo_file) = remote.listing.get(NAME) else { return Ok(None) };
        let folder = self.folder(remote);
        let is_it = |bytes: &[u8]| {
            let mut hasher = repo_file.blob.hasher(bytes.len() as u64);
            hasher.update(bytes);
            hasher.finish() == repo_file.blob.digits()
        };
        for path in [folder.file(&remote.commit, NAME)?, folder.blob(&repo_file.blob)] {
            if file::len_bytes(&path) == Some(repo_file.n_bytes) {
                let bytes = file::read_if_there(&path, CONFIG_BYTES_MAX)?;
                if bytes.as_ref().is_some_and(|it| is_it(it)) {
                    return Ok(bytes);
                }
            }
        }
        let url = self.url(remote, NAME);
        let (bytes, _) = self.client.read(&remote.model, &url, CONFIG_BYTES_MAX)?;
        if is_it(&bytes) {
            return Ok(Some(bytes));
        }
        let id = &remote.model.id;
        let problem = format!("{id}: {NAME} does not have the hash that the hub lists for it");
        Err(Error::Damaged(problem + ": try again"))
    }

    /// Returns the address of a file.
    pub(crate) fn url(&self, remote: &Remote, path: &str) -> String {
        let (endpoint, id) = (self.client.endpoint(), &remote.model.id);
        format!("{endpoint}/{id}/resolve/{}/{}", remote.commit, quoted(path, true))
    }

    /// Returns how much of the chosen files is present. Files without a valid mark are hashed, as
    /// [`Trust`] requires; `watch` is called periodically and decides whether to continue.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; [`Error::Cache`] if a file changes while it is read; [`Error::Cancelled`].
    pub fn presence(
        &self,
        remote: &Remote,
        piece_bytes: u64,
        watch: &mut dyn FnMut(PullProgress) -> ControlFlow<()>,
    ) -> Result<Presence> {
        let folder = self.folder(remote);
        let mut files = Vec::new();
        for (path, repo_file) in remote.chosen() {
            for place in [folder.file(&remote.commit, path)?, folder.blob(&repo_file.blob)] {
                files.push((place, repo_file.expected()));
            }
        }
        let before_bytes = self.verifier.hashed_bytes();
        self.verifier.verify_all(&folder, &files, &self.stop, watch)?;
        let mut presence = Presence {
            hashed_bytes: self.verifier.hashed_bytes() - before_bytes,
            ..Presence::default()
        };
        let mut counted = BTreeSet::new();
        for (path, repo_file) in remote.chosen() {
            let n_bytes = repo_file.n_bytes;
            presence.n_files += 1;
            let condition = self.condition(&folder, remote, path, repo_file)?;
            let is_here = condition == Condition::Sound;
            presence.n_files_here += usize::from(is_here);
            if condition == Condition::Damaged {
                presence.damaged.push(path.to_owned());
            }
            // Files with the same contents are fetched once.
            if !counted.insert(&repo_file.blob) {
                continue;
            }
            presence.n_bytes += n_bytes;
            presence.here_bytes +=
                if is_here { n_bytes } else { pieces_bytes(&folder, repo_file, piece_bytes)? };
        }
        Ok(presence)
    }

    /// Returns the better condition of a file of the snapshot and of its blob.
    fn condition(
        &self,
        folder: &ModelFolder,
        remote: &Remote,
        path: &str,
        repo_file: &RepoFile,
    ) -> Result<Condition> {
        let verify =
            |place: &Path| self.verifier.verify(folder, place, &repo_file.expected(), &self.stop);
        let in_snapshot = verify(&folder.file(&remote.commit, path)?)?;
        if in_snapshot == Condition::Sound {
            return Ok(in_snapshot);
        }
        let blob = verify(&folder.blob(&repo_file.blob))?;
        Ok(if blob == Condition::Absent { in_snapshot } else { blob })
    }
}

/// Returns the number of bytes that are present of an incomplete blob.
fn pieces_bytes(folder: &ModelFolder, repo_file: &RepoFile, piece_bytes: u64) -> Result<u64> {
    let layout = PieceLayout::new(repo_file.n_bytes, piece_bytes);
    let pieces = match folder.partial(&repo_file.blob).is_file() {
        true => journal::pieces(&folder.pieces(&repo_file.blob), layout)?,
        false => Vec::new(),
    };
    Ok(pieces.iter().map(|(idx, _)| layout.len_bytes(*idx)).sum())
}

impl Remote {
    /// Returns the requested repository and revision.
    #[must_use]
    pub fn model(&self) -> &ModelRef {
        &self.model
    }

    /// Returns the commit of the listing.
    #[must_use]
    pub fn commit(&self) -> &str {
        &self.commit
    }

    /// Returns the listing of all files.
    #[must_use]
    pub fn listing(&self) -> &Listing {
        &self.listing
    }

    /// Returns the chosen files, by path.
    pub fn chosen(&self) -> impl Iterator<Item = (&str, &RepoFile)> {
        self.chosen.iter().filter_map(|path| Some((path.as_str(), self.listing.get(path)?)))
    }

    /// Returns whether the repository has weights in safetensors.
    #[must_use]
    pub fn has_weights(&self) -> bool {
        self.listing.files().any(|(path, _)| is_weights(path))
    }

    /// Returns the weights in the format of llama.cpp, by path.
    pub fn ggufs(&self) -> impl Iterator<Item = (&str, &RepoFile)> {
        self.listing.files().filter(|(path, _)| is_gguf(path))
    }
}

fn not_a_hub(endpoint: &str, problem: &str) -> Error {
    Error::Answer(format!(
        "{endpoint} does not answer as the Hugging Face hub does ({problem}): check HF_ENDPOINT, \
         and proxies on the way"
    ))
}
