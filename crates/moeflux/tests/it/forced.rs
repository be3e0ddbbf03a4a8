//! Answers that take the tokens forced by a mask at once.

use std::ops::ControlFlow;

use moeflux::provider::config::BackendKind;
use moeflux::provider::engine::{Engine, EngineSpec};
use moeflux::provider::generate::{Event, Finish, Generation};
use moeflux::provider::ids::TokenId;
use moeflux::provider::sample::{LogitMask, Sampler, SamplerConfig};
use moeflux::provider::text::{EndTokens, StopStrings, Tokenizer, byte_tokenizer_json};
use moeflux_testing::cases::golden_dir;
use moeflux_testing::temp_dir::TempDir;

use crate::support::open;

const PROMPT: [TokenId; 5] = [TokenId(72), TokenId(101), TokenId(108), TokenId(108), TokenId(111)];

/// One of two letters, equally likely, then a run of others, and so on.
struct Runs {
    run: &'static [u8],
    n_heard: usize,
    tells: bool,
}

impl Runs {
    /// How much of the run is left; 0 before a letter.
    fn rest(&self) -> &'static [u8] {
        match self.n_heard % (self.run.len() + 1) {
            0 => &[],
            at => &self.run[at - 1..],
        }
    }
}

impl LogitMask for Runs {
    fn apply(&mut self, logits: &mut [f32]) {
        logits.fill(f32::NEG_INFINITY);
        match self.rest().first() {
            Some(only) => logits[usize::from(*only)] = 0.0,
            None => logits[usize::from(b'A')..=usize::from(b'B')].fill(0.0),
        }
    }

    fn accept(&mut self, _: TokenId) {
        self.n_heard += 1;
    }

    fn forced(&mut self, forced: &mut Vec<TokenId>) {
        if self.tells {
            forced.extend(self.rest().iter().map(|byte| TokenId(u32::from(*byte))));
        }
    }
}

/// The end of an answer, its text, the events of its tokens, and the logits after all of them if
/// the session has room for these.
#[derive(Debug, PartialEq)]
struct Answer {
    finish: Finish,
    text: String,
    tokens: Vec<(TokenId, Option<f32>)>,
    logits: Option<Vec<f32>>,
}

#[derive(Clone, Copy)]
struct Asked {
    run: &'static [u8],
    stop: &'static str,
    end: Option<u8>,
    n_tokens_max: usize,
    context: usize,
}

fn answer(engine: &Engine, asked: Asked, sampling: &SamplerConfig, tells: bool) -> Answer {
    let (dir, vocab) = (TempDir::new(), engine.spec().vocab);
    let json = byte_tokenizer_json(256, &[]).to_string();
    std::fs::write(dir.path().join("tokenizer.json"), json).unwrap();
    let tokenizer = Tokenizer::open(dir.path(), vocab).unwrap();
    let end_tokens =
        EndTokens::new(asked.end.map(|byte| TokenId(byte.into())).into_iter().collect());
    let sampler = Sampler::new(sampling.clone(), vocab).unwrap();
    let mut session = engine.session(asked.context).unwrap();
    let stops = StopStrings::new(vec![asked.stop.to_owned()]).unwrap();
    let generation = Generation::new(sampler, &tokenizer, &end_tokens, asked.n_tokens_max)
        .with_mask(Runs { run: asked.run, n_heard: 0, tells })
        .with_stops(stops);
    let (mut text, mut tokens) = (String::new(), Vec::new());
    let finish = generation.run(&mut session, &PROMPT, &mut |event| {
        match event {
            Event::Token { token, logprob, .. } => tokens.push((token, logprob)),
            Event::Text(piece) => text.push_str(piece),
            _ => {}
        }
        ControlFlow::Continue(())
    });
    let told = PROMPT.into_iter().chain(tokens.iter().map(|it| it.0)).collect::<Vec<_>>();
    let n_held = session.tokens().len();
    assert_eq!(session.tokens(), &told[..n_held]);
    // If forced tokens came one by one, no token remains to be fed after an end token.
    let has_room = told.len() <= asked.context && asked.end.is_none();
    let logits = has_room.then(|| session.feed_last(&told[n_held..]).unwrap());
    Answer { finish: finish.unwrap(), text, tokens, logits }
}

#[test]
fn forced_tokens_change_nothing_but_the_steps() {
    let engine = open(&golden_dir().join("qwen3_next-f32"), BackendKind::Cpu, 4);
    let asked = Asked { run: b"one two", stop: "never", end: None, n_tokens_max: 40, context: 64 };
    let long = b"a run that is longer than one step of answers takes";
    for asked in [
        asked,
        Asked { n_tokens_max: 13, ..asked },
        Asked { stop: "wo", ..asked },
        Asked { stop: "oA", ..asked },
        Asked { end: Some(b'w'), ..asked },
        Asked { context: 20, ..asked },
        Asked { run: long, n_tokens_max: 100, context: 200, ..asked },
    ] {
        for n_logprobs in [None, Some(2)] {
            let mut sampling = SamplerConfig::greedy();
            sampling.n_logprobs = n_logprobs;
            let expected = answer(&engine, asked, &sampling, false);
            let found = answer(&engine, asked, &sampling, true);
            assert_eq!(found, expected, "at most {} tokens", asked.n_tokens_max);
            assert!(found.tokens.len() > asked.run.len().min(4));
        }
    }
}

#[test]
fn forced_tokens_draw_no_random_number() {
    let engine = open(&golden_dir().join("qwen3_moe-f32"), BackendKind::Cpu, 4);
    let letters = |run: &'static [u8], n_logprobs| {
        let n_tokens_max = 12 * (run.len() + 1);
        let asked = Asked { run, stop: "never", end: None, n_tokens_max, context: 256 };
        let mut sampling = SamplerConfig::greedy();
        (sampling.temperature, sampling.seed, sampling.n_logprobs) = (1.0, 7, n_logprobs);
        let tokens = answer(&engine, asked, &sampling, true).tokens;
        tokens.iter().step_by(run.len() + 1).map(|it| it.0.0).collect::<Vec<_>>()
    };
    let expected = letters(b"", None);
    assert!(expected.contains(&65) && expected.contains(&66));
    for run in [&b"x"[..], b"xyz"] {
        for n_logprobs in [None, Some(0)] {
            assert_eq!(letters(run, n_logprobs), expected);
        }
    }
}
