//! Random scripts over sessions: steps of mixed feeds, cancelled and failing ones, answers beside a
//! step that waits, forks, checkpoints, snapshots, and growth over the end of a piece. Whatever
//! happened, each session ends with the bits of a cold one that was fed the same tokens alone.

use std::ops::ControlFlow;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use moeflux::provider::backend::Arithmetic;
use moeflux::provider::config::{BackendKind, EngineConfig, StreamingConfig};
use moeflux::provider::engine::{Engine, EngineSpec};
use moeflux::provider::error::{Error, Result};
use moeflux::provider::ids::TokenId;
use moeflux::provider::session::{
    Feed, N_ROWS_BESIDE, Session, Snapshot, StepOutput, StepUnderWay, Wanted, step,
};
use moeflux_io::Faults;
use moeflux_testing::cases::GoldenCase;
use moeflux_testing::drives::{SimulatedCheckpoint, packed, transient};
use moeflux_testing::random::{Rng, seeds};
use moeflux_testing::temp_dir::TempDir;

use crate::support::{config, open_as};

/// One of each family that differs in how it attends or routes.
const FAMILIES: [&str; 8] = [
    "qwen3_next-bf16",
    "qwen3_moe-bf16",
    "deepseek_v3-bf16",
    "mlx-qwen3_5_moe-q4-g64-bf16",
    "glm4_moe-bf16",
    "mlx-qwen3_next-q6-g32-f16",
    "glm_moe_dsa-bf16-sparse",
    "qwen4_exp-bf16-sparse",
];
const ARITHMETICS: [Arithmetic; 3] = [Arithmetic::F32, Arithmetic::Int8, Arithmetic::Int8Kv8];

const N_ROWS: usize = 24;
const N_SLOTS: usize = 7;
const N_SESSIONS_MAX: usize = 5;

/// Tokens that a script's sessions begin with: none, or enough that a page ends soon.
const BASES: [usize; 2] = [0, 1010];
const CONTEXT: usize = 2000;

/// A model on a drive, its results there, and the beginnings of scripts.
struct Subject {
    packed: TempDir,
    cold: Engine,
    arithmetic: Arithmetic,
    vocab: usize,
    bases: [(Vec<TokenId>, Vec<u8>); BASES.len()],
}

impl Subject {
    fn new(name: &str, arithmetic: Arithmetic) -> Self {
        let case = GoldenCase::load(name);
        let packed = packed(&case.dir);
        let cold = open_as(packed.path(), arithmetic, 64);
        let vocab = cold.spec().vocab;
        let bases = BASES.map(|n_tokens| {
            let tokens: Vec<_> = case.tokens.iter().copied().cycle().take(n_tokens).collect();
            let mut session = cold.session(CONTEXT).unwrap();
            session
                .feed(&tokens, Wanted::None, &mut |_| ControlFlow::Continue(()), &mut |_, _| Ok(()))
                .unwrap();
            let mut saved = Vec::new();
            session.save_state(&mut saved).unwrap();
            (tokens, saved)
        });
        Self { packed, cold, arithmetic, vocab, bases }
    }

    fn config(&self) -> EngineConfig {
        let streaming =
            StreamingConfig { n_slots_max: Some(N_SLOTS), ..StreamingConfig::default() };
        EngineConfig { streaming, ..config(BackendKind::Cpu, self.arithmetic, (N_ROWS, 1)) }
    }
}

/// A session, and the tokens that it should hold.
struct Held {
    session: Session,
    tokens: Vec<TokenId>,
}

/// A script under way.
struct Script<'a> {
    subject: &'a Subject,
    rng: Rng,
    engine: Engine,
    base: &'a (Vec<TokenId>, Vec<u8>),
    held: Vec<Held>,
    /// With all tokens up to their ends.
    snapshots: Vec<(Snapshot, Vec<TokenId>)>,
    has_faults: bool,
    drive: SimulatedCheckpoint<'a>,
}

