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
use hyper::body::{Frame, SizeHint};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use crate::http::answers::run::RequestRun;
use crate::http::config::Timeouts;
use crate::http::memory::estimate::added_bytes;
use crate::http::memory::pools::{MemoryPool, PoolReservation};
use crate::http::reply::{self, Problem};
use crate::http::sockets::half_close::HttpExchange;
use moeflux_wire::{EventWriter, ResponseEvent};

/// Upper bound on queued chunks of a response. Beyond it, the answer itself waits for the client.
const N_CHUNKS_MAX: usize = 4;

/// Memory is taken in units of this size while an answer grows.
const GROWTH_BYTES: usize = 16 << 10;

/// The memory that a growing response holds.
pub(crate) struct ResponseMemory {
    pool: MemoryPool,
    reservation: PoolReservation,
    score_bytes: usize,
    /// Bytes that were taken and are not used yet.
    n_spare: usize,
}

impl ResponseMemory {
    /// Continues from the memory taken for a request; each collected log-probability adds
    /// `score_bytes`.
    pub(crate) fn new(pool: MemoryPool, reservation: PoolReservation, score_bytes: usize) -> Self {
        Self { pool, reservation, score_bytes, n_spare: 0 }
    }

    fn add(&mut self, n_bytes: usize) -> Result<(), Problem> {
        if n_bytes > self.n_spare {
            let n_more = (n_bytes - self.n_spare).next_multiple_of(GROWTH_BYTES);
            self.pool.extend(&mut self.reservation, "more of this answer", n_more)?;
            self.n_spare += n_more;
        }
        self.n_spare -= n_bytes;
        Ok(())
    }
}

/// A response in progress.
pub(crate) struct Delivery {
    run: RequestRun,
    writer: Box<dyn EventWriter>,
    is_streamed: bool,
    memory: ResponseMemory,
    timeouts: Timeouts,
    has_begun: bool,
    /// When to report next how far the prompt is read; `None` if the client did not ask for that,
    /// and once the prompt is read.
    progress_at: Option<Instant>,
    out: Vec<u8>,
    exchange: Option<Arc<HttpExchange>>,
}

impl Delivery {
    /// Creates the response to a request.
    pub(crate) fn new(
        run: RequestRun,
        (writer, is_streamed): (Box<dyn EventWriter>, bool),
        timeouts: Timeouts,
        memory: ResponseMemory,
    ) -> Self {
        let progress_at = writer.wants_progress().then(Instant::now);
        Self {
            run,
            writer,
            is_streamed,
            memory,
            timeouts,
            has_begun: false,
            progress_at,
            out: Vec::new(),
            exchange: None,
        }
    }

