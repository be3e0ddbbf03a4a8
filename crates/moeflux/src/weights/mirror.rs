//! A second folder with the files of a model, compared with the first before anything is read from
//! it.
//!
//! **Invariant:** a mirror that opens has the same headers, the same small files as far as it has
//! any, and the same bytes at all sampled places; its files are still the same once the model is
//! open. Where there are checksums, each later read is compared with them as well.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, ScopedJoinHandle};

use moeflux_io::ReadFile;

use crate::error::{Error, Result};
use crate::format::{Checkpoint, PackSums, ShardFile, read_into};
use crate::weights::files::{CheckpointFiles, PageCaching};
use crate::weights::manifest::Manifest;
use crate::weights::samples::sampled;
use crate::weights::tensors::FileExtent;

/// Threads: drives serve this many small reads at once in little more time than one.
const N_THREADS: usize = 8;

/// The files of a mirror; none where there is no mirror.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    files: Vec<ShardFile>,
}

impl Mirror {
    /// Compares the files in `dir` with those of a model.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] with the first file that differs and the place; also when a file cannot
    /// be read.
    pub(crate) fn open(checkpoint: &Checkpoint, manifest: &Manifest, dir: &Path) -> Result<Self> {
        let mut files = Vec::with_capacity(checkpoint.files.len());
        for shard in &checkpoint.files {
            let path: PathBuf = dir.join(shard.path.file_name().unwrap_or_default());
            shard.check_copy(&path)?;
            let opened = ReadFile::open(&path).map_err(Error::io("open the mirror's", &path))?;
            files.push(ShardFile { path, identity: Some(opened.identity()), ..shard.clone() });
        }
        if checkpoint.dir.is_dir()
            && let Some(path) = PackSums::differing_document(&checkpoint.dir, dir)?
        {
            let name = path.file_name().unwrap_or_default();
            return Err(differs(&path, "its contents differ", &checkpoint.dir.join(name)));
        }
        let mirror = Self { files };
        mirror.compare(checkpoint, &sampled(manifest))?;
        Ok(mirror)
    }

    /// Checks that the files of the model and of its mirror are still those that were compared.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] with the file that changed.
    pub(crate) fn check_unchanged(&self, checkpoint: &Checkpoint) -> Result<()> {
        checkpoint.check_unchanged()?;
        self.files.iter().try_for_each(ShardFile::check_unchanged)
    }

    fn compare(&self, checkpoint: &Checkpoint, runs: &[FileExtent]) -> Result<()> {
        let ours = CheckpointFiles::open(checkpoint)?.with_page_caching(PageCaching::Dropped);
        let theirs = self.files.iter().map(ShardFile::open).collect::<Result<Vec<_>>>()?;
        let next = AtomicUsize::new(0);
        let work = || {
            let mut buffers = (Vec::new(), Vec::new());
            loop {
                let run_idx = next.fetch_add(1, Ordering::Relaxed);
                let run = runs.get(run_idx)?;
                let their_file = &theirs[run.file_idx];
                if let Err(error) = self.compare_run(*run, &ours, their_file, &mut buffers) {
                    // Runs are taken in order, so all runs before this one are already taken.
                    next.store(runs.len(), Ordering::Relaxed);
                    return Some((run_idx, error));
                }
            }
        };
        let first = std::thread::scope(|scope| {
            let start = |thread_idx: usize| {
                let builder = Builder::new().name(format!("moeflux-mirror-{thread_idx}"));
                // None where the system cannot create a thread: slower, but it works.
                builder.spawn_scoped(scope, work).ok()
            };
            let threads: Vec<_> = (1..N_THREADS.min(runs.len())).filter_map(start).collect();
            let own = work();
            let join = |thread: ScopedJoinHandle<'_, _>| thread.join().expect("it does not panic");
            let others = threads.into_iter().filter_map(join);
            own.into_iter().chain(others).min_by_key(|(run_idx, _)| *run_idx)
        });
        first.map_or(Ok(()), |(_, error)| Err(error))
    }

    fn compare_run(
        &self,
        run: FileExtent,
        ours: &CheckpointFiles<'_>,
        their_file: &ReadFile,
        (our_bytes, their_bytes): &mut (Vec<u8>, Vec<u8>),
    ) -> Result<()> {
        let n_bytes = usize::try_from(run.len_bytes).expect("a run is short");
        let path = &self.files[run.file_idx].path;
        our_bytes.resize(n_bytes, 0);
        their_bytes.resize(n_bytes, 0);
        ours.read(run.file_idx, run.offset_bytes, our_bytes)?;
        read_into(their_file, path, run.offset_bytes, their_bytes)?;
        their_file.forget_cached_range(run.offset_bytes, run.len_bytes);
        let pairs = our_bytes.iter().zip(their_bytes.iter());
        let Some(at) = pairs.into_iter().position(|(ours, theirs)| ours != theirs) else {
            return Ok(());
        };
        let at = run.offset_bytes + at as u64;
        let name = ours.name_at(run.file_idx, at);
        Err(differs(path, &format!("byte {at}, of {name}, differs"), ours.path(run.file_idx)))
    }
}

fn differs(path: &Path, how: &str, original: &Path) -> Error {
    let original = original.display();
    let problem = format!(
        "of the mirror is not a copy of {original}: {how}; it is damaged or belongs to another \
         model: copy the model's folder to the mirror again"
    );
    Error::malformed(path, problem)
}
