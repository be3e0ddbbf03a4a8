//! Sessions that grow into the memory of slots: results are the same, refusals state numbers, and
//! all memory is returned at their end.

use std::ops::ControlFlow;
use std::sync::Arc;

use moeflux::provider::backend::Arithmetic;
use moeflux::provider::backend::cpu::CpuBackend;
use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::budget::{SessionTerms, SlotLender};
use moeflux::provider::error::Error;
use moeflux::provider::experts::Experts;
use moeflux::provider::experts::stream::{Drives, ExpertStream, StreamConfig, StreamModel};
use moeflux::provider::forward::LoadedModel;
use moeflux::provider::ids::TokenId;
use moeflux::provider::model::{Headers, Model};
use moeflux::provider::session::{Feed, Runtime, Session, StepOutput, Wanted, step};
use moeflux::provider::weights::{self, PageCaching};
use moeflux_io::Caching;
use moeflux_testing::cases::{GoldenCase, feed_all};

const N_SLOTS: usize = 16;
const CONTEXT: usize = 32;

/// A model whose sessions have room for one of [`CONTEXT`] tokens; two more can have six slots.
/// `None`: no limits.
fn runtime_of(case: &GoldenCase, caching: Caching, is_limited: bool) -> Arc<Runtime> {
    let (blueprint, checkpoint) = Model::open(&case.dir).unwrap().into_parts();
    let Blueprint { spec, plan, manifest, .. } = blueprint;
    let watch = &mut |_| ControlFlow::Continue(());
    let weights = Arc::new(
        weights::load(&manifest, &checkpoint, (None, PageCaching::Dropped), watch).unwrap(),
    );
    let backend = CpuBackend::new(weights, &plan.workspace, CONTEXT, 2).unwrap();
    let backend = backend.with_arithmetic(Arithmetic::Int8);
    let top_k: Vec<usize> = spec.layers.iter().map(|layer| layer.ffn.top_k()).collect();
    let model = StreamModel {
        manifest: &manifest,
        checkpoint: &checkpoint,
        sums: None,
        top_k: &top_k,
        n_ranks: spec.n_predicted(),
    };
    let config = StreamConfig { n_slots: N_SLOTS, prefetches: true };
    let drives = Drives::open(&checkpoint, caching, None).unwrap();
    let stream = ExpertStream::open(&model, drives, &config).unwrap();
    let per_position = plan.state.bytes_per_position(Arithmetic::Int8.kv_kind());
    let session_bytes = 2 * plan.state.fixed_bytes() + per_position * CONTEXT as u64;
    let lender = SlotLender {
        n_slots: N_SLOTS,
        slot_bytes: session_bytes.div_ceil(3),
        n_slots_at_once: stream.n_slots_per_slab(),
        prompts: None,
        sessions: Some(SessionTerms { session_bytes, n_slots_min: N_SLOTS - 6 }),
    };
    let model = LoadedModel {
        expert_bytes: vec![0; spec.layers.len()],
        spec,
        plan,
        fingerprint: 1,
        trace: None,
    };
    let runtime = Runtime::new(model, Box::new(backend), Experts::Streaming(Box::new(stream)));
    let runtime = runtime.with_session_bytes(is_limited.then_some(session_bytes));
    Arc::new(runtime.with_lender(is_limited.then_some(lender)))
}

fn n_slots(runtime: &Runtime) -> usize {
    runtime.stream_stats().unwrap().n_slots
}

fn session(runtime: &Arc<Runtime>) -> Session {
    Session::new(Arc::clone(runtime), CONTEXT).unwrap()
}

/// Returns the error of a session without enough memory, of its creation or of feeding it.
fn refusal(runtime: &Arc<Runtime>, tokens: &[TokenId]) -> Error {
    Session::new(Arc::clone(runtime), CONTEXT)
        .and_then(|mut session| session.feed_last(tokens))
        .unwrap_err()
}

#[test]
fn slots_make_room_for_sessions_and_come_back() {
    for name in ["qwen3_next-bf16", "qwen3_5_moe-bf16", "deepseek_v3-bf16", "gguf-gpt-oss"] {
        let case = GoldenCase::load(name);
        let tokens = &case.tokens[..CONTEXT];
        for caching in [Caching::Direct, Caching::PageCache] {
            let usual = runtime_of(&case, caching, false);
            let expected = feed_all(&mut session(&usual), tokens);
            let runtime = runtime_of(&case, caching, true);
            let n_slots_before = n_slots(&runtime);
            let mut sessions: Vec<Session> = Vec::new();
            for _ in 0..3 {
                let mut session = session(&runtime);
                assert!(feed_all(&mut session, &tokens[..20]) == expected[..20], "{name}");
                sessions.push(session);
            }
            let is_direct = caching == Caching::Direct;
            // Copies of the system give way by themselves.
            assert!(!is_direct || n_slots(&runtime) <= n_slots_before - 6, "{name}");
            let error = refusal(&runtime, &tokens[..1]);
            assert!(matches!(error, Error::NoRoom { .. }), "{name}: {error}");
            assert!(error.to_string().contains("are available"), "{error}");
            for session in &mut sessions {
                assert!(feed_all(session, &tokens[20..25]) == expected[20..25], "{name}");
            }
            // One goes, another comes.
            drop(sessions.pop());
            assert!(feed_all(&mut session(&runtime), tokens) == expected, "{name}");
            drop(sessions);
            assert_eq!(n_slots(&runtime), n_slots_before, "{name}");
            assert!(feed_all(&mut session(&runtime), tokens) == expected, "{name}");
        }
    }
}

