//! Models for tests, jobs that record their events, and the results of each job alone.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, mpsc};
use std::time::Duration;

use moeflux::provider::config::Configure;
use moeflux::provider::model::Model;
use moeflux::provider::text::{byte_tokenizer_config_json, byte_tokenizer_json};
use moeflux::sample::{LogitMask, SamplerConfig};
use moeflux::{
    Engine, EngineBuilder, Error, Finish, ModelText, ReadWay, Session, StopStrings, TokenId,
};
use moeflux_schedule::{
    Event, Job, Masks, Missed, Options, Owner, PromptLookup, Scored, Service, Sink, Ticket,
};
use moeflux_testing::temp_dir::TempDir;

/// Far more than any test needs: a test that waits longer fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// Sessions take memory for this many positions at once.
pub(crate) const BLOCK: usize = 1024;

/// The rest of the tests' process, and sessions.
const MEMORY_BYTES: u64 = 512 << 20;

/// A folder with a model and its text.
pub(crate) struct ReferenceModel {
    dir: PathBuf,
    n_rows: usize,
    pub(crate) text: Arc<ModelText>,
    pub(crate) cold: Engine,
    _copy: Option<TempDir>,
}

/// The model in the box.
pub(crate) static DEMO: LazyLock<ReferenceModel> = LazyLock::new(|| {
    let dir = moeflux_demo::unpack(&std::env::temp_dir()).unwrap();
    ReferenceModel::new(dir, 64, None)
});

/// A model of random weights in which all layers but a few are recurrent.
pub(crate) static RECURRENT: LazyLock<ReferenceModel> =
    LazyLock::new(|| ReferenceModel::golden("qwen3_next"));

/// A model of random weights with attention in all layers.
pub(crate) static ATTENTION: LazyLock<ReferenceModel> =
    LazyLock::new(|| ReferenceModel::golden("qwen3_moe"));

/// A model of random weights with latent attention.
pub(crate) static LATENT: LazyLock<ReferenceModel> =
    LazyLock::new(|| ReferenceModel::golden("deepseek_v3"));

impl ReferenceModel {
    fn golden(family: &str) -> Self {
        let name = format!("../../golden/{family}-bf16");
        let copy = TempDir::copy_of(&Path::new(env!("CARGO_MANIFEST_DIR")).join(name));
        let write = |name, json: serde_json::Value| {
            std::fs::write(copy.path().join(name), json.to_string()).unwrap();
        };
        write("tokenizer.json", byte_tokenizer_json(160, &[]));
        write("tokenizer_config.json", byte_tokenizer_config_json(None));
        Self::new(copy.path().to_owned(), 24, Some(copy))
    }

