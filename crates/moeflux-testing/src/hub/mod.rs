//! A hub for tests: its API, its files, and a second server that it sends clients to for large
//! ones, with faults on request.
//!
//! It answers like the real hub, as far as that is documented: `/api/models/ID/revision/REV`, the
//! tree by pages with `Link`, `/ID/resolve/REV/FILE` with `X-Repo-Commit`, a redirect on the same
//! host for small files and to another one with a signature for large ones.

mod files;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

pub use files::{HostedContents, HubFile};

/// The clients that may read a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every client.
    Open,
    /// Clients with this token.
    Gated(&'static str),
    /// Clients with this token; for others it does not exist.
    Private(&'static str),
}

/// A repository of the hub.
struct HostedRepo {
    access: Access,
    /// Commits by branch and tag.
    refs: BTreeMap<String, String>,
    commits: BTreeMap<String, Vec<HubFile>>,
}

/// A request that the hub received.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// Whether it came to the server of large files, the hub's CDN.
    pub is_cdn: bool,
    /// `GET` or `HEAD`.
    pub method: String,
    /// Without the query.
    pub path: String,
    query: String,
    /// The bytes that it asks for, from the first to the last.
    pub range: Option<(u64, u64)>,
    /// The token that it carries.
    pub token: Option<String>,
}

/// A fault of an answer.
#[derive(Clone, Debug)]
pub enum HubFault {
    /// Nothing goes wrong.
    Nothing,
    /// Another status, with these headers.
    Status(u16, &'static [(&'static str, &'static str)]),
    /// The connection ends after this number of bytes.
    Cut(u64),
    /// The answer stalls after this number of bytes.
    Silence(u64),
    /// A pause after each part of this number of bytes.
    Slow(u64, Duration),
    /// The byte at this offset of the file is wrong.
    Flip(u64),
    /// Sends the whole file, regardless of the requested range.
    IgnoreRange,
    /// The total length in `Content-Range` is this one.
    Total(u64),
    /// `Content-Encoding: gzip`.
    Encoded,
}

/// Chooses the fault of a request, given the number of earlier requests for the same path.
type FaultHook = Box<dyn Fn(&ReceivedRequest, usize) -> HubFault + Send>;

/// The state that the threads of a hub share.
struct HubState {
    addresses: [SocketAddr; 2],
    repos: Mutex<BTreeMap<String, HostedRepo>>,
    requests: Mutex<Vec<ReceivedRequest>>,
    hook: Mutex<FaultHook>,
    page: Mutex<usize>,
    /// The only signature that the server of large files takes.
    signature: AtomicU64,
    /// Bytes of files sent to all clients.
    n_bytes: AtomicU64,
    n_connections: AtomicU64,
    streams: Mutex<Vec<TcpStream>>,
    is_ended: AtomicBool,
    ended: (Mutex<()>, Condvar),
}

/// A hub on this machine, which ends when it is dropped.
#[expect(missing_debug_implementations, reason = "it holds a closure")]
pub struct HubServer {
    state: Arc<HubState>,
    threads: Vec<JoinHandle<()>>,
}

impl HubServer {
    /// A hub without repositories, at any port.
    #[expect(clippy::new_without_default, reason = "it starts threads")]
    pub fn new() -> Self {
        Self::at(0)
    }

    /// A hub at a port.
    pub fn at(port: u16) -> Self {
        let listeners = [port, 0].map(|it| TcpListener::bind(("127.0.0.1", it)).unwrap());
        let state = Arc::new(HubState {
            addresses: [0, 1].map(|idx: usize| listeners[idx].local_addr().unwrap()),
            repos: Mutex::default(),
            requests: Mutex::default(),
            hook: Mutex::new(Box::new(|_, _| HubFault::Nothing)),
            page: Mutex::new(1000),
            signature: AtomicU64::new(1),
            n_bytes: AtomicU64::new(0),
            n_connections: AtomicU64::new(0),
            streams: Mutex::default(),
            is_ended: AtomicBool::new(false),
            ended: <(Mutex<()>, Condvar)>::default(),
        });
        let mut threads = Vec::new();
        for (idx, listener) in listeners.into_iter().enumerate() {
            let state = Arc::clone(&state);
            let thread = std::thread::Builder::new().name(format!("hub-{idx}"));
            threads.push(thread.spawn(move || accept(&listener, &state, idx == 1)).unwrap());
        }
        Self { state, threads }
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("http://{}", self.state.addresses[0])
    }

