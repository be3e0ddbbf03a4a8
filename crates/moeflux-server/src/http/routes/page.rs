//! The page for browsers: its files, which are part of the program.
//!
//! The build script makes the table of files from the folder `page`. **Invariant:** every response
//! at a path of the page carries the policy that keeps foreign scripts out, and the files need no
//! key, because they contain nothing secret. Knows no model and no request for an answer.

use axum::body::Body;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, Request, Response, StatusCode};
use axum::middleware::Next;
use moeflux_wire::{Failure, FailureKind};

use crate::http::reply;

/// The path of the page itself. Other clients get a line of text there.
pub(crate) const INDEX_PATH: &str = "/";
/// The paths of the page's files begin with this.
const FOLDER: &str = "/page/";
/// The file that is the page itself.
const INDEX_FILE: &str = "index.html";

/// The part of the page that receives the token of a start.
const START_FIELD: &str = "<meta name=\"moeflux-start\" content=\"\">";

/// Headers of every response at a path of the page. Nothing from another host is loaded, no text
/// becomes markup that runs, and no other page may frame this one. Browsers ask each time whether a
/// file has changed, because a new version of the program may serve it.
const POLICY: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
         img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (header::CACHE_CONTROL, "no-cache"),
];

/// A file of the page.
#[derive(Debug)]
struct PageFile {
    /// Its path in the folder of the page.
    path: &'static str,
    media_type: &'static str,
    /// A hash of its bytes, in quotes.
    etag: &'static str,
    bytes: &'static [u8],
}

/// All files of the page, sorted by path.
static FILES: &[PageFile] = include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// Whether a request is for the page or one of its files. A browser cannot send a key with it.
pub(crate) fn is_requested(request: &Request<Body>) -> bool {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let path = request.uri().path();
    is_read && (path.starts_with(FOLDER) || path == INDEX_PATH && takes_html(request.headers()))
}

/// Whether a client names HTML among what it accepts, as browsers do when they open an address.
fn takes_html(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|it| it.to_str().ok());
    let mut kinds = accepted.flat_map(|it| it.split(',')).filter_map(|it| it.split(';').next());
    kinds.any(|kind| kind.trim().eq_ignore_ascii_case("text/html"))
}

/// Returns the page itself, with the token of this start if there is one.
pub(crate) fn index(headers: &HeaderMap, start: Option<&str>) -> Response<Body> {
    let index = file(INDEX_FILE).expect("the page has an index");
    let Some(start) = start else { return response(index, headers) };
    let page = std::str::from_utf8(index.bytes).expect("a page is text");
    let filled = START_FIELD.replace("\"\"", &format!("\"{start}\""));
    // The page of an earlier start has another token.
    let etag = format!("{}-{start}\"", index.etag.trim_end_matches('"'));
    let mut response = if has_same(headers, &etag) {
        not_modified()
    } else {
        reply::text(index.media_type, page.replace(START_FIELD, &filled))
    };
    let etag = HeaderValue::from_str(&etag).expect("a hash and a token are visible characters");
    response.headers_mut().insert(header::ETAG, etag);
    response
}

/// Returns the file at the path of a request.
pub(crate) fn asset(path: &str, headers: &HeaderMap) -> Result<Response<Body>, Failure> {
    let found = path.strip_prefix(FOLDER).and_then(file);
    let missing = || Failure::new(FailureKind::NotFound, "the page has no file of this name");
    found.map(|file| response(file, headers)).ok_or_else(missing)
}

fn file(path: &str) -> Option<&'static PageFile> {
    let found = FILES.binary_search_by_key(&path, |file| file.path).ok()?;
    Some(&FILES[found])
}

fn response(file: &PageFile, headers: &HeaderMap) -> Response<Body> {
    let mut response = if has_same(headers, file.etag) {
        not_modified()
    } else {
        reply::text(file.media_type, file.bytes)
    };
    response.headers_mut().insert(header::ETAG, HeaderValue::from_static(file.etag));
    response
}

fn not_modified() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    response
}

/// Whether the client has the version with this tag. Proxies that compress a file mark its tag as
/// weak.
fn has_same(headers: &HeaderMap, etag: &str) -> bool {
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|it| it.to_str().ok());
    let mut tags = known.flat_map(|it| it.split(',')).map(str::trim);
    tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

/// The middleware that sets the policy, on refusals too.
pub(crate) async fn policy(request: Request<Body>, next: Next) -> Response<Body> {
    let path = request.uri().path();
    let is_index = path == INDEX_PATH;
    let is_page = is_index || path.starts_with(FOLDER);
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    if is_page {
        for (name, value) in POLICY {
            headers.insert(name, HeaderValue::from_static(value));
        }
    }
    if is_index {
        headers.append(header::VARY, HeaderValue::from_static("accept"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_has_an_index() {
        assert!(FILES.is_sorted_by_key(|file| file.path));
        for known in FILES {
            assert_eq!(file(known.path).map(|it| it.path), Some(known.path));
            let tag = known.etag.trim_matches('"');
            assert!(tag.len() == 16 && tag.bytes().all(|it| it.is_ascii_hexdigit()), "{tag}");
        }
        let index = std::str::from_utf8(file(INDEX_FILE).unwrap().bytes).unwrap();
        assert!(index.contains(START_FIELD) && file("no.js").is_none());
    }

    #[test]
    fn browsers_accept_html() {
        let takes = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_str(accept).unwrap());
            takes_html(&headers)
        };
        assert!(takes("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"));
        assert!(takes("application/json, Text/HTML;q=0.5"));
        for other in ["*/*", "text/*", "application/json", "text/html5", ""] {
            assert!(!takes(other), "{other}");
        }
        assert!(!takes_html(&HeaderMap::new()));
    }

    #[test]
    fn tags_are_compared_in_lists() {
        let has = |tags: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::IF_NONE_MATCH, HeaderValue::from_str(tags).unwrap());
            has_same(&headers, "\"1f\"")
        };
        for tags in ["\"1f\"", "W/\"1f\"", "*", "\"a\", \"1f\"", "W/\"a\",W/\"1f\""] {
            assert!(has(tags), "{tags}");
        }
        for tags in ["\"1\"", "1f", "\"1f", "", "W/*"] {
            assert!(!has(tags), "{tags}");
        }
        assert!(!has_same(&HeaderMap::new(), "\"1f\""));
    }
}
