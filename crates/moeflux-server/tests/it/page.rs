//! The page for browsers: who gets it, with which headers, and what its files may contain.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use moeflux_server::http::ApiKeys;
use serde_json::Value as Json;

use crate::client::{Response, request};
use crate::server::{Running, post};

/// What a browser accepts when it opens an address.
const BROWSER: &str = "accept: text/html,application/xhtml+xml;q=0.9,*/*;q=0.8\r\n";

const POLICY: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
         img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cache-control", "no-cache"),
];

/// Upper bound on the bytes of all files. The page may have 200 kB in compressed form, and a third
/// of its bytes are left of scripts and styles.
const PAGE_BYTES_MAX: usize = 600_000;

/// Names of formats, which look like addresses.
const NAMESPACES: &str = "http://www.w3.org/";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("page")
}

/// All files of the page, by their paths in its folder.
fn files() -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder()).unwrap().to_str().unwrap().replace('\\', "/");
            if !name.rsplit('/').next().unwrap().starts_with('.') {
                files.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    files
}

#[track_caller]
fn check_policy(response: &Response, what: &str) {
    for (name, value) in POLICY {
        assert_eq!(response.header(name), Some(value), "{what}: {name}");
    }
}

fn with_key() -> Running {
    Running::with(|wanted| wanted.config.keys = ApiKeys::from_lines("sk").unwrap())
}

