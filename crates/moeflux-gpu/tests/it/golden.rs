//! Golden cases on a GPU: logits of every family and weight format against transformers and mlx-lm,
//! wherever the experts are; sessions that come, go and move.

use std::ops::ControlFlow;

use moeflux::provider::engine::Engine;
use moeflux::provider::error::Error;
use moeflux::provider::forward::StepProgress;
use moeflux::provider::ids::TokenId;
use moeflux::provider::model::{Headers, Model};
use moeflux::provider::session::Wanted;
use moeflux_testing::cases::{Distance, GoldenCase, case_names, feed_all};
use moeflux_testing::needs_gpu;

use crate::blocks::REFUSED_CASES;
use crate::support::{ExpertsAt, open};

/// A case with recurrent layers, one with plain attention, one with latents.
const CASES: [&str; 3] = ["qwen3_next-bf16", "qwen3_moe-bf16", "deepseek_v3-bf16"];

/// A GGUF file with every large kind of blocks that kernels read.
const GGUF_CASE: &str = "gguf-qwen3moe-gpu";

/// All cases but those with weights that no kernel reads.
fn gpu_case_names() -> Vec<String> {
    let mut names = case_names();
    names.retain(|name| !REFUSED_CASES.contains(&name.as_str()));
    names
}

/// Whether all cases run in all ways. A software driver compiles the kernels of each combination,
/// which takes minutes.
#[expect(clippy::disallowed_methods, reason = "a test's own variable: see TESTING.md")]
fn runs_all() -> bool {
    std::env::var_os("MOEFLUX_TESTS").is_some_and(|it| it == "all")
}

/// Cases whose logits are compared. Unless all run, of GGUF files these are one for each type of
/// blocks, and one with biases of experts: a device does not know their architectures.
fn compared_cases() -> Vec<String> {
    const GGUF_CASES: [&str; 4] = [GGUF_CASE, "gguf-glm4moe", "gguf-qwen3next", "gguf-gpt-oss"];
    let mut names = gpu_case_names();
    let is_wanted = |name: &str| !name.starts_with("gguf-") || GGUF_CASES.contains(&name);
    names.retain(|name| runs_all() || is_wanted(name));
    names
}

/// Cases whose experts go to all places, and whose rows are alone. Unless all run, these are layers
/// of each kind, FP8 blocks, codes of one width and of several, and blocks of a GGUF file.
fn crossed_cases() -> Vec<String> {
    const QUANTISED: [&str; 4] = [
        "deepseek_v3-fp8",
        "mlx-qwen3_5_moe-q4-g64-bf16",
        "mlx-glm4_moe-mixed_2_6-g32-bf16",
        GGUF_CASE,
    ];
    if runs_all() {
        return gpu_case_names();
    }
    CASES.into_iter().chain(QUANTISED).map(str::to_owned).collect()
}

#[test]
fn experts_on_the_device_agree_with_other_implementations() {
    needs_gpu!();
    let mut failures = Vec::new();
    for name in compared_cases() {
        let case = GoldenCase::load(&name);
        let engine = open(&case.dir, 64, ExpertsAt::Device);
        assert_eq!(engine.device_names().backend, "gpu");
        let mut session = engine.session(case.tokens.len()).unwrap();
        let distance = Distance::between(&feed_all(&mut session, &case.tokens), &case.logits);
        println!("{name:40} {distance:?}");
        if let Some(excess) = distance.beyond_f32_limits() {
            failures.push(format!("{name}: {excess}"));
        }
    }
    assert!(failures.is_empty(), "differs:\n{}", failures.join("\n"));
}

