//! Jobs that end by themselves.

use moeflux::sample::Scorer;
use moeflux::step::Wanted;
use moeflux::{Error, Finish, StopStrings, TokenId};
use moeflux_schedule::{Options, Refusal, State};

use crate::support::{DEMO, NullSink, RECURRENT, TestJob, wait_until, wait_until_idle};

const CONTEXT: usize = 600;

fn options(n_sessions: usize) -> Options {
    let mut options = Options::new(CONTEXT);
    options.n_sessions = n_sessions;
    options
}

#[test]
fn jobs_at_the_same_time_are_answered_as_alone() {
    let service = DEMO.service(options(3));
    let questions = ["What is a slice?", "let mut", "fn", "Is Vec growable?", "u8 is", "Rc"];
    let jobs = (1..).zip(questions).map(|(n, it)| DEMO.job(DEMO.tokens(it), 8 * n));
    let test_jobs: Vec<TestJob> = jobs.map(|job| TestJob::new(&service, job)).collect();
    for test_job in &test_jobs {
        assert_eq!(test_job.end().answers, [DEMO.alone(&test_job.job, 0, CONTEXT)]);
    }
    wait_until_idle(&service);
    let stats = service.stats();
    let n_tokens: usize = test_jobs.iter().map(|it| it.so_far().n_tokens()).sum();
    assert_eq!(stats.n_answer_tokens, n_tokens as u64);
    assert_eq!(stats.first_token.count(), 6);
    assert_eq!(stats.between_tokens.count(), n_tokens as u64 - 6);
    assert_eq!(stats.n_ended + stats.n_cut, 6);
}

#[test]
fn several_answers_share_their_prompt() {
    for n_sessions in [1, 2, 8] {
        let service = DEMO.service(options(n_sessions));
        let mut job = DEMO.job(DEMO.tokens("A slice is"), 12);
        job.n_answers = 4;
        let test_job = TestJob::new(&service, job);
        let expected: Vec<_> = (0..4).map(|idx| DEMO.alone(&test_job.job, idx, CONTEXT)).collect();
        assert_eq!(test_job.end().answers, expected);
        assert_eq!(service.stats().n_prompt_tokens, test_job.job.prompt.len() as u64);
    }
}

#[test]
fn many_answers_do_not_keep_other_jobs_out() {
    let service = DEMO.service(options(1));
    let mut many = DEMO.job(DEMO.tokens("A slice is"), 60);
    many.n_answers = 6;
    many.sampling.logit_bias = DEMO.text.end_tokens().iter().map(|it| (*it, -1000.0)).collect();
    let many = TestJob::new(&service, many);
    let other = TestJob::new(&service, DEMO.job(DEMO.tokens("fn"), 5));
    other.end();
    let n_ended = many.so_far().answers.iter().filter(|it| it.finish.is_some()).count();
    assert!(n_ended < 6, "the other job had its turn");
    many.end();
}

#[test]
fn one_of_several_answers_can_be_cancelled() {
    let service = DEMO.service(options(2));
    let mut job = DEMO.job(DEMO.tokens("A slice is"), 500);
    job.n_answers = 2;
    job.sampling.logit_bias = DEMO.text.end_tokens().iter().map(|it| (*it, -1000.0)).collect();
    let test_job = TestJob::new(&service, job);
    test_job.wait_for("some tokens", |outcome| outcome.answers[1].tokens.len() > 3);
    test_job.ticket.as_ref().unwrap().cancel_one(1);
    let outcome =
        test_job.wait_for("the first answer", |outcome| outcome.answers[0].finish.is_some());
    assert_eq!(outcome.answers[0], DEMO.alone(&test_job.job, 0, CONTEXT));
    assert_eq!(outcome.answers[1].finish, None);
    wait_until_idle(&service);
}

#[test]
fn answers_end_by_stop_strings_and_limits() {
    let service = DEMO.service(options(2));
    let mut job = DEMO.job(DEMO.tokens("A slice is a"), 60);
    job.sampling.temperature = 0.0;
    let whole = TestJob::new(&service, job.clone()).end().answers.remove(0).text;
    let stop: String = whole.chars().skip(5).take(3).collect();
    job.stops = StopStrings::new(vec![stop.clone()]).unwrap();
    let outcome = TestJob::new(&service, job.clone()).end();
    assert_eq!(outcome.answers[0].text, whole[..whole.find(&stop).unwrap()]);
    assert_eq!(outcome.answers[0].finish, Some(Finish::StopString));
    job.n_tokens_max = Some(0);
    let outcome = TestJob::new(&service, job.clone()).end();
    assert_eq!((outcome.n_tokens(), outcome.answers[0].finish), (0, Some(Finish::Length)));
    job.n_tokens_max = None;
    job.stops = StopStrings::default();
    job.sampling.logit_bias = DEMO.text.end_tokens().iter().map(|it| (*it, -1000.0)).collect();
    let outcome = TestJob::new(&service, job.clone()).end();
    assert_eq!(outcome.answers[0].finish, Some(Finish::ContextFull));
    assert_eq!(job.prompt.len() + outcome.n_tokens(), CONTEXT + 1, "the last one is not fed");
}

