//! Saved sessions: an accepted one is saved again as the same bytes and can be continued; a refused
//! one leaves the session unchanged.
//!
//! Input: a byte, then either an unmodified file or edits to a valid one. The byte chooses between
//! these, and for edits the model, the number of tokens in the file, whether the checksums are
//! corrected, and whether the session continues, which takes a hundred times as long. An edit has
//! three bytes: offset (little endian) and value; a shorter last one truncates the file. Every
//! second input is loaded into a session that holds a token.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;

use moeflux::provider::backend::Arithmetic;
use moeflux::provider::config::{BackendKind, EngineConfig, StreamingConfig};
use moeflux::provider::engine::{Engine, EngineSpec};
use moeflux::provider::ids::TokenId;
use moeflux::provider::model::Model;
use moeflux::provider::session::Session;
use twox_hash::XxHash3_64;

use crate::support::check_refusal;

/// Keys and values; latents; recurrent layers beside keys and values.
const MODELS: [&str; 3] = ["qwen3_moe-f32", "deepseek_v3_yarn-f32", "qwen3_next-f32"];
const CONTEXT: usize = 4;
const SUM_BYTES: usize = 8;

/// A session of a model, and files saved from it.
struct SessionFixture {
    session: Session,
    /// By number of tokens.
    files: Vec<SavedFile>,
    n_rows: u32,
}

struct SavedFile {
    bytes: Vec<u8>,
    /// The ends of the parts with a checksum, which is in their last bytes: the header, positions,
    /// recurrent states.
    ends: Vec<usize>,
}

pub(crate) fn checker() -> impl FnMut(&[u8]) + Send {
    let mut fixtures = MODELS.map(fixture);
    move |input| check(&mut fixtures, input)
}

fn check(fixtures: &mut [SessionFixture], input: &[u8]) {
    let Some((&how, rest)) = input.split_first() else { return };
    let fixture = &mut fixtures[usize::from(how >> 4 & 7) % MODELS.len()];
    let bytes = match how & 7 {
        0 => rest.to_vec(),
        n => edited(&fixture.files[usize::from(n) % fixture.files.len()], rest, how & 8 != 0),
    };
    // Any valid file can be loaded again.
    fixture.session.clear();
    fixture.session.load_state(&mut &fixture.files[1].bytes[..]).expect("what was saved");
    let is_behind = bytes.len().is_multiple_of(2);
    if !is_behind {
        fixture.session.clear();
    }
    let before = saved(&mut fixture.session);
    if let Err(error) = fixture.session.load_state(&mut &bytes[..]) {
        check_refusal(&error);
        assert!(saved(&mut fixture.session) == before, "a refused load changed the session");
        return;
    }
    if !is_behind {
        // The reader may continue with the bytes that follow.
        let again = saved(&mut fixture.session);
        assert!(bytes.starts_with(&again), "what was loaded is saved again");
    }
    assert!(fixture.session.tokens().iter().all(|token| token.0 < fixture.n_rows));
    if how & 128 == 0 {
        return;
    }
    match fixture.session.feed_last(&[TokenId(0)]) {
        Ok(logits) => assert_eq!(logits.len(), fixture.n_rows as usize),
        Err(error) => check_refusal(&error),
    }
}

fn fixture(name: &str) -> SessionFixture {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden").join(name);
    let config = EngineConfig {
        ranks: None,
        backend: BackendKind::Reference,
        device: None,
        arithmetic: Arithmetic::F32,
        kernels: None,
        n_threads: NonZeroUsize::MIN,
        n_rows_max: NonZeroUsize::new(CONTEXT),
        streaming: StreamingConfig::default(),
    };
    let model = Model::open(&dir).expect("a model of the tests");
    let engine = Engine::load(model, &config, &mut |_| ControlFlow::Continue(()));
    let engine = engine.expect("a model of the tests");
    let mut session = engine.session(CONTEXT).expect("room for some tokens");
    let mut files = vec![file_of(&engine, &mut session)];
    for token in 0..3 {
        session.feed_last(&[TokenId(token)]).expect("a token of the model");
        files.push(file_of(&engine, &mut session));
    }
    let n_rows = u32::try_from(engine.spec().vocab).expect("a small vocabulary");
    SessionFixture { session, files, n_rows }
}

fn file_of(engine: &Engine, session: &mut Session) -> SavedFile {
    let bytes = saved(session);
    let mut rest = &bytes[..];
    engine.read_header(&mut rest).expect("what was saved");
    let mut ends = vec![bytes.len() - rest.len()];
    let n_tokens = session.tokens().len();
    if n_tokens > 0 {
        let n_bytes = n_tokens as u64 * engine.memory().session_bytes_per_position;
        let n_bytes = usize::try_from(n_bytes).expect("a few tokens");
        ends.push(ends[0] + n_bytes + SUM_BYTES);
    }
    ends.push(bytes.len());
    SavedFile { bytes, ends }
}

fn saved(session: &mut Session) -> Vec<u8> {
    let mut bytes = Vec::new();
    session.save_state(&mut bytes).expect("memory takes all");
    bytes
}

fn edited(good: &SavedFile, edits: &[u8], is_summed: bool) -> Vec<u8> {
    let mut bytes = good.bytes.clone();
    let edits = edits.chunks_exact(3);
    if let &[low, ref rest @ ..] = edits.remainder() {
        let high = rest.first().copied().unwrap_or(0);
        bytes.truncate(usize::from(u16::from_le_bytes([low, high])));
    }
    for edit in edits {
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]]));
        if let Some(byte) = bytes.get_mut(at) {
            *byte = edit[2];
        }
    }
    let mut begin = 0;
    for &end in good.ends.iter().filter(|_| is_summed) {
        if end > bytes.len() {
            break;
        }
        let sum = XxHash3_64::oneshot(&bytes[begin..end - SUM_BYTES]).to_le_bytes();
        bytes[end - SUM_BYTES..end].copy_from_slice(&sum);
        begin = end;
    }
    bytes
}
