//! Responses, and refusals in the shape that the client's SDK reads.
//!
//! **Invariant:** a body is JSON or a plain text, and says so. Knows no request but its path.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{HeaderMap, Response, StatusCode};
use moeflux::{Error, Fault};
use moeflux_schedule::Refusal;
use serde_json::Value as Json;

use moeflux_wire::{Failure, FailureKind};

/// The header that names a request, in all dialects but one.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The same of Anthropic's API.
pub(crate) const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Whose shape a failure has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    OpenAi,
    Anthropic,
}

impl Family {
    /// Anthropic's clients also ask for the list of models, and then say that they are.
    pub(crate) fn of(path: &str, headers: &HeaderMap) -> Self {
        let is_messages = path == "/v1/messages" || path.starts_with("/v1/messages/");
        if is_messages || headers.contains_key("anthropic-version") {
            Self::Anthropic
        } else {
            Self::OpenAi
        }
    }
}

/// How a request is named in the log and to its client.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) String);

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) failure: Failure,
    /// When it makes sense to ask again.
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
                let message = format!("{n_waiting} requests wait already: try again later");
                let failure = Failure::new(FailureKind::TooMany, message);
                Self { failure, retry_after: Some(retry_after) }
            }
            Refusal::TooLong { n_prompt_tokens, n_answer_tokens, n_context } => {
                Failure::too_long(n_prompt_tokens, n_answer_tokens, n_context).into()
            }
            Refusal::Invalid(error) => failure_of(&error).into(),
            _ => closed().into(),
        }
    }
}

/// A server that shuts down.
pub(crate) fn closed() -> Failure {
    Failure::new(FailureKind::Unavailable, "this server is shutting down: try another one")
}

/// What a client is told of an error of the engine.
pub(crate) fn failure_of(error: &Error) -> Failure {
    let kind = match (error, error.fault()) {
        (Error::Cancelled, _) => return closed(),
        (Error::TooManyTokens { n_tokens_max }, _) => return Failure::beyond(*n_tokens_max),
        // A template that refuses a conversation says so.
        (Error::Unsupported(_), _) | (_, Fault::Caller) => FailureKind::Invalid,
        (_, Fault::Machine) => FailureKind::Unavailable,
        _ => FailureKind::Internal,
    };
    Failure::new(kind, error.to_string())
}

/// A response with JSON.
pub(crate) fn json(json: &Json) -> Response<Body> {
    text("application/json", json.to_string())
}

/// A response with a text of this type.
pub(crate) fn text(kind: &'static str, text: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Why a response is a refusal, for the log and the counts.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) kind: FailureKind,
    /// The field that is refused.
    pub(crate) field: Option<String>,
}

/// A refusal.
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
        // Whole seconds, and never 0: a client would ask again at once.
        let seconds = retry_after.as_secs().saturating_add(1);
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if failure.kind == FailureKind::Unauthorized {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
