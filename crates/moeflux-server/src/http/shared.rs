//! What all requests to a server share.
//!
//! **Invariant:** nothing here depends on a request, but counts, places and the kinds of lines that
//! were logged already.

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use moeflux::Result;
use moeflux_chat::{CallFormat, ChatFormat, Grammars, Replays};
use moeflux_schedule::Owner;

use crate::http::account::Account;
use crate::http::config::{CacheScope, Config, Served};
use crate::http::places::Places;
use crate::metrics::RefusalCounts;
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
    pub(crate) places: Arc<Places>,
    pub(crate) refusals: RefusalCounts,
    /// The sampled tokens of earlier answers, by their owners; empty if histories are read as they
    /// come.
    replays: Vec<Mutex<Replays>>,
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
        let n_owners = match config.cache {
            CacheScope::PerKey => config.keys.len().max(1),
            CacheScope::Shared => 1,
        };
        let replay_bytes = config.replay_bytes.min(account.replay_bytes);
        let of_owner = |_| Mutex::new(Replays::new(replay_bytes / n_owners));
        let replays = (0..n_owners).filter(|_| replay_bytes > 0).map(of_owner).collect();
        Ok(Self {
            format,
            calls,
            grammars,
            replays,
            places: Places::new(config.places),
            refusals: RefusalCounts::default(),
            config,
            served,
            n_replayed: AtomicU64::new(0),
            account,
            noted: Mutex::default(),
            random: RandomState::new(),
            n_drawn: AtomicU64::new(0),
        })
    }

    /// The sampled tokens of an owner's earlier answers; `None` if none are kept. The lock is not
    /// held for long.
    pub(crate) fn replays(&self, owner: Owner) -> Option<MutexGuard<'_, Replays>> {
        let replays = self.replays.get(owner.0)?;
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
