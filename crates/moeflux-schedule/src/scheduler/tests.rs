//! Concurrent prompts on a simulated machine: the clock advances as layers are computed, and jobs
//! arrive at given times. Answers are computed, and compared with those of jobs that run alone.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::{self, ThreadId};

use moeflux::provider::config::Configure;
use moeflux::provider::engine::EngineSpec;
use moeflux::provider::io::{Clock as _, VirtualClock};
use moeflux::{Engine, ModelText, StopStrings, TokenId};
use tracing::field::{Field, Visit};
use tracing::{Event as TraceEvent, Metadata, Subscriber, span};

use super::admission::N_OVERTAKEN_MAX;
use super::*;
use crate::job::{Event, Sink};
use crate::shared::{JobFlags, SharedState};
use crate::tracked::SinkGuard;

const CONTEXT: usize = 4_000;
const N_LONG: usize = 400;
const N_SHORT: usize = 30;
const ALL_AT_ONCE: Duration = Duration::ZERO;

/// A model whose experts are in memory or streamed.
struct SimulatedModel {
    engine: Engine,
    text: Arc<ModelText>,
    /// Simulated time per layer: for each used expert of 256, of which a row chooses eight, and for
    /// each row.
    expert: Duration,
    row: Duration,
}

static RESIDENT: LazyLock<SimulatedModel> =
    LazyLock::new(|| SimulatedModel::new(usize::MAX, 200, 50));
/// A step has room for a whole prompt.
static STREAMED: LazyLock<SimulatedModel> = LazyLock::new(|| SimulatedModel::new(16, 1_024, 2_000));

impl SimulatedModel {
    fn new(n_slots: usize, n_rows: usize, expert_us: u64) -> Self {
        let dir = moeflux_demo::unpack(&std::env::temp_dir()).unwrap();
        let opened = moeflux::Model::open(dir).unwrap();
        let text = opened.text().unwrap();
        let builder = Engine::builder(opened).threads(NonZeroUsize::MIN);
        let builder = builder.rows_per_step(NonZeroUsize::new(n_rows).unwrap());
        let builder = builder.configure(|it| it.streaming.n_slots_max = Some(n_slots));
        let engine = builder.load().unwrap();
        assert_eq!(engine.stream_stats().is_some(), n_slots < usize::MAX);
        let (expert, row) = (Duration::from_micros(expert_us), Duration::from_micros(250));
        Self { engine, text, expert, row }
    }

    /// Returns the time of a layer with this many rows.
    fn layer(&self, n_rows: u64) -> Duration {
        let missed = (1.0 - 8.0 / 256.0_f64).powi(i32::try_from(n_rows).unwrap());
        let n_rows = u32::try_from(n_rows).unwrap();
        self.expert.mul_f64(256.0 * (1.0 - missed)) + self.row * n_rows
    }

    fn n_layers(&self) -> u32 {
        u32::try_from(self.engine.spec().layers.len()).unwrap()
    }

    fn job(&self, owner: usize, prompt: Vec<TokenId>, n_tokens_max: usize) -> Job {
        let mut sampling = self.text.sampling(7);
        sampling.temperature = 1.0;
        sampling.logit_bias = self.text.end_tokens().iter().map(|it| (*it, -1e3)).collect();
        Job {
            owner: Owner(owner),
            prompt,
            split_points: Vec::new(),
            n_answers: 1,
            n_tokens_max: Some(n_tokens_max),
            sampling,
            stops: StopStrings::default(),
            masks: None,
            scores_prompt: false,
        }
    }
}

/// A machine that is slowed down by a factor.
#[derive(Clone)]
struct SimulatedMachine {
    model: &'static SimulatedModel,
    slowness: u32,
    n_sessions: usize,
    clock: VirtualClock,
}

/// The events of a job: when it was submitted, and its tokens.
#[derive(Clone, Debug, Default)]
struct JobLog {
    at: Duration,
    tokens: Vec<(usize, TokenId, Duration)>,
    is_over: bool,
}

impl JobLog {
    /// Returns the time to the first token.
    fn first(&self) -> Duration {
        self.tokens[0].2 - self.at
    }

    /// Returns the tokens of an answer.
    fn answer(&self, answer_idx: usize) -> Vec<TokenId> {
        let own = self.tokens.iter().filter(|it| it.0 == answer_idx);
        own.map(|(_, token, _)| *token).collect()
    }
}

struct JobRecorder(Arc<Mutex<JobLog>>, VirtualClock);

