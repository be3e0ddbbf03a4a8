//! Conversations on a drive: after a restart, an eviction, a damaged file or a kill of the process,
//! each answer has the bits that it has alone.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use moeflux::{Finish, TokenId};
use moeflux_prefix::{
    ObjectFacts, ObjectKind, OwnerId, PrefixFolder, Store, StoreLimits, StoreRole, WallClock,
};
use moeflux_schedule::{
    DropReason, Job, Open, Options, Owner, PromptOutcome, SavedConversations, SavedPrompt, Service,
    SessionSaver, State,
};
use moeflux_testing::random::{Rng, seeds};
use moeflux_testing::temp_dir::TempDir;

use crate::support::{
    ATTENTION, DEMO, JobOutcome, LATENT, RECURRENT, ReferenceModel, TestJob, leave_room,
    wait_until, wait_until_idle,
};

const CONTEXT: usize = 1_600;

/// A clock that stands still.
#[derive(Debug)]
struct StoppedClock;

impl WallClock for StoppedClock {
    fn since_1970(&self) -> Duration {
        Duration::from_secs(1_800_000_000)
    }
}

fn open_store(dir: &Path, n_bytes_max: u64) -> Store {
    let folder = PrefixFolder::new(dir.to_owned(), Arc::new(StoppedClock));
    Store::open(folder, StoreLimits { n_bytes_max, write_bytes_per_day: u64::MAX }).unwrap()
}

/// Each owner but the third has an id.
fn owner_id(owner: Owner, store: &Store) -> Option<OwnerId> {
    match owner.0 {
        0 => Some(OwnerId::ANONYMOUS),
        1 => Some(store.owner("a key").unwrap()),
        _ => None,
    }
}

fn options(store: Store) -> Options {
    let of_owners = store.clone();
    let owners = Arc::new(move |owner| owner_id(owner, &of_owners));
    let mut options = Options::new(CONTEXT);
    options.n_sessions = 3;
    options.saved =
        Some(SavedConversations { store, owners, n_tokens_min: 8, n_tokens_at_risk: usize::MAX });
    options
}

/// A service over a folder. Dropping it is a restart.
fn service_over(model: &ReferenceModel, dir: &Path) -> Service {
    model.service(options(open_store(dir, u64::MAX)))
}

fn tokens(n_tokens: u32, seed: u32) -> Vec<TokenId> {
    (0..n_tokens).map(|n| TokenId(3 + (n * 31 + seed * 17 + n * n) % 150)).collect()
}

/// Runs a job, whose outcome must be the same as alone.
#[track_caller]
fn run(model: &ReferenceModel, service: &Service, job: Job) -> JobOutcome {
    let test_job = TestJob::new(service, job);
    let outcome = test_job.end();
    assert_eq!(outcome.answers[0], model.alone(&test_job.job, 0, CONTEXT));
    outcome
}

fn of(outcome: &JobOutcome) -> PromptOutcome {
    outcome.lookup.as_ref().expect("it was looked up").outcome
}

/// Does the same. Returns the number of its cached tokens, all of which must be from the drive.
#[track_caller]
fn n_cached(model: &ReferenceModel, service: &Service, job: Job) -> usize {
    let outcome = run(model, service, job);
    assert_eq!(outcome.n_cached, Some(outcome.n_cached_drive));
    outcome.n_cached_drive
}

/// Waits until all kept sessions are saved, and frees them.
fn unload(service: &Service) {
    wait_until_idle(service);
    service.unload();
    wait_until("the model to be unloaded", || service.state() == State::Unloaded);
}

fn turn(model: &ReferenceModel, prompt: Vec<TokenId>, split_points: Vec<usize>) -> Job {
    Job { split_points, ..model.job(prompt, 20) }
}

/// Returns the tokens after a turn, and how many of them were fed: of an answer that ends at its
/// limit, the last one is reported, but not fed.
fn after(model: &ReferenceModel, job: &Job) -> (Vec<TokenId>, usize) {
    let answer = model.alone(job, 0, CONTEXT);
    let is_cut = answer.finish == Some(Finish::Length);
    let answer = answer.tokens.iter().map(|it| it.token);
    let tokens: Vec<TokenId> = job.prompt.iter().copied().chain(answer).collect();
    let n_fed = tokens.len() - usize::from(is_cut);
    (tokens, n_fed)
}

