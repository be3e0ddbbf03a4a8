//! What a client is told when its request cannot be served, in the shape of its dialect.
//!
//! **Invariant:** a refused field is named by its path (`messages[2].content[0].type`), in the
//! message and, where the dialect has room, beside it.

use std::fmt;

use serde_json::{Value as Json, json};

/// What a failure's path may show of a client's own keys.
const PATH_CHARACTERS_MAX: usize = 200;

/// Why a request is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Whose failure it is.
    pub kind: FailureKind,
    /// One line for people.
    pub message: String,
    /// The path of the field that is refused.
    pub field: Option<String>,
}

/// Whose failure it is, and what may be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// The request is wrong, or asks for something that is not supported.
    Invalid,
    /// The prompt and the answer do not fit into the context.
    ContextLength,
    /// The history is to be kept at the server, which keeps none.
    Threads,
    /// A key is missing or wrong.
    Unauthorized,
    /// This host or origin may not ask.
    Forbidden,
    /// There is no such path or model.
    NotFound,
    /// The path has other methods.
    MethodNotAllowed,
    /// The body is too long.
    TooLarge,
    /// The body is not JSON, by its own account.
    MediaType,
    /// Too many requests are waiting.
    TooMany,
    /// The engine failed.
    Internal,
    /// The model is being loaded, or the server shuts down.
    Unavailable,
}

impl FailureKind {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Invalid,
        Self::ContextLength,
        Self::Threads,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::TooLarge,
        Self::MediaType,
        Self::TooMany,
        Self::Internal,
        Self::Unavailable,
    ];

    /// One word for machines.
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
            Self::TooMany => "too_many",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
        }
    }

    /// Whether another request would have failed as well.
    #[must_use]
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Internal | Self::Unavailable)
    }

    /// The status of HTTP.
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
    /// A failure without a field.
    #[must_use]
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), field: None }
    }

    /// A field that is refused.
    #[must_use]
    pub fn invalid(path: &str, problem: impl fmt::Display) -> Self {
        let path = one_line(path.chars().take(PATH_CHARACTERS_MAX));
        let message = one_line(format!("`{path}`: {problem}").chars());
        Self { kind: FailureKind::Invalid, message, field: Some(path) }
    }

    /// A prompt and an answer that the context has no room for. Clients look for either phrase and
    /// then send a shorter history.
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

    /// A prompt that is longer than the context, and was not read to its end.
    #[must_use]
    pub fn beyond(n_context: usize) -> Self {
        let message = format!(
            "prompt is too long: {} tokens > {n_context} maximum, and it was read no further: this \
             model's maximum context length is {n_context} tokens",
            n_context.saturating_add(1)
        );
        Self::new(FailureKind::ContextLength, message)
    }

    /// The body of a response to a client of `OpenAI`'s dialects.
    #[must_use]
    pub fn openai(&self) -> Json {
        let error = json!({
            "message": self.message,
            "type": self.kind.openai_type(),
            "param": self.field,
            "code": self.kind.openai_code(),
        });
        json!({"error": error})
    }

    /// The body of a response to a client of Anthropic's dialect.
    #[must_use]
    pub fn anthropic(&self) -> Json {
        let mut error = json!({"type": self.kind.anthropic_type(), "message": self.message});
        if self.kind == FailureKind::Threads {
            // The SDK's tool runner then sends the whole history by itself.
            error["details"] = json!({"error_code": "thread_unsupported_request"});
        }
        json!({"type": "error", "error": error, "request_id": null})
    }
}

/// What a client wrote may hold line ends, which would break a line of the log.
fn one_line(text: impl Iterator<Item = char>) -> String {
    text.map(|it| if it.is_control() { ' ' } else { it }).collect()
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
