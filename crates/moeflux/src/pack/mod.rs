//! Packs a checkpoint: one record per expert, with checksums, optionally quantised.
//!
//! A packed folder is a regular model: `config.json` and tokenizer next to plain safetensors files
//! whose metadata marks them as packed (`crate::format`). For a GGUF source a file with its
//! metadata replaces config and tokenizer. **Invariant:** if a run is interrupted at any moment, no
//! byte of the model is lost and the next run resumes. The result is identical, byte for byte, to
//! that of an uninterrupted run. Memory is at most [`WORKING_BYTES_MAX`] for any model, plus the
//! size of its headers.

mod folder;
mod journal;
mod source;
mod plan;
mod write;
mod verify;
#[cfg(test)]
mod table_tests;

pub(crate) use plan::RECORD_BYTES_MAX;
pub use verify::damage::{Damage, DamagedPart};
pub use verify::sums::{Documents, lacks_sums, write_sums};
pub use verify::{Coverage, Verified, verify, verify_with};

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use moeflux_io::{FileIdentity, OneLine, ReadFile};
use moeflux_kernels::FloatKind;

use crate::blueprint::Blueprint;
use crate::error::{Error, Result};
use crate::format::{
    Checkpoint, DocumentSum, PACK_JOURNAL, PACK_METADATA, PACK_SUMS_NAME, PackSums, RawConfig,
    gguf_at, read_file, read_file_if_there, read_into,
};
use crate::spec::QuantParams;
use crate::weights::{ProgressCallback, sampled};
use folder::PackFolder;
use journal::{CONFIG_BYTES_MAX, PackJournal};
use plan::file::{self, FilePlan};
use plan::{PackPlan, PlanRequest};
use source::SourceFiles;
use verify::{compare, sums};
use write::ProgressReporter;
use write::documents::{self, DOCUMENT_BYTES_MAX};

/// Upper bound on threads: beyond it a drive's write rate is the limit.
pub(crate) const N_THREADS_MAX: usize = 16;

/// Upper bound on working memory: one record of the largest size, and per thread a piece as stored,
/// as floats (four times the bytes of FP8), quantised, and two results that wait.
pub const WORKING_BYTES_MAX: usize =
    RECORD_BYTES_MAX + N_THREADS_MAX * (1 + 4 + 1 + 2) * file::PIECE_BYTES;

const CONFIG_NAME: &str = "config.json";
const INDEX_NAME: &str = "model.safetensors.index.json";

/// The treatment of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceHandling {
    /// It is unchanged.
    Kept,
    /// Its weight files are deleted one by one, each as soon as all its contents were written,
    /// synced and read back.
    Replaced,
}

/// Options of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackOptions {
    /// Quantise to MLX affine; `None` keeps all values.
    pub params: Option<QuantParams>,
    /// Treatment of the source.
    pub handling: SourceHandling,
    /// Number of threads that read and quantise; at most 16 are used.
    pub n_threads: NonZeroUsize,
}

