//! What all requests to a server share.
//!
//! **Invariant:** nothing here depends on a request, but counts and the kinds of lines that were
//! logged already.

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use moeflux::Result;
use moeflux_chat::{CallFormat, ChatFormat, Grammars, Replays};

use crate::http::account::Account;
use crate::http::config::{Config, Served};
use crate::metrics::ConnectionCounts;
use crate::wire::{Failure, FailureKind, Head};

/// What all requests share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) served: Served,
    /// How conversations become prompts; `None` for a model that is not made for them.
    pub(crate) format: Option<ChatFormat>,
    /// How the model writes calls, if in a known way.
    pub(crate) calls: Option<&'static CallFormat>,
    pub(crate) grammars: Grammars,
    pub(crate) connections: ConnectionCounts,
    /// What was sampled for earlier answers; `None` if histories are read as they come.
    replays: Option<Mutex<Replays>>,
    /// Turns of histories that were replayed.
    pub(crate) n_replayed: AtomicU64,
    pub(crate) account: Account,
    noted: Mutex<BTreeSet<&'static str>>,
    random: RandomState,
    n_drawn: AtomicU64,
}

impl Shared {
    /// What requests to a model share.
    pub(crate) fn new(config: Config, served: Served) -> Result<Self> {
        assert!(!served.model.names.is_empty(), "a model has a name");
        let format = ChatFormat::open(&served.text)?;
        let calls = format.as_ref().and_then(ChatFormat::call_format);
        let text = Arc::clone(&served.text);
        let grammars = match &format {
            Some(format) => Grammars::of_format(text, format),
            None => Grammars::new(text, None),
        };
        let account = Account::new(config.account_bytes);
        let n_answers = served.service.n_sessions();
        let grammars = grammars.with_lexer_states(account.n_lexer_states(n_answers));
        let replay_bytes = config.replay_bytes.min(account.replay_bytes);
        let replays = (replay_bytes > 0).then(|| Replays::new(replay_bytes));
        Ok(Self {
            format,
            calls,
            grammars,
            replays: replays.map(Mutex::new),
            config,
            served,
            connections: ConnectionCounts::default(),
            n_replayed: AtomicU64::new(0),
            account,
            noted: Mutex::default(),
            random: RandomState::new(),
            n_drawn: AtomicU64::new(0),
        })
    }

    /// What was sampled for earlier answers. Whoever has it keeps others from it: not for long.
    pub(crate) fn replays(&self) -> Option<MutexGuard<'_, Replays>> {
        let replays = self.replays.as_ref()?;
        Some(replays.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A number that nobody can foresee who does not know the key, which the system drew.
    pub(crate) fn draw(&self) -> u64 {
        self.random.hash_one(self.n_drawn.fetch_add(1, Ordering::Relaxed))
    }

    /// A name that nothing else has.
    pub(crate) fn id(&self) -> String {
        format!("{:016x}{:016x}", self.draw(), self.draw())
    }

    /// The head of a new response.
    pub(crate) fn head(&self) -> Head {
        let created_s = u64::try_from((self.served.seconds_since_1970)()).unwrap_or_default();
        Head { id: self.id(), created_s, model: self.name().to_owned() }
    }

    /// The model's true name.
    pub(crate) fn name(&self) -> &str {
        &self.served.model.names[0]
    }

    /// Whether a client may call the model so.
    pub(crate) fn check_name(&self, name: Option<&str>) -> std::result::Result<(), Failure> {
        let Some(name) = name.filter(|_| self.config.strict_model) else { return Ok(()) };
        if self.served.model.names.iter().any(|it| it == name) {
            return Ok(());
        }
        let message = format!("there is no model of this name: use `{}`", self.name());
        let mut failure = Failure::new(FailureKind::NotFound, message);
        failure.field = Some("model".to_owned());
        Err(failure)
    }

    /// Logs a line the first time.
    pub(crate) fn note(&self, line: &'static str) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.insert(line) {
            tracing::info!(target: "moeflux::server", "{line}");
        }
    }
}
