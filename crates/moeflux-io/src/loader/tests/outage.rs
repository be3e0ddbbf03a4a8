//! Tests drives that are absent as a whole, temporarily or permanently.

use std::io;

use super::*;
use crate::drives::block::ReadOutcome;
use crate::files::direct::FileFacts;
use crate::files::identity::FileChange;

/// A simulated drive that fails every read that ends before a certain time, or whose calls all
/// fail.
#[derive(Debug)]
struct Outage {
    drive: SimulatedDrive,
    clock: VirtualClock,
    until: Duration,
    is_broken: bool,
}

impl BlockRead for Outage {
    fn name(&self) -> &'static str {
        "outage"
    }

    fn depth(&self) -> usize {
        self.drive.depth()
    }

    fn n_in_flight(&self) -> usize {
        self.drive.n_in_flight()
    }

    fn n_files(&self) -> usize {
        self.drive.n_files()
    }

    fn file(&self, file: FileIdx) -> FileFacts<'_> {
        self.drive.file(file)
    }

    fn check_unchanged(&self, file: FileIdx) -> Result<(), FileChange> {
        self.drive.check_unchanged(file)
    }

    fn submit(&mut self, read: ReadRequest) {
        self.drive.submit(read);
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn complete(&mut self, wait: Wait, done: &mut Vec<ReadCompletion>) -> io::Result<()> {
        if self.is_broken {
            return Err(io::Error::other("the ring is gone"));
        }
        let n_before = done.len();
        self.drive.complete(wait, done)?;
        if self.clock.now() < self.until {
            for completion in &mut done[n_before..] {
                completion.outcome = ReadOutcome::Failed(io::Error::other("no such device"));
            }
        }
        Ok(())
    }

    fn cancel(&mut self, tag: u64) {
        self.drive.cancel(tag);
    }

    fn slab_added(&mut self, _: &Slab) {}

    fn slab_removed(&mut self, _: &Slab) {}
}

/// Creates a rig whose first drive is absent until a certain time, with or without a healthy
/// mirror.
fn rig_away(contents: &[Arc<[u8]>], until: Duration, has_mirror: bool) -> LoaderRig {
    let clock = VirtualClock::default();
    let drive = || {
        let files = (0..).zip(contents).map(|(number, bytes): (u32, _)| {
            SimulatedFile::of(&format!("file-{number}"), Arc::clone(bytes))
        });
        SimulatedDrive::new(files.collect(), 6, clock.clone())
    };
    let away = Outage { drive: drive(), clock: clock.clone(), until, is_broken: false };
    let mut drives: Vec<Box<dyn BlockRead>> = vec![Box::new(away)];
    if has_mirror {
        drives.push(Box::new(drive()));
    }
    let rig = LoaderRig::over(contents, drives, Arc::new(clock.clone()));
    LoaderRig { clock, ..rig }
}

fn are_ready(outcomes: &[(LoadId, LoadOutcome)]) -> bool {
    outcomes.iter().all(|(_, it)| matches!(it, LoadOutcome::Ready))
}

#[test]
fn a_drive_alone_is_waited_for_a_few_seconds() {
    let contents = contents();
    for (seconds, is_ready) in [(3, true), (10, false)] {
        let mut rig = rig_away(&contents, Duration::from_secs(seconds), false);
        for id in 0..8 {
            rig.submit(id, LoadPriority::Demand, &[(FileIdx(0), id * 70_000, 200_000)]);
        }
        assert_eq!(are_ready(&rig.finish()), is_ready, "{seconds} s");
        rig.check_nothing_leaked();
    }
}

#[test]
fn a_mirror_avoids_waits_and_a_returned_drive_is_used_again() {
    let contents = contents();
    let until = Duration::from_millis(500);
    let mut rig = rig_away(&contents, until, true);
    let mut longest = Duration::ZERO;
    let mut id = 0;
    while rig.clock.now() < until * 4 {
        let began = rig.clock.now();
        for _ in 0..8 {
            rig.submit(id, LoadPriority::Demand, &[(FileIdx(0), id % 30 * 70_000, 200_000)]);
            id += 1;
        }
        assert!(are_ready(&rig.finish()));
        longest = longest.max(rig.clock.now() - began);
    }
    let [first, second] = rig.loader.counts().lanes;
    assert!(first.n_failures < 30, "{first:?}");
    let share = first.read_bytes as f64 / (first.read_bytes + second.read_bytes) as f64;
    assert!((0.2..0.5).contains(&share), "{share}");
    assert!(longest < Duration::from_millis(20), "{longest:?}");
    rig.check_nothing_leaked();
}

#[test]
fn a_drive_that_fails_as_a_whole_is_an_error_and_no_hang() {
    let contents = contents();
    let clock = VirtualClock::default();
    let files = vec![SimulatedFile::of("f", Arc::clone(&contents[0]))];
    let drive = SimulatedDrive::new(files, 4, clock.clone());
    let until = Duration::ZERO;
    let broken = Outage { drive, clock: clock.clone(), until, is_broken: true };
    let mut rig = LoaderRig::over(&contents, vec![Box::new(broken)], Arc::new(clock));
    rig.submit(0, LoadPriority::Demand, &[(FileIdx(0), 0, 9000)]);
    let error = rig.loader.wait(Wait::Any, &mut rig.finished).unwrap_err();
    assert!(matches!(error, LoadError::Drive { name: "outage", .. }), "{error}");
    assert!(error.to_string().contains("the ring is gone"));
}