/// A planned pack. Nothing has been written yet.
#[derive(Debug)]
pub struct Packing {
    source: PathBuf,
    target: PathBuf,
    options: PackOptions,
    journal: PackJournal,
    plan: PackPlan,
    files: SourceFiles,
    /// Whether an earlier run wrote each file of the plan.
    is_done: Vec<bool>,
    /// Indices of written files that may come from other source files than the present ones, and
    /// cannot be written again because some sources are gone.
    unsure: Vec<usize>,
    /// Present identity of each source file that may not be the original one.
    doubtful: Vec<Option<FileIdentity>>,
    is_resumed: bool,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackReport {
    /// Number of weight files in the pack.
    pub n_files: usize,
    /// Their total length.
    pub n_bytes: u64,
    /// Number of source files that no longer exist.
    pub n_replaced: usize,
}

impl Packing {
    /// Plans the pack from the source's headers, or from the journal of an interrupted run.
    ///
    /// # Errors
    ///
    /// If the source is malformed, is already packed, or is already quantised and
    /// [`PackOptions::params`] asks for quantisation; if `target` has anything in it other than an
    /// interrupted pack of the same source with the same options.
    pub fn prepare(source: &Path, target: &Path, options: &PackOptions) -> Result<Self> {
        check_apart(source, target, options.handling)?;
        let folder = folder_of(source)?;
        let begun = target.join(PACK_JOURNAL);
        let journal = if begun.exists() { Some(PackJournal::read(&begun)?) } else { None };
        let is_resumed = journal.is_some();
        let (config, checkpoint) = if let Some(journal) = &journal {
            check_options(journal, options, target)?;
            journal.check_source(&folder)?;
            (journal.config.clone(), journal.checkpoint(&folder)?)
        } else {
            check_vacant(target)?;
            read_source(source)?
        };
        let (blueprint, cast) = described(&folder, config.as_deref(), &checkpoint)?;
        let params = options.params;
        let runs = sampled(&blueprint.manifest);
        let documents = documents::sums_of(&folder, config.is_some())?;
        let (journal, doubtful) = if let Some(journal) = journal {
            journal.check_documents(&folder, &documents)?;
            let doubtful = journal.doubtful(&checkpoint, &runs)?;
            (journal, doubtful)
        } else {
            let journal = PackJournal::of_source((&checkpoint, &runs), config, documents, params)?;
            (journal, vec![None; checkpoint.files.len()])
        };
        let (checkpoint, blueprint) = (&checkpoint, &blueprint);
        let request = PlanRequest { blueprint, checkpoint, params, cast, pack: journal.pack() };
        let plan = PackPlan::new(&request)?;
        let files = SourceFiles::open(checkpoint)?;
        if options.handling == SourceHandling::Replaced {
            files.check_deletable()?;
        }
        let (is_done, unsure) = done(&plan, target, (&files, &doubtful))?;
        if !is_resumed {
            // The headers were read twice: for the table of contents and for the journal.
            checkpoint.check_unchanged()?;
        }
        let packing = Self {
            source: folder,
            target: target.to_owned(),
            options: *options,
            journal,
            is_done,
            unsure,
            doubtful,
            plan,
            files,
            is_resumed,
        };
        packing.check_sources()?;
        Ok(packing)
    }

    /// Returns whether this run resumes an interrupted one.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// Returns the bytes of weights in the whole pack.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.plan.files.iter().map(FilePlan::len_bytes).sum()
    }

    /// Returns the bytes of weights that remain to be written.
    #[must_use]
    pub fn remaining_bytes(&self) -> u64 {
        let files = self.plan.files.iter().zip(&self.is_done);
        files.filter(|(_, is_done)| !**is_done).map(|(file, _)| file.len_bytes()).sum()
    }

    /// Returns the number of weight files in the whole pack.
    #[must_use]
    pub fn n_files(&self) -> usize {
        self.plan.files.len()
    }

    /// Returns the free space required at the target: the peak of bytes written minus bytes freed
    /// by deleting source files.
    #[must_use]
    pub fn room_bytes(&self) -> u64 {
        let device = source::device_of(&self.target);
        let mut is_done = self.is_done.clone();
        let mut is_deleted = vec![false; self.journal.files.len()];
        let (mut taken, mut freed, mut peak) = (0_u64, 0_u64, 0_u64);
        let mut free = |is_done: &[bool], freed: &mut u64| {
            if self.options.handling == SourceHandling::Kept {
                return;
            }
            for shard_idx in self.deletable(is_done) {
                if !std::mem::replace(&mut is_deleted[shard_idx], true) {
                    *freed += self.files.freed_bytes(shard_idx, device);
                }
            }
        };
        free(&is_done, &mut freed);
        for (file_idx, file) in self.plan.files.iter().enumerate() {
            if is_done[file_idx] {
                continue;
            }
            let begun = fs::metadata(folder::partial_path(&self.target, &file.name));
            taken += file.len_bytes() - begun.map_or(0, |it| it.len()).min(file.len_bytes());
            peak = peak.max(taken.saturating_sub(freed));
            is_done[file_idx] = true;
            free(&is_done, &mut freed);
        }
        peak
    }

