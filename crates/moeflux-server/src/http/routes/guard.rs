//! Admits requests by host, origin and key, and sets the headers that every response has.
//!
//! A page in a browser can reach a server on its own machine. If its name was made to resolve to
//! this machine, the request has that name in `Host`; it has the page's origin in `Origin`.
//! **Invariant:** no refused request gets past the guard; every response has the id of its request.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{HeaderMap, Method, Request, Response, StatusCode};
use axum::middleware::Next;
use moeflux_schedule::Owner;

use crate::http::body;
use crate::http::config::CacheScope;
use crate::http::reply::{self, ANTHROPIC_REQUEST_ID, Family, REQUEST_ID, Refused, RequestId};
use crate::http::routes::page;
use crate::http::routes::rights::ManageRight;
use crate::http::shared::ServerState;
use crate::http::sockets::listen::is_loopback;
use crate::http::sockets::slots::StageReporter;
use moeflux_wire::{Failure, FailureKind};

/// A path that needs no key, because programs without one monitor it.
pub(crate) const OPEN_PATH: &str = "/health";

/// Upper bound on the length of a client's own request id.
const REQUEST_ID_BYTES_MAX: usize = 128;
/// Upper bound on client text in logs and messages.
const SHOWN_CHARACTERS_MAX: usize = 200;
/// Time for which a browser may cache a preflight response, in seconds.
const REMEMBERED_S: &str = "600";

/// The socket by which a request came in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entrance {
    /// An address of the server.
    Tcp(SocketAddr),
    /// A Unix socket, which no page can reach.
    #[cfg_attr(not(unix), expect(dead_code, reason = "there are none on this system"))]
    Unix,
}

/// Marks a response whose request has a line in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HasLogLine;

/// The state of a guard.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    pub(crate) server: Arc<ServerState>,
    pub(crate) entrance: Entrance,
}

/// The middleware around all routes.
pub(crate) async fn guard(
    State(guard): State<Guard>,
    mut request: Request<Body>,
    next: Next,
) -> Response<Body> {
    let headers = request.headers();
    let id = RequestId(given_id(headers).unwrap_or_else(|| guard.server.id()));
    let family = Family::of(request.uri().path(), headers);
    let origin = headers.get(header::ORIGIN).cloned();
    let origin = origin.filter(|origin| guard.is_listed(origin));
    let (method, path) = (request.method().clone(), shown_path(&request));
    let mut response = if let Some(preflight) = guard.preflight(&request, origin.as_ref()) {
        preflight
    } else {
        match guard.admit(&request, origin.is_some()) {
            Err(failure) => {
                body::discard(request).await;
                reply::refusal(family, &id, &failure.into())
            }
            Ok(AdmittedClient { owner, right }) => {
                // A client does not have to show a key for these.
                let is_open = request.uri().path() == OPEN_PATH || page::is_requested(&request);
                if !is_open
                    && let Some(stage_reporter) = request.extensions().get::<StageReporter>()
                {
                    stage_reporter.admitted();
                }
                request.extensions_mut().insert(family);
                request.extensions_mut().insert(id.clone());
                request.extensions_mut().insert(owner);
                request.extensions_mut().insert(right);
                next.run(request).await
            }
        }
    };
    if let Some(refused) = response.extensions().get::<Refused>() {
        guard.server.refusals.count(refused.kind);
        if response.extensions().get::<HasLogLine>().is_none() {
            log_refused(&id, (&method, &path), refused);
        }
    }
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id.0) {
        if family == Family::Anthropic {
            headers.insert(ANTHROPIC_REQUEST_ID, id.clone());
        }
        headers.insert(REQUEST_ID, id);
    }
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        let exposed = HeaderValue::from_static("x-request-id, request-id, retry-after");
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
    if !guard.server.config.allowed_origins.is_empty() {
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
    }
    response
}

/// A client whose request is admitted.
struct AdmittedClient {
    owner: Owner,
    right: ManageRight,
}

impl Guard {
    /// Returns the client of a request if it is admitted.
    fn admit(&self, request: &Request<Body>, is_listed: bool) -> Result<AdmittedClient, Failure> {
        let headers = request.headers();
        if headers.get_all(header::HOST).iter().nth(1).is_some() {
            // A proxy in front of this server may act on another one of them.
            return Err(invalid_host("the request names several hosts: name one"));
        }
        let host = host_of(request);
        if let Entrance::Tcp(address) = self.entrance
            && is_loopback(address)
        {
            self.check_host(host.as_deref(), address)?;
        }
        let config = &self.server.config;
        let client = |owner, key_idx| {
            let right = ManageRight::new(config, headers, key_idx);
            AdmittedClient { owner, right }
        };
        if config.keys.is_empty() || page::is_requested(request) {
            // For anything else, a page would have to know a key.
            if !is_listed {
                check_origin(headers, host.as_deref(), config.ways_in.origin)?;
            }
            return Ok(client(Owner::default(), None));
        }
        if let Some(key_idx) = keys_of(headers).find_map(|it| config.keys.find(it)) {
            let owner = match config.cache {
                CacheScope::PerKey => Owner(key_idx),
                CacheScope::Shared => Owner::default(),
            };
            return Ok(client(owner, Some(key_idx)));
        }
        if request.uri().path() == OPEN_PATH {
            return Ok(client(Owner::default(), None));
        }
        let problem = "the API key is missing or wrong: send it as `authorization: Bearer KEY`";
        Err(Failure::new(FailureKind::Unauthorized, problem))
    }

