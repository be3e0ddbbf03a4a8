//! Requests to the hub and to the targets of its redirects, one at a time.
//!
//! **Invariant:** the token is sent only to the endpoint's own scheme, host and port; a redirect
//! never leads from TLS to plain text; every wait for a server has a timeout.

use std::io::Read;
use std::time::Duration;

use ureq::http::{HeaderMap, Uri};
use ureq::{Agent, Body};

use crate::error::{Error, Result};
use crate::name::ModelRef;
use crate::settings::{HubTimeouts, Settings, Token};
use crate::stop::StopFlag;

/// Maximum number of redirects; longer chains are treated as a loop.
const N_REDIRECTS_MAX: usize = 10;

/// Maximum number of attempts at a metadata request without receiving a byte.
pub(crate) const N_TRIES_METADATA: u32 = 4;

/// Maximum number of attempts at a transfer without receiving a byte. Since a transfer may have
/// lasted for hours, the waits take four minutes in all.
pub(crate) const N_TRIES_TRANSFER: u32 = 12;

/// Maximum number of bytes that are read from an unneeded body, because a connection can be reused
/// only after the body's end.
const DRAINED_BYTES_MAX: u64 = 64 << 10;

/// Maximum length in characters of a quoted message of the hub.
const MESSAGE_CHARS_MAX: usize = 200;

/// The client of a hub.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    agent: Agent,
    endpoint: String,
    endpoint_origin: Option<UrlOrigin>,
    token: Option<Token>,
    timeouts: HubTimeouts,
    stop: StopFlag,
}

/// The origin of an address: scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct UrlOrigin {
    is_tls: bool,
    host: String,
    port: u16,
}

/// The successful result of a request.
#[derive(Debug)]
pub(crate) struct HubResponse {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
    /// The final address, after redirects.
    pub(crate) url: String,
}

/// The unsuccessful result of a request.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// A retry may succeed.
    Transient {
        problem: String,
        /// The time to wait that the server asks for.
        retry_after: Option<Duration>,
    },
    /// The server refuses.
    Refused(ErrorResponse),
    /// A retry is pointless.
    Fatal(Error),
}

/// A status other than success or redirect.
#[derive(Clone, Debug)]
pub(crate) struct ErrorResponse {
    pub(crate) status: u16,
    /// The hub's code for the problem.
    code: String,
    message: String,
    /// Whether the hub itself refused, rather than the target of a redirect.
    pub(crate) is_of_hub: bool,
}

