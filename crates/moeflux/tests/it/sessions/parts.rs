//! Parts of sessions that are written and loaded one by one.

use moeflux::provider::backend::Arithmetic;
use moeflux::provider::engine::Engine;
use moeflux::provider::error::Error;
use moeflux::provider::ids::TokenId;
use moeflux::provider::session::Session;
use moeflux::{LoadFailure, PartsLoad};
use moeflux_testing::cases::{GoldenCase, feed_all};

use super::{CASES, engine_of};
use crate::support::open_as;

/// What a store would hold of a session: positions in segments, and the state after them.
struct SavedParts {
    /// Positions and bytes of each segment.
    segments: Vec<(usize, Vec<u8>)>,
    /// Bytes of each recurrent layer.
    recurrent: Vec<Vec<u8>>,
}

impl SavedParts {
    fn of(session: &mut Session, cuts: &[usize]) -> Self {
        let mut segments = Vec::new();
        for ends in cuts.windows(2) {
            let mut bytes = Vec::new();
            session.write_positions(ends[0]..ends[1], &mut bytes).unwrap();
            segments.push((ends[1] - ends[0], bytes));
        }
        let layers = session.recurrent_layers().unwrap();
        let layer = |(idx, n_bytes): (usize, usize)| {
            let mut bytes = Vec::new();
            session.write_recurrent_layer(*cuts.last().unwrap(), idx, &mut bytes).unwrap();
            assert_eq!(bytes.len(), n_bytes);
            bytes
        };
        let recurrent = layers.into_iter().enumerate().map(layer).collect();
        Self { segments, recurrent }
    }

    fn load_recurrent(&self, load: &mut PartsLoad) {
        for bytes in &self.recurrent {
            load.recurrent_layer(&mut &bytes[..]).unwrap();
        }
    }

    fn load(&self, session: Session, tokens: &[TokenId]) -> Session {
        let mut load = session.load_parts(tokens.to_vec()).unwrap();
        for (n, bytes) in &self.segments {
            load.positions(*n, &mut &bytes[..]).unwrap();
        }
        self.load_recurrent(&mut load);
        load.finish().unwrap()
    }
}

fn engines() -> impl Iterator<Item = (String, Engine, Vec<TokenId>)> {
    CASES.into_iter().flat_map(|name| {
        let (engine, tokens) = engine_of(name);
        let dir = GoldenCase::load(name).dir;
        let of = |engine, how| (format!("{name} {how}"), engine, tokens.clone());
        [of(engine, "f32"), of(open_as(&dir, Arithmetic::Int8Kv8, 32), "int8-kv8")]
    })
}

#[test]
fn a_session_of_loaded_parts_goes_on_as_the_saved_one() {
    for (name, engine, tokens) in engines() {
        let mut session = engine.session(64).unwrap();
        session.feed_last(&tokens[..17]).unwrap();
        session.checkpoint(17).unwrap();
        session.feed_last(&tokens[17..30]).unwrap();
        let at_checkpoint = SavedParts::of(&mut session, &[0, 3, 16, 17]);
        let at_end = SavedParts::of(&mut session, &[0, 17, 29, 30]);
        let rest = SavedParts::of(&mut session, &[17, 30]);
        let expected = feed_all(&mut session, &tokens[30..]);

        let mut loaded = at_end.load(engine.session(64).unwrap(), &tokens[..30]);
        assert_eq!(loaded.tokens(), &tokens[..30], "{name}");
        assert!(feed_all(&mut loaded, &tokens[30..]) == expected, "{name}");

        // Read up to the checkpoint, and the other half loaded.
        let mut mixed = engine.session(64).unwrap();
        mixed.feed_last(&tokens[..17]).unwrap();
        let mut mixed = rest.load(mixed, &tokens[17..30]);
        assert!(feed_all(&mut mixed, &tokens[30..]) == expected, "{name}");

        // Loaded up to the checkpoint, and the other half read.
        loaded.clear();
        let mut loaded = at_checkpoint.load(loaded, &tokens[..17]);
        loaded.feed_last(&tokens[17..30]).unwrap();
        assert!(feed_all(&mut loaded, &tokens[30..]) == expected, "{name}");
    }
}