    /// A repository, or one with other files than before.
    pub fn put(&self, id: &str, access: Access, commit: &str, files: &[HubFile]) {
        let mut repos = self.state.repos.lock().unwrap();
        let new = || HostedRepo { access, refs: BTreeMap::new(), commits: BTreeMap::new() };
        let repo = repos.entry(id.to_owned()).or_insert_with(new);
        repo.refs.insert("main".to_owned(), commit.to_owned());
        repo.commits.insert(commit.to_owned(), files.to_vec());
    }

    /// Sets the hook that returns the fault of each request for bytes of a file. It gets the number
    /// of earlier requests for the same path.
    pub fn faults(&self, hook: impl Fn(&ReceivedRequest, usize) -> HubFault + Send + 'static) {
        *self.state.hook.lock().unwrap() = Box::new(hook);
    }

    /// Entries of a page of a tree.
    pub fn set_page(&self, n_entries: usize) {
        *self.state.page.lock().unwrap() = n_entries;
    }

    /// Makes all addresses expire that were returned so far.
    pub fn expire(&self) {
        self.state.signature.fetch_add(1, Ordering::SeqCst);
    }

    /// Bytes of files that were sent, since this was asked last.
    pub fn take_n_bytes(&self) -> u64 {
        self.state.n_bytes.swap(0, Ordering::SeqCst)
    }

    /// Bytes of files that were sent.
    pub fn n_bytes(&self) -> u64 {
        self.state.n_bytes.load(Ordering::SeqCst)
    }

    /// Connections that were made, to both servers.
    pub fn n_connections(&self) -> u64 {
        self.state.n_connections.load(Ordering::SeqCst)
    }

