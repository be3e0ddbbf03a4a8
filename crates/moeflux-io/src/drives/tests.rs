//! Tests the common behaviour of all kinds of drives against the bytes of real files.
#![expect(clippy::cast_possible_truncation, reason = "small rng")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use moeflux_testing::random::Rng;
use moeflux_testing::temp_dir::TempDir;

use crate::clock::VirtualClock;
use crate::drives::block::{BlockRead, FileIdx, ReadCompletion, ReadOutcome, ReadRequest, Wait};
use crate::drives::simulated::{SimulatedDrive, SimulatedFile};
use crate::drives::threads::ThreadsDrive;
use crate::files::direct::{Caching, DriveFile};
use crate::memory::slots::{Filling, SlotIdx, SlotMemory};

/// Lengths of the files in every test's folder.
const LENGTHS: [usize; 5] = [0, 1, 4096, 300_000, (1 << 20) + 77];
const SLOT_BYTES: usize = 1 << 20;

struct DriveFixture {
    folder: TempDir,
    contents: Vec<Vec<u8>>,
    paths: Vec<PathBuf>,
}

impl DriveFixture {
    fn new() -> Self {
        let folder = TempDir::new();
        let mut rng = Rng::new(7);
        let contents: Vec<Vec<u8>> = LENGTHS.iter().map(|&it| rng.bytes(it)).collect();
        let write = |(number, bytes): (usize, &Vec<u8>)| folder.write(number.to_string(), bytes);
        let paths = contents.iter().enumerate().map(write).collect();
        Self { folder, contents, paths }
    }

    fn files(&self, caching: Caching) -> Vec<DriveFile> {
        self.paths.iter().map(|path| DriveFile::open(path, caching).unwrap()).collect()
    }

    /// Returns every kind of drive, with a name for messages.
    fn drives(&self, depth: usize) -> Vec<(String, Box<dyn BlockRead>)> {
        let mut drives: Vec<(String, Box<dyn BlockRead>)> = Vec::new();
        for caching in [Caching::Direct, Caching::PageCache] {
            for n_threads in [1, depth] {
                let drive = ThreadsDrive::new(self.files(caching), n_threads, depth).unwrap();
                drives.push((format!("{n_threads} threads, {caching:?}"), Box::new(drive)));
            }
            #[cfg(target_os = "linux")]
            if let Some(drive) =
                crate::drives::uring::drive_or_typed_refusal(self.files(caching), depth)
            {
                drives.push((format!("io_uring, {caching:?}"), Box::new(drive)));
            }
        }
        let file = |(path, bytes): (&PathBuf, &Vec<u8>)| {
            SimulatedFile::of(&path.to_string_lossy(), bytes.clone())
        };
        let files = self.paths.iter().zip(&self.contents).map(file).collect();
        let drive = SimulatedDrive::new(files, depth, VirtualClock::default());
        drives.push(("simulated".to_owned(), Box::new(drive)));
        drives
    }
}

fn memory_for(drive: &mut dyn BlockRead, n_slots: usize) -> (SlotMemory, Vec<Filling>) {
    let mut memory = SlotMemory::new(SLOT_BYTES, n_slots * SLOT_BYTES);
    let slab_idx = memory.grow().unwrap();
    drive.slab_added(memory.slab(slab_idx).unwrap());
    let fillings = (0..n_slots).map(|it| memory.begin_fill(SlotIdx(it))).collect();
    (memory, fillings)
}

fn give_back(drive: &mut dyn BlockRead, memory: &mut SlotMemory, fillings: Vec<Filling>) {
    fillings.into_iter().for_each(|it| memory.abandon(it));
    let (slab_idx, slab) = memory.slabs().next().unwrap();
    let slab = slab.clone();
    drive.slab_removed(&slab);
    drop(slab);
    memory.shrink(slab_idx);
}

fn complete_all(drive: &mut dyn BlockRead) -> Vec<ReadCompletion> {
    let mut done = Vec::new();
    while drive.n_in_flight() > 0 {
        let n_before = done.len();
        drive.complete(Wait::Any, &mut done).unwrap();
        assert!(done.len() > n_before, "`Any` waits for one at least");
    }
    done
}

