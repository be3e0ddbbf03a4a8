//! The HTTP server: passes requests from sockets to a scheduler, and its answers back.
//!
//! One thread, which calls [`Server::run`], serves all connections; a few others parse and
//! tokenise. **Invariant:** a slow, absent or malicious client costs others nothing but the slot
//! that it holds.

mod config;
mod manager;
mod sockets;
mod reply;
mod memory;
mod body;
mod shared;
mod answers;
mod routes;
mod connections;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use moeflux::{Error, Result};
use tokio::sync::watch;

pub use crate::http::config::{
    ApiKeys, CacheScope, ConnectionLimits, ManageAccess, MeasuredRates, ModelInfo, Served,
    ServerConfig, Timeouts, WaysIn,
};
pub use crate::http::manager::{
    CatalogueModel, MachineFit, ManageRefusal, ManageResult, ModelCatalogue, ModelManager,
    ModelOffer, ModelPlace, RefusalReason, TaskKind, TaskState, TaskStatus,
};
use crate::http::shared::{CurrentModel, ModelState, ServerState};
use crate::http::sockets::listen::Listeners;

/// Upper bound on the threads that parse and tokenise: the engine needs the others. One more waits
/// for the manager of models.
const N_TEXT_THREADS_MAX: usize = 4;

/// A server that already listens.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    listeners: Listeners,
    stop: watch::Sender<StopSignal>,
    models: Models,
    manager: Option<Arc<dyn ModelManager>>,
}

impl Server {
    /// Begins to listen. Clients that connect before [`Server::run`] wait.
    ///
    /// # Errors
    /// An address that cannot be bound, or that other machines can reach although there is no key.
    pub fn bind(config: ServerConfig) -> Result<Self> {
        let listeners = Listeners::bind(&config)?;
        Ok(Self {
            config,
            listeners,
            stop: watch::Sender::new(StopSignal::Running),
            models: Models::default(),
            manager: None,
        })
    }

    /// Lets clients that may do so list, download, load and remove models.
    #[must_use]
    pub fn with_manager(self, manager: Arc<dyn ModelManager>) -> Self {
        Self { manager: Some(manager), ..self }
    }

    /// Returns the addresses that it listens on, with the actual ports.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.listeners.tcp.iter().map(|(_, address)| *address)
    }

    /// Returns a handle that stops the server from any thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper { stop: self.stop.clone() }
    }

    /// Returns a handle that changes the model from any thread while the server runs.
    #[must_use]
    pub fn models(&self) -> Models {
        self.models.clone()
    }

    /// Serves until it is stopped. Then it accepts nothing new, and gives answers some time to end;
    /// clients of unfinished answers are told that these were cut short.
    ///
    /// # Errors
    /// An unusable chat template, or an error of the system's sockets.
    pub fn run(self, served: Served) -> Result<()> {
        let server = ServerState::new(self.config, self.manager, self.stop.subscribe());
        let state = ModelState::new(Arc::new(server), served)?;
        let current = CurrentModel::new(state);
        // It is set once, because a server runs once.
        self.models.0.get_or_init(|| current.clone());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(N_TEXT_THREADS_MAX + 1)
            .thread_name("moeflux-text")
            .build();
        let failed = |error| Error::Machine(format!("cannot serve: {error}"));
        let runtime = runtime.map_err(failed)?;
        let stop = self.stop.subscribe();
        let served = runtime.block_on(connections::serve(self.listeners, current, stop));
        // No client waits for texts that are still being processed.
        runtime.shutdown_background();
        served.map_err(failed)
    }
}

/// A handle that stops a server.
#[derive(Clone, Debug)]
pub struct Stopper {
    stop: watch::Sender<StopSignal>,
}

/// Whether and how a server is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopSignal {
    Running,
    /// Answers may continue for [`ServerConfig::drain`].
    Drain,
    /// Answers may continue for at most this long, within [`ServerConfig::drain`].
    Within(Duration),
}

impl Stopper {
    /// Stops the server. Further calls have no effect.
    pub fn stop(&self) {
        self.send(StopSignal::Drain);
    }

    /// Stops the server, for a process that the system will end soon: clients of answers that have
    /// not ended within `time` are told that these were cut short.
    pub fn stop_within(&self, time: Duration) {
        self.send(StopSignal::Within(time));
    }

    fn send(&self, signal: StopSignal) {
        self.stop.send_if_modified(|stop| {
            let is_first = *stop == StopSignal::Running;
            if is_first {
                *stop = signal;
            }
            is_first
        });
    }
}

/// A handle for the model that a server answers with.
#[derive(Clone, Debug, Default)]
pub struct Models(Arc<OnceLock<CurrentModel>>);

impl Models {
    /// Ends all answers and frees the memory of the engine, sessions and caches; waits for that.
    /// Requests are refused until another model is served.
    pub fn close(&self) {
        if let Some(current) = self.0.get() {
            current.get().served.service.stop();
        }
    }

    /// Answers with another model from now on, which may still be loading. Requests that began
    /// earlier keep their model, which is freed with the last of them.
    ///
    /// # Errors
    ///
    /// An unusable chat template; [`Error::Input`] before the server runs.
    pub fn serve(&self, served: Served) -> Result<()> {
        let Some(current) = self.0.get() else {
            return Err(Error::Input("the server is not running yet".to_owned()));
        };
        let server = Arc::clone(&current.get().server);
        current.set(ModelState::new(server, served)?);
        Ok(())
    }
}
