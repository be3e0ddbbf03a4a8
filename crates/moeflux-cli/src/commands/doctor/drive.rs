//! The read rate of the drive that holds a folder: for each access method, with 1 to 32 reads in
//! flight.
//!
//! Reads the largest files of a model, or a temporary file if there is none. **Invariant:** the
//! temporary file is removed on every exit path; every figure comes from offsets that were not read
//! before, or is marked as repeated.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use moeflux::{ByteCount, Error, Remedy, Result};
use moeflux_io::{Caching, DriveFile, Probe, RealClock, free_disk_bytes};
use serde_json::{Value, json};

use crate::output::print;
use crate::output::progress::Bar;
use crate::random::RandomStream;
use crate::stats::median;
use crate::system::interrupt::Interrupt;

/// Reads in flight, one column each.
pub(super) const DEPTHS: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// With fewer reads in flight, most drives are slower.
pub(super) const DEPTH_ENOUGH: usize = 4;

/// The size of expert reads: large enough for any drive's full rate.
const READ_BYTES: usize = 1 << 20;

/// The duration of each measurement; the first follows a short warm-up.
const DURATION: Duration = Duration::from_millis(200);

/// Shorter files (in total) are exhausted too soon.
const OWN_FILES_BYTES_MIN: u64 = 256 << 20;

/// A temporary file takes at most this fraction of the drive's free space.
const SHARE_OF_FREE: u64 = 4;

/// A shorter temporary file gives no useful figure.
const FILE_BYTES_MIN: u64 = 4 << 20;

/// Bytes of each write.
const WRITE_BYTES: usize = 4 << 20;

/// The figures of one access method.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AccessMethod {
    /// The requested caching.
    pub(super) caching: Caching,
    /// `io_uring` or `threads`.
    pub(super) drive: &'static str,
    /// The rate for each of [`DEPTHS`].
    pub(super) bytes_per_s: Vec<f64>,
}

impl AccessMethod {
    /// Returns the rate with enough reads in flight: the median of those figures, since the drive
    /// may have been unusually fast or busy during any one of them.
    pub(super) fn rate(&self) -> f64 {
        let figures = DEPTHS.iter().zip(&self.bytes_per_s);
        let enough = figures.filter(|(depth, _)| **depth >= DEPTH_ENOUGH);
        let enough: Vec<f64> = enough.map(|(_, rate)| *rate).collect();
        median(&enough).unwrap_or(0.0)
    }

    /// Returns the fewest reads in flight that come close to that rate.
    pub(super) fn depth_enough(&self) -> usize {
        let is_enough = |(_, rate): &(&usize, &f64)| **rate >= 0.95 * self.rate();
        let mut found = DEPTHS.iter().zip(&self.bytes_per_s);
        found.find(is_enough).map_or(DEPTHS[0], |(depth, _)| *depth)
    }

    /// Returns the name for the text output.
    pub(super) fn name(&self) -> String {
        let caching = match self.caching {
            Caching::Direct => "direct",
            Caching::PageCache => "page cache",
        };
        format!("{caching}, {}", self.drive)
    }
}

/// The files that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProbedFiles {
    /// The number of a model's files, and their bytes.
    Model(usize, u64),
    /// The number of weight files in a folder that is not a runnable model, and their bytes.
    Folder(usize, u64),
    /// The length of a temporary file written for the measurement.
    Temporary(u64),
}

/// The files that may be read.
#[derive(Clone, Debug)]
pub(super) struct CandidateFiles {
    pub(super) folder: PathBuf,
    /// The files of the model there with their lengths, if there is one.
    pub(super) of_model: Option<Vec<(PathBuf, u64)>>,
}

/// The read rates of a drive, for each access method.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DriveRates {
    pub(super) probed: ProbedFiles,
    /// Direct reads first, if available.
    pub(super) methods: Vec<AccessMethod>,
    /// Whether offsets were read again, so that the drive's own cache may have helped.
    pub(super) is_repeated: bool,
    /// Alignment of direct reads; `None` if there are no direct reads.
    pub(super) direct_block_bytes: Option<usize>,
}

impl DriveRates {
    /// Returns the fastest access method.
    pub(super) fn best(&self) -> Option<&AccessMethod> {
        self.methods.iter().max_by(|a, b| a.rate().total_cmp(&b.rate()))
    }

    /// Returns the access method with this requested caching.
    pub(super) fn method(&self, caching: Caching) -> Option<&AccessMethod> {
        self.methods.iter().find(|method| method.caching == caching)
    }

