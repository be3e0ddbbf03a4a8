//! Decides which clients may manage models.
//!
//! **Invariant:** by default, only programs and pages of the server's own machine may: a server
//! that others can reach, by a key, another name, another page or a proxy, needs marked keys.

use axum::http::HeaderMap;

use crate::http::config::{ManageAccess, ServerConfig};

/// Headers that proxies add, besides all that begin with [`FORWARDED`]. A proxy on this machine
/// makes all of its clients look local.
const PROXY_HEADERS: [&str; 3] = ["forwarded", "via", "x-real-ip"];
const FORWARDED: &str = "x-forwarded-";

/// Whether a client may manage models, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManageRight(pub(crate) Result<(), String>);

impl ManageRight {
    /// Decides for a request with this key.
    pub(crate) fn new(config: &ServerConfig, headers: &HeaderMap, key_idx: Option<usize>) -> Self {
        let way_in = config.ways_in.manage;
        let refused = |reason: &str| Self(Err(format!("{reason}: {way_in}")));
        if config.manage == ManageAccess::MarkedKeys {
            return match key_idx.is_some_and(|idx| config.keys.may_manage(idx)) {
                true => Self(Ok(())),
                false => refused("this key may not manage models"),
            };
        }
        let is_local = config.addresses.iter().all(|it| it.ip().is_loopback());
        if !config.keys.is_empty() || !is_local {
            refused("others can reach this server")
        } else if !config.allowed_hosts.is_empty() || !config.allowed_origins.is_empty() {
            refused("other hosts or pages may use this server")
        } else if came_through_proxy(headers) {
            refused("the request came through a proxy")
        } else {
            Self(Ok(()))
        }
    }
}

fn came_through_proxy(headers: &HeaderMap) -> bool {
    let mut names = headers.keys().map(|name| name.as_str());
    names.any(|name| PROXY_HEADERS.contains(&name) || name.starts_with(FORWARDED))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::http::{HeaderName, HeaderValue};

    use super::*;
    use crate::http::config::ApiKeys;

    #[track_caller]
    fn check(config: &ServerConfig, header: Option<&'static str>, expected: Result<(), &str>) {
        let mut headers = HeaderMap::new();
        for name in ["host", "origin", "accept"].into_iter().chain(header) {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static("a"));
        }
        let key_idx = (!config.keys.is_empty()).then_some(1);
        let found = ManageRight::new(config, &headers, key_idx).0;
        match (&found, expected) {
            (Ok(()), Ok(())) => {}
            (Err(found), Err(expected)) => assert!(found.starts_with(expected), "{found}"),
            _ => panic!("{found:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn only_a_local_server_is_managed_without_a_marked_key() {
        let local = ServerConfig::default();
        check(&local, None, Ok(()));
        for header in ["forwarded", "via", "x-real-ip", "x-forwarded-for", "x-forwarded-host"] {
            check(&local, Some(header), Err("the request came through a proxy: "));
        }
        let open: SocketAddr = "192.0.2.1:1".parse().unwrap();
        let open = ServerConfig { addresses: vec![local.addresses[0], open], ..local.clone() };
        check(&open, None, Err("others can reach this server: "));
        let keys = ApiKeys::from_lines("a manage\nb").unwrap();
        let with_keys = ServerConfig { keys, ..local.clone() };
        check(&with_keys, None, Err("others can reach this server: "));
        let names = vec!["a".to_owned()];
        for other in [
            ServerConfig { allowed_hosts: names.clone(), ..local.clone() },
            ServerConfig { allowed_origins: names, ..local },
        ] {
            check(&other, None, Err("other hosts or pages may use this server: "));
        }
    }

    #[test]
    fn a_marked_key_is_enough() {
        let manage = ManageAccess::MarkedKeys;
        let with = |lines: &str| {
            let keys = ApiKeys::from_lines(lines).unwrap();
            ServerConfig { keys, manage, ..ServerConfig::default() }
        };
        check(&with("a\nb manage"), Some("forwarded"), Ok(()));
        check(&with("a manage\nb"), None, Err("this key may not manage models: "));
        check(&with(""), None, Err("this key may not manage models: "));
    }
}