#[test]
fn slots_also_make_room_for_copies() {
    let case = GoldenCase::load("qwen3_next-bf16");
    let tokens = &case.tokens[..CONTEXT];
    let runtime = runtime_of(&case, Caching::Direct, true);
    let n_slots_before = n_slots(&runtime);
    let mut session = session(&runtime);
    feed_all(&mut session, tokens);
    let n_bytes = runtime.model().plan.state.fixed_bytes();
    let copies: Vec<_> = (0..3).map(|_| session.book_copy(n_bytes).unwrap()).collect();
    assert!(n_slots(&runtime) < n_slots_before);
    assert!(matches!(session.book_copy(1 << 40), Err(Error::NoRoom { .. })));
    drop(copies);
    drop(session);
    assert_eq!(n_slots(&runtime), n_slots_before);
}

#[test]
fn a_feed_without_room_fails_alone() {
    let case = GoldenCase::load("qwen3_moe-bf16");
    let expected =
        feed_all(&mut session(&runtime_of(&case, Caching::Direct, false)), &case.tokens[..5]);
    let runtime = runtime_of(&case, Caching::Direct, true);
    // Sessions of plain attention take nothing before their first token.
    let mut sessions: Vec<Session> = (0..4).map(|_| session(&runtime)).collect();
    let tokens: Vec<&[TokenId]> = (0..4).map(|_| &case.tokens[..5]).collect();
    let feeds = sessions.iter_mut().zip(&tokens);
    let mut feeds: Vec<Feed<'_>> = feeds
        .map(|(session, tokens)| Feed::prompt(session, tokens).wanting(Wanted::Last))
        .collect();
    let mut output = StepOutput::default();
    step(&mut feeds, &mut output).unwrap();
    let outcomes: Vec<_> = feeds.iter_mut().map(Feed::outcome).collect();
    assert!(outcomes[..3].iter().all(Result::is_ok));
    assert!(matches!(outcomes[3], Err(Error::NoRoom { .. })));
    assert_eq!(output.iter().count(), 3);
    let lens = sessions.iter().map(|session| session.tokens().len());
    assert!(lens.eq([5, 5, 5, 0]));
    drop(sessions.remove(0));
    let last = sessions.last_mut().unwrap();
    assert!(feed_all(last, &case.tokens[..5]) == expected);
}

#[test]
fn checkpoints_and_snapshots_take_room() {
    let case = GoldenCase::load("qwen3_next-bf16");
    let runtime = runtime_of(&case, Caching::Direct, true);
    let mut session = session(&runtime);
    session.feed_last(&case.tokens[..5]).unwrap();
    let n_slots_before = n_slots(&runtime);
    let mut snapshots = Vec::new();
    let error = loop {
        match session.snapshot(0..5) {
            Ok(snapshot) => snapshots.push(snapshot),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().starts_with("a snapshot of a session: needs"), "{error}");
    assert!(!snapshots.is_empty() && n_slots(&runtime) < n_slots_before);
    session.set_checkpoints_max(100);
    let mut keep = |len: usize| {
        session.feed_last(&case.tokens[len - 1..len]).unwrap();
        session.checkpoint(len)
    };
    let error = (6..CONTEXT).find_map(|len| keep(len).err()).unwrap();
    assert!(matches!(error, Error::NoRoom { .. }), "{error}");
    snapshots.clear();
    session.checkpoint(session.tokens().len()).unwrap();
    drop(session);
    assert_eq!(n_slots(&runtime), N_SLOTS);
}

/// Feeds a prompt of 20 tokens that leaves checkpoints at these places.
fn feed_with_marks(
    session: &mut Session,
    tokens: &[TokenId],
    marks: &[usize],
) -> Result<(), Error> {
    let mut feeds = [Feed::prompt(session, &tokens[..20]).checkpoints(marks)];
    step(&mut feeds, &mut StepOutput::default()).unwrap();
    let [feed] = &mut feeds;
    feed.outcome()
}

#[test]
fn slots_make_room_for_several_checkpoints_of_a_prompt() {
    let case = GoldenCase::load("qwen3_next-bf16");
    let runtime = runtime_of(&case, Caching::Direct, true);
    let mut session = session(&runtime);
    feed_with_marks(&mut session, &case.tokens, &[5, 12]).unwrap();
    assert_eq!(session.tokens().len(), 20);
    assert!(n_slots(&runtime) < N_SLOTS);
}

#[test]
fn a_prompt_whose_checkpoints_have_no_room_is_not_computed_in_vain() {
    let case = GoldenCase::load("qwen3_next-bf16");
    let runtime = runtime_of(&case, Caching::Direct, true);
    let mut session = session(&runtime);
    let marks: Vec<usize> = (1..10).collect();
    let error = feed_with_marks(&mut session, &case.tokens, &marks).unwrap_err();
    assert!(matches!(error, Error::NoRoom { .. }), "{error}");
    let stats = runtime.stream_stats().unwrap();
    assert_eq!((session.tokens().len(), stats.hits + stats.misses), (0, 0));
    feed_with_marks(&mut session, &case.tokens, &[]).unwrap();
}
