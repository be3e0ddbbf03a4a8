//! Prompts that share a prefix with tokens that were read before.

use moeflux::TokenId;
use moeflux_schedule::{Job, KeptLimits, Options, Owner};

use crate::support::{ATTENTION, RECURRENT, ReferenceModel, TestJob, wait_until_idle};

const CONTEXT: usize = 400;

fn options() -> Options {
    let mut options = Options::new(CONTEXT);
    options.n_sessions = 2;
    options
}

fn tokens(n_tokens: u32, seed: u32) -> Vec<TokenId> {
    (0..n_tokens).map(|n| TokenId(3 + (n * 31 + seed * 17 + n * n) % 150)).collect()
}

/// Runs a job, whose outcome must be the same as alone. Returns the number of its cached tokens.
#[track_caller]
fn n_cached(model: &ReferenceModel, service: &moeflux_schedule::Service, job: Job) -> usize {
    let test_job = TestJob::new(service, job);
    let outcome = test_job.end();
    assert_eq!(outcome.answers[0], model.alone(&test_job.job, 0, CONTEXT));
    wait_until_idle(service);
    outcome.n_cached.unwrap()
}

#[test]
fn a_conversation_goes_on_where_it_was() {
    for model in [&*ATTENTION, &*RECURRENT] {
        let service = model.service(options());
        let job = model.job(tokens(90, 1), 20);
        let answer = model.alone(&job, 0, CONTEXT).tokens;
        assert_eq!(n_cached(model, &service, job.clone()), 0);
        let mut next = job.prompt.clone();
        // The last token was reported, but not fed.
        next.extend(answer.iter().map(|it| it.token));
        let n_fed = next.len() - 1;
        next.extend(tokens(30, 2));
        assert_eq!(n_cached(model, &service, model.job(next, 10)), n_fed);
        assert_eq!(service.stats().n_kept, 1, "the conversation, not each of its turns");
    }
}

#[test]
fn an_answer_may_differ_in_the_history() {
    for model in [&*ATTENTION, &*RECURRENT] {
        let service = model.service(options());
        let mut job = model.job(tokens(90, 1), 20);
        job.split_points = vec![40, 87];
        assert_eq!(n_cached(model, &service, job.clone()), 0);
        // The history has the prompt but for its last three tokens, then other ones.
        let mut next = job.prompt[..87].to_vec();
        next.extend(tokens(40, 3));
        let mut next = model.job(next, 10);
        next.split_points = vec![40, 120];
        assert_eq!(n_cached(model, &service, next), 87);
        assert_eq!(service.stats().n_kept, 1, "the conversation went on");
    }
}

#[test]
fn conversations_with_the_same_instructions_share_them() {
    for model in [&*ATTENTION, &*RECURRENT] {
        let service = model.service(options());
        let job_with = |seed| {
            let mut prompt = tokens(90, 1)[..60].to_vec();
            prompt.extend(tokens(40, seed));
            let mut job = model.job(prompt, 10);
            job.split_points = vec![60, 98];
            job
        };
        assert_eq!(n_cached(model, &service, job_with(4)), 0);
        assert!((60..64).contains(&n_cached(model, &service, job_with(5))));
        assert_eq!(service.stats().n_kept, 2, "both conversations");
        // The first one is still whole: asked again, only the prompt's last token is read.
        assert_eq!(n_cached(model, &service, job_with(4)), 99);
    }
}

#[test]
fn a_job_waits_for_one_that_begins_alike() {
    for model in [&*ATTENTION, &*RECURRENT] {
        let service = model.service(options());
        let job_with = |seed| {
            let mut prompt = tokens(300, 1);
            prompt.extend(tokens(20, seed));
            let mut job = model.job(prompt, 5);
            job.split_points = vec![300];
            job
        };
        let test_jobs = [4, 5, 6].map(|seed| TestJob::new(&service, job_with(seed)));
        let outcomes = test_jobs.each_ref().map(TestJob::end);
        for (test_job, outcome) in test_jobs.iter().zip(&outcomes) {
            assert_eq!(outcome.answers[0], model.alone(&test_job.job, 0, CONTEXT));
        }
        assert_eq!(outcomes[0].n_cached, Some(0));
        // How far the first one is when the others come is not known; they wait for its end unless
        // it is near.
        let n_cached = [1, 2].map(|idx| outcomes[idx].n_cached.unwrap());
        assert!(n_cached.iter().all(|it| *it >= 300 - 64), "{n_cached:?}");
    }
}

#[test]
fn nothing_is_kept_beyond_the_limits() {
    let mut options = options();
    options.kept = KeptLimits { n_sessions: 0, n_states: 0, n_bytes: None };
    let service = RECURRENT.service(options);
    let job = RECURRENT.job(tokens(50, 1), 3);
    assert_eq!(n_cached(&RECURRENT, &service, job.clone()), 0);
    assert_eq!(n_cached(&RECURRENT, &service, job), 0);
    assert_eq!(service.stats().n_kept, 0);
    let mut options = Options::new(CONTEXT);
    options.kept = KeptLimits { n_sessions: 2, n_states: 1, n_bytes: None };
    let service = RECURRENT.service(options);
    for seed in 1..5 {
        assert_eq!(n_cached(&RECURRENT, &service, RECURRENT.job(tokens(50, seed), 3)), 0);
    }
    assert_eq!(service.stats().n_kept, 2);
}

#[test]
fn owners_do_not_go_on_from_each_other() {
    for model in [&*ATTENTION, &*RECURRENT] {
        let service = model.service(options());
        let mut job = model.job(tokens(90, 1), 20);
        assert_eq!(n_cached(model, &service, job.clone()), 0);
        job.owner = Owner(1);
        assert_eq!(n_cached(model, &service, job.clone()), 0, "of another owner");
        assert_eq!(service.stats().n_kept, 2);
        job.owner = Owner(0);
        assert_eq!(n_cached(model, &service, job), 89, "its own is still there");
    }
}
