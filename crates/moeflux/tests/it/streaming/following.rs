//! Steps run while experts are still being loaded into memory that holds all of them: the results
//! are the same bits as with a loaded model, or an error that names the missing expert.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use moeflux::provider::backend::Arithmetic;
use moeflux::provider::config::{BackendKind, DriveMaker, EngineConfig};
use moeflux::provider::engine::Engine;
use moeflux::provider::error::{Error, Result};
use moeflux::provider::experts::stream::{Drives, ReadPurpose};
use moeflux::provider::format::Checkpoint;
use moeflux::provider::model::Model;
use moeflux_io::{
    BlockRead, Caching, Faults, FileChange, FileFacts, FileIdx, NthFault, ReadCompletion,
    ReadRequest, Slab, Wait,
};
use moeflux_testing::cases::{GoldenCase, case_names, try_feed_all};
use moeflux_testing::drives::{SimulatedCheckpoint, is_right, transient};
use moeflux_testing::random::seeds;
use moeflux_testing::temp_dir::TempDir;

use super::faults::{meddle, run, stacked_subjects};
use crate::support::config;

const MOMENT: Duration = Duration::from_micros(50);

fn resident() -> EngineConfig {
    config(BackendKind::Cpu, Arithmetic::Int8, (24, 2))
}

fn read_rest(engine: &Engine) -> Result<()> {
    engine.read_rest(&mut |_| ControlFlow::Continue(()))
}

/// How many reads may end.
#[derive(Clone, Debug, Default)]
struct Gate(Arc<(Mutex<usize>, Condvar)>);

impl Gate {
    fn let_through(&self, n_reads: usize) {
        *self.0.0.lock().unwrap() += n_reads;
        self.0.1.notify_all();
    }

    fn open(&self) {
        self.let_through(usize::MAX / 2);
    }

    /// As many of these as may end.
    fn take(&self, n_wanted: usize) -> usize {
        let mut n_reads = self.0.0.lock().unwrap();
        let n_taken = n_wanted.min(*n_reads);
        *n_reads -= n_taken;
        n_taken
    }

    /// Waits for a moment until some may end.
    fn wait(&self) {
        let n_reads = self.0.0.lock().unwrap();
        let is_closed = |n_reads: &mut usize| *n_reads == 0;
        drop(self.0.1.wait_timeout_while(n_reads, MOMENT, is_closed).unwrap());
    }
}

/// A drive whose reads complete when a gate lets them through.
#[derive(Debug)]
struct Gated {
    drive: Box<dyn BlockRead>,
    gate: Gate,
    held: Vec<ReadCompletion>,
}

impl BlockRead for Gated {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn depth(&self) -> usize {
        self.drive.depth()
    }

    fn n_in_flight(&self) -> usize {
        self.drive.n_in_flight() + self.held.len()
    }

    fn n_files(&self) -> usize {
        self.drive.n_files()
    }

    fn file(&self, file: FileIdx) -> FileFacts<'_> {
        self.drive.file(file)
    }

    fn check_unchanged(&self, file: FileIdx) -> std::result::Result<(), FileChange> {
        self.drive.check_unchanged(file)
    }

    fn submit(&mut self, read: ReadRequest) {
        self.drive.submit(read);
    }

    fn flush(&mut self) -> io::Result<()> {
        self.drive.flush()
    }

    fn complete(&mut self, wait: Wait, done: &mut Vec<ReadCompletion>) -> io::Result<()> {
        self.drive.complete(Wait::Poll, &mut self.held)?;
        let n_through = self.gate.take(self.held.len());
        done.extend(self.held.drain(..n_through));
        if n_through == 0 && wait != Wait::Poll {
            self.gate.wait();
        }
        Ok(())
    }

    fn cancel(&mut self, tag: u64) {
        self.drive.cancel(tag);
    }

    fn slab_added(&mut self, slab: &Slab) {
        self.drive.slab_added(slab);
    }

    fn slab_removed(&mut self, slab: &Slab) {
        self.drive.slab_removed(slab);
    }
}

/// An engine whose experts come through a gate.
fn gated(dir: &Path) -> (Engine, Gate) {
    let gate = Gate::default();
    let mut config = resident();
    config.streaming.drives = Some(Arc::new(gate.clone()));
    let watch = &mut |_| ControlFlow::Continue(());
    (Engine::load(Model::open(dir).unwrap(), &config, watch).unwrap(), gate)
}

