//! A device that fails: sessions end up as they were.

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use moeflux::provider::backend::reference::ReferenceBackend;
use moeflux::provider::backend::room::SessionBudget;
use moeflux::provider::backend::{
    Backend, DeviceNames, ExpertSharding, ExpertTiers, SessionStates, StatePart,
};
use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::error::{Error, Result};
use moeflux::provider::experts::stream::Drives;
use moeflux::provider::experts::{Arrived, Experts, ResidentExperts};
use moeflux::provider::forward::LoadedModel;
use moeflux::provider::ids::{BufferId, StateId, TokenId};
use moeflux::provider::model::{Headers, Model};
use moeflux::provider::ops::{Batch, Plan, Purpose, Routes, StateSpec};
use moeflux::provider::session::{Feed, Runtime, Session, StepOutput, step};
use moeflux::provider::weights::{self, PageCaching};
use moeflux_io::Caching;
use moeflux_testing::cases::{GoldenCase, feed_all};

/// Fails one call, counted from when the fuse is lit; 0 never fails.
#[derive(Clone, Debug, Default)]
struct Fuse(Arc<AtomicUsize>);

impl Fuse {
    fn light(&self, n_calls: usize) {
        self.0.store(n_calls, Ordering::Relaxed);
    }

    /// Every call panics.
    fn panics(&self) {
        self.light(usize::MAX);
    }

    fn burn(&self) -> Result<()> {
        let left = self.0.load(Ordering::Relaxed);
        assert!(left != usize::MAX, "the device's fault");
        self.0.store(left.saturating_sub(1), Ordering::Relaxed);
        if left == 1 { Err(Error::Unsupported("the device failed".into())) } else { Ok(()) }
    }

