//! Compares files of the cache with the hashes in their names.
//!
//! **Invariant:** a file counts as sound if this process wrote it, or hashed it and its metadata
//! are unchanged since, or if its [`mark`] is valid. No file is hashed again unless it changed.

pub(crate) mod mark;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use moeflux_io::ReadFile;

use crate::cache::ModelFolder;
use crate::check::mark::Stamp;
use crate::error::{Error, Result};
use crate::file;
use crate::hash::{BlobId, ExpectedBlob};
use crate::stop::StopFlag;

/// The size of reads for hashing.
const HASH_BYTES: usize = 1 << 20;

/// Maximum number of threads. A core hashes more slowly than a fast drive reads, but more threads
/// than this do not read faster.
const N_THREADS_MAX: usize = 8;

/// Maximum number of times that a file is hashed because it changed meanwhile; after that, it
/// counts as being written.
const N_ATTEMPTS_MAX: usize = 3;

/// The interval between calls to a watcher.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

/// The progress of a download or a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PullProgress {
    /// The number of requested bytes.
    pub total_bytes: u64,
    /// The number of those bytes that are downloaded or checked.
    pub done_bytes: u64,
    /// Whether another process is downloading missing files.
    pub is_waiting: bool,
}

/// The cached files that are trusted without being hashed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Files that moeflux wrote or hashed before, if unchanged since.
    #[default]
    Marks,
    /// Only files that this process wrote or hashed.
    Nothing,
}

/// The condition of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// It does not exist, or has another length.
    Absent,
    Sound,
    Damaged,
    /// It has the right length, and must be hashed.
    Unknown(Stamp),
}

/// A file that must be hashed.
#[derive(Clone, Copy, Debug)]
struct Unhashed<'a> {
    path: &'a Path,
    expected: &'a ExpectedBlob,
    stamp: Stamp,
    /// Whether a later change would be detected.
    can_be_marked: bool,
}

/// Verifies the files of a cache by their hashes, and remembers the results.
#[derive(Debug, Default)]
pub(crate) struct Verifier {
    trust: Trust,
    /// Whether a file with this stamp has these contents.
    known: Mutex<BTreeMap<(BlobId, Stamp), bool>>,
    hashed_bytes: AtomicU64,
}

