//! Settings of the cache, the hub and the token, from the variables of `huggingface_hub`.
//!
//! **Invariant:** reads no environment itself; a token is never printed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use moeflux_io::OneLine;

use crate::error::{Error, Result};
use crate::file;

/// The public hub.
const ENDPOINT: &str = "https://huggingface.co";

/// Maximum size of a token file. A token has some dozens of characters.
const TOKEN_BYTES_MAX: u64 = 64 << 10;

/// Values of variables that mean true.
const TRUE: [&str; 4] = ["1", "ON", "YES", "TRUE"];

/// The settings of a hub and its cache.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder with `models--OWNER--NAME`.
    pub cache: PathBuf,
    /// The address of the hub, without a trailing slash.
    pub endpoint: String,
    /// The token for authentication.
    pub token: Option<Token>,
    /// Whether the network must not be used.
    pub is_offline: bool,
    /// Whether files are put into snapshots instead of links.
    pub has_no_links: bool,
    /// Timeouts and retry waits.
    pub timeouts: HubTimeouts,
}

/// Timeouts and retry waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HubTimeouts {
    /// The timeout for the next byte or a connection.
    pub idle: Duration,
    /// The wait before the first retry; each further retry waits twice as long.
    pub first_wait: Duration,
    /// The longest wait between attempts.
    pub longest_wait: Duration,
    /// The longest wait that a hub may ask for.
    pub longest_retry_after: Duration,
}

impl Default for HubTimeouts {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(30),
            first_wait: Duration::from_secs(1),
            longest_wait: Duration::from_secs(30),
            // The hub counts requests in windows of five minutes.
            longest_retry_after: Duration::from_secs(330),
        }
    }
}

/// A secret for authentication.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Creates a token; `None` if the text is blank.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Settings {
    /// Reads the settings from the environment: `variable` returns a variable's value.
    ///
    /// # Errors
    ///
    /// [`Error::Asked`] if there is neither a cache folder nor a home folder, or the endpoint is
    /// not an address; [`Error::Io`] if the token file cannot be read.
    pub fn from_environment(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let get = |name: &str| variable(name).filter(|it| !it.is_empty());
        let is_true = |name: &str| get(name).is_some_and(|it| is_true(&it));
        let home = || get(if cfg!(windows) { "USERPROFILE" } else { "HOME" }).map(PathBuf::from);
        let path = |name: &str| {
            let text = get(name)?;
            match text.strip_prefix('~').filter(|it| it.is_empty() || it.starts_with(['/', '\\'])) {
                Some(rest) => Some(home()?.join(rest.trim_start_matches(['/', '\\']))),
                None => Some(PathBuf::from(text)),
            }
        };
        let user_cache = || path("XDG_CACHE_HOME").or_else(|| Some(home()?.join(".cache")));
        let hub_home = path("HF_HOME").or_else(|| Some(user_cache()?.join("huggingface")));
        let cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| Some(hub_home.as_ref()?.join("hub")));
        let Some(cache) = cache else {
            let problem =
                "there is no home folder for the cache of models: set HF_HOME to a folder";
            return Err(Error::Asked(problem.to_owned()));
        };
        let token_file = path("HF_TOKEN_PATH").or_else(|| Some(hub_home?.join("token")));
        let named = get("HF_TOKEN").or_else(|| get("HUGGING_FACE_HUB_TOKEN"));
        let token = match named.as_deref().and_then(Token::new) {
            Some(token) => Some(token),
            None if is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN") => None,
            None => token_file.as_deref().map(token_of).transpose()?.flatten(),
        };
        let seconds = get("HF_HUB_DOWNLOAD_TIMEOUT").and_then(|it| it.parse::<u32>().ok());
        let idle = seconds.filter(|it| *it > 0).map(|it| Duration::from_secs(it.into()));
        let timeouts = HubTimeouts::default();
        Ok(Self {
            cache,
            endpoint: endpoint(get("HF_ENDPOINT").as_deref().unwrap_or(ENDPOINT))?,
            token,
            is_offline: is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE"),
            has_no_links: is_true("HF_HUB_DISABLE_SYMLINKS"),
            timeouts: HubTimeouts { idle: idle.unwrap_or(timeouts.idle), ..timeouts },
        })
    }
}

fn is_true(value: &str) -> bool {
    TRUE.iter().any(|it| it.eq_ignore_ascii_case(value))
}

fn endpoint(text: &str) -> Result<String> {
    let text = text.trim_end_matches('/');
    let uri = text.parse::<ureq::http::Uri>().ok();
    let is_valid = uri.is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
    });
    if is_valid && !text.contains(['?', '#', '@']) {
        return Ok(text.to_owned());
    }
    Err(Error::Asked(format!(
        "HF_ENDPOINT is `{}`, which is not the address of a hub: write it as {ENDPOINT}",
        OneLine::name(&without_secrets(text))
    )))
}

