//! Tests the order in which jobs are read, and jobs that are promoted and cancelled.

use super::*;

/// Makes a drive that carries out one read after the other, in the order of submission.
const ONE_BY_ONE: DriveSetup = |drive, _| {
    let latency_more_max = Duration::ZERO;
    drive.with_speed(DriveSpeed { latency_more_max, ..DriveSpeed::default() })
};

const ONE_READ: [(FileIdx, u64, usize); 1] = [(FileIdx(0), 0, READ_BYTES)];
const FOUR_READS: [(FileIdx, u64, usize); 1] = [(FileIdx(0), READ_BYTES as u64, 4 * READ_BYTES)];

fn ids(outcomes: &[(LoadId, LoadOutcome)]) -> Vec<u64> {
    outcomes.iter().map(|(id, _)| id.0).collect()
}

#[test]
fn demands_come_before_guesses_that_were_there_first() {
    let mut rig = LoaderRig::new(&contents(), 0, &[ONE_BY_ONE]);
    for id in 0..8 {
        rig.submit(id, LoadPriority::Prefetch, &ONE_READ);
    }
    rig.loader.poll(&mut rig.finished).unwrap();
    for id in 8..14 {
        rig.submit(id, LoadPriority::Demand, &FOUR_READS);
    }
    // Two prefetches were in flight already; more are not allowed.
    assert_eq!(ids(&rig.finish()), [0, 1, 8, 9, 10, 11, 12, 13, 2, 3, 4, 5, 6, 7]);
    rig.check_nothing_leaked();
}

#[test]
fn guesses_wait_until_demands_in_flight_leave_room() {
    let mut rig = LoaderRig::new(&contents(), 0, &[ONE_BY_ONE]);
    rig.submit(0, LoadPriority::Demand, &FOUR_READS);
    rig.submit(1, LoadPriority::Prefetch, &ONE_READ);
    rig.loader.poll(&mut rig.finished).unwrap();
    assert_eq!(rig.loader.counts().n_reads, 4, "four of the demand, where two leave room");
    rig.submit(2, LoadPriority::Demand, &ONE_READ);
    assert_eq!(ids(&rig.finish()), [0, 2, 1]);
    rig.check_nothing_leaked();
}

#[test]
fn a_promoted_guess_comes_before_the_others() {
    let mut rig = LoaderRig::new(&contents(), 0, &[ONE_BY_ONE]);
    for id in 0..8 {
        rig.submit(id, LoadPriority::Prefetch, &ONE_READ);
    }
    rig.loader.poll(&mut rig.finished).unwrap();
    assert!(rig.loader.promote(LoadId(6)));
    assert!(rig.loader.promote(LoadId(0)));
    assert!(!rig.loader.promote(LoadId(99)));
    assert_eq!(ids(&rig.finish()), [0, 1, 6, 2, 3, 4, 5, 7]);
    let counts = rig.loader.counts();
    // It was promoted before its bytes arrived, so they count for a demand.
    assert_eq!(counts.demand_bytes, 2 * READ_BYTES as u64);
    assert_eq!(counts.prefetch_bytes, 6 * READ_BYTES as u64);
    rig.check_nothing_leaked();
}

#[test]
fn a_cancelled_job_begins_no_more_reads() {
    for priority in [LoadPriority::Demand, LoadPriority::Prefetch] {
        let mut rig = LoaderRig::new(&contents(), 0, &[ONE_BY_ONE]);
        rig.submit(0, priority, &[(FileIdx(0), 0, SLOT_BYTES)]);
        rig.submit(1, priority, &ONE_READ);
        rig.loader.poll(&mut rig.finished).unwrap();
        let n_begun = rig.loader.counts().n_reads;
        assert!(rig.loader.cancel(LoadId(0)));
        assert!(rig.loader.cancel(LoadId(0)), "it is still on its way back");
        assert!(!rig.loader.cancel(LoadId(99)));
        let outcomes = rig.finish();
        assert_eq!(outcomes.len(), 2);
        for (id, outcome) in outcomes {
            assert_eq!(matches!(outcome, LoadOutcome::Cancelled), id.0 == 0, "{id:?}: {outcome:?}");
        }
        assert_eq!(rig.loader.counts().n_reads, n_begun + 1);
        rig.check_nothing_leaked();
    }
}