/// Random ranges of all files, including ranges beyond their ends.
#[test]
fn reads_give_the_files_bytes_and_stop_at_their_ends() {
    let fixture = DriveFixture::new();
    for (name, mut drive) in fixture.drives(8) {
        let mut rng = Rng::new(11);
        let (mut memory, mut fillings) = memory_for(&mut *drive, 8);
        for _ in 0..40 {
            let mut wanted = Vec::new();
            for (tag, filling) in (0u64..).zip(&mut fillings) {
                filling.restart();
                let file = rng.below(LENGTHS.len());
                let block = drive.file(FileIdx(file as u32)).block_bytes;
                let offset = rng.below(LENGTHS[file] + 5000) / block * block;
                let len_bytes = (1 + rng.below(SLOT_BYTES)).next_multiple_of(block);
                let piece = filling.take(0..len_bytes.min(SLOT_BYTES));
                let n_bytes = LENGTHS[file].saturating_sub(offset).min(piece.len_bytes());
                wanted.push((file, offset, n_bytes));
                let (file, offset_bytes) = (FileIdx(file as u32), offset as u64);
                drive.submit(ReadRequest { tag, file, offset_bytes, attempt: 0, piece });
            }
            assert_eq!(drive.n_in_flight(), 8);
            let done = complete_all(&mut *drive);
            assert_eq!(done.len(), 8, "{name}");
            for ReadCompletion { tag, outcome, .. } in done {
                let (file, offset, n_bytes) = wanted[tag as usize];
                let ReadOutcome::Read(read_bytes) = outcome else { panic!("{name}: {outcome:?}") };
                assert_eq!(read_bytes, n_bytes, "{name}: file {file}, offset {offset}");
            }
            for (filling, (file, offset, n_bytes)) in fillings.iter().zip(wanted) {
                let expected = fixture.contents[file].iter().skip(offset).take(n_bytes);
                assert!(filling.bytes().iter().take(n_bytes).eq(expected), "{name}: file {file}");
            }
        }
        give_back(&mut *drive, &mut memory, fillings);
    }
}

#[test]
fn a_read_continues_after_the_kept_bytes() {
    let fixture = DriveFixture::new();
    for (name, mut drive) in fixture.drives(1) {
        let (mut memory, mut fillings) = memory_for(&mut *drive, 1);
        let mut piece = fillings[0].take(0..16_384);
        piece.rest_mut().fill(0xaa);
        piece.keep(8192);
        let (file, offset_bytes) = (FileIdx(3), 8192);
        drive.submit(ReadRequest { tag: 5, file, offset_bytes, attempt: 0, piece });
        let done = complete_all(&mut *drive).pop().unwrap();
        assert!(matches!(done.outcome, ReadOutcome::Read(8192)), "{name}");
        drop(done);
        let bytes = &fillings[0].bytes()[..16_384];
        assert_eq!(bytes[..8192], [0xaa; 8192], "{name}");
        assert_eq!(bytes[8192..], fixture.contents[3][8192..16_384], "{name}");
        give_back(&mut *drive, &mut memory, fillings);
    }
}

#[test]
fn waiting_ends_with_time_or_a_completion() {
    let fixture = DriveFixture::new();
    for (name, mut drive) in fixture.drives(2) {
        let mut done = Vec::new();
        for wait in [Wait::Poll, Wait::Any, Wait::AtMost(Duration::from_millis(2))] {
            drive.complete(wait, &mut done).unwrap();
        }
        assert!(done.is_empty(), "{name}");
        let (mut memory, mut fillings) = memory_for(&mut *drive, 1);
        let piece = fillings[0].take(0..4096);
        drive.submit(ReadRequest { tag: 1, file: FileIdx(2), offset_bytes: 0, attempt: 0, piece });
        while done.is_empty() {
            drive.complete(Wait::AtMost(Duration::from_secs(5)), &mut done).unwrap();
        }
        assert!(matches!(done[0].outcome, ReadOutcome::Read(4096)), "{name}");
        drop(done);
        give_back(&mut *drive, &mut memory, fillings);
    }
}