#[test]
fn browsers_get_the_page_and_others_a_line() {
    let server = Running::new();
    let page = server.ask(&request("GET", "/", BROWSER, ""));
    assert_eq!((page.status, &page.body), (200, &files()["index.html"]));
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let etag = page.header("etag").unwrap().to_owned();
    for accept in ["", "accept: */*\r\n", "accept: application/json\r\n"] {
        let line = server.ask(&request("GET", "/", accept, ""));
        assert!(line.text().starts_with("moeflux ") && line.text().ends_with('\n'), "{accept}");
        assert_eq!(line.header("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(line.header("etag"), None);
        assert_eq!(line.header("vary"), Some("accept"));
    }
    let same = format!("{BROWSER}if-none-match: {etag}\r\n");
    let same = server.ask(&request("GET", "/", &same, ""));
    assert_eq!((same.status, same.body.len()), (304, 0));
    for response in [&page, &same] {
        check_policy(response, "/");
        assert_eq!(response.header("vary"), Some("accept"));
        assert_eq!(response.header("etag"), Some(etag.as_str()));
    }
    // Pages of a listed origin may ask, too.
    let server = Running::with(|wanted| wanted.config.allowed_origins = vec!["*".to_owned()]);
    let page = server.ask(&request("GET", "/", BROWSER, ""));
    let varies = page.headers.iter().filter(|(name, _)| name == "vary");
    assert_eq!(varies.map(|(_, value)| value.as_str()).collect::<Vec<_>>(), ["origin", "accept"]);
}

#[test]
fn every_file_is_served_once_per_version() {
    let server = Running::new();
    for (name, bytes) in files() {
        let path = format!("/page/{name}");
        let found = server.get(&path);
        assert_eq!((found.status, &found.body), (200, &bytes), "{path}");
        check_policy(&found, &path);
        let expected = match name.rsplit('.').next().unwrap() {
            "html" => "text/html; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            "json" => "application/json",
            "svg" => "image/svg+xml",
            "png" => "image/png",
            _ => "text/plain; charset=utf-8",
        };
        assert_eq!(found.header("content-type"), Some(expected), "{path}");
        let etag = found.header("etag").unwrap();
        for known in [etag.to_owned(), format!("\"x\", W/{etag}"), "*".to_owned()] {
            let headers = format!("if-none-match: {known}\r\n");
            let same = server.ask(&request("GET", &path, &headers, ""));
            assert_eq!((same.status, same.body.len()), (304, 0), "{path}: {known}");
            assert_eq!(same.header("etag"), Some(etag));
            check_policy(&same, &path);
        }
        let other = server.ask(&request("GET", &path, "if-none-match: \"x\"\r\n", ""));
        assert_eq!((other.status, other.body.len()), (200, bytes.len()), "{path}");
        let mut client = server.client();
        client.send(&request("HEAD", &path, "", ""));
        let head = client.head().unwrap();
        assert_eq!(head.status, 200, "{path}");
        check_policy(&head, &path);
        assert_eq!(head.header("content-length"), Some(bytes.len().to_string().as_str()));
        // A body would be taken for the next response.
        client.send(&request("GET", "/health", "", ""));
        assert_eq!(client.response().status, 200, "{path}");
    }
}

#[test]
fn what_is_not_there_is_refused_under_the_same_policy() {
    let server = Running::new();
    for path in [
        "/page/",
        "/page/no.js",
        "/page/app.js/",
        "/page//app.js",
        "/page/../build.rs",
        "/page/%2e%2e/build.rs",
        "/page/vendor/../app.js",
        "/page/app%2ejs",
        "/page/.gitignore",
    ] {
        let refused = server.get(path);
        assert_eq!(refused.status, 404, "{path}");
        assert_eq!(refused.json()["error"]["type"], "invalid_request_error", "{path}");
        check_policy(&refused, path);
    }
    for path in ["/", "/page/app.js"] {
        let refused = server.ask(&request("POST", path, BROWSER, "a"));
        assert_eq!(refused.status, 405, "{path}");
        assert!(refused.text().contains("takes GET only"), "{}", refused.text());
        check_policy(&refused, path);
    }
}

#[test]
fn a_browser_has_no_key_yet() {
    let server = with_key();
    let status = |method: &str, path: &str, headers: &str| {
        server.ask(&request(method, path, headers, "")).status
    };
    assert_eq!(status("GET", "/", BROWSER), 200);
    assert_eq!(status("GET", "/page/app.js", ""), 200);
    assert_eq!(status("GET", "/page/no.js", ""), 404);
    for path in ["/props", "/v1/models", "/metrics", "/openapi.json", "/page", "/nothing"] {
        assert_eq!(status("GET", path, BROWSER), 401, "{path}");
    }
    // The line names the model.
    let refused = server.get("/");
    assert_eq!(refused.status, 401);
    check_policy(&refused, "/");
    for path in ["/", "/page/app.js"] {
        assert_eq!(status("POST", path, BROWSER), 401, "{path}");
    }
    assert_eq!(status("GET", "/", "authorization: Bearer sk\r\n"), 200);
    let body = serde_json::json!({"content": "a"});
    assert_eq!(server.ask(&post("/tokenize", &body)).status, 401);
}

/// A name that was made to resolve to this machine, and pages of other origins.
#[test]
fn foreign_pages_get_no_file() {
    for (server, has_keys) in [(Running::new(), false), (with_key(), true)] {
        for (method, path) in [
            ("GET", "/"),
            ("GET", "/page/app.js"),
            ("GET", "/page/no.js"),
            ("POST", "/page/app.js"),
        ] {
            for headers in [
                "host: evil.example\r\n",
                "host: localhost.evil.example:80\r\n",
                "origin: https://evil.example\r\n",
                "origin: null\r\n",
                "origin: http://127.0.0.1:1\r\n",
            ] {
                let refused =
                    server.ask(&request(method, path, &format!("{headers}{BROWSER}"), ""));
                let lacks_key = has_keys && method == "POST" && headers.starts_with("origin");
                let expected = if lacks_key { 401 } else { 403 };
                assert_eq!(refused.status, expected, "{method} {path} {headers}");
                assert!(!refused.text().contains("<html"), "{headers}");
                check_policy(&refused, headers);
            }
        }
        let two_hosts = "host: localhost\r\nhost: localhost\r\n";
        assert_eq!(server.ask(&request("GET", "/page/app.js", two_hosts, "")).status, 400);
        let own = format!("origin: http://localhost\r\n{BROWSER}");
        assert_eq!(server.ask(&request("GET", "/", &own, "")).status, 200);
    }
    // A form may be sent without a preflight.
    let server = Running::new();
    for kind in ["application/json", "text/plain", "application/x-www-form-urlencoded"] {
        let headers = format!("origin: https://evil.example\r\ncontent-type: {kind}\r\n");
        for path in ["/v1/chat/completions", "/v1/completions", "/tokenize", "/apply-template"] {
            let refused = server.ask(&request("POST", path, &headers, "{}"));
            assert_eq!(refused.status, 403, "{path} {kind}");
            assert_eq!(refused.header("access-control-allow-origin"), None);
        }
    }
    assert_eq!(server.stats().n_waiting, 0);
}

/// Addresses that libraries name in messages for developers. Nothing requests them.
const MESSAGES: [&str; 3] = [
    "https://github.com/markedjs/marked.",
    "https://github.com/highlightjs/highlight.js/issues/2277",
    "https://github.com/highlightjs/highlight.js/wiki/security",
];

#[test]
fn files_are_small_and_name_no_other_host() {
    let files = files();
    let n_bytes: usize = files.values().map(Vec::len).sum();
    assert!(n_bytes <= PAGE_BYTES_MAX, "{n_bytes} bytes, at most {PAGE_BYTES_MAX}");
    for (name, bytes) in &files {
        let Ok(text) = std::str::from_utf8(bytes) else { continue };
        // A library's licence has its address, and so has the list of libraries.
        let text = match name.strip_prefix("vendor/") {
            Some("versions.json") => String::new(),
            Some(_) => without_comments(text),
            None => text.to_owned(),
        };
        let mut found = hosts(&text);
        found.retain(|address| !(name.starts_with("vendor/") && MESSAGES.contains(address)));
        assert!(found.is_empty(), "page/{name} names {found:?}");
    }
}

/// A text without `/* .. */` and `<!-- .. -->`, in which licences are.
fn without_comments(text: &str) -> String {
    let mut rest = text.to_owned();
    for (open, close) in [("/*", "*/"), ("<!--", "-->")] {
        while let Some(begin) = rest.find(open) {
            let end = rest[begin..].find(close).map_or(rest.len(), |at| begin + at + close.len());
            rest.replace_range(begin..end, " ");
        }
    }
    rest
}

/// The addresses of other hosts in a text: `http://`, `https://` or, in an attribute or a style,
/// `//`, and a letter or digit.
fn hosts(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for start in ["http://", "https://", "=\"//", "='//", "url(//", "url(\"//", "url('//"] {
        for (at, _) in text.match_indices(start) {
            let host = &text[at + start.len()..];
            let is_named = host.starts_with(|it: char| it.is_alphanumeric() || it == '[');
            if is_named && !text[at..].starts_with(NAMESPACES) {
                let is_end = |it: char| it.is_whitespace() || "\"'`<>)".contains(it);
                let n_bytes = host.find(is_end).unwrap_or(host.len());
                found.push(&text[at..at + start.len() + n_bytes]);
            }
        }
    }
    found
}

#[test]
fn addresses_of_other_hosts_are_found() {
    for (text, expected) in [
        ("fetch(\"https://a.example/x\")", &["https://a.example/x"][..]),
        ("http://[::1]:8080/ and https://b", &["http://[::1]:8080/", "https://b"]),
        ("<img src='//c.example'>", &["='//c.example"]),
        ("/^https?:\\/\\//; \"https://\" + host // text", &[]),
        ("<svg xmlns=\"http://www.w3.org/2000/svg\">", &[]),
        ("\u{e9}url(//d.example/f)", &["url(//d.example/f"]),
    ] {
        assert_eq!(hosts(text), expected, "{text}");
    }
    assert_eq!(without_comments("a/*! https://a */b<!-- c -->d/* open"), "a b d ");
}

/// The libraries are the published ones.
#[test]
fn libraries_have_the_hashes_of_their_list() {
    let vendored: BTreeMap<String, Vec<u8>> = files()
        .into_iter()
        .filter_map(|(name, bytes)| Some((name.strip_prefix("vendor/")?.to_owned(), bytes)))
        .filter(|(name, _)| name != "versions.json")
        .collect();
    let list = fs::read_to_string(folder().join("vendor/versions.json")).unwrap();
    let list: BTreeMap<String, Json> = serde_json::from_str(&list).unwrap();
    assert!(!list.is_empty());
    assert!(vendored.keys().eq(list.keys()), "{:?} in place of {:?}", vendored.keys(), list.keys());
    for (name, bytes) in &vendored {
        let text = |key: &str| list[name][key].as_str().unwrap_or_default();
        for key in ["version", "licence", "source"] {
            assert!(!text(key).is_empty(), "{name} has no {key}");
        }
        let hash = ring::digest::digest(&ring::digest::SHA256, bytes);
        let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text("sha256"), hash, "{name}");
    }
}