    /// Writes the pack. `watch` is told of bytes written, and of bytes read back if the source is
    /// replaced. It is called before every change on the drive and may cancel the run, which a
    /// later run can resume.
    ///
    /// # Errors
    ///
    /// [`Error::Cancelled`]; an error of the source, a written file or the drive.
    pub fn run(mut self, watch: &mut ProgressCallback<'_>) -> Result<PackReport> {
        let is_replaced = self.options.handling == SourceHandling::Replaced;
        let n_passes = if is_replaced { 2 } else { 1 };
        let mut reporter = ProgressReporter::new(self.remaining_bytes() * n_passes, watch);
        reporter.before_change()?;
        let folder = PackFolder::open(&self.target)?;
        self.begin(&folder, &mut reporter)?;
        self.put_documents(&folder, &mut reporter)?;
        let n_threads = self.options.n_threads.get().min(N_THREADS_MAX);
        self.recheck_doubtful(&folder, n_threads, &mut reporter)?;
        self.delete_finished_sources(&mut reporter)?;
        for file_idx in 0..self.plan.files.len() {
            if self.is_done[file_idx] {
                continue;
            }
            let file = &self.plan.files[file_idx];
            write::write_file(file, (&self.files, &folder), n_threads, &mut reporter)?;
            for shard_idx in file.sources() {
                self.files.check_unchanged(shard_idx)?;
            }
            if self.journal.is_read_back {
                write::read_back(file, &folder.partial(&file.name), &mut reporter)?;
            }
            reporter.before_change()?;
            folder.publish(&file.name)?;
            self.is_done[file_idx] = true;
            self.delete_finished_sources(&mut reporter)?;
        }
        self.finish(&folder, &mut reporter)
    }

    /// Copies the small files.
    fn put_documents(
        &self,
        folder: &PackFolder,
        reporter: &mut ProgressReporter<'_, '_>,
    ) -> Result<()> {
        for (name, sum) in &self.journal.documents {
            if folder.path(name).exists() {
                continue;
            }
            let path = self.source.join(name);
            let Some(bytes) = read_file_if_there(&path, DOCUMENT_BYTES_MAX)? else {
                if !PackSums::are_of(name) {
                    continue;
                }
                let problem = "is missing, but was present when packing began: put it back, then \
                               repeat the command";
                return Err(Error::malformed(&path, problem));
            };
            if PackSums::are_of(name) && DocumentSum::of_bytes(&bytes).sum != *sum {
                let problem = "changed while it was being packed: pack again to another folder";
                return Err(Error::malformed(&path, problem));
            }
            reporter.before_change()?;
            folder.put(name, &bytes)?;
        }
        Ok(())
    }

    /// Handles source files that may have been exchanged. Outputs made from them are removed, or
    /// compared if they cannot be made again. Only then does the journal adopt the present files,
    /// so that the next run need not repeat this.
    fn recheck_doubtful(
        &mut self,
        folder: &PackFolder,
        n_threads: usize,
        reporter: &mut ProgressReporter<'_, '_>,
    ) -> Result<()> {
        if self.doubtful.iter().all(Option::is_none) {
            return Ok(());
        }
        for (file, _) in self.plan.files.iter().zip(&self.is_done).filter(|(_, done)| !**done) {
            if folder.path(&file.name).exists() {
                reporter.before_change()?;
                folder.remove(&file.name)?;
            }
        }
        for &file_idx in &self.unsure {
            let source = (&self.files, folder);
            compare::compare(&self.plan.files[file_idx], source, n_threads, reporter)?;
        }
        self.journal.adopt(&self.doubtful);
        reporter.before_change()?;
        folder.put(PACK_JOURNAL, &self.journal.to_bytes())
    }

    /// Writes the journal. If the source is to be replaced, files that an earlier run did not read
    /// back are read back first.
    fn begin(
        &mut self,
        folder: &PackFolder,
        reporter: &mut ProgressReporter<'_, '_>,
    ) -> Result<()> {
        let is_read_back = self.options.handling == SourceHandling::Replaced;
        if is_read_back && !self.journal.is_read_back {
            for (file, _) in self.plan.files.iter().zip(&self.is_done).filter(|(_, done)| **done) {
                write::read_back(file, &folder.path(&file.name), reporter)?;
            }
        }
        if self.is_resumed && (self.journal.is_read_back || !is_read_back) {
            return Ok(());
        }
        self.journal.is_read_back |= is_read_back;
        reporter.before_change()?;
        folder.put(PACK_JOURNAL, &self.journal.to_bytes())
    }

