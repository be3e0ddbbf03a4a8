//! Sessions that have less memory than they need.

use std::sync::Arc;

use moeflux::TokenId;
use moeflux_schedule::{Job, Options, Refusal, Service, State};

use crate::support::{
    BLOCK, DEMO, NullSink, TestJob, check_they_go_on, leave_room, paused, wait_until,
    wait_until_idle,
};

const CONTEXT: usize = 4000;

/// A service whose sessions have room for this number of pages.
fn service(n_pieces: usize) -> Service {
    let open = move || {
        let engine = DEMO.open()?;
        leave_room(&engine, n_pieces);
        Ok(engine)
    };
    let mut options = Options::new(CONTEXT);
    options.n_sessions = 3;
    let text = Arc::clone(&DEMO.text);
    Service::start(Box::new(open), text, options).unwrap()
}

fn tokens(n_tokens: usize) -> Vec<TokenId> {
    let text = "A slice is a view into a block of memory, and a pointer with a length. ";
    let mut tokens = DEMO.tokens(&text.repeat(n_tokens.div_ceil(12)));
    tokens.truncate(n_tokens);
    tokens
}

/// An answer that does not end before its length is reached.
fn endless(prompt: Vec<TokenId>, n_tokens: usize) -> Job {
    let mut job = DEMO.job(prompt, n_tokens);
    job.sampling.logit_bias = DEMO.text.end_tokens().iter().map(|it| (*it, -1000.0)).collect();
    job
}

/// Each is answered as alone.
fn check(service: &Service, jobs: impl IntoIterator<Item = Job>) {
    let test_jobs: Vec<_> = jobs.into_iter().map(|job| TestJob::new(service, job)).collect();
    for test_job in &test_jobs {
        let outcome = test_job.end();
        assert_eq!(outcome.answers, [DEMO.alone(&test_job.job, 0, CONTEXT)]);
        if test_job.job.scores_prompt {
            let scored: Vec<_> = outcome.scores.iter().map(|it| it.token).collect();
            assert_eq!(scored, test_job.job.prompt, "each token is scored once");
        }
    }
}

#[test]
fn a_prompt_that_begins_like_a_running_one_waits_for_room() {
    let mut longer = tokens(30);
    longer.extend(DEMO.tokens("Rc is a pointer. ").iter().cycle().take(1500));
    check(&service(2), [endless(tokens(40), 300), endless(longer, 20)]);
}

#[test]
fn a_prompt_gives_way_to_an_answer_that_grows() {
    let mut read = endless(DEMO.tokens(&"let x = 3; ".repeat(400)), 20);
    read.prompt.truncate(2000);
    read.scores_prompt = true;
    check(&service(3), [endless(tokens(BLOCK - 20), 60), read]);
}

#[test]
fn an_answer_without_room_waits_for_the_end_of_another() {
    check(&service(2), [endless(tokens(BLOCK - 8), 30), endless(DEMO.tokens("fn"), 200)]);
}

#[test]
fn a_paused_answer_gives_up_its_memory_and_is_read_again() {
    let service = service(3);
    let slow = paused(&service, [endless(tokens(30), 40), endless(tokens(50), 40)]);
    // It needs all of the memory.
    check(&service, [endless(tokens(2 * BLOCK + 20), 30)]);
    check_they_go_on(&service, &slow, CONTEXT);
    wait_until_idle(&service);
}

#[test]
fn answers_that_can_never_fit_are_refused() {
    let service = service(1);
    let test_job = TestJob::new(&service, endless(tokens(2 * BLOCK), 20));
    let outcome = test_job.wait_for("the failure", |outcome| outcome.failure.is_some());
    assert!(outcome.failure.is_some_and(|it| it.contains("needs")));
    check(&service, [endless(tokens(40), 30)]);
}

/// Masks that violate their contract.
#[derive(Debug)]
struct Broken;

impl moeflux_schedule::Masks for Broken {
    fn mask(&self) -> Box<dyn moeflux::sample::LogitMask> {
        panic!("as the test wants it");
    }
}

#[test]
fn a_panicked_thread_keeps_no_job_waiting() {
    let service = service(4);
    let running = TestJob::new(&service, endless(tokens(40), 2000));
    running.wait_for("some tokens", |outcome| outcome.n_tokens() > 2);
    let mut job = endless(tokens(20), 5);
    job.masks = Some(Arc::new(Broken));
    for test_job in [TestJob::new(&service, job), running] {
        let outcome = test_job.wait_for("the failure", |outcome| outcome.failure.is_some());
        assert!(outcome.failure.is_some_and(|it| it.contains("internal error in the scheduler")));
    }
    wait_until("its state", || service.state() == State::Broken);
    let refused = service.submit(endless(tokens(20), 5), Box::new(NullSink)).unwrap_err();
    assert!(matches!(refused, Refusal::Closed));
}
