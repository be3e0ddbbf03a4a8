//! Tests the loader over simulated drives: a rig, and the behaviour of jobs without faults.

#![expect(clippy::cast_possible_truncation, reason = "small rng")]

use std::sync::Arc;

use moeflux_testing::random::{Rng, seeds};

use super::*;
use crate::clock::VirtualClock;
use crate::drives::simulated::{DriveSpeed, SimulatedDrive, SimulatedFile};
use crate::memory::slots::{SlotIdx, SlotMemory};

mod faults;
mod order;
mod outage;
mod real;

const LENGTHS: [usize; 4] = [3_000_000, 70_001, 4096, 0];
const READ_BYTES: usize = 64 << 10;
const SLOT_BYTES: usize = 512 << 10;
const N_SLOTS: usize = 16;

/// Files, memory, and a loader that reads the files into the memory.
struct LoaderRig {
    contents: Vec<Arc<[u8]>>,
    memory: SlotMemory,
    clock: VirtualClock,
    loader: Loader,
    jobs: Vec<(LoadId, Vec<FilePart>)>,
    finished: Vec<FinishedLoad>,
}

/// Makes a drive of the rig from a healthy one.
type DriveSetup = fn(SimulatedDrive, u64) -> SimulatedDrive;

fn contents() -> Vec<Arc<[u8]>> {
    let mut rng = Rng::new(1);
    LENGTHS.iter().map(|&it| rng.bytes(it).into()).collect()
}

impl LoaderRig {
    fn over(
        contents: &[Arc<[u8]>],
        drives: Vec<Box<dyn BlockRead>>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let mut drives = drives.into_iter();
        let (primary, mirror) = (drives.next().unwrap(), drives.next());
        let settings =
            LoaderSettings { read_bytes: READ_BYTES, prefetch_bytes_max: 2 * READ_BYTES };
        let mut loader = Loader::new(primary, mirror, settings, clock);
        let mut memory = SlotMemory::new(SLOT_BYTES, N_SLOTS * SLOT_BYTES);
        let slab_idx = memory.grow().unwrap();
        loader.slab_added(memory.slab(slab_idx).unwrap());
        let (jobs, finished, clock) = (Vec::new(), Vec::new(), VirtualClock::default());
        Self { contents: contents.to_vec(), memory, clock, loader, jobs, finished }
    }

    /// Creates a rig over simulated drives, one for each `fit`.
    fn new(contents: &[Arc<[u8]>], seed: u64, fits: &[DriveSetup]) -> Self {
        let clock = VirtualClock::default();
        let drive = |fit: &DriveSetup| -> Box<dyn BlockRead> {
            let files = (0..).zip(contents).map(|(number, bytes): (u32, _)| {
                SimulatedFile::of(&format!("file-{number}"), Arc::clone(bytes))
            });
            Box::new(fit(SimulatedDrive::new(files.collect(), 6, clock.clone()), seed))
        };
        let drives = fits.iter().map(drive).collect();
        let rig = Self::over(contents, drives, Arc::new(clock.clone()));
        Self { clock, ..rig }
    }

    fn submit(&mut self, id: u64, priority: LoadPriority, extents: &[(FileIdx, u64, usize)]) {
        let layout = lay_out(extents.iter().copied(), self.loader.block_bytes());
        assert!(layout.slot_bytes() <= SLOT_BYTES);
        let parts = layout.parts().to_vec();
        let free =
            (0..16).map(SlotIdx).find(|&it| self.memory.state(it) != crate::SlotState::Filling);
        let filling = self.memory.begin_fill(free.unwrap());
        self.loader.submit(LoadJob::new(LoadId(id), priority, filling, &parts));
        self.jobs.push((LoadId(id), parts));
    }

    /// Returns up to nine extents that fit into a slot.
    fn random_extents(&self, rng: &mut Rng) -> Vec<(FileIdx, u64, usize)> {
        let n_parts = rng.below(N_PARTS_MAX + 1);
        let part = |_| {
            let file = rng.below(self.contents.len());
            let len_bytes = self.contents[file].len();
            let offset = rng.below(len_bytes + 1);
            let longest = (len_bytes - offset).min((SLOT_BYTES - 9 * 8192) / n_parts.max(1));
            (FileIdx(file as u32), offset as u64, rng.below(longest + 1))
        };
        (0..n_parts).map(part).collect()
    }

