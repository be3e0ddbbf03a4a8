//! Models that can be asked, jobs that are heard of, and what each gives alone.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex};
use std::time::Duration;

use moeflux::provider::config::Configure;
use moeflux::provider::model::Model;
use moeflux::provider::text::{byte_tokenizer_config_json, byte_tokenizer_json};
use moeflux::sample::{LogitMask, SamplerConfig};
use moeflux::{Engine, EngineBuilder, Error, Finish, ModelText, ReadWay, StopStrings, TokenId};
use moeflux_schedule::{Event, Job, Masks, Missed, Options, Owner, Scored, Service, Sink, Ticket};
use moeflux_testing::temp_dir::TempDir;

/// Far more than any test takes: a test that waits for ever says so.
const PATIENCE: Duration = Duration::from_secs(120);

/// Sessions take memory for this many positions at once.
pub(crate) const PIECE: usize = 1024;

/// The rest of the tests' process, and sessions.
const MEMORY_BYTES: u64 = 512 << 20;

/// A folder with a model and its text.
pub(crate) struct Subject {
    dir: PathBuf,
    n_rows: usize,
    pub(crate) text: Arc<ModelText>,
    pub(crate) cold: Engine,
    _copy: Option<TempDir>,
}

/// The model in the box.
pub(crate) static DEMO: LazyLock<Subject> = LazyLock::new(|| {
    let dir = moeflux_demo::unpack(&std::env::temp_dir()).unwrap();
    Subject::new(dir, 64, None)
});

/// A model of random weights in which all layers but a few are recurrent.
pub(crate) static RECURRENT: LazyLock<Subject> = LazyLock::new(|| Subject::golden("qwen3_next"));

/// A model of random weights with attention in all layers.
pub(crate) static ATTENTION: LazyLock<Subject> = LazyLock::new(|| Subject::golden("qwen3_moe"));

impl Subject {
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

    /// An engine that says at once when there is no memory for another session.
    pub(crate) fn open(&self) -> moeflux::Result<Engine> {
        self.builder().load()
    }

    /// The same with room for so many experts, which are read from a drive.
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

