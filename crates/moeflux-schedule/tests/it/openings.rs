//! Models whose files change while a service runs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use moeflux::Engine;
use moeflux::provider::config::Configure;
use moeflux::provider::model::Model;
use moeflux_schedule::{Job, Options, Refusal, Service, State};
use moeflux_testing::temp_dir::TempDir;

use crate::support::{ATTENTION, NullSink, TestJob, wait_until};

const CONTEXT: usize = 400;

/// A copy of a model, and a service that streams its experts.
struct Changing {
    copy: TempDir,
    service: Service,
}

impl Changing {
    fn new(unload_after: Option<Duration>) -> Self {
        let copy = TempDir::copy_of(ATTENTION.dir());
        let (dir, text) = (copy.path().to_owned(), Arc::clone(&ATTENTION.text));
        let text_of_copy = moeflux::ModelText::open(&dir, text.vocab()).unwrap();
        let mut options = Options::new(CONTEXT);
        options.unload_after = unload_after;
        let open = move || {
            let builder = Engine::builder(Model::open(&dir)?);
            builder.configure(|it| it.streaming.n_slots_max = Some(6)).load()
        };
        let service = Service::start(Box::new(open), Arc::new(text_of_copy), options);
        let service = service.unwrap();
        service.wait_until_open().unwrap();
        Self { copy, service }
    }

    fn weights(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.copy.path()).unwrap().map(|it| it.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|it| it == "safetensors")).collect()
    }

    /// Changes a byte, and back when it is called again.
    fn flip(path: &Path, at: usize) {
        let mut bytes = fs::read(path).unwrap();
        let at = at.min(bytes.len() - 1);
        bytes[at] ^= 1;
        fs::write(path, bytes).unwrap();
    }

    fn job() -> Job {
        ATTENTION.job(ATTENTION.tokens("A slice of 40 bytes"), 12)
    }

    /// A job whose answer is as alone.
    #[track_caller]
    fn check_answer(&self) {
        let test_job = TestJob::new(&self.service, Self::job());
        assert_eq!(test_job.end().answers, [ATTENTION.alone(&test_job.job, 0, CONTEXT)]);
    }

    #[track_caller]
    fn failure(&self) -> String {
        let test_job = TestJob::new(&self.service, Self::job());
        test_job.wait_for("the failure", |outcome| outcome.failure.is_some()).failure.unwrap()
    }
}

#[test]
fn a_model_that_was_touched_is_opened_again() {
    let changing = Changing::new(None);
    changing.check_answer();
    for path in changing.weights() {
        let file = File::options().write(true).open(path).unwrap();
        let before = file.metadata().unwrap().modified().unwrap();
        file.set_modified(before + Duration::from_secs(5)).unwrap();
    }
    changing.check_answer();
    assert_eq!(changing.service.state(), State::Ready);
}

#[test]
fn another_model_in_its_place_is_refused_until_it_is_back() {
    let changing = Changing::new(None);
    changing.check_answer();
    // The last byte of a file, which is one of its weights, and one of its header.
    for at in [usize::MAX, 8] {
        let path = changing.weights().remove(0);
        Changing::flip(&path, at);
        let failure = changing.failure();
        assert_eq!(changing.service.state(), State::Broken, "{failure}");
        Changing::flip(&path, at);
        changing.check_answer();
    }
}

#[test]
fn weights_come_back_with_their_own_tokenizer_only() {
    let changing = Changing::new(Some(Duration::from_millis(20)));
    let is_unloaded = || changing.service.state() == State::Unloaded;
    for name in ["tokenizer_config.json", "chat_template.jinja"] {
        changing.check_answer();
        wait_until("the model to be unloaded", is_unloaded);
        let stats = changing.service.stats();
        assert_eq!(stats.n_loads, stats.n_unloads);
        assert_eq!((stats.memory, stats.n_kept), (None, 0));
        let path = changing.copy.path().join(name);
        let before = fs::read(&path).ok();
        fs::write(&path, r#"{"bos_token": "<s>"}"#).unwrap();
        let failure = changing.failure();
        assert!(failure.contains("chat template"), "{failure}");
        match before {
            Some(before) => fs::write(&path, before).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
    }
    changing.check_answer();
}

#[test]
fn memory_is_freed_and_taken_again_on_request() {
    let changing = Changing::new(None);
    let service = &changing.service;
    let reaches = |state: State| wait_until(state.name(), || service.state() == state);
    // A job that runs ends first.
    let test_job = TestJob::new(service, Changing::job());
    service.unload();
    assert_eq!(test_job.end().answers, [ATTENTION.alone(&test_job.job, 0, CONTEXT)]);
    reaches(State::Unloaded);
    assert_eq!((service.n_open(), service.stats().memory), (0, None));
    // What is not there cannot be freed, and a later job is not affected.
    service.unload();
    service.load();
    reaches(State::Ready);
    changing.check_answer();
    service.load();
    changing.check_answer();
    assert_eq!(service.state(), State::Ready);
    // The next job loads it, too, if it is accepted.
    service.unload();
    reaches(State::Unloaded);
    service.pause();
    let refused = service.submit(Changing::job(), Box::new(NullSink)).err();
    assert!(matches!(refused, Some(Refusal::Paused)), "{refused:?}");
    assert_eq!((service.state(), service.n_open()), (State::Unloaded, 0));
    service.resume();
    changing.check_answer();
    let stats = service.stats();
    assert_eq!((stats.n_loads, stats.n_unloads), (3, 2));
    service.unload();
    service.stop();
    assert_eq!(service.state(), State::Closed);
}
