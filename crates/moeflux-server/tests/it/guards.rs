//! Which clients may send requests.

use moeflux_server::http::{ApiKeys, Server, ServerConfig};
use serde_json::json;

use crate::client::request;
use crate::server::{Running, post, question};

#[test]
fn requests_for_foreign_hosts_are_refused() {
    let server = Running::with(|wanted| wanted.config.allowed_hosts = vec!["My.Box".into()]);
    let status = |host: &str| {
        server.ask(&request("GET", "/v1/models", &format!("host: {host}\r\n"), "")).status
    };
    for host in [
        "localhost",
        "LOCALHOST:8080",
        "127.0.0.1",
        "127.1.2.3:1",
        "[::1]:8080",
        "a.localhost",
        "my.box",
        "my.box:80",
    ] {
        assert_eq!(status(host), 200, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example", "10.0.0.1", "[::2]", "my.box.evil", ""] {
        assert_eq!(status(host), 403, "{host}");
    }
    let refused = server.ask(&request("GET", "/v1/models", "host: evil.example:80\r\n", ""));
    let expected =
        "the host `evil.example` is not an allowed name of this server: allow it by its name";
    assert_eq!(refused.json()["error"]["message"], expected);
    let absolute = b"GET http://evil.example/ HTTP/1.1\r\nhost: localhost\r\n\r\n";
    assert_eq!(server.ask(absolute).status, 403);
    assert_eq!(server.ask(b"GET / HTTP/1.1\r\n\r\n").status, 400);
}

/// Proxies differ in their choice between two hosts.
#[test]
fn a_request_names_one_host() {
    let server = Running::new();
    for path in ["/health", "/v1/models", "/nothing"] {
        for headers in
            ["host: localhost\r\nhost: localhost\r\n", "host: localhost\r\nHost: evil\r\n"]
        {
            let refused = server.ask(&request("GET", path, headers, ""));
            assert_eq!(refused.status, 400, "{path}");
            assert_eq!(refused.json()["error"]["param"], "host");
        }
    }
    let absolute = b"GET http://localhost/ HTTP/1.1\r\nhost: localhost\r\nhost: a\r\n\r\n";
    assert_eq!(server.ask(absolute).status, 400);
}

#[test]
fn keys_are_required_everywhere_except_for_health() {
    let keys = ApiKeys::from_lines("sk-first\nsk-second").unwrap();
    let server = Running::with(|wanted| wanted.config.keys = keys);
    let status = |path: &str, headers: &str| server.ask(&request("GET", path, headers, "")).status;
    assert_eq!(status("/health", ""), 200);
    for path in ["/", "/metrics", "/v1/models", "/props", "/nothing"] {
        assert_eq!(status(path, ""), 401, "{path}");
    }
    for header in [
        "authorization: Bearer sk-first\r\n",
        "authorization: bearer sk-second\r\n",
        "x-api-key: sk-second\r\n",
        "authorization: Bearer wrong\r\nx-api-key: sk-first\r\n",
    ] {
        assert_eq!(status("/v1/models", header), 200, "{header}");
    }
    for header in [
        "authorization: Bearer sk-firs\r\n",
        "authorization: Bearer sk-firstt\r\n",
        "authorization: Basic sk-first\r\n",
        "authorization: sk-first\r\n",
        "x-api-key: \r\n",
    ] {
        assert_eq!(status("/v1/models", header), 401, "{header}");
    }
    let refused = server.post("/v1/messages", &json!({"max_tokens": 1, "messages": question()}));
    assert_eq!(refused.json()["error"]["type"], "authentication_error");
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    let refused = server.post("/v1/chat/completions", &json!({"messages": question()}));
    assert_eq!(refused.json()["error"]["code"], "invalid_api_key");
}

#[test]
fn only_pages_of_listed_origins_are_served() {
    let body = json!({"max_tokens": 1, "messages": question()}).to_string();
    let headers = |origin: &str| format!("origin: {origin}\r\ncontent-type: application/json\r\n");
    let chat = "/v1/chat/completions";
    let ask = |server: &Running, origin: &str| {
        server.ask(&request("POST", chat, &headers(origin), &body))
    };
    let server = Running::new();
    let refused = ask(&server, "https://page.example");
    assert_eq!(refused.status, 403);
    assert_eq!(refused.header("access-control-allow-origin"), None);
    let expected = "the origin `https://page.example` is not allowed: allow the origin by its name";
    assert_eq!(refused.json()["error"]["message"], expected);
    assert_eq!(ask(&server, "null").status, 403);
    assert_eq!(ask(&server, "http://localhost").status, 200, "its own page");
    let listed = |origin: &str| {
        Running::with(|wanted| wanted.config.allowed_origins = vec![origin.to_owned()])
    };
    let preflight = |server: &Running, origin: &str| {
        let headers = format!(
            "origin: {origin}\r\naccess-control-request-method: POST\r\n\
             access-control-request-headers: authorization, x-stainless-os\r\n"
        );
        server.ask(&request("OPTIONS", chat, &headers, ""))
    };
    let server = listed("https://page.example");
    let answered = ask(&server, "https://page.example");
    assert_eq!(answered.status, 200);
    let allowed = Some("https://page.example");
    assert_eq!(answered.header("access-control-allow-origin"), allowed);
    assert_eq!(answered.header("vary"), Some("origin"));
    let asked = preflight(&server, "https://page.example");
    assert_eq!((asked.status, asked.header("access-control-allow-origin")), (204, allowed));
    let wanted = asked.header("access-control-allow-headers");
    assert_eq!(wanted, Some("authorization, x-stainless-os"));
    assert_eq!(ask(&server, "https://other.example").status, 403);
    assert_eq!(preflight(&server, "https://other.example").status, 403);
    let server = listed("*");
    assert_eq!(ask(&server, "https://other.example").status, 200);
}

#[test]
fn preflight_requests_need_no_key() {
    let server = Running::with(|wanted| {
        wanted.config.keys = ApiKeys::from_lines("sk").unwrap();
        wanted.config.allowed_origins = vec!["https://page.example".into()];
    });
    let headers = "origin: https://page.example\r\naccess-control-request-method: GET\r\n";
    assert_eq!(server.ask(&request("OPTIONS", "/v1/models", headers, "")).status, 204);
    let refused = server.ask(&request("GET", "/v1/models", "origin: https://page.example\r\n", ""));
    assert_eq!(refused.status, 401);
    let allowed = Some("https://page.example");
    assert_eq!(refused.header("access-control-allow-origin"), allowed, "else it reads no status");
}

#[test]
fn requests_have_names() {
    let server = Running::new();
    let id = |given: &str| {
        let response = server.ask(&request("GET", "/health", given, ""));
        response.header("x-request-id").unwrap().to_owned()
    };
    assert_eq!(id("x-request-id: Mine-1.2_3\r\n"), "Mine-1.2_3");
    let long = format!("x-request-id: {}\r\n", "x".repeat(129));
    for given in ["", "x-request-id: a b\r\n", "x-request-id: \r\n", long.as_str()] {
        assert_eq!(id(given).len(), 32, "{given}");
    }
    assert_ne!(id(""), id(""));
    let body = json!({"max_tokens": 1, "messages": question()});
    let response = server.ask(&post("/v1/messages", &body));
    assert_eq!(response.header("request-id"), response.header("x-request-id"));
}

#[test]
fn addresses_reachable_by_other_machines_need_a_key() {
    let addresses = vec!["0.0.0.0:0".parse().unwrap()];
    let config = ServerConfig { addresses, ..ServerConfig::default() };
    let problem = Server::bind(config.clone()).unwrap_err().to_string();
    assert!(problem.starts_with("0.0.0.0:0 can be reached from other machines"), "{problem}");
    let keys = ApiKeys::from_lines("sk").unwrap();
    let server = Server::bind(ServerConfig { keys, ..config }).unwrap();
    let taken = server.addresses().next().unwrap();
    let taken = format!("127.0.0.1:{}", taken.port()).parse().unwrap();
    let config = ServerConfig { addresses: vec![taken], ..ServerConfig::default() };
    let problem = Server::bind(config).unwrap_err().to_string();
    assert!(problem.starts_with(&format!("cannot listen on {taken}: ")), "{problem}");
    let nowhere = ServerConfig { addresses: Vec::new(), ..ServerConfig::default() };
    assert!(Server::bind(nowhere).unwrap_err().to_string().starts_with("there is no address"));
}

#[cfg(unix)]
mod unix {
    use std::fs;
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[test]
    fn a_socket_in_the_file_system_is_its_users_alone() {
        let dir = TempDir::new();
        let path = dir.file("s");
        // A killed server leaves such a socket.
        drop(UnixListener::bind(&path).unwrap());
        let mut server = Running::with(|wanted| {
            wanted.config.unix = Some(path.clone());
            wanted.config.addresses.clear();
        });
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut stream = UnixStream::connect(&path).unwrap();
        let headers = "host: any.example\r\nconnection: close\r\n";
        stream.write_all(&request("GET", "/v1/models", headers, "")).unwrap();
        let mut found = String::new();
        stream.read_to_string(&mut found).unwrap();
        assert!(found.starts_with("HTTP/1.1 200 OK\r\n"), "{found}");
        let config = || ServerConfig {
            unix: Some(path.clone()),
            addresses: Vec::new(),
            ..ServerConfig::default()
        };
        let problem = Server::bind(config()).unwrap_err().to_string();
        assert!(problem.contains("another server is listening there"), "{problem}");
        server.stop();
        server.join();
        assert!(!path.exists());
        fs::write(&path, "a file").unwrap();
        let problem = Server::bind(config()).unwrap_err().to_string();
        assert!(problem.contains("exists and is not a socket"), "{problem}");
        assert_eq!(fs::read(&path).unwrap(), b"a file");
    }

    #[test]
    fn the_file_of_another_server_is_left_alone() {
        let dir = TempDir::new();
        let path = dir.file("s");
        let config = || ServerConfig {
            unix: Some(path.clone()),
            addresses: Vec::new(),
            ..ServerConfig::default()
        };
        let server = Server::bind(config()).unwrap();
        fs::remove_file(&path).unwrap();
        let other = Server::bind(config()).unwrap();
        drop(server);
        assert!(path.exists());
        drop(other);
        assert!(!path.exists());
    }
}
