//! Experts that come to a GPU from a drive which fails in every way: the right logits come out, or
//! one error that names expert, layer, file and bytes; never other logits, never a hang, and the
//! next step finds a clean device, whichever session it belongs to.

use std::io::Write;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use moeflux::provider::engine::Engine;
use moeflux::provider::error::{Error, Result};
use moeflux::provider::forward::StepProgress;
use moeflux::provider::session::{Session, Wanted};
use moeflux_io::{FaultSwitch, Faults, NthFault};
use moeflux_testing::cases::{Distance, GoldenCase};
use moeflux_testing::drives::{SimulatedCheckpoint, is_right, packed, transient};
use moeflux_testing::needs_gpu;
use moeflux_testing::random::seeds;
use moeflux_testing::temp_dir::TempDir;

use crate::support::{BLOCK_BYTES, ExpertsAt, config_of, open};

/// Slots that kernels read, with places on the card or without; slots that are copied; so few that
/// steps of some rows have to take turns.
const WAYS: [ExpertsAt; 4] = [
    ExpertsAt::Files(4),
    ExpertsAt::FilesAndDevice(4, 1),
    ExpertsAt::CopiedFiles(4),
    ExpertsAt::FilesAndDevice(2, 2),
];

/// Slots and places of such a way.
fn n_slots_of(experts: ExpertsAt) -> usize {
    match experts {
        ExpertsAt::Files(n_slots) | ExpertsAt::CopiedFiles(n_slots) => n_slots,
        ExpertsAt::FilesAndDevice(n_slots, n_near) => n_slots + usize::try_from(n_near).unwrap(),
        other => unreachable!("{other:?} streams nothing"),
    }
}

const N_ROWS_MAX: usize = 17;

/// Steps: one in the order of the sum, one of some rows in any order, and single ones.
const STEPS: [Range<usize>; 4] = [0..17, 17..20, 20..21, 21..22];
const N_TOKENS: usize = 22;

/// The smallest models: with a recurrent layer, with plain attention, and with a dense first layer.
const CASES: [&str; 3] =
    ["mlx-qwen3_5_moe-q8-g64-f32", "mlx-qwen3_moe-q2-g128-f32", "mlx-glm4_moe-q5-g64-f32"];

type Rows = Vec<Vec<f32>>;

/// A case, its packed form, and the expected results of both.
struct FaultSubject {
    case: GoldenCase,
    packed: TempDir,
    expected: Rows,
}

impl FaultSubject {
    fn new(name: &str) -> Self {
        let case = GoldenCase::load(name);
        let packed = packed(&case.dir);
        let rows = |experts| {
            let engine = open(&case.dir, N_ROWS_MAX, experts);
            let mut rows = Rows::new();
            go_on(&mut engine.session(N_TOKENS).unwrap(), &case, &mut rows).unwrap();
            rows
        };
        let expected = rows(WAYS[0]);
        let distance = Distance::between(&expected, &rows(ExpertsAt::Device));
        assert_eq!(distance.beyond_f32_limits(), None, "{name}: without faults");
        Self { case, packed, expected }
    }

    /// Runs all steps in a new session. Returns whether they succeeded; checks the results up to an
    /// error.
    fn runs(&self, engine: &Engine, what: &str) -> bool {
        let mut session = engine.session(N_TOKENS).unwrap();
        self.goes_on(&mut session, what)
    }

    /// Runs the remaining steps of a session in the same way.
    fn goes_on(&self, session: &mut Session, what: &str) -> bool {
        let first = session.tokens().len();
        let mut rows = Rows::new();
        let ended = go_on(session, &self.case, &mut rows);
        let expected = &self.expected[first..];
        assert!(expected.starts_with(&rows), "{what}: other logits from token {first} on");
        is_right(&ended.map(|()| rows), &expected.to_vec(), what)
    }
}

/// Feeds the remaining steps.
fn go_on(session: &mut Session, case: &GoldenCase, rows: &mut Rows) -> Result<()> {
    let first = session.tokens().len();
    for step in STEPS.into_iter().filter(|it| it.end > first) {
        let tokens = &case.tokens[step.start.max(first)..step.end];
        let watch = &mut |_| ControlFlow::Continue(());
        session.feed(tokens, Wanted::All, watch, &mut |_, row| {
            rows.push(row.to_vec());
            Ok(())
        })?;
    }
    Ok(())
}

