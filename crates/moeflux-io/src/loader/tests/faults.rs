//! Faults of every kind and number: the right bytes or one typed error, never a hang.

use super::*;
use crate::drives::simulated::{Faults, NthFault};

/// Returns seeded rates: any mixture, none above one read in ten.
fn transient(seed: u64) -> Faults {
    let mut rng = Rng::new(seed << 20);
    let mut rate = || if rng.below(2) == 0 { 0 } else { rng.below(100) as u32 };
    let (n_short, n_interrupted, n_again) = (rate(), rate(), rate());
    let (n_failed, n_away) = (rate() / 3, rate());
    let n_attempts_away = 1 + (seed % 4) as u32;
    let some = Faults { seed, n_short, n_interrupted, n_again, n_failed, ..Faults::default() };
    Faults { n_away, n_attempts_away, ..some }
}

fn run(rig: &mut LoaderRig, seed: u64) -> Vec<(LoadId, LoadOutcome)> {
    let mut rng = Rng::new(seed << 32);
    for id in 0..12 {
        let extents = rig.random_extents(&mut rng);
        let priority =
            if rng.below(3) == 0 { LoadPriority::Prefetch } else { LoadPriority::Demand };
        rig.submit(id, priority, &extents);
    }
    rig.finish()
}

fn are_ready(outcomes: &[(LoadId, LoadOutcome)]) -> bool {
    outcomes.iter().all(|(_, it)| matches!(it, LoadOutcome::Ready))
}

#[test]
fn transient_faults_end_with_the_right_bytes() {
    let contents = contents();
    let mut counts = LoaderCounts::default();
    for seed in seeds(600) {
        let mut rig =
            LoaderRig::new(&contents, seed, &[|drive, seed| drive.with_faults(transient(seed))]);
        let outcomes = run(&mut rig, seed);
        assert!(are_ready(&outcomes), "seed {seed}: {outcomes:?}");
        let done = rig.loader.counts();
        counts.n_short += done.n_short;
        counts.n_interrupted += done.n_interrupted;
        counts.n_retries += done.n_retries;
        rig.check_nothing_leaked();
    }
    let faults = [counts.n_short, counts.n_interrupted, counts.n_retries];
    assert!(faults.iter().all(|&it| it > 300), "{faults:?}");
}

/// Some offsets cannot be read at all: the error names them. With a healthy mirror, there is none.
#[test]
fn lasting_faults_end_with_a_typed_error_or_with_the_mirrors_bytes() {
    let lossy: DriveSetup =
        |drive, seed| drive.with_faults(Faults { n_lost: 30, ..transient(seed) });
    // A read that is partly done on one drive continues at a block of the other.
    let small_blocks: DriveSetup = |drive, seed| {
        let faults = Faults { seed, n_lost: 200, n_short: 500, ..Faults::default() };
        drive.with_faults(faults).with_block(512)
    };
    let large_blocks: DriveSetup = |drive, _| drive.with_block(16 << 10);
    let contents = contents();
    let mut n_failed = 0;
    for seed in seeds(300) {
        let mut rig = LoaderRig::new(&contents, seed, &[lossy]);
        for (id, outcome) in run(&mut rig, seed) {
            if let LoadOutcome::Failed(error) = outcome {
                check_error(&error, N_FAILURES_MAX, 1);
                n_failed += 1;
            } else {
                assert!(matches!(outcome, LoadOutcome::Ready), "seed {seed}, {id:?}: {outcome:?}");
            }
        }
        rig.check_nothing_leaked();

        for fits in [[lossy, HEALTHY], [small_blocks, large_blocks]] {
            let mut rig = LoaderRig::new(&contents, seed, &fits);
            let outcomes = run(&mut rig, seed);
            assert!(are_ready(&outcomes), "seed {seed}: {outcomes:?}");
            rig.check_nothing_leaked();
        }
    }
    assert!(n_failed > 100, "{n_failed}");
}

#[track_caller]
fn check_error(error: &LoadError, n_attempts_min: u32, n_drives_expected: u32) {
    let LoadError::Read { path, offset_bytes, len_bytes, n_attempts, n_drives, .. } = error else {
        panic!("{error:?}")
    };
    let file: usize = path.to_str().unwrap().strip_prefix("file-").unwrap().parse().unwrap();
    assert!(*offset_bytes < LENGTHS[file] as u64, "{error}");
    assert!(*len_bytes > 0 && *len_bytes <= READ_BYTES, "{error}");
    assert!(*n_attempts >= n_attempts_min, "{error}");
    assert_eq!(*n_drives, n_drives_expected, "{error}");
    let text = error.to_string();
    assert!(text.contains(&offset_bytes.to_string()) && text.contains("file-"), "{text}");
}

