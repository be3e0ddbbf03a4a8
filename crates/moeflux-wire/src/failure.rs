//! Errors for clients whose request cannot be served, in the shape of each dialect.
//!
//! **Invariant:** a refused field is named by its path (`messages[2].content[0].type`) in the
//! message and, where the dialect has a field for it, separately.

use std::fmt;

use serde_json::{Value as Json, json};

/// Maximum length of a failure's path in characters, because it may contain a client's own keys.
const PATH_CHARACTERS_MAX: usize = 200;

/// The reason why a request is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind of failure.
    pub kind: FailureKind,
    /// One line for people to read.
    pub message: String,
    /// The path of the refused field.
    pub field: Option<String>,
    /// What programs distinguish it by, if the kind says too little.
    pub code: Option<&'static str>,
}

/// The kind of a failure, which determines its status and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// The request is malformed, or asks for something unsupported.
    Invalid,
    /// The prompt and the answer do not fit into the context.
    ContextLength,
    /// The request wants the server to store the history, which is unsupported.
    Threads,
    /// A key is missing or wrong.
    Unauthorized,
    /// This host or origin is not allowed.
    Forbidden,
    /// The path or model does not exist.
    NotFound,
    /// The path does not support this method.
    MethodNotAllowed,
    /// The body is too large.
    TooLarge,
    /// The content type of the body is not JSON.
    MediaType,
    /// The request does not fit the present state, such as a task that runs.
    Conflict,
    /// Too many requests are waiting.
    TooMany,
    /// The engine failed.
    Internal,
    /// The model is being loaded, or the server shuts down.
    Unavailable,
}

impl FailureKind {
    /// All kinds.
    pub const ALL: [Self; 13] = [
        Self::Invalid,
        Self::ContextLength,
        Self::Threads,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::TooLarge,
        Self::MediaType,
        Self::Conflict,
        Self::TooMany,
        Self::Internal,
        Self::Unavailable,
    ];

    /// Returns the name for logs and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::ContextLength => "context_length",
            Self::Threads => "threads",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method",
            Self::TooLarge => "too_large",
            Self::MediaType => "media_type",
            Self::Conflict => "conflict",
            Self::TooMany => "too_many",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
        }
    }

    /// Returns whether the server is at fault, so that any other request would fail as well.
    #[must_use]
    pub fn is_server_fault(self) -> bool {
        matches!(self, Self::Internal | Self::Unavailable)
    }

    /// Returns the HTTP status.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::Invalid | Self::ContextLength | Self::Threads => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::TooLarge => 413,
            Self::MediaType => 415,
            Self::Conflict => 409,
            Self::TooMany => 429,
            Self::Internal => 500,
            Self::Unavailable => 503,
        }
    }

    fn openai_type(self) -> &'static str {
        match self {
            Self::Unauthorized => "authentication_error",
            Self::Forbidden => "permission_error",
            Self::TooMany => "rate_limit_error",
            Self::Internal | Self::Unavailable => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn openai_code(self) -> Option<&'static str> {
        match self {
            Self::ContextLength => Some("context_length_exceeded"),
            Self::Unauthorized => Some("invalid_api_key"),
            Self::NotFound => Some("not_found"),
            Self::TooMany => Some("rate_limit_exceeded"),
            _ => None,
        }
    }

    fn anthropic_type(self) -> &'static str {
        match self {
            Self::Unauthorized => "authentication_error",
            Self::Forbidden => "permission_error",
            Self::NotFound => "not_found_error",
            Self::TooLarge => "request_too_large",
            Self::TooMany => "rate_limit_error",
            Self::Internal => "api_error",
            Self::Unavailable => "overloaded_error",
            _ => "invalid_request_error",
        }
    }
}

impl Failure {
    /// Creates a failure without a field.
    #[must_use]
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), field: None, code: None }
    }

    /// Creates a failure for a refused field.
    #[must_use]
    pub fn invalid(path: &str, problem: impl fmt::Display) -> Self {
        let path = one_line(path.chars().take(PATH_CHARACTERS_MAX));
        let message = one_line(format!("`{path}`: {problem}").chars());
        Self { field: Some(path), ..Self::new(FailureKind::Invalid, message) }
    }

    /// Creates a failure for a prompt and an answer that do not fit into the context. Clients look
    /// for either phrase in its message and then send a shorter history.
    #[must_use]
    pub fn too_long(n_prompt_tokens: usize, n_answer_tokens: usize, n_context: usize) -> Self {
        let n_tokens = n_prompt_tokens.saturating_add(n_answer_tokens);
        let message = format!(
            "prompt is too long: {n_tokens} tokens > {n_context} maximum: this model's maximum \
             context length is {n_context} tokens, and the request has {n_prompt_tokens} in the \
             prompt and {n_answer_tokens} for the answer"
        );
        Self::new(FailureKind::ContextLength, message)
    }

    /// Creates a failure for a prompt that is longer than the context and was not read to its end.
    #[must_use]
    pub fn beyond_context(n_context: usize) -> Self {
        let message = format!(
            "prompt is too long: {} tokens > {n_context} maximum, and it was read no further: this \
             model's maximum context length is {n_context} tokens",
            n_context.saturating_add(1)
        );
        Self::new(FailureKind::ContextLength, message)
    }

    /// Returns the response body for clients of `OpenAI`'s dialects.
    #[must_use]
    pub fn openai(&self) -> Json {
        let error = json!({
            "message": self.message,
            "type": self.kind.openai_type(),
            "param": self.field,
            "code": self.code.or(self.kind.openai_code()),
        });
        json!({"error": error})
    }

    /// Returns the response body for clients of Anthropic's dialect.
    #[must_use]
    pub fn anthropic(&self) -> Json {
        let mut error = json!({"type": self.kind.anthropic_type(), "message": self.message});
        if self.kind == FailureKind::Threads {
            // The SDK's tool runner reacts to this by sending the whole history.
            error["details"] = json!({"error_code": "thread_unsupported_request"});
        }
        json!({"type": "error", "error": error, "request_id": null})
    }
}

/// Replaces control characters, because line ends in a client's text would break a log line.
fn one_line(text: impl Iterator<Item = char>) -> String {
    text.map(|it| if it.is_control() { ' ' } else { it }).collect()
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
