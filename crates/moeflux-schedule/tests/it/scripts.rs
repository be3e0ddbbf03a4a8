//! Random scripts of jobs: each answer has the same bits alone, beside others, after a cancelled
//! job, paused, and with a cached prompt or a new one. No job reuses the prompt of another owner.

use std::sync::Arc;

use moeflux::TokenId;
use moeflux_schedule::{Job, KeptLimits, Options, Owner, Service};
use moeflux_testing::random::{Rng, seeds};

use crate::support::{
    ATTENTION, CountingMasks, JobOutcome, RECURRENT, ReferenceModel, TestJob, wait_until_idle,
};

const CONTEXT: usize = 300;

fn is_one_of(rng: &mut Rng, n: usize) -> bool {
    rng.below(n) == 0
}

/// Returns at least one token of the models' vocabulary.
fn tokens(rng: &mut Rng, n_tokens_max: usize) -> Vec<TokenId> {
    let n_tokens = 1 + rng.below(n_tokens_max);
    (0..n_tokens).map(|_| TokenId(u32::try_from(3 + rng.below(150)).unwrap())).collect()
}

/// A job that begins like one before, or like none.
fn job(model: &ReferenceModel, rng: &mut Rng, histories: &[Vec<TokenId>]) -> Job {
    let mut prompt = Vec::new();
    if !histories.is_empty() && !is_one_of(rng, 4) {
        let history = &histories[rng.below(histories.len())];
        let n_tokens = if is_one_of(rng, 2) { history.len() } else { rng.below(history.len() + 1) };
        prompt.extend_from_slice(&history[..n_tokens]);
    }
    prompt.extend(tokens(rng, 60));
    prompt.truncate(CONTEXT - 30);
    let n_tokens_max = rng.below(16);
    let mut job = model.job(prompt, n_tokens_max);
    job.split_points = (0..rng.below(3)).map(|_| rng.below(job.prompt.len() + 1)).collect();
    job.owner = Owner(rng.below(2));
    job.n_answers = if is_one_of(rng, 5) { 3 } else { 1 };
    job.sampling.seed = rng.below(1000) as u64;
    job.scores_prompt = is_one_of(rng, 8);
    if is_one_of(rng, 3) {
        (job.sampling.temperature, job.sampling.n_logprobs) = (0.0, None);
    }
    if is_one_of(rng, 3) {
        job.masks = Some(Arc::new(CountingMasks));
    }
    job
}

/// Tokens of a job that ended: its prompt, and an answer.
struct EarlierJob {
    job_number: usize,
    owner: Owner,
    tokens: Vec<TokenId>,
}

/// Most tokens that a job's prompt has in common with those of its owner's other jobs.
fn n_shared(job: &Job, job_number: usize, earlier: &[EarlierJob]) -> usize {
    let own = earlier.iter().filter(|it| it.owner == job.owner && it.job_number != job_number);
    let shared = own.map(|it| it.tokens.iter().zip(&job.prompt).take_while(|(a, b)| a == b));
    shared.map(Iterator::count).max().unwrap_or(0)
}

/// The jobs of a round and their outcomes.
struct Round {
    test_jobs: Vec<TestJob>,
    given_up: Vec<bool>,
}

impl Round {
    /// Some jobs are paused until all others have ended, and some are cancelled.
    fn run(service: &Service, jobs: Vec<Job>, rng: &mut Rng) -> Self {
        let mut test_jobs: Vec<_> =
            jobs.into_iter().map(|job| TestJob::new(service, job)).collect();
        let paused: Vec<bool> = test_jobs.iter().map(|_| is_one_of(rng, 4)).collect();
        let given_up: Vec<bool> = test_jobs.iter().map(|_| is_one_of(rng, 4)).collect();
        for (idx, test_job) in test_jobs.iter_mut().enumerate() {
            (0..rng.below(500)).for_each(|_| std::thread::yield_now());
            test_job.set_ready(service, !paused[idx]);
            if given_up[idx] {
                test_job.give_up();
            }
        }
        let is_awaited = |idx: &usize| !paused[*idx] && !given_up[*idx];
        (0..test_jobs.len()).filter(is_awaited).for_each(|idx| drop(test_jobs[idx].end()));
        test_jobs.iter().for_each(|test_job| test_job.set_ready(service, true));
        Self { test_jobs, given_up }
    }

    /// Returns the outcome of each job so far.
    fn outcomes(&self) -> Vec<JobOutcome> {
        let each = self.test_jobs.iter().zip(&self.given_up);
        each.map(|(test_job, given_up)| if *given_up { test_job.so_far() } else { test_job.end() })
            .collect()
    }
}

fn run(model: &ReferenceModel, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut options = Options::new(CONTEXT);
    options.n_sessions = 1 + rng.below(8);
    options.kept = KeptLimits { n_sessions: rng.below(4), n_states: rng.below(5), n_bytes: None };
    let service = model.service(options);
    let mut histories: Vec<Vec<TokenId>> = Vec::new();
    let mut earlier: Vec<EarlierJob> = Vec::new();
    let mut n_jobs_before = 0;
    for _ in 0..3 {
        let n_jobs = 1 + rng.below(8);
        let jobs = (0..n_jobs).map(|_| job(model, &mut rng, &histories)).collect::<Vec<_>>();
        let round = Round::run(&service, jobs, &mut rng);
        let outcomes = round.outcomes();
        for (idx, (test_job, outcome)) in round.test_jobs.iter().zip(&outcomes).enumerate() {
            for (answer_idx, answer) in outcome.answers.iter().enumerate() {
                let expected = model.alone(&test_job.job, answer_idx, CONTEXT);
                if round.given_up[idx] {
                    let n_tokens = answer.tokens.len();
                    assert_eq!(answer.tokens, expected.tokens[..n_tokens], "seed {seed}");
                } else {
                    assert_eq!(*answer, expected, "seed {seed}");
                }
                let answer = answer.tokens.iter().map(|it| it.token);
                let tokens = test_job.job.prompt.iter().copied().chain(answer).collect();
                let (owner, job_number) = (test_job.job.owner, n_jobs_before + idx);
                earlier.push(EarlierJob { job_number, owner, tokens });
            }
            histories.push(earlier[earlier.len() - outcome.answers.len()].tokens.clone());
        }
        for (idx, (test_job, outcome)) in round.test_jobs.iter().zip(&outcomes).enumerate() {
            let n_shared = n_shared(&test_job.job, n_jobs_before + idx, &earlier);
            let n_cached = outcome.n_cached.unwrap_or(0);
            assert!(n_cached <= n_shared, "seed {seed}: {n_cached} of {n_shared}");
        }
        n_jobs_before += n_jobs;
        drop(round);
        wait_until_idle(&service);
    }
}

#[test]
fn answers_are_the_same_whatever_happened_before_and_beside_them() {
    for seed in seeds(50) {
        run(if seed % 2 == 0 { &RECURRENT } else { &ATTENTION }, seed);
    }
}