/// Returns the next turn of a conversation, and how much of it was saved.
fn next_turn(model: &ReferenceModel, job: &Job, seed: u32) -> (Job, usize) {
    let (mut prompt, n_saved) = after(model, job);
    prompt.extend(tokens(30, seed));
    (Job { prompt, ..job.clone() }, n_saved)
}

#[test]
fn a_conversation_goes_on_after_a_restart() {
    for model in [&*ATTENTION, &*RECURRENT, &*LATENT] {
        let dir = TempDir::new();
        let (mut job, mut n_saved) = (turn(model, tokens(90, 1), vec![40]), 0);
        for seed in 2..6 {
            let service = service_over(model, dir.path());
            assert_eq!(n_cached(model, &service, job.clone()), n_saved, "turn {seed}");
            unload(&service);
            (job, n_saved) = next_turn(model, &job, seed);
        }
    }
}

#[test]
fn tokens_from_the_drive_are_told_apart_from_those_in_memory() {
    for model in [&*ATTENTION, &*RECURRENT] {
        let dir = TempDir::new();
        let service = service_over(model, dir.path());
        let first = turn(model, tokens(90, 1), Vec::new());
        let (second, n_held) = next_turn(model, &first, 2);
        let (third, n_saved) = next_turn(model, &second, 3);
        let (fourth, n_held_then) = next_turn(model, &third, 4);
        for job in [&first, &second] {
            run(model, &service, job.clone());
            unload(&service);
        }
        // Memory has the first turn again, and the drive both.
        run(model, &service, first);
        let found = |outcome: JobOutcome| (outcome.n_cached, outcome.n_cached_drive, of(&outcome));
        let third = found(run(model, &service, third));
        assert_eq!(third, (Some(n_saved), n_saved - n_held, PromptOutcome::Drive));
        let fourth = found(run(model, &service, fourth));
        assert_eq!(fourth, (Some(n_held_then), 0, PromptOutcome::Memory));
        let stats = service.stats();
        let n_cached = stats.n_cached_tokens;
        assert!(stats.n_cached_drive_tokens > 0 && stats.n_cached_drive_tokens < n_cached);
    }
}

#[test]
fn what_another_model_saved_is_told_apart() {
    let dir = TempDir::new();
    let ask = |model: &ReferenceModel, seed: u32| {
        let service = service_over(model, dir.path());
        let outcome = run(model, &service, turn(model, tokens(90, seed), vec![40]));
        unload(&service);
        of(&outcome)
    };
    assert_eq!(ask(&ATTENTION, 1), PromptOutcome::Nothing);
    assert_eq!(ask(&RECURRENT, 1), PromptOutcome::OtherModel);
    assert_eq!(ask(&RECURRENT, 5), PromptOutcome::Nothing);
    assert_eq!(ask(&RECURRENT, 5), PromptOutcome::Drive);
}

#[test]
fn long_conversations_are_saved_in_segments() {
    for model in [&*ATTENTION, &*RECURRENT] {
        let dir = TempDir::new();
        let job = turn(model, tokens(1_400, 1), vec![300, 1_350]);
        let service = service_over(model, dir.path());
        n_cached(model, &service, job.clone());
        unload(&service);
        // After an unload, too.
        let (next, n_saved) = next_turn(model, &job, 6);
        assert_eq!(n_cached(model, &service, next), n_saved);
        drop(service);

        let service = service_over(model, dir.path());
        let mut branch = job.prompt[..1_350].to_vec();
        branch.extend(tokens(100, 7));
        assert_eq!(n_cached(model, &service, turn(model, branch, Vec::new())), 1_350);
        drop(service);

        let service = service_over(model, dir.path());
        let mut branch = job.prompt[..1_200].to_vec();
        branch.extend(tokens(100, 8));
        // Other texts share whole segments, or what recurrent state was saved.
        let shared = if std::ptr::eq(model, &*ATTENTION) { 1_024 } else { 300 };
        assert_eq!(n_cached(model, &service, turn(model, branch, Vec::new())), shared);
    }
}

