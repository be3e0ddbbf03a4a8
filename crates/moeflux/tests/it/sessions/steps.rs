//! Steps of many feeds on the CPU backend, bit for bit: other feeds, pauses between layers,
//! cancelled and failed feeds, checkpoints inside a step.

use std::sync::atomic::AtomicBool;

use moeflux::provider::backend::Arithmetic;
use moeflux::provider::config::{BackendKind, EngineConfig, StreamingConfig};
use moeflux::provider::engine::{Engine, EngineSpec};
use moeflux::provider::error::Error;
use moeflux::provider::forward::Logits;
use moeflux::provider::ids::{ExpertIdx, TokenId};
use moeflux::provider::model::{Headers, Model};
use moeflux::provider::session::{Feed, Session, StepOutput, StepUnderWay, Wanted, step};
use moeflux_testing::cases::{GoldenCase, feed_all, golden_dir};
use moeflux_testing::temp_dir::TempDir;

use crate::packing::{AS_IT_IS, flip, pack};
use crate::support::open;

/// Cases with recurrent layers, one of them with several streams, rows of n-grams and chosen blocks
/// of positions, one with plain attention, one with latents, one with windows and sinks, one whose
/// layers share chosen positions.
const CASES: [&str; 6] = [
    "qwen3_next-bf16",
    "qwen4_exp-bf16-sparse",
    "qwen3_moe-bf16",
    "deepseek_v3-bf16",
    "gguf-gpt-oss",
    "glm_moe_dsa-bf16-sparse",
];

fn engine_of(name: &str) -> (Engine, Vec<TokenId>) {
    let case = GoldenCase::load(name);
    (open(&case.dir, BackendKind::Cpu, 32), case.tokens[..60].to_vec())
}

fn rows_of(output: &StepOutput, feed_idx: usize) -> Vec<Vec<f32>> {
    let rows = output.iter().filter(|(of, _)| of.feed_idx == feed_idx);
    let all = |logits: Logits<'_>| match logits {
        Logits::All(row) => row.to_vec(),
        Logits::Best(_) => panic!("all were asked for"),
    };
    rows.map(|(_, logits)| all(logits)).collect()
}

#[test]
fn answers_are_computed_beside_a_step_that_waits() {
    for name in CASES {
        let (engine, tokens) = engine_of(name);
        let n_layers = engine.spec().layers.len();
        let expected = feed_all(&mut engine.session(64).unwrap(), &tokens);
        for n_waits in 1..=n_layers {
            let mut sessions: Vec<Session> = (0..3).map(|_| engine.session(64).unwrap()).collect();
            let [long, one, two] = &mut sessions[..] else { unreachable!("three sessions") };
            one.feed_last(&tokens[..9]).unwrap();
            two.feed_last(&tokens[..20]).unwrap();
            let mut feeds = [Feed::prompt(long, &tokens[..30]).wanting(Wanted::All)];
            let mut waiting = StepUnderWay::begin(&mut feeds).unwrap();
            let mut output = StepOutput::default();
            let mut n_answers = 0;
            for n_layers_done in 1.. {
                let has_more = waiting.advance().unwrap();
                assert_eq!(waiting.progress().n_layers_done, n_layers_done);
                // Several answers in a row, and none.
                for _ in 0..n_layers_done % (n_waits + 1) {
                    let (at_one, at_two) = (9 + n_answers, 20 + n_answers);
                    let answers = &mut [
                        Feed::answer(one, &tokens[at_one]),
                        Feed::answer(two, &tokens[at_two]),
                    ];
                    step(answers, &mut output).unwrap();
                    assert!(rows_of(&output, 0) == expected[at_one..=at_one], "{name}");
                    assert!(rows_of(&output, 1) == expected[at_two..=at_two], "{name}");
                    n_answers += 1;
                }
                if !has_more {
                    break;
                }
            }
            assert!(n_answers > 0);
            let mut logits = StepOutput::default();
            while waiting.next_logits(&mut logits).unwrap() {}
            waiting.commit().unwrap();
            assert!(rows_of(&logits, 0) == expected[..30], "{name}, {n_waits} waits");
            assert!(feed_all(long, &tokens[30..]) == expected[30..], "{name}");
        }
    }
}

#[test]
fn a_thread_does_not_wait_for_its_own_step() {
    let (engine, tokens) = engine_of("qwen3_next-bf16");
    let (mut one, mut two) = (engine.session(64).unwrap(), engine.session(64).unwrap());
    let mut feeds = [Feed::prompt(&mut one, &tokens[..20])];
    let waiting = StepUnderWay::begin(&mut feeds).unwrap();
    let error = two.feed_last(&tokens[..5]).unwrap_err();
    assert!(
        matches!(error, Error::Input(_)) && error.to_string().contains("a step in progress"),
        "{error}"
    );
    // Answers that are held between layers themselves would be computed in the same place.
    let error =
        StepUnderWay::begin(&mut [Feed::answer(&mut two, &tokens[0])]).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("a step in progress"), "{error}");
    step(&mut [Feed::answer(&mut two, &tokens[0])], &mut StepOutput::default()).unwrap();
    two.clear();
    // Sessions may come and go meanwhile.
    drop(engine.session(64).unwrap());
    drop(waiting);
    two.feed_last(&tokens[..5]).unwrap();
    assert!(one.tokens().is_empty());
}