impl DriveMaker for Gate {
    fn open(&self, checkpoint: &Checkpoint, read_for: ReadPurpose) -> Result<Drives> {
        let drives = Drives::open(checkpoint, Caching::PageCache, None)?;
        if read_for == ReadPurpose::Rows {
            return Ok(drives);
        }
        let (drive, gate, held) = (drives.primary, self.clone(), Vec::new());
        Ok(Drives { primary: Box::new(Gated { drive, gate, held }), ..drives })
    }
}

#[test]
fn steps_give_the_same_bits_while_the_rest_follows() {
    for name in case_names() {
        let case = GoldenCase::load(&name);
        let (engine, gate) = gated(&case.dir);
        let rest = engine.rest_stats().unwrap();
        assert_eq!(rest.n_read, 0, "{name}");
        let (end, ended) = channel::<()>();
        let found = std::thread::scope(|scope| {
            let gate = gate.clone();
            scope.spawn(move || {
                while ended.recv_timeout(MOMENT) == Err(RecvTimeoutError::Timeout) {
                    gate.let_through(1);
                }
            });
            let found = super::run(&engine, &case);
            drop(end);
            found
        });
        gate.open();
        read_rest(&engine).unwrap();
        let rest = engine.rest_stats().unwrap();
        assert_eq!((rest.n_read, rest.read_bytes), (rest.n_experts, rest.total_bytes), "{name}");
        assert!(rest.took.is_some() && engine.stream_stats().is_none(), "{name}");
        assert!(super::run(&engine, &case) == found, "{name}: other bits while the rest followed");
    }
}

#[test]
fn transient_faults_while_loading_end_with_the_right_tokens() {
    for (case, packed, expected) in stacked_subjects() {
        for seed in seeds(40) {
            let in_place = SimulatedCheckpoint::new(&case.dir, transient(seed)).open(&resident());
            assert!(run(&in_place, &case).unwrap() == expected, "in place, seed {seed}");
            read_rest(&in_place).unwrap();
            let faults = Faults { n_flipped: 40, ..transient(seed) };
            let engine = SimulatedCheckpoint::new(packed.path(), faults).open(&resident());
            assert!(run(&engine, &case).unwrap() == expected, "packed, seed {seed}");
            read_rest(&engine).unwrap();
            assert!(run(&engine, &case).unwrap() == expected, "packed, at once, seed {seed}");
        }
    }
}

/// A lost expert fails the steps that need it, each time.
#[test]
fn lasting_faults_while_loading_end_right_or_with_an_error_that_names_them() {
    for (case, packed, expected) in stacked_subjects() {
        let [mut n_failed, mut n_runs] = [0; 2];
        for seed in seeds(40) {
            let faults = Faults { n_lost: 30, ..transient(seed) };
            for dir in [&case.dir, packed.path()] {
                let engine = SimulatedCheckpoint::new(dir, faults).open(&resident());
                let what = format!("seed {seed}");
                let was_right = is_right(&run(&engine, &case), &expected, &what);
                let is_whole = is_right(&read_rest(&engine), &(), &what);
                assert!(was_right || !is_whole, "{what}: what was lost is there");
                for _ in 0..2 {
                    assert_eq!(
                        is_right(&run(&engine, &case), &expected, &what),
                        was_right,
                        "{what}"
                    );
                }
                assert_eq!(is_right(&read_rest(&engine), &(), &what), is_whole, "{what}");
                n_failed += u32::from(!was_right);
                n_runs += 1;
            }
        }
        assert!(n_failed >= n_runs / 4 && n_failed < n_runs, "{n_failed} of {n_runs} runs failed");
    }
}

