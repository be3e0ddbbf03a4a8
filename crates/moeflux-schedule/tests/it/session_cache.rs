//! Which sessions are kept, and the reports about dropped ones.

use std::sync::Arc;

use moeflux::clock::VirtualClock;
use moeflux::step::{Feed, StepOutput, step};
use moeflux::{Engine, TokenId};
use moeflux_schedule::{
    DropReason, Job, KeptLimits, Missed, Options, Owner, PromptOutcome, Service,
};

use crate::support::{
    ATTENTION, BLOCK, DEMO, RECURRENT, ReferenceModel, TestJob, leave_room, wait_until,
    wait_until_idle,
};

const CONTEXT: usize = 2_000;

fn service(model: &ReferenceModel, kept: KeptLimits) -> Service {
    let mut options = Options::new(CONTEXT);
    options.kept = kept;
    model.service(options)
}

fn tokens(n_tokens: u32, seed: u32) -> Vec<TokenId> {
    (0..n_tokens).map(|n| TokenId(3 + (n * 31 + seed * 17 + n * n) % 150)).collect()
}

/// Runs a job. Returns the number of its cached tokens, and the dropped session that it missed.
fn run(service: &Service, job: Job) -> (usize, Option<Missed>) {
    let outcome = TestJob::new(service, job).end();
    assert_eq!(outcome.failure, None);
    wait_until_idle(service);
    (outcome.n_cached.unwrap(), outcome.missed)
}

/// A conversation of an agent: each turn has all of those before it, with their answers.
struct Agent {
    owner: Owner,
    seed: u32,
    history: Vec<TokenId>,
}

impl Agent {
    fn new(owner: usize, seed: u32) -> Self {
        Self { owner: Owner(owner), seed, history: tokens(200, seed) }
    }

    /// Runs the next turn. Returns the number of tokens read before, the number of cached tokens,
    /// and the dropped session that it missed.
    fn turn(
        &mut self,
        model: &ReferenceModel,
        service: &Service,
    ) -> (usize, usize, Option<Missed>) {
        let n_before = self.history.len();
        self.seed += 7;
        self.history.extend(tokens(20, self.seed));
        let mut job = model.job(self.history.clone(), 5);
        job.owner = self.owner;
        job.split_points = vec![200, self.history.len() - 2];
        let (n_cached, missed) = run(service, job);
        // The client repeats the answer in other tokens than the sampled ones.
        self.history.truncate(self.history.len() - 2);
        self.history.extend(tokens(7, self.seed + 1));
        (n_before, n_cached, missed)
    }
}

#[test]
fn agents_in_turn_read_nothing_twice() {
    for model in [&*ATTENTION, &*RECURRENT] {
        let service = service(model, KeptLimits::default());
        let mut agents = [Agent::new(0, 1), Agent::new(0, 400), Agent::new(1, 800)];
        for turn in 0..8 {
            for agent in &mut agents {
                let (n_before, n_cached, missed) = agent.turn(model, &service);
                assert_eq!(missed, None);
                if turn > 0 {
                    // Everything after the prompt of the turn before is new.
                    assert_eq!(n_cached, n_before - 7, "turn {turn}");
                }
            }
        }
        assert_eq!(service.stats().n_kept, 3, "each conversation once");
        assert!(service.stats().kept_bytes > 0);
    }
}

#[test]
fn the_last_conversation_of_each_owner_goes_last() {
    let kept = KeptLimits { n_sessions: 3, ..KeptLimits::default() };
    let service = service(&ATTENTION, kept);
    let job = |owner, seed| {
        let mut job = ATTENTION.job(tokens(50, seed), 3);
        job.owner = Owner(owner);
        job.split_points = vec![48];
        job
    };
    assert_eq!(run(&service, job(0, 1)), (0, None));
    for seed in 2..6 {
        assert_eq!(run(&service, job(1, seed)), (0, None));
    }
    assert_eq!(run(&service, job(0, 1)), (49, None), "the only one of its owner");
    assert_eq!(run(&service, job(1, 5)), (49, None));
    let (n_cached, missed) = run(&service, job(1, 2));
    let expected = Missed { n_tokens: 48, reason: DropReason::Count };
    assert_eq!((n_cached, missed), (0, Some(expected)));
    let stats = service.stats();
    assert_eq!(stats.n_missed[DropReason::Count as usize], 1);
    assert_eq!(stats.n_outcomes[PromptOutcome::Dropped as usize], 1);
    assert!(stats.n_dropped[DropReason::Count as usize] >= 2, "{:?}", stats.n_dropped);
}

