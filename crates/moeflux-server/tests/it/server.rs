//! A server with the demo model, for one test.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use moeflux::provider::config::Configure;
use moeflux::provider::model::Model;
use moeflux::{Engine, Error, ModelText};
use moeflux_schedule::{Options, Service, State, Stats};
use moeflux_server::http::{
    MeasuredRates, ModelInfo, ModelManager, Models, Served, Server, ServerConfig, Stopper,
};
use serde_json::{Map, Value as Json, json};

use crate::client::{Client, Response, request};

pub(crate) const CONTEXT: usize = 1_024;
pub(crate) const NAME: &str = "demo";

/// The server that a test needs.
pub(crate) struct Wanted {
    pub(crate) config: ServerConfig,
    pub(crate) options: Options,
    pub(crate) name: String,
    /// Whether the engine is opened only on a command of the test.
    pub(crate) is_held: bool,
    /// Experts in memory; all of them if it is `None`.
    pub(crate) n_slots: Option<usize>,
    /// What was measured of the machine.
    pub(crate) measured: Option<MeasuredRates>,
    pub(crate) manager: Option<Arc<dyn ModelManager>>,
}

impl Default for Wanted {
    fn default() -> Self {
        let addresses = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        let config = ServerConfig { addresses, ..ServerConfig::default() };
        Self {
            config,
            options: Options::new(CONTEXT),
            name: NAME.to_owned(),
            is_held: false,
            n_slots: None,
            measured: None,
            manager: None,
        }
    }
}

/// A server that runs. Dropping it stops it.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) service: Arc<Service>,
    pub(crate) text: Arc<ModelText>,
    pub(crate) models: Models,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
    /// Tells the server to open the engine, or to fail.
    opener: Sender<bool>,
}

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-demo/model")
}

fn open(
    wait: Option<&Receiver<bool>>,
    context: usize,
    n_slots: Option<usize>,
) -> moeflux::Result<Engine> {
    if let Some(wait) = wait
        && wait.recv() != Ok(true)
    {
        return Err(Error::Drive("the drive of this test has failed".to_owned()));
    }
    let builder = Engine::builder(Model::open(folder())?).context(context);
    let builder = builder.threads(NonZeroUsize::MIN);
    builder.configure(|it| it.streaming.n_slots_max = n_slots).load()
}

fn served(service: &Arc<Service>, text: &Arc<ModelText>, names: Vec<String>) -> Served {
    Served {
        service: Arc::clone(service),
        text: Arc::clone(text),
        model: ModelInfo { names, created_s: 1_795_442_432, about: Map::new(), measured: None },
        seconds_since_1970: || 1_795_442_432,
    }
}

impl Running {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Wanted)) -> Self {
        let mut wanted = Wanted::default();
        change(&mut wanted);
        let Wanted { config, options, name, is_held, n_slots, measured, manager } = wanted;
        let text = Arc::new(ModelText::open(&folder(), 8_192).unwrap());
        let (opener, wait) = channel();
        let context = options.context;
        let open = Box::new(move || open(is_held.then_some(&wait), context, n_slots));
        let service = Service::start(open, Arc::clone(&text), options).unwrap();
        let service = Arc::new(service);
        let mut server = Server::bind(config).unwrap();
        if let Some(manager) = manager {
            server = server.with_manager(manager);
        }
        let models = server.models();
        let address = server.addresses().next().unwrap_or(([127, 0, 0, 1], 0).into());
        let stopper = server.stopper();
        let names = vec![name, "other/name".to_owned()];
        let mut served = served(&service, &text, names);
        served.model.measured = measured;
        let run = move || server.run(served).unwrap();
        let thread = Some(Builder::new().spawn(run).unwrap());
        let running = Self { address, service, text, models, stopper, thread, opener };
        if !is_held {
            running.wait(|_| running.service.state() == State::Ready);
        }
        running
    }

    /// Replaces the service by another one with this name.
    pub(crate) fn serve_another(&self, name: &str) -> Arc<Service> {
        let open = Box::new(|| open(None, CONTEXT, None));
        let service = Service::start(open, Arc::clone(&self.text), Options::new(CONTEXT));
        let service = Arc::new(service.unwrap());
        service.wait_until_open().unwrap();
        self.models.serve(served(&service, &self.text, vec![name.to_owned()])).unwrap();
        service
    }

    /// Opens the engine that is held.
    pub(crate) fn open(&self) {
        self.opener.send(true).unwrap();
    }

    /// Makes the delayed opening of the engine fail.
    pub(crate) fn fail(&self) {
        self.opener.send(false).unwrap();
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    pub(crate) fn ask(&self, bytes: &[u8]) -> Response {
        let mut client = self.client();
        client.send(bytes);
        client.response()
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.ask(&request("GET", path, "", ""))
    }

    pub(crate) fn post(&self, path: &str, body: &Json) -> Response {
        self.ask(&post(path, body))
    }

    pub(crate) fn stats(&self) -> Stats {
        self.service.stats()
    }

    /// Waits until the statistics meet a condition; otherwise the test fails at the caller's line.
    #[track_caller]
    pub(crate) fn wait(&self, is_so: impl Fn(&Stats) -> bool) {
        for _ in 0..6_000 {
            if is_so(&self.stats()) {
                return;
            }
            pause(Duration::from_millis(5));
        }
        panic!("did not come to pass: {:?}", self.stats());
    }

    /// A bias with which the model never ends an answer.
    pub(crate) fn endless(&self) -> Json {
        let biases = self.text.end_tokens().iter().map(|it| (it.0.to_string(), json!(-1e6)));
        Json::Object(biases.collect())
    }

    pub(crate) fn stop(&self) {
        self.stopper.stop();
    }

    /// The same where the system ends the process soon.
    pub(crate) fn stop_within(&self, time: Duration) {
        self.stopper.stop_within(time);
    }

    /// Waits until serving has ended.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        // An engine that is still held would be waited for.
        self.opener.send(false).ok();
        if !std::thread::panicking() {
            self.service.cancel_all();
            self.join();
        }
    }
}

pub(crate) fn pause(time: Duration) {
    let (_nobody, never) = channel::<()>();
    assert!(never.recv_timeout(time).is_err());
}

/// The bytes of a request with JSON.
pub(crate) fn post(path: &str, body: &Json) -> Vec<u8> {
    request("POST", path, "content-type: application/json\r\n", &body.to_string())
}

/// A question that the demo model answers.
pub(crate) fn question() -> Json {
    json!([{"role": "user", "content": "What is a vector?"}])
}