#[test]
fn experts_in_two_memories_change_no_bit_of_any_format() {
    needs_gpu!();
    for name in crossed_cases() {
        let case = GoldenCase::load(&name);
        let tokens = &case.tokens[..case.tokens.len().min(33)];
        let run = |experts| {
            let engine = open(&case.dir, 64, experts);
            let memory = engine.memory();
            let mut session = engine.session(64).unwrap();
            // Many rows at once, and one alone.
            let rows = [tokens, &tokens[..1]].map(|tokens| feed_all(&mut session, tokens));
            (rows, memory.expert_bytes, memory.far_expert_bytes)
        };
        let (expected, n_bytes, n_far) = run(ExpertsAt::Device);
        assert_eq!(n_far, 0, "{name}");
        if n_bytes == 0 {
            // A dense model has other kernels once its layers are divided: see below.
            continue;
        }
        for percent in [0, 25, 90] {
            let (rows, _, n_far) = run(ExpertsAt::Both(percent));
            let n_near = n_bytes * percent / 100;
            assert_eq!(n_far, n_bytes - n_near, "{name}: {percent} % near");
            assert!(rows == expected, "{name}: {percent} % near");
        }
    }
}

#[test]
fn layers_of_dense_models_agree_with_other_implementations_wherever_they_are() {
    needs_gpu!();
    for name in ["qwen2-bf16", "mlx-llama-mixed_3_6-g32-bf16", "mlx-qwen3_5-q4-g32-bf16"] {
        let case = GoldenCase::load(name);
        let n_tokens = case.tokens.len();
        let run = |layers| {
            let engine = open(&case.dir, 64, layers);
            let mut session = engine.session(n_tokens).unwrap();
            let (prompt, answer) = case.tokens.split_at(n_tokens - 4);
            let mut rows = feed_all(&mut session, prompt);
            for token in answer {
                rows.extend(feed_all(&mut session, std::slice::from_ref(token)));
            }
            (rows, engine.memory().far_expert_bytes, engine.stream_stats().is_some())
        };
        let (expected, n_far, is_streamed) = run(ExpertsAt::Both(0));
        assert!(n_far > 0 && !is_streamed, "{name}");
        let excess = Distance::between(&expected, &case.logits).beyond_f32_limits();
        assert_eq!(excess, None, "{name}");
        for layers in [ExpertsAt::Both(60), ExpertsAt::Files(1), ExpertsAt::CopiedFiles(2)] {
            let (rows, _, is_streamed) = run(layers);
            assert_eq!(is_streamed, !matches!(layers, ExpertsAt::Both(_)), "{name}: {layers:?}");
            assert!(rows == expected, "{name}: {layers:?}");
        }
    }
}

#[test]
fn several_buffers_change_no_bit() {
    needs_gpu!();
    for name in CASES {
        let run = |experts| {
            let (engine, tokens) = engine_of(name, experts);
            feed_all(&mut engine.session(64).unwrap(), &tokens)
        };
        let expected = run(ExpertsAt::Device);
        for percent in [0, 45, 100] {
            assert!(run(ExpertsAt::Cut(percent)) == expected, "{name}: {percent} % near");
        }
    }
}

#[test]
fn promoting_experts_changes_no_bit() {
    needs_gpu!();
    for name in CASES {
        let case = GoldenCase::load(name);
        let tokens: Vec<_> = case.tokens[..4].iter().copied().cycle().take(150).collect();
        let run = |experts| {
            let engine = open(&case.dir, 1, experts);
            let rows = feed_all(&mut engine.session(tokens.len()).unwrap(), &tokens);
            (rows, engine.tier_stats())
        };
        let (expected, stats) = run(ExpertsAt::Device);
        assert_eq!(stats, None);
        let (rows, stats) = run(ExpertsAt::Both(25));
        assert!(rows == expected, "{name}");
        let stats = stats.expect("experts are in two memories");
        assert!(stats.swaps > 0 && stats.near_uses < stats.uses, "{name}: {stats:?}");
        assert!(stats.near_bytes > 0 && stats.near_bytes < stats.far_bytes, "{name}: {stats:?}");
        // Counted up to the last look: whole steps, of all layers with experts.
        let per_step: usize = {
            let (blueprint, _) = Model::open(&case.dir).unwrap().into_parts();
            blueprint.spec.layers.iter().map(|layer| layer.ffn.top_k()).sum()
        };
        let n_steps = stats.uses / per_step as u64;
        assert_eq!(stats.uses, n_steps * per_step as u64, "{name}: {stats:?}");
        assert!((32..150).contains(&n_steps), "{name}: {stats:?}");
    }
}