    /// The requests that came since this was asked last.
    pub fn take_requests(&self) -> Vec<ReceivedRequest> {
        std::mem::take(&mut self.state.requests.lock().unwrap())
    }
}

impl Drop for HubServer {
    fn drop(&mut self) {
        self.state.is_ended.store(true, Ordering::SeqCst);
        self.state.ended.1.notify_all();
        for stream in self.state.streams.lock().unwrap().drain(..) {
            drop(stream.shutdown(Shutdown::Both));
        }
        for address in self.state.addresses {
            drop(TcpStream::connect(address));
        }
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

fn accept(listener: &TcpListener, state: &Arc<HubState>, is_cdn: bool) {
    std::thread::scope(|scope| {
        for stream in listener.incoming().flatten() {
            if state.is_ended.load(Ordering::SeqCst) {
                break;
            }
            state.n_connections.fetch_add(1, Ordering::SeqCst);
            state.streams.lock().unwrap().push(stream.try_clone().unwrap());
            scope.spawn(move || {
                // Clients that leave are part of the tests.
                drop(HubConnection { state, is_cdn, stream: &stream }.serve());
                drop(stream.shutdown(Shutdown::Both));
            });
        }
        for stream in state.streams.lock().unwrap().drain(..) {
            drop(stream.shutdown(Shutdown::Both));
        }
    });
}

/// A client's connection.
struct HubConnection<'a> {
    state: &'a HubState,
    is_cdn: bool,
    stream: &'a TcpStream,
}

/// Headers besides those of the body.
type HeaderList = Vec<(&'static str, String)>;

impl HubConnection<'_> {
    fn serve(&self) -> io::Result<()> {
        self.stream.set_nodelay(true)?;
        let mut reader = BufReader::new(self.stream);
        loop {
            let mut line = String::new();
            let (mut range, mut token) = (None, None);
            if reader.by_ref().take(1 << 16).read_line(&mut line)? == 0 {
                return Ok(());
            }
            let mut words = line.split(' ').map(str::to_owned);
            let (method, target) = (words.next().unwrap(), words.next().unwrap_or_default());
            loop {
                let mut header = String::new();
                reader.by_ref().take(1 << 16).read_line(&mut header)?;
                let Some((name, value)) = header.trim_end().split_once(": ") else { break };
                match name.to_ascii_lowercase().as_str() {
                    "range" => range = range_of(value),
                    "authorization" => {
                        token = value.strip_prefix("Bearer ").map(str::to_owned);
                    }
                    _ => {}
                }
            }
            let (path, query) = target.split_once('?').unwrap_or((&target, ""));
            let (path, query) = (unquoted(path), query.to_owned());
            let is_cdn = self.is_cdn;
            let request = ReceivedRequest { is_cdn, method, path, query, range, token };
            let n_before = {
                let mut all = self.state.requests.lock().unwrap();
                let n_before = all.iter().filter(|it| it.path == request.path).count();
                all.push(request.clone());
                n_before
            };
            self.answer(&request, n_before)?;
        }
    }

    fn answer(&self, request: &ReceivedRequest, n_before: usize) -> io::Result<()> {
        if self.is_cdn {
            return self.serve_cdn(request, n_before);
        }
        // Some questions fail, too.
        let fault = (self.state.hook.lock().unwrap())(request, n_before);
        if let HubFault::Status(status, headers) = fault {
            let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned()));
            return self.send(request, status, headers.collect(), b"{}");
        }
        let page = *self.state.page.lock().unwrap();
        let repos = self.state.repos.lock().unwrap();
        let path = request.path.trim_start_matches('/');
        let api = path.strip_prefix("api/models/");
        let cached = path.strip_prefix("api/resolve-cache/models/");
        let split =
            api.and_then(|it| it.split_once("/revision/").or_else(|| it.split_once("/tree/")));
        let resolved = path.split_once("/resolve/");
        let by_cache = cached.and_then(|it| {
            let (owner, rest) = it.split_once('/')?;
            let (name, rest) = rest.split_once('/')?;
            Some((&it[..owner.len() + 1 + name.len()], rest))
        });
        let Some((id, rest)) = split.or(by_cache).or(resolved) else {
            return self.refuse(request, 404, "", "no such page");
        };
        let Some(repo) = repos.get(id) else {
            let status = if request.token.is_some() { 404 } else { 401 };
            return self.refuse(request, status, "RepoNotFound", "Repository not found");
        };
        match repo.access {
            Access::Private(token) if request.token.as_deref() != Some(token) => {
                return self.refuse(request, 401, "RepoNotFound", "Invalid username or password.");
            }
            // The hub describes a gated repository, but does not send its files.
            Access::Gated(token) if request.token.as_deref() != Some(token) && split.is_none() => {
                let status = if request.token.is_some() { 403 } else { 401 };
                return self.refuse(request, status, "GatedRepo", "Access is restricted.");
            }
            _ => {}
        }
        let (revision, file) = match api {
            Some(_) => (rest, ""),
            None => rest.split_once('/').unwrap_or((rest, "")),
        };
        let commit = repo.refs.get(revision).map_or(revision, String::as_str);
        let Some(files) = repo.commits.get(commit) else {
            return self.refuse(request, 404, "RevisionNotFound", "Invalid rev id");
        };
        if path.contains("/revision/") {
            let siblings: Vec<Value> =
                files.iter().map(|it| json!({"rfilename": it.path})).collect();
            let info = json!({"id": id, "modelId": id, "sha": commit, "siblings": siblings});
            return self.json(request, Vec::new(), &info);
        }
        if path.contains("/tree/") {
            return self.tree(request, files, page);
        }
        let Some(file) = files.iter().find(|it| it.path == file).cloned() else {
            return self.refuse(request, 404, "EntryNotFound", "Entry not found");
        };
        let commit = commit.to_owned();
        drop(repos);
        self.file(request, &file, (&commit, cached.is_some()), fault)
    }

