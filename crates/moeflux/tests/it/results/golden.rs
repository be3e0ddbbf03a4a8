//! Golden cases: logits of every family and weight format against transformers and mlx-lm.

use std::ops::ControlFlow;

use moeflux::provider::backend::Arithmetic;
use moeflux::provider::config::{BackendKind, EngineConfig};
use moeflux::provider::engine::Engine;
use moeflux::provider::ids::TokenId;
use moeflux::provider::model::Model;
use moeflux_kernels::{KernelTable, available};
use moeflux_testing::cases::{Distance, GoldenCase, case_names, feed_all};
use moeflux_testing::temp_dir::TempDir;

use crate::support::{config, open, open_as, open_with};

/// Runs every case on a backend and names those that are too far off.
fn check_all(backend: BackendKind) {
    let mut failures = Vec::new();
    for name in case_names() {
        let case = GoldenCase::load(&name);
        let engine = open(&case.dir, backend, 64);
        let mut session = engine.session(case.tokens.len()).unwrap();
        let distance = Distance::between(&feed_all(&mut session, &case.tokens), &case.logits);
        println!("{name:40} {backend:?} {distance:?}");
        if let Some(excess) = distance.beyond_f32_limits() {
            failures.push(format!("{name}: {excess}"));
        }
    }
    assert!(failures.is_empty(), "{backend:?} differs:\n{}", failures.join("\n"));
}

#[test]
fn reference_agrees_with_other_implementations() {
    check_all(BackendKind::Reference);
}

#[test]
fn cpu_agrees_with_other_implementations() {
    check_all(BackendKind::Cpu);
}

#[test]
fn the_model_in_the_box_agrees_with_transformers_on_both_backends() {
    let (case, every) = GoldenCase::demo();
    for backend in [BackendKind::Reference, BackendKind::Cpu] {
        let engine = open(&case.dir, backend, 64);
        let mut session = engine.session(case.tokens.len()).unwrap();
        let all = feed_all(&mut session, &case.tokens);
        let rows: Vec<Vec<f32>> = all.into_iter().skip(every - 1).step_by(every).collect();
        let distance = Distance::between(&rows, &case.logits);
        println!("{backend:?} {distance:?}");
        assert_eq!(distance.beyond_f32_limits(), None, "{backend:?}");
    }
}

#[test]
fn cpu_gives_the_same_bits_for_any_chunk_and_any_number_of_threads() {
    for name in case_names() {
        let case = GoldenCase::load(&name);
        let tokens = &case.tokens[..case.tokens.len().min(80)];
        let run = |n_rows_max, n_threads| {
            let engine = open_with(&case.dir, BackendKind::Cpu, (n_rows_max, n_threads)).unwrap();
            feed_all(&mut engine.session(tokens.len()).unwrap(), tokens)
        };
        let whole = run(tokens.len(), 1);
        for (n_rows_max, n_threads) in [(1, 2), (7, 1), (7, 3), (tokens.len(), 2)] {
            let other = run(n_rows_max, n_threads);
            assert!(
                whole == other,
                "{name}: {n_rows_max} rows per step on {n_threads} threads change the bits"
            );
        }
    }
}

/// A list of all positions counts its blocks as dense attention does.
#[test]
fn up_to_the_chosen_number_of_positions_bits_are_those_of_dense_attention() {
    // The case, the key of the number, the number, and the positions that a row attends to at most.
    for (name, key, n_chosen, n_most) in [
        ("glm_moe_dsa-bf16-sparse", "/index_topk", 20, 20),
        ("qwen4_exp-bf16-sparse", "/text_config/indexer_budget", 12, 15),
    ] {
        let case = GoldenCase::load(name);
        let n_tokens = case.tokens.len();
        let run = |(n_chosen, context_max): (usize, usize), arithmetic| {
            let dir = TempDir::copy_of(&case.dir);
            let config = std::fs::read(dir.file("config.json")).unwrap();
            let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
            *config.pointer_mut(key).unwrap() = n_chosen.into();
            let (parent, _) = key.rsplit_once('/').unwrap();
            config.pointer_mut(parent).unwrap()["max_position_embeddings"] = context_max.into();
            dir.write("config.json", config.to_string());
            let engine = open_as(dir.path(), arithmetic, 32);
            feed_all(&mut engine.session(n_tokens).unwrap(), &case.tokens)
        };
        for arithmetic in [Arithmetic::F32, Arithmetic::Int8, Arithmetic::Int8Kv8] {
            let what = format!("{name}, {}", arithmetic.name());
            let dense = run((n_tokens, n_tokens), arithmetic);
            assert!(dense == run((n_tokens, 4096), arithmetic), "{what}");
            let sparse = run((n_chosen, 4096), arithmetic);
            assert!(dense[..n_most] == sparse[..n_most], "{what}");
            assert!(dense[n_most..] != sparse[n_most..], "{what}");
        }
    }
}

/// Logits of the CPU backend in an arithmetic that rounds activations.
fn run_int8(
    (case, arithmetic): (&GoldenCase, Arithmetic),
    tokens: &[TokenId],
    shape: (usize, usize),
    kernels: Option<&'static KernelTable>,
) -> Vec<Vec<f32>> {
    let config = config(BackendKind::Cpu, arithmetic, shape);
    let config = EngineConfig { kernels, ..config };
    let engine =
        Engine::load(Model::open(&case.dir).unwrap(), &config, &mut |_| ControlFlow::Continue(()))
            .unwrap();
    feed_all(&mut engine.session(tokens.len()).unwrap(), tokens)
}

#[test]
fn int8_gives_the_same_bits_for_any_chunk_threads_and_instruction_set() {
    for (name, arithmetic) in
        case_names().iter().flat_map(|it| INT8_KINDS.map(|arithmetic| (it, arithmetic)))
    {
        let case = GoldenCase::load(name);
        let tokens = &case.tokens[..case.tokens.len().min(80)];
        let what = format!("{name} in {}", arithmetic.name());
        let run = |shape, kernels| run_int8((&case, arithmetic), tokens, shape, kernels);
        let whole = run((tokens.len(), 1), None);
        for shape in [(1, 2), (7, 3), (tokens.len(), 2)] {
            assert!(whole == run(shape, None), "{what} differs with (rows, threads) {shape:?}");
        }
        for table in available() {
            assert!(whole == run((7, 2), Some(table)), "{what} differs with {}", table.name());
        }
    }
}

/// Arithmetics that round activations.
const INT8_KINDS: [Arithmetic; 2] = [Arithmetic::Int8, Arithmetic::Int8Kv8];

/// On 256 tokens of held-out text, too few to count how often the first choice is the same; the
/// README has the figures of the whole of it.
#[test]
fn int8_stays_close_to_the_reference_on_the_model_in_the_box() {
    let (case, _) = GoldenCase::demo();
    let engine = open(&case.dir, BackendKind::Reference, 64);
    let expected = feed_all(&mut engine.session(case.tokens.len()).unwrap(), &case.tokens);
    for arithmetic in INT8_KINDS {
        let actual = run_int8((&case, arithmetic), &case.tokens, (256, 2), None);
        let distance = Distance::between(&actual, &expected);
        println!("{}: {distance:?}", arithmetic.name());
        assert!(distance.kl > 0.0, "int8 rounds activations");
        assert!(distance.kl <= 2e-3, "{}: mean KL {:e}", arithmetic.name(), distance.kl);
    }
}