#[test]
fn rows_alone_agree_with_other_implementations() {
    needs_gpu!();
    let mut failures = Vec::new();
    for name in crossed_cases() {
        let case = GoldenCase::load(&name);
        let n = case.tokens.len().min(6);
        let engine = open(&case.dir, 1, ExpertsAt::Device);
        let rows = feed_all(&mut engine.session(n).unwrap(), &case.tokens[..n]);
        let distance = Distance::between(&rows, &case.logits[..n]);
        if let Some(excess) = distance.beyond_f32_limits() {
            failures.push(format!("{name}: {excess}"));
        }
    }
    assert!(failures.is_empty(), "row by row: differs:\n{}", failures.join("\n"));
}

#[test]
fn the_model_in_the_box_agrees_with_transformers() {
    needs_gpu!();
    let (case, every) = GoldenCase::demo();
    let engine = open(&case.dir, 64, ExpertsAt::Device);
    let all = feed_all(&mut engine.session(case.tokens.len()).unwrap(), &case.tokens);
    let rows: Vec<Vec<f32>> = all.into_iter().skip(every - 1).step_by(every).collect();
    let distance = Distance::between(&rows, &case.logits);
    assert_eq!(distance.beyond_f32_limits(), None);
}

/// Two steps of 16 rows, and one of a row alone.
fn engine_of(name: &str, experts: ExpertsAt) -> (Engine, Vec<TokenId>) {
    let case = GoldenCase::load(name);
    let tokens = case.tokens[..case.tokens.len().min(33)].to_vec();
    (open(&case.dir, 16, experts), tokens)
}

#[test]
fn the_location_of_experts_changes_no_bit() {
    needs_gpu!();
    for name in CASES.into_iter().chain([GGUF_CASE]) {
        let run = |experts| {
            let (engine, tokens) = engine_of(name, experts);
            feed_all(&mut engine.session(64).unwrap(), &tokens)
        };
        let expected = run(ExpertsAt::Device);
        let others = [
            ExpertsAt::Host,
            ExpertsAt::Files(0),
            ExpertsAt::Files(3),
            ExpertsAt::CopiedFiles(3),
            ExpertsAt::Files(9),
            ExpertsAt::Both(0),
            ExpertsAt::Both(30),
        ];
        for experts in others {
            assert!(run(experts) == expected, "{name}: experts at {experts:?}");
        }
    }
}

/// Kernels that take several ops together round as those of each op do, for every kind of weight
/// and number of experts.
#[test]
fn rows_alone_are_the_same_with_experts_of_files() {
    needs_gpu!();
    for name in crossed_cases() {
        let case = GoldenCase::load(&name);
        let tokens = &case.tokens[..case.tokens.len().min(6)];
        let run = |experts| {
            let engine = open(&case.dir, 1, experts);
            feed_all(&mut engine.session(tokens.len()).unwrap(), tokens)
        };
        assert!(run(ExpertsAt::Files(9)) == run(ExpertsAt::Device), "{name}");
    }
}

#[test]
fn experts_of_files_and_of_the_device_change_no_bit() {
    needs_gpu!();
    for name in CASES {
        let case = GoldenCase::load(name);
        let tokens: Vec<_> = case.tokens.iter().copied().cycle().take(60).collect();
        let run = |experts| {
            let engine = open(&case.dir, 1, experts);
            let rows = feed_all(&mut engine.session(tokens.len()).unwrap(), &tokens);
            (rows, engine.stream_stats())
        };
        let (expected, _) = run(ExpertsAt::Device);
        let mut hits = Vec::new();
        for n_near in [0, 4, 8] {
            let (rows, stats) = run(ExpertsAt::FilesAndDevice(12, n_near));
            assert!(rows == expected, "{name}: {n_near} on the device");
            let stats = stats.expect("experts are streamed");
            println!("{name}: {n_near}: {stats:?}");
            assert!(stats.device_hits <= stats.hits);
            hits.push(stats.device_hits);
        }
        assert!(hits[0] == 0 && hits[0] < hits[1] && hits[1] < hits[2], "{name}: {hits:?}");
    }
}

