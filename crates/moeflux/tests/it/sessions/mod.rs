//! Sessions on the CPU backend, bit for bit: shared steps, rewinding, saved states, refusals.

mod failures;
mod parts;
mod scripts;
mod steps;

use std::ops::ControlFlow;

use moeflux::provider::backend::Arithmetic;
use moeflux::provider::config::BackendKind;
use moeflux::provider::engine::{Engine, EngineSpec};
use moeflux::provider::error::Error;
use moeflux::provider::forward::Logits;
use moeflux::provider::ids::TokenId;
use moeflux::provider::session::{Feed, StepOutput, Wanted, step};
use moeflux_testing::cases::{GoldenCase, feed_all};

use crate::support::{open, open_as};

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
    let tokens = case.tokens[..case.tokens.len().min(60)].to_vec();
    (open(&case.dir, BackendKind::Cpu, 32), tokens)
}

#[test]
fn company_changes_nothing() {
    for name in CASES {
        let (engine, tokens) = engine_of(name);
        let (first, second) = tokens.split_at(tokens.len() / 3);
        let alone = |tokens: &[TokenId]| feed_all(&mut engine.session(64).unwrap(), tokens);
        let (first_alone, second_alone) = (alone(first), alone(second));

        let mut sessions = [engine.session(64).unwrap(), engine.session(64).unwrap()];
        let [one, two] = &mut sessions;
        let mut rows = [Vec::new(), Vec::new()];
        let mut output = StepOutput::default();
        let none: &[TokenId] = &[];
        let pairs = 0..second.len().div_ceil(16);
        for (first, second) in pairs.map(|at| (first.chunks(16).nth(at), second.chunks(16).nth(at)))
        {
            let feed = |session, tokens: Option<_>| {
                let wanted = if tokens.is_some() { Wanted::All } else { Wanted::None };
                Feed::prompt(session, tokens.unwrap_or(none)).wanting(wanted)
            };
            let feeds = &mut [feed(&mut *one, first), feed(&mut *two, second)];
            step(feeds, &mut output).unwrap();
            for (of, logits) in output.iter() {
                let Logits::All(row) = logits else { panic!("all were asked for") };
                rows[of.feed_idx].push(row.to_vec());
            }
        }
        assert!(rows == [first_alone, second_alone], "{name}");
    }
}

#[test]
fn sessions_may_run_on_threads_of_their_own() {
    let (engine, tokens) = engine_of("qwen3_next-bf16");
    let alone = feed_all(&mut engine.session(64).unwrap(), &tokens);
    std::thread::scope(|scope| {
        let run = || {
            let mut session = engine.session(64).unwrap();
            tokens.iter().map(|&token| session.feed_last(&[token]).unwrap()).collect::<Vec<_>>()
        };
        let workers = [scope.spawn(run), scope.spawn(run), scope.spawn(run)];
        for worker in workers {
            assert!(worker.join().unwrap() == alone);
        }
    });
}

#[test]
fn two_engines_live_in_one_process() {
    let (one, tokens_one) = engine_of("qwen3_next-bf16");
    let (two, tokens_two) = engine_of("deepseek_v3-bf16");
    let expected_two = feed_all(&mut two.session(64).unwrap(), &tokens_two);
    let mut session_one = one.session(64).unwrap();
    let mut session_two = two.session(64).unwrap();
    session_one.feed_last(&tokens_one).unwrap();
    assert!(feed_all(&mut session_two, &tokens_two) == expected_two);
    let feeds = &mut [
        Feed::answer(&mut session_one, &tokens_one[0]),
        Feed::answer(&mut session_two, &tokens_two[0]),
    ];
    assert!(matches!(step(feeds, &mut StepOutput::default()), Err(Error::Input(_))));
}

#[test]
fn a_session_after_a_dropped_one_is_fresh() {
    for name in CASES {
        let (engine, tokens) = engine_of(name);
        let first = feed_all(&mut engine.session(64).unwrap(), &tokens);
        let second = feed_all(&mut engine.session(64).unwrap(), &tokens);
        assert!(first == second, "{name}");
    }
}

#[test]
fn clear_forgets_everything() {
    for name in CASES {
        let (engine, tokens) = engine_of(name);
        let mut session = engine.session(64).unwrap();
        let first = feed_all(&mut session, &tokens);
        session.clear();
        assert!(session.tokens().is_empty());
        assert!(feed_all(&mut session, &tokens) == first, "{name}");
    }
}