    fn new(dir: PathBuf, n_rows: usize, copy: Option<TempDir>) -> Self {
        let cold = open(&dir, n_rows).unwrap();
        let text = Model::open(&dir).unwrap().text().unwrap();
        Self { dir, n_rows, text, cold, _copy: copy }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn service(&self, options: Options) -> Service {
        let (dir, n_rows) = (self.dir.clone(), self.n_rows);
        let text = Arc::clone(&self.text);
        Service::start(Box::new(move || open(&dir, n_rows)), text, options).unwrap()
    }

    /// Opens an engine that fails at once if there is no memory for another session.
    pub(crate) fn open(&self) -> moeflux::Result<Engine> {
        self.builder().load()
    }

    /// The same with room for this number of experts, which are read from a drive.
    pub(crate) fn open_streaming(&self, n_slots: usize) -> moeflux::Result<Engine> {
        let builder = self.builder().configure(|config| {
            config.streaming.n_slots_max = Some(n_slots);
            config.streaming.way = ReadWay::Direct;
        });
        builder.load()
    }

    fn builder(&self) -> EngineBuilder {
        let n_rows = NonZeroUsize::new(self.n_rows).unwrap();
        let memory = self.cold.memory();
        let of_model = memory.resident_bytes + memory.expert_bytes + 2 * memory.workspace_bytes;
        let budget = of_model + MEMORY_BYTES;
        let builder = Engine::builder(Model::open(&self.dir).unwrap()).threads(NonZeroUsize::MIN);
        builder.rows_per_step(n_rows).memory(budget)
    }

    pub(crate) fn tokens(&self, text: &str) -> Vec<TokenId> {
        self.text.tokenizer().encode_plain(text).unwrap()
    }

    /// A job that is sampled, with log-probabilities: any other bit of the logits shows.
    pub(crate) fn job(&self, prompt: Vec<TokenId>, n_tokens_max: usize) -> Job {
        let mut sampling = self.text.sampling(7);
        sampling.temperature = 1.0;
        sampling.n_logprobs = Some(3);
        Job {
            owner: Owner::default(),
            prompt,
            split_points: Vec::new(),
            n_answers: 1,
            n_tokens_max: Some(n_tokens_max),
            sampling,
            masks: None,
            stops: StopStrings::default(),
            scores_prompt: false,
        }
    }

    /// Returns the answer to a job, computed alone in a new session.
    pub(crate) fn alone(&self, job: &Job, answer_idx: usize, context: usize) -> AnswerLog {
        let mut session = self.cold.session(context).unwrap();
        let mut job = job.clone();
        job.sampling.seed = job.sampling.seed.wrapping_add(answer_idx as u64);
        self.answer_in(&job, &mut session, &job.prompt)
    }

    /// Returns the answer to a job, in a session that lacks these tokens of the prompt.
    pub(crate) fn answer_in(
        &self,
        job: &Job,
        session: &mut Session,
        prompt: &[TokenId],
    ) -> AnswerLog {
        let sampling: SamplerConfig = job.sampling.clone();
        let n_tokens_max = job.n_tokens_max.unwrap_or(usize::MAX);
        let generation = self.text.generation(sampling, n_tokens_max).unwrap();
        let mut generation = generation.with_stops(job.stops.clone());
        if job.masks.is_some() {
            // A greedy choice is the same whether or not the mask reports forced tokens.
            let tells = job.sampling.temperature > 0.0;
            generation = generation.with_mask(Counting { tells, ..Counting::default() });
        }
        let mut answer = AnswerLog::default();
        let finish = generation.run(session, prompt, &mut |event| {
            match event {
                moeflux::Event::Token { token, logprob, top, .. } => {
                    answer.tokens.push(Scored { token, logprob, top: top.to_vec() });
                }
                moeflux::Event::Text(text) => answer.text.push_str(text),
                _ => {}
            }
            ControlFlow::Continue(())
        });
        answer.finish = Some(finish.unwrap());
        answer
    }
}

/// After each chosen token, the mask forces the next few numbers.
#[derive(Debug, Default)]
struct Counting {
    tells: bool,
    forced: VecDeque<TokenId>,
}

impl LogitMask for Counting {
    fn apply(&mut self, logits: &mut [f32]) {
        if let Some(only) = self.forced.front() {
            logits.fill(f32::NEG_INFINITY);
            logits[only.0 as usize] = 0.0;
        }
    }

    fn accept(&mut self, token: TokenId) {
        if self.forced.pop_front().is_none() {
            self.forced.extend((1..token.0 % 7).map(|more| TokenId((token.0 + more) % 150)));
        }
    }