    fn tree(&self, request: &ReceivedRequest, files: &[HubFile], page: usize) -> io::Result<()> {
        let cursor = request.query.split('&').find_map(|it| it.strip_prefix("cursor="));
        let begin: usize = cursor.and_then(|it| it.parse().ok()).unwrap_or(0);
        let end = (begin + page).min(files.len());
        let entries: Vec<Value> = files[begin..end].iter().map(HubFile::entry).collect();
        let mut headers = Vec::new();
        if end < files.len() {
            let address = self.state.addresses[0];
            let path = &request.path;
            let next =
                format!("<http://{address}{path}?recursive=true&cursor={end}>; rel=\"next\"");
            headers.push(("Link", next));
        }
        self.json(request, headers, &Value::Array(entries))
    }

    /// As the hub answers for a file: a redirect first.
    fn file(
        &self,
        request: &ReceivedRequest,
        file: &HubFile,
        (commit, is_cached): (&str, bool),
        fault: HubFault,
    ) -> io::Result<()> {
        let mut headers = vec![
            ("X-Repo-Commit", commit.to_owned()),
            ("ETag", format!("\"{}\"", if file.is_large { commit } else { &file.oid })),
            ("Accept-Ranges", "bytes".to_owned()),
        ];
        if file.is_large {
            let signature = self.state.signature.load(Ordering::SeqCst);
            let [_, address] = self.state.addresses;
            let url = format!("http://{address}/{}/{}?sig={signature}", file.sha256, file.path);
            headers.push(("X-Linked-Etag", format!("\"{}\"", file.sha256)));
            headers.push(("X-Linked-Size", file.n_bytes().to_string()));
            headers.push(("Location", url.replace(' ', "%20")));
            return self.send(request, 302, headers, b"Found. Redirecting");
        }
        if !is_cached {
            let (id, path) = request.path[1..].split_once("/resolve/").unwrap();
            let (_, path) = path.split_once('/').unwrap();
            let url = format!("/api/resolve-cache/models/{id}/{commit}/{path}").replace(' ', "%20");
            headers.push(("X-Linked-Size", file.n_bytes().to_string()));
            headers.push(("Location", url));
            return self.send(request, 307, headers, b"Temporary Redirect");
        }
        self.bytes(request, file, headers, fault)
    }