    /// What an answer to a job is, computed alone and cold.
    pub(crate) fn alone(&self, job: &Job, answer_idx: usize, context: usize) -> Answer {
        let mut sampling: SamplerConfig = job.sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(answer_idx as u64);
        let n_tokens_max = job.n_tokens_max.unwrap_or(usize::MAX);
        let generation = self.text.generation(sampling, n_tokens_max).unwrap();
        let mut generation = generation.with_stops(job.stops.clone());
        if job.masks.is_some() {
            // A greedy choice is the same whether what is forced is said or not.
            let tells = job.sampling.temperature > 0.0;
            generation = generation.with_mask(Counting { tells, ..Counting::default() });
        }
        let mut session = self.cold.session(context).unwrap();
        let mut answer = Answer::default();
        let finish = generation.run(&mut session, &job.prompt, &mut |event| {
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

/// Behind each token that is chosen some are forced, which count on from it.
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

/// Takes all memory for sessions but this.
pub(crate) fn leave_room(engine: &Engine, n_pieces: usize) {
    let mut taken = Vec::new();
    loop {
        let reserved = engine.session(PIECE).and_then(|mut session| {
            session.reserve(PIECE)?;
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
pub(crate) struct Nobody;

impl Sink for Nobody {
    fn put(&mut self, _event: Event) {}
}

/// What was heard of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<Scored>,
    pub(crate) text: String,
    pub(crate) finish: Option<Finish>,
}

/// What was heard of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    pub(crate) n_cached: Option<usize>,
    pub(crate) missed: Option<Missed>,
    pub(crate) scores: Vec<Scored>,
    pub(crate) answers: Vec<Answer>,
    /// The tokens that ended answers, by their numbers, where log-probabilities were asked for.
    pub(crate) end_tokens: BTreeMap<usize, Scored>,
    pub(crate) failure: Option<String>,
}

impl Heard {
    fn hear(&mut self, event: Event) {
        match event {
            Event::Begun { n_cached_tokens, missed } => {
                self.missed = missed;
                assert_eq!(self.n_cached.replace(n_cached_tokens), None, "a job begins once");
            }
            Event::PromptScores(scores) => self.scores.extend(scores),
            Event::Token { answer_idx, token, text } => {
                assert_eq!(self.answers[answer_idx].finish, None, "nothing behind the end");
                self.answers[answer_idx].tokens.push(token);
                self.answers[answer_idx].text.push_str(&text);
            }
            Event::EndToken { answer_idx, token } => {
                assert!(token.logprob.is_some(), "else it is of no interest");
                assert_eq!(self.answers[answer_idx].finish, None, "nothing behind the end");
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
pub(crate) struct Asked {
    pub(crate) job: Job,
    heard: Arc<(Mutex<Heard>, Condvar)>,
    is_ready: Arc<AtomicBool>,
    pub(crate) ticket: Option<Ticket>,
}

struct Recorder {
    heard: Arc<(Mutex<Heard>, Condvar)>,
    is_ready: Arc<AtomicBool>,
}

impl Sink for Recorder {
    fn put(&mut self, event: Event) {
        self.heard.0.lock().unwrap().hear(event);
        self.heard.1.notify_all();
    }

    fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Relaxed)
    }
}

impl Asked {
    /// Submits a job.
    pub(crate) fn new(service: &Service, job: Job) -> Self {
        let answers = vec![Answer::default(); job.n_answers];
        let heard = Arc::new((Mutex::new(Heard { answers, ..Heard::default() }), Condvar::new()));
        let is_ready = Arc::new(AtomicBool::new(true));
        let sink = Recorder { heard: Arc::clone(&heard), is_ready: Arc::clone(&is_ready) };
        let ticket = Some(service.submit(job.clone(), Box::new(sink)).unwrap());
        Self { job, heard, is_ready, ticket }
    }

    /// Waits until something is true of what was heard.
    pub(crate) fn wait_for(&self, what: &str, is_true: impl Fn(&Heard) -> bool) -> Heard {
        let heard = self.heard.0.lock().unwrap();
        let waited = self.heard.1.wait_timeout_while(heard, PATIENCE, |heard| !is_true(heard));
        let (heard, timeout) = waited.unwrap();
        assert!(!timeout.timed_out(), "waited in vain for {what}: {heard:?}");
        heard.clone()
    }

    /// Waits for the end of a job that does not fail.
    pub(crate) fn end(&self) -> Heard {
        let heard = self.wait_for("the end", Heard::is_over);
        assert_eq!(heard.failure, None);
        heard
    }

    /// What was heard so far.
    pub(crate) fn so_far(&self) -> Heard {
        self.heard.0.lock().unwrap().clone()
    }

    /// Gives the job up.
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
pub(crate) fn paused<const N: usize>(service: &Service, jobs: [Job; N]) -> [Asked; N] {
    jobs.map(|mut job| {
        job.n_answers = 2;
        let asked = Asked::new(service, job);
        asked.wait_for("some tokens", |heard| heard.n_tokens() > 2);
        asked.set_ready(service, false);
        asked
    })
}

/// Paused answers go on, and are as alone.
pub(crate) fn check_they_go_on(service: &Service, paused: &[Asked], n_context: usize) {
    for asked in paused {
        let n_tokens_max = asked.job.n_answers * asked.job.n_tokens_max.expect("a limit");
        assert!(asked.so_far().n_tokens() < n_tokens_max, "it was paused");
        asked.set_ready(service, true);
    }
    for asked in paused {
        let alone = [0, 1].map(|answer_idx| DEMO.alone(&asked.job, answer_idx, n_context));
        assert_eq!(asked.end().answers, alone);
    }
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
