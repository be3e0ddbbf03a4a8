//! Requests for answers, in each dialect.
//!
//! **Invariant:** parsing and tokenising do not block the thread that serves connections, use at
//! most the memory that was taken for them, and are cancelled when the client is gone.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request as HttpRequest, Response};
use moeflux::{Cancel, TextLimit};
use moeflux_schedule::Owner;
use tokio::task::JoinHandle;

use crate::http::account::Held;
use crate::http::body;
use crate::http::closing::Exchange;
use crate::http::deliver::{Collected, Delivery};
use crate::http::keeping::Keeping;
use crate::http::prompt::{self, Planned};
use crate::http::record::Record;
use crate::http::reply::{Problem, RequestId};
use crate::http::run::Run;
use crate::http::shared::Shared;
use moeflux_wire::{Failure, FailureKind, Head, Request, Writer};
use moeflux_wire::{chat, completions, messages, responses};

/// The API that a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Chat,
    Completions,
    Responses,
    Messages,
}

impl Dialect {
    fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
        }
    }

    /// Returns the memory for a log-probability until a response that is not streamed has been
    /// sent.
    fn score_bytes(self) -> usize {
        match self {
            Self::Chat => 640,
            Self::Completions => 800,
            Self::Responses => 5_000,
            Self::Messages => 0,
        }
    }

    /// Parses a request, and creates the writer of its response.
    fn parse(self, body: &[u8], head: Head) -> Result<(Request, Box<dyn Writer>), Failure> {
        Ok(match self {
            Self::Chat => {
                let (request, shape) = chat::parse(body)?;
                (request, Box::new(chat::Writer::new(shape, head)))
            }
            Self::Completions => {
                let (request, shape) = completions::parse(body)?;
                (request, Box::new(completions::Writer::new(shape, head)))
            }
            Self::Responses => {
                let (request, shape) = responses::parse(body)?;
                (request, Box::new(responses::Writer::new(shape, head)))
            }
            Self::Messages => {
                let (request, shape) = messages::parse(body)?;
                (request, Box::new(messages::Writer::new(shape, head)))
            }
        })
    }
}

/// A request that is ready to run.
struct Prepared {
    planned: VecDeque<Planned>,
    writer: Box<dyn Writer>,
    is_streamed: bool,
    ignored: Vec<String>,
    kept_bytes: usize,
}

/// Answers a request.
pub(crate) async fn answer(
    shared: Arc<Shared>,
    (dialect, owner): (Dialect, Owner),
    request: HttpRequest<Body>,
    id: &RequestId,
) -> Result<Response<Body>, Problem> {
    let mut record = Record::new(id, dialect.name());
    let exchange = request.extensions().get::<Arc<Exchange>>().cloned();
    let (prepared, kept) = match prepare(&shared, (dialect, owner), request, id).await {
        Ok(prepared) => prepared,
        Err(problem) => {
            record.failed(&problem);
            return Err(problem);
        }
    };
    record.ignored(&prepared.ignored);
    let timeouts = shared.common.config.timeouts.clone();
    let part = shared.common.account.kept.clone();
    let collected = Collected::new(part, kept, dialect.score_bytes());
    let run = Run::new(shared, prepared.planned, record);
    let Prepared { writer, is_streamed, .. } = prepared;
    let delivery = Delivery::new(run, (writer, is_streamed), timeouts, collected);
    delivery.on(exchange).respond().await
}

async fn prepare(
    shared: &Arc<Shared>,
    (dialect, owner): (Dialect, Owner),
    request: HttpRequest<Body>,
    id: &RequestId,
) -> Result<(Prepared, Held), Problem> {
    let wait = shared.common.config.timeouts.body;
    let body = body::read(request, &shared.common.account.bodies, wait).await?;
    let size = body.size;
    let part = &shared.common.account.reading;
    let reading = part.take(&size.shown(), size.reading_bytes(), wait).await?;
    let id = id.clone();
    let prepare = move |shared: &Shared, cancel: &Cancel| {
        let (request, writer) = dialect.parse(&body, shared.head())?;
        // The memory is free for the bodies of other requests now.
        drop(body);
        let keeping = Keeping::of(size, &request);
        let is_streamed = request.is_streamed;
        let ignored = request.ignored.names().map(str::to_owned).collect();
        let limit = TextLimit {
            n_bytes_max: size.text_bytes_max(),
            n_tokens_max: shared.served.service.context(),
            cancel: cancel.clone(),
        };
        let planned = prompt::plan(shared, owner, (request, &limit))?;
        if shared.common.config.log_prompts {
            log_prompts(shared, &id, &planned);
        }
        let n_tokens = planned.iter().map(|it| it.job.prompt.len()).sum();
        let n_echo_bytes = planned.iter().filter_map(|it| it.echo.as_ref()).map(String::len).sum();
        let kept_bytes = keeping.bytes(n_tokens, n_echo_bytes);
        // The memory is held as long as the data that it was taken for, even if the client is gone.
        Ok((Prepared { planned, writer, is_streamed, ignored, kept_bytes }, reading))
    };
    let (prepared, reading) = beside(shared, prepare).await?;
    let what = "the prompt of this request and its pending output";
    let kept = shared.common.account.kept.take(what, prepared.kept_bytes, wait).await?;
    drop(reading);
    Ok((prepared, kept))
}

/// Does CPU-bound work on a separate thread. If the caller no longer waits, the work is not begun,
/// or is cancelled.
pub(crate) async fn beside<T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Shared, &Cancel) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let shared = Arc::clone(shared);
    let broken = |_| {
        let problem = "internal error in preparing the request: please report it";
        Failure::new(FailureKind::Internal, problem)
    };
    let cancel = Cancel::default();
    let told = cancel.clone();
    let task = tokio::task::spawn_blocking(move || work(&shared, &told));
    let mut done = CancelOnDrop { task, cancel };
    (&mut done.task).await.map_err(broken)?
}

struct CancelOnDrop<T> {
    task: JoinHandle<T>,
    cancel: Cancel,
}

impl<T> Drop for CancelOnDrop<T> {
    fn drop(&mut self) {
        self.task.abort();
        self.cancel.cancel();
    }
}

fn log_prompts(shared: &Shared, id: &RequestId, planned: &VecDeque<Planned>) {
    for Planned { job, .. } in planned {
        let prompt = shared.served.text.tokenizer().decode(&job.prompt);
        tracing::info!(target: "moeflux::prompt", id = %id.0, prompt, "prompt");
    }
}