#[test]
fn restore_goes_back_exactly() {
    for name in CASES {
        let (engine, tokens) = engine_of(name);
        let mut session = engine.session(120).unwrap();
        session.feed_last(&tokens[..20]).unwrap();
        session.checkpoint(20).unwrap();
        let expected = feed_all(&mut session, &tokens[20..]);
        session.checkpoint(tokens.len()).unwrap();
        session.feed_last(&tokens[..5]).unwrap();
        session.restore(20).unwrap();
        assert_eq!(session.tokens(), &tokens[..20]);
        assert_eq!(session.checkpoints(), [20], "{name}: what lay after is dropped");
        assert!(feed_all(&mut session, &tokens[20..]) == expected, "{name}");
        session.forget(20);
        session.forget(20);
        let error = session.restore(20).unwrap_err();
        assert!(matches!(error, Error::NoCheckpoint { wanted: 20, .. }), "{error}");
    }
}

#[test]
fn checkpoints_are_capped_and_the_least_used_goes_first() {
    let (engine, tokens) = engine_of("qwen3_next-bf16");
    let mut session = engine.session(64).unwrap();
    session.set_checkpoints_max(3);
    for &token in &tokens[..5] {
        session.feed_last(&[token]).unwrap();
        session.checkpoint(session.tokens().len()).unwrap();
    }
    assert_eq!(session.checkpoints(), [3, 4, 5]);
    session.set_checkpoints_max(1);
    assert_eq!(session.checkpoints(), [5]);
}

#[test]
fn cutting_is_exact_or_refused() {
    let (engine, tokens) = engine_of("qwen3_moe-bf16");
    let mut session = engine.session(64).unwrap();
    let expected = feed_all(&mut session, &tokens);
    session.truncate(11).unwrap();
    assert!(feed_all(&mut session, &tokens[11..]) == expected[11..]);

    let (engine, tokens) = engine_of("qwen3_next-bf16");
    let mut session = engine.session(64).unwrap();
    session.feed_last(&tokens[..12]).unwrap();
    session.checkpoint(12).unwrap();
    let expected = feed_all(&mut session, &tokens[12..]);
    let error = session.truncate(11).unwrap_err();
    assert!(matches!(error, Error::CannotTruncateRecurrentState { wanted: 11, .. }), "{error}");
    assert_eq!(session.tokens(), tokens, "a refusal changes nothing");
    session.truncate(12).unwrap();
    assert!(feed_all(&mut session, &tokens[12..]) == expected);
    session.truncate(0).unwrap();
    assert!(session.tokens().is_empty() && session.checkpoints().is_empty());
}

#[test]
fn a_saved_state_goes_on_where_it_was() {
    for name in CASES {
        let (engine, tokens) = engine_of(name);
        let mut session = engine.session(64).unwrap();
        session.feed_last(&tokens[..30]).unwrap();
        let mut saved = Vec::new();
        session.save_state(&mut saved).unwrap();
        let expected = feed_all(&mut session, &tokens[30..]);
        drop(session);

        let case = GoldenCase::load(name);
        let reopened = open(&case.dir, BackendKind::Cpu, 7);
        let mut session = reopened.session(70).unwrap();
        session.feed_last(&tokens[..3]).unwrap();
        let error = session.load_state(&mut &saved[..]).unwrap_err();
        assert!(error.to_string().contains("cut it to 0"), "{error}");
        session.clear();
        session.load_state(&mut &saved[..]).unwrap();
        assert_eq!(session.tokens(), &tokens[..30]);
        let mut again = Vec::new();
        session.save_state(&mut again).unwrap();
        assert!(saved == again, "{name}: saving what was loaded gives the same bytes");
        assert!(feed_all(&mut session, &tokens[30..]) == expected, "{name}");
    }
}

