//! The state of the machine, again and again, as server-sent events; and the uses of experts.
//!
//! **Invariant:** a client that watches holds no memory for requests, no model and no place that
//! another client needs, and wakes neither the engine nor its thread. An event is made when the
//! connection can send it, so that a slow client gets the newest state and nothing is queued.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Response};
use hyper::body::Frame;
use moeflux::stats::process_memory_bytes;
use serde_json::Value as Json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::oneshot;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout};

use crate::http::config::MeasuredRates;
use crate::http::reply::{self, Problem};
use crate::http::shared::{CurrentModel, ModelState, N_LISTENERS_MAX};
use crate::http::sockets::half_close::HttpExchange;
use crate::http::sockets::slots::StageReporter;
use crate::machine::{self, MachineView};
use moeflux_wire::{Failure, FailureKind};

/// Time in which the engine's thread should find a moment between two layers.
const EXPERTS_WAIT: Duration = Duration::from_secs(5);

/// A comment, which shows that the connection works.
const KEEP_ALIVE: &[u8] = b": nothing has changed\n\n";

/// Begins a stream of states.
pub(crate) fn watch(
    current: CurrentModel,
    request: &Request<Body>,
) -> Result<Response<Body>, Problem> {
    let server = Arc::clone(&current.get().server);
    let Ok(place) = Arc::clone(&server.listeners).try_acquire_owned() else {
        let problem =
            format!("{N_LISTENERS_MAX} clients watch this machine already: close another page");
        return Err(Failure::new(FailureKind::TooMany, problem).into());
    };
    let extensions = request.extensions();
    if let Some(stage_reporter) = extensions.get::<StageReporter>() {
        stage_reporter.endless();
    }
    let exchange = extensions.get::<Arc<HttpExchange>>().cloned().unwrap_or_default();
    let timeouts = &server.config.timeouts;
    let pace = Pace { states: timeouts.machine, keep_alives: timeouts.keep_alive };
    let stopping = Arc::clone(&server);
    let stopped = async move { stopping.stopped().await };
    let events = StateEvents::new((exchange, place), pace, stopped, move || state(&current));
    Ok(reply::events(Body::new(events)))
}

/// Returns the uses of experts.
pub(crate) async fn experts(state: &ModelState) -> Result<Response<Body>, Problem> {
    let (sender, answered) = oneshot::channel();
    // The client may be gone when the reply comes.
    let reply = move |report| drop(sender.send(report));
    state.served.service.ask_experts(Box::new(reply));
    if let Ok(Ok(report)) = timeout(EXPERTS_WAIT, answered).await {
        return Ok(reply::text("application/json", machine::experts_json(&report)));
    }
    let problem = "the engine is busy with a long step: ask again";
    let failure = Failure::new(FailureKind::Unavailable, problem);
    Err(Problem { failure, retry_after: Some(Duration::from_secs(1)) })
}

/// Returns the state of the current model. The model is not kept: another may replace it.
fn state(current: &CurrentModel) -> (u128, Json) {
    let model = current.get();
    let service = &model.served.service;
    let measured = |it: MeasuredRates| [it.drive_bytes_per_s, it.memory_bytes_per_s];
    let json = machine::json(&MachineView {
        model: model.name(),
        state: service.state(),
        stats: &service.watch_stats(),
        process_bytes: process_memory_bytes(),
        measured: model.served.model.measured.map(measured),
    });
    (model.server.began.elapsed().as_millis(), json)
}

/// How often something is sent.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Time between two states.
    states: Duration,
    /// Time after which a comment is sent if nothing has changed.
    keep_alives: Duration,
}

type BoxedSignal = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The body of a stream of states.
struct StateEvents<R> {
    /// Returns the time in milliseconds and the state.
    read: R,
    exchange: Arc<HttpExchange>,
    ticks: Interval,
    keep_alive: Duration,
    keep_alive_at: Instant,
    /// The last state that was sent.
    sent: Json,
    stopped: BoxedSignal,
    /// Ready when the client sends nothing more: it may be gone.
    closed: Option<BoxedSignal>,
    _place: OwnedSemaphorePermit,
}

impl<R: FnMut() -> (u128, Json)> StateEvents<R> {
    fn new(
        (exchange, place): (Arc<HttpExchange>, OwnedSemaphorePermit),
        pace: Pace,
        stopped: impl Future<Output = ()> + Send + 'static,
        read: R,
    ) -> Self {
        let mut ticks = interval(pace.states);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let of_client = Arc::clone(&exchange);
        Self {
            read,
            exchange,
            ticks,
            keep_alive: pace.keep_alives,
            keep_alive_at: Instant::now() + pace.keep_alives,
            sent: Json::Null,
            stopped: Box::pin(stopped),
            closed: Some(Box::pin(async move { of_client.closed().await })),
            _place: place,
        }
    }