#[test]
fn kept_sessions_stay_within_their_bytes() {
    let service = service(&ATTENTION, KeptLimits { n_bytes: Some(1), ..KeptLimits::default() });
    let job = || ATTENTION.job(tokens(50, 1), 1);
    assert_eq!(run(&service, job()), (0, None));
    let missed = Missed { n_tokens: 50, reason: DropReason::Bytes };
    assert_eq!(run(&service, job()), (0, Some(missed)));
    assert_eq!((service.stats().n_kept, service.stats().kept_bytes), (0, 0));
}

#[test]
fn answers_have_memory_before_kept_sessions() {
    let open = || {
        let engine = DEMO.open()?;
        leave_room(&engine, 2);
        Ok(engine)
    };
    let text = Arc::clone(&DEMO.text);
    let options = Options::new(CONTEXT);
    let service = Service::start(Box::new(open), text, options).unwrap();
    let job = |owner, seed| {
        let mut job = DEMO.job(tokens(1_200, seed), 1);
        job.owner = Owner(owner);
        job
    };
    assert_eq!(run(&service, job(0, 1)), (0, None));
    assert_eq!(run(&service, job(1, 2)), (0, None));
    let missed = Missed { n_tokens: 1_200, reason: DropReason::Answers };
    assert_eq!(run(&service, job(0, 1)), (0, Some(missed)));
}

#[test]
fn the_next_turn_is_worth_more_than_turns_that_were_gone_on_from() {
    let open = || {
        let engine = DEMO.open()?;
        leave_room(&engine, 6);
        Ok(engine)
    };
    let text = Arc::clone(&DEMO.text);
    let service = Service::start(Box::new(open), text, Options::new(CONTEXT)).unwrap();
    let mut history = tokens(200, 1);
    let mut n_before = 0;
    for turn in 0..20 {
        // Without split points, each turn leaves a session of its own.
        let (n_cached, _) = run(&service, DEMO.job(history.clone(), 5));
        assert!(n_cached + 1 >= n_before, "turn {turn}: {n_cached} of {n_before}");
        n_before = history.len();
        // Other tokens than those of the answer.
        history.extend(tokens(20, 9 + turn));
    }
}

/// The memory of a session of 640 tokens with its checkpoints, or a little more.
const ONE_SESSION_BYTES: u64 = 2_800_000;

/// Sessions have as much memory as one takes, and less than two take, before experts have to lend
/// some. The rest is taken by other sessions and, in smaller steps, by checkpoints of the last one.
fn leave_one_session(engine: &Engine) {
    let booked_bytes = || engine.session_room().booked_bytes;
    let lends = || engine.session_room().n_slots_lent > 0;
    let mut taken = Vec::new();
    while !lends() {
        let mut session = engine.session(BLOCK).unwrap();
        session.reserve(BLOCK).unwrap();
        taken.push(session);
    }
    taken.truncate(taken.len() - 4);
    let mut last = engine.session(BLOCK).unwrap();
    last.set_checkpoints_max(BLOCK);
    let mut checkpoint_bytes = 0;
    let mut tokens = tokens(100, 1).into_iter();
    while !lends() {
        let token = tokens.next().expect("fewer checkpoints are enough");
        step(&mut [Feed::prompt(&mut last, &[token])], &mut StepOutput::default()).unwrap();
        let before = booked_bytes();
        last.checkpoint(last.tokens().len()).unwrap();
        checkpoint_bytes = booked_bytes() - before;
    }
    let most_bytes = booked_bytes() - checkpoint_bytes - ONE_SESSION_BYTES;
    for position in last.checkpoints() {
        if booked_bytes() > most_bytes {
            last.forget(position);
        }
    }
    assert!(!lends() && 2 * checkpoint_bytes < ONE_SESSION_BYTES, "{checkpoint_bytes}");
    taken.push(last);
    Box::leak(taken.into_boxed_slice());
}

