//! Prompts with longer steps that borrow the memory of slots: results are the same, and all memory
//! is returned however they end.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use moeflux::provider::backend::cpu::CpuBackend;
use moeflux::provider::backend::{
    Arithmetic, Backend, DeviceNames, ExpertSharding, ExpertTiers, SessionStates,
};
use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::budget::{PromptSteps, PromptTerms, SlotLender, step_bytes};
use moeflux::provider::error::{Error, Result};
use moeflux::provider::experts::stream::{Drives, ExpertStream, StreamConfig, StreamModel};
use moeflux::provider::experts::{Arrived, Experts};
use moeflux::provider::forward::{LoadedModel, StepProgress};
use moeflux::provider::ids::{BufferId, TokenId};
use moeflux::provider::model::{Headers, Model};
use moeflux::provider::ops::{Batch, Plan, Purpose, Routes};
use moeflux::provider::session::{Runtime, Session, Wanted};
use moeflux::provider::weights::{self, PageCaching};
use moeflux_io::Caching;
use moeflux_testing::cases::{GoldenCase, case_names, feed_all};

const N_ROWS: usize = 8;
const N_SLOTS: usize = 16;
const N_PROMPT: usize = 48;

/// A CPU backend whose workspace is watched; a call may fail.
#[derive(Debug)]
struct Watched {
    inner: CpuBackend,
    told: Told,
}

/// Events that a test observes, and commands that it gives.
#[derive(Clone, Debug, Default)]
struct Told {
    /// Rows of each workspace that there was.
    rows: Arc<Mutex<Vec<usize>>>,
    /// The call that fails, counted from now; 0: none.
    fuse: Arc<AtomicUsize>,
    /// Sizes of the workspace that are refused.
    n_rows_refused: Arc<AtomicUsize>,
}

impl Told {
    fn rows(&self) -> Vec<usize> {
        self.rows.lock().unwrap().clone()
    }

    fn burn(&self) -> Result<()> {
        let left = self.fuse.load(Ordering::Relaxed);
        self.fuse.store(left.saturating_sub(1), Ordering::Relaxed);
        if left == 1 { Err(Error::Unsupported("the device failed".into())) } else { Ok(()) }
    }
}

impl Backend for Watched {
    fn names(&self) -> DeviceNames {
        self.inner.names()
    }

    fn n_rows_max(&self) -> usize {
        self.inner.n_rows_max()
    }

    fn set_rows_max(&mut self, n_rows_max: usize) -> Result<()> {
        if self.told.n_rows_refused.load(Ordering::Relaxed) == n_rows_max {
            return Err(Error::Unsupported("not so many rows".into()));
        }
        self.told.rows.lock().unwrap().push(n_rows_max);
        self.inner.set_rows_max(n_rows_max)
    }