impl Client {
    /// Creates a client for `n_connections` concurrent requests.
    pub(crate) fn new(settings: &Settings, n_connections: usize, stop: &StopFlag) -> Self {
        let idle = Some(settings.timeouts.idle);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("moeflux/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .max_idle_connections(2 * n_connections)
            .max_idle_connections_per_host(n_connections)
            .timeout_resolve(idle)
            .timeout_connect(idle)
            .timeout_recv_response(idle)
            .timeout_per_read(idle)
            .timeout_per_write(idle)
            .build();
        let agent = Agent::new_with_config(config);
        let hook = agent.clone();
        stop.on_set(move || hook.clone().shutdown());
        Self {
            agent,
            endpoint_origin: settings.endpoint.parse().ok().as_ref().and_then(UrlOrigin::of),
            endpoint: settings.endpoint.clone(),
            token: settings.token.clone(),
            timeouts: settings.timeouts,
            stop: stop.clone(),
        }
    }

    /// Returns the hub's address.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Returns whether requests are authenticated.
    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Returns the stop flag of this client.
    pub(crate) fn stop(&self) -> &StopFlag {
        &self.stop
    }

    /// Sends one request and follows redirects; `range` is the first and the last byte.
    pub(crate) fn get(
        &self,
        url: &str,
        range: Option<(u64, u64)>,
    ) -> std::result::Result<HubResponse, RequestError> {
        let mut url = url.to_owned();
        for _ in 0..N_REDIRECTS_MAX {
            self.stop.check().map_err(RequestError::Fatal)?;
            let mut response = self.get_here(&url, range)?;
            if !matches!(response.status, 200..=299) {
                drain(&mut response.body.as_reader());
            }
            match response.status {
                200..=299 => return Ok(response),
                301 | 302 | 303 | 307 | 308 => url = self.redirected(&response)?,
                _ => return Err(self.request_error(&response)),
            }
        }
        let at = host(&url);
        let problem = format!("{at}: more than {N_REDIRECTS_MAX} redirects (redirect loop)");
        Err(RequestError::Fatal(Error::Answer(problem)))
    }

    fn get_here(
        &self,
        url: &str,
        range: Option<(u64, u64)>,
    ) -> std::result::Result<HubResponse, RequestError> {
        let mut request = self.agent.get(url);
        if let Some((first, last)) = range {
            request = request.header("Range", format!("bytes={first}-{last}"));
        }
        if let Some(token) = self.token.as_ref().filter(|_| self.is_endpoint(url)) {
            request = request.header("Authorization", format!("Bearer {}", token.secret()));
        }
        let response = request.call().map_err(|error| self.transport_error(url, &error))?;
        let (parts, body) = response.into_parts();
        let (status, headers) = (parts.status.as_u16(), parts.headers);
        Ok(HubResponse { status, headers, body, url: url.to_owned() })
    }

    fn transport_error(&self, url: &str, error: &ureq::Error) -> RequestError {
        if self.stop.is_set() {
            return RequestError::Fatal(Error::Cancelled);
        }
        let problem = match error {
            ureq::Error::Timeout(_) => {
                format!("{}: no response for {} s", host(url), self.timeouts.idle.as_secs_f32())
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
            return RequestError::Fatal(Error::Network(problem));
        }
        RequestError::Transient { problem, retry_after: None }
    }

    fn is_endpoint(&self, url: &str) -> bool {
        let origin = url.parse().ok().as_ref().and_then(UrlOrigin::of);
        origin.is_some() && origin == self.endpoint_origin
    }

    fn redirected(&self, response: &HubResponse) -> std::result::Result<String, RequestError> {
        let from = &response.url;
        let to = response.headers.get("location").and_then(|it| it.to_str().ok());
        let to = to.and_then(|it| joined(from, it));
        let Some(to) = to else {
            let problem = format!("{}: redirects to nowhere", host(from));
            return Err(RequestError::Fatal(Error::Answer(problem)));
        };
        if from.starts_with("https:") && !to.starts_with("https:") {
            let problem = format!("{}: redirects to {} without TLS", host(from), host(&to));
            return Err(RequestError::Fatal(Error::Answer(problem)));
        }
        Ok(to)
    }

    fn request_error(&self, response: &HubResponse) -> RequestError {
        let header = |name: &str| {
            let text = response.headers.get(name).and_then(|it| it.to_str().ok());
            let printable = text.unwrap_or_default().chars().filter(|it| !it.is_control());
            printable.take(MESSAGE_CHARS_MAX).collect::<String>()
        };
        let status = response.status;
        if matches!(status, 408 | 425 | 429 | 500..) {
            let problem = format!("{} returned status {status}", host(&response.url));
            let retry_after = retry_after_seconds(&header("retry-after"), &header("ratelimit"));
            return RequestError::Transient {
                problem,
                retry_after: retry_after.map(Duration::from_secs),
            };
        }
        RequestError::Refused(ErrorResponse {
            status,
            code: header("x-error-code"),
            message: header("x-error-message"),
            is_of_hub: self.is_endpoint(&response.url),
        })
    }

    /// Returns the error for an error response.
    pub(crate) fn refused(&self, model: &ModelRef, path: &str, response: &ErrorResponse) -> Error {
        let ErrorResponse { status, code, message, .. } = response;
        let (id, endpoint) = (&model.id, &self.endpoint);
        let suffix = if message.is_empty() { String::new() } else { format!(" ({message})") };
        let has_token = self.has_token();
        Error::Refused(match (code.as_str(), status) {
            ("GatedRepo", _) | (_, 403) => {
                let token = if has_token { "a token that may read it" } else { "your token" };
                format!(
                    "{id} is gated: accept its terms at {endpoint}/{id} and set HF_TOKEN to \
                     {token}{suffix}"
                )
            }
            ("RevisionNotFound", _) => {
                format!("{id} has no revision {}: {endpoint}/{id} lists them", model.revision())
            }
            ("EntryNotFound", _) => format!("{id} has no file {path} at {}", model.revision()),
            (_, 401) if has_token => format!(
                "{endpoint} does not know {id}, or does not accept the token for it: check the \
                 name, and HF_TOKEN{suffix}"
            ),
            (_, 401) => format!(
                "{endpoint} does not know {id}, or it is private: check the name, or set \
                 HF_TOKEN{suffix}"
            ),
            (_, 404) => format!(
                "{endpoint} does not know {id} at the revision {}: check the name{suffix}",
                model.revision()
            ),
            (_, status) => {
                format!("{endpoint} returned status {status} to a request for {model}{suffix}")
            }
        })
    }

    /// Reads an answer of at most `n_bytes_max`, with retries. Also returns the address of the next
    /// page, if there is one.
    ///
    /// # Errors
    ///
    /// [`Error::Network`] after too many attempts; [`Error::Refused`] if the hub refuses;
    /// [`Error::Answer`] if the answer is too large or a redirect is invalid; [`Error::Cancelled`].
    pub(crate) fn read(
        &self,
        model: &ModelRef,
        url: &str,
        n_bytes_max: u64,
    ) -> Result<(Vec<u8>, Option<String>)> {
        let mut tries = Retries::new(self, N_TRIES_METADATA);
        loop {
            let got = self.get(url, None).and_then(|response| {
                let next = next_page(&response);
                let mut body = response.body;
                let bytes = body.with_config().limit(n_bytes_max).read_to_vec();
                match bytes {
                    Err(ureq::Error::BodyExceedsLimit(_)) => {
                        let at = host(url);
                        let problem = format!("{at}: an answer of more than {n_bytes_max} bytes");
                        Err(RequestError::Fatal(Error::Answer(problem)))
                    }
                    Err(error) => Err(self.transport_error(url, &error)),
                    Ok(bytes) => Ok((bytes, next)),
                }
            });
            match got {
                Ok(found) => return Ok(found),
                Err(RequestError::Refused(response)) => {
                    return Err(self.refused(model, "", &response));
                }
                Err(RequestError::Fatal(error)) => return Err(error),
                Err(RequestError::Transient { problem, retry_after }) => {
                    tries.wait(&problem, retry_after)?;
                }
            }
        }
    }
}

/// Retries with exponential backoff.
#[derive(Debug)]
pub(crate) struct Retries {
    n_made: u32,
    n_max: u32,
    timeouts: HubTimeouts,
    stop: StopFlag,
}

impl Retries {
    pub(crate) fn new(client: &Client, n_max: u32) -> Self {
        Self { n_made: 0, n_max, timeouts: client.timeouts, stop: client.stop.clone() }
    }

    /// Resets the number of attempts, because data arrived.
    pub(crate) fn reset(&mut self) {
        self.n_made = 0;
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    ///
    /// [`Error::Network`] after too many attempts, or if the server asks for too long a wait;
    /// [`Error::Cancelled`].
    pub(crate) fn wait(&mut self, problem: &str, retry_after: Option<Duration>) -> Result<()> {
        let HubTimeouts { first_wait, longest_wait, longest_retry_after, .. } = self.timeouts;
        self.n_made += 1;
        if self.n_made >= self.n_max {
            let n_made = self.n_made;
            let problem = format!("{problem}; given up after {n_made} attempts: try again later");
            return Err(Error::Network(problem));
        }
        if let Some(retry_after) = retry_after.filter(|it| *it > longest_retry_after) {
            let seconds = retry_after.as_secs();
            let problem = format!("{problem}, and asks to wait for {seconds} s: try again then");
            return Err(Error::Network(problem));
        }
        let doubled = first_wait.saturating_mul(1 << (self.n_made - 1).min(20));
        self.stop.wait(retry_after.unwrap_or_else(|| doubled.min(longest_wait)))
    }
}

/// Reads a body to its end, if that is near.
pub(crate) fn drain(body: &mut dyn Read) {
    // The body is not needed, so errors are ignored.
    drop(std::io::copy(&mut body.take(DRAINED_BYTES_MAX), &mut std::io::sink()));
}

impl UrlOrigin {
    fn of(uri: &Uri) -> Option<Self> {
        let is_tls = uri.scheme_str()? == "https";
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        Some(Self { is_tls, host: uri.host()?.to_ascii_lowercase(), port })
    }
}

/// Returns the host and port for messages, because an address may contain a signature.
fn host(url: &str) -> String {
    let uri = url.parse::<Uri>().ok();
    let authority = uri.and_then(|it| {
        let host = it.host()?.to_owned();
        Some(it.port_u16().map_or(host.clone(), |port| format!("{host}:{port}")))
    });
    authority.unwrap_or_else(|| "the hub".to_owned())
}

/// Resolves the target of a redirect.
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
    joined.parse::<Uri>().ok().as_ref().and_then(UrlOrigin::of)?;
    Some(joined)
}

/// Returns the address in `<https://..>; rel="next"`.
fn next_page(response: &HubResponse) -> Option<String> {
    let links = response.headers.get("link")?.to_str().ok()?;
    let next = links.split(',').find(|it| it.contains("rel=\"next\""))?;
    let target = next.split_once('<')?.1.split_once('>')?.0;
    joined(&response.url, target)
}

/// Returns the seconds from `Retry-After`, or until the rate limit resets: `"api";r=0;t=55`.
fn retry_after_seconds(retry_after: &str, rate_limit: &str) -> Option<u64> {
    let field = |name: &str| {
        let fields = rate_limit.split(';').map(str::trim);
        fields.filter_map(|it| it.strip_prefix(name)).find_map(|it| it.parse::<u64>().ok())
    };
    let until_anew = field("t=").filter(|_| field("r=") == Some(0));
    // One second more, because both count whole seconds.
    retry_after.trim().parse().ok().or_else(|| Some(until_anew?.saturating_add(1)))
}

/// Quotes a path for an address: bytes other than unreserved ones become `%41`.
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
        let of = |url: &str| UrlOrigin::of(&url.parse().unwrap()).unwrap();
        assert_eq!(of("https://Hub.co/a"), of("https://hub.co:443/b"));
        assert_eq!(of("https://hub.co@evil.co/").host, "evil.co");
        for other in ["http://hub.co", "https://hub.co:444", "https://hub.co.evil.co"] {
            assert_ne!(of("https://hub.co"), of(other));
        }
    }

    #[test]
    fn requested_waiting_times_are_parsed() {
        for (retry_after, rate_limit, expected) in [
            ("7", "", Some(7)),
            ("", r#""api";r=0;t=55"#, Some(56)),
            ("", r#""api";r=3;t=55"#, None),
            ("Wed, 21 Oct 2015 07:28:00 GMT", "", None),
            ("-1", "", None),
            ("", "", None),
        ] {
            assert_eq!(retry_after_seconds(retry_after, rate_limit), expected);
        }
    }

    #[test]
    fn paths_are_quoted_for_addresses() {
        assert_eq!(quoted("a b/ü#?.json", true), "a%20b/%C3%BC%23%3F.json");
        assert_eq!(quoted("refs/pr/1", false), "refs%2Fpr%2F1");
    }
}