#[test]
fn a_cancelled_feed_leaves_the_others() {
    for name in CASES {
        let (engine, tokens) = engine_of(name);
        let expected = feed_all(&mut engine.session(64).unwrap(), &tokens);
        for (n_long, n_layers_before) in [(20, 0), (20, 1), (2, 1)] {
            let (mut long, mut short) = (engine.session(64).unwrap(), engine.session(64).unwrap());
            short.feed_last(&tokens[..7]).unwrap();
            let flag = AtomicBool::new(false);
            let prompt = Feed::prompt(&mut long, &tokens[..n_long]).cancelled_by(Some(&flag));
            let mut feeds = [prompt, Feed::answer(&mut short, &tokens[7])];
            let mut step = StepUnderWay::begin(&mut feeds).unwrap();
            for _ in 0..n_layers_before {
                step.advance().unwrap();
            }
            flag.store(true, std::sync::atomic::Ordering::Relaxed);
            while step.advance().unwrap() {}
            let mut output = StepOutput::default();
            while step.next_logits(&mut output).unwrap() {}
            step.commit().unwrap();
            let cancelled = feeds[0].outcome();
            assert!(feeds[1].outcome().is_ok() && rows_of(&output, 1) == expected[7..8], "{name}");
            let n_fed = if cancelled.is_ok() { n_long } else { 0 };
            assert!(matches!(cancelled, Ok(()) | Err(Error::Cancelled)));
            assert!(n_long < 20 || n_fed == 0, "a long prompt is not taken along");
            assert_eq!(long.tokens().len(), n_fed);
            assert!(feed_all(&mut long, &tokens[n_fed..30]) == expected[n_fed..30], "{name}");
        }
    }
}

#[test]
fn checkpoints_inside_a_step_are_as_those_at_its_end() {
    for name in CASES {
        let (engine, tokens) = engine_of(name);
        let expected = feed_all(&mut engine.session(64).unwrap(), &tokens);
        let mut session = engine.session(64).unwrap();
        session.feed_last(&tokens[..3]).unwrap();
        let marks = [4, 11, 30, 33];
        let feed = Feed::prompt(&mut session, &tokens[3..33]).checkpoints(&marks);
        let mut feeds = [feed.wanting(Wanted::All)];
        let mut output = StepOutput::default();
        step(&mut feeds, &mut output).unwrap();
        feeds[0].outcome().unwrap();
        assert!(rows_of(&output, 0) == expected[3..33], "{name}");
        assert_eq!(session.checkpoints(), marks);
        for mark in marks.into_iter().rev() {
            session.restore(mark).unwrap();
            assert!(
                feed_all(&mut session, &tokens[mark..40]) == expected[mark..40],
                "{name} {mark}"
            );
        }
        for marks in [&[3][..], &[34], &[9, 9], &[12, 8]] {
            session.truncate(4).unwrap();
            let feed = Feed::prompt(&mut session, &tokens[4..33]).checkpoints(marks);
            let error = step(&mut [feed], &mut output).unwrap_err();
            assert!(matches!(error, Error::Input(_)), "{marks:?}: {error}");
        }
    }
}

