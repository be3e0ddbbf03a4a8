//! Downloads: several connections fetch the pieces of several files.
//!
//! **Invariant:** contents get their final name after their hash was verified and their bytes
//! reached the drive; after any earlier end of the process, the next call continues from the
//! existing pieces. A reference is written after all chosen files of its commit are present.

mod download;
mod fetch;
mod queue;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::cache::{BlobAge, ModelFolder};
use crate::check::mark::{self, Stamp};
use crate::check::{Condition, PullProgress};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::file;
use crate::hash::{BlobId, ExpectedBlob};
use crate::name::is_commit;
use crate::remote::{Hub, Remote};
use crate::stop::StopFlag;
use download::Download;
use queue::{ConnectionStep, WorkQueue};

/// The size of a request within a file, which is fetched again after an interruption.
pub const PIECE_BYTES: u64 = 16 << 20;

/// Maximum number of connections; more would look like an attack.
pub const N_CONNECTIONS_MAX: usize = 64;

/// The interval between calls of a watcher.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

/// The interval between attempts to take a lock that another process holds.
const LOCK_INTERVAL: Duration = Duration::from_millis(200);

/// Tells backup programs that these files can be downloaded again.
const TAG_NAME: &str = "CACHEDIR.TAG";
const TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
                   # This file marks a cache directory: https://bford.info/cachedir/\n";

/// A successful download.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Pulled {
    /// The folder of the model.
    pub dir: PathBuf,
    /// The number of bytes that were fetched.
    pub fetched_bytes: u64,
    /// The number of existing bytes that were read for hashing.
    pub hashed_bytes: u64,
}

/// A blob to be fetched, with the files that need it.
#[derive(Debug)]
pub(crate) struct BlobJob {
    blob: BlobId,
    n_bytes: u64,
    /// Files with these contents.
    paths: Vec<String>,
    url: String,
}

impl BlobJob {
    fn expected(&self) -> ExpectedBlob {
        ExpectedBlob { blob: self.blob.clone(), n_bytes: self.n_bytes }
    }
}

/// The state that all connections share.
#[derive(Debug)]
struct Pull<'a> {
    hub: &'a Hub,
    remote: &'a Remote,
    folder: ModelFolder,
    client: Client,
    piece_bytes: u64,
    queue: WorkQueue,
    done_bytes: AtomicU64,
    fetched_bytes: AtomicU64,
    n_waiting: AtomicUsize,
    /// Stamps of written files, which have marks.
    written: Mutex<Vec<Stamp>>,
}

impl Hub {
    /// Downloads the chosen files that are missing. `watch` is called periodically and decides
    /// whether to continue.
    ///
    /// # Errors
    ///
    /// The first error of a connection; [`Error::Cancelled`]. Received data are kept, and the next
    /// call continues from there.
    pub fn pull(
        &self,
        remote: &Remote,
        n_connections: NonZeroUsize,
        piece_bytes: u64,
        watch: &mut dyn FnMut(PullProgress) -> ControlFlow<()>,
    ) -> Result<Pulled> {
        let folder = self.folder(remote);
        let before_bytes = self.verifier().hashed_bytes();
        self.begin(remote, &folder)?;
        let (jobs, here_bytes) = self.jobs(remote, &folder)?;
        let total_bytes = here_bytes + jobs.iter().map(|it| it.n_bytes).sum::<u64>();
        let n_workers = n_connections.get().min(N_CONNECTIONS_MAX);
        let stop = self.stop().child();
        let pull = Pull {
            hub: self,
            remote,
            folder,
            client: Client::new(self.settings(), n_workers, &stop),
            piece_bytes,
            queue: WorkQueue::new(jobs, n_workers),
            done_bytes: AtomicU64::new(here_bytes),
            fetched_bytes: AtomicU64::new(0),
            n_waiting: AtomicUsize::new(0),
            written: Mutex::default(),
        };
        let ran = pull.run(n_workers, total_bytes, watch);
        // Later writes by other programs must get times that differ from those in the marks. This
        // takes milliseconds, so it ignores the stop flag.
        let written = pull.written.lock().unwrap_or_else(PoisonError::into_inner).clone();
        mark::wait_for_clock(&pull.folder, &written, &StopFlag::default())?;
        ran?;
        self.end(remote, &pull.folder)?;
        Ok(Pulled {
            dir: pull.folder.snapshot(remote.commit()),
            fetched_bytes: pull.fetched_bytes.into_inner(),
            hashed_bytes: self.verifier().hashed_bytes() - before_bytes,
        })
    }