    /// Attaches the exchange, through which the client may close its side.
    pub(crate) fn with_exchange(self, exchange: Option<Arc<HttpExchange>>) -> Self {
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
                self.write(&[ResponseEvent::Begun {
                    n_prompt_tokens,
                    n_cached_tokens: 0,
                    n_cached_drive_tokens: 0,
                }]);
            }
            Err(_) => self.write_keep_alive(),
        }
        let is_streamed = self.is_streamed;
        let body = if self.run.is_done() {
            Body::new(CompleteBody {
                bytes: Some(Bytes::from(self.out)),
                _reservation: self.memory.reservation,
            })
        } else {
            let (sender, receiver) = mpsc::channel(N_CHUNKS_MAX);
            tokio::spawn(self.fill(sender));
            Body::new(StreamedBody(receiver))
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
    async fn next(&mut self, events: &mut Vec<ResponseEvent>) -> Result<(), Problem> {
        self.run.next(events).await?;
        let n_bytes = added_bytes(events, self.is_streamed, self.memory.score_bytes);
        let added = self.memory.add(n_bytes);
        if let Err(problem) = &added {
            events.clear();
            self.run.record.failed(problem);
        }
        added
    }

    /// Sends the bytes written so far, and the rest as it is made.
    async fn fill(mut self, chunks: mpsc::Sender<BodyChunk>) {
        let mut keep_alive_at = Instant::now() + self.timeouts.keep_alive;
        let mut is_over = false;
        let exchange = self.exchange.clone();
        loop {
            if !self.out.is_empty() {
                keep_alive_at = Instant::now() + self.timeouts.keep_alive;
                let chunk = BodyChunk::More(Bytes::from(std::mem::take(&mut self.out)));
                // A client that reads nothing loses its connection, and with it the response.
                if chunks.send(chunk).await.is_err() {
                    return;
                }
            }
            if is_over {
                // The client may be gone by now.
                chunks.send(BodyChunk::End).await.ok();
                let reservation = self.memory.reservation;
                drop((self.run, self.writer));
                chunks.closed().await;
                drop(reservation);
                return;
            }
            let mut events = Vec::new();
            let wake_at = self.progress_at.map_or(keep_alive_at, |at| at.min(keep_alive_at));
            let outcome = tokio::select! {
                biased;
                () = chunks.closed() => return,
                // The client may be gone: a keep-alive shows whether it is.
                () = closed(exchange.as_deref()) => None,
                outcome = timeout_at(wake_at, self.next(&mut events)) => outcome.ok(),
            };
            self.write(&events);
            match outcome {
                Some(Ok(())) => is_over = self.run.is_done(),
                Some(Err(problem)) => {
                    self.write(&[ResponseEvent::Failed(problem.failure)]);
                    is_over = true;
                }
                None if self.progress_at.is_some() => self.write_progress(),
                None => {
                    self.write_keep_alive();
                    keep_alive_at = Instant::now() + self.timeouts.keep_alive;
                }
            }
        }
    }

    fn write_keep_alive(&mut self) {
        let progress = self.run.progress();
        self.write(&[ResponseEvent::KeepAlive(progress)]);
    }

    /// Writes how far the prompt is read.
    fn write_progress(&mut self) {
        self.writer.write(&ResponseEvent::Progress(self.run.progress()), &mut self.out);
        self.progress_at = Some(Instant::now() + self.timeouts.progress);
    }

    /// Writes events. Of several prompts, the first to be read begins the response.
    fn write(&mut self, events: &[ResponseEvent]) {
        for event in events {
            let is_begun = matches!(event, ResponseEvent::Begun { .. });
            if is_of_answer(event) && self.progress_at.take().is_some() {
                let progress = self.run.progress().completed();
                self.writer.write(&ResponseEvent::Progress(progress), &mut self.out);
            }
            if !(is_begun && self.has_begun) {
                self.writer.write(event, &mut self.out);
            }
            self.has_begun |= is_begun;
            if is_begun && self.progress_at.is_some() {
                self.write_progress();
            }
        }
    }
}

/// Whether the event shows that the prompt was read.
fn is_of_answer(event: &ResponseEvent) -> bool {
    use ResponseEvent::{Begun, Failed, KeepAlive, Progress};
    !matches!(event, Begun { .. } | KeepAlive(_) | Progress(_) | Failed(_))
}

async fn closed(exchange: Option<&HttpExchange>) {
    match exchange {
        Some(exchange) => exchange.closed().await,
        None => std::future::pending().await,
    }
}

fn response(is_streamed: bool, body: Body) -> Response<Body> {
    if is_streamed { reply::events(body) } else { reply::text("application/json", body) }
}

/// A complete body, with its memory.
struct CompleteBody {
    bytes: Option<Bytes>,
    _reservation: PoolReservation,
}

impl HttpBody for CompleteBody {
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

/// A chunk of a response.
enum BodyChunk {
    More(Bytes),
    /// Nothing follows. If this is missing, the response broke off.
    End,
}

/// The body of a response in progress.
struct StreamedBody(mpsc::Receiver<BodyChunk>);

impl HttpBody for StreamedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(context).map(|chunk| match chunk {
            Some(BodyChunk::More(bytes)) => Some(Ok(Frame::data(bytes))),
            Some(BodyChunk::End) => None,
            None => Some(Err(io::Error::other("the response broke off"))),
        })
    }
}