    fn forced(&mut self, forced: &mut Vec<TokenId>) {
        if self.tells {
            forced.extend(&self.forced);
        }
    }
}

/// Masks that force tokens.
#[derive(Debug)]
pub(crate) struct CountingMasks;

impl Masks for CountingMasks {
    fn mask(&self) -> Box<dyn LogitMask> {
        Box::new(Counting { tells: true, ..Counting::default() })
    }
}

fn open(dir: &Path, n_rows: usize) -> moeflux::Result<Engine> {
    let n_rows = NonZeroUsize::new(n_rows).unwrap();
    let builder = Engine::builder(Model::open(dir)?).threads(NonZeroUsize::MIN);
    builder.rows_per_step(n_rows).load()
}

/// Books all memory for sessions, except that of `n_pieces` pieces of positions.
pub(crate) fn leave_room(engine: &Engine, n_pieces: usize) {
    let mut taken = Vec::new();
    loop {
        let reserved = engine.session(BLOCK).and_then(|mut session| {
            session.reserve(BLOCK)?;
            Ok(session)
        });
        match reserved {
            Ok(session) => taken.push(session),
            Err(Error::NoRoom { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    taken.truncate(taken.len() - n_pieces);
    Box::leak(taken.into_boxed_slice());
}

/// A sink that hears nothing.
pub(crate) struct NullSink;

impl Sink for NullSink {
    fn put(&mut self, _event: Event) {}
}

/// The events of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AnswerLog {
    pub(crate) tokens: Vec<Scored>,
    pub(crate) text: String,
    pub(crate) finish: Option<Finish>,
}

/// The events of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobOutcome {
    pub(crate) n_cached: Option<usize>,
    pub(crate) n_cached_drive: usize,
    pub(crate) missed: Option<Missed>,
    pub(crate) lookup: Option<PromptLookup>,
    pub(crate) scores: Vec<Scored>,
    pub(crate) answers: Vec<AnswerLog>,
    /// The tokens that ended answers, by answer, if log-probabilities were requested.
    pub(crate) end_tokens: BTreeMap<usize, Scored>,
    pub(crate) failure: Option<String>,
}

impl JobOutcome {
    fn record(&mut self, event: Event) {
        match event {
            Event::Begun { n_cached_tokens, n_cached_drive_tokens, missed, lookup } => {
                (self.missed, self.lookup) = (missed, lookup);
                self.n_cached_drive = n_cached_drive_tokens;
                assert_eq!(self.n_cached.replace(n_cached_tokens), None, "a job begins once");
            }
            Event::PromptScores(scores) => self.scores.extend(scores),
            Event::Token { answer_idx, token, text } => {
                assert_eq!(self.answers[answer_idx].finish, None, "nothing after the end");
                self.answers[answer_idx].tokens.push(token);
                self.answers[answer_idx].text.push_str(&text);
            }
            Event::EndToken { answer_idx, token } => {
                assert!(token.logprob.is_some(), "else it is of no interest");
                assert_eq!(self.answers[answer_idx].finish, None, "nothing after the end");
                assert_eq!(self.end_tokens.insert(answer_idx, token), None, "one end");
            }
            Event::Finished { answer_idx, finish, rest, .. } => {
                let has_end_token = self.end_tokens.contains_key(&answer_idx);
                assert!(!has_end_token || finish == Finish::EndToken);
                self.answers[answer_idx].text.push_str(&rest);
                assert_eq!(self.answers[answer_idx].finish.replace(finish), None, "one end");
            }
            Event::Failed(error) => self.failure = Some(error.to_string()),
            other => panic!("not expected: {other:?}"),
        }
    }

    fn is_over(&self) -> bool {
        self.failure.is_some() || self.answers.iter().all(|answer| answer.finish.is_some())
    }

    pub(crate) fn n_tokens(&self) -> usize {
        self.answers.iter().map(|answer| answer.tokens.len()).sum()
    }
}

/// A job that was submitted.
pub(crate) struct TestJob {
    pub(crate) job: Job,
    outcome: Arc<(Mutex<JobOutcome>, Condvar)>,
    is_ready: Arc<AtomicBool>,
    pub(crate) ticket: Option<Ticket>,
}

struct OutcomeSink {
    outcome: Arc<(Mutex<JobOutcome>, Condvar)>,
    is_ready: Arc<AtomicBool>,
}

impl Sink for OutcomeSink {
    fn put(&mut self, event: Event) {
        self.outcome.0.lock().unwrap().record(event);
        self.outcome.1.notify_all();
    }

    fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Relaxed)
    }
}

impl TestJob {
    /// Submits a job.
    pub(crate) fn new(service: &Service, job: Job) -> Self {
        let answers = vec![AnswerLog::default(); job.n_answers];
        let outcome =
            Arc::new((Mutex::new(JobOutcome { answers, ..JobOutcome::default() }), Condvar::new()));
        let is_ready = Arc::new(AtomicBool::new(true));
        let sink = OutcomeSink { outcome: Arc::clone(&outcome), is_ready: Arc::clone(&is_ready) };
        let ticket = Some(service.submit(job.clone(), Box::new(sink)).unwrap());
        Self { job, outcome, is_ready, ticket }
    }

