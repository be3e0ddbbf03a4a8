//! Requests of the page about models: the catalogue, the running task, and what to do.
//!
//! **Invariant:** nothing is done for a client without the right to manage models, for a page of
//! another origin, or without the token of this start, which only a page of this server can read.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{self, HeaderName};
use axum::http::{Request, Response, StatusCode};
use moeflux_wire::{Failure, FailureKind};
use serde_json::{Value as Json, json};
use tokio::time::timeout;

use crate::http::body;
use crate::http::manager::{ManageRefusal, ManageResult, ModelManager, RefusalReason};
use crate::http::reply::{self, Problem};
use crate::http::routes::guard::{check_origin, host_of};
use crate::http::routes::rights::ManageRight;
use crate::http::shared::ServerState;

/// The header with the token of this start.
pub(crate) const START: HeaderName = HeaderName::from_static("x-moeflux-start");

/// Time that a request waits for others that read files or ask the hub.
const TURN_WAIT: Duration = Duration::from_secs(30);

/// Upper bound on the length of a model's id.
const ID_BYTES_MAX: usize = 512;

/// A request about models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ManageRequest {
    Catalogue,
    Task,
    Offer,
    Pull,
    Load,
    Remove,
    Cancel,
}

impl ManageRequest {
    /// Whether it changes nothing.
    pub(crate) fn is_reading(self) -> bool {
        matches!(self, Self::Catalogue | Self::Task)
    }
}

/// Serves a request about models.
pub(crate) async fn serve(
    server: &Arc<ServerState>,
    asked: ManageRequest,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let Some(manager) = server.manager.clone() else {
        let problem = "this server does not manage models";
        return Err(Failure::new(FailureKind::NotFound, problem).into());
    };
    let right = request.extensions().get::<ManageRight>().cloned();
    let ManageRight(right) = right.expect("the guard comes first");
    match asked {
        ManageRequest::Task => return Ok(reply::json(&task_json(&*manager))),
        ManageRequest::Catalogue => {
            let catalogue = in_turn(server, move || manager.catalogue()).await?;
            return Ok(reply::json(&catalogue.json(right.err().as_deref())));
        }
        _ => {}
    }
    let body = match admit(server, right, &request) {
        Ok(()) => {
            let wait = server.config.timeouts.body;
            body::read(request, &server.memory.bodies, wait).await?
        }
        Err(failure) => {
            body::discard(request).await;
            return Err(failure.into());
        }
    };
    let fields: Json = serde_json::from_slice(&body)
        .map_err(|error| Failure::new(FailureKind::Invalid, format!("the body: {error}")))?;
    if asked == ManageRequest::Offer {
        let id = model_of(&fields)?;
        let offer = in_turn(server, move || manager.offer(&id)).await?;
        return Ok(reply::json(&offer.json()));
    }
    let work: Box<dyn FnOnce() -> ManageResult<_> + Send> = match asked {
        ManageRequest::Cancel => Box::new(move || manager.cancel()),
        ManageRequest::Pull => {
            let n_bytes = fields["bytes"].as_u64();
            let id = model_of(&fields)?;
            let n_bytes = n_bytes.ok_or_else(|| {
                Failure::invalid("bytes", "must be the number of missing bytes of an offer")
            })?;
            Box::new(move || manager.pull(&id, n_bytes))
        }
        ManageRequest::Remove => {
            let id = model_of(&fields)?;
            Box::new(move || manager.remove(&id))
        }
        _ => {
            let id = model_of(&fields)?;
            Box::new(move || manager.load(&id))
        }
    };
    let task = in_turn(server, work).await?;
    let mut response = reply::json(&json!({"task": task.json()}));
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

fn task_json(manager: &dyn ModelManager) -> Json {
    json!({"task": manager.task().map(|task| task.json())})
}

/// Refuses a request that may not change anything.
fn admit(
    server: &ServerState,
    right: Result<(), String>,
    request: &Request<Body>,
) -> Result<(), Failure> {
    let headers = request.headers();
    let refused = |code, message: String| {
        let failure = Failure::new(FailureKind::Forbidden, message);
        Failure { code: Some(code), ..failure }
    };
    right.map_err(|reason| refused("manage_off", reason))?;
    // Pages of other origins are refused, even if they may use this server.
    check_origin(headers, host_of(request).as_deref(), "open the page of this server")
        .map_err(|failure| refused("manage_off", failure.message))?;
    let given = headers.get(START).map(|it| it.as_bytes()).unwrap_or_default();
    if !server.is_start(given) {
        let problem = "the token of this start is missing or of an earlier one: reload the page";
        return Err(refused("stale_start", problem.to_owned()));
    }
    // A form of another page could send a body without a type, or of another one.
    if !headers.contains_key(header::CONTENT_TYPE) {
        let problem = "the body has no content-type: send application/json";
        return Err(Failure::new(FailureKind::MediaType, problem));
    }
    Ok(())
}

fn model_of(fields: &Json) -> Result<String, Failure> {
    let id = fields["model"].as_str().filter(|id| (1..=ID_BYTES_MAX).contains(&id.len()));
    id.map(str::to_owned)
        .ok_or_else(|| Failure::invalid("model", "must be the id of a model, or OWNER/NAME"))
}

/// Runs work that may wait, when its turn comes.
async fn in_turn<T: Send + 'static>(
    server: &Arc<ServerState>,
    work: impl FnOnce() -> ManageResult<T> + Send + 'static,
) -> Result<T, Problem> {
    let turn = timeout(TURN_WAIT, Arc::clone(&server.managing).acquire_owned()).await;
    let Ok(Ok(turn)) = turn else {
        let problem = "another request about models takes long: try again";
        return Err(Failure::new(FailureKind::TooMany, problem).into());
    };
    let done = tokio::task::spawn_blocking(move || {
        let result = work();
        drop(turn);
        result
    });
    match done.await {
        Ok(result) => result.map_err(|refusal| failure(refusal).into()),
        Err(_) => Err(Failure::new(FailureKind::Internal, "the request has failed").into()),
    }
}

fn failure(refusal: ManageRefusal) -> Failure {
    let kind = match refusal.reason {
        RefusalReason::UnknownModel => FailureKind::NotFound,
        RefusalReason::Invalid => FailureKind::Invalid,
        _ => FailureKind::Conflict,
    };
    let code = Some(refusal.reason.code());
    Failure { code, ..Failure::new(kind, refusal.message) }
}