    /// Writes the index and the checksums, then the config or GGUF metadata, which completes the
    /// model.
    fn finish(
        &self,
        folder: &PackFolder,
        reporter: &mut ProgressReporter<'_, '_>,
    ) -> Result<PackReport> {
        reporter.before_change()?;
        folder.put(INDEX_NAME, &documents::index(&self.plan))?;
        let params = self.options.params;
        let (name, description) = match (&self.journal.config, self.journal.files.first()) {
            (Some(config), _) => {
                let path = self.source.join(CONFIG_NAME);
                (CONFIG_NAME, documents::config(config, &path, params, &self.plan)?)
            }
            (None, Some(file)) => {
                let path = self.source.join(&file.name);
                let header = &file.header;
                let metadata = documents::gguf_metadata(header, &path, params, &self.plan)?;
                (PACK_METADATA, metadata)
            }
            (None, None) => unreachable!("a GGUF file is a file"),
        };
        let sums =
            sums::of_finished((&self.plan, self.journal.pack()), folder, (name, &description))?;
        reporter.before_change()?;
        folder.put(PACK_SUMS_NAME, &sums.to_bytes())?;
        reporter.before_change()?;
        folder.put(name, &description)?;
        reporter.before_change()?;
        folder.remove(PACK_JOURNAL)?;
        let n_shards = self.journal.files.len();
        Ok(PackReport {
            n_files: self.plan.files.len(),
            n_bytes: self.total_bytes(),
            n_replaced: (0..n_shards).filter(|&idx| !self.files.is_there(idx)).count(),
        })
    }

    /// Returns the source files whose contents are all in finished files.
    fn deletable(&self, is_done: &[bool]) -> Vec<usize> {
        let mut is_needed = vec![false; self.journal.files.len()];
        for (file, _) in self.plan.files.iter().zip(is_done).filter(|(_, done)| !**done) {
            file.sources().into_iter().for_each(|shard_idx| is_needed[shard_idx] = true);
        }
        (0..is_needed.len()).filter(|&shard_idx| !is_needed[shard_idx]).collect()
    }

    /// Deletes source files that are no longer needed, if the source is to be replaced.
    fn delete_finished_sources(&mut self, reporter: &mut ProgressReporter<'_, '_>) -> Result<()> {
        if self.options.handling == SourceHandling::Kept {
            return Ok(());
        }
        for shard_idx in self.deletable(&self.is_done) {
            if self.files.is_there(shard_idx) || self.files.is_dead_link(shard_idx) {
                reporter.before_change()?;
                self.files.delete(shard_idx)?;
            }
        }
        Ok(())
    }

    /// Refuses to start if a required source file is missing.
    fn check_sources(&self) -> Result<()> {
        for (file, _) in self.plan.files.iter().zip(&self.is_done).filter(|(_, done)| !**done) {
            for shard_idx in file.sources() {
                if !self.files.is_there(shard_idx) {
                    let path = self.source.join(&self.journal.files[shard_idx].name);
                    let problem = format!(
                        "is missing, and {} of the pack is not yet written: put it back, then \
                         repeat the command",
                        file.name
                    );
                    return Err(Error::malformed(&path, problem));
                }
            }
        }
        Ok(())
    }
}

/// Returns whether the file under its final name matches the plan.
fn is_whole(plan: &FilePlan, target: &Path) -> Result<bool> {
    let path = target.join(&plan.name);
    let opened = ReadFile::open_if_there(&path).map_err(Error::io("open", &path))?;
    let Some(file) = opened else { return Ok(false) };
    if file.len_bytes() == plan.len_bytes() {
        let mut header = vec![0; plan.header.len()];
        read_into(&file, &path, 0, &mut header)?;
        if header == plan.header {
            return Ok(true);
        }
    }
    let problem =
        "differs from the file that this pack writes there: remove it, or pack to another folder";
    Err(Error::malformed(&path, problem))
}

/// Returns the folder of the source's weight files.
fn folder_of(source: &Path) -> Result<PathBuf> {
    let file = match gguf_at(source)? {
        Some(file) => file,
        // A GGUF file that an earlier run deleted.
        None if !source.is_dir() && source.extension().is_some() => source.to_owned(),
        None => return Ok(source.to_owned()),
    };
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    Ok(folder.unwrap_or(Path::new(".")).to_owned())
}

/// Reads the config of a source, unless it is a GGUF file, and its headers.
fn read_source(source: &Path) -> Result<(Option<String>, Checkpoint)> {
    let is_gguf = gguf_at(source)?.is_some() || source.join(PACK_METADATA).exists();
    let config = if is_gguf { None } else { Some(read_config(source)?) };
    let checkpoint = Checkpoint::open(source)?;
    if checkpoint.packed.is_some() {
        return Err(Error::Input(format!("{} is packed already", source.display())));
    }
    Ok((config, checkpoint))
}