#[test]
fn a_turn_writes_its_own_tokens() {
    for model in [&*ATTENTION, &*RECURRENT] {
        let dir = TempDir::new();
        let store = open_store(dir.path(), u64::MAX);
        let service = model.service(options(store.clone()));
        let job = turn(model, tokens(400, 1), Vec::new());
        n_cached(model, &service, job.clone());
        unload(&service);
        let first = store.list();
        let (next, n_fed) = next_turn(model, &job, 2);
        assert_eq!(n_cached(model, &service, next.clone()), n_fed);
        unload(&service);
        let is_new = |it: &&ObjectFacts| first.iter().all(|old| old.id != it.id);
        let all = store.list();
        let new: Vec<_> = all.iter().filter(is_new).collect();
        let [n_fed, end] = [n_fed as u64, after(model, &next).1 as u64];
        let positions: Vec<_> = new.iter().map(|it| (it.first, it.end)).collect();
        assert!(positions.contains(&(n_fed, end)), "{positions:?}");
        assert!(positions.iter().all(|it| *it == (n_fed, end) || *it == (end, end)));
        assert_eq!(new.len(), if std::ptr::eq(model, &*ATTENTION) { 1 } else { 2 });
    }
}

#[test]
fn owners_find_their_own_conversations() {
    let dir = TempDir::new();
    let first = turn(&ATTENTION, tokens(90, 1), Vec::new());
    let (second, n_saved) = next_turn(&ATTENTION, &first, 2);
    let of = |job: &Job, owner| Job { owner: Owner(owner), ..job.clone() };
    let service = service_over(&ATTENTION, dir.path());
    n_cached(&ATTENTION, &service, of(&first, 0));
    unload(&service);
    assert_eq!(n_cached(&ATTENTION, &service, of(&second, 1)), 0);
    run(&ATTENTION, &service, of(&first, 1));
    // This one's are not saved.
    n_cached(&ATTENTION, &service, of(&first, 2));
    unload(&service);
    let found = [0, 1, 2].map(|owner| run(&ATTENTION, &service, of(&second, owner)).n_cached);
    // The second key's own second question was saved, too.
    assert_eq!(found, [Some(n_saved), Some(n_saved), Some(0)]);
}

/// Returns the paths of all objects.
fn files(dir: &Path) -> Vec<PathBuf> {
    let list = |dir: PathBuf| std::fs::read_dir(dir).unwrap().map(|it| it.unwrap().path());
    let mut files: Vec<PathBuf> = list(dir.join("objects")).flat_map(list).collect();
    files.sort();
    files
}

#[test]
fn a_damaged_file_is_computed_again() {
    for model in [&*ATTENTION, &*RECURRENT] {
        let job = turn(model, tokens(90, 1), vec![40, 60]);
        let (next, n_saved) = next_turn(model, &job, 2);
        let (last, n_saved_then) = next_turn(model, &next, 3);
        for damaged_idx in 0..3 {
            let dir = TempDir::new();
            let service = service_over(model, dir.path());
            n_cached(model, &service, job.clone());
            unload(&service);
            drop(service);
            let path = &files(dir.path())[damaged_idx];
            let mut bytes = std::fs::read(path).unwrap();
            // The last byte of the payload: a checksum follows.
            let at = bytes.len() - 9;
            bytes[at] ^= 1;
            std::fs::write(path, bytes).unwrap();
            let service = service_over(model, dir.path());
            let outcome = run(model, &service, next.clone());
            let n_held = outcome.n_cached_drive;
            assert_eq!(outcome.n_cached, Some(n_held));
            // The state at an earlier place was not needed.
            let is_state = path.extension().is_some_and(|it| it == "state");
            let was_needed = n_held == 0;
            let expected = if was_needed { PromptOutcome::Unusable } else { PromptOutcome::Drive };
            assert_eq!(of(&outcome), expected);
            assert!(was_needed || is_state && n_held == n_saved, "{n_held}: {}", path.display());
            let counts = service.stats().saved.unwrap();
            assert_eq!(counts.n_damaged, u64::from(was_needed));
            // What was computed again is saved again.
            unload(&service);
            assert_eq!(n_cached(model, &service, last.clone()), n_saved_then);
        }
    }
}