#[test]
fn a_prompt_in_one_step_is_the_same_wherever_experts_are() {
    needs_gpu!();
    for name in CASES {
        let case = GoldenCase::load(name);
        let tokens: Vec<_> = case.tokens.iter().copied().cycle().take(60).collect();
        let run = |experts| {
            let engine = open(&case.dir, 64, experts);
            let mut session = engine.session(64).unwrap();
            let rows = feed_all(&mut session, &tokens);
            let more = feed_all(&mut session, &tokens[..1]);
            session.clear();
            (rows, more, feed_all(&mut session, &tokens))
        };
        let expected = run(ExpertsAt::Device);
        // Copied to the device, or read where they lie.
        let files = [0, 9, 64].map(ExpertsAt::Files);
        let files_and_device = [9, 64].map(|n_slots| ExpertsAt::FilesAndDevice(n_slots, 6));
        for experts in files.into_iter().chain(files_and_device) {
            assert!(run(experts) == expected, "{name}: experts at {experts:?}");
        }
    }
}

#[test]
fn steps_that_are_called_off_leave_streamed_experts_as_they_are() {
    needs_gpu!();
    // Few rows; many, whose experts are copied to the device; many that are read where they lie.
    let ways = [(16, 9), (33, 9), (33, 64)];
    for (name, (n_rows, n_slots)) in CASES.into_iter().flat_map(|it| ways.map(|way| (it, way))) {
        let case = GoldenCase::load(name);
        let tokens = &case.tokens[..case.tokens.len().min(33)];
        let engine = open(&case.dir, n_rows, ExpertsAt::Device);
        let expected = feed_all(&mut engine.session(64).unwrap(), tokens);
        let engine = open(&case.dir, n_rows, ExpertsAt::FilesAndDevice(n_slots, 4));
        for n_layers in 1..4 {
            let mut session = engine.session(64).unwrap();
            let stop = &mut |progress: StepProgress| match progress.n_layers_done >= n_layers {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            };
            let fed = session.feed(tokens, Wanted::Last, stop, &mut |_, _| Ok(()));
            assert!(fed.is_err(), "{name}: after {n_layers} layers");
            drop(session);
            let rows = feed_all(&mut engine.session(64).unwrap(), tokens);
            assert!(rows == expected, "{name}: after {n_layers} layers");
        }
    }
}

#[test]
fn slots_that_come_and_go_change_no_bit() {
    needs_gpu!();
    for name in CASES {
        let (engine, tokens) = engine_of(name, ExpertsAt::Device);
        let run = |engine: &Engine| {
            let mut session = engine.session(64).unwrap();
            let rows = tokens.iter().map(|token| feed_all(&mut session, &[*token]));
            rows.flatten().collect::<Vec<_>>()
        };
        let expected = run(&engine);
        let (engine, _) = engine_of(name, ExpertsAt::FilesAndDevice(20, 4));
        for n_slots in [20, 8, 24, 9] {
            engine.set_slots(n_slots).unwrap();
            assert!(run(&engine) == expected, "{name}: {n_slots} slots");
        }
    }
}

#[test]
fn one_row_per_step_is_close_to_many() {
    needs_gpu!();
    for name in CASES {
        let case = GoldenCase::load(name);
        let tokens = &case.tokens[..case.tokens.len().min(40)];
        let run = |n_rows_max| {
            let engine = open(&case.dir, n_rows_max, ExpertsAt::Device);
            feed_all(&mut engine.session(64).unwrap(), tokens)
        };
        let distance = Distance::between(&run(1), &run(64));
        assert_eq!(distance.beyond_f32_limits(), None, "{name}");
    }
}