#[test]
fn a_job_cancelled_before_it_began_comes_back_without_a_read() {
    let mut rig = LoaderRig::new(&contents(), 0, &[ONE_BY_ONE]);
    rig.submit(0, LoadPriority::Demand, &FOUR_READS);
    rig.submit(1, LoadPriority::Prefetch, &FOUR_READS);
    rig.loader.cancel_all();
    rig.loader.poll(&mut rig.finished).unwrap();
    let outcomes = rig.take_finished();
    assert_eq!(ids(&outcomes), [0, 1]);
    assert!(outcomes.iter().all(|(_, it)| matches!(it, LoadOutcome::Cancelled)));
    assert_eq!(rig.loader.counts().n_reads, 0);
    rig.check_nothing_leaked();
}

/// Random jobs, promotions, cancels and waits over one or two drives with transient faults: each
/// job is returned once, and is ready unless it was cancelled.
#[test]
fn any_sequence_of_calls_returns_every_job_once() {
    let contents = contents();
    for seed in seeds(400) {
        run_against_model(&contents, seed);
    }
}

fn run_against_model(contents: &[Arc<[u8]>], seed: u64) {
    let faulty: DriveSetup = |drive, seed| {
        let rate = (seed % 4) as u32 * 20;
        let (n_short, n_interrupted, n_again, n_failed) = (rate, rate, rate, rate / 4);
        let none = crate::Faults::default();
        drive.with_faults(crate::Faults { seed, n_short, n_interrupted, n_again, n_failed, ..none })
    };
    let fits: &[DriveSetup] = if seed.is_multiple_of(2) { &[faulty] } else { &[faulty, faulty] };
    let mut rig = LoaderRig::new(contents, seed, fits);
    let mut rng = Rng::new(seed << 32);
    let (mut under_way, mut cancelled) = (Vec::new(), Vec::new());
    let mut next_id = 0;
    for step in 0..150 {
        let some = rng.below(under_way.len().max(1));
        match rng.below(8) {
            0..=2 if under_way.len() < 16 => {
                let priority =
                    if rng.below(3) == 0 { LoadPriority::Demand } else { LoadPriority::Prefetch };
                let extents = rig.random_extents(&mut rng);
                rig.submit(next_id, priority, &extents);
                under_way.push(next_id);
                next_id += 1;
            }
            3 if !under_way.is_empty() => drop(rig.loader.promote(LoadId(under_way[some]))),
            4 if !under_way.is_empty() && rig.loader.cancel(LoadId(under_way[some])) => {
                cancelled.push(under_way[some]);
            }
            5 => rig.loader.wait(Wait::Any, &mut rig.finished).unwrap(),
            6 => {
                let limit = Duration::from_micros(rng.below(2000) as u64);
                rig.loader.wait(Wait::AtMost(limit), &mut rig.finished).unwrap();
            }
            7 if step % 40 == 0 => {
                rig.loader.cancel_all();
                cancelled.extend(&under_way);
            }
            _ => rig.loader.poll(&mut rig.finished).unwrap(),
        }
        check_outcomes(rig.take_finished(), &mut under_way, &cancelled, seed);
        assert_eq!(rig.loader.n_jobs(), under_way.len(), "seed {seed}");
    }
    let outcomes = rig.finish();
    check_outcomes(outcomes, &mut under_way, &cancelled, seed);
    assert!(under_way.is_empty(), "seed {seed}");
    rig.check_nothing_leaked();
}

fn check_outcomes(
    outcomes: Vec<(LoadId, LoadOutcome)>,
    under_way: &mut Vec<u64>,
    cancelled: &[u64],
    seed: u64,
) {
    for (id, outcome) in outcomes {
        let at = under_way.iter().position(|&it| it == id.0).expect("each comes once");
        under_way.swap_remove(at);
        match outcome {
            LoadOutcome::Ready => {}
            LoadOutcome::Cancelled => assert!(cancelled.contains(&id.0), "seed {seed}: {id:?}"),
            LoadOutcome::Failed(error) => panic!("seed {seed}: {error}"),
        }
    }
}

/// A loader that is dropped with reads in flight leaves memory that nothing writes to.
#[test]
fn a_dropped_loader_lets_go_of_the_memory() {
    let mut rig = LoaderRig::new(&contents(), 0, &[HEALTHY, HEALTHY]);
    for id in 0..8 {
        rig.submit(id, LoadPriority::Demand, &FOUR_READS);
    }
    rig.loader.poll(&mut rig.finished).unwrap();
    let LoaderRig { memory, loader, .. } = rig;
    let slab = memory.slabs().next().unwrap().1.clone();
    drop((memory, loader));
    assert!(slab.is_sole());
}