#[test]
fn a_second_process_reads_what_the_first_wrote() {
    let dir = TempDir::new();
    let first = open_store(dir.path(), u64::MAX);
    let job = turn(&RECURRENT, tokens(90, 1), Vec::new());
    let writer = RECURRENT.service(options(first));
    n_cached(&RECURRENT, &writer, job.clone());
    unload(&writer);
    let second = open_store(dir.path(), u64::MAX);
    assert_eq!(second.role(), StoreRole::Reader);
    let reader = RECURRENT.service(options(second.clone()));
    let (next, n_saved) = next_turn(&RECURRENT, &job, 2);
    assert_eq!(n_cached(&RECURRENT, &reader, next), n_saved);
    drop(writer);
    // Once the first has ended, the second writes.
    let other = turn(&RECURRENT, tokens(90, 5), Vec::new());
    n_cached(&RECURRENT, &reader, other.clone());
    unload(&reader);
    assert_eq!(second.role(), StoreRole::Writer);
    let (next, n_saved) = next_turn(&RECURRENT, &other, 2);
    assert_eq!(n_cached(&RECURRENT, &reader, next), n_saved);
}

/// Returns the ends of the recurrent states that were saved.
fn states(store: &Store) -> Vec<u64> {
    let all = store.list().into_iter();
    let mut ends: Vec<u64> =
        all.filter(|it| it.id.kind == ObjectKind::State).map(|it| it.end).collect();
    ends.sort_unstable();
    ends
}

#[test]
fn a_turn_of_a_conversation_that_goes_on_saves_one_state() {
    let dir = TempDir::new();
    let store = open_store(dir.path(), u64::MAX);
    let service = RECURRENT.service(options(store.clone()));
    // Places where another question, and the answer, begin.
    let points = |begin: usize, end: usize| vec![20, begin + 3, end - 2];
    let mut job = turn(&RECURRENT, tokens(90, 1), vec![20, 88]);
    let mut n_saved = 0;
    for seed in 2..6 {
        assert_eq!(n_cached(&RECURRENT, &service, job.clone()), n_saved);
        unload(&service);
        (job, n_saved) = next_turn(&RECURRENT, &job, seed);
        job.split_points = points(n_saved, job.prompt.len());
        // Of the first turn, it is not known how the conversation goes on.
        let n_turns = usize::try_from(seed).unwrap() - 1;
        assert_eq!(states(&store).len(), 2 + n_turns, "{:?}", states(&store));
        assert_eq!(states(&store).last(), Some(&(n_saved as u64)));
    }
    // It goes back to the question, of which no state was saved: to the answer before it.
    let question = job.split_points[1];
    assert_eq!(n_cached(&RECURRENT, &service, job.clone()), n_saved);
    unload(&service);
    job.prompt.truncate(question + 1);
    job.prompt.extend(tokens(40, 77));
    assert_eq!(n_cached(&RECURRENT, &service, job), n_saved);
}

#[test]
fn the_end_of_the_service_saves_what_was_computed() {
    for model in [&*ATTENTION, &*RECURRENT] {
        let dir = TempDir::new();
        let job = turn(model, tokens(90, 1), vec![40]);
        let service = service_over(model, dir.path());
        n_cached(model, &service, job.clone());
        drop(service);
        let service = service_over(model, dir.path());
        let (mut next, n_saved) = next_turn(model, &job, 2);
        next.n_tokens_max = Some(400);
        next.split_points.push(next.prompt.len() - 2);
        let test_job = TestJob::new(&service, next.clone());
        test_job.wait_for("some tokens", |outcome| outcome.n_tokens() > 2);
        assert_eq!(test_job.so_far().n_cached, Some(n_saved));
        drop(service);
        // The answer had begun.
        let service = service_over(model, dir.path());
        let found = n_cached(model, &service, next.clone());
        let is_recurrent = std::ptr::eq(model, &*RECURRENT);
        assert_eq!(found, if is_recurrent { n_saved } else { next.prompt.len() - 2 });
    }
}

