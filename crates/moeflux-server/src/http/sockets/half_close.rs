//! Support for clients that close their side after a request and wait for the answer.
//!
//! Until something is sent to it, such a client looks like one that is gone, and hyper drops both.
//! Therefore hyper does not see the end of the stream while a request is answered, and something is
//! sent: a client that is gone refuses it. Before the response begins, that is `100 Continue`,
//! which every client skips; during the response it is a keep-alive. **Invariant:** nothing is
//! written between the bytes of responses, and a client that refuses what was sent is dropped
//! within a second.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use axum::http::Version;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep};

/// Sent before the response.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// Pause before the first message, so that earlier data has left.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// Upper bound on the pause between checks for a refusal.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A request and its response, shared by the two sides of a connection.
#[derive(Debug, Default)]
pub(crate) struct HttpExchange {
    state: Mutex<ExchangeState>,
    closed: Notify,
    /// Whether bytes of a response wait to be written.
    is_blocked: AtomicBool,
}

/// The state of an exchange.
#[derive(Debug, Default)]
struct ExchangeState {
    phase: ExchangePhase,
    /// Whether the client sends nothing more, while its request is in progress.
    is_closed: bool,
    /// Wakes the reader of the request's body.
    reader: Option<Waker>,
}

/// How far an exchange has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ExchangePhase {
    #[default]
    Idle,
    /// HTTP/1.0 clients do not know interim responses.
    Requested {
        knows_continue: bool,
    },
    Responding,
}

impl HttpExchange {
    /// Records a new request.
    pub(crate) fn request_begun(&self, version: Version) {
        let phase = ExchangePhase::Requested { knows_continue: version == Version::HTTP_11 };
        *self.state() = ExchangeState { phase, ..ExchangeState::default() };
    }

    /// Records the beginning of the response.
    pub(crate) fn response_begun(&self) {
        self.state().phase = ExchangePhase::Responding;
    }

    /// Records the end of the response.
    pub(crate) fn response_ended(&self) {
        self.state().phase = ExchangePhase::Idle;
    }

    /// Waits until the client sends nothing more, so that something has to be sent to it.
    pub(crate) async fn closed(&self) {
        self.closed.notified().await;
    }

    /// Whether the client reads more slowly than its response is made.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked.load(Ordering::Relaxed)
    }

    /// Notes the outcome of a write.
    pub(crate) fn note_written(&self, written: &Poll<io::Result<usize>>) {
        self.is_blocked.store(written.is_pending(), Ordering::Relaxed);
    }

    /// Notes that the client sends nothing more. Returns how far the exchange is if a request is
    /// being answered, and whether this is the first call for it.
    fn close(&self) -> Option<(ExchangePhase, bool)> {
        let mut state = self.state();
        let phase = Some(state.phase).filter(|phase| *phase != ExchangePhase::Idle)?;
        let is_new = !state.is_closed;
        if is_new {
            state.is_closed = true;
            state.reader.take().iter().for_each(Waker::wake_by_ref);
            self.closed.notify_one();
        }
        Some((phase, is_new))
    }

    fn state(&self) -> MutexGuard<'_, ExchangeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The body of a request.
#[derive(Debug)]
pub(crate) struct RequestBody {
    pub(crate) body: Incoming,
    pub(crate) exchange: Arc<HttpExchange>,
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)));
        }
        let mut state = self.exchange.state();
        if state.is_closed {
            let problem = "the client closed the connection before the end of the body";
            return Poll::Ready(Some(Err(problem.into())));
        }
        state.reader = Some(context.waker().clone());
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A socket that reports whether its other end refused data.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Returns the pending error of the socket.
    fn failure(&self) -> io::Result<Option<io::Error>>;
}

impl Socket for tokio::net::TcpStream {
    #[cfg(not(windows))]
    fn failure(&self) -> io::Result<Option<io::Error>> {
        self.take_error()
    }

    /// Windows keeps no error for a connection that the other end reset. A write reports it, even
    /// one of no bytes.
    #[cfg(windows)]
    fn failure(&self) -> io::Result<Option<io::Error>> {
        match self.try_write(&[]) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Ok(Some(error)),
            _ => self.take_error(),
        }
    }
}

#[cfg(unix)]
impl Socket for tokio::net::UnixStream {
    fn failure(&self) -> io::Result<Option<io::Error>> {
        self.take_error()
    }
}

/// A stream that hides its end from its reader while a request is answered.
#[derive(Debug)]
pub(crate) struct HalfCloseStream<S> {
    inner: S,
    exchange: Arc<HttpExchange>,
    /// Time between two keep-alives.
    keep_alive: Duration,
    /// Set when the client sends nothing more.
    probe: Option<ClientProbe>,
    /// The unsent rest of [`CONTINUE`].
    unsent: &'static [u8],
}

/// Checks again and again whether a client that sends nothing more is gone.
#[derive(Debug)]
struct ClientProbe {
    timer: Pin<Box<Sleep>>,
    pause: Duration,
    keep_alive_at: Instant,
}

impl<S: Socket> HalfCloseStream<S> {
    /// Wraps `inner`, on which `exchange` takes place.
    pub(crate) fn new(inner: S, exchange: Arc<HttpExchange>, keep_alive: Duration) -> Self {
        Self { inner, exchange, keep_alive, probe: None, unsent: &[] }
    }

    /// Handles the end of the client's data: ready once the client is gone or its answer has ended.
    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some((phase, is_new)) = self.exchange.close() else { return Poll::Ready(Ok(())) };
        if is_new {
            self.probe = None;
        }
        loop {
            let probe = self.probe.get_or_insert_with(|| ClientProbe {
                timer: Box::pin(sleep(PAUSE_MIN)),
                pause: PAUSE_MIN,
                keep_alive_at: Instant::now(),
            });
            ready!(probe.timer.as_mut().poll(context));
            if let Some(failure) = self.inner.failure()? {
                return Poll::Ready(Err(failure));
            }
            let now = Instant::now();
            let is_silent = phase == ExchangePhase::Requested { knows_continue: true };
            let is_time = is_silent && !self.exchange.is_blocked() && now >= probe.keep_alive_at;
            if is_time {
                probe.keep_alive_at = now + self.keep_alive;
                probe.pause = PAUSE_MIN;
            }
            probe.pause = (probe.pause * 2).min(PAUSE_MAX);
            probe.timer.as_mut().reset(now + probe.pause);
            if is_time && self.unsent.is_empty() {
                self.unsent = CONTINUE;
                if let Poll::Ready(sent) = self.poll_unsent(context) {
                    sent?;
                }
            }
        }
    }

    fn poll_unsent(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            let n_sent = ready!(Pin::new(&mut self.inner).poll_write(context, self.unsent))?;
            self.unsent = &self.unsent[n_sent..];
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Socket> AsyncRead for HalfCloseStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let n_before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        if buffer.filled().len() > n_before || buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        self.poll_gone(context)
    }
}

impl<S: Socket> AsyncWrite for HalfCloseStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_unsent(context))?;
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.exchange.note_written(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_unsent(context))?;
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, pieces);
        self.exchange.note_written(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_unsent(context))?;
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
