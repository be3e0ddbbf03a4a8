//! A simulated drive that fails in every way: the right tokens come out, or one error that names
//! expert or row, file and bytes; never other tokens, never a hang, never a lost slot.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use moeflux::provider::backend::Arithmetic;
use moeflux::provider::config::{BackendKind, EngineConfig, StreamingConfig};
use moeflux::provider::engine::Engine;
use moeflux::provider::error::Result;
use moeflux::provider::session::{Session, Wanted};
use moeflux_io::{Faults, NthFault};
use moeflux_testing::cases::GoldenCase;
use moeflux_testing::drives::{SimulatedCheckpoint, is_right, packed, transient};
use moeflux_testing::random::seeds;
use moeflux_testing::temp_dir::TempDir;

use crate::support::{config, open_as};

const N_SLOTS: usize = 7;
/// More rows than take part in an arbitrary order, and then single ones.
const N_PROMPT: usize = 20;
const N_TOKENS: usize = 26;

fn open(simulated: &SimulatedCheckpoint<'_>) -> Engine {
    open_with(simulated, StreamingConfig::default())
}

fn open_with(simulated: &SimulatedCheckpoint<'_>, streaming: StreamingConfig) -> Engine {
    let config = config(BackendKind::Cpu, Arithmetic::Int8, (24, 1));
    let streaming = StreamingConfig { n_slots_max: Some(N_SLOTS), ..streaming };
    simulated.open(&EngineConfig { streaming, ..config })
}

fn feed(
    session: &mut Session,
    case: &GoldenCase,
    tokens: std::ops::Range<usize>,
) -> Result<Vec<f32>> {
    let mut logits = Vec::new();
    let watch = &mut |_| ControlFlow::Continue(());
    session.feed(&case.tokens[tokens], Wanted::All, watch, &mut |_, row| {
        logits.extend_from_slice(row);
        Ok(())
    })?;
    Ok(logits)
}

pub(super) fn run(engine: &Engine, case: &GoldenCase) -> Result<Vec<f32>> {
    let mut session = engine.session(N_TOKENS)?;
    let mut logits = feed(&mut session, case, 0..N_PROMPT)?;
    for at in N_PROMPT..N_TOKENS {
        logits.extend(feed(&mut session, case, at..at + 1)?);
    }
    Ok(logits)
}

/// Three folders of safetensors, one of them of MXFP4 and one with rows of n-grams, and a GGUF
/// file: the case, its packed form, and the expected results of both.
pub(super) fn subjects() -> [(GoldenCase, TempDir, Vec<f32>); 4] {
    ["mlx-qwen3_5_moe-q4-g64-bf16", "gguf-qwen35moe", "qwen3_moe-mxfp4", "qwen4_exp-bf16"]
        .map(subject)
}

/// The subjects that store the matrices of all experts of a layer in one tensor. With a tensor per
/// expert, reads are small and numerous, and some fail at every attempt.
pub(super) fn stacked_subjects() -> [(GoldenCase, TempDir, Vec<f32>); 2] {
    ["mlx-qwen3_5_moe-q4-g64-bf16", "gguf-qwen35moe"].map(subject)
}

fn subject(name: &str) -> (GoldenCase, TempDir, Vec<f32>) {
    let case = GoldenCase::load(name);
    let packed = packed(&case.dir);
    let expected = run(&open_as(&case.dir, Arithmetic::Int8, 24), &case).unwrap();
    (case, packed, expected)
}

#[test]
fn transient_faults_end_with_the_right_tokens() {
    let (mut n_retries, mut n_rereads) = (0, 0);
    for (case, packed, expected) in subjects() {
        for seed in seeds(40) {
            let in_place = open(&SimulatedCheckpoint::new(&case.dir, transient(seed)));
            assert!(run(&in_place, &case).unwrap() == expected, "in place, seed {seed}");
            let faults = Faults { n_flipped: 40, ..transient(seed) };
            let engine = open(&SimulatedCheckpoint::new(packed.path(), faults));
            assert!(run(&engine, &case).unwrap() == expected, "packed, seed {seed}");
            let stats = engine.stream_stats().unwrap();
            n_retries += stats.retries;
            n_rereads += stats.rereads;
        }
    }
    assert!(n_retries > 40 && n_rereads > 20, "{n_retries} reads failed, {n_rereads} were flipped");
}

/// After every error, the engine works again when the drive does.
#[test]
fn lasting_faults_end_right_or_with_an_error_that_names_them() {
    for (case, packed, expected) in subjects() {
        let [mut n_failed, mut n_runs] = [0; 2];
        for seed in seeds(40) {
            let faults = Faults { n_lost: 30, ..transient(seed) };
            for dir in [&case.dir, packed.path()] {
                let engine = open(&SimulatedCheckpoint::new(dir, faults));
                for _ in 0..3 {
                    let what = format!("seed {seed}");
                    n_failed += u32::from(!is_right(&run(&engine, &case), &expected, &what));
                    n_runs += 1;
                }
            }
        }
        assert!(n_failed >= n_runs / 4 && n_failed < n_runs, "{n_failed} of {n_runs} runs failed");
    }
}

