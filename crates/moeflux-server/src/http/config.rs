//! Settings of a server.
//!
//! **Invariant:** keys are whole lines of visible characters, and `Debug` does not show them.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use moeflux::{Error, ModelText, Result};
use moeflux_chat::REPLAY_BYTES;
use moeflux_schedule::Service;
use serde_json::{Map, Value as Json};

/// Upper bound on the number of keys: each request is compared with all of them.
const N_KEYS_MAX: usize = 1_024;
/// Upper bound on the length of a key: a longer line comes from a wrong file.
const KEY_BYTES_MAX: usize = 512;

/// Where a server listens, and which requests it answers.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Addresses to listen on; port 0 selects a free one.
    pub addresses: Vec<SocketAddr>,
    /// A Unix socket, for programs of the same user.
    pub unix: Option<PathBuf>,
    /// Keys of clients. Without any, every client is admitted.
    pub keys: ApiKeys,
    /// Host names that requests may use, in addition to those of the machine itself.
    pub allowed_hosts: Vec<String>,
    /// Origins whose pages may send requests; `*` allows every page.
    pub allowed_origins: Vec<String>,
    /// Advice for refused clients on how to be admitted.
    pub ways_in: WaysIn,
    /// Which clients may manage models, if the server has a manager.
    pub manage: ManageAccess,
    /// Whether to refuse requests that name another model.
    pub strict_model: bool,
    /// Whether to log prompts.
    pub log_prompts: bool,
    /// Memory for requests, without the engine.
    pub request_memory_bytes: usize,
    /// Upper bound on the memory for replays, that is answers which are fed as they were sampled
    /// when they come back in a history. Keys have equal shares. With 0, histories are read as
    /// clients send them. Part of [`ServerConfig::request_memory_bytes`].
    pub replay_bytes: usize,
    /// Which clients share cached prompts and answers.
    pub cache: CacheScope,
    /// Time for which answers may continue after the server is told to stop.
    pub drain: Duration,
    /// All other time limits.
    pub timeouts: Timeouts,
    /// Limits on connections.
    pub connection_limits: ConnectionLimits,
}

impl ServerConfig {
    /// Returns the names of the owners of cached conversations, by number: those of the keys, or
    /// the keys themselves; none if all clients share one cache.
    #[must_use]
    pub fn owner_names(&self) -> Vec<String> {
        match self.cache {
            CacheScope::PerKey => self.keys.keys.iter().map(ApiKey::owner_name).collect(),
            CacheScope::Shared => Vec::new(),
        }
    }
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            addresses: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))],
            unix: None,
            keys: ApiKeys::default(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            ways_in: WaysIn::default(),
            manage: ManageAccess::Local,
            strict_model: false,
            log_prompts: false,
            request_memory_bytes: 1 << 30,
            replay_bytes: REPLAY_BYTES,
            cache: CacheScope::PerKey,
            drain: Duration::from_secs(30),
            timeouts: Timeouts::default(),
            connection_limits: ConnectionLimits::default(),
        }
    }
}

/// Advice for refused clients, in the terms of the program that runs the server.
#[derive(Clone, Debug)]
pub struct WaysIn {
    /// For a host name that is not allowed.
    pub host: &'static str,
    /// For a page of an origin that is not allowed.
    pub origin: &'static str,
    /// For a client that may not manage models.
    pub manage: &'static str,
}

impl Default for WaysIn {
    fn default() -> Self {
        Self {
            host: "allow it by its name",
            origin: "allow the origin by its name",
            manage: "allow it for marked keys",
        }
    }
}

/// Which clients may manage models: download, load and remove them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ManageAccess {
    /// Those of this machine, if the server has no keys, listens on loopback addresses and Unix
    /// sockets only, and allows no other hosts and origins; no client otherwise.
    #[default]
    Local,
    /// Those with a key that is marked for it.
    MarkedKeys,
}

/// Which clients share computed prompts and sampled answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheScope {
    /// Clients with the same key. A server without keys has one client.
    #[default]
    PerKey,
    /// All clients. A client can then learn about the prompts of others.
    Shared,
}

/// Limits on the number of connections. Further ones wait to be accepted, or replace idle ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// In total.
    pub n_max: usize,
    /// From one address, or one IPv6 network, so that one client cannot fill a server.
    pub n_peer_max: usize,
    /// From one address of this machine: behind a local proxy, all clients share one.
    pub n_local_peer_max: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self { n_max: 1_024, n_peer_max: 1_024 / 4, n_local_peer_max: 1_024 }
    }
}

