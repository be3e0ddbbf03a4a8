//! Requests to the hub and to where it sends us, one at a time.
//!
//! **Invariant:** the token goes to the endpoint's own scheme, host and port only; a redirect never
//! leads from TLS to plain text; whoever is silent for too long is given up.

use std::io::Read;
use std::time::Duration;

use ureq::http::{HeaderMap, Uri};
use ureq::{Agent, Body};

use crate::error::{Error, Result};
use crate::name::Wanted;
use crate::settings::{Pace, Settings, Token};
use crate::stop::Stop;

/// Longer chains go in a circle.
const N_REDIRECTS_MAX: usize = 10;

/// Attempts without a new byte, before a question is given up.
pub(crate) const N_TRIES_ASKING: u32 = 4;

/// The same of a transfer, which may have lasted for hours: waits of four minutes in all.
pub(crate) const N_TRIES_FETCHING: u32 = 12;

/// Of a body that nobody needs, what is read: a connection serves again after its end.
const DRAINED_BYTES_MAX: u64 = 64 << 10;

/// Bytes of a message of the hub that are repeated.
const SAID_CHARS_MAX: usize = 200;

/// Asks a hub.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    agent: Agent,
    endpoint: String,
    home: Option<Origin>,
    token: Option<Token>,
    pace: Pace,
    stop: Stop,
}

/// Scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    is_tls: bool,
    host: String,
    port: u16,
}

/// The good end of a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
    /// Where it came from in the end.
    pub(crate) url: String,
}

/// Another end of a request.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// Another attempt may do.
    Passing {
        problem: String,
        /// How long the server asks to wait.
        asked: Option<Duration>,
    },
    /// The server refuses.
    Refused(Refusal),
    /// Nothing helps.
    Final(Error),
}

/// A status that is no success.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    /// The hub's word for what is wrong.
    code: String,
    message: String,
    /// Whether the hub itself said so, and not where it sent us.
    pub(crate) is_of_hub: bool,
}