    /// Answers as the server of large files.
    fn serve_cdn(&self, request: &ReceivedRequest, n_before: usize) -> io::Result<()> {
        let signature = self.state.signature.load(Ordering::SeqCst);
        if request.query != format!("sig={signature}") {
            return self.send(request, 403, Vec::new(), b"<Error>AccessDenied</Error>");
        }
        let sha256 = request.path.split('/').nth(1).unwrap_or_default();
        let found = {
            let repos = self.state.repos.lock().unwrap();
            let mut files = repos.values().flat_map(|it| it.commits.values().flatten());
            files.find(|it| it.sha256 == sha256).cloned()
        };
        let Some(file) = found else { return self.send(request, 404, Vec::new(), b"") };
        let fault = (self.state.hook.lock().unwrap())(request, n_before);
        if let HubFault::Status(status, headers) = fault {
            let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned()));
            return self.send(request, status, headers.collect(), b"");
        }
        let headers = vec![("ETag", "\"of-another-kind\"".to_owned())];
        self.bytes(request, &file, headers, fault)
    }

    fn bytes(
        &self,
        request: &ReceivedRequest,
        file: &HubFile,
        headers: HeaderList,
        fault: HubFault,
    ) -> io::Result<()> {
        let total = file.n_bytes();
        let range = request.range.filter(|_| !matches!(fault, HubFault::IgnoreRange));
        let (begin, end) = range.map_or((0, total), |(first, last)| (first, (last + 1).min(total)));
        if begin >= end && total > 0 {
            return self.send(request, 416, headers, b"");
        }
        let mut headers = headers;
        if range.is_some() {
            let stated = if let HubFault::Total(stated) = fault { stated } else { total };
            headers.push(("Content-Range", format!("bytes {begin}-{}/{stated}", end - 1)));
        }
        if matches!(fault, HubFault::Encoded) {
            headers.push(("Content-Encoding", "gzip".to_owned()));
        }
        let status = if range.is_some() { 206 } else { 200 };
        self.head(status, &headers, end - begin)?;
        if request.method == "HEAD" {
            return Ok(());
        }
        let mut at = begin;
        for part in file.contents.parts(begin, end) {
            self.part(part, (begin, at), &fault)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Bytes at a place, of an answer that began at another.
    fn part(&self, part: &[u8], (begin, at): (u64, u64), fault: &HubFault) -> io::Result<()> {
        let end = at + part.len() as u64;
        let cut = match fault {
            HubFault::Cut(n_bytes) | HubFault::Silence(n_bytes) => begin + n_bytes,
            _ => u64::MAX,
        };
        let until = usize::try_from(cut.clamp(at, end) - at).unwrap();
        let mut bytes = part[..until].to_vec();
        if let HubFault::Flip(place) = fault
            && (at..end).contains(place)
        {
            bytes[usize::try_from(place - at).unwrap()] ^= 1;
        }
        let n_at_a_time = if let HubFault::Slow(n_bytes, _) = fault { *n_bytes } else { 1 << 20 };
        for some in bytes.chunks(usize::try_from(n_at_a_time).unwrap()) {
            let mut stream = self.stream;
            stream.write_all(some)?;
            self.state.n_bytes.fetch_add(some.len() as u64, Ordering::SeqCst);
            if let HubFault::Slow(_, pause) = fault {
                self.pause(*pause);
            }
        }
        if cut > end {
            return Ok(());
        }
        if matches!(fault, HubFault::Silence(_)) {
            // Until the client gives up, or the test ends.
            self.pause(Duration::from_secs(60));
        }
        Err(io::ErrorKind::ConnectionReset.into())
    }

    fn pause(&self, time: Duration) {
        let (lock, changed) = &self.state.ended;
        let is_running = |(): &mut ()| !self.state.is_ended.load(Ordering::SeqCst);
        drop(changed.wait_timeout_while(lock.lock().unwrap(), time, is_running));
    }

    fn json(
        &self,
        request: &ReceivedRequest,
        headers: HeaderList,
        value: &Value,
    ) -> io::Result<()> {
        self.send(request, 200, headers, value.to_string().as_bytes())
    }

    fn refuse(
        &self,
        request: &ReceivedRequest,
        status: u16,
        code: &str,
        message: &str,
    ) -> io::Result<()> {
        let headers =
            vec![("X-Error-Code", code.to_owned()), ("X-Error-Message", message.to_owned())];
        self.send(request, status, headers, json!({"error": message}).to_string().as_bytes())
    }

    fn send(
        &self,
        request: &ReceivedRequest,
        status: u16,
        headers: HeaderList,
        body: &[u8],
    ) -> io::Result<()> {
        self.head(status, &headers, body.len() as u64)?;
        let mut stream = self.stream;
        if request.method == "HEAD" { Ok(()) } else { stream.write_all(body) }
    }

    fn head(&self, status: u16, headers: &HeaderList, n_bytes: u64) -> io::Result<()> {
        let mut head = format!("HTTP/1.1 {status} X\r\nContent-Length: {n_bytes}\r\n");
        for (name, value) in headers {
            write!(head, "{name}: {value}\r\n").unwrap();
        }
        head.push_str("\r\n");
        let mut stream = self.stream;
        stream.write_all(head.as_bytes())
    }
}

/// `bytes=0-9`, both included.
fn range_of(value: &str) -> Option<(u64, u64)> {
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().unwrap_or(u64::MAX - 1)))
}

fn unquoted(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|it| std::str::from_utf8(it).ok());
        let byte = digits.filter(|_| *first == b'%');
        match byte.and_then(|it| u8::from_str_radix(it, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap()
}