/// The drive has recovered when an expert that it lost is requested again.
#[test]
fn failed_experts_are_read_again_at_the_next_request() {
    for (case, packed, expected) in stacked_subjects() {
        let simulated =
            SimulatedCheckpoint::new(packed.path(), Faults { n_lost: 1000, ..Faults::default() });
        let engine = simulated.open(&resident());
        for _ in 0..2 {
            assert!(!is_right(&run(&engine, &case), &expected, "a lost drive"));
        }
        assert!(!is_right(&read_rest(&engine), &(), "a lost drive"));
        simulated.switch.set(Faults::default());
        // Reads that began on the lost drive still fail, each at most once.
        let is_back = || is_right(&run(&engine, &case), &expected, "a drive that is back");
        assert!((0..100).any(|_| is_back()));
        while read_rest(&engine).is_err() {}
        let rest = engine.rest_stats().unwrap();
        assert_eq!(rest.n_read, rest.n_experts);
        assert!(run(&engine, &case).unwrap() == expected);
    }
}

#[test]
fn each_read_while_loading_in_turn_may_fail() {
    for (case, packed, expected) in stacked_subjects() {
        let [mut n_errors, mut n] = [0; 2];
        loop {
            let nth = Some(NthFault { n, n_attempts: u32::MAX });
            let faults = Faults { nth, ..Faults::default() };
            let engine = SimulatedCheckpoint::new(packed.path(), faults).open(&resident());
            let what = format!("read {n}");
            n_errors += u64::from(!is_right(&run(&engine, &case), &expected, &what));
            if is_right(&read_rest(&engine), &(), &what) {
                break;
            }
            n += 1;
        }
        assert!(n > 20 && n_errors > 10, "{n} reads, {n_errors} of them mattered");
    }
}

#[test]
fn an_engine_can_be_dropped_while_it_loads() {
    let case = GoldenCase::load("mlx-qwen3_5_moe-q4-g64-bf16");
    for n_reads in [0, 1, 7, 30] {
        let (engine, gate) = gated(&case.dir);
        gate.let_through(n_reads);
        let session = engine.session(10).unwrap();
        let stopped = engine.read_rest(&mut |_| ControlFlow::Break(()));
        assert!(matches!(stopped, Err(Error::Cancelled)), "{n_reads}: {stopped:?}");
        drop(engine);
        drop(session);
    }
}

fn weights_of(dir: &Path) -> Vec<std::path::PathBuf> {
    let files = Checkpoint::open(dir).unwrap().files;
    files.into_iter().map(|file| file.path).collect()
}

fn names_one(error: &Error, paths: &[std::path::PathBuf]) -> bool {
    let error = error.to_string();
    !error.contains('\n') && paths.iter().any(|path| error.contains(path.to_str().unwrap()))
}

#[test]
fn a_file_written_to_while_the_rest_follows_is_an_error_that_names_it() {
    for (case, packed, _) in stacked_subjects() {
        for dir in [&case.dir, packed.path()] {
            for cuts in [false, true] {
                let copy = TempDir::copy_of(dir);
                let paths = weights_of(copy.path());
                let (engine, gate) = gated(copy.path());
                meddle(&paths, cuts);
                gate.open();
                for _ in 0..2 {
                    let error = run(&engine, &case).unwrap_err();
                    assert!(names_one(&error, &paths), "{error}");
                    assert!(error.to_string().contains("expert"), "{error}");
                }
                let error = read_rest(&engine).unwrap_err();
                assert!(names_one(&error, &paths), "{error}");
            }
        }
    }
}

/// The opened file is read to its end, but no longer has the model's name.
#[test]
fn a_file_replaced_while_the_rest_follows_stops_the_engine() {
    for (case, packed, _) in stacked_subjects() {
        let copy = TempDir::copy_of(packed.path());
        let paths = weights_of(copy.path());
        let (engine, gate) = gated(copy.path());
        let other = paths[0].with_extension("other");
        std::fs::copy(&paths[0], &other).unwrap();
        let renamed = std::fs::rename(&other, &paths[0]);
        gate.open();
        if cfg!(windows) && renamed.is_err() {
            // Some systems refuse to replace a file that is open.
            read_rest(&engine).unwrap();
            continue;
        }
        renamed.unwrap();
        for _ in 0..2 {
            let error = read_rest(&engine).unwrap_err();
            assert!(matches!(error, Error::Stopped(_)) && names_one(&error, &paths), "{error}");
            let mut session = engine.session(4).unwrap();
            let error = try_feed_all(&mut session, &case.tokens[..2]).unwrap_err();
            assert!(matches!(error, Error::Stopped(_)) && names_one(&error, &paths), "{error}");
        }
    }
}
