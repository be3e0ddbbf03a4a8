//! Measures how fast each way reads files, at offsets that were not read before.
//!
//! Measures a rate for given files, a way of reading and a number of reads in flight. The choice
//! between direct reads and the page cache is based on it. **Invariant:** within one [`Probe`], an
//! offset is read again only when all offsets of all files are used up; the result then says so.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::clock::Clock;
use crate::drives::block::{BlockRead, FileIdx};
use crate::drives::threads::{N_THREADS_MAX, ThreadsDrive};
use crate::files::direct::{Caching, DriveFile};
use crate::measure::{ReadLoad, ReadMeasurement, ScatteredOffsets, measure};

/// Files to read, and the offsets that are left.
#[derive(Debug)]
pub struct Probe {
    files: Vec<PathBuf>,
    read_bytes: usize,
    file_at: usize,
    offsets: Option<ScatteredOffsets>,
    n_passes: u64,
    seed: u64,
}

/// Result for one way of reading.
#[derive(Clone, Copy, Debug)]
pub struct ProbeResult {
    /// Bytes, reads and time.
    pub measured: ReadMeasurement,
    /// The kind of drive that read: `io_uring` or `threads`.
    pub drive: &'static str,
    /// The way in use, which is not the requested one where the file system reads only through the
    /// page cache.
    pub caching: Caching,
    /// Whether all offsets were used up, so that some were read again.
    pub is_repeated: bool,
}

impl Probe {
    /// Creates a probe that reads `read_bytes` at a time from `files`, in their order, at offsets
    /// scattered by `seed`. Files shorter than one read are skipped.
    ///
    /// # Panics
    ///
    /// If `read_bytes` is 0.
    #[must_use]
    pub fn new(files: Vec<PathBuf>, read_bytes: usize, seed: u64) -> Self {
        assert!(read_bytes > 0, "a read has bytes");
        Self { files, read_bytes, file_at: 0, offsets: None, n_passes: 0, seed }
    }

    /// Reads for at most `duration_max`, `n_in_flight` reads at a time, or until all files were
    /// read once. First asks the system to drop cached copies. Returns `None` if no file is as long
    /// as one read.
    ///
    /// # Errors
    ///
    /// The system's error.
    ///
    /// # Panics
    ///
    /// If `n_in_flight` is 0.
    pub fn rate(
        &mut self,
        caching: Caching,
        n_in_flight: usize,
        duration_max: Duration,
        clock: &dyn Clock,
    ) -> io::Result<Option<ProbeResult>> {
        assert!(n_in_flight > 0, "a read in flight");
        let n_in_flight = n_in_flight.min(N_THREADS_MAX);
        let mut sum: Option<ProbeResult> = None;
        if self.files.is_empty() {
            return Ok(None);
        }
        // Each iteration uses up a file or the time: the rest of the current one, then each file
        // once.
        for _ in 0..=self.files.len() {
            let spent = sum.map_or(Duration::ZERO, |it| it.measured.elapsed);
            let Some(left) = duration_max.checked_sub(spent).filter(|it| !it.is_zero()) else {
                break;
            };
            let file = DriveFile::open(&self.files[self.file_at], caching)?;
            let (seed, read_bytes) = (self.seed + self.n_passes, self.read_bytes);
            let len_bytes = file.len_bytes();
            let offsets =
                self.offsets.get_or_insert(ScatteredOffsets::new(len_bytes, read_bytes, seed));
            file.drop_copies();
            let caching = file.caching();
            let mut drive = open(file, n_in_flight)?;
            let load = ReadLoad { file: FileIdx(0), read_bytes, n_in_flight, duration_max: left };
            let measured = measure(&mut *drive, load, offsets, clock)?;
            let is_repeated = self.n_passes > 0;
            let probed = ProbeResult { measured, drive: drive.name(), caching, is_repeated };
            sum = Some(sum.map_or(probed, |before| before.and(probed)));
            if measured.elapsed < left {
                self.next_file();
            }
        }
        Ok(sum.filter(|it| it.measured.n_reads > 0))
    }

