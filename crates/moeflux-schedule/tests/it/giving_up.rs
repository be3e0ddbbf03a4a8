//! Cancelled jobs, and slow clients.

use moeflux::TokenId;
use moeflux_schedule::{Job, Options, Service};

use crate::support::{DEMO, TestJob, check_they_go_on, paused, wait_until, wait_until_idle};

const CONTEXT: usize = 4000;

fn service(n_sessions: usize) -> Service {
    let mut options = Options::new(CONTEXT);
    options.n_sessions = n_sessions;
    DEMO.service(options)
}

/// An answer that does not end before its length is reached.
fn endless(prompt: &str, n_tokens: usize) -> Job {
    let mut job = DEMO.job(DEMO.tokens(prompt), n_tokens);
    job.sampling.logit_bias = DEMO.text.end_tokens().iter().map(|it| (*it, -1000.0)).collect();
    job
}

fn long_prompt() -> Vec<TokenId> {
    let text = "A slice is a view into a block of memory, and a pointer with a length. ";
    let mut tokens = DEMO.tokens(&text.repeat(300));
    tokens.truncate(3500);
    tokens
}

#[test]
fn a_job_can_be_cancelled_while_it_waits() {
    let service = service(1);
    let running = TestJob::new(&service, endless("A slice is", 3000));
    let mut waiting = TestJob::new(&service, endless("Rc is", 20));
    let last = TestJob::new(&service, endless("u8 is", 20));
    running.wait_for("some tokens", |outcome| outcome.n_tokens() > 2);
    assert_eq!(service.stats().n_waiting, 2);
    waiting.give_up();
    wait_until("the queue to be shorter", || service.stats().n_waiting == 1);
    assert!(waiting.so_far().n_cached.is_none(), "it has not begun");
    drop(running);
    assert_eq!(last.end().answers, [DEMO.alone(&last.job, 0, CONTEXT)]);
    wait_until_idle(&service);
    assert_eq!(service.stats().n_cancelled, 2);
}

#[test]
fn a_repeated_prompt_continues_where_it_was_cancelled() {
    let service = service(2);
    let mut job = DEMO.job(long_prompt(), 5);
    let mut test_job = TestJob::new(&service, job.clone());
    let n_done = || test_job.ticket.as_ref().unwrap().progress().n_done;
    wait_until("half of the prompt", || n_done() > 1000);
    let progress = test_job.ticket.as_ref().unwrap().progress();
    assert_eq!(progress.n_total, 3500);
    assert!(progress.left.is_some());
    test_job.give_up();
    wait_until_idle(&service);
    let n_kept = test_job.so_far();
    assert_eq!(n_kept.n_tokens(), 0);
    job.sampling.seed = 8;
    let again = TestJob::new(&service, job);
    let outcome = again.end();
    assert!(outcome.n_cached > Some(900), "{:?}", outcome.n_cached);
    assert_eq!(outcome.answers, [DEMO.alone(&again.job, 0, CONTEXT)]);
}

#[test]
fn a_cancelled_answer_does_not_affect_others() {
    let service = service(3);
    let mut test_jobs: Vec<TestJob> = ["A slice is", "Rc is", "fn main"]
        .map(|prompt| TestJob::new(&service, endless(prompt, 300)))
        .into();
    test_jobs[1].wait_for("some tokens", |outcome| outcome.n_tokens() > 5);
    test_jobs[1].give_up();
    for idx in [0, 2] {
        let expected = DEMO.alone(&test_jobs[idx].job, 0, CONTEXT);
        assert_eq!(test_jobs[idx].end().answers, [expected]);
    }
    let outcome = test_jobs[1].so_far().answers.remove(0);
    let whole = DEMO.alone(&test_jobs[1].job, 0, CONTEXT);
    assert_eq!(outcome.tokens, whole.tokens[..outcome.tokens.len()]);
    assert_eq!(outcome.finish, None, "of a job that was given up nothing more is heard");
    wait_until_idle(&service);
}

#[test]
fn answers_go_on_while_a_long_prompt_is_read() {
    let service = service(2);
    let answering = TestJob::new(&service, endless("A slice is", 3000));
    answering.wait_for("some tokens", |outcome| outcome.n_tokens() > 2);
    let reading = TestJob::new(&service, DEMO.job(long_prompt(), 1));
    reading.wait_for("its beginning", |outcome| outcome.n_cached.is_some());
    let n_before = answering.so_far().n_tokens();
    reading.end();
    let n_between = answering.so_far().n_tokens() - n_before;
    assert!(n_between > 20, "{n_between} tokens of the answer in between");
    assert_eq!(answering.end().answers, [DEMO.alone(&answering.job, 0, CONTEXT)]);
}

#[test]
fn a_slow_reader_waits_alone() {
    let service = service(2);
    let slow = TestJob::new(&service, endless("A slice is", 300));
    slow.wait_for("some tokens", |outcome| outcome.n_tokens() > 2);
    slow.set_ready(&service, false);
    let quick = TestJob::new(&service, endless("Rc is", 200));
    assert_eq!(quick.end().answers, [DEMO.alone(&quick.job, 0, CONTEXT)]);
    wait_until("the scheduler to sleep", || service.stats().n_running == 1);
    let n_before = slow.so_far().n_tokens();
    assert!(n_before < 300, "it was paused");
    slow.set_ready(&service, true);
    assert_eq!(slow.end().answers, [DEMO.alone(&slow.job, 0, CONTEXT)]);
}

#[test]
fn paused_answers_have_no_places() {
    let service = service(2);
    let jobs = ["A slice is", "fn main", "struct", "let x"].map(|prompt| endless(prompt, 40));
    let slow = paused(&service, jobs);
    for prompt in ["Rc is", "u8 is", "A slice is"] {
        let quick = TestJob::new(&service, endless(prompt, 60));
        assert_eq!(quick.end().answers, [DEMO.alone(&quick.job, 0, CONTEXT)]);
    }
    assert!(service.stats().n_parked >= 2, "{:?}", service.stats());
    check_they_go_on(&service, &slow, CONTEXT);
    wait_until("all jobs to be over", || service.is_idle() && service.stats().n_parked == 0);
}

#[test]
fn a_parked_answer_can_be_cancelled() {
    let service = service(1);
    let mut slow = TestJob::new(&service, endless("A slice is", 3000));
    slow.wait_for("some tokens", |outcome| outcome.n_tokens() > 2);
    slow.set_ready(&service, false);
    TestJob::new(&service, endless("Rc is", 20)).end();
    slow.give_up();
    wait_until("all jobs to be over", || service.is_idle() && service.stats().n_parked == 0);
    assert_eq!(service.stats().n_cancelled, 1);
}

#[test]
fn the_end_of_a_service_ends_its_jobs() {
    let service = service(1);
    let test_jobs = [endless("A slice is", 3000), DEMO.job(long_prompt(), 5)]
        .map(|job| TestJob::new(&service, job));
    test_jobs[0].wait_for("some tokens", |outcome| outcome.n_tokens() > 2);
    drop(service);
    for test_job in test_jobs {
        assert_eq!(test_job.so_far().failure.as_deref(), Some("cancelled"));
    }
}