#[test]
fn a_refused_load_leaves_the_session_as_it_was() {
    let (engine, tokens) = engine_of("qwen3_next-bf16");
    let mut session = engine.session(64).unwrap();
    session.feed_last(&tokens[..30]).unwrap();
    let mut saved = Vec::new();
    session.save_state(&mut saved).unwrap();
    let expected = feed_all(&mut session, &tokens[30..]);

    let mut refused: Vec<(String, Vec<u8>)> = Vec::new();
    for len in [0, 7, 8, 27, 28, 100, saved.len() / 2, saved.len() - 1] {
        refused.push((format!("cut to {len}"), saved[..len].to_vec()));
    }
    for at in [0, 9, 13, 21, 30, 60, saved.len() / 2, saved.len() - 1] {
        let mut damaged = saved.clone();
        damaged[at] ^= 0x40;
        refused.push((format!("bit flipped at {at}"), damaged));
    }
    let (other, other_tokens) = engine_of("qwen3_next-f32");
    let mut of_other = Vec::new();
    let mut other_session = other.session(64).unwrap();
    other_session.feed_last(&other_tokens[..20]).unwrap();
    other_session.save_state(&mut of_other).unwrap();
    refused.push(("another model".into(), of_other));

    // Nothing is known of an empty session, and everything of one that goes on.
    let mut session = engine.session(64).unwrap();
    session.feed_last(&tokens[..12]).unwrap();
    let mut whole = engine.session(64).unwrap();
    whole.feed_last(&tokens[..12]).unwrap();
    whole.checkpoint(12).unwrap();
    whole.feed_last(&tokens[12..30]).unwrap();
    let mut saved_part = Vec::new();
    whole.save_part(12..30, &mut saved_part).unwrap();
    for len in [0, 40, saved_part.len() / 2, saved_part.len() - 1] {
        refused.push((format!("part cut to {len}"), saved_part[..len].to_vec()));
    }
    for at in [saved_part.len() / 2, saved_part.len() - 9, saved_part.len() - 1] {
        let mut damaged = saved_part.clone();
        damaged[at] ^= 0x40;
        refused.push((format!("bit of a part flipped at {at}"), damaged));
    }
    for (what, bytes) in refused {
        let mut empty = engine.session(64).unwrap();
        let error = empty.load_state(&mut &bytes[..]).unwrap_err();
        let is_part = what.contains("part") && matches!(error, Error::Input(_));
        assert!(is_part || matches!(error, Error::SavedState(_)), "{what}: {error}");
        assert!(empty.tokens().is_empty(), "{what}");
        session.load_state(&mut &bytes[..]).unwrap_err();
        assert_eq!(session.tokens(), &tokens[..12], "{what}");
    }
    assert!(feed_all(&mut session, &tokens[12..14]).len() == 2);
    session.clear();
    session.feed_last(&tokens[..12]).unwrap();
    session.load_state(&mut &saved_part[..]).unwrap();
    let mut small = engine.session(29).unwrap();
    assert!(small.load_state(&mut &saved[..]).unwrap_err().to_string().contains("token 30"));
    assert!(feed_all(&mut session, &tokens[30..]) == expected);
}

#[test]
fn a_state_of_another_arithmetic_is_refused() {
    let (engine, tokens) = engine_of("qwen3_next-bf16");
    let dir = GoldenCase::load("qwen3_next-bf16").dir;
    let engines =
        [engine, open_as(&dir, Arithmetic::Int8, 7), open_as(&dir, Arithmetic::Int8Kv8, 7)];
    let saved = engines.each_ref().map(|engine| {
        let mut session = engine.session(64).unwrap();
        session.feed_last(&tokens[..20]).unwrap();
        let mut saved = Vec::new();
        session.save_state(&mut saved).unwrap();
        saved
    });
    // Half the bytes of a position, then keys and values of two heads of 16, which are filled up
    // to 32 codes, a scale and a bias; and as much beside them.
    let memory = engines.each_ref().map(Engine::memory);
    let [wide, halves, codes] = memory.map(|it| it.session_bytes_per_position);
    assert_eq!(halves * 2, wide);
    assert_eq!(codes, 2 * 2 * (32 + 4));
    for (memory_now, saved_now) in memory.iter().zip(&saved) {
        assert_eq!(memory_now.session_fixed_bytes, memory[0].session_fixed_bytes);
        let kept_bytes = 20 * memory_now.session_bytes_per_position;
        assert_eq!(saved_now.len() as u64 + 20 * wide, saved[0].len() as u64 + kept_bytes);
    }
    for (i, engine) in engines.iter().enumerate() {
        for (j, saved) in saved.iter().enumerate() {
            let mut session = engine.session(64).unwrap();
            if i == j {
                session.load_state(&mut &saved[..]).unwrap();
                assert_eq!(session.tokens(), &tokens[..20]);
            } else {
                let error = session.load_state(&mut &saved[..]).unwrap_err().to_string();
                assert!(error.contains("another arithmetic"), "{error}");
            }
        }
    }
}