/// Time limits.
#[derive(Clone, Debug)]
pub struct Timeouts {
    /// Until a stream begins, so that an early failure has its own status.
    pub stream: Duration,
    /// Until the response begins, for a client that waits for the whole answer.
    pub whole: Duration,
    /// Between two keep-alives.
    pub keep_alive: Duration,
    /// Between two reports of how far a prompt is read, for clients that ask for them.
    pub progress: Duration,
    /// Between two states of the machine, for clients that watch it.
    pub machine: Duration,
    /// For the head of a request; also the time for which an idle connection is kept.
    pub head: Duration,
    /// The same for connections that are accepted while few slots are free.
    pub head_when_nearly_full: Duration,
    /// For memory for a request's body, and between two chunks of it. The whole may take twice as
    /// long, and longer in proportion to its size.
    pub body: Duration,
    /// For a client to read: a connection ends when bytes stay unread for this long.
    pub reader: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            stream: Duration::from_millis(500),
            whole: Duration::from_secs(20),
            keep_alive: Duration::from_secs(10),
            progress: Duration::from_millis(500),
            machine: Duration::from_millis(250),
            head: Duration::from_secs(30),
            head_when_nearly_full: Duration::from_secs(5),
            body: Duration::from_secs(30),
            reader: Duration::from_secs(60),
        }
    }
}

/// A model and the means to serve it.
#[derive(Clone, Debug)]
pub struct Served {
    /// The scheduler that computes answers.
    pub service: Arc<Service>,
    /// The text of its model.
    pub text: Arc<ModelText>,
    /// The description of the model.
    pub model: ModelInfo,
    /// The wall clock, for templates that write the date, and for responses.
    pub seconds_since_1970: fn() -> i64,
}

/// The description of a model.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// Its names; the first is its canonical one.
    pub names: Vec<String>,
    /// The time at which it was opened, in seconds since 1970.
    pub created_s: u64,
    /// Further fields of `/props`, in addition to its names and its context.
    pub about: Map<String, Json>,
    /// What was measured of the machine that runs it.
    pub measured: Option<MeasuredRates>,
}

/// Rates of a machine, measured before. Clients compare the current ones with them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredRates {
    /// Bytes per second of the drive that the model is read from.
    pub drive_bytes_per_s: Option<f64>,
    /// Bytes per second of the memory.
    pub memory_bytes_per_s: Option<f64>,
}

/// The word after a key whose clients may manage models.
const MANAGE_MARK: &str = "manage";

/// What precedes the name of a key.
const NAME_MARK: &str = "name=";

/// Keys that identify clients.
#[derive(Clone, Default)]
pub struct ApiKeys {
    keys: Vec<ApiKey>,
}

#[derive(Clone)]
struct ApiKey {
    text: String,
    may_manage: bool,
    name: Option<String>,
}

impl ApiKey {
    /// Parses a line.
    fn of_line(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let text = words.next()?.to_owned();
        let mut key = Self { text, may_manage: false, name: None };
        for word in words {
            match word.strip_prefix(NAME_MARK) {
                Some(name) if !name.is_empty() && key.name.is_none() => {
                    key.name = Some(name.to_owned());
                }
                None if word == MANAGE_MARK && !key.may_manage => key.may_manage = true,
                _ => return None,
            }
        }
        let is_valid = |text: &str| {
            text.len() <= KEY_BYTES_MAX && text.bytes().all(|it| it.is_ascii_graphic())
        };
        (is_valid(&key.text) && key.name.as_deref().is_none_or(is_valid)).then_some(key)
    }

    /// Returns the name of the owner of its conversations. No name is that of a key without one.
    fn owner_name(&self) -> String {
        match &self.name {
            Some(name) => format!("name {name}"),
            None => format!("key {}", self.text),
        }
    }
}

impl ApiKeys {
    /// Parses keys, one per line. After a blank, `manage` marks a key whose clients may manage
    /// models, and `name=NAME` names a key, so that conversations on a drive are still found with
    /// another key of that name. Skips blank lines and those that begin with `#`.
    ///
    /// # Errors
    /// [`Error::Input`] if a line is no key, with the line's number, or if there are too many keys.
    pub fn from_lines(text: &str) -> Result<Self> {
        let mut keys = Vec::new();
        for (line_idx, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some(key) = ApiKey::of_line(line) else {
                return Err(Error::Input(format!(
                    "line {} is not an API key: a key has at most {KEY_BYTES_MAX} visible ASCII \
                     characters, and only the words `{MANAGE_MARK}` and `{NAME_MARK}NAME` may \
                     follow it",
                    line_idx + 1
                )));
            };
            keys.push(key);
        }
        if keys.len() > N_KEYS_MAX {
            let n_keys = keys.len();
            let problem = format!("{n_keys} API keys are too many; the limit is {N_KEYS_MAX}");
            return Err(Error::Input(problem));
        }
        Ok(Self { keys })
    }