    /// Returns the figures as JSON.
    pub(super) fn json(&self) -> Value {
        let methods = self.methods.iter().map(|method| {
            json!({
                "caching": match method.caching {
                    Caching::Direct => "direct",
                    Caching::PageCache => "page-cache",
                },
                "drive": method.drive,
                "bytes_per_s": method.bytes_per_s,
                "rate_bytes_per_s": method.rate(),
                "n_in_flight_enough": method.depth_enough(),
            })
        });
        let (n_files, n_bytes, is_temporary) = match self.probed {
            ProbedFiles::Model(n_files, n_bytes) | ProbedFiles::Folder(n_files, n_bytes) => {
                (n_files, n_bytes, false)
            }
            ProbedFiles::Temporary(n_bytes) => (1, n_bytes, true),
        };
        json!({
            "n_files": n_files,
            "n_bytes": n_bytes,
            "is_temporary_file": is_temporary,
            "read_bytes": READ_BYTES,
            "n_in_flight": DEPTHS,
            "ways": methods.collect::<Vec<_>>(),
            "is_repeated": self.is_repeated,
            "direct_block_bytes": self.direct_block_bytes,
        })
    }
}

/// Measures the drive with these files, or with a temporary file in their folder if they are too
/// short.
///
/// # Errors
///
/// [`Error::Io`] if reading or writing fails, [`Error::NoRoom`] if a temporary file does not fit,
/// [`Error::Cancelled`].
pub(super) fn drive_rates(
    files: &CandidateFiles,
    file_bytes: u64,
    interrupt: &Interrupt,
) -> Result<DriveRates> {
    let dir = files.folder.as_path();
    let (mut own, probed): (_, fn(usize, u64) -> ProbedFiles) = match &files.of_model {
        Some(own) => (own.clone(), ProbedFiles::Model),
        None => (own_files(dir)?, ProbedFiles::Folder),
    };
    own.sort_by_key(|(_, len_bytes)| std::cmp::Reverse(*len_bytes));
    let own_bytes = own.iter().map(|(_, len_bytes)| len_bytes).sum();
    if own_bytes >= OWN_FILES_BYTES_MIN.min(file_bytes) {
        let probed = probed(own.len(), own_bytes);
        let files = own.into_iter().map(|(path, _)| path).collect();
        return measure(probed, files, interrupt);
    }
    let temporary = TemporaryFile::write(dir, file_bytes, interrupt)?;
    let probed = ProbedFiles::Temporary(temporary.len_bytes);
    measure(probed, vec![temporary.path.clone()], interrupt)
}

/// Lists the weight files in a folder, regardless of the model they belong to.
fn own_files(dir: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::io("list", dir))? {
        let path = entry.map_err(Error::io("list", dir))?.path();
        let is_weights = path.extension().is_some_and(|it| it == "safetensors" || it == "gguf");
        // Links in a cache lead to files on the same drive; inaccessible files are left out.
        let metadata = fs::metadata(&path).ok().filter(|it| is_weights && it.is_file());
        files.extend(metadata.map(|it| (path, it.len())));
    }
    Ok(files)
}

fn measure(probed: ProbedFiles, files: Vec<PathBuf>, interrupt: &Interrupt) -> Result<DriveRates> {
    let first = files.first().cloned().unwrap_or_default();
    let direct = DriveFile::open(&first, Caching::Direct).map_err(Error::io("read", &first))?;
    let is_direct = direct.caching() == Caching::Direct;
    let direct_block_bytes = is_direct.then(|| direct.block_bytes());
    drop(direct);
    let all = [Caching::Direct, Caching::PageCache];
    let cachings = if is_direct { &all[..] } else { &all[1..] };
    let empty =
        |caching: &Caching| AccessMethod { caching: *caching, drive: "", bytes_per_s: Vec::new() };
    let mut methods: Vec<AccessMethod> = cachings.iter().map(empty).collect();
    let mut probe = Probe::new(files, READ_BYTES, u64::from(std::process::id()));
    let bar = Bar::steps("measuring the drive", DEPTHS.len() * methods.len());
    let (clock, mut is_repeated) = (RealClock::new(), false);
    for depth in DEPTHS {
        for method in &mut methods {
            if interrupt.is_set() {
                return Err(Error::Cancelled);
            }
            let sample = probe.rate(method.caching, depth, DURATION, &clock);
            let Some(sample) = sample.map_err(Error::io("read", &first))? else { continue };
            method.drive = sample.drive;
            method.bytes_per_s.push(sample.measured.bytes_per_s());
            is_repeated |= sample.is_repeated;
            bar.add(1);
        }
    }
    Ok(DriveRates { probed, methods, is_repeated, direct_block_bytes })
}

/// A file that is removed on drop.
#[derive(Debug)]
struct TemporaryFile {
    path: PathBuf,
    len_bytes: u64,
}