impl Verifier {
    pub(crate) fn new(trust: Trust) -> Self {
        Self { trust, ..Self::default() }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<(BlobId, Stamp), bool>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of bytes read for hashing.
    pub(crate) fn hashed_bytes(&self) -> u64 {
        self.hashed_bytes.load(Ordering::Relaxed)
    }

    /// Returns the known condition of the file at a path, without reading it.
    pub(crate) fn known_condition(
        &self,
        folder: &ModelFolder,
        path: &Path,
        expected: &ExpectedBlob,
    ) -> Condition {
        let stamp = Stamp::of(path).filter(|it| it.len_bytes == expected.n_bytes);
        let Some(stamp) = stamp else { return Condition::Absent };
        match self.known().get(&(expected.blob.clone(), stamp)) {
            Some(true) => return Condition::Sound,
            Some(false) => return Condition::Damaged,
            None => {}
        }
        if self.trust == Trust::Marks && mark::is_valid(folder, &expected.blob, &stamp) {
            return Condition::Sound;
        }
        Condition::Unknown(stamp)
    }

    /// Returns the condition of a file; hashes it if necessary.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file cannot be opened; [`Error::Cache`] if it is being written;
    /// [`Error::Cancelled`].
    pub(crate) fn verify(
        &self,
        folder: &ModelFolder,
        path: &Path,
        expected: &ExpectedBlob,
        stop: &StopFlag,
    ) -> Result<Condition> {
        self.verify_counted(folder, (path, expected), stop, &|_| ())
    }

    fn verify_counted(
        &self,
        folder: &ModelFolder,
        (path, expected): (&Path, &ExpectedBlob),
        stop: &StopFlag,
        count: &(dyn Fn(u64) + Sync),
    ) -> Result<Condition> {
        for _ in 0..N_ATTEMPTS_MAX {
            let Condition::Unknown(stamp) = self.known_condition(folder, path, expected) else {
                break;
            };
            let can_be_marked = mark::wait_for_clock(folder, &[stamp], stop)?;
            let unhashed = Unhashed { path, expected, stamp, can_be_marked };
            self.hash(folder, &unhashed, stop, count)?;
        }
        match self.known_condition(folder, path, expected) {
            Condition::Unknown(_) => Err(file_changed(path)),
            condition => Ok(condition),
        }
    }

    /// Records that this process wrote the file at a path. Returns its stamp.
    pub(crate) fn record_written(
        &self,
        folder: &ModelFolder,
        path: &Path,
        expected: &ExpectedBlob,
    ) -> Option<Stamp> {
        let stamp = Stamp::of(path).filter(|it| it.len_bytes == expected.n_bytes)?;
        self.known().insert((expected.blob.clone(), stamp), true);
        if file::flush_to_drive(path) {
            mark::add(folder, &expected.blob, &stamp);
        }
        Some(stamp)
    }

    /// Hashes the files whose condition is unknown, several at a time.
    ///
    /// # Errors
    ///
    /// As [`Verifier::verify`].
    pub(crate) fn verify_all(
        &self,
        folder: &ModelFolder,
        files: &[(PathBuf, ExpectedBlob)],
        stop: &StopFlag,
        watch: &mut dyn FnMut(PullProgress) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut unknown = BTreeMap::new();
        for (path, expected) in files {
            if let Condition::Unknown(stamp) = self.known_condition(folder, path, expected) {
                // A file and the links to it count once.
                unknown.entry((expected.blob.clone(), stamp)).or_insert((path, expected));
            }
        }
        if unknown.is_empty() {
            return Ok(());
        }
        let stamps: Vec<Stamp> = unknown.keys().map(|(_, stamp)| *stamp).collect();
        let total_bytes = stamps.iter().map(|it| it.len_bytes).sum();
        let can_be_marked = mark::wait_for_clock(folder, &stamps, stop)?;
        let done_bytes = AtomicU64::new(0);
        let count = |n_bytes| {
            done_bytes.fetch_add(n_bytes, Ordering::Relaxed);
        };
        let jobs = unknown.into_iter().map(|((_, stamp), (path, expected))| {
            let unhashed = Unhashed { path, expected, stamp, can_be_marked };
            let count = &count;
            move |stop: &StopFlag| self.hash(folder, &unhashed, stop, count)
        });
        run_all(jobs.collect(), stop, &mut || {
            let done_bytes = done_bytes.load(Ordering::Relaxed);
            watch(PullProgress { total_bytes, done_bytes, is_waiting: false })
        })
    }

    /// Hashes a file and records the result, unless the file changed meanwhile.
    fn hash(
        &self,
        folder: &ModelFolder,
        file: &Unhashed<'_>,
        stop: &StopFlag,
        count: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        let Unhashed { path, expected, stamp, can_be_marked } = *file;
        let digits = digits(path, expected, stop, &|n_bytes| {
            self.hashed_bytes.fetch_add(n_bytes, Ordering::Relaxed);
            count(n_bytes);
        })?;
        if Stamp::of(path) != Some(stamp) {
            return Ok(());
        }
        let is_sound = digits.as_deref() == Some(expected.blob.digits());
        self.known().insert((expected.blob.clone(), stamp), is_sound);
        if is_sound && can_be_marked && file::flush_to_drive(path) {
            mark::add(folder, &expected.blob, &stamp);
        }
        Ok(())
    }
}

/// Runs jobs on several threads, and periodically asks `watch` whether to continue. The first
/// failure stops all jobs and is returned.
fn run_all<J: FnOnce(&StopFlag) -> Result<()> + Send>(
    jobs: Vec<J>,
    stop: &StopFlag,
    watch: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<()> {
    let n_cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let n_threads = jobs.len().min(n_cores).min(N_THREADS_MAX);
    let jobs = Mutex::new(jobs.into_iter());
    // The failure of one job stops the others.
    let ours = stop.child();
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        for idx in 0..n_threads {
            let (jobs, ours, sender) = (&jobs, &ours, sender.clone());
            let work = move || {
                let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
                let mut done = std::iter::from_fn(next).map(|job| job(ours));
                if let Some(error) = done.find_map(Result::err) {
                    ours.set();
                    // The receiver waits until all threads have ended.
                    drop(sender.send(error));
                }
            };
            let thread = std::thread::Builder::new().name(format!("moeflux-check-{idx}"));
            thread.spawn_scoped(scope, work).map_err(|error| {
                ours.set();
                Error::Cache(format!("cannot start a thread: {error}"))
            })?;
        }
        drop(sender);
        let mut failure = None;
        loop {
            match receiver.recv_timeout(WATCH_INTERVAL) {
                Ok(error) => drop(failure.get_or_insert(error)),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if watch().is_break() {
                stop.set();
            }
        }
        stop.check()?;
        failure.map_or(Ok(()), Err)
    })
}

/// Returns the hash of a file; `None` if its bytes cannot be read.
fn digits(
    path: &Path,
    expected: &ExpectedBlob,
    stop: &StopFlag,
    count: &dyn Fn(u64),
) -> Result<Option<String>> {
    let file = ReadFile::open(path).map_err(Error::io("read", path))?;
    let mut hasher = expected.blob.hasher(expected.n_bytes);
    let mut buffer = vec![0; HASH_BYTES];
    let mut at = 0;
    while at < expected.n_bytes {
        stop.check()?;
        let left = usize::try_from(expected.n_bytes - at).unwrap_or(usize::MAX);
        let len = left.min(buffer.len());
        let part = &mut buffer[..len];
        if file.read_exact_at(at, part).is_err() {
            return Ok(None);
        }
        hasher.update(part);
        at += part.len() as u64;
        count(part.len() as u64);
    }
    Ok(Some(hasher.finish()))
}

fn file_changed(path: &Path) -> Error {
    let path = path.display();
    Error::Cache(format!("{path}: changed while being read: stop the program that writes to it"))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::sync::atomic::AtomicUsize;
    use std::time::SystemTime;

    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    /// Returns a model's folder with one file, its path, and its expected contents.
    fn with_file(temp: &TempDir) -> (ModelFolder, PathBuf, ExpectedBlob) {
        let folder = ModelFolder::new(temp.path(), &"a/b".parse().unwrap());
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let expected = ExpectedBlob { blob: BlobId::sha256(abc).unwrap(), n_bytes: 3 };
        fs::create_dir_all(folder.blobs()).unwrap();
        let path = folder.blob(&expected.blob);
        fs::write(&path, "abc").unwrap();
        (folder, path, expected)
    }

    #[test]
    fn a_file_that_keeps_changing_while_it_is_read_is_an_error() {
        let temp = TempDir::new();
        let (folder, path, expected) = with_file(&temp);
        let (verifier, stop, n_reads) =
            (Verifier::default(), StopFlag::default(), AtomicUsize::new(0));
        let change = |n_changes: usize| {
            let (n_reads, path) = (&n_reads, &path);
            move |_| {
                let n_before = n_reads.fetch_add(1, Ordering::Relaxed);
                if n_before < n_changes {
                    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(n_before as u64 + 1);
                    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
                }
            }
        };
        let verify = |n_changes| {
            verifier.verify_counted(&folder, (&path, &expected), &stop, &change(n_changes))
        };
        let error = verify(N_ATTEMPTS_MAX).unwrap_err().to_string();
        assert!(error.contains("changed while being read"), "{error}");
        assert_eq!(n_reads.swap(0, Ordering::Relaxed), N_ATTEMPTS_MAX);
        assert_eq!(verify(N_ATTEMPTS_MAX - 1).unwrap(), Condition::Sound);
    }

    #[test]
    fn the_stop_flag_and_a_failure_end_all_jobs() {
        let temp = TempDir::new();
        let (folder, path, expected) = with_file(&temp);
        let stop = StopFlag::default();
        stop.set();
        let files = [(path, expected)];
        let run =
            |stop: &StopFlag| {
                Verifier::default()
                    .verify_all(&folder, &files, stop, &mut |_| ControlFlow::Continue(()))
            };
        assert!(matches!(run(&stop), Err(Error::Cancelled)));
        assert!(run(&StopFlag::default()).is_ok());

        let n_run = AtomicUsize::new(0);
        let jobs = (0..100).map(|idx| {
            let n_run = &n_run;
            move |stop: &StopFlag| {
                n_run.fetch_add(1, Ordering::Relaxed);
                if idx == 0 { Err(Error::Cache("first".to_owned())) } else { stop.check() }
            }
        });
        let ran = run_all(jobs.collect(), &StopFlag::default(), &mut || ControlFlow::Continue(()));
        let error = ran.unwrap_err().to_string();
        assert!(error == "first" || error == "cancelled", "{error}");
    }
}
