//! Connections: accepted, counted, and brought to an end.
//!
//! Each is a task of its own, so that a slow one holds up no other.
//! **Invariant:** there are never more than the limit, and none is left when serving ends.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};

use crate::http::guard::Socket;
use crate::http::listen::Listeners;
use crate::http::routes;
use crate::http::shared::Shared;
use crate::http::stall::StallLimit;

/// Bytes of a request's head, and of a response that waits to be sent.
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// Headers of a request: agents send forty.
const N_HEADERS_MAX: usize = 128;
/// How long accepting pauses when the system refuses, as it does without free descriptors.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
/// How long clients have to be told that their answers were cut short.
const TELLING: Duration = Duration::from_secs(2);

/// The connections of a server.
#[derive(Clone)]
struct Connections {
    shared: Arc<Shared>,
    /// One for each connection that there may be.
    places: Arc<Semaphore>,
    /// True once the server is to stop.
    stop: watch::Receiver<bool>,
}

/// Serves until it is told to stop, and until the answers have ended or had their time.
pub(crate) async fn serve(
    listeners: Listeners,
    shared: Arc<Shared>,
    mut stop: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let n_places = shared.config.n_connections_max;
    let places = Arc::new(Semaphore::new(n_places));
    let connections = Connections {
        shared: Arc::clone(&shared),
        places: Arc::clone(&places),
        stop: stop.clone(),
    };
    for (listener, address) in listeners.tcp {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let router = routes::router(&shared, Socket::Tcp(address));
        tokio::spawn(accept_tcp(listener, router, connections.clone()));
    }
    #[cfg(unix)]
    if let Some(socket) = listeners.unix {
        let listener = tokio::net::UnixListener::from_std(socket.listener.try_clone()?)?;
        let router = routes::router(&shared, Socket::Unix);
        tokio::spawn(accept_unix((listener, socket), router, connections.clone()));
    }
    // Nobody can tell any more: then serving goes on for ever.
    if stop.wait_for(|is_stopping| *is_stopping).await.is_err() {
        std::future::pending::<()>().await;
    }
    shared.served.service.close();
    let all_places = || places.acquire_many(u32::try_from(n_places).unwrap_or(u32::MAX));
    if timeout(shared.config.drain, all_places()).await.is_err() {
        let n_left = n_places - places.available_permits();
        tracing::warn!(target: "moeflux::server", "answers to {n_left} connections are cut short");
        shared.served.service.cancel_all();
        timeout(TELLING, all_places()).await.ok();
    }
    Ok(())
}

async fn accept_tcp(listener: tokio::net::TcpListener, router: Router, connections: Connections) {
    while let Some((accepted, place)) = connections.next(async || listener.accept().await).await {
        match accepted {
            Ok((stream, _)) => {
                // Tokens are sent as they come. Where that cannot be set, they are only later.
                stream.set_nodelay(true).ok();
                tokio::spawn(connections.clone().connection(stream, router.clone(), place));
            }
            Err(error) => refused(&error).await,
        }
    }
}

/// The file of the socket is removed once nothing is accepted any more.
#[cfg(unix)]
async fn accept_unix(
    (listener, _file): (tokio::net::UnixListener, crate::http::listen::UnixSocket),
    router: Router,
    connections: Connections,
) {
    while let Some((accepted, place)) = connections.next(async || listener.accept().await).await {
        match accepted {
            Ok((stream, _)) => {
                tokio::spawn(connections.clone().connection(stream, router.clone(), place));
            }
            Err(error) => refused(&error).await,
        }
    }
}

async fn refused(error: &std::io::Error) {
    tracing::warn!(target: "moeflux::server", "a connection was not accepted: {error}");
    sleep(REFUSED_PAUSE).await;
}

impl Connections {
    /// What `accept` gives, once there is a place for it; nothing when the server is to stop.
    async fn next<T>(&self, accept: impl AsyncFnOnce() -> T) -> Option<(T, OwnedSemaphorePermit)> {
        let mut stop = self.stop.clone();
        let accept = async {
            let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
            Some((accept().await, place))
        };
        tokio::select! {
            biased;
            _ = stop.wait_for(|is_stopping| *is_stopping) => None,
            accepted = accept => accepted,
        }
    }

    /// Serves one connection. Its place is free again at the end.
    async fn connection<S>(mut self, stream: S, router: Router, _place: OwnedSemaphorePermit)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let _counted = Counted::new(Arc::clone(&self.shared));
        let has_asked = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&has_asked);
        let router = TowerToHyperService::new(router);
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            asked.store(true, Ordering::Relaxed);
            router.call(request)
        });
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(self.shared.config.timeouts.head)
            .max_headers(N_HEADERS_MAX)
            .max_header_size(BUFFER_BYTES_MAX)
            .max_buf_size(BUFFER_BYTES_MAX);
        let stream = StallLimit::new(stream, self.shared.config.timeouts.reader);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            // Clients break off as they like: that is no news.
            _ = connection.as_mut() => return,
            _ = self.stop.wait_for(|is_stopping| *is_stopping) => {}
        }
        // One that has asked nothing yet would be waited for.
        if has_asked.load(Ordering::Relaxed) {
            connection.as_mut().graceful_shutdown();
            connection.await.ok();
        }
    }
}

/// A connection that is counted while it is there.
struct Counted {
    shared: Arc<Shared>,
}

impl Counted {
    fn new(shared: Arc<Shared>) -> Self {
        shared.connections.opened();
        Self { shared }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.shared.connections.closed();
    }
}