impl Client {
    /// For so many requests at a time.
    pub(crate) fn new(settings: &Settings, n_connections: usize, stop: &Stop) -> Self {
        let silence = Some(settings.pace.silence);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("moeflux/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .max_idle_connections(2 * n_connections)
            .max_idle_connections_per_host(n_connections)
            .timeout_resolve(silence)
            .timeout_connect(silence)
            .timeout_recv_response(silence)
            .timeout_per_read(silence)
            .timeout_per_write(silence)
            .build();
        let agent = Agent::new_with_config(config);
        let hook = agent.clone();
        stop.on_set(move || hook.clone().shutdown());
        Self {
            agent,
            home: settings.endpoint.parse().ok().as_ref().and_then(Origin::of),
            endpoint: settings.endpoint.clone(),
            token: settings.token.clone(),
            pace: settings.pace,
            stop: stop.clone(),
        }
    }

    /// The hub's address.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Whether there is somebody who asks.
    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// The wish to end that this client obeys.
    pub(crate) fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Asks once, wherever that leads; `range` is the first and the last byte.
    pub(crate) fn get(
        &self,
        url: &str,
        range: Option<(u64, u64)>,
    ) -> std::result::Result<Answer, Trouble> {
        let mut url = url.to_owned();
        for _ in 0..N_REDIRECTS_MAX {
            self.stop.check().map_err(Trouble::Final)?;
            let mut answer = self.get_here(&url, range)?;
            if !matches!(answer.status, 200..=299) {
                drain(&mut answer.body.as_reader());
            }
            match answer.status {
                200..=299 => return Ok(answer),
                301 | 302 | 303 | 307 | 308 => url = self.redirected(&answer)?,
                _ => return Err(self.trouble(&answer)),
            }
        }
        let at = host(&url);
        let problem = format!("{at}: more than {N_REDIRECTS_MAX} redirects, which is a circle");
        Err(Trouble::Final(Error::Answer(problem)))
    }

    fn get_here(
        &self,
        url: &str,
        range: Option<(u64, u64)>,
    ) -> std::result::Result<Answer, Trouble> {
        let mut request = self.agent.get(url);
        if let Some((first, last)) = range {
            request = request.header("Range", format!("bytes={first}-{last}"));
        }
        if let Some(token) = self.token.as_ref().filter(|_| self.is_home(url)) {
            request = request.header("Authorization", format!("Bearer {}", token.secret()));
        }
        let response = request.call().map_err(|error| self.failed(url, &error))?;
        let (parts, body) = response.into_parts();
        let (status, headers) = (parts.status.as_u16(), parts.headers);
        Ok(Answer { status, headers, body, url: url.to_owned() })
    }

    fn failed(&self, url: &str, error: &ureq::Error) -> Trouble {
        if self.stop.is_set() {
            return Trouble::Final(Error::Cancelled);
        }
        let problem = match error {
            ureq::Error::Timeout(_) => {
                format!("{}: silent for {} s", host(url), self.pace.silence.as_secs_f32())
            }
            _ => format!("{}: {error}", host(url)),
        };
        let is_final = matches!(
            error,
            ureq::Error::BadUri(_)
                | ureq::Error::Http(_)
                | ureq::Error::InvalidProxyUrl
                | ureq::Error::Rustls(_)
                | ureq::Error::Tls(_)
        );
        if is_final {
            return Trouble::Final(Error::Network(problem));
        }
        Trouble::Passing { problem, asked: None }
    }

    fn is_home(&self, url: &str) -> bool {
        let origin = url.parse().ok().as_ref().and_then(Origin::of);
        origin.is_some() && origin == self.home
    }

    fn redirected(&self, answer: &Answer) -> std::result::Result<String, Trouble> {
        let from = &answer.url;
        let to = answer.headers.get("location").and_then(|it| it.to_str().ok());
        let to = to.and_then(|it| joined(from, it));
        let Some(to) = to else {
            let problem = format!("{}: redirects to nowhere", host(from));
            return Err(Trouble::Final(Error::Answer(problem)));
        };
        if from.starts_with("https:") && !to.starts_with("https:") {
            let problem = format!("{}: redirects to {} without TLS", host(from), host(&to));
            return Err(Trouble::Final(Error::Answer(problem)));
        }
        Ok(to)
    }

    fn trouble(&self, answer: &Answer) -> Trouble {
        let header = |name: &str| {
            let text = answer.headers.get(name).and_then(|it| it.to_str().ok());
            let said = text.unwrap_or_default().chars().filter(|it| !it.is_control());
            said.take(SAID_CHARS_MAX).collect::<String>()
        };
        let status = answer.status;
        if matches!(status, 408 | 425 | 429 | 500..) {
            let problem = format!("{}: answers {status}", host(&answer.url));
            let asked = seconds_asked(&header("retry-after"), &header("ratelimit"));
            return Trouble::Passing { problem, asked: asked.map(Duration::from_secs) };
        }
        Trouble::Refused(Refusal {
            status,
            code: header("x-error-code"),
            message: header("x-error-message"),
            is_of_hub: self.is_home(&answer.url),
        })
    }

    /// Says what a refusal means.
    pub(crate) fn refused(&self, wanted: &Wanted, path: &str, refusal: &Refusal) -> Error {
        let Refusal { status, code, message, .. } = refusal;
        let (id, endpoint) = (&wanted.id, &self.endpoint);
        let said = if message.is_empty() { String::new() } else { format!(" ({message})") };
        let has_token = self.has_token();
        Error::Refused(match (code.as_str(), status) {
            ("GatedRepo", _) | (_, 403) => {
                let token = if has_token { "a token that may read it" } else { "your token" };
                format!(
                    "{id} is gated: accept its terms at {endpoint}/{id} and set HF_TOKEN to \
                     {token}{said}"
                )
            }
            ("RevisionNotFound", _) => {
                format!("{id} has no revision {}: {endpoint}/{id} lists them", wanted.revision())
            }
            ("EntryNotFound", _) => format!("{id} has no file {path} at {}", wanted.revision()),
            (_, 401) if has_token => format!(
                "{endpoint} does not know {id}, or does not take the token for it: check the \
                 name, and HF_TOKEN{said}"
            ),
            (_, 401) => format!(
                "{endpoint} does not know {id}, or it is private: check the name, or set \
                 HF_TOKEN{said}"
            ),
            (_, 404) => format!(
                "{endpoint} does not know {id} at the revision {}: check the name{said}",
                wanted.revision()
            ),
            (_, status) => format!("{endpoint} answers {status} to a request for {wanted}{said}"),
        })
    }

    /// Reads an answer of at most `n_bytes_max`, after several attempts if need be. The second
    /// value is where the next page is.
    ///
    /// # Errors
    ///
    /// What went wrong in the end.
    pub(crate) fn read(
        &self,
        wanted: &Wanted,
        url: &str,
        n_bytes_max: u64,
    ) -> Result<(Vec<u8>, Option<String>)> {
        let mut tries = Tries::new(self, N_TRIES_ASKING);
        loop {
            let got = self.get(url, None).and_then(|answer| {
                let next = next_page(&answer);
                let mut body = answer.body;
                let bytes = body.with_config().limit(n_bytes_max).read_to_vec();
                match bytes {
                    Err(ureq::Error::BodyExceedsLimit(_)) => {
                        let at = host(url);
                        let problem = format!("{at}: an answer of more than {n_bytes_max} bytes");
                        Err(Trouble::Final(Error::Answer(problem)))
                    }
                    Err(error) => Err(self.failed(url, &error)),
                    Ok(bytes) => Ok((bytes, next)),
                }
            });
            match got {
                Ok(found) => return Ok(found),
                Err(Trouble::Refused(refusal)) => {
                    return Err(self.refused(wanted, "", &refusal));
                }
                Err(Trouble::Final(error)) => return Err(error),
                Err(Trouble::Passing { problem, asked }) => tries.wait(&problem, asked)?,
            }
        }
    }
}

/// Attempts, with longer and longer waits.
#[derive(Debug)]
pub(crate) struct Tries {
    n_made: u32,
    n_max: u32,
    pace: Pace,
    stop: Stop,
}

impl Tries {
    pub(crate) fn new(client: &Client, n_max: u32) -> Self {
        Self { n_made: 0, n_max, pace: client.pace, stop: client.stop.clone() }
    }

