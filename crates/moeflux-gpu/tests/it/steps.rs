//! Steps that wait between two layers while answers are computed in the place of their rows.

use moeflux::provider::engine::EngineSpec;
use moeflux::provider::forward::Logits;
use moeflux::provider::session::{Feed, StepOutput, StepUnderWay, Wanted, step};
use moeflux_testing::cases::{Distance, GoldenCase, feed_all};
use moeflux_testing::needs_gpu;

use crate::support::{ExpertsAt, open};

const CASES: [&str; 2] = ["mlx-qwen3_5_moe-q4-g64-bf16", "deepseek_v3-bf16"];
const N_PROMPT: usize = 20;
const N_BEFORE: usize = 6;

fn rows_of(output: &StepOutput) -> Vec<Vec<f32>> {
    let all = |logits: Logits<'_>| match logits {
        Logits::All(row) => row.to_vec(),
        Logits::Best(_) => panic!("all were asked for"),
    };
    output.iter().map(|(_, logits)| all(logits)).collect()
}

/// The rows of a prompt and of the answers that come between its layers, or after it.
fn rows(case: &GoldenCase, experts: ExpertsAt, waits: bool) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let engine = open(&case.dir, 32, experts);
    let n_layers = engine.spec().layers.len();
    let (mut long, mut short) = (engine.session(40).unwrap(), engine.session(40).unwrap());
    short.feed_last(&case.tokens[..N_BEFORE]).unwrap();
    let mut answers = Vec::new();
    let mut answer = |n_done: usize| {
        let mut output = StepOutput::default();
        let token = case.tokens[N_BEFORE + n_done];
        step(&mut [Feed::answer(&mut short, &token)], &mut output).unwrap();
        answers.extend(rows_of(&output));
    };
    let mut feeds = [Feed::prompt(&mut long, &case.tokens[..N_PROMPT]).wanting(Wanted::All)];
    let mut output = StepOutput::default();
    let mut waiting = StepUnderWay::begin(&mut feeds).unwrap();
    for n_layers_done in 0..n_layers {
        waiting.advance().unwrap();
        if waits {
            answer(n_layers_done);
        }
    }
    while waiting.next_logits(&mut output).unwrap() {}
    waiting.commit().unwrap();
    if !waits {
        (0..n_layers).for_each(answer);
    }
    (rows_of(&output), answers)
}

#[test]
fn answers_are_computed_beside_a_step_that_waits() {
    needs_gpu!();
    for name in CASES {
        let case = GoldenCase::load(name);
        for experts in [ExpertsAt::Device, ExpertsAt::FilesAndDevice(10, 4)] {
            let expected = rows(&case, experts, false);
            assert!(expected.0.len() == N_PROMPT && !expected.1.is_empty());
            assert!(rows(&case, experts, true) == expected, "{name}, {experts:?}");
        }
    }
}

/// The recurrent state is copied at marks, and forks copy all of a session.
#[test]
fn forks_and_checkpoints_inside_a_step_go_on_where_they_were() {
    needs_gpu!();
    for name in CASES {
        let case = GoldenCase::load(name);
        let engine = open(&case.dir, 32, ExpertsAt::Device);
        let session = || engine.session(40).unwrap();
        let expected = feed_all(&mut session(), &case.tokens[..30]);
        let mut marked = session();
        let marks = [1, 6, 13];
        let feed = Feed::prompt(&mut marked, &case.tokens[..N_PROMPT]).checkpoints(&marks);
        let mut output = StepOutput::default();
        step(&mut [feed.wanting(Wanted::All)], &mut output).unwrap();
        let off = |rows: &[Vec<f32>], at| Distance::between(rows, at).beyond_f32_limits();
        assert_eq!(off(&rows_of(&output), &expected[..N_PROMPT]), None, "{name}");
        for mark in marks.into_iter().rev() {
            marked.restore(mark).unwrap();
            let mut fork = marked.fork().unwrap();
            fork.feed_last(&case.tokens[26..30]).unwrap();
            drop(fork);
            let mut fork = marked.fork().unwrap();
            let rows = feed_all(&mut marked, &case.tokens[mark..mark + 3]);
            assert_eq!(off(&rows, &expected[mark..mark + 3]), None, "{name}: from {mark}");
            assert!(feed_all(&mut fork, &case.tokens[mark..mark + 3]) == rows, "{name}");
        }
    }
}

/// The logits after the tokens of answers: of sessions that share steps, or one after the other.
fn answers(case: &GoldenCase, experts: ExpertsAt, shares: bool) -> Vec<Vec<f32>> {
    const BEFORE: [usize; 4] = [3, 17, 1, 9];
    let engine = open(&case.dir, 32, experts);
    let mut sessions = BEFORE.map(|n_before| {
        let mut session = engine.session(40).unwrap();
        session.feed_last(&case.tokens[..n_before]).unwrap();
        session
    });
    let mut output = StepOutput::default();
    let mut rows = vec![Vec::new(); BEFORE.len()];
    let tokens = BEFORE.map(|n_before| case.tokens[n_before]);
    let mut feeds: Vec<_> = sessions.iter_mut().zip(&tokens).collect();
    for (first, together) in feeds.chunks_mut(if shares { BEFORE.len() } else { 1 }).enumerate() {
        let mut feeds: Vec<_> =
            together.iter_mut().map(|(session, token)| Feed::answer(session, token)).collect();
        step(&mut feeds, &mut output).unwrap();
        for (row, logits) in rows[first..].iter_mut().zip(rows_of(&output)) {
            *row = logits;
        }
    }
    rows
}

#[test]
fn an_answer_has_the_same_bits_alone_and_in_company() {
    needs_gpu!();
    for name in CASES {
        let case = GoldenCase::load(name);
        for experts in [ExpertsAt::Device, ExpertsAt::FilesAndDevice(10, 4)] {
            let alone = answers(&case, experts, false);
            assert!(alone.iter().all(|row| !row.is_empty()));
            assert!(answers(&case, experts, true) == alone, "{name}, {experts:?}");
        }
    }
}