    fn begin(&self, remote: &Remote, folder: &ModelFolder) -> Result<()> {
        let tag = folder.root().join(TAG_NAME);
        if !tag.exists() {
            file::write_atomic(&tag, TAG.as_bytes())?;
        }
        for dir in [folder.blobs(), folder.snapshot(remote.commit())] {
            std::fs::create_dir_all(&dir).map_err(Error::io("create", &dir))?;
        }
        let tree = folder.tree(remote.commit());
        if tree.is_file() {
            Ok(())
        } else {
            file::write_atomic(&tree, &remote.listing().to_cached())
        }
    }

    /// Returns the blobs to be fetched or hashed, and the number of bytes that are known to be
    /// present. Puts blobs that are present into the snapshot if they are missing there.
    fn jobs(&self, remote: &Remote, folder: &ModelFolder) -> Result<(Vec<BlobJob>, u64)> {
        let mut jobs: BTreeMap<&BlobId, BlobJob> = BTreeMap::new();
        let mut here = BTreeMap::new();
        for (path, repo_file) in remote.chosen() {
            let (blob, n_bytes) = (&repo_file.blob, repo_file.n_bytes);
            if folder.pieces(blob).is_file() && !folder.partial(blob).is_file() {
                // The process ended between the last two steps, or the contents were removed.
                file::remove_if_there(&folder.pieces(blob))?;
            }
            let is_sound = |place: &Path| {
                self.verifier().known_condition(folder, place, &repo_file.expected())
                    == Condition::Sound
            };
            let file = folder.file(remote.commit(), path)?;
            if is_sound(&file) {
                here.insert(blob, n_bytes);
            } else if is_sound(&folder.blob(blob)) {
                let no_links = self.settings().has_no_links;
                folder.place_blob((remote.commit(), path), blob, BlobAge::Old, no_links)?;
                here.insert(blob, n_bytes);
            } else {
                let url = self.url(remote, path);
                let new = || BlobJob { blob: blob.clone(), n_bytes, paths: Vec::new(), url };
                jobs.entry(blob).or_insert_with(new).paths.push(path.to_owned());
            }
        }
        let mut jobs: Vec<BlobJob> = jobs.into_values().collect();
        // Small files are useful to other programs at once; weights follow in the order of their
        // names.
        jobs.sort_by(|one, other| {
            let key = |job: &BlobJob| (job.n_bytes > PIECE_BYTES, job.paths[0].clone());
            key(one).cmp(&key(other))
        });
        Ok((jobs, here.into_values().sum()))
    }

    fn end(&self, remote: &Remote, folder: &ModelFolder) -> Result<()> {
        let revision = remote.model().revision();
        if is_commit(revision) {
            return Ok(());
        }
        file::write_atomic(&folder.reference(revision)?, remote.commit().as_bytes())
    }
}

/// Counts a connection as ended on drop, even after a panic, so that the wait for it ends.
struct ConnectionGuard<'a>(&'a WorkQueue);

impl Drop for ConnectionGuard<'_> {
    fn drop(&mut self) {
        self.0.connection_ended();
    }
}