#[test]
fn sessions_do_not_affect_each_other() {
    needs_gpu!();
    for name in CASES {
        let (engine, tokens) = engine_of(name, ExpertsAt::Device);
        let expected = feed_all(&mut engine.session(64).unwrap(), &tokens);
        let mut other = engine.session(64).unwrap();
        feed_all(&mut other, &tokens[..tokens.len() / 2]);
        assert!(feed_all(&mut engine.session(64).unwrap(), &tokens) == expected, "{name}: company");
        other.clear();
        assert!(feed_all(&mut other, &tokens) == expected, "{name}: after clearing");
        drop(other);
        assert!(feed_all(&mut engine.session(64).unwrap(), &tokens) == expected, "{name}: dropped");
    }
}

/// The next request differs from the recorded one: another session's row, a step that ends between
/// two layers, a session that starts again.
#[test]
fn commands_recorded_ahead_are_not_used_for_another_step() {
    needs_gpu!();
    for name in CASES {
        let case = GoldenCase::load(name);
        let engine = open(&case.dir, 1, ExpertsAt::Device);
        let (tokens, n_before) = (&case.tokens[..8], 5);
        let expected = feed_all(&mut engine.session(8).unwrap(), tokens);
        let mut sessions = [engine.session(8).unwrap(), engine.session(8).unwrap()];
        for (token, row) in tokens.iter().zip(&expected) {
            for session in &mut sessions {
                assert!(session.feed_last(&[*token]).unwrap() == *row, "{name}: in turn");
            }
        }
        let [mut stopped, _] = sessions;
        for n_layers in [1, 2] {
            stopped.clear();
            assert!(feed_all(&mut stopped, &tokens[..n_before]) == expected[..n_before], "{name}");
            let watch = &mut |progress: StepProgress| match progress.n_layers_done == n_layers {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            };
            let fed = stopped.feed(&tokens[n_before..], Wanted::All, watch, &mut |_, _| Ok(()));
            assert!(matches!(fed, Err(Error::Cancelled)), "{name}: {fed:?}");
            let rest = feed_all(&mut stopped, &tokens[n_before..]);
            assert!(rest == expected[n_before..], "{name}: after {n_layers} layers");
        }
    }
}

/// Its row and the next one were recorded; no session owns them afterwards.
#[test]
fn a_session_dropped_during_a_step_leaves_nothing_behind() {
    needs_gpu!();
    for experts in [ExpertsAt::Device, ExpertsAt::FilesAndDevice(10, 4)] {
        for (name, n_before) in CASES.into_iter().flat_map(|it| [(it, 0), (it, 3)]) {
            let case = GoldenCase::load(name);
            let engine = open(&case.dir, 1, experts);
            let tokens = &case.tokens[..6];
            let expected = feed_all(&mut engine.session(8).unwrap(), tokens);
            let mut other = engine.session(8).unwrap();
            feed_all(&mut other, &tokens[..4]);
            let mut going = engine.session(8).unwrap();
            for token in &tokens[..n_before] {
                feed_all(&mut going, &[*token]);
            }
            let stop = &mut |_| ControlFlow::Break(());
            let fed = going.feed(&tokens[n_before..], Wanted::All, stop, &mut |_, _| Ok(()));
            assert!(matches!(fed, Err(Error::Cancelled)), "{name}: {fed:?}");
            drop(going);
            // Something comes back from the device before the next step, and then the step.
            other.save_state(&mut Vec::new()).unwrap();
            assert!(feed_all(&mut other, &tokens[4..]) == expected[4..], "{name}, {experts:?}");
        }
    }
}

#[test]
fn a_saved_session_goes_on_elsewhere() {
    needs_gpu!();
    for name in CASES {
        let (engine, tokens) = engine_of(name, ExpertsAt::Device);
        let (first, second) = tokens.split_at(tokens.len() / 2);
        let mut session = engine.session(64).unwrap();
        feed_all(&mut session, first);
        let mut saved = Vec::new();
        session.save_state(&mut saved).unwrap();
        let expected = feed_all(&mut session, second);
        let (engine, _) = engine_of(name, ExpertsAt::Host);
        let mut other = engine.session(50).unwrap();
        other.load_state(&mut &saved[..]).unwrap();
        assert!(feed_all(&mut other, second) == expected, "{name}: saved and loaded");
    }
}