/// An engine on a drive whose faults are exchanged by the switch.
fn switched(dir: &Path, experts: ExpertsAt) -> (Engine, FaultSwitch) {
    let simulated = SimulatedCheckpoint {
        block_bytes: BLOCK_BYTES,
        ..SimulatedCheckpoint::new(dir, Faults::default())
    };
    let engine = simulated.open(&config_of(dir, N_ROWS_MAX, experts));
    (engine, simulated.switch)
}

/// The read of this number fails, and all others of its bytes.
fn lost(n: u64) -> Faults {
    Faults { nth: Some(NthFault { n, n_attempts: u32::MAX }), ..Faults::default() }
}

#[test]
fn transient_faults_end_with_the_right_logits() {
    needs_gpu!();
    let it = FaultSubject::new(CASES[0]);
    for experts in WAYS {
        let (in_place, faults_in_place) = switched(&it.case.dir, experts);
        let (packed, faults_packed) = switched(it.packed.path(), experts);
        for seed in seeds(4) {
            faults_in_place.set(transient(seed));
            faults_packed.set(Faults { n_flipped: 100, ..transient(seed) });
            assert!(it.runs(&in_place, &format!("{experts:?}, in place, seed {seed}")));
            assert!(it.runs(&packed, &format!("{experts:?}, packed, seed {seed}")));
        }
        let [packed, in_place] = [packed, in_place].map(|it| it.stream_stats().unwrap());
        let (n_retries, n_rereads) = (packed.retries + in_place.retries, packed.rereads);
        assert!(n_retries > 10 && n_rereads > 3, "{experts:?}: {n_retries}, {n_rereads}");
    }
}

/// After every error, the engine works again when the drive does.
#[test]
fn lasting_faults_end_right_or_with_an_error_that_names_them() {
    needs_gpu!();
    let it = FaultSubject::new(CASES[0]);
    let [mut n_failed, mut n_runs] = [0; 2];
    for experts in WAYS {
        for (dir, n_flipped) in [(it.case.dir.as_path(), 0), (it.packed.path(), 20)] {
            let (engine, faults) = switched(dir, experts);
            for seed in seeds(6) {
                faults.set(Faults { n_lost: 50, n_flipped, ..transient(seed) });
                n_failed += u32::from(!it.runs(&engine, &format!("{experts:?}, seed {seed}")));
                n_runs += 1;
            }
            faults.set(Faults::default());
            assert!(it.runs(&engine, &format!("{experts:?}, after all of them")));
            assert_eq!(engine.stream_stats().unwrap().n_slots, n_slots_of(experts), "{experts:?}");
        }
    }
    println!("{n_failed} of {n_runs} runs failed");
    assert!(n_failed > n_runs / 4 && n_failed < n_runs, "{n_failed} of {n_runs} runs failed");
}

/// The 1st, 2nd, 3rd ... read fails for good, until a run has fewer reads. After each, the minimum
/// number of slots is still enough: no slot is leaked.
#[test]
fn each_read_in_turn_may_fail() {
    needs_gpu!();
    let it = FaultSubject::new(CASES[0]);
    for experts in WAYS {
        let (engine, faults) = switched(it.packed.path(), experts);
        let mut n_errors = 0;
        for n in 0.. {
            faults.set(lost(n));
            // A guess may fail without harm.
            let is_whole = it.runs(&engine, &format!("{experts:?}, read {n}"));
            n_errors += u32::from(!is_whole);
            if faults.n_reads() <= n {
                assert!(is_whole, "{experts:?}: all {n} reads went well");
                break;
            }
        }
        println!("{experts:?}: {n_errors} reads mattered");
        assert!(n_errors > 10, "{experts:?}: only {n_errors} reads mattered");
        faults.set(Faults::default());
        for n_slots in [2, 4] {
            engine.set_slots(n_slots).unwrap();
            assert!(it.runs(&engine, &format!("{experts:?}, {n_slots} slots")));
        }
    }
}