/// Removes possible secrets from an address: the text before an `@`, and the text after a `?` or a
/// `#`.
fn without_secrets(address: &str) -> String {
    let (secret, rest) = address.rsplit_once('@').map_or(("", address), |(_, rest)| ("..@", rest));
    let end = rest.find(['?', '#']).map_or(rest.len(), |at| at + 1);
    let dots = if end < rest.len() { ".." } else { "" };
    format!("{secret}{}{dots}", &rest[..end])
}

fn token_of(path: &Path) -> Result<Option<Token>> {
    let bytes = file::read_if_there(path, TOKEN_BYTES_MAX)?;
    Ok(bytes.and_then(|it| Token::new(&String::from_utf8_lossy(&it))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings> {
        let get = |name: &str| {
            let found = variables.iter().find(|(it, _)| *it == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Settings::from_environment(&get)
    }

    #[cfg(unix)]
    #[track_caller]
    fn check_cache(variables: &[(&str, &str)], expected: &str) {
        assert_eq!(settings(variables).unwrap().cache, Path::new(expected));
    }

    #[cfg(unix)]
    #[test]
    fn the_cache_is_where_the_hub_s_own_tools_have_it() {
        let home = ("HOME", "/nonexistent/home");
        check_cache(&[home], "/nonexistent/home/.cache/huggingface/hub");
        check_cache(&[home, ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub");
        check_cache(&[home, ("HF_HOME", "/h"), ("XDG_CACHE_HOME", "/x")], "/h/hub");
        check_cache(&[home, ("HF_HOME", "~/h")], "/nonexistent/home/h/hub");
        check_cache(&[home, ("HF_HUB_CACHE", "/c"), ("HF_HOME", "/h")], "/c");
        check_cache(&[("HF_HUB_CACHE", "/c")], "/c");
        check_cache(&[home, ("HF_HUB_CACHE", "")], "/nonexistent/home/.cache/huggingface/hub");
        assert!(settings(&[]).unwrap_err().to_string().contains("HF_HOME"));
    }

    #[test]
    fn endpoints_are_addresses() {
        let check = |text: &str, expected: Option<&str>| {
            let found = settings(&[("HF_HUB_CACHE", "/c"), ("HF_ENDPOINT", text)]);
            assert_eq!(found.ok().map(|it| it.endpoint).as_deref(), expected, "{text}");
        };
        check("", Some(ENDPOINT));
        check("http://127.0.0.1:5000/", Some("http://127.0.0.1:5000"));
        check("https://mirror.example/hf", Some("https://mirror.example/hf"));
        for wrong in ["huggingface.co", "ftp://x", "https://", "http://u@x", "http://x/?y"] {
            check(wrong, None);
        }
    }

    #[test]
    fn no_secret_of_an_endpoint_is_shown() {
        for (text, shown) in [
            ("http://user:s3cret@hub/x", "..@hub/x"),
            ("https://user:s3cret@hub:8/?token=s3cret", "..@hub:8/?.."),
            ("user:s3cret@hub", "..@hub"),
            ("http://u:s3cret?@s3cret#@hub", "..@hub"),
            ("http://s3cret@", "..@"),
            ("http://hub/?key=s3cret", "http://hub/?.."),
            ("http://hub/#s3cret", "http://hub/#.."),
            ("ftp://hub?", "ftp://hub?"),
            ("http://hub/?a=b@s3cret?x", "..@s3cret?.."),
        ] {
            let message = settings(&[("HF_HUB_CACHE", "/c"), ("HF_ENDPOINT", text)]);
            let message = message.unwrap_err().to_string();
            assert!(message.starts_with(&format!("HF_ENDPOINT is `{shown}`")), "{text}: {message}");
        }
        let evil = settings(&[("HF_HUB_CACHE", "/c"), ("HF_ENDPOINT", "\x1b[2J\u{202e}")]);
        let message = evil.unwrap_err().to_string();
        assert!(message.contains("`\\u{1b}[2J\\u{202e}`"), "{message}");
    }

    #[test]
    fn a_token_is_found_and_never_shown() {
        let cache = ("HF_HUB_CACHE", "/c");
        let found = settings(&[cache, ("HF_TOKEN", " hf_secret\n")]).unwrap();
        assert_eq!(found.token.as_ref().map(Token::secret), Some("hf_secret"));
        assert!(!format!("{found:?}").contains("secret"));
        assert_eq!(settings(&[cache, ("HF_TOKEN", " ")]).unwrap().token, None);
        let offline = |value| settings(&[cache, ("HF_HUB_OFFLINE", value)]).unwrap().is_offline;
        assert!(offline("1") && offline("true") && !offline("0") && !offline("no"));
        let paced = settings(&[cache, ("HF_HUB_DOWNLOAD_TIMEOUT", "7")]).unwrap().timeouts;
        assert_eq!(paced.idle, Duration::from_secs(7));
    }
}