    /// Waits for all jobs. Returns the outcome of each and frees its slot. Ready ones must have the
    /// right bytes.
    fn finish(&mut self) -> Vec<(LoadId, LoadOutcome)> {
        let mut n_calls = 0;
        while self.loader.n_jobs() > 0 {
            let n_before = self.finished.len();
            self.loader.wait(Wait::Any, &mut self.finished).unwrap();
            assert!(self.finished.len() > n_before, "`Any` waits for a job to be over");
            n_calls += 1;
            assert!(n_calls < 10_000, "it ends");
        }
        self.take_finished()
    }

    fn take_finished(&mut self) -> Vec<(LoadId, LoadOutcome)> {
        let mut outcomes = Vec::new();
        for FinishedLoad { id, filling, outcome } in std::mem::take(&mut self.finished) {
            let at = self.jobs.iter().position(|(it, _)| *it == id).expect("each comes once");
            let (_, parts) = self.jobs.swap_remove(at);
            if matches!(outcome, LoadOutcome::Ready) {
                self.check_bytes(&parts, filling.bytes());
                self.memory.finish(filling);
            } else {
                self.memory.abandon(filling);
            }
            outcomes.push((id, outcome));
        }
        outcomes
    }

    fn check_bytes(&self, parts: &[FilePart], slot: &[u8]) {
        for part in parts {
            let offset = usize::try_from(part.offset_bytes).unwrap();
            let expected = &self.contents[part.file.0 as usize][offset..offset + part.len_bytes];
            let found = &slot[part.slot_offset_bytes..part.slot_offset_bytes + part.len_bytes];
            assert!(expected == found, "{part:?}");
        }
    }

    /// Checks that the slab can be freed: there is no other handle to it or piece of it.
    fn check_nothing_leaked(mut self) {
        assert!(self.jobs.is_empty(), "{:?} did not come back", self.jobs);
        let (slab_idx, slab) = self.memory.slabs().next().unwrap();
        let slab = slab.clone();
        self.loader.slab_removed(&slab);
        drop(slab);
        self.memory.shrink(slab_idx);
    }
}

const HEALTHY: DriveSetup = |drive, _| drive;

#[test]
fn parts_at_any_offset_arrive_whatever_the_block() {
    let contents = contents();
    let fits: [&[DriveSetup]; 5] = [
        &[HEALTHY],
        &[|drive, _| drive.with_block(512)],
        &[|drive, _| drive.with_block(1)],
        &[|drive, _| drive.with_block(512), |drive, _| drive.with_block(16 << 10)],
        &[|drive, _| drive.with_block(1), HEALTHY],
    ];
    for (seed, fits) in (0..50).flat_map(|seed| fits.map(|it| (seed, it))) {
        let mut rng = Rng::new(seed << 32);
        let mut rig = LoaderRig::new(&contents, seed, fits);
        for id in 0..16 {
            let extents = rig.random_extents(&mut rng);
            let priority =
                if rng.below(2) == 0 { LoadPriority::Demand } else { LoadPriority::Prefetch };
            rig.submit(id, priority, &extents);
        }
        let outcomes = rig.finish();
        assert!(outcomes.iter().all(|(_, it)| matches!(it, LoadOutcome::Ready)), "{outcomes:?}");
        rig.check_nothing_leaked();
    }
}

#[test]
fn jobs_of_no_bytes_are_ready_at_once() {
    let mut rig = LoaderRig::new(&contents(), 0, &[HEALTHY]);
    rig.submit(1, LoadPriority::Demand, &[]);
    rig.submit(2, LoadPriority::Prefetch, &[(FileIdx(3), 0, 0), (FileIdx(0), 77, 0)]);
    rig.loader.poll(&mut rig.finished).unwrap();
    assert_eq!(rig.take_finished().len(), 2);
    assert_eq!(rig.loader.counts().n_reads, 0);
    rig.check_nothing_leaked();
}

#[test]
fn parts_are_laid_out_one_after_the_other_as_in_their_files() {
    let extents = [(FileIdx(0), 5000, 10), (FileIdx(1), 4096, 4096), (FileIdx(0), 8191, 2)];
    let layout = lay_out(extents, 4096);
    let offsets: Vec<usize> = layout.parts().iter().map(|it| it.slot_offset_bytes).collect();
    assert_eq!((offsets, layout.slot_bytes()), (vec![904, 4096, 12_287], 16_384));
    let spans: Vec<_> = layout.parts().iter().map(|it| it.slot_span(4096)).collect();
    assert_eq!(spans, [0..4096, 4096..8192, 8192..16_384]);
    let layout = lay_out(extents, 1);
    let offsets: Vec<usize> = layout.parts().iter().map(|it| it.slot_offset_bytes).collect();
    assert_eq!((offsets, layout.slot_bytes()), (vec![0, 10, 4106], 4108));
}