impl Sink for JobRecorder {
    fn put(&mut self, event: Event) {
        let mut log = self.0.lock().unwrap();
        match event {
            Event::Token { answer_idx, token, .. } => {
                log.tokens.push((answer_idx, token.token, self.1.now()));
            }
            Event::Finished { .. } => log.is_over = true,
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
}

/// The simulated machine of each test thread.
static MACHINES: LazyLock<Mutex<HashMap<ThreadId, SimulatedMachine>>> =
    LazyLock::new(Mutex::default);

/// One subscriber for all threads: with one for each, layers would be reported only once all
/// subscribers are known.
static LISTENS: LazyLock<()> = LazyLock::new(|| {
    tracing::subscriber::set_global_default(Layers).unwrap();
});

/// Advances the simulated clock for each layer.
struct Layers;

impl Subscriber for Layers {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "moeflux::session::step"
    }

    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}

    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}

    fn event(&self, event: &TraceEvent<'_>) {
        let mut of_layer = OfLayer::default();
        event.record(&mut of_layer);
        let machine = MACHINES.lock().unwrap().get(&thread::current().id()).cloned();
        if let (OfLayer { layer: Some(_), n_rows: Some(n_rows) }, Some(it)) = (of_layer, machine) {
            it.clock.advance_to(it.clock.now() + it.layer(n_rows));
        }
    }

    fn enter(&self, _span: &span::Id) {}

    fn exit(&self, _span: &span::Id) {}
}

#[derive(Default)]
struct OfLayer {
    layer: Option<u64>,
    n_rows: Option<u64>,
}

impl Visit for OfLayer {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "layer" => self.layer = Some(value),
            "n_rows" => self.n_rows = Some(value),
            _ => {}
        }
    }

    fn record_debug(&mut self, _field: &Field, _value: &dyn std::fmt::Debug) {}
}

impl SimulatedMachine {
    fn new(model: &'static SimulatedModel, slowness: u32) -> Self {
        Self { model, slowness, n_sessions: 4, clock: VirtualClock::default() }
    }

    fn layer(&self, n_rows: u64) -> Duration {
        self.model.layer(n_rows) * self.slowness
    }

    /// Returns the time of a prompt's longest step.
    fn step(&self, n_rows: usize) -> Duration {
        let n_rows = n_rows.min(self.model.engine.n_rows_max());
        self.layer(n_rows as u64) * self.model.n_layers()
    }

    /// Runs jobs that arrive at the given times after the start.
    fn run(&self, jobs: Vec<(Duration, Job)>) -> Vec<JobLog> {
        let machine = Self { clock: VirtualClock::default(), ..self.clone() };
        LazyLock::force(&LISTENS);
        MACHINES.lock().unwrap().insert(thread::current().id(), machine.clone());
        machine.run_here(jobs)
    }

    fn run_here(&self, jobs: Vec<(Duration, Job)>) -> Vec<JobLog> {
        let SimulatedModel { engine, text, .. } = self.model;
        let (shared, clock) = (SharedState::new(), &self.clock);
        let context = Context { engine, text, shared: &shared, clock };
        let limits = SchedulerLimits {
            n_sessions: self.n_sessions,
            context: CONTEXT,
            kept: KeptLimits::default(),
        };
        let mut scheduler = Scheduler::new(context, limits, None);
        let mut all = Vec::new();
        let mut coming = VecDeque::new();
        for (at, job) in jobs {
            let log = Arc::new(Mutex::new(JobLog { at, ..JobLog::default() }));
            all.push(Arc::clone(&log));
            let flags = Arc::new(JobFlags::new(job.n_answers, job.prompt.len()));
            let sink = SinkGuard(Box::new(JobRecorder(log, clock.clone())));
            shared.n_open.fetch_add(1, Ordering::Relaxed);
            shared.n_waiting.fetch_add(1, Ordering::Relaxed);
            coming.push_back(SubmittedJob::new(job, sink, flags, at));
        }
        loop {
            let mut job_source = || coming.pop_front_if(|it| it.at <= clock.now());
            while let Some(submitted) = job_source() {
                scheduler.push(submitted);
            }
            if scheduler.turn(&mut job_source) {
                continue;
            }
            match coming.front() {
                Some(next) => clock.advance_to(next.at),
                None => break,
            }
        }
        let all: Vec<JobLog> = all.iter().map(|it| it.lock().unwrap().clone()).collect();
        assert!(all.iter().all(|it| it.is_over), "each job ends");
        assert!(all.iter().all(|it| it.first() > Duration::ZERO), "layers take time");
        all
    }