#[test]
fn experts_have_the_memory_of_forgotten_checkpoints_back() {
    let engine = DEMO.open_streaming(184).unwrap();
    leave_one_session(&engine);
    let mut session = engine.session(BLOCK).unwrap();
    session.set_checkpoints_max(BLOCK);
    for (idx, token) in tokens(u32::try_from(BLOCK).unwrap(), 1).into_iter().enumerate() {
        step(&mut [Feed::prompt(&mut session, &[token])], &mut StepOutput::default()).unwrap();
        session.checkpoint(idx + 1).unwrap();
        if engine.session_room().n_slots_lent > 0 {
            session.forget(idx + 1);
            assert_eq!(engine.session_room().n_slots_lent, 0, "the last one was too much");
            return;
        }
    }
    panic!("{BLOCK} checkpoints need no memory of experts");
}

#[test]
fn memory_moves_between_kept_sessions_and_experts() {
    let open = || {
        let engine = DEMO.open_streaming(184)?;
        leave_one_session(&engine);
        Ok(engine)
    };
    // Where prompts are read in no time, any wait for a drive is worth more than a session.
    let text = Arc::clone(&DEMO.text);
    let mut options = Options::new(CONTEXT);
    options.clock = Arc::new(VirtualClock::default());
    let service = Service::start(Box::new(open), text, options).unwrap();
    service.wait_until_open().unwrap();
    let job = |seed| {
        let mut job = DEMO.job(tokens(600, seed), 40);
        job.split_points = vec![598];
        job.sampling.logit_bias = DEMO.text.end_tokens().iter().map(|it| (*it, -1e3)).collect();
        job
    };
    let (first, second) = (job(1), job(2));
    let answer = |job: &Job| DEMO.alone(job, 0, CONTEXT);
    assert_eq!(TestJob::new(&service, first.clone()).end().answers, [answer(&first)]);
    wait_until("the first one to be kept", || service.is_idle() && service.stats().n_kept == 1);
    let test_job = TestJob::new(&service, second.clone());
    test_job.wait_for("some tokens", |outcome| outcome.n_tokens() > 2);
    assert!(service.stats().room.n_slots_lent > 0, "experts lend memory to the second session");
    assert_eq!(test_job.end().answers, [answer(&second)]);
    wait_until("the experts to have it back", || service.stats().room.n_slots_lent == 0);
    let stats = service.stats();
    assert_eq!(stats.n_dropped[DropReason::Experts as usize], 1, "{:?}", stats.n_dropped);
    assert_eq!(stats.n_kept, 1);
    // The one that was dropped is read again, to the same bits.
    let outcome = TestJob::new(&service, first.clone()).end();
    let missed = Missed { n_tokens: 598, reason: DropReason::Experts };
    assert_eq!((outcome.n_cached, outcome.missed), (Some(0), Some(missed)));
    assert_eq!(outcome.answers, [answer(&first)]);
}

#[test]
fn a_prompt_says_what_it_found() {
    for model in [&*ATTENTION, &*RECURRENT] {
        let service = service(model, KeptLimits::default());
        let found = |owner, prompt: Vec<TokenId>| {
            let split_points = vec![prompt.len() - 2];
            let job = Job { owner: Owner(owner), split_points, ..model.job(prompt, 5) };
            let lookup = TestJob::new(&service, job).end().lookup.unwrap();
            wait_until_idle(&service);
            (lookup.outcome, lookup.n_shared)
        };
        let first = tokens(200, 1);
        let then = |prompt: &[TokenId], seed| [prompt, &tokens(20, seed)].concat();
        assert_eq!(found(0, first.clone()), (PromptOutcome::Nothing, 0));
        let (outcome, n_shared) = found(0, then(&first, 2));
        assert!(outcome == PromptOutcome::Memory && n_shared >= 200, "{n_shared}");
        let (outcome, n_shared) = found(0, then(&first[..100], 3));
        assert!(outcome == PromptOutcome::Diverged && n_shared >= 100, "{n_shared}");
        assert!(n_shared < 110, "{n_shared}");
        assert_eq!(found(1, then(&first, 2)).0, PromptOutcome::Nothing, "another owner's");
        let stats = service.stats();
        let of = |outcome: PromptOutcome| stats.n_outcomes[outcome as usize];
        let counts = [PromptOutcome::Memory, PromptOutcome::Diverged, PromptOutcome::Nothing];
        assert_eq!((counts.map(of), stats.n_outcomes.iter().sum()), ([1, 1, 2], 4));
        assert!(stats.saved.is_none());
    }
}
