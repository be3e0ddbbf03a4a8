//! An HTTP client that sends exactly the given bytes.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value as Json;

/// A test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Client {
    reader: BufReader<TcpStream>,
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// An event of a stream.
#[derive(Debug)]
pub(crate) struct SseEvent {
    pub(crate) name: String,
    pub(crate) data: String,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::of(TcpStream::connect(address).unwrap())
    }

    pub(crate) fn of(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { reader: BufReader::new(stream) }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).unwrap();
    }

    /// A line without its end; `None` at the end of the connection.
    fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        match self.reader.read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(_) => Some(String::from_utf8(line).unwrap().trim_end().to_owned()),
            Err(error) if is_end(error.kind()) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Status and headers; `None` if the connection ends before.
    pub(crate) fn head(&mut self) -> Option<Response> {
        let line = self.line()?;
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Some(Response { status, headers, body: Vec::new() })
    }

    /// The next chunk of a body; `None` at its end. Panics where the body breaks off.
    pub(crate) fn chunk(&mut self) -> Option<Vec<u8>> {
        self.chunk_or_break().expect("the body broke off")
    }

    /// The same; an error where the body breaks off.
    pub(crate) fn chunk_or_break(&mut self) -> Result<Option<Vec<u8>>, ()> {
        let line = self.line().ok_or(())?;
        let mut chunk = vec![0; usize::from_str_radix(&line, 16).unwrap() + 2];
        self.reader.read_exact(&mut chunk).map_err(|_| ())?;
        chunk.truncate(chunk.len() - 2);
        Ok(Some(chunk).filter(|chunk| !chunk.is_empty()))
    }

    /// A whole response.
    pub(crate) fn response(&mut self) -> Response {
        self.try_response().expect("the connection ended")
    }

    /// A whole response, or `None` if the connection ends before it begins.
    pub(crate) fn try_response(&mut self) -> Option<Response> {
        let mut response = self.head()?;
        if response.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk() {
                response.body.extend(chunk);
            }
        } else if let Some(length) = response.header("content-length") {
            response.body = vec![0; length.parse().unwrap()];
            self.reader.read_exact(&mut response.body).unwrap();
        }
        Some(response)
    }

    /// Whether the server has closed the connection, and sent nothing before.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.reader.read(&mut [0]) {
            Ok(n_bytes) => n_bytes == 0,
            Err(error) => is_end(error.kind()),
        }
    }
}

fn is_end(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe
    )
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(it, _)| it == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Json {
        match serde_json::from_slice(&self.body) {
            Ok(json) => json,
            Err(error) => panic!("{error}: {}", self.text()),
        }
    }

    /// The body of a response that must be a success.
    #[track_caller]
    pub(crate) fn success(&self) -> Json {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// The events of a stream, without comments.
    pub(crate) fn events(&self) -> Vec<SseEvent> {
        assert_eq!(self.status, 200, "{}", self.text());
        assert_eq!(self.header("content-type"), Some("text/event-stream"));
        let of = |block: &str| {
            let mut event = SseEvent { name: String::new(), data: String::new() };
            for line in block.lines() {
                if let Some(name) = line.strip_prefix("event: ") {
                    name.clone_into(&mut event.name);
                } else if let Some(data) = line.strip_prefix("data: ") {
                    data.clone_into(&mut event.data);
                }
            }
            event
        };
        let events = self.text().split("\n\n").map(of);
        events.filter(|event| !event.data.is_empty()).collect()
    }
}

impl SseEvent {
    #[track_caller]
    pub(crate) fn json(&self) -> Json {
        serde_json::from_str(&self.data).unwrap()
    }
}

/// The bytes of a request. Headers are lines; the host is this machine unless they name one.
pub(crate) fn request(method: &str, path: &str, headers: &str, body: &str) -> Vec<u8> {
    let host = if headers.contains("host:") { "" } else { "host: localhost\r\n" };
    let length = body.len();
    let length =
        if body.is_empty() { String::new() } else { format!("content-length: {length}\r\n") };
    format!("{method} {path} HTTP/1.1\r\n{host}{length}{headers}\r\n{body}").into_bytes()
}