/// The tokens fed to one session in a step.
struct Plan {
    at: usize,
    tokens: Vec<TokenId>,
    is_answer: bool,
    marks: Vec<usize>,
    /// Layers after which it is cancelled.
    cancelled_after: Option<usize>,
}

impl<'a> Script<'a> {
    fn new(subject: &'a Subject, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let drive = SimulatedCheckpoint::new(subject.packed.path(), transient(seed));
        let engine = drive.open(&subject.config());
        let base = &subject.bases[rng.below(BASES.len())];
        let (held, snapshots) = (Vec::new(), Vec::new());
        Self { subject, rng, engine, base, held, snapshots, has_faults: false, drive }
    }

    fn run(&mut self) {
        self.begin_session();
        for _ in 0..self.rng.between(4, 14) {
            match self.rng.below(12) {
                0..=4 => self.step(),
                5 => self.prompt(),
                6 => self.fork(),
                7 => self.take_snapshot(),
                8 => self.resume(),
                9 => self.go_back(),
                10 => self.come_or_go(),
                _ => self.switch_faults(),
            }
            for held in &self.held {
                assert!(held.session.tokens() == held.tokens, "{:?}", self.lens());
            }
        }
        self.set_faults(Faults::default());
        while let Some(held) = self.held.pop() {
            self.check(held);
        }
    }

    /// Tokens that each session holds, and should.
    fn lens(&self) -> Vec<(usize, usize)> {
        self.held.iter().map(|held| (held.session.tokens().len(), held.tokens.len())).collect()
    }

    fn begin_session(&mut self) {
        let mut session = self.engine.session(CONTEXT).unwrap();
        session.load_state(&mut &self.base.1[..]).unwrap();
        self.held.push(Held { session, tokens: self.base.0.clone() });
    }

    fn random_tokens(&mut self, n_max: usize) -> Vec<TokenId> {
        let n = self.rng.between(1, n_max);
        let token = |rng: &mut Rng| TokenId(u32::try_from(rng.below(self.subject.vocab)).unwrap());
        (0..n).map(|_| token(&mut self.rng)).collect()
    }

    fn plan(&mut self, at: usize, n_max: usize) -> Plan {
        let is_answer = n_max == 1 || self.rng.coin();
        let tokens = self.random_tokens(if is_answer { 1 } else { n_max });
        let begin = self.held[at].tokens.len();
        let is_marked = !is_answer && self.rng.coin();
        let mut marks: Vec<usize> = (begin + 1..=begin + tokens.len()).collect();
        marks.retain(|_| is_marked && self.rng.below(3) == 0);
        let cancelled_after = (self.rng.below(4) == 0).then(|| self.rng.below(3));
        Plan { at, tokens, is_answer, marks, cancelled_after }
    }

    /// Some of the sessions together, and perhaps others beside them.
    fn step(&mut self) {
        let mut at: Vec<usize> = (0..self.held.len()).collect();
        self.rng.shuffle(&mut at);
        let (within, beside) = at.split_at(self.rng.between(1, at.len()));
        let n_max = N_ROWS / within.len();
        let within: Vec<Plan> = within.iter().map(|at| self.plan(*at, n_max)).collect();
        let beside: Vec<Plan> = beside.iter().map(|at| self.plan(*at, 1)).collect();
        assert!(beside.len() <= N_ROWS_BESIDE);
        let beside_after = self.rng.below(3);
        let mut feeds = feeds_of(&mut self.held, [&within, &beside]);
        let flags: Vec<AtomicBool> = within.iter().map(|_| AtomicBool::default()).collect();
        let mut waiting: Vec<Feed<'_>> = feeds
            .drain(..within.len())
            .zip(&flags)
            .map(|(feed, flag)| feed.cancelled_by(Some(flag)))
            .collect();
        let mut output = StepOutput::default();
        let mut under_way = StepUnderWay::begin(&mut waiting).unwrap();
        let mut n_layers_done = 0;
        let mut has_more = true;
        while has_more || n_layers_done <= beside_after {
            if n_layers_done == beside_after {
                step(&mut feeds, &mut output).unwrap();
            }
            for (plan, flag) in within.iter().zip(&flags) {
                let is_cancelled = plan.cancelled_after.is_some_and(|n| n <= n_layers_done);
                flag.store(is_cancelled, Ordering::Relaxed);
            }
            has_more = under_way.advance().unwrap();
            n_layers_done += 1;
        }
        output.clear();
        while under_way.next_logits(&mut output).unwrap() {}
        under_way.commit().unwrap();
        let outcomes: Vec<_> =
            waiting.iter_mut().chain(&mut feeds).map(|feed| feed.outcome()).collect();
        drop((waiting, feeds));
        for (plan, outcome) in within.iter().chain(&beside).zip(outcomes) {
            self.note(plan, &outcome);
        }
    }