    /// Something arrived: all attempts count anew.
    pub(crate) fn progressed(&mut self) {
        self.n_made = 0;
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    ///
    /// [`Error::Network`] after too many; [`Error::Cancelled`].
    pub(crate) fn wait(&mut self, problem: &str, asked: Option<Duration>) -> Result<()> {
        let Pace { first_wait, longest_wait, longest_asked, .. } = self.pace;
        self.n_made += 1;
        if self.n_made >= self.n_max {
            let n_made = self.n_made;
            let problem = format!("{problem}; given up after {n_made} attempts: try again later");
            return Err(Error::Network(problem));
        }
        if let Some(asked) = asked.filter(|it| *it > longest_asked) {
            let seconds = asked.as_secs();
            let problem = format!("{problem}, and asks to wait for {seconds} s: try again then");
            return Err(Error::Network(problem));
        }
        let doubled = first_wait.saturating_mul(1 << (self.n_made - 1).min(20));
        self.stop.wait(asked.unwrap_or_else(|| doubled.min(longest_wait)))
    }
}

/// Reads to the end of a body, if that is near.
pub(crate) fn drain(body: &mut dyn Read) {
    // An error here concerns nothing that is needed.
    drop(std::io::copy(&mut body.take(DRAINED_BYTES_MAX), &mut std::io::sink()));
}

impl Origin {
    fn of(uri: &Uri) -> Option<Self> {
        let is_tls = uri.scheme_str()? == "https";
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        Some(Self { is_tls, host: uri.host()?.to_ascii_lowercase(), port })
    }
}

/// Whom a request goes to, for messages: an address may hold a signature.
fn host(url: &str) -> String {
    let uri = url.parse::<Uri>().ok();
    let authority = uri.and_then(|it| {
        let host = it.host()?.to_owned();
        Some(it.port_u16().map_or(host.clone(), |port| format!("{host}:{port}")))
    });
    authority.unwrap_or_else(|| "the hub".to_owned())
}

/// Where a redirect leads.
fn joined(from: &str, to: &str) -> Option<String> {
    let (scheme, rest) = from.split_once("://")?;
    let authority = rest.split(['/', '?']).next()?;
    let joined = if to.starts_with("http://") || to.starts_with("https://") {
        to.to_owned()
    } else if to.starts_with("//") {
        format!("{scheme}:{to}")
    } else if to.starts_with('/') {
        format!("{scheme}://{authority}{to}")
    } else if to.contains("://") {
        return None;
    } else {
        let path = rest.split('?').next()?;
        let (folder, _) = path.rsplit_once('/').unwrap_or((path, ""));
        format!("{scheme}://{folder}/{to}")
    };
    joined.parse::<Uri>().ok().as_ref().and_then(Origin::of)?;
    Some(joined)
}

/// `<https://..>; rel="next"`.
fn next_page(answer: &Answer) -> Option<String> {
    let links = answer.headers.get("link")?.to_str().ok()?;
    let next = links.split(',').find(|it| it.contains("rel=\"next\""))?;
    let target = next.split_once('<')?.1.split_once('>')?.0;
    joined(&answer.url, target)
}

/// The seconds of `Retry-After`, or until a count of requests begins anew:
/// `"api";r=0;t=55`.
fn seconds_asked(retry_after: &str, rate_limit: &str) -> Option<u64> {
    let field = |name: &str| {
        let fields = rate_limit.split(';').map(str::trim);
        fields.filter_map(|it| it.strip_prefix(name)).find_map(|it| it.parse::<u64>().ok())
    };
    let until_anew = field("t=").filter(|_| field("r=") == Some(0));
    // A second more: both count whole ones.
    retry_after.trim().parse().ok().or_else(|| Some(until_anew?.saturating_add(1)))
}

/// A path as a part of an address: of what is not plain, each byte as `%41`.
pub(crate) fn quoted(path: &str, keeps_slashes: bool) -> String {
    let mut quoted = String::with_capacity(path.len());
    for byte in path.bytes() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        if is_plain || byte == b'/' && keeps_slashes {
            quoted.push(char::from(byte));
        } else {
            quoted.push_str(&format!("%{byte:02X}"));
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_where_browsers_go() {
        let check = |to: &str, expected: Option<&str>| {
            assert_eq!(joined("https://a.b:8/x/y?z", to).as_deref(), expected, "{to}");
        };
        check("https://c/d?e=f", Some("https://c/d?e=f"));
        check("/d", Some("https://a.b:8/d"));
        check("//c/d", Some("https://c/d"));
        check("d", Some("https://a.b:8/x/d"));
        check("file:///etc/passwd", None);
        check("https://", None);
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let of = |url: &str| Origin::of(&url.parse().unwrap()).unwrap();
        assert_eq!(of("https://Hub.co/a"), of("https://hub.co:443/b"));
        assert_eq!(of("https://hub.co@evil.co/").host, "evil.co");
        for other in ["http://hub.co", "https://hub.co:444", "https://hub.co.evil.co"] {
            assert_ne!(of("https://hub.co"), of(other));
        }
    }

    #[test]
    fn a_server_that_asks_to_wait_is_understood() {
        for (retry_after, rate_limit, expected) in [
            ("7", "", Some(7)),
            ("", r#""api";r=0;t=55"#, Some(56)),
            ("", r#""api";r=3;t=55"#, None),
            ("Wed, 21 Oct 2015 07:28:00 GMT", "", None),
            ("-1", "", None),
            ("", "", None),
        ] {
            assert_eq!(seconds_asked(retry_after, rate_limit), expected);
        }
    }

    #[test]
    fn paths_are_quoted_for_addresses() {
        assert_eq!(quoted("a b/ü#?.json", true), "a%20b/%C3%BC%23%3F.json");
        assert_eq!(quoted("refs/pr/1", false), "refs%2Fpr%2F1");
    }
}