/// The step that failed is taken back; others see nothing.
#[test]
fn sessions_go_on_when_the_drive_is_back() {
    needs_gpu!();
    for name in CASES {
        let it = FaultSubject::new(name);
        for experts in [WAYS[1], WAYS[2]] {
            let (engine, faults) = switched(it.packed.path(), experts);
            let mut n_failed = 0;
            for n in [0, 2, 4, 7, 10, 13] {
                let what = format!("{name}, {experts:?}, without read {n}");
                let mut session = engine.session(N_TOKENS).unwrap();
                faults.set(lost(n));
                if it.goes_on(&mut session, &what) {
                    continue;
                }
                n_failed += 1;
                faults.set(Faults::default());
                assert!(it.runs(&engine, &what), "{what}: another session");
                assert!(it.goes_on(&mut session, &what), "{what}: the session that failed");
            }
            assert!(n_failed > 1, "{name}, {experts:?}: {n_failed} failed");
        }
    }
}

/// A session is cancelled and dropped while its experts are being read.
#[test]
fn a_dropped_session_leaves_nothing_to_the_next() {
    needs_gpu!();
    for name in CASES {
        let it = FaultSubject::new(name);
        for experts in [WAYS[1], WAYS[2]] {
            let (engine, faults) = switched(it.packed.path(), experts);
            for (seed, n_layers) in [(1, 1), (3, 1)] {
                let what = format!("{name}, {experts:?}, after {n_layers} layers");
                faults.set(transient(seed));
                let mut session = engine.session(N_TOKENS).unwrap();
                let stop = &mut |progress: StepProgress| match progress.n_layers_done >= n_layers {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                };
                let tokens = &it.case.tokens[..if seed == 3 { 1 } else { 17 }];
                let fed = session.feed(tokens, Wanted::Last, stop, &mut |_, _| Ok(()));
                assert!(matches!(fed, Err(Error::Cancelled)), "{what}: {fed:?}");
                drop(session);
                assert!(it.runs(&engine, &what));
            }
        }
    }
}

/// Two sessions take turns while the drive fails: each ends by itself, and neither waits for ever.
#[test]
fn sessions_beside_each_other_fail_each_for_itself() {
    needs_gpu!();
    let it = FaultSubject::new(CASES[1]);
    for experts in [WAYS[1], WAYS[2]] {
        let (engine, faults) = switched(it.packed.path(), experts);
        for seed in seeds(3) {
            faults.set(Faults { n_lost: 10, n_flipped: 20, ..transient(seed) });
            let what = format!("{experts:?}, seed {seed}");
            std::thread::scope(|scope| {
                let workers = [(); 2].map(|()| scope.spawn(|| it.runs(&engine, &what)));
                for worker in workers {
                    worker.join().unwrap();
                }
            });
        }
        faults.set(Faults::default());
        assert!(it.runs(&engine, &format!("{experts:?}, after all of them")));
    }
}

/// Another model is copied over this one, completely or in part.
#[test]
fn a_file_cut_or_written_to_while_the_model_runs_is_an_error_that_names_it() {
    needs_gpu!();
    let it = FaultSubject::new(CASES[0]);
    for experts in [WAYS[1], WAYS[2]] {
        for cuts in [false, true] {
            let copy = TempDir::copy_of(it.packed.path());
            let engine = open(copy.path(), N_ROWS_MAX, experts);
            assert!(it.runs(&engine, "whole"));
            let entries =
                std::fs::read_dir(copy.path()).unwrap().map(|entry| entry.unwrap().path());
            let is_weights = |it: &PathBuf| it.extension().is_some_and(|it| it == "safetensors");
            let weights: Vec<_> = entries.filter(is_weights).collect();
            for file in &weights {
                let mut writable = std::fs::File::options().write(true).open(file).unwrap();
                if cuts {
                    let len = writable.metadata().unwrap().len();
                    writable.set_len(len / 2).unwrap();
                } else {
                    writable.write_all(&[0xA5; 64]).unwrap();
                }
            }
            let mut session = engine.session(N_TOKENS).unwrap();
            let ended = go_on(&mut session, &it.case, &mut Rows::new());
            let error = ended.unwrap_err().to_string();
            let names_one = weights.iter().any(|file| error.contains(file.to_str().unwrap()));
            assert!(names_one && error.contains("expert"), "{error}");
        }
    }
}