    /// Waits until the recorded events meet a condition.
    pub(crate) fn wait_for(&self, what: &str, is_true: impl Fn(&JobOutcome) -> bool) -> JobOutcome {
        let outcome = self.outcome.0.lock().unwrap();
        let waited =
            self.outcome.1.wait_timeout_while(outcome, PATIENCE, |outcome| !is_true(outcome));
        let (outcome, timeout) = waited.unwrap();
        assert!(!timeout.timed_out(), "waited in vain for {what}: {outcome:?}");
        outcome.clone()
    }

    /// Waits for the end of a job that does not fail.
    pub(crate) fn end(&self) -> JobOutcome {
        let outcome = self.wait_for("the end", JobOutcome::is_over);
        assert_eq!(outcome.failure, None);
        outcome
    }

    /// Returns the events so far.
    pub(crate) fn so_far(&self) -> JobOutcome {
        self.outcome.0.lock().unwrap().clone()
    }

    /// Cancels the job.
    pub(crate) fn give_up(&mut self) {
        self.ticket = None;
    }

    pub(crate) fn set_ready(&self, service: &Service, is_ready: bool) {
        self.is_ready.store(is_ready, Ordering::Relaxed);
        service.wake();
    }
}

/// Two endless answers to each of some jobs, paused after a few tokens, as at clients that do not
/// read on.
pub(crate) fn paused<const N: usize>(service: &Service, jobs: [Job; N]) -> [TestJob; N] {
    jobs.map(|mut job| {
        job.n_answers = 2;
        let test_job = TestJob::new(service, job);
        test_job.wait_for("some tokens", |outcome| outcome.n_tokens() > 2);
        test_job.set_ready(service, false);
        test_job
    })
}

/// Resumes paused answers, and checks that they are the same as alone.
pub(crate) fn check_they_go_on(service: &Service, paused: &[TestJob], n_context: usize) {
    for test_job in paused {
        let n_tokens_max = test_job.job.n_answers * test_job.job.n_tokens_max.expect("a limit");
        assert!(test_job.so_far().n_tokens() < n_tokens_max, "it was paused");
        test_job.set_ready(service, true);
    }
    for test_job in paused {
        let alone = [0, 1].map(|answer_idx| DEMO.alone(&test_job.job, answer_idx, n_context));
        assert_eq!(test_job.end().answers, alone);
    }
}

/// Waits until a service has no job, and its counters tell of the last one: a job is over a little
/// before they do, and reports are made after that.
pub(crate) fn wait_until_idle(service: &Service) {
    wait_until("all jobs to be over", || service.is_idle());
    let (sender, receiver) = mpsc::channel();
    service.ask_experts(Box::new(move |report| drop(sender.send(report))));
    // A service that closed its engine meanwhile has no report to make.
    drop(receiver.recv_timeout(PATIENCE));
}

/// Waits until something is true of a service.
pub(crate) fn wait_until(what: &str, is_true: impl Fn() -> bool) {
    for _ in 0..PATIENCE.as_millis() {
        if is_true() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    panic!("waited in vain for {what}");
}
