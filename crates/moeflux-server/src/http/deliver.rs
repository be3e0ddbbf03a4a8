//! Delivers answers to clients: begins the response, sends keep-alives, and ends it.
//!
//! A client that goes away closes its connection. Until the response has begun, the connection then
//! drops the handler, and with it the run; after that, the task that fills the response notices.
//! **Invariant:** a response ends as its dialect requires, or its connection breaks off.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Response;
use axum::http::header::{self, HeaderName, HeaderValue};
use hyper::body::{Frame, SizeHint};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use crate::http::account::{Held, Part};
use crate::http::closing::Exchange;
use crate::http::config::Timeouts;
use crate::http::keeping::added_bytes;
use crate::http::reply::{self, Problem};
use crate::http::run::Run;
use moeflux_wire::{Event, Writer};

/// Upper bound on queued pieces of a response. Beyond it, the answer itself waits for the client.
const N_PIECES_MAX: usize = 4;

/// Memory is taken in units of this size while an answer grows.
const GROWTH_BYTES: usize = 16 << 10;

/// The memory that a growing response holds.
pub(crate) struct Collected {
    part: Part,
    held: Held,
    score_bytes: usize,
    /// Bytes that were taken and are not used yet.
    n_spare: usize,
}

impl Collected {
    /// Continues from the memory taken for a request; each collected log-probability adds
    /// `score_bytes`.
    pub(crate) fn new(part: Part, held: Held, score_bytes: usize) -> Self {
        Self { part, held, score_bytes, n_spare: 0 }
    }

    fn add(&mut self, n_bytes: usize) -> Result<(), Problem> {
        if n_bytes > self.n_spare {
            let n_more = (n_bytes - self.n_spare).next_multiple_of(GROWTH_BYTES);
            self.part.add(&mut self.held, "more of this answer", n_more)?;
            self.n_spare += n_more;
        }
        self.n_spare -= n_bytes;
        Ok(())
    }
}

/// A response in progress.
pub(crate) struct Delivery {
    run: Run,
    writer: Box<dyn Writer>,
    is_streamed: bool,
    collected: Collected,
    timeouts: Timeouts,
    has_begun: bool,
    out: Vec<u8>,
    exchange: Option<Arc<Exchange>>,
}

impl Delivery {
    /// Creates the response to a request.
    pub(crate) fn new(
        run: Run,
        (writer, is_streamed): (Box<dyn Writer>, bool),
        timeouts: Timeouts,
        collected: Collected,
    ) -> Self {
        let (has_begun, out) = (false, Vec::new());
        let exchange = None;
        Self { run, writer, is_streamed, collected, timeouts, has_begun, out, exchange }
    }

    /// Attaches the exchange, through which the client may close its side.
    pub(crate) fn on(self, exchange: Option<Arc<Exchange>>) -> Self {
        Self { exchange, ..self }
    }

    /// Begins the response; an early problem gets its own response. For a client that does not wait
    /// for the whole answer, the response begins at the latest when its prompt is read.
    pub(crate) async fn respond(mut self) -> Result<Response<Body>, Problem> {
        self.run.submit()?;
        let limit = if self.is_streamed { self.timeouts.stream } else { self.timeouts.whole };
        match timeout(limit, self.begin()).await {
            Ok(Err(problem)) => return Err(problem),
            Ok(Ok(())) => {}
            Err(_) if self.is_streamed => {
                let n_prompt_tokens = self.run.n_prompt_tokens();
                self.write(&[Event::Begun { n_prompt_tokens, n_cached_tokens: 0 }]);
            }
            Err(_) => self.write_sign(),
        }
        let is_streamed = self.is_streamed;
        let body = if self.run.is_done() {
            Body::new(Whole { bytes: Some(Bytes::from(self.out)), _held: self.collected.held })
        } else {
            let (sender, receiver) = mpsc::channel(N_PIECES_MAX);
            tokio::spawn(self.fill(sender));
            Body::new(Pieces(receiver))
        };
        Ok(response(is_streamed, body))
    }