/// Completions arrive although the caller never enters the system, and after the submitting thread
/// has ended.
#[test]
fn polling_alone_returns_completions_even_on_another_thread() {
    let fixture = DriveFixture::new();
    for (name, mut drive) in fixture.drives(4) {
        let (mut memory, mut fillings) = memory_for(&mut *drive, 4);
        std::thread::scope(|scope| {
            let submit = || {
                for (tag, filling) in (0u64..).zip(&mut fillings) {
                    let piece = filling.take(0..SLOT_BYTES);
                    let (file, offset_bytes) = (FileIdx(4), 0);
                    drive.submit(ReadRequest { tag, file, offset_bytes, attempt: 0, piece });
                }
                drive.flush().unwrap();
            };
            scope.spawn(submit);
        });
        let mut done = Vec::new();
        while drive.n_in_flight() > 0 {
            // The simulated drive's time advances only during a wait.
            let wait = if drive.name() == "simulated" { Wait::Any } else { Wait::Poll };
            drive.complete(wait, &mut done).unwrap();
            std::hint::spin_loop();
        }
        for ReadCompletion { outcome, .. } in &done {
            // A kernel may cancel the reads of a thread that ends.
            assert!(
                matches!(outcome, ReadOutcome::Read(SLOT_BYTES) | ReadOutcome::Cancelled),
                "{name}: {outcome:?}"
            );
        }
        assert_eq!(done.len(), 4, "{name}");
        drop(done);
        give_back(&mut *drive, &mut memory, fillings);
    }
}

/// Cancels at every stage: before the flush, after it, after completion. Each read completes once,
/// and its memory can be used for the next.
#[test]
fn cancelled_reads_come_back_once() {
    let fixture = DriveFixture::new();
    for (name, mut drive) in fixture.drives(8) {
        let mut rng = Rng::new(3);
        let (mut memory, mut fillings) = memory_for(&mut *drive, 8);
        let mut n_cancelled = 0;
        for round in 0..60u64 {
            for (number, filling) in (0u64..).zip(&mut fillings) {
                filling.restart();
                let piece = filling.take(0..SLOT_BYTES / 2);
                let tag = round * 8 + number;
                drive.submit(ReadRequest {
                    tag,
                    file: FileIdx(4),
                    offset_bytes: 0,
                    attempt: 0,
                    piece,
                });
                if rng.below(3) == 0 {
                    drive.cancel(tag);
                }
            }
            drive.flush().unwrap();
            for number in 0..8 {
                if rng.below(3) == 0 {
                    drive.cancel(round * 8 + number);
                }
            }
            let mut tags = Vec::new();
            for ReadCompletion { tag, outcome, .. } in complete_all(&mut *drive) {
                match outcome {
                    ReadOutcome::Read(n_bytes) => assert_eq!(n_bytes, SLOT_BYTES / 2, "{name}"),
                    ReadOutcome::Cancelled => n_cancelled += 1,
                    ReadOutcome::Failed(error) => panic!("{name}: {error}"),
                }
                drive.cancel(tag);
                tags.push(tag);
            }
            tags.sort_unstable();
            assert_eq!(tags, (round * 8..round * 8 + 8).collect::<Vec<u64>>(), "{name}");
        }
        assert!(n_cancelled > 0, "{name}");
        give_back(&mut *drive, &mut memory, fillings);
    }
}

