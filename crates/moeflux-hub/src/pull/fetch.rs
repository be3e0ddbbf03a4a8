//! Fetches a piece of a file from the network, with retries.
//!
//! **Invariant:** an attempt continues where the last one broke off; a length other than the listed
//! one is an error, and never gives a shorter or longer file.

use std::hash::Hasher as _;
use std::io::Read;
use std::sync::atomic::Ordering;

use twox_hash::XxHash3_64;
use ureq::http::HeaderMap;

use super::Pull;
use super::download::Download;
use crate::client::{HubResponse, N_TRIES_TRANSFER, RequestError, Retries, drain};
use crate::error::{Error, Result};

/// The size of writes.
const WRITE_BYTES: usize = 256 << 10;

/// The result of an attempt.
type Attempt<T = ()> = std::result::Result<T, RequestError>;

/// The transfer of a piece, as far as it has come.
struct PieceTransfer {
    idx: usize,
    n_bytes: u64,
    sum: XxHash3_64,
}

impl PieceTransfer {
    fn new(idx: usize) -> Self {
        Self { idx, n_bytes: 0, sum: XxHash3_64::new() }
    }
}

impl Pull<'_> {
    /// Fetches a piece, and hashes the pieces that are then ready.
    pub(super) fn fetch(&self, download: &Download, idx: usize) -> Result<()> {
        let mut tries = Retries::new(&self.client, N_TRIES_TRANSFER);
        let mut piece = PieceTransfer::new(idx);
        let mut buffer = vec![0; WRITE_BYTES];
        loop {
            let before = piece.n_bytes;
            let attempt = self.attempt(download, &mut piece, &mut buffer, &mut tries);
            if piece.n_bytes > before {
                tries.reset();
            }
            match attempt {
                Ok(()) => return self.advance(download),
                Err(RequestError::Transient { problem, retry_after }) => {
                    let path = &download.job.paths[0];
                    tries.wait(&format!("{path}: {problem}"), retry_after)?;
                }
                // The address of a redirect expires after some minutes.
                Err(RequestError::Refused(response)) if !response.is_of_hub => {
                    download.set_source(None);
                    let path = &download.job.paths[0];
                    let problem =
                        format!("{path}: the file server returned status {}", response.status);
                    tries.wait(&problem, None)?;
                }
                Err(RequestError::Refused(response)) => {
                    let path = &download.job.paths[0];
                    return Err(self.client.refused(self.remote.model(), path, &response));
                }
                Err(RequestError::Fatal(error)) => return Err(error),
            }
        }
    }

    fn attempt(
        &self,
        download: &Download,
        piece: &mut PieceTransfer,
        buffer: &mut [u8],
        tries: &mut Retries,
    ) -> Attempt {
        let (begin, end) = download.layout.range(piece.idx);
        let first = begin + piece.n_bytes;
        let url = download.source();
        let response = self.client.get(&url, Some((first, end - 1)))?;
        if response.url != url {
            download.set_source(Some(response.url.clone()));
        }
        self.check_encoding(download, &response.headers)?;
        match response.status {
            206 => {
                self.check_range(download, &response.headers, first)?;
                let mut body = response.body;
                let received = self.receive(download, piece, &mut body.as_reader(), buffer);
                received.inspect(|()| drain(&mut body.as_reader()))
            }
            _ if download.layout.n_pieces() == 1 && first == 0 => {
                self.check_length(download, &response.headers)?;
                let mut body = response.body;
                let received = self.receive(download, piece, &mut body.as_reader(), buffer);
                received.inspect(|()| drain(&mut body.as_reader()))
            }
            _ => self.attempt_whole(download, piece, response, buffer, tries),
        }
    }

    /// Writes the bytes of a piece at their offset, until it is complete.
    fn receive(
        &self,
        download: &Download,
        piece: &mut PieceTransfer,
        body: &mut dyn Read,
        buffer: &mut [u8],
    ) -> Attempt {
        let (begin, end) = download.layout.range(piece.idx);
        while begin + piece.n_bytes < end {
            let at = begin + piece.n_bytes;
            let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
            let (n_bytes, broken) = fill(body, &mut buffer[..wanted]);
            let part = &buffer[..n_bytes];
            if !part.is_empty() {
                download.write(at, part).map_err(RequestError::Fatal)?;
                piece.sum.write(part);
                piece.n_bytes += part.len() as u64;
                self.done_bytes.fetch_add(part.len() as u64, Ordering::Relaxed);
                self.fetched_bytes.fetch_add(part.len() as u64, Ordering::Relaxed);
            }
            self.client.stop().check().map_err(RequestError::Fatal)?;
            if let Some(problem) = broken {
                return Err(RequestError::Transient { problem, retry_after: None });
            }
        }
        download.record_piece(piece.idx, piece.sum.finish()).map_err(RequestError::Fatal)
    }

    /// Fetches all missing pieces from a server that ignores ranges and sends the whole file.
    fn attempt_whole(
        &self,
        download: &Download,
        piece: &mut PieceTransfer,
        response: HubResponse,
        buffer: &mut [u8],
        tries: &mut Retries,
    ) -> Attempt {
        self.check_length(download, &response.headers)?;
        self.forget(piece);
        if !download.claim_whole() {
            download.release_piece(piece.idx);
            return Ok(());
        }
        let mut body = response.body;
        let received = self.receive_all(download, &mut body.as_reader(), buffer, tries);
        download.release_whole();
        self.queue.changed();
        received
    }

    fn receive_all(
        &self,
        download: &Download,
        body: &mut dyn Read,
        buffer: &mut [u8],
        tries: &mut Retries,
    ) -> Attempt {
        for idx in 0..download.layout.n_pieces() {
            if download.has(idx) {
                skip(body, download.layout.len_bytes(idx), buffer)?;
                self.client.stop().check().map_err(RequestError::Fatal)?;
                continue;
            }
            let mut transfer = PieceTransfer::new(idx);
            let received = self.receive(download, &mut transfer, body, buffer);
            if received.is_err() {
                self.forget(&mut transfer);
            }
            received?;
            tries.reset();
        }
        Ok(())
    }

    /// Discards the bytes that arrived of a piece, so that it is fetched again.
    fn forget(&self, piece: &mut PieceTransfer) {
        self.done_bytes.fetch_sub(piece.n_bytes, Ordering::Relaxed);
        *piece = PieceTransfer::new(piece.idx);
    }

    fn check_encoding(&self, download: &Download, headers: &HeaderMap) -> Attempt {
        let encoding = headers.get("content-encoding").and_then(|it| it.to_str().ok());
        match encoding.filter(|it| !it.eq_ignore_ascii_case("identity")) {
            None => Ok(()),
            Some(encoding) => Err(self.wrong(
                download,
                &format!("was sent in the unrequested encoding `{}`", encoding.escape_debug()),
            )),
        }
    }

    /// Checks a header such as `Content-Range: bytes 0-9/100`.
    fn check_range(&self, download: &Download, headers: &HeaderMap, first: u64) -> Attempt {
        let text = headers.get("content-range").and_then(|it| it.to_str().ok());
        let range = text.and_then(|it| it.strip_prefix("bytes "));
        let Some((range, total)) = range.and_then(|it| it.split_once('/')) else {
            let problem = "was sent as a partial response without a valid Content-Range";
            return Err(self.wrong(download, problem));
        };
        if let Ok(total) = total.parse::<u64>() {
            self.check_total(download, total)?;
        }
        let begin = range.split('-').next().and_then(|it| it.parse::<u64>().ok());
        if begin == Some(first) {
            return Ok(());
        }
        let problem = format!("was requested from byte {first}, but sent as {range}");
        Err(self.wrong(download, &problem))
    }

    fn check_length(&self, download: &Download, headers: &HeaderMap) -> Attempt {
        let text = headers.get("content-length").and_then(|it| it.to_str().ok());
        let total = text.and_then(|it| it.parse::<u64>().ok());
        total.map_or(Ok(()), |total| self.check_total(download, total))
    }

    fn check_total(&self, download: &Download, total: u64) -> Attempt {
        let listed = download.layout.n_bytes();
        if total == listed {
            return Ok(());
        }
        let problem = format!("is listed with {listed} bytes, but the server has {total}");
        Err(self.wrong(download, &problem))
    }

    fn wrong(&self, download: &Download, problem: &str) -> RequestError {
        let (model, path) = (self.remote.model(), &download.job.paths[0]);
        RequestError::Fatal(Error::Answer(format!("{model}: {path} {problem}: try again later")))
    }
}

/// Reads until a buffer is full or the connection breaks. Returns the length, and the problem if
/// there was one.
fn fill(body: &mut dyn Read, buffer: &mut [u8]) -> (usize, Option<String>) {
    let mut n_bytes = 0;
    while n_bytes < buffer.len() {
        match body.read(&mut buffer[n_bytes..]) {
            Ok(0) => return (n_bytes, Some("the connection ended early".to_owned())),
            Ok(n_read) => n_bytes += n_read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return (n_bytes, Some(format!("the connection broke: {error}"))),
        }
    }
    (n_bytes, None)
}

fn skip(body: &mut dyn Read, n_bytes: u64, buffer: &mut [u8]) -> Attempt {
    let mut left = n_bytes;
    while left > 0 {
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let (n_read, broken) = fill(body, &mut buffer[..wanted]);
        left -= n_read as u64;
        if let Some(problem) = broken {
            return Err(RequestError::Transient { problem, retry_after: None });
        }
    }
    Ok(())
}
