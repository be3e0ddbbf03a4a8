//! Requests for answers, in each dialect.
//!
//! **Invariant:** parsing and tokenising do not hold up the thread that serves connections.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request as HttpRequest, Response};
use moeflux_schedule::Owner;
use tokio::task::JoinHandle;

use crate::http::body;
use crate::http::closing::Exchange;
use crate::http::deliver::Delivery;
use crate::http::prompt::{self, Planned};
use crate::http::record::Record;
use crate::http::reply::{Problem, RequestId};
use crate::http::run::Run;
use crate::http::shared::Shared;
use crate::wire::{Failure, FailureKind, Head, Request, Writer};
use crate::wire::{chat, completions, messages, responses};

/// Whose API a request speaks.
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

    /// A request, and what writes its response.
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

/// A request that can be run.
struct Prepared {
    planned: VecDeque<Planned>,
    writer: Box<dyn Writer>,
    is_streamed: bool,
    ignored: Vec<String>,
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
    let prepared = match prepare(&shared, (dialect, owner), request, id).await {
        Ok(prepared) => prepared,
        Err(problem) => {
            record.failed(&problem);
            return Err(problem);
        }
    };
    record.ignored(&prepared.ignored);
    let timeouts = shared.config.timeouts.clone();
    let run = Run::new(shared, prepared.planned, record);
    let delivery = Delivery::new(run, prepared.writer, prepared.is_streamed, timeouts);
    delivery.on(exchange).respond().await
}

async fn prepare(
    shared: &Arc<Shared>,
    (dialect, owner): (Dialect, Owner),
    request: HttpRequest<Body>,
    id: &RequestId,
) -> Result<Prepared, Problem> {
    let body = body::read(request, &shared.bodies, shared.config.timeouts.body).await?;
    let id = id.clone();
    let prepare = move |shared: &Shared| {
        let (request, writer) = dialect.parse(&body, shared.head())?;
        let is_streamed = request.is_streamed;
        let ignored = request.ignored.names().map(str::to_owned).collect();
        let planned = prompt::plan(shared, owner, request)?;
        if shared.config.log_prompts {
            log_prompts(shared, &id, &planned);
        }
        Ok(Prepared { planned, writer, is_streamed, ignored })
    };
    Ok(beside(shared, prepare).await?)
}

/// Does work that takes a core for a while on a thread of its own. Where nobody waits for it any
/// more, it is not begun.
pub(crate) async fn beside<T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Shared) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let shared = Arc::clone(shared);
    let broken = |_| {
        let problem = "the request broke a promise of this program: please report it";
        Failure::new(FailureKind::Internal, problem)
    };
    let mut done = AbortOnDrop(tokio::task::spawn_blocking(move || work(&shared)));
    (&mut done.0).await.map_err(broken)?
}

struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn log_prompts(shared: &Shared, id: &RequestId, planned: &VecDeque<Planned>) {
    for Planned { job, .. } in planned {
        let prompt = shared.served.text.tokenizer().decode(&job.prompt);
        tracing::info!(target: "moeflux::prompt", id = %id.0, prompt, "prompt");
    }
}
