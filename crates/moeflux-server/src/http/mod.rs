//! The server: what comes in through sockets is given to a scheduler, and its answers go back.
//!
//! One thread serves all connections, the one that calls [`Server::run`]; a few others parse and
//! tokenise. **Invariant:** a client that is slow, gone or malicious costs others nothing but the
//! place that it has.

mod config;
mod listen;
mod places;
mod closing;
mod reply;
mod account;
mod size;
mod body;
mod shared;
mod keeping;
mod guard;
mod inbox;
mod prompt;
mod record;
mod run;
mod deliver;
mod generate;
mod plain;
mod meant;
mod routes;
mod stall;
mod connections;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use moeflux::{Error, Result};
use tokio::sync::watch;

pub use crate::http::config::{
    ApiKeys, CacheScope, Config, ModelInfo, Places, Served, Timeouts, WaysIn,
};
use crate::http::listen::Listeners;
use crate::http::shared::{Common, Current, Shared};

/// Threads that parse and tokenise, at most: the engine needs the others.
const N_TEXT_THREADS_MAX: usize = 4;

/// A server that listens already.
#[derive(Debug)]
pub struct Server {
    config: Config,
    listeners: Listeners,
    stop: watch::Sender<Stop>,
    models: Models,
}

impl Server {
    /// Begins to listen. Who connects before [`Server::run`] waits.
    ///
    /// # Errors
    /// An address that cannot be had, or that others can reach although there is no key.
    pub fn bind(config: Config) -> Result<Self> {
        let listeners = Listeners::bind(&config)?;
        Ok(Self {
            config,
            listeners,
            stop: watch::Sender::new(Stop::No),
            models: Models::default(),
        })
    }

    /// The addresses that it listens on, with the ports that were free.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.listeners.tcp.iter().map(|(_, address)| *address)
    }

    /// What stops it, from any thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper { stop: self.stop.clone() }
    }

    /// What changes the model while the server runs, from any thread.
    #[must_use]
    pub fn models(&self) -> Models {
        self.models.clone()
    }

    /// Serves until it is stopped: then nothing new is taken, answers have some time to end, and
    /// those that are left are told that they were cut short.
    ///
    /// # Errors
    /// A chat template that cannot be used; what the system says of sockets.
    pub fn run(self, served: Served) -> Result<()> {
        let shared = Shared::new(Arc::new(Common::new(self.config)), served)?;
        let current = Current::new(shared);
        // It is set once, as a server runs once.
        self.models.0.get_or_init(|| current.clone());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(N_TEXT_THREADS_MAX)
            .thread_name("moeflux-text")
            .build();
        let failed = |error| Error::Machine(format!("cannot serve: {error}"));
        let runtime = runtime.map_err(failed)?;
        let stop = self.stop.subscribe();
        let served = runtime.block_on(connections::serve(self.listeners, current, stop));
        // A text that is still being worked on is for nobody.
        runtime.shutdown_background();
        served.map_err(failed)
    }
}

/// Stops a server.
#[derive(Clone, Debug)]
pub struct Stopper {
    stop: watch::Sender<Stop>,
}

/// Whether a server is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    No,
    /// Answers may go on for [`Config::drain`].
    Drained,
    /// Answers may go on for this long at most.
    Within(Duration),
}

impl Stopper {
    /// Asks the server to come to an end. Asking again changes nothing.
    pub fn stop(&self) {
        self.stop_as(Stop::Drained);
    }

    /// The same where the system ends the process soon: answers that have not ended by then are
    /// told that they are cut short.
    pub fn stop_within(&self, time: Duration) {
        self.stop_as(Stop::Within(time));
    }

    fn stop_as(&self, how: Stop) {
        self.stop.send_if_modified(|stop| {
            let is_first = *stop == Stop::No;
            if is_first {
                *stop = how;
            }
            is_first
        });
    }
}

/// The model that a server answers with.
#[derive(Clone, Debug, Default)]
pub struct Models(Arc<OnceLock<Current>>);

impl Models {
    /// Ends all answers and gives the memory of engine, sessions and caches back; waits for that.
    /// Requests are refused until another model is served.
    pub fn close(&self) {
        if let Some(current) = self.0.get() {
            current.get().served.service.stop();
        }
    }

    /// Answers with another model from now on. Requests that began before keep the one that they
    /// began with, which ends with the last of them.
    ///
    /// # Errors
    ///
    /// A chat template that cannot be used; [`Error::Input`] before the server runs.
    pub fn serve(&self, served: Served) -> Result<()> {
        let Some(current) = self.0.get() else {
            return Err(Error::Input("the server does not run yet".to_owned()));
        };
        let common = Arc::clone(&current.get().common);
        current.set(Shared::new(common, served)?);
        Ok(())
    }
}