#[test]
fn the_mirror_replaces_lost_reads() {
    for (case, packed, expected) in subjects() {
        for seed in seeds(20) {
            let lost = Faults { n_lost: 200, n_flipped: 100, ..transient(seed) };
            let mirror = Some(Faults { n_flipped: 20, ..transient(seed + 1000) });
            let engine = open(&SimulatedCheckpoint {
                mirror,
                ..SimulatedCheckpoint::new(packed.path(), lost)
            });
            assert!(run(&engine, &case).unwrap() == expected, "seed {seed}");
        }
    }
}

/// The 1st, 2nd, 3rd ... read fails for good, until a run has fewer reads.
#[test]
fn each_read_in_turn_may_fail() {
    for (case, packed, expected) in subjects() {
        let mut n_errors = 0;
        for n in 0.. {
            let nth = Some(NthFault { n, n_attempts: u32::MAX });
            let faults = Faults { nth, ..Faults::default() };
            let engine = open(&SimulatedCheckpoint::new(packed.path(), faults));
            if !is_right(&run(&engine, &case), &expected, &format!("read {n}")) {
                n_errors += 1;
            } else if n > 400 {
                // A guess may fail without harm; after the last read nothing fails.
                break;
            }
        }
        assert!(n_errors > 20, "only {n_errors} reads mattered");
    }
}

/// A record that is damaged where it lies is no transient fault.
#[test]
fn a_damaged_record_is_an_error_that_names_its_sums() {
    for (case, packed, _) in subjects() {
        let faults = Faults { seed: 3, n_flipped: 1000, ..Faults::default() };
        let engine = open(&SimulatedCheckpoint::new(packed.path(), faults));
        let error = run(&engine, &case).unwrap_err().to_string();
        assert!(error.contains("checksum") && error.contains("moeflux verify"), "{error}");
    }
}

#[test]
fn checksums_are_compared_unless_disabled() {
    for (case, packed, expected) in subjects() {
        for checks_sums in [false, true] {
            let streaming = || StreamingConfig { checks_sums, ..StreamingConfig::default() };
            let whole = SimulatedCheckpoint::new(packed.path(), Faults::default());
            let engine = open_with(&whole, streaming());
            assert!(run(&engine, &case).unwrap() == expected, "{checks_sums}");

            let faults = Faults { seed: 3, n_flipped: 1000, ..Faults::default() };
            let damaged = SimulatedCheckpoint::new(packed.path(), faults);
            let found = run(&open_with(&damaged, streaming()), &case);
            assert_eq!(found.is_err(), checks_sums);
            assert!(found.is_err() || found.unwrap() != expected, "the damage reaches the output");
        }
    }
}

/// Cuts files in half, or writes to their beginnings.
pub(super) fn meddle(files: &[PathBuf], cuts: bool) {
    for path in files {
        let mut file = std::fs::File::options().write(true).open(path).unwrap();
        if cuts {
            let len = file.metadata().unwrap().len();
            file.set_len(len / 2).unwrap();
        } else {
            file.write_all(&[0xA5; 64]).unwrap();
        }
    }
}

/// Another model is copied over this one, completely or in part.
#[test]
fn a_file_cut_or_written_to_while_the_model_runs_is_an_error_that_names_it() {
    for (case, packed, _) in subjects() {
        for dir in [&case.dir, packed.path()] {
            for cuts in [false, true] {
                let copy = TempDir::copy_of(dir);
                let files =
                    std::fs::read_dir(copy.path()).unwrap().map(|entry| entry.unwrap().path());
                let is_weights = |it: &PathBuf| {
                    it.extension().is_some_and(|it| it == "safetensors" || it == "gguf")
                };
                let weights: Vec<_> = files.filter(is_weights).collect();
                let engine =
                    super::open(copy.path(), Some(N_SLOTS), StreamingConfig::default()).unwrap();
                let mut session = engine.session(N_TOKENS).unwrap();
                feed(&mut session, &case, 0..N_PROMPT).unwrap();
                meddle(&weights, cuts);
                let found = (N_PROMPT..N_TOKENS)
                    .try_for_each(|at| feed(&mut session, &case, at..at + 1).map(drop));
                let error = found.unwrap_err().to_string();
                let names_one = weights.iter().any(|file| error.contains(file.to_str().unwrap()));
                let names_part = error.contains("expert") || error.starts_with("row ");
                assert!(names_one && names_part, "{error}");
            }
        }
    }
}
