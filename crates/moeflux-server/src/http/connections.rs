//! Accepts connections, counts them and ends them.
//!
//! Each has its own task, so that a slow one does not delay others. **Invariant:** each connection
//! holds a slot while it exists, and none is left when serving ends.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::http::StopSignal;
use crate::http::routes;
use crate::http::routes::guard::Entrance;
use crate::http::shared::{CurrentModel, ServerState};
use crate::http::sockets::half_close::{HalfCloseStream, HttpExchange, RequestBody, Socket};
use crate::http::sockets::listen::Listeners;
use crate::http::sockets::slots::{
    ConnectionAdmission, ConnectionSlot, ConnectionSlots, Peer, StageReporter,
};
use crate::http::sockets::stall::StallLimit;

/// Upper bound on the bytes of a request's head, and of a response that waits to be sent.
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// Upper bound on the headers of a request: agents send forty.
const N_HEADERS_MAX: usize = 128;
/// Pause after the system failed to accept a connection, for example without free descriptors.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
/// Error codes for too many descriptors in the system or in this process: `ENFILE` and `EMFILE`,
/// and Windows' code for the latter.
const OUT_OF_DESCRIPTORS: [i32; 3] = [23, 24, 10_024];
/// Time to tell clients that their answers were cut short.
const TELLING: Duration = Duration::from_secs(2);

/// The connections of a server.
#[derive(Clone)]
struct Connections {
    server: Arc<ServerState>,
    slots: Arc<ConnectionSlots>,
    stop: watch::Receiver<StopSignal>,
}

/// Serves until the stop signal, and then until the answers have ended or their time is over.
pub(crate) async fn serve(
    listeners: Listeners,
    current: CurrentModel,
    mut stop: watch::Receiver<StopSignal>,
) -> std::io::Result<()> {
    let server = Arc::clone(&current.get().server);
    let slots = Arc::clone(&server.slots);
    let connections =
        Connections { server: Arc::clone(&server), slots: Arc::clone(&slots), stop: stop.clone() };
    for (listener, address) in listeners.tcp {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let router = routes::router(&current, Entrance::Tcp(address));
        tokio::spawn(accept_tcp(listener, router, connections.clone()));
    }
    #[cfg(unix)]
    if let Some(socket) = listeners.unix {
        let listener = tokio::net::UnixListener::from_std(socket.listener.try_clone()?)?;
        let router = routes::router(&current, Entrance::Unix);
        tokio::spawn(accept_unix((listener, socket), router, connections.clone()));
    }
    // No sender is left that could stop the server: it serves for ever.
    let how = match stop.wait_for(|stop| *stop != StopSignal::Running).await {
        Ok(how) => *how,
        Err(_) => std::future::pending().await,
    };
    current.get().served.service.close();
    let drain = match how {
        StopSignal::Within(time) => time.min(server.config.drain),
        StopSignal::Running | StopSignal::Drain => server.config.drain,
    };
    if timeout(drain, slots.all_free()).await.is_err() {
        let n_left = slots.n_taken();
        tracing::warn!(target: "moeflux::server", "answers to {n_left} connections are cut short");
        current.get().served.service.cancel_all();
        timeout(TELLING, slots.all_free()).await.ok();
    }
    Ok(())
}

async fn accept_tcp(listener: tokio::net::TcpListener, router: Router, connections: Connections) {
    while let Some(accepted) = connections.until_stop(listener.accept()).await {
        match accepted {
            Ok((stream, address)) => {
                // Sends tokens without delay. If that cannot be set, they only arrive later.
                stream.set_nodelay(true).ok();
                connections.admit(stream, Peer::at(address.ip()), &router).await;
            }
            Err(error) => connections.not_accepted(&error).await,
        }
    }
}

/// The socket's file is removed after the last accept.
#[cfg(unix)]
async fn accept_unix(
    (listener, _file): (tokio::net::UnixListener, crate::http::sockets::listen::UnixSocket),
    router: Router,
    connections: Connections,
) {
    while let Some(accepted) = connections.until_stop(listener.accept()).await {
        match accepted {
            Ok((stream, _)) => connections.admit(stream, Peer::Local(None), &router).await,
            Err(error) => connections.not_accepted(&error).await,
        }
    }
}