    /// Whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the number of keys.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the index of a key. The time depends on the length of `given` and on the keys, but
    /// not on how much of a key is right.
    #[must_use]
    pub(crate) fn find(&self, given: &str) -> Option<usize> {
        let mut found = None;
        for (key_idx, key) in self.keys.iter().enumerate() {
            if are_same(key.text.as_bytes(), given.as_bytes()) {
                found = found.or(Some(key_idx));
            }
        }
        found
    }

    /// Whether clients with this key may manage models.
    #[must_use]
    pub(crate) fn may_manage(&self, key_idx: usize) -> bool {
        self.keys.get(key_idx).is_some_and(|key| key.may_manage)
    }

    /// Whether a key is marked for managing models.
    #[must_use]
    pub fn has_manager(&self) -> bool {
        self.keys.iter().any(|key| key.may_manage)
    }
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeys({} keys)", self.keys.len())
    }
}

/// Compares in a time that does not depend on how much is right.
pub(crate) fn are_same(key: &[u8], given: &[u8]) -> bool {
    let mut difference = u8::from(key.len() != given.len());
    for (idx, byte) in given.iter().enumerate() {
        difference |= std::hint::black_box(byte ^ key[idx % key.len()]);
    }
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_lines() {
        let keys = ApiKeys::from_lines("# for tests\n\n sk-1 \r\nsk-22\t manage\n").unwrap();
        let parsed: Vec<_> = keys.keys.iter().map(|key| (&*key.text, key.may_manage)).collect();
        assert_eq!(parsed, [("sk-1", false), ("sk-22", true)]);
        assert_eq!([0, 1, 2].map(|key_idx| keys.may_manage(key_idx)), [false, true, false]);
        assert!(keys.has_manager() && !ApiKeys::from_lines("manage").unwrap().has_manager());
        assert_eq!(format!("{keys:?}"), "ApiKeys(2 keys)");
        assert_eq!([keys.find("sk-1"), keys.find("sk-22")], [Some(0), Some(1)]);
        for wrong in ["", "s", "sk-2", "sk-11", "sk-1sk-1", "sk-222", "SK-1"] {
            assert_eq!(keys.find(wrong), None, "{wrong}");
        }
        assert!(ApiKeys::default().is_empty() && ApiKeys::default().find("").is_none());
    }

    #[test]
    fn owners_have_the_names_of_their_keys() {
        let lines = "sk-1\nsk-2 name=ann manage\nsk-3 manage name=bo\nsk-4 name=ann\n";
        let keys = ApiKeys::from_lines(lines).unwrap();
        assert_eq!([1, 2, 3].map(|key_idx| keys.may_manage(key_idx)), [true, true, false]);
        let config = ServerConfig { keys, ..ServerConfig::default() };
        assert_eq!(config.owner_names(), ["key sk-1", "name ann", "name bo", "name ann"]);
        let shared = ServerConfig { cache: CacheScope::Shared, ..config };
        assert!(shared.owner_names().is_empty());
    }

    #[test]
    fn invalid_keys_are_refused_by_their_line() {
        let problem = |text: &str| ApiKeys::from_lines(text).unwrap_err().to_string();
        for line in [
            "b c",
            "b manage c",
            "b managed",
            "b MANAGE",
            "b manage manage",
            "b name=",
            "b name=a name=c",
            "b name=\u{e9}",
        ] {
            let found = problem(&format!("a\n{line}"));
            assert!(found.starts_with("line 2 is not an API key: "), "{found}");
        }
        assert!(problem("k\u{e9}y").starts_with("line 1 is not an API key: "));
        assert!(problem(&"k".repeat(KEY_BYTES_MAX + 1)).starts_with("line 1 is not an API key: "));
        assert!(ApiKeys::from_lines(&"k".repeat(KEY_BYTES_MAX)).is_ok());
        assert!(ApiKeys::from_lines(&"k\n".repeat(N_KEYS_MAX)).is_ok());
        assert!(problem(&"k\n".repeat(N_KEYS_MAX + 1)).contains("1025 API keys are too many"));
    }
}
