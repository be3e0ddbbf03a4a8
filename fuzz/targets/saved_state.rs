//! Saved sessions: what is accepted is saved again as the same bytes and can be gone on with; what
//! is refused leaves the session as it was.
//!
//! Input: a byte, then a file as it is; or, told by the byte, edits to a good file: which of the
//! models, how many tokens it holds, whether the checksum is made right again, whether the session
//! goes on, which takes a hundred times as long, whether it is loaded into an empty session; then
//! three bytes per edit, place (little endian) and value, where the last one of less than three
//! cuts the file.
#![no_main]

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};

use libfuzzer_sys::fuzz_target;
use moeflux::provider::backend::Arithmetic;
use moeflux::provider::config::{BackendKind, EngineConfig, StreamingConfig};
use moeflux::provider::engine::Engine;
use moeflux::provider::ids::TokenId;
use moeflux::provider::session::Session;
use moeflux_fuzz::check_refusal;
use twox_hash::XxHash3_64;

/// Keys and values; latents; recurrent layers beside keys and values.
const MODELS: [&str; 3] = ["qwen3_moe-f32", "deepseek_v3_yarn-f32", "qwen3_next-f32"];
const CONTEXT: usize = 4;
const SUM_BYTES: usize = 8;

struct Rig {
    session: Session,
    /// By the number of tokens.
    files: Vec<Vec<u8>>,
    n_rows: u32,
}

static RIGS: LazyLock<Vec<Mutex<Rig>>> =
    LazyLock::new(|| MODELS.iter().map(|name| Mutex::new(rig(name))).collect());

fn rig(name: &str) -> Rig {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden").join(name);
    let config = EngineConfig {
        backend: BackendKind::Reference,
        device: None,
        arithmetic: Arithmetic::F32,
        kernels: None,
        n_threads: NonZeroUsize::MIN,
        n_rows_max: NonZeroUsize::new(CONTEXT),
        streaming: StreamingConfig::default(),
    };
    let engine = Engine::open(&dir, &config, &mut |_| ControlFlow::Continue(()));
    let engine = engine.expect("a model of the tests");
    let mut session = engine.session(CONTEXT).expect("room for some tokens");
    let mut files = vec![saved(&mut session)];
    for token in 0..3 {
        session.feed_last(&[TokenId(token)]).expect("a token of the model");
        files.push(saved(&mut session));
    }
    let n_rows = u32::try_from(engine.spec().vocab).expect("a small vocabulary");
    Rig { session, files, n_rows }
}

fn saved(session: &mut Session) -> Vec<u8> {
    let mut bytes = Vec::new();
    session.save_state(&mut bytes).expect("memory takes all");
    bytes
}

fn edited(good: &[u8], edits: &[u8], is_summed: bool) -> Vec<u8> {
    let mut bytes = good.to_vec();
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
    if let Some(hashed) = bytes.len().checked_sub(SUM_BYTES).filter(|_| is_summed) {
        let sum = XxHash3_64::oneshot(&bytes[..hashed]).to_le_bytes();
        bytes[hashed..].copy_from_slice(&sum);
    }
    bytes
}

fuzz_target!(|input: &[u8]| {
    let Some((&how, rest)) = input.split_first() else { return };
    let rig = &RIGS[usize::from(how >> 4 & 7) % MODELS.len()];
    let rig = &mut *rig.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = match how & 7 {
        0 => rest.to_vec(),
        n => edited(&rig.files[usize::from(n) % rig.files.len()], rest, how & 8 != 0),
    };
    // Any of the good ones goes back in.
    let before = &rig.files[1];
    rig.session.clear();
    rig.session.load_state(&mut &before[..]).expect("what was saved");
    if how & 64 == 0 {
        // What goes on where the session ends is taken behind it; most begin at its start.
        rig.session.clear();
    }
    let held = saved(&mut rig.session);
    if let Err(error) = rig.session.load_state(&mut &bytes[..]) {
        check_refusal(&error);
        assert!(saved(&mut rig.session) == held, "a refused load changed the session");
        return;
    }
    if how & 64 == 0 {
        let again = saved(&mut rig.session);
        assert!(bytes.starts_with(&again), "what was loaded is saved again");
    }
    assert!(rig.session.tokens().iter().all(|token| token.0 < rig.n_rows));
    if how & 128 == 0 {
        return;
    }
    match rig.session.feed_last(&[TokenId(0)]) {
        Ok(logits) => assert_eq!(logits.len(), rig.n_rows as usize),
        Err(error) => check_refusal(&error),
    }
});