    fn check_host(&self, host: Option<&str>, address: SocketAddr) -> Result<(), Failure> {
        let Some(host) = host else {
            return Err(invalid_host("the request names no host"));
        };
        let name = without_port(host);
        let is_own = name == "localhost" || name.ends_with(".localhost");
        let ip = name.trim_matches(['[', ']']).parse::<IpAddr>().ok();
        let is_ip = ip.is_some_and(|ip| ip.to_canonical().is_loopback() || ip == address.ip());
        let is_allowed = |allowed: &String| {
            let allowed = allowed.to_ascii_lowercase();
            allowed == name || allowed == host
        };
        if is_own || is_ip || self.server.config.allowed_hosts.iter().any(is_allowed) {
            return Ok(());
        }
        let way_in = self.server.config.ways_in.host;
        let name = shown(name);
        let problem = format!("the host `{name}` is not an allowed name of this server: {way_in}");
        Err(Failure::new(FailureKind::Forbidden, problem))
    }

    fn is_listed(&self, origin: &HeaderValue) -> bool {
        let mut allowed = self.server.config.allowed_origins.iter();
        allowed.any(|it| it == "*" || it.as_bytes().eq_ignore_ascii_case(origin.as_bytes()))
    }

    /// Returns the response to a preflight request of a browser.
    fn preflight(
        &self,
        request: &Request<Body>,
        origin: Option<&HeaderValue>,
    ) -> Option<Response<Body>> {
        origin?;
        let headers = request.headers();
        let is_asked = headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        if request.method() != Method::OPTIONS || !is_asked {
            return None;
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let mut set = |name: HeaderName, value| response.headers_mut().insert(name, value);
        let methods = HeaderValue::from_static("GET, HEAD, POST");
        set(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        if let Some(wanted) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            set(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
        }
        let remembered = HeaderValue::from_static(REMEMBERED_S);
        set(header::ACCESS_CONTROL_MAX_AGE, remembered);
        Some(response)
    }
}

fn invalid_host(problem: &str) -> Failure {
    let field = Some("host".to_owned());
    Failure { field, ..Failure::new(FailureKind::Invalid, problem) }
}

/// Returns a client's path as shown in messages.
pub(crate) fn shown_path(request: &Request<Body>) -> String {
    shown(request.uri().path())
}

/// Returns client text as shown in messages.
fn shown(text: &str) -> String {
    let shown = text.chars().take(SHOWN_CHARACTERS_MAX);
    shown.map(|it| if it.is_control() { ' ' } else { it }).collect()
}

/// Logs a refused request. Requests for answers have their own line, however they end.
fn log_refused(id: &RequestId, (method, path): (&Method, &str), refused: &Refused) {
    tracing::info!(
        target: "moeflux::request",
        id = %id.0,
        %method,
        path,
        status = refused.kind.status(),
        ended = if refused.kind.is_server_fault() { "failed" } else { "refused" },
        reason = refused.kind.name(),
        problem = refused.field.as_deref(),
        "request"
    );
}

/// Refuses pages of other hosts. They may send some requests without a preflight, and only the
/// browser keeps the answers from them: the work would still be done.
pub(crate) fn check_origin(
    headers: &HeaderMap,
    host: Option<&str>,
    way_in: &str,
) -> Result<(), Failure> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = String::from_utf8_lossy(origin.as_bytes()).to_ascii_lowercase();
    let place = origin.split_once("://").map(|(_, place)| place);
    if place.is_some() && place == host {
        return Ok(());
    }
    let problem = format!("the origin `{}` is not allowed: {way_in}", shown(&origin));
    Err(Failure::new(FailureKind::Forbidden, problem))
}

/// Returns the host that a request names, in lower case, possibly with a port.
pub(crate) fn host_of(request: &Request<Body>) -> Option<String> {
    let authority = request.uri().authority().map(|it| it.as_str().to_owned());
    let header = || Some(request.headers().get(header::HOST)?.to_str().ok()?.to_owned());
    Some(authority.or_else(header)?.to_ascii_lowercase())
}

fn without_port(host: &str) -> &str {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|it| it.is_ascii_digit()) => name,
        _ => host,
    };
    name.strip_suffix('.').unwrap_or(name)
}

/// Returns the keys of a request: the two families of clients send theirs in different headers.
fn keys_of(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|it| it.to_str().ok());
    let bearer = bearer.and_then(|it| it.split_once(' '));
    let bearer = bearer.filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
    let bearer = bearer.map(|(_, key)| key.trim());
    let own = headers.get("x-api-key").and_then(|it| it.to_str().ok()).map(str::trim);
    bearer.into_iter().chain(own)
}

/// Returns the id that a client gave its request, if it is safe to log.
fn given_id(headers: &HeaderMap) -> Option<String> {
    let given = headers.get(REQUEST_ID)?.to_str().ok()?;
    let is_sane = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    let is_short = (1..=REQUEST_ID_BYTES_MAX).contains(&given.len());
    (is_short && given.bytes().all(is_sane)).then(|| given.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_ports_or_not() {
        for (host, expected) in [
            ("localhost", "localhost"),
            ("localhost.:8080", "localhost"),
            ("127.0.0.1:1", "127.0.0.1"),
            ("[::1]:8080", "[::1]"),
            ("[::1]", "[::1]"),
            ("a:b", "a:b"),
        ] {
            assert_eq!(without_port(host), expected);
        }
    }
}
