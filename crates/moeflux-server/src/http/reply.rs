//! Responses, and refusals in the format that the client's SDK expects.
//!
//! **Invariant:** a body is labelled with its type. This module knows only the path and the headers
//! of a request.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{HeaderMap, Response, StatusCode};
use moeflux::{Error, Fault};
use moeflux_schedule::Refusal;
use serde_json::Value as Json;

use moeflux_wire::{Failure, FailureKind};

/// The header that identifies a request, in all dialects but one.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The same header in Anthropic's API.
pub(crate) const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// The API whose format a failure has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    OpenAi,
    Anthropic,
}

impl Family {
    /// Returns the family of a request. Anthropic's clients also request the list of models, and
    /// then identify themselves by a header.
    pub(crate) fn of(path: &str, headers: &HeaderMap) -> Self {
        let is_messages = path == "/v1/messages" || path.starts_with("/v1/messages/");
        if is_messages || headers.contains_key("anthropic-version") {
            Self::Anthropic
        } else {
            Self::OpenAi
        }
    }
}

/// The id of a request, for the log and for its client.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) String);

/// The reason for which there is no answer.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) failure: Failure,
    /// Time after which a retry makes sense.
    pub(crate) retry_after: Option<Duration>,
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        Self { failure, retry_after: None }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::QueueFull { n_waiting, retry_after } => {
                let message = format!("the queue is full ({n_waiting} requests): try again later");
                let failure = Failure::new(FailureKind::TooMany, message);
                Self { failure, retry_after: Some(retry_after) }
            }
            Refusal::TooLong { n_prompt_tokens, n_answer_tokens, n_context } => {
                Failure::too_long(n_prompt_tokens, n_answer_tokens, n_context).into()
            }
            Refusal::Paused => {
                let message = "another model is being loaded: send the request again";
                let failure = Failure::new(FailureKind::Unavailable, message);
                Self { failure, retry_after: Some(Duration::from_secs(1)) }
            }
            Refusal::Invalid(error) => failure_of(&error).into(),
            _ => closed().into(),
        }
    }
}

/// Returns the failure of a server that is shutting down.
pub(crate) fn closed() -> Failure {
    Failure::new(FailureKind::Unavailable, "this server is shutting down: try another one")
}

/// Converts an error of the engine to a failure for the client.
pub(crate) fn failure_of(error: &Error) -> Failure {
    let kind = match (error, error.fault()) {
        (Error::Cancelled, _) => return closed(),
        (Error::TooManyTokens { n_tokens_max }, _) => {
            return Failure::beyond_context(*n_tokens_max);
        }
        // A template that refuses a conversation gives the reason.
        (Error::Unsupported(_), _) | (_, Fault::Caller) => FailureKind::Invalid,
        (_, Fault::Machine) => FailureKind::Unavailable,
        _ => FailureKind::Internal,
    };
    Failure::new(kind, error.to_string())
}

/// Makes a response with JSON.
pub(crate) fn json(json: &Json) -> Response<Body> {
    text("application/json", json.to_string())
}

/// Makes a response with a text of this type.
pub(crate) fn text(kind: &'static str, text: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Makes a response with server-sent events.
pub(crate) fn events(body: Body) -> Response<Body> {
    let mut response = text("text/event-stream", body);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Without this header, nginx buffers a stream before it forwards it.
    let no = HeaderValue::from_static("no");
    headers.insert(HeaderName::from_static("x-accel-buffering"), no);
    response
}

/// The reason for a refusal, for the log and the counters.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) kind: FailureKind,
    /// The refused field.
    pub(crate) field: Option<String>,
}

/// Makes a refusal.
pub(crate) fn refusal(family: Family, id: &RequestId, problem: &Problem) -> Response<Body> {
    let failure = &problem.failure;
    let body = match family {
        Family::OpenAi => failure.openai(),
        Family::Anthropic => {
            let mut body = failure.anthropic();
            body["request_id"] = id.0.as_str().into();
            body
        }
    };
    let mut response = json(&body);
    let status = StatusCode::from_u16(failure.kind.status());
    *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let refused = Refused { kind: failure.kind, field: failure.field.clone() };
    response.extensions_mut().insert(refused);
    let headers = response.headers_mut();
    if let Some(retry_after) = problem.retry_after {
        // Whole seconds, and never 0: a client would retry at once.
        let seconds = retry_after.as_secs().saturating_add(1);
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if failure.kind == FailureKind::Unauthorized {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
