//! Files of the cache, compared with the hashes that they are named by.
//!
//! **Invariant:** a file counts as sound if this process wrote it, or hashed it and the system
//! reports the same of it since, or if a mark vouches for it. Each file is hashed once.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use moeflux_io::ReadFile;

use crate::cache::Folder;
use crate::error::{Error, Result};
use crate::file;
use crate::hash::{BlobId, Expected};
use crate::mark::{self, Stamp};
use crate::stop::Stop;

/// Read at a time to be hashed.
const HASH_BYTES: usize = 1 << 20;

/// A core hashes less than a fast drive reads; more threads than this do not read faster.
const N_THREADS_MAX: usize = 8;

/// A file that changes more often while it is read is being written.
const N_CHANGES_MAX: usize = 3;

/// How often a watcher is asked.
const WATCH_EVERY: Duration = Duration::from_millis(100);

/// How far a download or a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// All that was wanted.
    pub total_bytes: u64,
    /// Of these, what is done.
    pub done_bytes: u64,
    /// Whether another process downloads what is missing.
    pub is_waiting: bool,
}

/// Which files of the cache need not be hashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Those that moeflux wrote or hashed before, if they have not changed since.
    #[default]
    Marks,
    /// Only those that this process wrote or hashed.
    Nothing,
}

/// A file as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// There is none, or it has another length.
    Absent,
    Sound,
    Damaged,
    /// It has the right length, and has to be hashed.
    Unknown(Stamp),
}

/// A file that has to be hashed.
#[derive(Clone, Copy, Debug)]
struct Unhashed<'a> {
    path: &'a Path,
    expected: &'a Expected,
    stamp: Stamp,
    /// Whether a change that follows would be seen.
    can_be_marked: bool,
}

/// What is known of the files of a cache.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    trust: Trust,
    /// Whether a file has these contents.
    known: Mutex<BTreeMap<(BlobId, Stamp), bool>>,
    hashed_bytes: AtomicU64,
}