#[test]
fn reads_that_were_not_flushed_can_always_be_cancelled() {
    let fixture = DriveFixture::new();
    for (name, mut drive) in fixture.drives(2) {
        let (mut memory, mut fillings) = memory_for(&mut *drive, 2);
        for (tag, filling) in (0u64..).zip(&mut fillings) {
            let piece = filling.take(0..4096);
            drive.submit(ReadRequest { tag, file: FileIdx(3), offset_bytes: 0, attempt: 0, piece });
        }
        drive.cancel(0);
        drive.cancel(77);
        for ReadCompletion { tag, outcome, .. } in complete_all(&mut *drive) {
            let is_cancelled = matches!(outcome, ReadOutcome::Cancelled);
            // The simulated drive starts reads without a flush.
            assert!(
                is_cancelled == (tag == 0) || drive.name() == "simulated",
                "{name}: {outcome:?}"
            );
        }
        give_back(&mut *drive, &mut memory, fillings);
    }
}

/// A drive is dropped with reads queued and in flight: all of their memory is free again.
#[test]
fn a_dropped_drive_lets_go_of_everything() {
    let fixture = DriveFixture::new();
    for flushed in [0, 3, 8] {
        for (name, mut drive) in fixture.drives(8) {
            let (mut memory, mut fillings) = memory_for(&mut *drive, 8);
            for (tag, filling) in (0u64..).zip(&mut fillings) {
                let piece = filling.take(0..SLOT_BYTES);
                drive.submit(ReadRequest {
                    tag,
                    file: FileIdx(4),
                    offset_bytes: 0,
                    attempt: 0,
                    piece,
                });
                if tag + 1 == flushed {
                    drive.flush().unwrap();
                }
            }
            drive.cancel(7);
            drop(drive);
            fillings.into_iter().for_each(|it| memory.abandon(it));
            let (slab_idx, _) = memory.slabs().next().unwrap();
            memory.shrink(slab_idx);
            assert_eq!(memory.n_slabs(), 0, "{name}");
        }
    }
}

#[test]
fn facts_of_files_are_reported_and_changes_detected() {
    let fixture = DriveFixture::new();
    let drives = fixture.drives(1);
    for (name, drive) in &drives {
        assert_eq!((drive.n_files(), drive.depth()), (LENGTHS.len(), 1), "{name}");
        for (number, &len_bytes) in (0..).zip(&LENGTHS) {
            let file = drive.file(FileIdx(number));
            assert_eq!(
                (file.path, file.len_bytes),
                (&*fixture.paths[number as usize], len_bytes as u64)
            );
            drive.check_unchanged(FileIdx(number)).unwrap();
        }
    }
    fixture.folder.write("3", [0; 10]);
    for (name, drive) in &drives {
        let is_noticed = drive.check_unchanged(FileIdx(3)).is_err();
        assert_eq!(is_noticed, drive.name() != "simulated", "{name}");
    }
}

/// The file system's error for an unaligned read is passed on.
#[test]
fn errors_of_the_system_come_through() {
    let fixture = DriveFixture::new();
    for (name, mut drive) in fixture.drives(1) {
        if drive.file(FileIdx(4)).block_bytes == 1 {
            continue;
        }
        let (mut memory, mut fillings) = memory_for(&mut *drive, 1);
        let piece = fillings[0].take(1..4096);
        drive.submit(ReadRequest { tag: 0, file: FileIdx(4), offset_bytes: 3, attempt: 0, piece });
        let done = complete_all(&mut *drive).pop().unwrap();
        let ReadOutcome::Failed(error) = &done.outcome else {
            panic!("{name}: {:?}", done.outcome)
        };
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{name}");
        drop(done);
        give_back(&mut *drive, &mut memory, fillings);
    }
}

#[test]
#[should_panic(expected = "reads are in flight")]
fn a_drive_takes_no_more_than_its_depth() {
    let bytes: Arc<[u8]> = vec![0; 8192].into();
    let files = vec![SimulatedFile::of("f", bytes)];
    let mut drive = SimulatedDrive::new(files, 1, VirtualClock::default());
    let (_memory, mut fillings) = memory_for(&mut drive, 1);
    for tag in 0..2 {
        let piece = fillings[0].take(tag * 4096..(tag + 1) * 4096);
        let tag = tag as u64;
        drive.submit(ReadRequest { tag, file: FileIdx(0), offset_bytes: 0, attempt: 0, piece });
    }
}