/// The failure to read an expert is reported only to the sessions that chose it.
#[test]
fn a_failed_expert_fails_only_sessions_that_chose_it() {
    let name = "mlx-qwen3_5_moe-q4-g64-bf16";
    let packed = TempDir::new();
    pack(&golden_dir().join(name), packed.path(), &AS_IT_IS).unwrap();
    let (blueprint, checkpoint) = Model::open(packed.path()).unwrap().into_parts();
    let tokens = GoldenCase::load(name).tokens;
    let config = EngineConfig {
        streaming: StreamingConfig { n_slots_max: Some(12), ..StreamingConfig::default() },
        ..crate::support::config(BackendKind::Cpu, Arithmetic::Int8, (32, 2))
    };
    let open = || {
        Engine::load(Model::open(packed.path()).unwrap(), &config, &mut |_| {
            std::ops::ControlFlow::Continue(())
        })
    };
    // Answers and a prompt, of different texts.
    let starts = [0, 5, 11, 17, 23, 29];
    let run = |engine: &Engine| {
        let mut sessions: Vec<_> = starts.iter().map(|_| engine.session(40).unwrap()).collect();
        let mut feeds: Vec<_> = sessions
            .iter_mut()
            .zip(starts)
            .map(|(session, start)| match start {
                0 => Feed::prompt(session, &tokens[..3]).wanting(Wanted::Last),
                _ => Feed::answer(session, &tokens[start]),
            })
            .collect();
        let mut output = StepOutput::default();
        step(&mut feeds, &mut output).unwrap();
        let rows: Vec<_> = (0..starts.len()).map(|feed_idx| rows_of(&output, feed_idx)).collect();
        let outcomes: Vec<_> = feeds.iter_mut().map(Feed::outcome).collect();
        (rows, outcomes, sessions)
    };
    let (expected, ..) = run(&open().unwrap());
    let (mut n_failed, mut n_spared) = (0, 0);
    for (bank, expert) in blueprint.manifest.banks.iter().flat_map(|bank| {
        (0..bank.n_experts).step_by(3).map(move |expert| (bank, ExpertIdx(expert)))
    }) {
        let extent = bank.parts[0].extent(expert);
        let path = &checkpoint.files[extent.file_idx].path;
        flip(path, usize::try_from(extent.offset_bytes).unwrap());
        let engine = open().unwrap();
        let (rows, outcomes, sessions) = run(&engine);
        for (feed_idx, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                Ok(()) => {
                    n_spared += 1;
                    assert!(rows[feed_idx] == expected[feed_idx]);
                }
                Err(Error::Expert { layer, expert: failed, .. }) => {
                    n_failed += 1;
                    assert_eq!((layer, failed), (bank.layer.0, expert.0));
                    assert!(rows[feed_idx].is_empty() && sessions[feed_idx].tokens().is_empty());
                }
                Err(error) => panic!("{error}"),
            }
        }
        flip(path, usize::try_from(extent.offset_bytes).unwrap());
    }
    assert!(n_failed > 10 && n_spared > 10, "{n_failed} failed, {n_spared} did not");
}

/// Positions are stored in pieces of 1,024, which forks share until they write.
#[test]
fn forks_go_their_own_ways_across_pieces() {
    for name in CASES {
        let (engine, tokens) = engine_of(name);
        let text: Vec<TokenId> = tokens.iter().copied().cycle().take(1100).collect();
        let mut whole = engine.session(1200).unwrap();
        let expected = feed_all(&mut whole, &text);
        for n_shared in [1, 500, 1010, 1024, 1030] {
            let mut session = engine.session(1200).unwrap();
            session.feed_last(&text[..n_shared]).unwrap();
            let mut fork = session.fork().unwrap();
            // Each writes after the common past, in turn.
            let other: Vec<TokenId> = text[n_shared..].iter().rev().copied().take(40).collect();
            let other_rows = feed_all(&mut fork, &other);
            let n_more = text.len().min(n_shared + 40);
            let rows = feed_all(&mut session, &text[n_shared..n_more]);
            assert!(rows == expected[n_shared..n_more], "{name}, {n_shared} shared");
            let mut alone = engine.session(1200).unwrap();
            alone.feed_last(&text[..n_shared]).unwrap();
            drop(session);
            assert!(feed_all(&mut alone, &other) == other_rows, "{name}, {n_shared} shared");
            let mut saved = Vec::new();
            fork.save_state(&mut saved).unwrap();
            let mut restored = engine.session(1200).unwrap();
            restored.load_state(&mut &saved[..]).unwrap();
            let next = fork.feed_last(&text[..3]).unwrap();
            assert!(restored.feed_last(&text[..3]).unwrap() == next, "{name}, {n_shared} shared");
        }
    }
}

/// A fork begins at any position that the session can be cut to, which stays as it was.
#[test]
fn forks_begin_at_cut_points() {
    for name in CASES {
        let (engine, tokens) = engine_of(name);
        let expected = feed_all(&mut engine.session(64).unwrap(), &tokens);
        let mut session = engine.session(64).unwrap();
        let feed = Feed::prompt(&mut session, &tokens[..30]).checkpoints(&[7, 20]);
        step(&mut [feed], &mut StepOutput::default()).unwrap();
        let is_recurrent = ["qwen3_next", "qwen4_exp"].iter().any(|it| name.starts_with(it));
        for (len, marked) in [(0, 0), (6, 0), (7, 7), (19, 7), (29, 20), (30, 30), (99, 30)] {
            let cut = session.cut_point(len);
            assert_eq!(cut, if is_recurrent { marked } else { len.min(30) }, "{name}");
            let mut fork = session.fork_at(cut).unwrap();
            assert_eq!(fork.tokens(), &tokens[..cut]);
            assert!(feed_all(&mut fork, &tokens[cut..33]) == expected[cut..33], "{name}: {cut}");
        }
        if is_recurrent {
            let error = session.fork_at(8).unwrap_err();
            assert!(matches!(error, Error::NoCheckpoint { wanted: 8, .. }), "{error}");
        }
        session.fork_at(31).unwrap_err();
        assert!(feed_all(&mut session, &tokens[30..33]) == expected[30..33], "{name}");
    }
}
