//! State that all requests to a server share.
//!
//! **Invariant:** independent of requests, except for counters, slots and the record of lines that
//! were logged once.

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use moeflux::{ModelText, Result};
use moeflux_chat::Chat;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::http::StopSignal;
use crate::http::config::{CacheScope, Served, ServerConfig, are_same};
use crate::http::manager::ModelManager;
use crate::http::memory::pools::RequestMemory;
use crate::http::sockets::slots::ConnectionSlots;
use crate::metrics::RefusalCounts;
use moeflux_wire::{Failure, FailureKind, ResponseHead};

/// Upper bound on clients that watch the machine: each costs some of an answer's rate.
pub(crate) const N_LISTENERS_MAX: usize = 16;

/// Keeps the token of a start apart from all other numbers that are drawn.
const START_SEED: &str = "start";

/// The state of a server: what all requests share, whichever model answers them.
#[derive(Debug)]
pub(crate) struct ServerState {
    pub(crate) config: ServerConfig,
    pub(crate) slots: Arc<ConnectionSlots>,
    pub(crate) refusals: RefusalCounts,
    pub(crate) memory: RequestMemory,
    /// Places for clients that watch the machine.
    pub(crate) listeners: Arc<Semaphore>,
    pub(crate) manager: Option<Arc<dyn ModelManager>>,
    /// The turn of a request to the manager that may wait.
    pub(crate) managing: Arc<Semaphore>,
    /// The token of this start: a page that knows it was served by this process.
    start: String,
    pub(crate) stop: watch::Receiver<StopSignal>,
    pub(crate) began: Instant,
    noted: Mutex<BTreeSet<&'static str>>,
    random: RandomState,
    n_drawn: AtomicU64,
}

/// The state of a served model: what requests to it share. A request keeps it to its end, even
/// after another model has replaced this one.
#[derive(Debug)]
pub(crate) struct ModelState {
    pub(crate) server: Arc<ServerState>,
    pub(crate) served: Served,
    /// Converts conversations to prompts, and tokens back to answers.
    pub(crate) chat: Chat,
    /// Whether clients can turn thoughts on and off.
    pub(crate) has_thinking_switch: bool,
    /// Turns of histories that were replayed.
    pub(crate) n_replayed: AtomicU64,
}

/// The model that answers new requests.
#[derive(Clone, Debug)]
pub(crate) struct CurrentModel(Arc<RwLock<Arc<ModelState>>>);

impl CurrentModel {
    pub(crate) fn new(state: ModelState) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(state))))
    }

    pub(crate) fn get(&self) -> Arc<ModelState> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set(&self, state: ModelState) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
    }
}

impl ServerState {
    pub(crate) fn new(
        config: ServerConfig,
        manager: Option<Arc<dyn ModelManager>>,
        stop: watch::Receiver<StopSignal>,
    ) -> Self {
        let random = RandomState::new();
        let [high, low] = [0_u8, 1].map(|half| random.hash_one((half, START_SEED)));
        Self {
            slots: ConnectionSlots::new(config.connection_limits),
            refusals: RefusalCounts::default(),
            memory: RequestMemory::new(config.request_memory_bytes),
            listeners: Arc::new(Semaphore::new(N_LISTENERS_MAX)),
            manager,
            managing: Arc::new(Semaphore::new(1)),
            start: format!("{high:016x}{low:016x}"),
            stop,
            began: Instant::now(),
            noted: Mutex::default(),
            random,
            n_drawn: AtomicU64::new(0),
            config,
        }
    }

    /// Returns the token of this start for the page, if the server has a manager.
    pub(crate) fn start_of_page(&self) -> Option<&str> {
        self.manager.is_some().then_some(&*self.start)
    }

    /// Whether this is the token of this start.
    pub(crate) fn is_start(&self, given: &[u8]) -> bool {
        are_same(self.start.as_bytes(), given)
    }

    /// Returns a random number. It is unpredictable without the process's random key.
    pub(crate) fn draw(&self) -> u64 {
        self.random.hash_one(self.n_drawn.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns a unique id.
    pub(crate) fn id(&self) -> String {
        format!("{:016x}{:016x}", self.draw(), self.draw())
    }

    /// Waits until the server is to stop.
    pub(crate) async fn stopped(&self) {
        let mut stop = self.stop.clone();
        if stop.wait_for(|stop| *stop != StopSignal::Running).await.is_err() {
            // No sender is left that could stop the server.
            std::future::pending::<()>().await;
        }
    }

    /// Logs a line once.
    pub(crate) fn note(&self, line: &'static str) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.insert(line) {
            tracing::info!(target: "moeflux::server", "{line}");
        }
    }
}

impl ModelState {
    /// Creates the state for a model.
    pub(crate) fn new(server: Arc<ServerState>, served: Served) -> Result<Self> {
        assert!(!served.model.names.is_empty(), "a model has a name");
        let ServerState { config, memory, .. } = &*server;
        let n_answers = served.service.n_sessions();
        let n_owners = match config.cache {
            CacheScope::PerKey => config.keys.len().max(1),
            CacheScope::Shared => 1,
        };
        let replay_bytes = config.replay_bytes.min(memory.replay_bytes);
        let chat = Chat::of_text(Arc::clone(&served.text))?
            .with_lexer_states(memory.n_lexer_states(n_answers))
            .with_replays(replay_bytes, n_owners);
        let chat = match served.service.saved() {
            Some(saved) => chat.with_saved(saved.clone())?,
            None => chat,
        };
        let (has_thinking_switch, n_replayed) = (chat.has_thinking_switch(), AtomicU64::new(0));
        Ok(Self { server, served, chat, has_thinking_switch, n_replayed })
    }

    /// Returns the model's text.
    pub(crate) fn text(&self) -> &ModelText {
        &self.served.text
    }

    /// Creates the head of a new response.
    pub(crate) fn head(&self) -> ResponseHead {
        let created_s = u64::try_from((self.served.seconds_since_1970)()).unwrap_or_default();
        ResponseHead { id: self.server.id(), created_s, model: self.name().to_owned() }
    }

    /// Returns the model's canonical name.
    pub(crate) fn name(&self) -> &str {
        &self.served.model.names[0]
    }

    /// Checks that a client may call the model by this name.
    pub(crate) fn check_name(&self, name: Option<&str>) -> std::result::Result<(), Failure> {
        let Some(name) = name.filter(|_| self.server.config.strict_model) else { return Ok(()) };
        if self.served.model.names.iter().any(|it| it == name) {
            return Ok(());
        }
        let message = format!("there is no model of this name: use `{}`", self.name());
        let mut failure = Failure::new(FailureKind::NotFound, message);
        failure.field = Some("model".to_owned());
        Err(failure)
    }
}
