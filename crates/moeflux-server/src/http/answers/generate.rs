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

use crate::http::answers::deliver::{Delivery, ResponseMemory};
use crate::http::answers::prompt::{self, PromptJob};
use crate::http::answers::record::Record;
use crate::http::answers::run::RequestRun;
use crate::http::body;
use crate::http::memory::estimate::MemoryEstimate;
use crate::http::memory::pools::PoolReservation;
use crate::http::reply::{Problem, RequestId};
use crate::http::shared::ModelState;
use crate::http::sockets::half_close::HttpExchange;
use moeflux_wire::{EventWriter, Failure, FailureKind, Request, ResponseHead};
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
    fn parse(
        self,
        body: &[u8],
        head: ResponseHead,
    ) -> Result<(Request, Box<dyn EventWriter>), Failure> {
        Ok(match self {
            Self::Chat => {
                let (request, options) = chat::parse(body)?;
                (request, Box::new(chat::ChatWriter::new(options, head)))
            }
            Self::Completions => {
                let (request, options) = completions::parse(body)?;
                (request, Box::new(completions::CompletionsWriter::new(options, head)))
            }
            Self::Responses => {
                let (request, options) = responses::parse(body)?;
                (request, Box::new(responses::ResponsesWriter::new(options, head)))
            }
            Self::Messages => {
                let (request, options) = messages::parse(body)?;
                (request, Box::new(messages::MessagesWriter::new(options, head)))
            }
        })
    }
}

/// A request whose jobs are ready to be submitted.
struct PreparedRequest {
    prompt_jobs: VecDeque<PromptJob>,
    writer: Box<dyn EventWriter>,
    is_streamed: bool,
    ignored: Vec<String>,
    serving_bytes: usize,
}

/// Answers a request.
pub(crate) async fn answer(
    state: Arc<ModelState>,
    (dialect, owner): (Dialect, Owner),
    request: HttpRequest<Body>,
    id: &RequestId,
) -> Result<Response<Body>, Problem> {
    let mut record = Record::new(id, dialect.name());
    let exchange = request.extensions().get::<Arc<HttpExchange>>().cloned();
    let (prepared, reservation) = match prepare(&state, (dialect, owner), request, id).await {
        Ok(prepared) => prepared,
        Err(problem) => {
            record.failed(&problem);
            return Err(problem);
        }
    };
    record.ignored(&prepared.ignored);
    let timeouts = state.server.config.timeouts.clone();
    let pool = state.server.memory.serving.clone();
    let memory = ResponseMemory::new(pool, reservation, dialect.score_bytes());
    let run = RequestRun::new(state, prepared.prompt_jobs, record);
    let PreparedRequest { writer, is_streamed, .. } = prepared;
    let delivery = Delivery::new(run, (writer, is_streamed), timeouts, memory);
    delivery.with_exchange(exchange).respond().await
}

async fn prepare(
    state: &Arc<ModelState>,
    (dialect, owner): (Dialect, Owner),
    request: HttpRequest<Body>,
    id: &RequestId,
) -> Result<(PreparedRequest, PoolReservation), Problem> {
    let wait = state.server.config.timeouts.body;
    let body = body::read(request, &state.server.memory.bodies, wait).await?;
    let size = body.size;
    let pool = &state.server.memory.reading;
    let reading = pool.reserve(&size.shown(), size.reading_bytes(), wait).await?;
    let id = id.clone();
    let prepare = move |state: &ModelState, cancel: &Cancel| {
        let (request, writer) = dialect.parse(&body, state.head())?;
        // The memory is free for the bodies of other requests now.
        drop(body);
        let estimate = MemoryEstimate::of(size, &request);
        let is_streamed = request.is_streamed;
        let ignored = request.ignored.names().map(str::to_owned).collect();
        let limit = TextLimit {
            n_bytes_max: size.text_bytes_max(),
            n_tokens_max: state.served.service.context(),
            cancel: cancel.clone(),
        };
        let prompt_jobs = prompt::plan(state, owner, (request, &limit))?;
        if state.server.config.log_prompts {
            log_prompts(state, &id, &prompt_jobs);
        }
        let n_tokens = prompt_jobs.iter().map(|it| it.job.prompt.len()).sum();
        let n_echo_bytes =
            prompt_jobs.iter().filter_map(|it| it.echo.as_ref()).map(String::len).sum();
        let serving_bytes = estimate.bytes(n_tokens, n_echo_bytes);
        // The memory is held as long as the data that it was taken for, even if the client is gone.
        Ok((PreparedRequest { prompt_jobs, writer, is_streamed, ignored, serving_bytes }, reading))
    };
    let (prepared, reading) = run_blocking(state, prepare).await?;
    let what = "the prompt of this request and its pending output";
    let reservation =
        state.server.memory.serving.reserve(what, prepared.serving_bytes, wait).await?;
    drop(reading);
    Ok((prepared, reservation))
}

/// Does CPU-bound work on a separate thread. If the caller no longer waits, the work is not begun,
/// or is cancelled.
pub(crate) async fn run_blocking<T: Send + 'static>(
    state: &Arc<ModelState>,
    work: impl FnOnce(&ModelState, &Cancel) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let state = Arc::clone(state);
    let broken = |_| {
        let problem = "internal error in preparing the request: please report it";
        Failure::new(FailureKind::Internal, problem)
    };
    let cancel = Cancel::default();
    let task_cancel = cancel.clone();
    let task = tokio::task::spawn_blocking(move || work(&state, &task_cancel));
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

fn log_prompts(state: &ModelState, id: &RequestId, prompt_jobs: &VecDeque<PromptJob>) {
    for PromptJob { job, .. } in prompt_jobs {
        let prompt = state.served.text.tokenizer().decode(&job.prompt);
        tracing::info!(target: "moeflux::prompt", id = %id.0, prompt, "prompt");
    }
}