impl TemporaryFile {
    /// Writes a file of random numbers, which no drive can compress.
    fn write(dir: &Path, file_bytes: u64, interrupt: &Interrupt) -> Result<Self> {
        let room = free_disk_bytes(dir).map_or(u64::MAX, |free| free / SHARE_OF_FREE);
        let len_bytes = file_bytes.min(room);
        if len_bytes < FILE_BYTES_MIN {
            let needed_bytes = FILE_BYTES_MIN * SHARE_OF_FREE;
            let what = format!("a temporary file to measure with, in {}", dir.display());
            return Err(Error::no_room(what, needed_bytes, Remedy::FreeDisk));
        }
        let path = dir.join(format!(".moeflux-doctor-{}.tmp", std::process::id()));
        print::stderr_line(&format!(
            "note: {} has too few weights for a measurement; writing {} to a temporary file, \
             which is deleted at the end",
            dir.display(),
            ByteCount(len_bytes).rounded()
        ));
        let failed = |error| {
            Error::Input(format!(
                "cannot write a temporary file to {}: {error}; name a writable folder, or one \
                 with a model, which is only read",
                dir.display()
            ))
        };
        let mut file = File::create_new(&path).map_err(failed)?;
        let temporary = Self { path, len_bytes };
        let bar = Bar::bytes("writing", len_bytes);
        let stream = RandomStream::new(u64::from(std::process::id()), "doctor");
        let (mut n_written, mut n_words) = (0, 0);
        let mut block = vec![0_u8; WRITE_BYTES];
        while n_written < len_bytes {
            if interrupt.is_set() {
                return Err(Error::Cancelled);
            }
            for word in block.as_chunks_mut::<8>().0 {
                *word = stream.word(n_words).to_le_bytes();
                n_words += 1;
            }
            let left = usize::try_from(len_bytes - n_written).unwrap_or(usize::MAX);
            let part = &block[..left.min(WRITE_BYTES)];
            file.write_all(part).map_err(failed)?;
            n_written += part.len() as u64;
            bar.add(part.len() as u64);
        }
        // Data that has not reached the drive would be read from memory.
        file.sync_all().map_err(failed)?;
        Ok(temporary)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            print::stderr_line(&format!("note: cannot delete {}: {error}", self.path.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    fn method(rates: &[f64]) -> AccessMethod {
        AccessMethod { caching: Caching::Direct, drive: "threads", bytes_per_s: rates.to_vec() }
    }

    #[test]
    fn the_fewest_reads_in_flight_that_are_enough() {
        for (rates, rate, depth) in [
            (&[1.0, 2.0, 3.9, 4.0, 4.1, 4.0][..], 4.0, 4),
            (&[4.0, 4.0, 4.0, 4.0, 4.0, 4.0], 4.0, 1),
            (&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 4.5, 16),
            // A burst has no more weight than any other figure.
            (&[3.0, 2.9, 2.0, 9.0, 2.1, 2.2], 2.15, 1),
            (&[], 0.0, 1),
        ] {
            assert_eq!(method(rates).depth_enough(), depth, "{rates:?}");
            assert!((method(rates).rate() - rate).abs() < 1e-9, "{rates:?}");
        }
    }

    fn folder(path: &Path) -> CandidateFiles {
        CandidateFiles { folder: path.to_owned(), of_model: None }
    }

    #[test]
    fn a_folder_without_a_model_is_measured_and_left_as_it_was() {
        let dir = TempDir::new();
        fs::write(dir.path().join("tiny.safetensors"), [0; 100]).unwrap();
        let drive_rates = drive_rates(&folder(dir.path()), 6 << 20, &Interrupt::never()).unwrap();
        assert_eq!(drive_rates.probed, ProbedFiles::Temporary(6 << 20));
        assert!(drive_rates.is_repeated, "6 places");
        let page_cache = drive_rates.method(Caching::PageCache).unwrap();
        assert_eq!(page_cache.bytes_per_s.len(), DEPTHS.len());
        assert!(page_cache.rate() > 0.0);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_models_own_files_are_read_and_nothing_is_written() {
        let dir = TempDir::new();
        for (name, n_mebibytes) in [("a.safetensors", 3), ("b.safetensors", 5), ("c.txt", 9)] {
            fs::write(dir.path().join(name), vec![7; n_mebibytes << 20]).unwrap();
        }
        let all = drive_rates(&folder(dir.path()), 8 << 20, &Interrupt::never()).unwrap();
        assert_eq!(all.probed, ProbedFiles::Folder(2, 8 << 20));
        // Other files in the folder are not part of the model.
        let own = vec![(dir.path().join("b.safetensors"), 5 << 20)];
        let files = CandidateFiles { of_model: Some(own), ..folder(dir.path()) };
        let own = drive_rates(&files, 5 << 20, &Interrupt::never()).unwrap();
        assert_eq!(own.probed, ProbedFiles::Model(1, 5 << 20));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn places_that_cannot_be_measured_are_named() {
        let dir = TempDir::new();
        let missing = dir.path().join("none");
        let error = drive_rates(&folder(&missing), 8 << 20, &Interrupt::never()).unwrap_err();
        assert!(error.to_string().contains("none"), "{error}");
        let error =
            drive_rates(&folder(dir.path()), FILE_BYTES_MIN - 1, &Interrupt::never()).unwrap_err();
        assert!(matches!(error, Error::NoRoom { .. }), "{error}");
    }
}