#[test]
fn a_prompt_is_scored_by_the_logits_before_each_token() {
    let service = DEMO.service(options(1));
    let text = "A slice is a view into a block of memory. ".repeat(6);
    let mut job = DEMO.job(DEMO.tokens(&text), 2);
    job.scores_prompt = true;
    let outcome = TestJob::new(&service, job.clone()).end();
    let mut expected = vec![(job.prompt[0], None)];
    let mut scorer = Scorer::new(3);
    let mut session = DEMO.cold.session(CONTEXT).unwrap();
    let watch = &mut |_| std::ops::ControlFlow::Continue(());
    session
        .feed(&job.prompt, Wanted::All, watch, &mut |of, logits| {
            if let Some(token) = job.prompt.get(of.position.0 + 1) {
                expected.push((*token, scorer.score(logits, *token)?.logprob));
            }
            Ok(())
        })
        .unwrap();
    let found: Vec<_> = outcome.scores.iter().map(|it| (it.token, it.logprob)).collect();
    assert_eq!(found, expected);
    assert!(outcome.scores[1..].iter().all(|it| it.top.len() == 3));
    assert_eq!(outcome.answers, [DEMO.alone(&job, 0, CONTEXT)]);
    assert_eq!(TestJob::new(&service, job).end().n_cached, Some(0), "its logits are wanted again");
}

#[test]
fn jobs_that_cannot_run_are_refused_at_once() {
    let mut options = options(1);
    options.n_queue = 1;
    let service = DEMO.service(options);
    let refusal = |job| match service.submit(job, Box::new(NullSink)) {
        Ok(_) => panic!("it was taken"),
        Err(refusal) => refusal,
    };
    let long = DEMO.job(vec![TokenId(5); CONTEXT], 1);
    let expected = (CONTEXT, 1, CONTEXT);
    match refusal(long) {
        Refusal::TooLong { n_prompt_tokens, n_answer_tokens, n_context } => {
            assert_eq!((n_prompt_tokens, n_answer_tokens, n_context), expected);
        }
        other => panic!("{other:?}"),
    }
    let vocab = DEMO.text.vocab();
    let strange = TokenId(u32::try_from(vocab).unwrap());
    match refusal(DEMO.job(vec![TokenId(5), strange], 1)) {
        Refusal::Invalid(Error::Input(problem)) => {
            let expected = format!("token {vocab} at index 1 is not in the vocabulary of {vocab}");
            assert_eq!(problem, expected);
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(refusal(DEMO.job(Vec::new(), 1)), Refusal::Invalid(_)));
    let test_jobs = [1, 2].map(|_| {
        let mut job = DEMO.job(DEMO.tokens("A slice is"), 500);
        job.sampling.logit_bias = DEMO.text.end_tokens().iter().map(|it| (*it, -1e3)).collect();
        TestJob::new(&service, job)
    });
    match refusal(DEMO.job(DEMO.tokens("fn"), 1)) {
        Refusal::QueueFull { retry_after, .. } => assert!(retry_after.as_secs() >= 1),
        other => panic!("{other:?}"),
    }
    service.close();
    assert!(matches!(refusal(DEMO.job(DEMO.tokens("fn"), 1)), Refusal::Closed));
    assert_eq!(service.stats().n_refused, 5);
    service.cancel_all();
    for test_job in test_jobs {
        let outcome = test_job.wait_for("the end", |outcome| outcome.failure.is_some());
        assert_eq!(outcome.failure.as_deref(), Some("cancelled"));
    }
    wait_until_idle(&service);
}

#[test]
fn an_idle_model_frees_its_memory_and_loads_again() {
    let mut options = options(2);
    options.unload_after = Some(std::time::Duration::from_millis(20));
    let service = DEMO.service(options);
    service.wait_until_open().unwrap();
    for _ in 0..2 {
        let test_job = TestJob::new(&service, DEMO.job(DEMO.tokens("A slice is"), 8));
        let outcome = test_job.end();
        assert_eq!(outcome.answers, [DEMO.alone(&test_job.job, 0, CONTEXT)]);
        assert_eq!(outcome.n_cached, Some(0));
        drop(test_job);
        wait_until("the model to be unloaded", || service.state() == State::Unloaded);
    }
}

#[test]
fn a_model_that_cannot_be_opened_is_reported_and_tried_again() {
    let mut n_tries = 0;
    let open = move || {
        n_tries += 1;
        Err(Error::Machine(format!("try {n_tries}")))
    };
    let text = std::sync::Arc::clone(&RECURRENT.text);
    let service = moeflux_schedule::Service::start(Box::new(open), text, options(1)).unwrap();
    assert_eq!(service.wait_until_open().unwrap_err().to_string(), "try 1");
    wait_until("its state", || service.state() == State::Broken);
    let test_job = TestJob::new(&service, RECURRENT.job(vec![TokenId(5)], 1));
    let outcome = test_job.wait_for("the failure", |outcome| outcome.failure.is_some());
    assert_eq!(outcome.failure.as_deref(), Some("try 2"));
    wait_until_idle(&service);
}