    fn submit(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<()> {
        self.told.burn()?;
        self.inner.submit(plan, batch)
    }

    fn routes(&mut self, purpose: Purpose) -> Result<&Routes> {
        self.inner.routes(purpose)
    }

    fn submit_experts(&mut self, plan: &Plan, arrived: &Arrived<'_>) -> Result<()> {
        self.told.burn()?;
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
        self.inner.states()
    }

    fn states_mut(&mut self) -> &mut dyn SessionStates {
        self.inner.states_mut()
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

/// A model with steps of [`N_ROWS`], whose slots lend `n_lent` for a step of [`N_PROMPT`]; none: it
/// lends nothing. No runtime where the model has no experts, or looks rows of tables up.
fn runtime_of(
    case: &GoldenCase,
    caching: Caching,
    n_lent: Option<u64>,
) -> Option<(Arc<Runtime>, Told)> {
    let (blueprint, checkpoint) = Model::open(&case.dir).unwrap().into_parts();
    let Blueprint { spec, plan, manifest, .. } = blueprint;
    let looks_up = plan.layers.iter().any(|layer| layer.lookup.is_some());
    if manifest.banks.is_empty() || looks_up {
        return None;
    }
    let watch = &mut |_| ControlFlow::Continue(());
    let weights = Arc::new(
        weights::load(&manifest, &checkpoint, (None, PageCaching::Dropped), watch).unwrap(),
    );
    let inner = CpuBackend::new(weights, &plan.workspace, N_ROWS, 2).unwrap();
    let inner = inner.with_arithmetic(Arithmetic::Int8);
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
    let more_bytes =
        step_bytes(plan.workspace.bytes(N_PROMPT)) - step_bytes(plan.workspace.bytes(N_ROWS));
    let workspace = plan.workspace.clone();
    let prompts = PromptTerms {
        workspace,
        table_bytes_per_row: 0,
        n_rows: N_ROWS,
        n_slots_min: 10,
        n_experts: 1000,
    };
    let lender = n_lent.map(|n_lent| SlotLender {
        n_slots: N_SLOTS,
        slot_bytes: more_bytes.div_ceil(n_lent),
        n_slots_at_once: stream.n_slots_per_slab(),
        prompts: Some(prompts),
        sessions: None,
    });
    let told = Told::default();
    let backend = Box::new(Watched { inner, told: told.clone() });
    let model = LoadedModel {
        expert_bytes: vec![0; spec.layers.len()],
        spec,
        plan,
        fingerprint: 1,
        trace: None,
    };
    let experts = Experts::Streaming(Box::new(stream));
    Some((Arc::new(Runtime::new(model, backend, experts).with_lender(lender)), told))
}

/// The prompt at once, then the rest token by token.
fn run(runtime: &Arc<Runtime>, tokens: &[TokenId]) -> Vec<Vec<f32>> {
    let mut session = Session::new(Arc::clone(runtime), tokens.len()).unwrap();
    let mut rows = feed_all(&mut session, &tokens[..N_PROMPT]);
    for token in &tokens[N_PROMPT..] {
        rows.extend(feed_all(&mut session, std::slice::from_ref(token)));
    }
    rows
}

fn n_slots(runtime: &Runtime) -> usize {
    runtime.stream_stats().unwrap().n_slots
}

#[test]
fn longer_steps_give_the_same_bits_and_everything_comes_back() {
    let mut n_cases = 0;
    for name in case_names() {
        let case = GoldenCase::load(&name);
        let n_tokens = case.tokens.len();
        if n_tokens <= N_PROMPT {
            continue;
        }
        let tokens = &case.tokens[..n_tokens.min(N_PROMPT + 8)];
        for caching in [Caching::Direct, Caching::PageCache] {
            let Some((usual, told)) = runtime_of(&case, caching, None) else { continue };
            if n_slots(&usual) < N_SLOTS {
                continue;
            }
            n_cases += 1;
            let expected = run(&usual, tokens);
            assert!(told.rows().is_empty());
            // One step, two and three.
            for (n_lent, n_rows) in [(6, N_PROMPT), (12, N_PROMPT / 2), (30, N_PROMPT / 3)] {
                let (runtime, told) = runtime_of(&case, caching, Some(n_lent)).unwrap();
                assert!(run(&runtime, tokens) == expected, "{name}: steps of {n_rows} rows");
                assert_eq!(told.rows(), [n_rows, N_ROWS], "{name}");
                assert_eq!(n_slots(&runtime), N_SLOTS, "{name}");
            }
        }
    }
    assert!(n_cases >= 4, "only {n_cases} cases have so many experts");
}

#[test]
fn progress_states_the_rows_of_a_step() {
    let case = GoldenCase::load("qwen3_5_moe-bf16");
    let (runtime, told) = runtime_of(&case, Caching::Direct, Some(6)).unwrap();
    let prompt_steps = runtime.lender().unwrap().prompt_steps(N_PROMPT, 0);
    assert_eq!(prompt_steps, Some(PromptSteps { n_rows: N_PROMPT, n_slots_lent: 6 }));
    let mut session = Session::new(runtime, 60).unwrap();
    let mut feed = |n_tokens: usize| {
        let mut lens = Vec::new();
        let watch = &mut |progress: StepProgress| {
            lens.push((progress.n_rows_done, progress.n_rows_now));
            ControlFlow::Continue(())
        };
        session.clear();
        session.feed(&case.tokens[..n_tokens], Wanted::Last, watch, &mut |_, _| Ok(())).unwrap();
        lens.dedup();
        lens
    };
    assert_eq!(feed(N_ROWS), [(0, N_ROWS)]);
    assert!(told.rows().is_empty(), "a short prompt borrows nothing");
    assert_eq!(feed(N_PROMPT), [(0, N_PROMPT)]);
    // A longer one has to make two of it, as equal as can be.
    assert_eq!(feed(55), [(0, 28), (28, 27)]);
}

#[test]
fn cancelled_prompts_and_failing_devices_give_back() {
    let case = GoldenCase::load("qwen3_next-bf16");
    let tokens = &case.tokens[..N_PROMPT + 8];
    let (usual, _) = runtime_of(&case, Caching::Direct, None).unwrap();
    let expected = run(&usual, tokens);
    let (runtime, told) = runtime_of(&case, Caching::Direct, Some(6)).unwrap();
    let mut session = Session::new(Arc::clone(&runtime), 100).unwrap();
    let is_back = || told.rows().ends_with(&[N_PROMPT, N_ROWS]) && n_slots(&runtime) == N_SLOTS;

    let watch = &mut |progress: StepProgress| match progress.n_layers_done {
        2 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    let fed = session.feed(&tokens[..N_PROMPT], Wanted::None, watch, &mut |_, _| Ok(()));
    assert!(matches!(fed, Err(Error::Cancelled)) && is_back());

    let go_on = &mut |_| ControlFlow::Continue(());
    // How many calls a prompt takes depends on which reads come together.
    let mut n_failed = 0;
    loop {
        told.fuse.store(n_failed + 1, Ordering::Relaxed);
        let fed = session.feed(&tokens[..N_PROMPT], Wanted::None, go_on, &mut |_, _| Ok(()));
        assert!(is_back(), "call {n_failed}: {:?}, {} slots", told.rows(), n_slots(&runtime));
        if fed.is_ok() {
            break;
        }
        n_failed += 1;
    }
    // Each layer has at least two calls: the ops before its experts, and the experts.
    assert!(n_failed >= 2 * runtime.model().spec.layers.len(), "only {n_failed} calls failed");
    told.fuse.store(0, Ordering::Relaxed);
    assert!(session.feed_last(&tokens[N_PROMPT..=N_PROMPT]).unwrap() == expected[N_PROMPT]);
    session.clear();

    let refusing = &mut |_: moeflux::provider::session::OutputOf, _: &[f32]| Err(Error::Cancelled);
    session.feed(&tokens[..N_PROMPT], Wanted::Last, go_on, refusing).unwrap_err();
    assert!(is_back());
    session.clear();
    assert!(feed_all(&mut session, &tokens[..N_PROMPT]) == expected[..N_PROMPT]);
}

#[test]
fn a_workspace_that_cannot_grow_leaves_steps_as_they_were() {
    let case = GoldenCase::load("qwen3_5_moe-bf16");
    let tokens = &case.tokens[..N_PROMPT + 8];
    let (usual, _) = runtime_of(&case, Caching::Direct, None).unwrap();
    let (runtime, told) = runtime_of(&case, Caching::Direct, Some(6)).unwrap();
    told.n_rows_refused.store(N_PROMPT, Ordering::Relaxed);
    assert!(run(&runtime, tokens) == run(&usual, tokens));
    assert!(told.rows().is_empty());
    assert_eq!(n_slots(&runtime), N_SLOTS);
}

#[test]
fn prompts_and_answers_of_many_sessions_borrow_together() {
    let case = GoldenCase::load("qwen3_5_moe-bf16");
    let tokens = &case.tokens[..N_PROMPT + 8];
    let (usual, _) = runtime_of(&case, Caching::Direct, None).unwrap();
    let expected = run(&usual, tokens);
    let (runtime, told) = runtime_of(&case, Caching::Direct, Some(12)).unwrap();
    std::thread::scope(|scope| {
        let prompts = || assert!(run(&runtime, tokens) == expected);
        let answers = || {
            let mut session = Session::new(Arc::clone(&runtime), 100).unwrap();
            for (token, expected) in tokens.iter().zip(&expected) {
                assert!(feed_all(&mut session, std::slice::from_ref(token))[0] == *expected);
            }
        };
        for _ in 0..2 {
            scope.spawn(prompts);
            scope.spawn(answers);
        }
    });
    let rows = told.rows();
    assert!(rows.chunks(2).all(|pair| pair == [N_PROMPT / 2, N_ROWS]), "{rows:?}");
    assert_eq!(n_slots(&runtime), N_SLOTS);
}