impl Pull<'_> {
    fn run(
        &self,
        n_workers: usize,
        total_bytes: u64,
        watch: &mut dyn FnMut(PullProgress) -> ControlFlow<()>,
    ) -> Result<()> {
        std::thread::scope(|scope| {
            for idx in 0..n_workers {
                let worker = std::thread::Builder::new().name(format!("moeflux-pull-{idx}"));
                // A failure to start any connection ends the download.
                if let Err(error) = worker.spawn_scoped(scope, || self.work()) {
                    let problem = format!("cannot start a thread: {error}");
                    self.fail(Error::Network(problem));
                    self.queue.connection_ended();
                }
            }
            while !self.queue.wait_for_end(WATCH_INTERVAL) {
                let progress = PullProgress {
                    total_bytes,
                    done_bytes: self.done_bytes.load(Ordering::Relaxed),
                    is_waiting: self.n_waiting.load(Ordering::Relaxed) > 0,
                };
                if watch(progress).is_break() {
                    self.hub.stop().set();
                }
            }
        });
        self.hub.stop().check()?;
        self.queue.take_failure().map_or(Ok(()), Err)
    }

    /// The main loop of a connection.
    fn work(&self) {
        let _guard = ConnectionGuard(&self.queue);
        while let Some(next) = self.queue.next(self.client.stop()) {
            let done = match next {
                ConnectionStep::Begin(job) => self.begin(job),
                ConnectionStep::Fetch(download, idx) => self.fetch(&download, idx),
            };
            match done {
                Ok(()) => {}
                // The other files may still arrive.
                Err(error @ Error::Damaged(_)) => self.queue.record_failure(error),
                Err(error) => self.fail(error),
            }
        }
    }

    /// Records an error and ends all connections.
    fn fail(&self, error: Error) {
        self.queue.record_failure(error);
        self.client.stop().set();
    }

    /// Begins or resumes a file; puts it back while another process has it locked.
    fn begin(&self, job: BlobJob) -> Result<()> {
        let Some(lock) = crate::cache::Lock::try_take(&self.folder.lock(&job.blob))? else {
            self.n_waiting.fetch_add(1, Ordering::Relaxed);
            let waited = self.client.stop().wait(LOCK_INTERVAL);
            self.n_waiting.fetch_sub(1, Ordering::Relaxed);
            self.queue.requeue(job);
            return waited;
        };
        let condition = self.verify(&job, &self.folder.blob(&job.blob))?;
        if self.is_in_snapshot(&job)? {
            self.done_bytes.fetch_add(job.n_bytes, Ordering::Relaxed);
            self.queue.finished();
            return Ok(());
        }
        if condition == Condition::Sound {
            self.done_bytes.fetch_add(job.n_bytes, Ordering::Relaxed);
            self.publish_files(&job, BlobAge::Old)?;
            self.queue.finished();
            return Ok(());
        }
        self.remove_damaged(&job)?;
        let download = Download::open(job, &self.folder, lock, self.piece_bytes)?;
        self.done_bytes.fetch_add(download.done_bytes(), Ordering::Relaxed);
        let download = self.queue.opened(download);
        self.advance(&download)
    }

    fn verify(&self, job: &BlobJob, place: &Path) -> Result<Condition> {
        let stop = self.client.stop();
        self.hub.verifier().verify(&self.folder, place, &job.expected(), stop)
    }

    /// Returns whether all of the files are in the snapshot; another process may have put them
    /// there meanwhile.
    fn is_in_snapshot(&self, job: &BlobJob) -> Result<bool> {
        for path in &job.paths {
            let file = self.folder.file(self.remote.commit(), path)?;
            if self.verify(job, &file)? != Condition::Sound {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes damaged files, which must not look complete if the download is interrupted. Targets
    /// of links may be in use elsewhere and stay.
    fn remove_damaged(&self, job: &BlobJob) -> Result<()> {
        let files = job.paths.iter().map(|it| self.folder.file(self.remote.commit(), it));
        let blob = Ok(self.folder.blob(&job.blob));
        for place in std::iter::once(blob).chain(files) {
            let place = place?;
            if self.verify(job, &place)? == Condition::Damaged {
                file::remove_if_there(&place)?;
            }
        }
        Ok(())
    }

    /// Puts contents into the snapshot.
    fn publish_files(&self, job: &BlobJob, age: BlobAge) -> Result<()> {
        let has_no_links = self.hub.settings().has_no_links;
        let mut age = age;
        for path in &job.paths {
            let place = (self.remote.commit(), path.as_str());
            // If the contents were moved, they are copied from the new place.
            if age == BlobAge::Old && !self.folder.blob(&job.blob).is_file() {
                let from = self.folder.file(place.0, &job.paths[0])?;
                let to = self.folder.file(place.0, path)?;
                file::make_parent(&to)?;
                std::fs::copy(&from, &to).map_err(Error::io("write", &to))?;
                continue;
            }
            self.folder.place_blob(place, &job.blob, age, has_no_links)?;
            age = BlobAge::Old;
        }
        for path in &job.paths {
            let file = self.folder.file(self.remote.commit(), path)?;
            let stamp = self.hub.verifier().record_written(&self.folder, &file, &job.expected());
            self.written.lock().unwrap_or_else(PoisonError::into_inner).extend(stamp);
        }
        Ok(())
    }

    /// Hashes the pieces that follow the hashed ones, and finishes the file after the last one.
    fn advance(&self, download: &Download) -> Result<()> {
        let Some(digits) = self.hashed(download)? else { return Ok(()) };
        if digits != download.job.blob.digits() {
            let job = &download.job;
            download.discard(&self.folder)?;
            self.done_bytes.fetch_sub(job.n_bytes, Ordering::Relaxed);
            self.queue.closed(download);
            return Err(Error::Damaged(format!(
                "{}: {} arrived with the {} {digits}, but the hub lists {}: it was removed; try \
                 again",
                self.remote.model(),
                job.paths[0],
                job.blob.kind(),
                job.blob.digits()
            )));
        }
        download.publish(&self.folder)?;
        self.publish_files(&download.job, BlobAge::New)?;
        self.queue.closed(download);
        Ok(())
    }

    fn hashed(&self, download: &Download) -> Result<Option<String>> {
        let hashed = download.hash_ahead(self.client.stop())?;
        if hashed.lost_bytes > 0 {
            self.done_bytes.fetch_sub(hashed.lost_bytes, Ordering::Relaxed);
            self.queue.changed();
        }
        Ok(hashed.digits)
    }
}
