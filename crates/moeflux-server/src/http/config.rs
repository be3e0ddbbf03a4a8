//! What a server is told before it listens.
//!
//! **Invariant:** keys are whole lines of visible characters, and no way of printing shows them.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use moeflux::{Error, ModelText, Result};
use moeflux_chat::REPLAY_BYTES;
use moeflux_schedule::Service;
use serde_json::{Map, Value as Json};

/// More keys would be compared with each request for no use.
const N_KEYS_MAX: usize = 1_024;
/// A key that is longer is no key, but the wrong file.
const KEY_BYTES_MAX: usize = 512;

/// Where a server listens, and whom it answers.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses to listen on; port 0 takes one that is free.
    pub addresses: Vec<SocketAddr>,
    /// A socket in the file system, for programs of the same user.
    pub unix: Option<PathBuf>,
    /// Who may ask; without keys everybody may.
    pub keys: ApiKeys,
    /// Names of this machine that requests may name beside those of the machine itself.
    pub allowed_hosts: Vec<String>,
    /// Origins whose pages may ask; `*` is every page.
    pub allowed_origins: Vec<String>,
    /// How the program that runs the server lets more of them in.
    pub ways_in: WaysIn,
    /// Whether a request that names another model is refused.
    pub strict_model: bool,
    /// Whether prompts are logged.
    pub log_prompts: bool,
    /// Bytes for everything that requests need beside the engine.
    pub account_bytes: usize,
    /// Most bytes for answers that are fed as they were sampled when they come back in a history,
    /// in equal shares of the keys; with 0 they are read as clients tell them. They are a part of
    /// the account.
    pub replay_bytes: usize,
    /// Which clients go on from each other's prompts and answers.
    pub cache: CacheScope,
    /// How long answers may go on once the server is to stop.
    pub drain: Duration,
    /// How long everything else may take.
    pub timeouts: Timeouts,
    /// How many connections there may be.
    pub places: Places,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            addresses: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))],
            unix: None,
            keys: ApiKeys::default(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            ways_in: WaysIn::default(),
            strict_model: false,
            log_prompts: false,
            account_bytes: 1 << 30,
            replay_bytes: REPLAY_BYTES,
            cache: CacheScope::PerKey,
            drain: Duration::from_secs(30),
            timeouts: Timeouts::default(),
            places: Places::default(),
        }
    }
}

/// What helps a client that is refused, in the words of the program that runs the server.
#[derive(Clone, Debug)]
pub struct WaysIn {
    /// For a host of another name.
    pub host: &'static str,
    /// For a page of another origin.
    pub origin: &'static str,
}

impl Default for WaysIn {
    fn default() -> Self {
        Self { host: "allow it by its name", origin: "allow the origin by its name" }
    }
}

/// Which clients go on from what was computed and sampled for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheScope {
    /// Clients with the same key. A server without keys has one client.
    #[default]
    PerKey,
    /// All clients: what a client asks can tell it about the prompts of others.
    Shared,
}

/// How many connections there may be at a time. More wait to be accepted, or end others that are
/// idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// In all.
    pub n_max: usize,
    /// From one address, or one network of IPv6: so that it takes several to fill a server.
    pub n_peer_max: usize,
    /// From one address of this machine: behind a proxy on it, all clients have that one.
    pub n_local_peer_max: usize,
}

impl Default for Places {
    fn default() -> Self {
        Self { n_max: 1_024, n_peer_max: 1_024 / 4, n_local_peer_max: 1_024 }
    }
}

/// How long things may take.
#[derive(Clone, Debug)]
pub struct Timeouts {
    /// Until a stream begins, so that an early failure has a status of its own.
    pub stream: Duration,
    /// Until the response to a client begins that waits for the whole answer.
    pub whole: Duration,
    /// Between two signs of life.
    pub sign: Duration,
    /// For the head of a request; so long an idle connection is kept, too.
    pub head: Duration,
    /// The same for connections that come while few places are free.
    pub head_when_short: Duration,
    /// For room for a request's body, and between two pieces of it. The whole may take twice as
    /// long, and longer where it is long.
    pub body: Duration,
    /// For a client to take what it is sent: bytes that lie unread for so long end its connection.
    pub reader: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            stream: Duration::from_millis(500),
            whole: Duration::from_secs(20),
            sign: Duration::from_secs(10),
            head: Duration::from_secs(30),
            head_when_short: Duration::from_secs(5),
            body: Duration::from_secs(30),
            reader: Duration::from_secs(60),
        }
    }
}