    /// A session holds its tokens more, or there is a reason why not.
    fn note(&mut self, plan: &Plan, outcome: &Result<()>) {
        match outcome {
            Ok(()) => self.held[plan.at].tokens.extend(&plan.tokens),
            Err(Error::Cancelled) => assert!(plan.cancelled_after.is_some()),
            Err(Error::Expert { .. }) => assert!(self.has_faults),
            Err(other) => panic!("{other}"),
        }
    }

    /// A prompt of several steps, which may be cancelled between two layers.
    fn prompt(&mut self) {
        let at = self.rng.below(self.held.len());
        let tokens = self.random_tokens(2 * N_ROWS);
        let mut n_left = self.rng.below(20);
        let watch = &mut |_| {
            n_left = n_left.saturating_sub(1);
            if n_left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let held = &mut self.held[at];
        let fed = held.session.feed(&tokens, Wanted::None, watch, &mut |_, _| Ok(()));
        match fed {
            Ok(()) => held.tokens.extend(tokens),
            Err(error) => {
                let is_expected = matches!(error, Error::Cancelled)
                    || self.has_faults && matches!(error, Error::Expert { .. });
                assert!(is_expected, "{error}");
                // Whole steps stay.
                let n_fed = held.session.tokens().len() - held.tokens.len();
                assert!(n_fed < tokens.len() && n_fed.is_multiple_of(N_ROWS));
                held.tokens.extend(&tokens[..n_fed]);
            }
        }
    }

    fn fork(&mut self) {
        if self.held.len() == N_SESSIONS_MAX {
            return;
        }
        let at = self.rng.below(self.held.len());
        let Held { session, tokens } = &mut self.held[at];
        let fork = Held { session: session.fork().unwrap(), tokens: tokens.clone() };
        self.held.push(fork);
    }

    /// Of a session's end, or of a checkpoint.
    fn take_snapshot(&mut self) {
        let at = self.rng.below(self.held.len());
        let Held { session, tokens } = &mut self.held[at];
        let mut ends = session.checkpoints();
        ends.push(tokens.len());
        let end = self.rng.pick(&ends);
        let begin = if self.rng.coin() { 0 } else { self.rng.below(end + 1) };
        let snapshot = session.snapshot(begin..end).unwrap();
        assert_eq!(snapshot.header().tokens(), &tokens[begin..end]);
        self.snapshots.push((snapshot, tokens[..end].to_vec()));
    }

    /// Into a new session, or after the same tokens of another; through bytes or not.
    fn resume(&mut self) {
        if self.snapshots.is_empty() || self.held.len() == N_SESSIONS_MAX {
            return;
        }
        let (snapshot, tokens) = &self.snapshots[self.rng.below(self.snapshots.len())];
        let begin = snapshot.header().positions().start;
        let mut session = self.engine.session(CONTEXT).unwrap();
        if begin > 0 {
            let same = self.held.iter_mut().find(|held| held.tokens == tokens[..begin]);
            let Some(same) = same else {
                session.resume(snapshot).unwrap_err();
                assert!(session.tokens().is_empty());
                return;
            };
            session = same.session.fork().unwrap();
        }
        if self.rng.coin() {
            let read = self.engine.read_snapshot(&mut snapshot.as_bytes()).unwrap();
            assert_eq!(read.header(), snapshot.header());
            session.resume(&read).unwrap();
        } else {
            session.resume(snapshot).unwrap();
        }
        self.held.push(Held { session, tokens: tokens.clone() });
    }

    fn go_back(&mut self) {
        let at = self.rng.below(self.held.len());
        let Held { session, tokens } = &mut self.held[at];
        let checkpoints = session.checkpoints();
        let len = match checkpoints.as_slice() {
            [] => {
                let len = self.rng.below(tokens.len() + 1);
                match session.truncate(len) {
                    Ok(()) => len,
                    Err(Error::CannotTruncateRecurrentState { .. }) => return,
                    Err(other) => panic!("{other}"),
                }
            }
            some => {
                let len = self.rng.pick(some);
                session.restore(len).unwrap();
                len
            }
        };
        tokens.truncate(len);
    }

    fn come_or_go(&mut self) {
        if self.held.len() < N_SESSIONS_MAX && self.rng.coin() {
            self.begin_session();
        } else if self.held.len() > 1 {
            let at = self.rng.below(self.held.len());
            let held = self.held.swap_remove(at);
            if self.rng.coin() {
                self.check(held);
            }
        } else {
            let Held { session, tokens } = &mut self.held[0];
            session.clear();
            tokens.clear();
        }
    }

    fn switch_faults(&mut self) {
        let seed = self.rng.bits();
        let lasting = Faults { n_lost: 20, ..transient(seed) };
        let faults = if self.has_faults { transient(seed) } else { lasting };
        self.set_faults(faults);
    }

    fn set_faults(&mut self, faults: Faults) {
        self.has_faults = faults.n_lost > 0;
        self.drive.switch.set(faults);
    }

    /// Checks that the next results are those of a new session, if no drive fails.
    fn check(&self, held: Held) {
        let Held { mut session, mut tokens } = held;
        let next = [TokenId(3), TokenId(1)];
        let found = match session.feed_last(&next) {
            Err(Error::Expert { .. }) if self.has_faults => return,
            found => found.unwrap(),
        };
        tokens.extend(next);
        let mut cold = self.subject.cold.session(CONTEXT).unwrap();
        let (base, saved) = &self.subject.bases[1];
        let n_known = if tokens.starts_with(base) && tokens.len() > base.len() {
            cold.load_state(&mut &saved[..]).unwrap();
            base.len()
        } else {
            0
        };
        assert!(cold.feed_last(&tokens[n_known..]).unwrap() == found, "other logits");
    }
}

/// Feeds for two steps, of which each session takes part in one.
fn feeds_of<'a>(held: &'a mut [Held], plans: [&'a [Plan]; 2]) -> Vec<Feed<'a>> {
    let mut sessions: Vec<Option<&mut Session>> =
        held.iter_mut().map(|held| Some(&mut held.session)).collect();
    let feed = |plan: &'a Plan| {
        let session = sessions[plan.at].take().expect("each session has one plan");
        match &plan.tokens[..] {
            [token] if plan.is_answer => Feed::answer(session, token),
            tokens => Feed::prompt(session, tokens).checkpoints(&plan.marks),
        }
    };
    plans.into_iter().flatten().map(feed).collect()
}

static SUBJECTS: LazyLock<Vec<Subject>> = LazyLock::new(|| {
    let all = FAMILIES.iter().flat_map(|name| ARITHMETICS.map(|arithmetic| (name, arithmetic)));
    all.map(|(name, arithmetic)| Subject::new(name, arithmetic)).collect()
});

#[test]
fn scripts_end_with_the_bits_of_a_cold_session() {
    for seed in seeds(200) {
        let n_subjects = SUBJECTS.len() as u64;
        let subject = &SUBJECTS[usize::try_from(seed % n_subjects).unwrap()];
        let script = std::panic::AssertUnwindSafe(|| Script::new(subject, seed).run());
        assert!(std::panic::catch_unwind(script).is_ok(), "seed {seed}");
    }
}