impl Connections {
    /// Returns the result of `work`, or `None` when the server is to stop.
    async fn until_stop<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut stop = self.stop.clone();
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop != StopSignal::Running) => None,
            done = work => Some(done),
        }
    }

    async fn not_accepted(&self, error: &std::io::Error) {
        tracing::warn!(target: "moeflux::server", "a connection was not accepted: {error}");
        if error.raw_os_error().is_some_and(|code| OUT_OF_DESCRIPTORS.contains(&code)) {
            let n_slots = self.slots.lower_limit();
            let line = format!("connections are now limited to {n_slots}");
            tracing::warn!(target: "moeflux::server", "{line}");
        }
        sleep(REFUSED_PAUSE).await;
    }

    /// Serves a connection in its own task once it has a slot. Until then this listener accepts
    /// nothing else: further connections wait in the system's queue.
    async fn admit<S: Socket>(&self, stream: S, peer: Peer, router: &Router) {
        match self.until_stop(self.slots.admit(peer)).await {
            Some(ConnectionAdmission::Admitted(slot)) => {
                tokio::spawn(self.clone().connection(stream, router.clone(), slot));
            }
            Some(ConnectionAdmission::Refused) => {
                let line = format!("{peer:?} has reached its limit of connections");
                tracing::debug!(target: "moeflux::server", "{line}");
            }
            None => {}
        }
    }

    /// Serves one connection. Its slot becomes free at the end.
    async fn connection<S: Socket>(mut self, stream: S, router: Router, slot: ConnectionSlot) {
        let has_request = Arc::new(AtomicBool::new(false));
        let request_seen = Arc::clone(&has_request);
        let (stage_reporter, exchange) = (slot.stage_reporter(), Arc::new(HttpExchange::default()));
        let stream_exchange = Arc::clone(&exchange);
        let router = TowerToHyperService::new(router);
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request_seen.store(true, Ordering::Relaxed);
            let (stage_reporter, exchange) = (stage_reporter.clone(), Arc::clone(&exchange));
            exchange.request_begun(request.version());
            request.extensions_mut().insert(stage_reporter.clone());
            request.extensions_mut().insert(Arc::clone(&exchange));
            let body_exchange = Arc::clone(&exchange);
            let response =
                router.call(request.map(|body| RequestBody { body, exchange: body_exchange }));
            async move {
                let response = response.await?;
                exchange.response_begun();
                Ok::<_, Infallible>(response.map(|body| ResponseBody {
                    body,
                    stage_reporter,
                    exchange,
                }))
            }
        });
        let timeouts = &self.server.config.timeouts;
        let head = match slot.is_nearly_full {
            true => timeouts.head.min(timeouts.head_when_nearly_full),
            false => timeouts.head,
        };
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(head)
            .max_headers(N_HEADERS_MAX)
            .max_header_size(BUFFER_BYTES_MAX)
            .max_buf_size(BUFFER_BYTES_MAX);
        let stream = HalfCloseStream::new(stream, stream_exchange, timeouts.keep_alive);
        let stream = StallLimit::new(stream, timeouts.reader);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            // Clients may disconnect at any time: that is not logged.
            ended = connection.as_mut() => {
                if ended.is_err_and(|error| error.is_parse()) {
                    self.server.refusals.count_malformed();
                    log_malformed();
                }
                return;
            }
            () = slot.evicted() => return,
            _ = self.stop.wait_for(|stop| *stop != StopSignal::Running) => {}
        }
        // A graceful shutdown would wait for a connection without any request.
        if has_request.load(Ordering::Relaxed) {
            connection.as_mut().graceful_shutdown();
            connection.await.ok();
        }
    }
}

fn log_malformed() {
    let (ended, reason) = ("refused", "malformed");
    tracing::info!(target: "moeflux::request", ended, reason, "request");
}

/// The body of a response. Dropping it ends the request.
struct ResponseBody {
    body: Body,
    stage_reporter: StageReporter,
    exchange: Arc<HttpExchange>,
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.stage_reporter.ended();
        self.exchange.response_ended();
    }
}
