//! Reads the whole body of a request.
//!
//! **Invariant:** the memory of one body and of all bodies together is bounded, and reading a
//! stalled body times out.

use std::ops::Deref;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, Request, header};
use tokio::time::timeout;

use crate::http::memory::body_size::BodySize;
use crate::http::memory::pools::{MemoryPool, PoolReservation};
use crate::http::reply::Problem;
use crate::http::sockets::slots::StageReporter;
use moeflux_wire::{Failure, FailureKind};

/// Upper bound on a body: several times the text of the longest contexts in JSON.
const BODY_BYTES_MAX: usize = 32 << 20;
/// Number of bodies of the largest size that fit: one without a declared length may become as long.
const BODIES_MIN: usize = 4;
/// Lower bound on a client's rate, apart from two pauses.
const BYTES_PER_SECOND_MIN: usize = 256 << 10;
/// Upper bound on the bytes of a refused body that are read and discarded. A client that is still
/// sending when the connection closes does not read the reason.
const DISCARDED_BYTES_MAX: usize = 64 << 20;
/// Upper bound on the time for discarding.
const DISCARD: Duration = Duration::from_secs(2);
/// Upper bound on the allocation that a declared length causes.
const RESERVED_BYTES_MAX: usize = 1 << 20;

/// A body that was read completely, with its memory.
#[derive(Debug)]
pub(crate) struct ReceivedBody {
    bytes: Vec<u8>,
    pub(crate) size: BodySize,
    _reservation: PoolReservation,
}

impl Deref for ReceivedBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads a body. `pause` is the longest wait for memory, and between two chunks.
pub(crate) async fn read(
    request: Request<Body>,
    pool: &MemoryPool,
    pause: Duration,
) -> Result<ReceivedBody, Problem> {
    let stage_reporter = request.extensions().get::<StageReporter>().cloned();
    let longest = BODY_BYTES_MAX.min(pool.n_bytes() / BODIES_MIN);
    // Without a declared length, it may become the longest.
    let n_bytes_max = match request.body().size_hint().exact() {
        Some(n_declared) => usize::try_from(n_declared).unwrap_or(usize::MAX),
        None => longest,
    };
    let admitted = match check_type(request.headers()) {
        Ok(()) if n_bytes_max > longest => Err(too_large(longest).into()),
        Ok(()) => {
            let what = format!("a body of {n_bytes_max} bytes");
            pool.reserve(&what, n_bytes_max, pause).await
        }
        Err(failure) => Err(failure.into()),
    };
    let reservation = match admitted {
        Ok(reservation) => reservation,
        Err(problem) => {
            discard(request).await;
            return Err(problem);
        }
    };
    let seconds = u64::try_from(n_bytes_max / BYTES_PER_SECOND_MIN).unwrap_or(u64::MAX);
    let limit = pause.saturating_mul(2).saturating_add(Duration::from_secs(seconds));
    match timeout(limit, read_whole(request.into_body(), n_bytes_max, pause)).await {
        Ok(read) => {
            let (bytes, size) = read?;
            // From here on the request is being answered, and keeps its connection.
            stage_reporter.iter().for_each(StageReporter::answering);
            Ok(ReceivedBody { bytes, size, _reservation: reservation })
        }
        Err(_) => {
            let seconds = limit.as_secs_f64();
            let problem = format!("the body was incomplete after {seconds} s: send it faster");
            Err(Failure::new(FailureKind::Invalid, problem).into())
        }
    }
}

async fn read_whole(
    mut body: Body,
    n_bytes_max: usize,
    pause: Duration,
) -> Result<(Vec<u8>, BodySize), Failure> {
    let mut bytes = Vec::with_capacity(n_bytes_max.min(RESERVED_BYTES_MAX));
    let mut size = BodySize::default();
    while let Some(chunk) = next_chunk(&mut body, pause).await? {
        if bytes.len() + chunk.len() > n_bytes_max {
            discard_body(body).await;
            return Err(too_large(n_bytes_max));
        }
        size.add(&chunk);
        // The default growth could exceed the memory that was taken.
        if bytes.capacity() - bytes.len() < chunk.len() {
            bytes.reserve_exact((2 * bytes.len()).clamp(chunk.len(), n_bytes_max - bytes.len()));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok((bytes, size))
}

/// Reads and discards the body of a refused request.
pub(crate) async fn discard(request: Request<Body>) {
    if !expects_continue(&request) {
        discard_body(request.into_body()).await;
    }
}

/// Whether the client sends its body only after `100 Continue`.
fn expects_continue(request: &Request<Body>) -> bool {
    request.headers().contains_key(header::EXPECT)
}

async fn discard_body(mut body: Body) {
    let read = async {
        let mut n_read = 0;
        while n_read < DISCARDED_BYTES_MAX
            && let Ok(Some(chunk)) = next_chunk(&mut body, DISCARD).await
        {
            n_read += chunk.len();
        }
    };
    timeout(DISCARD, read).await.ok();
}

async fn next_chunk(
    body: &mut Body,
    pause: Duration,
) -> Result<Option<axum::body::Bytes>, Failure> {
    loop {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
        let Ok(frame) = timeout(pause, frame).await else {
            let seconds = pause.as_secs_f64();
            let problem = format!("no more of the body arrived for {seconds} s");
            return Err(Failure::new(FailureKind::Invalid, problem));
        };
        match frame {
            None => return Ok(None),
            Some(Ok(frame)) => {
                // Trailers are ignored.
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Some(Err(error)) => {
                let problem = format!("the body could not be read: {error}");
                return Err(Failure::new(FailureKind::Invalid, problem));
            }
        }
    }
}

fn too_large(n_bytes_max: usize) -> Failure {
    let problem = format!("the body is too long; the limit is {n_bytes_max} bytes");
    Failure::new(FailureKind::TooLarge, problem)
}

/// A body without a type counts as JSON.
fn check_type(headers: &HeaderMap) -> Result<(), Failure> {
    let problem = if headers.get(header::CONTENT_TYPE).is_some_and(|it| !is_json(it.as_bytes())) {
        "the body is not JSON, by its content-type: send application/json"
    } else if headers.get(header::CONTENT_ENCODING).is_some_and(|it| it != "identity") {
        "the body is compressed, by its content-encoding: send it as it is"
    } else {
        return Ok(());
    };
    Err(Failure::new(FailureKind::MediaType, problem))
}

fn is_json(kind: &[u8]) -> bool {
    let kind = String::from_utf8_lossy(kind).to_ascii_lowercase();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_several_names() {
        for kind in ["application/json", "Application/JSON; charset=utf-8", "application/x+json"] {
            assert!(is_json(kind.as_bytes()), "{kind}");
        }
        for kind in ["text/plain", "application/jsonl", "json", "", "text/json+json"] {
            assert!(!is_json(kind.as_bytes()), "{kind}");
        }
    }
}