/// What a server serves, and with what.
#[derive(Clone, Debug)]
pub struct Served {
    /// Who answers.
    pub service: Arc<Service>,
    /// The text of its model.
    pub text: Arc<ModelText>,
    /// What is said of the model.
    pub model: ModelInfo,
    /// The wall clock, for templates that write the date and for responses.
    pub seconds_since_1970: fn() -> i64,
}

/// What is said of a model.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// Its names; the first is its true one.
    pub names: Vec<String>,
    /// Seconds since 1970: when it was opened.
    pub created_s: u64,
    /// What `/props` says beside its names and its context.
    pub about: Map<String, Json>,
}

/// Keys that clients name themselves by.
#[derive(Clone, Default)]
pub struct ApiKeys {
    keys: Vec<String>,
}

impl ApiKeys {
    /// The keys of a text: one a line. Blank lines and those that begin with `#` are left out.
    ///
    /// # Errors
    /// A line that is no key, by its number.
    pub fn from_lines(text: &str) -> Result<Self> {
        let mut keys = Vec::new();
        for (line_idx, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if line.len() > KEY_BYTES_MAX || !line.bytes().all(|it| it.is_ascii_graphic()) {
                return Err(Error::Input(format!(
                    "line {} is no API key: a key has at most {KEY_BYTES_MAX} visible characters \
                     of ASCII",
                    line_idx + 1
                )));
            }
            keys.push(line.to_owned());
        }
        if keys.len() > N_KEYS_MAX {
            let n_keys = keys.len();
            let problem = format!("{n_keys} API keys are too many; the limit is {N_KEYS_MAX}");
            return Err(Error::Input(problem));
        }
        Ok(Self { keys })
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The number of the key that this is. How long that takes depends on the length of `given` and
    /// on the keys, but not on how much of a key is right.
    #[must_use]
    pub(crate) fn find(&self, given: &str) -> Option<usize> {
        let mut found = None;
        for (key_idx, key) in self.keys.iter().enumerate() {
            if are_same(key.as_bytes(), given.as_bytes()) {
                found = found.or(Some(key_idx));
            }
        }
        found
    }
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeys({} keys)", self.keys.len())
    }
}

fn are_same(key: &[u8], given: &[u8]) -> bool {
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
        let keys = ApiKeys::from_lines("# for tests\n\n sk-1 \r\nsk-22\n").unwrap();
        assert_eq!(keys.keys, ["sk-1", "sk-22"]);
        assert_eq!(format!("{keys:?}"), "ApiKeys(2 keys)");
        assert_eq!([keys.find("sk-1"), keys.find("sk-22")], [Some(0), Some(1)]);
        for wrong in ["", "s", "sk-2", "sk-11", "sk-1sk-1", "sk-222", "SK-1"] {
            assert_eq!(keys.find(wrong), None, "{wrong}");
        }
        assert!(ApiKeys::default().is_empty() && ApiKeys::default().find("").is_none());
    }

    #[test]
    fn what_is_no_key_is_refused_by_its_line() {
        let problem = |text: &str| ApiKeys::from_lines(text).unwrap_err().to_string();
        assert!(problem("a\nb c").starts_with("line 2 is no API key: "));
        assert!(problem("k\u{e9}y").starts_with("line 1 is no API key: "));
        assert!(problem(&"k".repeat(KEY_BYTES_MAX + 1)).starts_with("line 1 is no API key: "));
        assert!(ApiKeys::from_lines(&"k".repeat(KEY_BYTES_MAX)).is_ok());
        assert!(ApiKeys::from_lines(&"k\n".repeat(N_KEYS_MAX)).is_ok());
        assert!(problem(&"k\n".repeat(N_KEYS_MAX + 1)).contains("1025 API keys are too many"));
    }
}