    /// Runs until the prompt is being read, or until the end for a client that waits for the whole.
    async fn begin(&mut self) -> Result<(), Problem> {
        while !(self.run.is_done() || self.is_streamed && self.has_begun) {
            let mut events = Vec::new();
            self.next(&mut events).await?;
            self.write(&events);
        }
        Ok(())
    }

    /// Waits for the next events and takes memory for them. Events before a problem are valid.
    async fn next(&mut self, events: &mut Vec<Event>) -> Result<(), Problem> {
        self.run.next(events).await?;
        let n_bytes = added_bytes(events, self.is_streamed, self.collected.score_bytes);
        let added = self.collected.add(n_bytes);
        if let Err(problem) = &added {
            events.clear();
            self.run.record.failed(problem);
        }
        added
    }

    /// Sends the bytes written so far, and the rest as it is made.
    async fn fill(mut self, pieces: mpsc::Sender<Piece>) {
        let mut sign_at = Instant::now() + self.timeouts.sign;
        let mut is_over = false;
        let exchange = self.exchange.clone();
        loop {
            if !self.out.is_empty() {
                sign_at = Instant::now() + self.timeouts.sign;
                let piece = Piece::More(Bytes::from(std::mem::take(&mut self.out)));
                // A client that reads nothing loses its connection, and with it the response.
                if pieces.send(piece).await.is_err() {
                    return;
                }
            }
            if is_over {
                // The client may be gone by now.
                pieces.send(Piece::End).await.ok();
                let held = self.collected.held;
                drop((self.run, self.writer));
                pieces.closed().await;
                drop(held);
                return;
            }
            let mut events = Vec::new();
            let heard = tokio::select! {
                biased;
                () = pieces.closed() => return,
                // The client may be gone: a keep-alive shows whether it is.
                () = closed(exchange.as_deref()) => None,
                heard = timeout_at(sign_at, self.next(&mut events)) => heard.ok(),
            };
            self.write(&events);
            match heard {
                Some(Ok(())) => is_over = self.run.is_done(),
                Some(Err(problem)) => {
                    self.write(&[Event::Failed(problem.failure)]);
                    is_over = true;
                }
                None => {
                    self.write_sign();
                    sign_at = Instant::now() + self.timeouts.sign;
                }
            }
        }
    }

    fn write_sign(&mut self) {
        let progress = self.run.progress();
        self.write(&[Event::Alive(progress)]);
    }

    /// Writes events. Of several prompts, the first to be read begins the response.
    fn write(&mut self, events: &[Event]) {
        for event in events {
            let is_begun = matches!(event, Event::Begun { .. });
            if !(is_begun && self.has_begun) {
                self.writer.write(event, &mut self.out);
            }
            self.has_begun |= is_begun;
        }
    }
}

async fn closed(exchange: Option<&Exchange>) {
    match exchange {
        Some(exchange) => exchange.closed().await,
        None => std::future::pending().await,
    }
}

fn response(is_streamed: bool, body: Body) -> Response<Body> {
    if !is_streamed {
        return reply::text("application/json", body);
    }
    let mut response = reply::text("text/event-stream", body);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Without this header, nginx buffers a stream before it forwards it.
    let no = HeaderValue::from_static("no");
    headers.insert(HeaderName::from_static("x-accel-buffering"), no);
    response
}

/// A complete body, with its memory.
struct Whole {
    bytes: Option<Bytes>,
    _held: Held,
}

impl HttpBody for Whole {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Poll::Ready(self.bytes.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// A piece of a response.
enum Piece {
    More(Bytes),
    /// Nothing follows. If this is missing, the response broke off.
    End,
}

/// The body of a response in progress.
struct Pieces(mpsc::Receiver<Piece>);

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(context).map(|piece| match piece {
            Some(Piece::More(bytes)) => Some(Ok(Frame::data(bytes))),
            Some(Piece::End) => None,
            None => Some(Err(io::Error::other("the response broke off"))),
        })
    }
}