    /// Runs a job alone.
    fn alone(&self, job: &Job) -> JobLog {
        self.run(vec![(ALL_AT_ONCE, job.clone())]).remove(0)
    }
}

fn tokens(n_tokens: usize, seed: usize) -> Vec<TokenId> {
    let token = |n: usize| 3 + (n * 31 + seed * 17 + n * n * (seed + 1)) % 500;
    (0..n_tokens).map(|n| TokenId(u32::try_from(token(n)).unwrap())).collect()
}

/// Returns machines with both kinds of model.
fn machines() -> [SimulatedMachine; 2] {
    [SimulatedMachine::new(&RESIDENT, 1), SimulatedMachine::new(&STREAMED, 1)]
}

/// Checks a short prompt that arrives when a share of the first step of long ones is over: compares
/// its time to the first token beside them with that alone.
fn check_beside(machine: &SimulatedMachine, n_long: usize, share: f64) {
    let model = machine.model;
    let n_rows = N_LONG.min(model.engine.n_rows_max());
    let (layer, step) = (machine.layer(n_rows as u64), machine.step(n_rows));
    let short = model.job(0, tokens(N_SHORT, 1), 3);
    let alone = machine.alone(&short);
    let mut jobs: Vec<_> =
        (1..=n_long).map(|seed| (ALL_AT_ONCE, model.job(seed, tokens(N_LONG, seed), 3))).collect();
    jobs.push((step.mul_f64(share), short));
    let all = machine.run(jobs.clone());
    let beside = all.last().unwrap();
    assert_eq!(beside.answer(0), alone.answer(0));
    let most = 2 * alone.first() + layer;
    assert!(
        beside.first() <= most,
        "beside {n_long} after {share} of a step: {:?} of {most:?}",
        beside.first()
    );
    // The long prompts lose the time that the short one takes.
    let ends = |all: &[JobLog]| all.iter().map(|it| it.at + it.first()).max().unwrap();
    let n_jobs = jobs.len() - 1;
    let without = ends(&machine.run(jobs[..n_jobs].to_vec()));
    let lost = ends(&all[..n_jobs]) - without;
    assert!(lost <= 2 * alone.first(), "{lost:?} lost of {without:?}");
}

#[test]
fn a_short_prompt_does_not_wait_for_long_ones() {
    let slow = machines().map(|it| SimulatedMachine { slowness: 10, ..it });
    for machine in machines().into_iter().chain(slow) {
        for n_long in [1, 3, 7] {
            check_beside(&machine, n_long, 0.4);
        }
        check_beside(&machine, 1, 0.0);
        check_beside(&machine, 1, 0.97);
        check_beside(&machine, 3, 1.5);
    }
}

#[test]
fn two_short_prompts_beside_a_long_one() {
    for machine in machines() {
        let job = |owner, n_tokens| machine.model.job(owner, tokens(n_tokens, owner), 2);
        let (long, short) = (job(1, N_LONG), [job(2, N_SHORT), job(3, 20)]);
        let at = machine.step(N_LONG).mul_f64(0.3);
        let all = machine.run(vec![
            (ALL_AT_ONCE, long.clone()),
            (at, short[0].clone()),
            (at, short[1].clone()),
        ]);
        let [first, second] = [&short[0], &short[1]].map(|job| machine.alone(job).first());
        let layer = machine.layer(N_LONG as u64);
        assert!(all[2].first() <= 2 * second + layer, "the shorter one is first");
        // Others get no more time than the long prompt: its layers run between them.
        assert!(all[1].first() <= 2 * (first + second) + 2 * layer, "{:?}", all[1].first());
        for (log, job) in all.iter().zip([&long, &short[0], &short[1]]) {
            assert_eq!(log.answer(0), machine.alone(job).answer(0));
        }
    }
}

#[test]
fn a_long_prompt_ends_although_short_ones_come_for_ever() {
    for machine in machines() {
        let job = |owner, n_tokens| machine.model.job(owner, tokens(n_tokens, owner), 1);
        let long = job(0, N_LONG);
        let (alone, of_short) = (machine.alone(&long).first(), machine.alone(&job(1, 40)).first());
        // More than the machine can do.
        let n_short = 5 * u32::try_from(alone.as_nanos() / of_short.as_nanos()).unwrap();
        let mut jobs = vec![(ALL_AT_ONCE, long)];
        jobs.extend((1..n_short).map(|n| (n * of_short.mul_f64(0.7), job(n as usize, 40))));
        let all = machine.run(jobs);
        let most = 2 * alone + machine.step(N_LONG);
        assert!(all[0].first() <= most, "{:?} of {most:?}, {alone:?} alone", all[0].first());
        let before = all[1..].iter().filter(|it| it.at + it.first() < all[0].first()).count();
        assert!(before > 0, "and they do not all wait for it");
    }
}

