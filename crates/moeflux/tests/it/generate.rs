//! Answers: their ends, their events, and the tokens that the session holds afterwards.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use moeflux::Generated;
use moeflux::provider::config::BackendKind;
use moeflux::provider::engine::Engine;
use moeflux::provider::forward::Logits;
use moeflux::provider::generate::{Event, Finish, Generation};
use moeflux::provider::ids::TokenId;
use moeflux::provider::sample::{LogitMask, Sampler, SamplerConfig};
use moeflux::provider::text::{EndTokens, StopStrings, Tokenizer, byte_tokenizer_json};
use moeflux_testing::cases::golden_dir;
use moeflux_testing::temp_dir::TempDir;

use crate::support::open;

/// Has 256 tokens: with a byte tokenizer, each is a byte.
const CASE: &str = "qwen3_moe-f32";

/// Each token's logits are these tokens' in turn, whatever the model thinks.
struct Script {
    tokens: Vec<u32>,
    n_done: usize,
}

/// Allows all, and no end before this number of tokens.
#[derive(Default)]
struct AtLeast {
    n_min: usize,
    heard: Vec<TokenId>,
}

impl LogitMask for AtLeast {
    fn apply(&mut self, _: &mut [f32]) {}

    fn accept(&mut self, token: TokenId) {
        self.heard.push(token);
    }

    fn may_end(&self) -> bool {
        self.heard.len() >= self.n_min
    }
}

impl LogitMask for Script {
    fn apply(&mut self, logits: &mut [f32]) {
        logits.fill(f32::NEG_INFINITY);
        let token = self.tokens[self.n_done % self.tokens.len()];
        logits[token as usize] = 0.0;
        self.n_done += 1;
    }
}

/// A model and a tokenizer for it.
struct Stage {
    engine: Engine,
    tokenizer: Tokenizer,
}

/// The settings of one answer.
struct Asked<'a> {
    script: Option<&'a [u8]>,
    sampling: SamplerConfig,
    stops: &'a [&'a str],
    ends: &'a [u32],
    n_tokens_max: usize,
    context: usize,
    /// Whether the flag is set when text comes.
    is_flagged: bool,
}

impl Default for Asked<'_> {
    fn default() -> Self {
        let sampling = SamplerConfig::greedy();
        Self {
            script: None,
            sampling,
            stops: &[],
            ends: &[],
            n_tokens_max: 8,
            context: 64,
            is_flagged: false,
        }
    }
}

/// The result of an answer.
#[derive(Debug)]
struct Heard {
    finish: Finish,
    text: String,
    tokens: Vec<TokenId>,
    events: Vec<&'static str>,
    held: Vec<TokenId>,
}

const PROMPT: [TokenId; 5] = [TokenId(72), TokenId(101), TokenId(108), TokenId(108), TokenId(111)];

impl Stage {
    fn new() -> Self {
        let dir = TempDir::new();
        dir.write("tokenizer.json", byte_tokenizer_json(256, &[]).to_string());
        let tokenizer = Tokenizer::open(dir.path(), 256).unwrap();
        let engine = open(&golden_dir().join(CASE), BackendKind::Cpu, 4);
        Self { engine, tokenizer }
    }

    fn run(&self, asked: &Asked<'_>) -> Heard {
        self.run_until(asked, |_| false)
    }