#[test]
fn a_load_that_fails_or_stops_leaves_the_session_as_it_was() {
    for (name, engine, tokens) in engines() {
        let mut session = engine.session(64).unwrap();
        session.feed_last(&tokens[..30]).unwrap();
        let saved = SavedParts::of(&mut session, &[12, 20, 30]);
        session.clear();
        session.feed_last(&tokens[..12]).unwrap();

        // Stopped after each part.
        let rest = || tokens[12..30].to_vec();
        let mut load = session.load_parts(rest()).unwrap();
        let error = load.positions(19, &mut &[][..]).unwrap_err();
        assert!(matches!(error, Error::Input(_)), "{name}: {error}");
        load.positions(8, &mut &saved.segments[0].1[..]).unwrap();
        let mut load = load.give_up().load_parts(rest()).unwrap();
        load.positions(8, &mut &saved.segments[0].1[..]).unwrap();
        let short = &saved.segments[1].1[..saved.segments[1].1.len() - 1];
        let error = load.positions(10, &mut &short[..]).unwrap_err();
        assert!(matches!(error, Error::SavedState(_)), "{name}: {error}");
        let LoadFailure { session, error } = *load.finish().unwrap_err();
        assert!(matches!(error, Error::Input(_)), "{name}: {error}");
        let mut load = session.load_parts(rest()).unwrap();
        load.positions(8, &mut &saved.segments[0].1[..]).unwrap();
        load.positions(10, &mut &saved.segments[1].1[..]).unwrap();
        saved.load_recurrent(&mut load);
        let error = load.recurrent_layer(&mut &[0; 64][..]).unwrap_err();
        assert!(matches!(error, Error::Input(_)), "there is none: {name}: {error}");
        let mut session = load.give_up();
        assert_eq!(session.tokens(), &tokens[..12], "{name}");

        let mut fresh = engine.session(64).unwrap();
        fresh.feed_last(&tokens[..12]).unwrap();
        let expected = feed_all(&mut fresh, &tokens[12..]);
        assert!(feed_all(&mut session, &tokens[12..]) == expected, "{name}");
    }
}

#[test]
fn parts_that_a_session_lacks_are_refused() {
    let (engine, tokens) = engine_of("qwen3_next-bf16");
    let mut session = engine.session(40).unwrap();
    session.feed_last(&tokens[..20]).unwrap();
    let mut out = Vec::new();
    let error = session.write_positions(15..21, &mut out).unwrap_err().to_string();
    assert!(error.contains("positions 15 to 21 of a session of 20 tokens"), "{error}");
    let error = session.write_recurrent_layer(19, 0, &mut out).unwrap_err();
    assert!(matches!(error, Error::NoCheckpoint { wanted: 19, .. }), "{error}");
    let n_layers = session.recurrent_layers().unwrap().len();
    let error = session.write_recurrent_layer(20, n_layers, &mut out).unwrap_err();
    assert!(matches!(error, Error::Input(_)), "{error}");
    assert!(out.is_empty());
    let failure = session.load_parts(tokens[..21].to_vec()).unwrap_err();
    let LoadFailure { mut session, error } = *failure;
    assert!(matches!(error, Error::Input(_)), "{error}");

    // Without the state of its recurrent layers a session cannot go on.
    session.write_positions(0..20, &mut out).unwrap();
    let mut load = engine.session(40).unwrap().load_parts(tokens[..20].to_vec()).unwrap();
    load.positions(20, &mut &out[..]).unwrap();
    let LoadFailure { session: other, error } = *load.finish().unwrap_err();
    assert!(error.to_string().contains("recurrent"), "{error}");
    assert!(other.tokens().is_empty());
}

#[test]
fn identities_differ_by_model_and_arithmetic() {
    let [one, same, other] = ["qwen3_next-bf16", "qwen3_next-bf16", "qwen3_next-f32"]
        .map(|name| engine_of(name).0.state_identity());
    let dir = GoldenCase::load("qwen3_next-bf16").dir;
    let [int8, kv8] = [Arithmetic::Int8, Arithmetic::Int8Kv8]
        .map(|arithmetic| open_as(&dir, arithmetic, 8).state_identity());
    assert_eq!(one, same);
    for (i, a) in [&one, &other, &int8, &kv8].into_iter().enumerate() {
        for (j, b) in [&one, &other, &int8, &kv8].into_iter().enumerate() {
            assert_eq!(i == j, a == b, "{i} {j}");
        }
    }
}