#[test]
fn a_prompt_that_is_nearly_read_is_first() {
    let machine = SimulatedMachine::new(&RESIDENT, 1);
    let job = |owner, n_tokens| machine.model.job(owner, tokens(n_tokens, owner), 1);
    // All but 50 tokens are read in two steps.
    let (long, other) = (job(0, 450), job(1, 120));
    let at = machine.step(200).mul_f64(1.5);
    let alone = machine.alone(&long).first();
    let all = machine.run(vec![(ALL_AT_ONCE, long), (at, other.clone())]);
    assert_eq!(all[0].first(), alone);
    assert!(all[1].first() <= machine.alone(&other).first() + machine.step(200));
}

#[test]
fn the_rest_of_a_prompt_decides_its_precedence() {
    for machine in machines() {
        let mut turn = tokens(300, 1);
        let first = machine.model.job(1, turn.clone(), 1);
        turn.extend(tokens(20, 9));
        let second = machine.model.job(1, turn, 3);
        let alone = machine.alone(&second).answer(0);
        let begin = 2 * machine.step(N_LONG);
        let at = begin + machine.step(N_LONG).mul_f64(0.4);
        let long = machine.model.job(2, tokens(N_LONG, 2), 1);
        // Another owner shares none of it.
        let mut other = second.clone();
        other.owner = Owner(3);
        let all = machine.run(vec![(ALL_AT_ONCE, first), (begin, long), (at, other), (at, second)]);
        let of_turn = machine.step(20);
        let layer = machine.layer(N_LONG as u64);
        assert!(all[3].first() <= 2 * of_turn + layer, "{:?}", all[3].first());
        assert!(all[2].first() > machine.step(300), "it is read as a whole");
        assert_eq!((all[2].answer(0), all[3].answer(0)), (alone.clone(), alone));
    }
}

#[test]
fn several_answers_to_a_short_prompt_begin_beside_a_long_one() {
    for machine in machines() {
        let mut job = machine.model.job(1, tokens(N_SHORT, 1), 3);
        job.n_answers = 3;
        let alone = machine.alone(&job);
        let long = machine.model.job(2, tokens(N_LONG, 2), 1);
        let at = machine.step(N_LONG).mul_f64(0.4);
        let all = machine.run(vec![(ALL_AT_ONCE, long), (at, job)]);
        let most = 2 * alone.first() + machine.layer(N_LONG as u64);
        for answer_idx in 0..3 {
            assert_eq!(all[1].answer(answer_idx), alone.answer(answer_idx));
            let first = all[1].tokens.iter().find(|it| it.0 == answer_idx);
            assert!(first.unwrap().2 - at <= most);
        }
    }
}

#[test]
fn one_place_is_for_one_job_at_a_time() {
    let machine = SimulatedMachine { n_sessions: 1, ..SimulatedMachine::new(&RESIDENT, 1) };
    let long = machine.model.job(1, tokens(N_LONG, 1), 2);
    let short = machine.model.job(2, tokens(N_SHORT, 2), 2);
    let at = machine.step(200).mul_f64(0.5);
    let all = machine.run(vec![(ALL_AT_ONCE, long), (at, short)]);
    assert!(all[1].tokens[0].2 > all[0].tokens[1].2);
}

#[test]
fn a_job_that_waits_is_overtaken_a_bounded_number_of_times() {
    let machine = SimulatedMachine { n_sessions: 1, ..SimulatedMachine::new(&RESIDENT, 1) };
    let n_short = N_OVERTAKEN_MAX + 8;
    let job = |owner, n_tokens| machine.model.job(owner, tokens(n_tokens, owner), 1);
    let mut jobs = vec![(ALL_AT_ONCE, job(0, 20)), (ALL_AT_ONCE, job(1, N_LONG))];
    jobs.extend((2..n_short + 2).map(|owner| (Duration::from_nanos(1), job(owner, 10))));
    let all = machine.run(jobs);
    let when = |log: &JobLog| log.at + log.first();
    let n_before = all[2..].iter().filter(|it| when(it) < when(&all[1])).count();
    assert_eq!(n_before, N_OVERTAKEN_MAX);
}