impl Checks {
    pub(crate) fn new(trust: Trust) -> Self {
        Self { trust, ..Self::default() }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<(BlobId, Stamp), bool>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that were read to be hashed.
    pub(crate) fn hashed_bytes(&self) -> u64 {
        self.hashed_bytes.load(Ordering::Relaxed)
    }

    /// What is known of the file that a name leads to, without reading it.
    pub(crate) fn look(&self, folder: &Folder, path: &Path, expected: &Expected) -> Condition {
        let stamp = Stamp::of(path).filter(|it| it.len_bytes == expected.n_bytes);
        let Some(stamp) = stamp else { return Condition::Absent };
        match self.known().get(&(expected.blob.clone(), stamp)) {
            Some(true) => return Condition::Sound,
            Some(false) => return Condition::Damaged,
            None => {}
        }
        if self.trust == Trust::Marks && mark::vouches(folder, &expected.blob, &stamp) {
            return Condition::Sound;
        }
        Condition::Unknown(stamp)
    }

    /// The same, and the file is hashed if need be.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it must not be read; [`Error::Cache`] if it is being written;
    /// [`Error::Cancelled`].
    pub(crate) fn find_out(
        &self,
        folder: &Folder,
        path: &Path,
        expected: &Expected,
        stop: &Stop,
    ) -> Result<Condition> {
        self.find_out_counted(folder, (path, expected), stop, &|_| ())
    }

    fn find_out_counted(
        &self,
        folder: &Folder,
        (path, expected): (&Path, &Expected),
        stop: &Stop,
        count: &(dyn Fn(u64) + Sync),
    ) -> Result<Condition> {
        for _ in 0..N_CHANGES_MAX {
            let Condition::Unknown(stamp) = self.look(folder, path, expected) else { break };
            let can_be_marked = mark::settle(folder, &[stamp], stop)?;
            let unhashed = Unhashed { path, expected, stamp, can_be_marked };
            self.hash(folder, &unhashed, stop, count)?;
        }
        match self.look(folder, path, expected) {
            Condition::Unknown(_) => Err(is_written(path)),
            condition => Ok(condition),
        }
    }

    /// This process wrote the file that a name leads to. Answers what the system reports of it.
    pub(crate) fn vouch(&self, folder: &Folder, path: &Path, expected: &Expected) -> Option<Stamp> {
        let stamp = Stamp::of(path).filter(|it| it.len_bytes == expected.n_bytes)?;
        self.known().insert((expected.blob.clone(), stamp), true);
        if file::reach_drive(path) {
            mark::add(folder, &expected.blob, &stamp);
        }
        Some(stamp)
    }

    /// Hashes these files where that is needed, several at a time.
    ///
    /// # Errors
    ///
    /// As [`Checks::find_out`].
    pub(crate) fn run(
        &self,
        folder: &Folder,
        files: &[(PathBuf, Expected)],
        stop: &Stop,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut unknown = BTreeMap::new();
        for (path, expected) in files {
            if let Condition::Unknown(stamp) = self.look(folder, path, expected) {
                // A file and the links to it are one.
                unknown.entry((expected.blob.clone(), stamp)).or_insert((path, expected));
            }
        }
        if unknown.is_empty() {
            return Ok(());
        }
        let stamps: Vec<Stamp> = unknown.keys().map(|(_, stamp)| *stamp).collect();
        let total_bytes = stamps.iter().map(|it| it.len_bytes).sum();
        let can_be_marked = mark::settle(folder, &stamps, stop)?;
        let done_bytes = AtomicU64::new(0);
        let count = |n_bytes| {
            done_bytes.fetch_add(n_bytes, Ordering::Relaxed);
        };
        let jobs = unknown.into_iter().map(|((_, stamp), (path, expected))| {
            let unhashed = Unhashed { path, expected, stamp, can_be_marked };
            let count = &count;
            move |stop: &Stop| self.hash(folder, &unhashed, stop, count)
        });
        run_all(jobs.collect(), stop, &mut || {
            let done_bytes = done_bytes.load(Ordering::Relaxed);
            watch(Progress { total_bytes, done_bytes, is_waiting: false })
        })
    }

    /// What it finds is known then, unless the file changed meanwhile.
    fn hash(
        &self,
        folder: &Folder,
        file: &Unhashed<'_>,
        stop: &Stop,
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
        if is_sound && can_be_marked && file::reach_drive(path) {
            mark::add(folder, &expected.blob, &stamp);
        }
        Ok(())
    }
}

/// Runs jobs on several threads, and asks meanwhile whether to go on.
fn run_all<J: FnOnce(&Stop) -> Result<()> + Send>(
    jobs: Vec<J>,
    stop: &Stop,
    watch: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<()> {
    let n_cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let n_threads = jobs.len().min(n_cores).min(N_THREADS_MAX);
    let jobs = Mutex::new(jobs.into_iter());
    // The failure of one ends the others.
    let ours = stop.narrower();
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        for idx in 0..n_threads {
            let (jobs, ours, sender) = (&jobs, &ours, sender.clone());
            let work = move || {
                let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
                let mut done = std::iter::from_fn(next).map(|job| job(ours));
                if let Some(error) = done.find_map(Result::err) {
                    ours.set();
                    // Who receives waits until all have ended.
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
            match receiver.recv_timeout(WATCH_EVERY) {
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

/// The hash of a file; none if the drive does not return its bytes.
fn digits(
    path: &Path,
    expected: &Expected,
    stop: &Stop,
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

fn is_written(path: &Path) -> Error {
    let path = path.display();
    Error::Cache(format!("{path}: changes while it is read: end the program that writes it"))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::sync::atomic::AtomicUsize;
    use std::time::SystemTime;

    use super::*;

    /// A folder of a model with one file, and its contents' name.
    fn with_file(name: &str) -> (Folder, PathBuf, Expected) {
        let root = std::env::temp_dir().join(format!("moeflux-hub-{name}-{}", std::process::id()));
        let folder = Folder::new(&root, &"a/b".parse().unwrap());
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let expected = Expected { blob: BlobId::sha256(abc).unwrap(), n_bytes: 3 };
        fs::create_dir_all(folder.blobs()).unwrap();
        let path = folder.blob(&expected.blob);
        fs::write(&path, "abc").unwrap();
        (folder, path, expected)
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_not_judged() {
        let (folder, path, expected) = with_file("check-changes");
        let (checks, stop, n_reads) = (Checks::default(), Stop::default(), AtomicUsize::new(0));
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
        let find_out = |n_changes| {
            checks.find_out_counted(&folder, (&path, &expected), &stop, &change(n_changes))
        };
        let error = find_out(N_CHANGES_MAX).unwrap_err().to_string();
        assert!(error.contains("changes while it is read"), "{error}");
        assert_eq!(n_reads.swap(0, Ordering::Relaxed), N_CHANGES_MAX);
        assert_eq!(find_out(N_CHANGES_MAX - 1).unwrap(), Condition::Sound);
        fs::remove_dir_all(folder.root()).unwrap();
    }

    #[test]
    fn the_end_is_obeyed_and_a_failure_ends_all() {
        let (folder, path, expected) = with_file("check-ends");
        let stop = Stop::default();
        stop.set();
        let files = [(path, expected)];
        let run = |stop: &Stop| {
            Checks::default().run(&folder, &files, stop, &mut |_| ControlFlow::Continue(()))
        };
        assert!(matches!(run(&stop), Err(Error::Cancelled)));
        assert!(run(&Stop::default()).is_ok());
        fs::remove_dir_all(folder.root()).unwrap();

        let n_run = AtomicUsize::new(0);
        let jobs = (0..100).map(|idx| {
            let n_run = &n_run;
            move |stop: &Stop| {
                n_run.fetch_add(1, Ordering::Relaxed);
                if idx == 0 { Err(Error::Cache("first".to_owned())) } else { stop.check() }
            }
        });
        let ran = run_all(jobs.collect(), &Stop::default(), &mut || ControlFlow::Continue(()));
        let said = ran.unwrap_err().to_string();
        assert!(said == "first" || said == "cancelled", "{said}");
    }
}