/// Returns, by file of the plan, whether an earlier run wrote it and it need not be written again;
/// and the indices of those that may come from other source files but cannot be written again.
fn done(
    plan: &PackPlan,
    target: &Path,
    (files, doubtful): (&SourceFiles, &[Option<FileIdentity>]),
) -> Result<(Vec<bool>, Vec<usize>)> {
    let (mut is_done, mut unsure) = (Vec::new(), Vec::new());
    for (file_idx, file) in plan.files.iter().enumerate() {
        let sources = file.sources();
        let is_doubtful = sources.iter().any(|&shard_idx| doubtful[shard_idx].is_some());
        let can_be_made = sources.iter().all(|&shard_idx| files.is_there(shard_idx));
        // Files are written again if possible, so that a pack has a single source.
        is_done.push(is_whole(file, target)? && !(is_doubtful && can_be_made));
        if is_done[file_idx] && is_doubtful {
            unsure.push(file_idx);
        }
    }
    Ok((is_done, unsure))
}

/// Returns the source's blueprint, and the type that its config declares for all weights.
fn described(
    folder: &Path,
    config: Option<&str>,
    checkpoint: &Checkpoint,
) -> Result<(Blueprint, Option<FloatKind>)> {
    let Some(config) = config else {
        return Ok((Blueprint::of_gguf(checkpoint)?, None));
    };
    let raw = RawConfig::parse(&folder.join(CONFIG_NAME), config.as_bytes())?;
    let cast = plan::config_cast(
        raw.root().str_opt("torch_dtype")?,
        raw.root().section("text_config")?.map_or(Ok(None), |text| text.str_opt("dtype"))?,
    );
    Ok((Blueprint::of_parts(&raw, checkpoint)?, cast))
}

/// Refuses nested folders if one of them would be lost or mixed with other files.
fn check_apart(source: &Path, target: &Path, handling: SourceHandling) -> Result<()> {
    let absolute = |path: &Path| {
        let existing = fs::canonicalize(path).or_else(|_| std::path::absolute(path));
        existing.unwrap_or_else(|_| path.to_owned())
    };
    // A folder that does not exist yet is resolved through its parent.
    let resolved = |path: &Path| match (path.exists(), path.parent(), path.file_name()) {
        (false, Some(parent), Some(name)) if parent.exists() => absolute(parent).join(name),
        _ => absolute(path),
    };
    let (from, to) = (resolved(source), resolved(target));
    let problem = if from == to {
        "a pack needs its own folder"
    } else if from.starts_with(&to) {
        "the pack would be mixed with other files"
    } else if to.starts_with(&from) && handling == SourceHandling::Replaced {
        "removing the rest of the source would also remove the pack"
    } else {
        return Ok(());
    };
    Err(Error::Input(format!(
        "cannot pack {} to {}: {problem}; name another folder",
        source.display(),
        target.display()
    )))
}

/// Refuses a folder that is not empty.
fn check_vacant(target: &Path) -> Result<()> {
    let names = folder::names(target)?;
    let begun = format!("{PACK_JOURNAL}.partial");
    let Some(first) = names.iter().find(|name| **name != begun) else { return Ok(()) };
    let is_pack = names.iter().any(|name| name == CONFIG_NAME)
        && Checkpoint::open(target).is_ok_and(|checkpoint| checkpoint.packed.is_some());
    let what = if is_pack {
        "a finished pack in it already: check it with `moeflux verify`, or name another folder"
    } else {
        "files in it that do not belong to an interrupted pack: name another folder, or empty \
         this one first"
    };
    Err(Error::Input(format!("{} has {what} (`{}`)", target.display(), OneLine::name(first))))
}

/// Refuses to resume a pack with other options.
fn check_options(journal: &PackJournal, options: &PackOptions, target: &Path) -> Result<()> {
    if journal.params == options.params {
        return Ok(());
    }
    let words = |params: Option<QuantParams>| match params {
        None => "without quantising".to_owned(),
        Some(QuantParams { bits, group }) => format!("with {bits} bits in groups of {group}"),
    };
    Err(Error::Input(format!(
        "{} has an interrupted pack that was begun {}, and this one is {}: repeat the first \
         command, or name another folder",
        target.display(),
        words(journal.params),
        words(options.params)
    )))
}

fn read_config(source: &Path) -> Result<String> {
    let path = source.join(CONFIG_NAME);
    String::from_utf8(read_file(&path, CONFIG_BYTES_MAX)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::malformed(&path, format!("is not UTF-8 at byte {at}, so it is not a config"))
    })
}