    fn is_out(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// The reference, but calls fail.
#[derive(Debug)]
struct Failing {
    inner: ReferenceBackend,
    fuse: Fuse,
}

impl Backend for Failing {
    fn names(&self) -> DeviceNames {
        DeviceNames { backend: "failing", ..self.inner.names() }
    }

    fn n_rows_max(&self) -> usize {
        self.inner.n_rows_max()
    }

    fn set_rows_max(&mut self, n_rows_max: usize) -> Result<()> {
        self.inner.set_rows_max(n_rows_max)
    }

    fn submit(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<()> {
        self.fuse.burn()?;
        self.inner.submit(plan, batch)
    }

    fn routes(&mut self, purpose: Purpose) -> Result<&Routes> {
        self.inner.routes(purpose)
    }

    fn submit_experts(&mut self, plan: &Plan, arrived: &Arrived<'_>) -> Result<()> {
        self.fuse.burn()?;
        self.inner.submit_experts(plan, arrived)
    }

    fn swap_rows(&mut self, buffer: BufferId, n_rows: usize) -> Result<()> {
        self.inner.swap_rows(buffer, n_rows)
    }

    fn write_rows(&mut self, buffer: BufferId, values: &[f32]) -> Result<()> {
        self.inner.write_rows(buffer, values)
    }

    fn read_row(&mut self, buffer: BufferId, row_idx: usize, target: &mut [f32]) -> Result<()> {
        self.inner.read_row(buffer, row_idx, target)
    }

    fn reads_stall(&self) -> bool {
        self.inner.reads_stall()
    }

    fn states(&self) -> &dyn SessionStates {
        self
    }

    fn states_mut(&mut self) -> &mut dyn SessionStates {
        self
    }

    fn sharding(&mut self) -> Option<&mut dyn ExpertSharding> {
        self.inner.sharding()
    }

    fn tiers(&self) -> Option<&dyn ExpertTiers> {
        self.inner.tiers()
    }

    fn tiers_mut(&mut self) -> Option<&mut dyn ExpertTiers> {
        self.inner.tiers_mut()
    }
}

impl SessionStates for Failing {
    fn budget(&self) -> &Arc<SessionBudget> {
        self.inner.budget()
    }

    fn create_state(&mut self, spec: &StateSpec, context: usize) -> Result<StateId> {
        self.inner.create_state(spec, context)
    }

    fn reserve_positions(&mut self, state: StateId, positions: &Range<usize>) -> Result<()> {
        self.inner.reserve_positions(state, positions)
    }

    fn drop_state(&mut self, state: StateId) {
        self.inner.drop_state(state);
    }

    fn reset_state(&mut self, state: StateId) {
        self.inner.reset_state(state);
    }

    fn commit_state(&mut self, state: StateId) {
        self.inner.commit_state(state);
    }

    fn state_part_bytes(&self, state: StateId, part: StatePart) -> usize {
        self.inner.state_part_bytes(state, part)
    }

    fn read_state(&mut self, state: StateId, part: StatePart, target: &mut [u8]) -> Result<()> {
        self.fuse.burn()?;
        self.inner.read_state(state, part, target)
    }

    fn write_state(&mut self, state: StateId, part: StatePart, source: &[u8]) -> Result<()> {
        self.fuse.burn()?;
        self.inner.write_state(state, part, source)
    }

    fn fork_state(&mut self, state: StateId) -> Result<StateId> {
        self.inner.fork_state(state)
    }

    fn set_marks(&mut self, state: StateId, n_marks: usize) -> Result<()> {
        self.inner.set_marks(state, n_marks)
    }
}

fn runtime_of(dir: &Path) -> (Arc<Runtime>, Fuse) {
    let (blueprint, checkpoint) = Model::open(dir).unwrap().into_parts();
    let Blueprint { spec, plan, manifest, .. } = blueprint;
    let watch = &mut |_| ControlFlow::Continue(());
    let weights =
        Arc::new(weights::load(&manifest, &checkpoint, (None, PageCaching::Kept), watch).unwrap());
    let drives = Drives::open(&checkpoint, Caching::PageCache, None).unwrap();
    let experts =
        ResidentExperts::load_in_background(&manifest, (&checkpoint, None), drives).unwrap();
    let inner = ReferenceBackend::new(weights, &plan.workspace, 32).unwrap();
    let fuse = Fuse::default();
    let backend = Box::new(Failing { inner, fuse: fuse.clone() });
    let model = LoadedModel {
        expert_bytes: vec![0; spec.layers.len()],
        spec,
        plan,
        fingerprint: 1,
        trace: None,
    };
    (Arc::new(Runtime::new(model, backend, Experts::Resident(Box::new(experts)))), fuse)
}

/// Feeds `tokens` with the 1st, 2nd, 3rd ... call failing, until none fails.
fn each_failure(name: &str, n_new: usize, check: impl Fn(&mut Session, &[TokenId])) {
    let case = GoldenCase::load(name);
    let (runtime, fuse) = runtime_of(&case.dir);
    let mut session = Session::new(runtime, 100).unwrap();
    for n_calls in 1.. {
        session.clear();
        session.feed_last(&case.tokens[..5]).unwrap();
        fuse.light(n_calls);
        let fed = session.feed_last(&case.tokens[5..5 + n_new]);
        if !fuse.is_out() {
            fuse.light(0);
            assert!(n_calls > 10, "only {n_calls} calls: does the device fail at all?");
            return;
        }
        assert!(matches!(fed, Err(Error::Unsupported(_))));
        check(&mut session, &case.tokens);
    }
}

#[test]
fn a_long_step_that_fails_is_taken_back() {
    let case = GoldenCase::load("qwen3_next-bf16");
    let (runtime, _) = runtime_of(&case.dir);
    let expected = feed_all(&mut Session::new(runtime, 100).unwrap(), &case.tokens[..9]);
    each_failure("qwen3_next-bf16", 20, |session, tokens| {
        assert_eq!(session.tokens(), &tokens[..5]);
        assert!(feed_all(session, &tokens[5..9]) == expected[5..9]);
    });
}

#[test]
fn a_short_step_that_fails_is_taken_back() {
    let case = GoldenCase::load("qwen3_next-bf16");
    let (runtime, _) = runtime_of(&case.dir);
    let expected = feed_all(&mut Session::new(runtime, 100).unwrap(), &case.tokens[..9]);
    each_failure("qwen3_next-bf16", 2, |session, tokens| {
        assert_eq!(session.tokens(), &tokens[..5]);
        session.checkpoint(5).unwrap();
        session.save_state(&mut Vec::new()).unwrap();
        assert!(feed_all(session, &tokens[5..9]) == expected[5..9]);
    });
}

#[test]
fn a_checkpoint_survives_a_failed_step() {
    let case = GoldenCase::load("qwen3_next-bf16");
    let (runtime, fuse) = runtime_of(&case.dir);
    let mut session = Session::new(Arc::clone(&runtime), 100).unwrap();
    session.feed_last(&case.tokens[..5]).unwrap();
    session.checkpoint(5).unwrap();
    let expected = feed_all(&mut session, &case.tokens[5..9]);
    for n_calls in 1..4 {
        fuse.light(n_calls);
        session.feed_last(&case.tokens[9..10]).unwrap_err();
        // Going back may fail as well, and is then as if it had not been tried.
        fuse.light(1);
        session.restore(5).unwrap_err();
        assert_eq!(session.tokens(), &case.tokens[..9]);
        session.restore(5).unwrap();
        assert!(feed_all(&mut session, &case.tokens[5..9]) == expected);
    }
}

#[test]
fn plain_attention_forgets_a_failed_step() {
    let case = GoldenCase::load("qwen3_moe-bf16");
    let (runtime, _) = runtime_of(&case.dir);
    let expected = feed_all(&mut Session::new(runtime, 100).unwrap(), &case.tokens[..9]);
    each_failure("qwen3_moe-bf16", 2, |session, tokens| {
        if session.tokens().len() == 5 {
            assert!(feed_all(session, &tokens[5..9]) == expected[5..9]);
        }
    });
}

#[test]
fn a_load_that_fails_half_way_leaves_the_session_as_it_was() {
    let case = GoldenCase::load("qwen3_next-bf16");
    let (runtime, fuse) = runtime_of(&case.dir);
    let mut session = Session::new(Arc::clone(&runtime), 100).unwrap();
    session.feed_last(&case.tokens[..3]).unwrap();
    session.checkpoint(3).unwrap();
    session.feed_last(&case.tokens[3..5]).unwrap();
    let mut saved = Vec::new();
    session.save_part(3..5, &mut saved).unwrap();
    let expected = feed_all(&mut session, &case.tokens[5..9]);
    session.restore(3).unwrap();
    fuse.light(2);
    session.load_state(&mut &saved[..]).unwrap_err();
    assert_eq!((session.tokens(), session.checkpoints()), (&case.tokens[..3], vec![3]));
    assert!(feed_all(&mut session, &case.tokens[3..9])[2..] == expected);
    session.restore(3).unwrap();
    session.load_state(&mut &saved[..]).unwrap();
    assert!(feed_all(&mut session, &case.tokens[5..9]) == expected);
}

/// A step whose last copy of a state fails: the session holds all of its tokens or none.
#[test]
fn a_checkpoint_that_fails_leaves_the_session_whole() {
    let case = GoldenCase::load("qwen3_next-bf16");
    let (runtime, fuse) = runtime_of(&case.dir);
    let session = || Session::new(Arc::clone(&runtime), 100).unwrap();
    let expected = feed_all(&mut session(), &case.tokens[..9]);
    let mut n_fed = 0;
    for n_calls in 1.. {
        let mut session = session();
        session.feed_last(&case.tokens[..5]).unwrap();
        fuse.light(n_calls);
        let feed = Feed::prompt(&mut session, &case.tokens[5..7]).checkpoints(&[7]);
        let stepped = step(&mut [feed], &mut StepOutput::default());
        fuse.light(0);
        if stepped.is_ok() {
            break;
        }
        let n_held = session.tokens().len();
        assert!(n_held == 5 || n_held == 7, "{n_held} tokens");
        n_fed += usize::from(n_held == 7);
        assert!(feed_all(&mut session, &case.tokens[n_held..9]) == expected[n_held..9]);
    }
    assert!(n_fed > 0, "no copy failed after the last row");
}

#[test]
fn a_panic_in_a_step_is_not_drift() {
    let case = GoldenCase::load("qwen3_next-bf16");
    let (runtime, fuse) = runtime_of(&case.dir);
    let mut session = Session::new(Arc::clone(&runtime), 100).unwrap();
    let mut other = Session::new(runtime, 100).unwrap();
    fuse.panics();
    let step = std::panic::AssertUnwindSafe(|| session.feed_last(&case.tokens[..3]));
    assert!(std::panic::catch_unwind(step).is_err());
    fuse.light(0);
    for session in [&mut session, &mut other] {
        let message = session.feed_last(&case.tokens[..1]).unwrap_err().to_string();
        assert!(message.contains("open the engine again"), "{message}");
        session.clear();
    }
}

#[test]
fn a_state_of_a_twin_is_refused() {
    // Same names, shapes and sizes, other experts: as a fine-tuned model of the same family.
    let case = GoldenCase::load("qwen3_next-bf16");
    let twin = moeflux_testing::temp_dir::TempDir::copy_of(&case.dir);
    for entry in std::fs::read_dir(twin.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            flip_experts(&path);
        }
    }
    let open = |dir| crate::support::open(dir, moeflux::provider::config::BackendKind::Cpu, 32);
    let (original, twin) = (open(&case.dir), open(twin.path()));
    let mut session = original.session(100).unwrap();
    session.feed_last(&case.tokens[..5]).unwrap();
    let mut saved = Vec::new();
    session.save_state(&mut saved).unwrap();
    let mut session = twin.session(100).unwrap();
    let message = session.load_state(&mut &saved[..]).unwrap_err().to_string();
    assert!(message.contains("another model"), "{message}");
}

/// Flips the signs of the first value of every expert tensor.
fn flip_experts(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let n_header = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + n_header]).unwrap();
    for (name, tensor) in header.as_object().unwrap() {
        if name.contains(".experts.") {
            let begin = usize::try_from(tensor["data_offsets"][0].as_u64().unwrap()).unwrap();
            bytes[8 + n_header + begin + 1] ^= 0x80;
        }
    }
    std::fs::write(path, bytes).unwrap();
}