    fn next_file(&mut self) {
        self.offsets = None;
        self.file_at += 1;
        if self.file_at == self.files.len() {
            self.file_at = 0;
            self.n_passes += 1;
        }
    }
}

impl ProbeResult {
    fn and(self, later: Self) -> Self {
        let measured = ReadMeasurement {
            read_bytes: self.measured.read_bytes + later.measured.read_bytes,
            n_reads: self.measured.n_reads + later.measured.n_reads,
            elapsed: self.measured.elapsed + later.measured.elapsed,
        };
        let has_read_again = later.is_repeated && later.measured.n_reads > 0;
        Self { measured, is_repeated: self.is_repeated || has_read_again, ..later }
    }
}

/// Opens a drive: io_uring for direct reads, if the kernel allows it; threads for the page cache,
/// because they do the copying.
fn open(file: DriveFile, n_in_flight: usize) -> io::Result<Box<dyn BlockRead>> {
    #[cfg(target_os = "linux")]
    if file.caching() == Caching::Direct {
        let again = DriveFile::open(file.path(), Caching::Direct)?;
        if let Ok(drive) = crate::drives::uring::UringDrive::new(vec![again], n_in_flight) {
            return Ok(Box::new(drive));
        }
    }
    Ok(Box::new(ThreadsDrive::new(vec![file], n_in_flight, n_in_flight)?))
}

#[cfg(test)]
mod tests {
    use moeflux_testing::temp_dir::TempDir;

    use super::*;
    use crate::clock::RealClock;

    const LONG: Duration = Duration::from_secs(1000);

    /// A clock that advances with each query, so that a probe ends after a known number of reads.
    #[derive(Debug, Default)]
    struct Ticking(std::sync::atomic::AtomicU64);

    impl Clock for Ticking {
        fn now(&self) -> Duration {
            let n_looks = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Duration::from_millis(n_looks)
        }
    }

    #[test]
    fn files_are_used_up_in_turn_before_a_place_comes_again() {
        let folder = TempDir::new();
        let files = vec![folder.write("a", [1; 40_960]), folder.write("b", [2; 20_480])];
        for caching in [Caching::Direct, Caching::PageCache] {
            let mut probe = Probe::new(files.clone(), 4096, 1);
            let (mut n_reads, mut n_fresh) = (0, 0);
            for _ in 0..20 {
                let ten = Duration::from_millis(4);
                let probed = probe.rate(caching, 1, ten, &Ticking::default()).unwrap().unwrap();
                n_reads += probed.measured.n_reads;
                if !probed.is_repeated {
                    n_fresh = n_reads;
                }
            }
            assert!((8..=15).contains(&n_fresh), "{n_fresh} of 15 places without a repetition");
            assert!(n_reads > 15, "{n_reads} reads");
        }
    }

    #[test]
    fn a_file_that_was_used_up_is_read_again() {
        let folder = TempDir::new();
        let mut probe = Probe::new(vec![folder.write("a", [1; 12_288])], 4096, 1);
        // Three reads end with the third query of the clock or the last offset.
        for nth in 0..10 {
            let four = Duration::from_millis(4);
            let probed = probe.rate(Caching::PageCache, 3, four, &Ticking::default()).unwrap();
            assert!(probed.is_some_and(|it| it.measured.n_reads > 0), "{nth}");
        }
    }

    #[test]
    fn no_bytes_to_read_give_no_rate() {
        let folder = TempDir::new();
        let short = vec![folder.write("short", [1; 100]), folder.write("empty", [])];
        for files in [Vec::new(), short] {
            let mut probe = Probe::new(files, 4096, 1);
            let clock = RealClock::new();
            assert!(probe.rate(Caching::Direct, 4, LONG, &clock).unwrap().is_none());
        }
        let mut gone = Probe::new(vec![folder.path().join("gone")], 4096, 1);
        gone.rate(Caching::Direct, 4, LONG, &RealClock::new()).unwrap_err();
    }
}
