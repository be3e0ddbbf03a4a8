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
use crate::client::{Answer, N_TRIES_FETCHING, Tries, Trouble, drain};
use crate::error::{Error, Result};

/// The size of writes.
const WRITE_BYTES: usize = 256 << 10;

/// The result of an attempt.
type Attempt<T = ()> = std::result::Result<T, Trouble>;

/// A piece that is arriving.
struct Arriving {
    idx: usize,
    n_bytes: u64,
    sum: XxHash3_64,
}

impl Arriving {
    fn new(idx: usize) -> Self {
        Self { idx, n_bytes: 0, sum: XxHash3_64::new() }
    }
}

impl Pull<'_> {
    /// Fetches a piece, and hashes the pieces that are then ready.
    pub(super) fn fetch(&self, download: &Download, idx: usize) -> Result<()> {
        let mut tries = Tries::new(&self.client, N_TRIES_FETCHING);
        let mut piece = Arriving::new(idx);
        let mut buffer = vec![0; WRITE_BYTES];
        loop {
            let before = piece.n_bytes;
            let attempt = self.attempt(download, &mut piece, &mut buffer, &mut tries);
            if piece.n_bytes > before {
                tries.progressed();
            }
            match attempt {
                Ok(()) => return self.advance(download),
                Err(Trouble::Passing { problem, asked }) => {
                    let path = &download.job.paths[0];
                    tries.wait(&format!("{path}: {problem}"), asked)?;
                }
                // The address of a redirect expires after some minutes.
                Err(Trouble::Refused(refusal)) if !refusal.is_of_hub => {
                    download.set_source(None);
                    let path = &download.job.paths[0];
                    let problem =
                        format!("{path}: the file server returned status {}", refusal.status);
                    tries.wait(&problem, None)?;
                }
                Err(Trouble::Refused(refusal)) => {
                    let path = &download.job.paths[0];
                    return Err(self.client.refused(self.remote.wanted(), path, &refusal));
                }
                Err(Trouble::Final(error)) => return Err(error),
            }
        }
    }

    fn attempt(
        &self,
        download: &Download,
        piece: &mut Arriving,
        buffer: &mut [u8],
        tries: &mut Tries,
    ) -> Attempt {
        let (begin, end) = download.cut.range(piece.idx);
        let first = begin + piece.n_bytes;
        let url = download.source();
        let answer = self.client.get(&url, Some((first, end - 1)))?;
        if answer.url != url {
            download.set_source(Some(answer.url.clone()));
        }
        self.check_encoding(download, &answer.headers)?;
        match answer.status {
            206 => {
                self.check_range(download, &answer.headers, first)?;
                let mut body = answer.body;
                let received = self.receive(download, piece, &mut body.as_reader(), buffer);
                received.inspect(|()| drain(&mut body.as_reader()))
            }
            _ if download.cut.n_pieces() == 1 && first == 0 => {
                self.check_length(download, &answer.headers)?;
                let mut body = answer.body;
                let received = self.receive(download, piece, &mut body.as_reader(), buffer);
                received.inspect(|()| drain(&mut body.as_reader()))
            }
            _ => self.attempt_whole(download, piece, answer, buffer, tries),
        }
    }

    /// Writes the bytes of a piece at their offset, until it is complete.
    fn receive(
        &self,
        download: &Download,
        piece: &mut Arriving,
        body: &mut dyn Read,
        buffer: &mut [u8],
    ) -> Attempt {
        let (begin, end) = download.cut.range(piece.idx);
        while begin + piece.n_bytes < end {
            let at = begin + piece.n_bytes;
            let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
            let (n_bytes, broken) = fill(body, &mut buffer[..wanted]);
            let part = &buffer[..n_bytes];
            if !part.is_empty() {
                download.write(at, part).map_err(Trouble::Final)?;
                piece.sum.write(part);
                piece.n_bytes += part.len() as u64;
                self.done_bytes.fetch_add(part.len() as u64, Ordering::Relaxed);
                self.fetched_bytes.fetch_add(part.len() as u64, Ordering::Relaxed);
            }
            self.client.stop().check().map_err(Trouble::Final)?;
            if let Some(problem) = broken {
                return Err(Trouble::Passing { problem, asked: None });
            }
        }
        download.note(piece.idx, piece.sum.finish()).map_err(Trouble::Final)
    }

    /// Fetches all missing pieces from a server that ignores ranges and sends the whole file.
    fn attempt_whole(
        &self,
        download: &Download,
        piece: &mut Arriving,
        answer: Answer,
        buffer: &mut [u8],
        tries: &mut Tries,
    ) -> Attempt {
        self.check_length(download, &answer.headers)?;
        self.forget(piece);
        if !download.take_whole() {
            download.give_back(piece.idx);
            return Ok(());
        }
        let mut body = answer.body;
        let received = self.receive_all(download, &mut body.as_reader(), buffer, tries);
        download.give_back_whole();
        self.queue.changed();
        received
    }

    fn receive_all(
        &self,
        download: &Download,
        body: &mut dyn Read,
        buffer: &mut [u8],
        tries: &mut Tries,
    ) -> Attempt {
        for idx in 0..download.cut.n_pieces() {
            if download.has(idx) {
                skip(body, download.cut.len_bytes(idx), buffer)?;
                self.client.stop().check().map_err(Trouble::Final)?;
                continue;
            }
            let mut arriving = Arriving::new(idx);
            let received = self.receive(download, &mut arriving, body, buffer);
            if received.is_err() {
                self.forget(&mut arriving);
            }
            received?;
            tries.progressed();
        }
        Ok(())
    }

    /// Discards the bytes that arrived of a piece, so that it is fetched again.
    fn forget(&self, piece: &mut Arriving) {
        self.done_bytes.fetch_sub(piece.n_bytes, Ordering::Relaxed);
        *piece = Arriving::new(piece.idx);
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
        let listed = download.cut.n_bytes();
        if total == listed {
            return Ok(());
        }
        let problem = format!("is listed with {listed} bytes, but the server has {total}");
        Err(self.wrong(download, &problem))
    }

    fn wrong(&self, download: &Download, problem: &str) -> Trouble {
        let (wanted, path) = (self.remote.wanted(), &download.job.paths[0]);
        Trouble::Final(Error::Answer(format!("{wanted}: {path} {problem}: try again later")))
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
            return Err(Trouble::Passing { problem, asked: None });
        }
    }
    Ok(())
}