/// A part slightly longer than one read becomes two of similar size, not one and a small rest.
#[test]
fn parts_are_divided_evenly() {
    let mut rig = LoaderRig::new(&contents(), 0, &[HEALTHY]);
    rig.submit(1, LoadPriority::Demand, &[(FileIdx(0), 4096, READ_BYTES + 8192)]);
    rig.loader.poll(&mut rig.finished).unwrap();
    let asked = rig.loader.reads.iter().map(|(_, read)| read.requested_bytes);
    assert_eq!(asked.collect::<Vec<usize>>(), [36 << 10, 36 << 10]);
    rig.finish();
}

#[test]
fn reads_are_counted() {
    let speed: DriveSetup = |drive, _| {
        let latency_min = Duration::from_micros(100);
        let latency_more_max = Duration::ZERO;
        drive.with_speed(DriveSpeed { latency_min, latency_more_max, bytes_per_s: 1 << 30 })
    };
    let mut rig = LoaderRig::new(&contents(), 0, &[speed]);
    rig.submit(1, LoadPriority::Demand, &[(FileIdx(0), 4096, READ_BYTES)]);
    rig.submit(2, LoadPriority::Prefetch, &[(FileIdx(0), 4097, 10)]);
    rig.finish();
    let counts = rig.loader.counts();
    assert_eq!((counts.demand_bytes, counts.prefetch_bytes), (READ_BYTES as u64, 4096));
    assert_eq!((counts.n_reads, counts.n_retries, counts.n_short), (2, 0, 0));
    let lane = counts.lanes[0];
    assert_eq!((lane.n_reads, lane.read_bytes), (2, READ_BYTES as u64 + 4096));
    let passing = Duration::from_nanos(((READ_BYTES as u64 + 4096) * 1_000_000_000) >> 30);
    let expected = passing + Duration::from_micros(100);
    assert!(lane.busy.abs_diff(expected) < Duration::from_nanos(3), "{:?}", lane.busy);
    // A drive without reads is not busy, however long that lasts.
    rig.clock.advance_to(Duration::from_secs(9));
    assert_eq!(rig.loader.counts().lanes[0].busy, lane.busy);
}

#[test]
fn a_wait_ends_in_time() {
    let slow: DriveSetup = |drive, _| {
        let latency_min = Duration::from_secs(1);
        drive.with_speed(DriveSpeed { latency_min, ..DriveSpeed::default() })
    };
    for fits in [&[slow] as &[DriveSetup], &[slow, slow]] {
        let mut rig = LoaderRig::new(&contents(), 0, fits);
        rig.loader.wait(Wait::Any, &mut rig.finished).unwrap();
        for id in 0..8 {
            rig.submit(id, LoadPriority::Demand, &[(FileIdx(0), 0, 2 * READ_BYTES)]);
        }
        let limit = Duration::from_millis(3);
        rig.loader.wait(Wait::AtMost(limit), &mut rig.finished).unwrap();
        assert_eq!((rig.finished.len(), rig.clock.now()), (0, limit));
        rig.finish();
        rig.check_nothing_leaked();
    }
}

#[test]
#[should_panic(expected = "agree within blocks")]
fn a_part_at_another_place_within_its_block_is_our_mistake() {
    let mut rig = LoaderRig::new(&contents(), 0, &[HEALTHY]);
    let filling = rig.memory.begin_fill(SlotIdx(0));
    let part = FilePart { file: FileIdx(0), offset_bytes: 5, len_bytes: 9, slot_offset_bytes: 6 };
    rig.loader.submit(LoadJob::new(LoadId(0), LoadPriority::Demand, filling, &[part]));
}

#[test]
#[should_panic(expected = "follow one another")]
fn parts_whose_blocks_overlap_are_our_mistake() {
    let mut rig = LoaderRig::new(&contents(), 0, &[HEALTHY]);
    let filling = rig.memory.begin_fill(SlotIdx(0));
    let part = FilePart { file: FileIdx(0), offset_bytes: 0, len_bytes: 9, slot_offset_bytes: 0 };
    rig.loader.submit(LoadJob::new(LoadId(0), LoadPriority::Demand, filling, &[part, part]));
}

#[test]
#[should_panic(expected = "the same files")]
fn a_mirror_of_other_files_is_our_mistake() {
    let clock = VirtualClock::default();
    let drive = |n_bytes: usize| {
        let files = vec![SimulatedFile::of("f", vec![0; n_bytes])];
        Box::new(SimulatedDrive::new(files, 1, clock.clone()))
    };
    let clock = Arc::new(clock.clone());
    let _loader = Loader::new(drive(1), Some(drive(2)), LoaderSettings::default(), clock);
}
