//! Experts from a drive: results are the same as with all experts in memory, for any number of
//! slots, any way of reading, and any behaviour of the drive.

mod faults;
mod following;
mod growth;
mod in_turn;
mod longer;
mod mirrors;
mod near;

use std::ops::ControlFlow;
use std::path::Path;

use moeflux::provider::backend::Arithmetic;
use moeflux::provider::config::{BackendKind, EngineConfig, ReadWay, StreamingConfig};
use moeflux::provider::engine::Engine;
use moeflux::provider::error::Result;
use moeflux::provider::model::Model;
use moeflux_testing::cases::{GoldenCase, case_names, feed_all};

use crate::support::config;

/// An engine with this number of experts in memory, or with all if it is `None`.
fn open(dir: &Path, n_slots: Option<usize>, streaming: StreamingConfig) -> Result<Engine> {
    let config = config(BackendKind::Cpu, Arithmetic::Int8, (24, 2));
    let streaming = StreamingConfig { n_slots_max: n_slots, ..streaming };
    let config = EngineConfig { streaming, ..config };
    let engine = Engine::load(Model::open(dir)?, &config, &mut |_| ControlFlow::Continue(()))?;
    engine.read_rest(&mut |_| ControlFlow::Continue(()))?;
    Ok(engine)
}

/// Logits of a prompt that is longer than a step, and of tokens one by one after it.
fn run(engine: &Engine, case: &GoldenCase) -> Vec<Vec<f32>> {
    let tokens = &case.tokens[..case.tokens.len().min(60)];
    let mut session = engine.session(tokens.len()).unwrap();
    let (prompt, rest) = tokens.split_at(tokens.len() - 12);
    let mut rows = feed_all(&mut session, prompt);
    for token in rest {
        rows.extend(feed_all(&mut session, std::slice::from_ref(token)));
    }
    rows
}

#[test]
fn any_number_of_slots_gives_the_same_bits() {
    let mut n_guesses = 0;
    for name in case_names() {
        let case = GoldenCase::load(&name);
        let resident = open(&case.dir, None, StreamingConfig::default()).unwrap();
        let expected = run(&resident, &case);
        assert!(resident.stream_stats().is_none());
        for n_slots in [1, 5, 9] {
            for prefetches in [false, true] {
                let streaming = StreamingConfig { prefetches, ..StreamingConfig::default() };
                let engine = open(&case.dir, Some(n_slots), streaming).unwrap();
                let Some(_) = engine.stream_stats() else { continue };
                assert!(run(&engine, &case) == expected, "{name}: {n_slots} slots change bits");
                let stats = engine.stream_stats().unwrap();
                assert!(stats.misses > 0, "{name}: nothing was read: {stats:?}");
                assert!(prefetches || stats.guesses == 0, "{name}: {stats:?}");
                n_guesses += stats.guesses;
            }
        }
    }
    assert!(n_guesses > 0, "nothing was guessed anywhere");
}

#[test]
fn the_page_cache_and_a_mirror_give_the_same_bits() {
    let case = GoldenCase::load("qwen3_5_moe-bf16");
    let expected = run(&open(&case.dir, None, StreamingConfig::default()).unwrap(), &case);
    for way in [ReadWay::Direct, ReadWay::PageCache] {
        for mirror in [None, Some(case.dir.clone())] {
            let streaming = StreamingConfig { way, mirror, ..StreamingConfig::default() };
            let engine = open(&case.dir, Some(7), streaming).unwrap();
            assert!(run(&engine, &case) == expected, "{way:?}");
        }
    }
}

#[test]
fn slots_come_and_go_while_it_runs() {
    let case = GoldenCase::load("qwen3_5_moe-bf16");
    let expected = run(&open(&case.dir, None, StreamingConfig::default()).unwrap(), &case);
    let engine = open(&case.dir, Some(12), StreamingConfig::default()).unwrap();
    let tokens = &case.tokens[..case.tokens.len().min(60)];
    let mut session = engine.session(tokens.len()).unwrap();
    for (row_idx, token) in tokens.iter().enumerate() {
        let n_slots = [12, 4, 9, 5, 12, 8][row_idx % 6];
        engine.set_slots(n_slots).unwrap();
        assert_eq!(engine.stream_stats().unwrap().n_slots, n_slots);
        let row = feed_all(&mut session, std::slice::from_ref(token));
        assert!(row[0] == expected[row_idx], "token {row_idx}");
    }
}