#[test]
fn a_long_prompt_is_saved_while_it_is_read() {
    const N_TOKENS: usize = 3_000;
    let dir = TempDir::new();
    let store = open_store(dir.path(), u64::MAX);
    let mut options = options(store.clone());
    options.context = N_TOKENS + 50;
    options.saved.as_mut().unwrap().n_tokens_at_risk = 100;
    let service = RECURRENT.service(options);
    // Multiples of the tokens that may be lost: there no prompt ends.
    let mark = || states(&store).into_iter().find(|end| end.is_multiple_of(100));
    let long = |seed| turn(&RECURRENT, tokens(3_000, seed), vec![40, N_TOKENS - 3]);
    // Where the drive is slow, one of the next.
    let saved = (1..20).map(long).find(|job| {
        let outcome = TestJob::new(&service, job.clone()).end();
        assert_eq!(outcome.answers[0], RECURRENT.alone(job, 0, N_TOKENS + 50));
        mark().is_some()
    });
    drop(service);
    // A prompt that goes another way finds it.
    let mark = usize::try_from(mark().unwrap()).unwrap();
    let mut branch = saved.unwrap().prompt[..mark].to_vec();
    branch.extend(tokens(30, 7));
    drop(store);
    let mut options = self::options(open_store(dir.path(), u64::MAX));
    options.context = N_TOKENS + 50;
    let service = RECURRENT.service(options);
    let found = TestJob::new(&service, turn(&RECURRENT, branch, Vec::new())).end().n_cached;
    assert_eq!(found, Some(mark));
}

/// Agents in turn, with memory for one and a half of their conversations: those that make room for
/// others come back from the drive.
#[test]
fn conversations_that_make_room_come_back_from_the_drive() {
    let open = || {
        let engine = DEMO.open()?;
        leave_room(&engine, 3);
        Ok(engine)
    };
    check_that_dropped_ones_come_back(Box::new(open), None, DropReason::Answers);
    check_that_dropped_ones_come_back(Box::new(|| DEMO.open()), Some(1), DropReason::Bytes);
}

#[track_caller]
fn check_that_dropped_ones_come_back(open: Box<Open>, kept_bytes: Option<u64>, reason: DropReason) {
    let dir = TempDir::new();
    let mut options = options(open_store(dir.path(), u64::MAX));
    options.kept.n_bytes = kept_bytes;
    let service = Service::start(open, Arc::clone(&DEMO.text), options).unwrap();
    let mut jobs: Vec<Job> =
        (0..4).map(|agent| turn(&DEMO, tokens(1_100, 1 + 7 * agent), vec![500])).collect();
    let mut n_saved = vec![0; jobs.len()];
    for seed in 2..5 {
        for (job, n_saved) in jobs.iter_mut().zip(&mut n_saved) {
            assert_eq!(n_cached(&DEMO, &service, job.clone()), *n_saved, "turn {seed}");
            wait_until_idle(&service);
            (*job, *n_saved) = next_turn(&DEMO, job, seed);
        }
    }
    assert!(service.stats().n_dropped[reason as usize] > 0);
}

/// A process that may not write asks for the lock again and again; sessions make room meanwhile.
#[test]
fn conversations_make_room_where_another_process_writes() {
    let dir = TempDir::new();
    let writer = open_store(dir.path(), u64::MAX);
    let store = open_store(dir.path(), u64::MAX);
    let open = || {
        let engine = DEMO.open()?;
        leave_room(&engine, 3);
        Ok(engine)
    };
    let service = Service::start(Box::new(open), Arc::clone(&DEMO.text), options(store)).unwrap();
    for round in 0..6 {
        let jobs: Vec<TestJob> = (0..3)
            .map(|agent| turn(&DEMO, tokens(700, 1 + 7 * agent + round), vec![500]))
            .map(|job| TestJob::new(&service, job))
            .collect();
        for test_job in jobs {
            let expected = DEMO.alone(&test_job.job, 0, CONTEXT);
            assert_eq!(test_job.end().answers[0], expected, "round {round}");
        }
    }
    assert!(service.stats().n_dropped[DropReason::Answers as usize] > 0);
    assert!(writer.list().is_empty());
}