#[test]
fn a_failure_of_both_drives_is_one_error() {
    let dead: DriveSetup =
        |drive, seed| drive.with_faults(Faults { seed, n_lost: 1000, ..Faults::default() });
    let mut rig = LoaderRig::new(&contents(), 0, &[dead, dead]);
    rig.submit(0, LoadPriority::Demand, &[(FileIdx(0), 5, 100)]);
    let (_, outcome) = rig.finish().remove(0);
    let LoadOutcome::Failed(error) = outcome else { panic!("{outcome:?}") };
    check_error(&error, N_FAILURES_BEFORE_MIRROR + N_FAILURES_MAX, 2);
    rig.check_nothing_leaked();
}

/// A job that waits for its next attempt ends at once when it is cancelled.
#[test]
fn a_job_that_waits_for_another_attempt_can_be_cancelled() {
    let mut rig = rig_with(&contents(), Faults { n_lost: 1000, ..Faults::default() });
    rig.submit(0, LoadPriority::Demand, &[(FileIdx(0), 5, 100)]);
    rig.loader.wait(Wait::AtMost(Duration::from_millis(100)), &mut rig.finished).unwrap();
    assert_eq!((rig.finished.len(), rig.loader.lanes[0].is_busy()), (0, false));
    rig.loader.cancel(LoadId(0));
    rig.loader.poll(&mut rig.finished).unwrap();
    assert!(matches!(rig.take_finished()[..], [(LoadId(0), LoadOutcome::Cancelled)]));
    rig.check_nothing_leaked();
}

/// The 1st, 2nd, 3rd ... read fails, once and permanently, until the run has no such read.
#[test]
fn whichever_read_fails_the_others_arrive() {
    let contents = contents();
    for n_attempts in [1, u32::MAX] {
        let mut n = 0;
        loop {
            let nth = NthFault { n, n_attempts };
            let mut rig = rig_with(&contents, Faults { nth: Some(nth), ..Faults::default() });
            // No two parts share an offset, so that the fault affects one read.
            for id in 0..9 {
                let part = |at: u64| (FileIdx(0), (id * 4 + at) * 81_920 + 5, 70_000);
                rig.submit(id, LoadPriority::Demand, &[part(0), part(1), part(2), part(3)]);
            }
            let outcomes = rig.finish();
            let n_failed =
                outcomes.iter().filter(|(_, it)| matches!(it, LoadOutcome::Failed(_))).count();
            let counts = rig.loader.counts();
            rig.check_nothing_leaked();
            if n >= counts.n_reads {
                assert_eq!((n_failed, counts.n_retries), (0, 0));
                break;
            }
            let expected =
                if n_attempts == 1 { (0, 1) } else { (1, u64::from(N_FAILURES_MAX) - 1) };
            assert_eq!((n_failed, counts.n_retries), expected, "read {n}");
            n += 1;
        }
        assert!(n > 50);
    }
}

fn rig_with(contents: &[Arc<[u8]>], faults: Faults) -> LoaderRig {
    let clock = VirtualClock::default();
    let files = (0..).zip(contents).map(|(number, bytes): (u32, _)| {
        SimulatedFile::of(&format!("file-{number}"), Arc::clone(bytes))
    });
    let drive = SimulatedDrive::new(files.collect(), 6, clock.clone()).with_faults(faults);
    let rig = LoaderRig::over(contents, vec![Box::new(drive)], Arc::new(clock.clone()));
    LoaderRig { clock, ..rig }
}

/// A drive that only interrupts leads to an error in the end.
#[test]
fn endless_interruptions_have_an_end() {
    for faults in [
        Faults { n_interrupted: 1000, ..Faults::default() },
        Faults { n_again: 1000, ..Faults::default() },
    ] {
        let mut rig = rig_with(&contents(), faults);
        rig.submit(0, LoadPriority::Demand, &[(FileIdx(0), 0, 9000)]);
        let (_, outcome) = rig.finish().remove(0);
        let LoadOutcome::Failed(error) = outcome else { panic!("{outcome:?}") };
        check_error(&error, N_INTERRUPTIONS_MAX + N_FAILURES_MAX, 1);
        assert_eq!(rig.loader.counts().n_interrupted, u64::from(N_INTERRUPTIONS_MAX));
        rig.check_nothing_leaked();
    }
}

/// Every read is short: all data arrives, a block at a time if necessary.
#[test]
fn only_short_reads_still_arrive() {
    let mut rig = rig_with(&contents(), Faults { n_short: 1000, ..Faults::default() });
    let outcomes = run(&mut rig, 3);
    assert!(are_ready(&outcomes), "{outcomes:?}");
    let n_short = rig.loader.counts().n_short;
    assert!(n_short > 20, "{n_short}");
    rig.check_nothing_leaked();
}

/// A drive that is absent for longer than it is retried fails; if it is back earlier, the job
/// succeeds.
#[test]
fn a_drive_that_comes_back_is_waited_for() {
    for (n_attempts_away, is_ready) in [(5, true), (6, false)] {
        let faults = Faults { n_away: 1000, n_attempts_away, ..Faults::default() };
        let mut rig = rig_with(&contents(), faults);
        rig.submit(0, LoadPriority::Demand, &[(FileIdx(0), 0, 9000)]);
        let outcomes = rig.finish();
        assert_eq!(are_ready(&outcomes), is_ready, "{outcomes:?}");
        assert!(rig.clock.now() > Duration::from_secs(4), "it was given time");
        rig.check_nothing_leaked();
    }
}