    /// Generates an answer until `is_enough` returns `true` for an event.
    fn run_until(&self, asked: &Asked<'_>, is_enough: impl Fn(&Event<'_>) -> bool) -> Heard {
        let mut session = self.engine.session(asked.context).unwrap();
        let sampler = Sampler::new(asked.sampling.clone(), 256).unwrap();
        let mut script = asked
            .script
            .map(|bytes| Script { tokens: bytes.iter().map(|&b| b.into()).collect(), n_done: 0 });
        let end_tokens = EndTokens::new(asked.ends.iter().copied().map(TokenId).collect());
        let stops = asked.stops.iter().map(|stop| (*stop).to_owned()).collect();
        let flag = AtomicBool::new(false);
        let mut generation =
            Generation::new(sampler, &self.tokenizer, &end_tokens, asked.n_tokens_max);
        if let Some(script) = &mut script {
            generation = generation.with_mask(script);
        }
        let generation =
            generation.with_stops(StopStrings::new(stops).unwrap()).cancelled_by(&flag);
        let (mut text, mut tokens, mut events) = (String::new(), Vec::new(), Vec::new());
        let finish = generation.run(&mut session, &PROMPT, &mut |event| {
            events.push(match event {
                Event::Reading(_) => "reading",
                Event::PromptRead => "read",
                Event::Token { token, .. } => {
                    tokens.push(token);
                    "token"
                }
                Event::Text(piece) => {
                    text.push_str(piece);
                    "text"
                }
                _ => "another",
            });
            // Set after a token that goes on, the flag ends the step that feeds it.
            if asked.is_flagged && matches!(event, Event::Text(_)) {
                flag.store(true, Ordering::Relaxed);
            }
            if is_enough(&event) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let held = session.tokens().to_vec();
        Heard { finish: finish.unwrap(), text, tokens, events, held }
    }
}

#[test]
fn an_answer_ends_at_its_length_and_the_session_holds_the_fed_tokens() {
    let heard = Stage::new().run(&Asked { script: Some(b"abc"), ..Asked::default() });
    assert_eq!((heard.finish, heard.text.as_str()), (Finish::Length, "abcabcab"));
    assert_eq!(heard.tokens.len(), 8);
    // The last token ends the answer: it is reported, and nothing is asked of the model after it.
    assert_eq!(heard.held, [&PROMPT[..], &heard.tokens[..7]].concat());
    assert_eq!(heard.events[0], "reading");
    assert_eq!(heard.events.iter().filter(|event| **event == "read").count(), 1);
}

#[test]
fn an_end_token_is_neither_text_nor_fed() {
    let asked = Asked { script: Some(b"ab."), ends: &[46], ..Asked::default() };
    let heard = Stage::new().run(&asked);
    assert_eq!((heard.finish, heard.text.as_str()), (Finish::EndToken, "ab"));
    assert_eq!(heard.held, [&PROMPT[..], &heard.tokens].concat());
}

#[test]
fn a_mask_receives_tokens_and_decides_when_the_answer_may_end() {
    let stage = Stage::new();
    for n_min in [0, 3, 5] {
        let mut session = stage.engine.session(64).unwrap();
        let sampler = Sampler::new(SamplerConfig::greedy(), 256).unwrap();
        let mut mask = AtLeast { n_min, ..AtLeast::default() };
        // All but the lowest tokens end the answer, and the model prefers one of those.
        let end_tokens = EndTokens::new((3..256).map(TokenId).collect());
        let generation = Generation::new(sampler, &stage.tokenizer, &end_tokens, 8);
        let mut tokens = Vec::new();
        let finish = generation.with_mask(&mut mask).run(&mut session, &PROMPT, &mut |event| {
            if let Event::Token { token, .. } = event {
                tokens.push(token);
            }
            ControlFlow::Continue(())
        });
        assert_eq!(finish.unwrap(), Finish::EndToken);
        assert!(tokens.len() >= n_min && mask.heard == tokens, "{tokens:?}");
    }
}

#[test]
fn a_mask_is_not_passed_by() {
    let stage = Stage::new();
    let session = stage.engine.session(8).unwrap();
    let sampler = Sampler::new(SamplerConfig::greedy(), 256).unwrap();
    let (mut mask, end_tokens) = (AtLeast::default(), EndTokens::new(Vec::new()));
    let mut generation =
        Generation::new(sampler, &stage.tokenizer, &end_tokens, 8).with_mask(&mut mask);
    assert_eq!(generation.n_best_needed(), None);
    let best = [(TokenId(1), 1.0)];
    assert!(generation.accept(Logits::Best(&best), &session).is_err());
}

#[test]
fn a_mask_that_fails_ends_the_answer_with_its_reason() {
    /// Allows nothing after its second token, or a token that it then cannot take.
    struct Failing {
        n_accepted: usize,
        fails_in: &'static str,
        failure: Option<String>,
    }
    impl LogitMask for Failing {
        fn apply(&mut self, logits: &mut [f32]) {
            if self.fails_in == "apply" && self.n_accepted == 2 {
                logits.fill(f32::NEG_INFINITY);
                self.failure = Some("no way on".to_owned());
            }
        }

        fn accept(&mut self, _: TokenId) {
            self.n_accepted += 1;
            if self.fails_in == "accept" && self.n_accepted == 2 {
                self.failure = Some("not this one".to_owned());
            }
        }

        fn failure(&self) -> Option<&str> {
            self.failure.as_deref()
        }
    }
    let stage = Stage::new();
    for (fails_in, expected) in [("apply", "no way on"), ("accept", "not this one")] {
        let mut mask = Failing { n_accepted: 0, fails_in, failure: None };
        let mut session = stage.engine.session(16).unwrap();
        let sampler = Sampler::new(SamplerConfig::greedy(), 256).unwrap();
        let end_tokens = EndTokens::new(Vec::new());
        let generation =
            Generation::new(sampler, &stage.tokenizer, &end_tokens, 8).with_mask(&mut mask);
        let error = generation.answer(&mut session, &PROMPT).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn a_stop_string_may_span_tokens() {
    let asked = Asked { script: Some(b"one two"), stops: &["e t"], ..Asked::default() };
    let heard = Stage::new().run(&asked);
    assert_eq!((heard.finish, heard.text.as_str()), (Finish::StopString, "on"));
    let asked = Asked { script: Some(b"one two"), stops: &["two!"], ..Asked::default() };
    let heard = Stage::new().run(&Asked { n_tokens_max: 7, ..asked });
    assert_eq!((heard.finish, heard.text.as_str()), (Finish::Length, "one two"));
}

#[test]
fn a_full_context_ends_it() {
    let asked =
        Asked { script: Some(b"abc"), context: 8, n_tokens_max: usize::MAX, ..Asked::default() };
    let heard = Stage::new().run(&asked);
    assert_eq!((heard.finish, heard.text.as_str()), (Finish::ContextFull, "abca"));
    assert_eq!(heard.held.len(), 8);
}

#[test]
fn an_answer_that_is_cut_inside_a_character_ends_before_it() {
    let asked = Asked { script: Some(b"x\xe2\x82"), n_tokens_max: 3, ..Asked::default() };
    let heard = Stage::new().run(&asked);
    assert_eq!((heard.finish, heard.text.as_str()), (Finish::Length, "x"));
    let asked = Asked { script: Some("€".as_bytes()), n_tokens_max: 3, ..Asked::default() };
    assert_eq!(Stage::new().run(&asked).text, "€");
}

#[test]
fn any_event_may_end_it() {
    let stage = Stage::new();
    let asked = Asked { script: Some(b"abc"), ..Asked::default() };
    let cancelled_at = |is_enough: fn(&Event<'_>) -> bool| {
        let heard = stage.run_until(&asked, is_enough);
        assert_eq!(heard.finish, Finish::Cancelled, "{heard:?}");
        heard
    };
    let heard = cancelled_at(|event| matches!(event, Event::Reading(_)));
    assert_eq!((heard.text.as_str(), heard.tokens.len()), ("", 0));
    let heard = cancelled_at(|event| matches!(event, Event::PromptRead));
    assert_eq!((heard.text.as_str(), heard.held.len()), ("", PROMPT.len()));
    // A token that was heard of has its text.
    let heard = cancelled_at(|event| matches!(event, Event::Token { token: TokenId(98), .. }));
    assert_eq!((heard.text.as_str(), heard.held.len()), ("ab", PROMPT.len() + 1));
    let heard = cancelled_at(|event| matches!(event, Event::Text("b")));
    assert_eq!((heard.text.as_str(), heard.tokens.len()), ("ab", 2));
    let heard = stage.run(&Asked { script: Some(b"abc"), is_flagged: true, ..Asked::default() });
    assert_eq!(heard.finish, Finish::Cancelled);
    assert_eq!((heard.text.as_str(), heard.tokens.len()), ("a", 1));
    assert_eq!(heard.held, PROMPT);
}

#[test]
fn the_flag_cancels_the_prompt_too() {
    let stage = Stage::new();
    let (flag, end_tokens) = (AtomicBool::new(true), EndTokens::new(Vec::new()));
    let generation = || {
        let sampler = Sampler::new(SamplerConfig::greedy(), 256).unwrap();
        Generation::new(sampler, &stage.tokenizer, &end_tokens, 4).cancelled_by(&flag)
    };
    let mut session = stage.engine.session(64).unwrap();
    let finish = generation().run(&mut session, &PROMPT, &mut |_| ControlFlow::Continue(()));
    assert_eq!(finish.unwrap(), Finish::Cancelled);
    let mut answer = generation().stream(&mut session, PROMPT.to_vec());
    let end = answer.next().unwrap().unwrap();
    assert!(matches!(end, Generated::End { finish: Finish::Cancelled, .. }), "{end:?}");
    assert!(answer.next().is_none());
    drop(answer);
    assert!(session.tokens().is_empty());
}

#[test]
fn held_back_text_is_returned_when_cancelled() {
    let asked = Asked { script: Some(b"abc"), stops: &["bcd"], ..Asked::default() };
    let is_c = |event: &Event<'_>| matches!(event, Event::Token { token: TokenId(99), .. });
    let heard = Stage::new().run_until(&asked, is_c);
    assert_eq!((heard.finish, heard.text.as_str()), (Finish::Cancelled, "abc"));
}

#[test]
fn penalties_count_tokens_of_prompt_and_answer() {
    let stage = Stage::new();
    let with = |presence_penalty| {
        let mut sampling = SamplerConfig::greedy();
        sampling.presence_penalty = presence_penalty;
        stage.run(&Asked { sampling, n_tokens_max: 40, ..Asked::default() }).tokens
    };
    let tokens = with(1e6);
    let mut seen = PROMPT.to_vec();
    for token in &tokens {
        assert!(!seen.contains(token), "{token:?} came twice: {tokens:?}");
        seen.push(*token);
    }
    assert_ne!(with(0.0), tokens);
}