/// Some jobs at a time, cancelled ones among them, restarts, and a bound that few sessions fit.
fn script(model: &ReferenceModel, seed: u64) {
    let mut rng = Rng::new(seed);
    let dir = TempDir::new();
    let n_bytes_max = 40_000 + 10_000 * rng.below(40) as u64;
    let mut histories = vec![tokens(20, 1)];
    for _ in 0..3 {
        let store = open_store(dir.path(), n_bytes_max);
        let mut options = options(store.clone());
        options.kept.n_sessions = rng.below(3);
        options.saved.as_mut().unwrap().n_tokens_at_risk = [10, usize::MAX][rng.below(2)];
        let service = model.service(options);
        for _ in 0..3 {
            let jobs = (0..1 + rng.below(3)).map(|_| {
                let history = &histories[rng.below(histories.len())];
                let mut prompt = history[..1 + rng.below(history.len())].to_vec();
                prompt.extend(tokens(u32::try_from(1 + rng.below(60)).unwrap(), 9));
                let split_points = (0..2).map(|_| rng.below(prompt.len())).collect();
                let job = Job { owner: Owner(rng.below(3)), ..turn(model, prompt, split_points) };
                (TestJob::new(&service, job), rng.below(4) == 0)
            });
            for (mut test_job, is_cancelled) in jobs.collect::<Vec<_>>() {
                if is_cancelled {
                    test_job.give_up();
                    continue;
                }
                let outcome = test_job.end();
                let expected = model.alone(&test_job.job, 0, CONTEXT);
                assert_eq!(outcome.answers[0], expected, "seed {seed}");
                histories.push(after(model, &test_job.job).0);
            }
            if rng.below(2) == 0 {
                unload(&service);
            }
            // While objects leave for another, both are counted for a moment.
            wait_until("the folder to be within its bound", || {
                store.counts().n_bytes <= n_bytes_max
            });
        }
    }
}

#[test]
fn scripts_of_restarts_give_the_answers_of_jobs_alone() {
    for seed in seeds(6) {
        script([&*RECURRENT, &ATTENTION, &LATENT][usize::try_from(seed % 3).unwrap()], seed);
    }
}

#[test]
fn a_program_without_a_service_continues_what_others_saved() {
    for model in [&*ATTENTION, &*RECURRENT] {
        let dir = TempDir::new();
        let (mut job, mut n_saved) = (turn(model, tokens(90, 1), vec![40, 80]), 0);
        for seed in 2..6 {
            if seed % 2 == 0 {
                assert_eq!(n_loaded_alone(model, dir.path(), &job), n_saved, "turn {seed}");
            } else {
                let service = service_over(model, dir.path());
                assert_eq!(n_cached(model, &service, job.clone()), n_saved, "turn {seed}");
                unload(&service);
            }
            // The history as a template writes it: without the last answer.
            let branch =
                Job { prompt: [&job.prompt[..80], &tokens(30, seed)].concat(), ..job.clone() };
            let service = service_over(model, dir.path());
            assert_eq!(n_cached(model, &service, branch), 80, "turn {seed}");
            drop(service);
            (job, n_saved) = next_turn(model, &job, seed);
        }
    }
}

/// Answers a job without a service. Returns the number of tokens that were loaded.
#[track_caller]
fn n_loaded_alone(model: &ReferenceModel, dir: &Path, job: &Job) -> usize {
    let engine = model.open().unwrap();
    let saved = options(open_store(dir, u64::MAX)).saved.unwrap();
    let mut saver = SessionSaver::new(&engine, saved).unwrap();
    let Job { owner, prompt, split_points, .. } = job;
    let of = SavedPrompt { owner: *owner, tokens: prompt, split_points };
    let new = engine.session(CONTEXT).unwrap();
    let (mut session, n_loaded) = saver.begin(of, new, &mut |_| ControlFlow::Continue(())).unwrap();
    let n_read = session.tokens().len();
    let answer = model.answer_in(job, &mut session, &prompt[n_read..]);
    assert_eq!(answer, model.alone(job, 0, CONTEXT));
    saver.save(of, &mut session, Duration::from_secs(60));
    n_loaded
}