/// The same seed gives the same run, call by call.
#[test]
fn a_seed_replays() {
    let contents = contents();
    let trace = |seed| {
        let mut rig = LoaderRig::new(
            &contents,
            seed,
            &[|drive, seed| drive.with_faults(Faults { n_lost: 20, ..transient(seed) })],
        );
        let outcomes = run(&mut rig, seed);
        (format!("{outcomes:?}"), format!("{:?}", rig.loader.counts()), rig.clock.now())
    };
    for seed in seeds(20) {
        assert_eq!(trace(seed), trace(seed));
    }
    assert_ne!(trace(1).2, trace(2).2);
}

/// The loader does not detect wrong bits; checksums do. A caller that requests a reread gets
/// another result, also from a specific drive.
#[test]
fn flipped_bits_come_through_and_a_reread_is_another_read() {
    let flipping: DriveSetup =
        |drive, _| drive.with_faults(Faults { n_flipped: 500, ..Faults::default() });
    let contents = contents();
    let (mut n_wrong, mut n_mended) = (0, 0);
    for number in 0..200 {
        let mut rig = LoaderRig::new(&contents, 0, &[flipping, HEALTHY]);
        let offset = number * 4096;
        let part = FilePart {
            file: FileIdx(0),
            offset_bytes: offset,
            len_bytes: 4096,
            slot_offset_bytes: 0,
        };
        let expected = &contents[0][offset as usize..offset as usize + 4096];
        let mut is_right = |source, n_rereads| {
            let filling = rig.memory.begin_fill(SlotIdx(0));
            let job = LoadJob::new(LoadId(number), LoadPriority::Demand, filling, &[part]);
            rig.loader.submit(job.again(source, n_rereads));
            rig.loader.wait(Wait::Any, &mut rig.finished).unwrap();
            let FinishedLoad { filling, .. } = rig.finished.pop().unwrap();
            let is_right = filling.bytes()[..4096] == *expected;
            rig.memory.finish(filling);
            is_right
        };
        if !is_right(DriveChoice::Primary, 0) {
            n_wrong += 1;
            assert!(!is_right(DriveChoice::Primary, 0), "the same read has the same fate");
            n_mended += usize::from(is_right(DriveChoice::Primary, 1));
            assert!(is_right(DriveChoice::Mirror, 2));
        }
    }
    assert!((60..140).contains(&n_wrong), "{n_wrong}");
    assert!((n_wrong / 4..n_wrong).contains(&n_mended), "{n_mended} of {n_wrong}");
}

/// Two drives share the work according to their speed, and a dead one gets almost none.
#[test]
fn work_goes_where_it_is_done_sooner() {
    let share = |fits: &[DriveSetup]| {
        let mut rig = LoaderRig::new(&contents(), 0, fits);
        for id in 0..400 {
            rig.submit(id, LoadPriority::Demand, &[(FileIdx(0), id * 1000, 400 << 10)]);
            if id % 8 == 7 {
                assert!(are_ready(&rig.finish()));
            }
        }
        let lanes = rig.loader.counts().lanes;
        let [first, second] = lanes.map(|it| it.read_bytes);
        assert!(lanes[0].n_failures < lanes[1].n_reads / 20, "{lanes:?}");
        assert_eq!(rig.loader.drive_names().collect::<Vec<&str>>(), ["simulated"; 2]);
        rig.check_nothing_leaked();
        first as f64 / (first + second) as f64
    };
    let slow: DriveSetup =
        |drive, _| drive.with_speed(DriveSpeed { bytes_per_s: 1 << 29, ..DriveSpeed::default() });
    let fast: DriveSetup =
        |drive, _| drive.with_speed(DriveSpeed { bytes_per_s: 3 << 29, ..DriveSpeed::default() });
    let dead: DriveSetup =
        |drive, _| drive.with_faults(Faults { n_lost: 1000, ..Faults::default() });
    let equal = share(&[slow, slow]);
    assert!((0.4..0.6).contains(&equal), "{equal}");
    let unequal = share(&[slow, fast]);
    assert!((0.15..0.4).contains(&unequal), "{unequal}");
    assert!(share(&[dead, fast]) < 1e-9);
}

#[test]
fn parts_beyond_the_end_of_a_file_are_refused_by_name() {
    let mut rig = LoaderRig::new(&contents(), 0, &[HEALTHY]);
    rig.submit(0, LoadPriority::Demand, &[(FileIdx(2), 0, 4096), (FileIdx(1), 70_000, 2)]);
    rig.submit(1, LoadPriority::Demand, &[(FileIdx(1), u64::MAX - 4095, 2)]);
    for (_, outcome) in rig.finish() {
        let LoadOutcome::Failed(LoadError::PastEnd { file_bytes, path, .. }) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!((file_bytes, path.to_str()), (70_001, Some("file-1")));
    }
    assert_eq!(rig.loader.counts().n_reads, 0);
    rig.check_nothing_leaked();
}
