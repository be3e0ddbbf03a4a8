//! Tests the loader over real drives: right bytes, and files that change while they are in use.

use std::fs::{self, File};
use std::path::PathBuf;

use moeflux_testing::temp_dir::TempDir;

use super::*;
use crate::clock::RealClock;
use crate::drives::threads::ThreadsDrive;
use crate::files::direct::{Caching, DriveFile};

struct RealFiles {
    folder: TempDir,
    contents: Vec<Arc<[u8]>>,
    paths: Vec<PathBuf>,
}

impl RealFiles {
    fn new() -> Self {
        let folder = TempDir::new();
        let write = |(number, bytes): (usize, &Arc<[u8]>)| folder.write(number.to_string(), bytes);
        let contents = contents();
        let paths = contents.iter().enumerate().map(write).collect();
        Self { folder, contents, paths }
    }

    fn open(&self, caching: Caching) -> Vec<DriveFile> {
        self.paths.iter().map(|path| DriveFile::open(path, caching).unwrap()).collect()
    }

    fn drive(&self, kind: &str, caching: Caching) -> Option<Box<dyn BlockRead>> {
        let files = self.open(caching);
        if kind == "threads" {
            return Some(Box::new(ThreadsDrive::new(files, 3, 8).unwrap()));
        }
        #[cfg(target_os = "linux")]
        if let Some(drive) = crate::drives::uring::drive_or_typed_refusal(files, 8) {
            return Some(Box::new(drive));
        }
        None
    }

    /// Creates a rig for every kind of drive and way of reading, alone and with a mirror of another
    /// kind.
    fn rigs(&self) -> Vec<LoaderRig> {
        let mut rigs = Vec::new();
        for kinds in [&["threads"] as &[&str], &["io_uring"], &["io_uring", "threads"]] {
            for caching in [Caching::Direct, Caching::PageCache] {
                let drives: Vec<_> = kinds.iter().flat_map(|it| self.drive(it, caching)).collect();
                if drives.len() == kinds.len() {
                    rigs.push(LoaderRig::over(&self.contents, drives, Arc::new(RealClock::new())));
                }
            }
        }
        assert!(rigs.len() >= 2);
        rigs
    }
}

#[test]
fn every_drive_returns_the_bytes_of_the_files() {
    let files = RealFiles::new();
    for mut rig in files.rigs() {
        let mut rng = Rng::new(17);
        for round in 0..30 {
            for id in 0..16 {
                let extents = rig.random_extents(&mut rng);
                let priority =
                    if rng.below(2) == 0 { LoadPriority::Demand } else { LoadPriority::Prefetch };
                rig.submit(round * 16 + id, priority, &extents);
            }
            rig.loader.poll(&mut rig.finished).unwrap();
            for id in 0..16 {
                if rng.below(8) == 0 {
                    rig.loader.cancel(LoadId(round * 16 + id));
                }
            }
            for (_, outcome) in rig.finish() {
                assert!(!matches!(outcome, LoadOutcome::Failed(_)), "{outcome:?}");
            }
        }
        rig.check_nothing_leaked();
    }
}

#[test]
fn a_truncated_file_is_reported_as_such() {
    for is_cut_before_reading in [true, false] {
        let files = RealFiles::new();
        let rigs = files.rigs();
        let cut = || File::options().write(true).open(&files.paths[0]).unwrap().set_len(4096 * 5);
        if is_cut_before_reading {
            cut().unwrap();
        }
        for mut rig in rigs {
            rig.submit(0, LoadPriority::Demand, &[(FileIdx(0), 4096 * 4 + 3, 300_000)]);
            rig.submit(1, LoadPriority::Demand, &[(FileIdx(1), 3, 1000)]);
            if !is_cut_before_reading {
                rig.loader.poll(&mut rig.finished).unwrap();
                cut().unwrap();
            }
            let outcomes = rig.finish();
            for (id, outcome) in outcomes {
                let is_change = matches!(outcome, LoadOutcome::Failed(LoadError::Changed { .. }));
                assert_eq!(is_change, id.0 == 0, "{outcome:?}");
            }
            rig.check_nothing_leaked();
            if !is_cut_before_reading {
                break;
            }
        }
    }
}

#[test]
fn a_changed_file_is_reported_as_such() {
    let files = RealFiles::new();
    let rigs = files.rigs();
    let mut bytes = files.contents[0].to_vec();
    bytes[77] ^= 1;
    let before = fs::metadata(&files.paths[0]).unwrap().modified().unwrap();
    files.folder.write("0", &bytes);
    // File system clocks may be coarse.
    let file = File::options().write(true).open(&files.paths[0]).unwrap();
    file.set_modified(before + Duration::from_secs(1)).unwrap();
    for mut rig in rigs {
        rig.submit(0, LoadPriority::Demand, &[(FileIdx(1), 0, 10), (FileIdx(0), 4096, 10)]);
        let (_, outcome) = rig.finish().remove(0);
        let LoadOutcome::Failed(error) = outcome else { panic!("{outcome:?}") };
        assert!(error.to_string().contains("was modified after"), "{error}");
        rig.check_nothing_leaked();
    }
}

/// A loader can run on a thread of its own.
#[test]
fn a_loader_can_be_moved_to_another_thread() {
    let files = RealFiles::new();
    for mut rig in files.rigs() {
        rig.submit(0, LoadPriority::Demand, &[(FileIdx(0), 5, 300_000)]);
        rig.loader.poll(&mut rig.finished).unwrap();
        let rig = std::thread::scope(|scope| {
            let run = move || {
                assert!(matches!(rig.finish()[..], [(LoadId(0), LoadOutcome::Ready)]));
                rig.submit(1, LoadPriority::Prefetch, &[(FileIdx(1), 5, 30_000)]);
                rig.loader.poll(&mut rig.finished).unwrap();
                rig
            };
            scope.spawn(run).join().unwrap()
        });
        let mut rig = rig;
        assert!(matches!(rig.finish()[..], [(LoadId(1), LoadOutcome::Ready)]));
        rig.check_nothing_leaked();
    }
}