/// Codes of keys that were rounded without being spread would be read as those of other keys.
#[test]
fn codes_of_the_first_version_are_refused() {
    let dir = GoldenCase::load("qwen3_next-bf16").dir;
    for (arithmetic, name, version) in
        [(Arithmetic::Int8, "int8\0\0\0\0", 1_u32), (Arithmetic::Int8Kv8, "int8-kv8", 2)]
    {
        let engine = open_as(&dir, arithmetic, 7);
        let mut session = engine.session(64).unwrap();
        session.feed_last(&[TokenId(1), TokenId(2)]).unwrap();
        let mut saved = Vec::new();
        session.save_state(&mut saved).unwrap();
        let name_at = saved.windows(8).position(|it| it == name.as_bytes()).unwrap();
        let (_, after) = saved.split_at_mut(name_at + 8);
        assert_eq!(after[..4], version.to_le_bytes(), "{name}");
        after[..4].copy_from_slice(&(3 - version).to_le_bytes());
        let error = session.load_state(&mut &saved[..]).unwrap_err().to_string();
        assert!(error.contains("whose results differ"), "{name}: {error}");
    }
}

#[test]
fn sessions_that_keep_codes_are_saved_and_cut() {
    for name in CASES {
        let case = GoldenCase::load(name);
        let tokens = &case.tokens[..case.tokens.len().min(60)];
        let engine = open_as(&case.dir, Arithmetic::Int8Kv8, 32);
        let mut session = engine.session(64).unwrap();
        session.feed_last(&tokens[..30]).unwrap();
        session.checkpoint(30).unwrap();
        let mut saved = Vec::new();
        session.save_state(&mut saved).unwrap();
        let expected = feed_all(&mut session, &tokens[30..]);
        session.restore(30).unwrap();
        assert!(feed_all(&mut session, &tokens[30..]) == expected, "{name}: restored");
        let mut other = engine.session(64).unwrap();
        other.load_state(&mut &saved[..]).unwrap();
        assert!(feed_all(&mut other, &tokens[30..]) == expected, "{name}: loaded");
        let mut whole = engine.session(64).unwrap();
        assert!(feed_all(&mut whole, tokens)[30..] == expected, "{name}: at once");
    }
}

#[test]
fn a_cancelled_prompt_leaves_whole_chunks() {
    for name in CASES {
        let (engine, tokens) = engine_of(name);
        let expected = feed_all(&mut engine.session(64).unwrap(), &tokens);
        let mut session = engine.session(64).unwrap();
        // Stops inside the second chunk of 32 rows, after its second layer.
        let mut stop = |progress: moeflux::provider::forward::StepProgress| {
            if progress.n_rows_done == 32 && progress.n_layers_done == 2 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let outcome = session.feed(&tokens, Wanted::None, &mut stop, &mut |_, _| Ok(()));
        assert!(matches!(outcome, Err(Error::Cancelled)));
        assert_eq!(session.tokens().len(), 32, "{name}");
        assert!(feed_all(&mut session, &tokens[32..]) == expected[32..], "{name}");
    }
}

#[test]
fn a_cancelled_short_step_is_taken_back() {
    let (engine, tokens) = engine_of("qwen3_next-bf16");
    let expected = feed_all(&mut engine.session(64).unwrap(), &tokens);
    let mut session = engine.session(64).unwrap();
    let mut stop = |_| ControlFlow::Break(());
    let outcome = session.feed(&tokens[..3], Wanted::None, &mut stop, &mut |_, _| Ok(()));
    assert!(matches!(outcome, Err(Error::Cancelled)));
    assert!(session.tokens().is_empty());
    assert!(feed_all(&mut session, &tokens) == expected);
}

#[test]
fn bad_feeds_change_nothing_and_state_the_reason() {
    let (engine, tokens) = engine_of("qwen3_next-bf16");
    let mut session = engine.session(10).unwrap();
    session.feed_last(&tokens[..8]).unwrap();
    let vocab = u32::try_from(engine.spec().vocab).unwrap();
    let mut check = |tokens: &[TokenId], expected: &str| {
        let error = session.feed_last(tokens).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(session.tokens().len(), 8);
    };
    check(&[], "the prompt is empty");
    check(&tokens[..3], "do not fit a context of 10");
    check(&[TokenId(0), TokenId(vocab)], &format!("token {vocab} at index 1"));
    assert!(engine.session(0).is_err());
    assert!(engine.session(usize::MAX).is_err());
}