    /// Returns what is to be sent now.
    fn event(&mut self) -> Option<Bytes> {
        let (time_ms, state) = (self.read)();
        let now = Instant::now();
        if state == self.sent && now < self.keep_alive_at {
            return None;
        }
        self.keep_alive_at = now + self.keep_alive;
        if state == self.sent {
            return Some(Bytes::from_static(KEEP_ALIVE));
        }
        let mut line = state.clone();
        line["time_ms"] = u64::try_from(time_ms).unwrap_or(u64::MAX).into();
        self.sent = state;
        Some(Bytes::from(format!("event: machine\ndata: {line}\n\n")))
    }
}

impl<R: FnMut() -> (u128, Json) + Unpin> HttpBody for StateEvents<R> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.stopped.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        if let Some(closed) = &mut self.closed
            && closed.as_mut().poll(context).is_ready()
        {
            self.closed = None;
            // A client that is gone refuses it.
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(KEEP_ALIVE)))));
        }
        loop {
            ready!(self.ticks.poll_tick(context));
            // Bytes that wait in front of an event would make it old.
            if !self.exchange.is_blocked()
                && let Some(event) = self.event()
            {
                return Poll::Ready(Some(Ok(Frame::data(event))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicU64, Ordering};

    use serde_json::json;
    use tokio::sync::Semaphore;
    use tokio::time::advance;

    use super::*;

    const PACE: Pace =
        Pace { states: Duration::from_millis(250), keep_alives: Duration::from_secs(10) };

    /// Polls a body once. `None`: nothing is to be sent.
    async fn next(
        body: &mut (impl HttpBody<Data = Bytes, Error = io::Error> + Unpin),
    ) -> Option<String> {
        let polled = poll_fn(|context| Poll::Ready(Pin::new(&mut *body).poll_frame(context))).await;
        let Poll::Ready(frame) = polled else { return None };
        let frame = frame.expect("it has not ended").expect("it does not fail");
        Some(String::from_utf8(frame.into_data().expect("data").to_vec()).unwrap())
    }

    fn run(work: impl Future<Output = ()>) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap().block_on(work);
    }

    /// A body of states that are a number, which the test sets.
    fn events(number: &Arc<AtomicU64>) -> StateEvents<impl FnMut() -> (u128, Json) + use<>> {
        let place = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let number = Arc::clone(number);
        let read = move || (7, json!({"steps": number.load(Ordering::Relaxed)}));
        StateEvents::new((Arc::default(), place), PACE, std::future::pending(), read)
    }

    #[test]
    fn the_newest_state_is_sent_when_it_can_be() {
        run(async {
            let number = Arc::new(AtomicU64::new(0));
            let mut events = events(&number);
            let expected = "event: machine\ndata: {\"steps\":0,\"time_ms\":7}\n\n";
            assert_eq!(next(&mut events).await.as_deref(), Some(expected));
            assert_eq!(next(&mut events).await, None, "once in 250 ms");
            for steps in 1..=40 {
                number.store(steps, Ordering::Relaxed);
                advance(PACE.states).await;
            }
            assert!(next(&mut events).await.unwrap().contains("{\"steps\":40,"));
            assert_eq!(next(&mut events).await, None, "no state waits");
            // While the client does not read, nothing is added.
            number.store(41, Ordering::Relaxed);
            events.exchange.note_written(&Poll::Pending);
            advance(PACE.states).await;
            assert_eq!(next(&mut events).await, None);
            events.exchange.note_written(&Poll::Ready(Ok(1)));
            number.store(42, Ordering::Relaxed);
            advance(PACE.states).await;
            assert!(next(&mut events).await.unwrap().contains("{\"steps\":42,"));
        });
    }

    #[test]
    fn a_comment_shows_that_nothing_has_changed() {
        run(async {
            let mut events = events(&Arc::default());
            assert!(next(&mut events).await.unwrap().starts_with("event: machine\n"));
            for _ in 0..2 {
                for _ in 1..40 {
                    advance(PACE.states).await;
                    assert_eq!(next(&mut events).await, None);
                }
                advance(PACE.states).await;
                assert_eq!(next(&mut events).await.unwrap().as_bytes(), KEEP_ALIVE);
            }
        });
    }
}
