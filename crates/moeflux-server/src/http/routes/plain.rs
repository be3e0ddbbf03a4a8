//! Requests that need no engine: models, tokens, and the server's own state.
//!
//! **Invariant:** texts are processed off the threads that serve, as for answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path};
use axum::http::{Request, Response, StatusCode};
use moeflux::sample::SamplerConfig;
use moeflux::{Cancel, TextLimit};
use moeflux_schedule::{Owner, State};
use serde_json::{Value as Json, json};

use crate::http::answers::generate::run_blocking;
use crate::http::answers::prompt;
use crate::http::body;
use crate::http::reply::{self, Problem};
use crate::http::shared::ModelState;
use crate::metrics;
use crate::openapi;
use crate::process;
use moeflux_wire::{self as wire, Failure, FailureKind, Ignored, Prompt};
use moeflux_wire::{chat, messages, models, responses, tokens};

/// A question about a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    CountTokens,
    CountInput,
    Tokenize,
    Detokenize,
    Template,
}

/// Answers a question about a text.
pub(crate) async fn ask(
    state: &Arc<ModelState>,
    (question, owner): (Question, Owner),
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let path = request.uri().path().to_owned();
    let wait = state.server.config.timeouts.body;
    let body = body::read(request, &state.server.memory.bodies, wait).await?;
    let size = body.size;
    let pool = &state.server.memory.reading;
    let reading = pool.reserve(&size.shown(), size.counting_bytes(), wait).await?;
    let work = move |state: &ModelState, cancel: &Cancel| {
        let n_bytes_max = size.text_bytes_max();
        let all = TextLimit { n_bytes_max, cancel: cancel.clone(), ..TextLimit::default() };
        let limit = TextLimit { n_tokens_max: state.served.service.context(), ..all.clone() };
        let (found, ignored) = match question {
            Question::CountTokens => count_tokens(state, owner, (&body, &all))?,
            Question::CountInput => count_input(state, owner, (&body, &all))?,
            Question::Tokenize => {
                let (prompt, ignored) = tokens::parse_tokenize(&body)?;
                let found = prompt::tokens(state, owner, (&prompt, &limit))?;
                (tokens::tokenized(&found, state.served.service.context()), ignored)
            }
            Question::Detokenize => {
                let (found, ignored) = tokens::parse_detokenize(&body)?;
                prompt::check_tokens("tokens", &found, state.served.text.tokenizer())?;
                let text = state.served.text.tokenizer().decode(&found);
                (tokens::detokenized(&text), ignored)
            }
            Question::Template => {
                let request = chat::parse(&body)?.0;
                let Prompt::Chat(conversation, options) = &request.prompt else {
                    return Err(Failure::invalid("messages", "is missing"));
                };
                let prompt = prompt::render(state, conversation, options, &limit)?;
                (tokens::templated(&prompt.text), request.ignored)
            }
        };
        log_ignored(&path, &ignored);
        Ok((found, reading))
    };
    let (found, _reading) = run_blocking(state, work).await?;
    Ok(reply::json(&found))
}

fn count_tokens(
    state: &ModelState,
    owner: Owner,
    (body, limit): (&[u8], &TextLimit),
) -> Result<(Json, Ignored), Failure> {
    let request = messages::parse_to_count(body)?;
    let n_tokens = counted(state, owner, (&request, limit))?;
    Ok((messages::token_count(n_tokens), request.ignored))
}

fn count_input(
    state: &ModelState,
    owner: Owner,
    (body, limit): (&[u8], &TextLimit),
) -> Result<(Json, Ignored), Failure> {
    let request = responses::parse_to_count(body)?;
    let n_tokens = counted(state, owner, (&request, limit))?;
    Ok((responses::token_count(n_tokens), request.ignored))
}

/// Returns the number of tokens in a request's prompt.
fn counted(
    state: &ModelState,
    owner: Owner,
    (request, limit): (&wire::Request, &TextLimit),
) -> Result<usize, Failure> {
    state.check_name(request.model.as_deref())?;
    Ok(prompt::tokens(state, owner, (&request.prompt, limit))?.len())
}

/// Logs fields without effect; requests for answers list these in their own line.
fn log_ignored(path: &str, ignored: &Ignored) {
    let names: Vec<&str> = ignored.names().collect();
    if !names.is_empty() {
        tracing::info!(target: "moeflux::request", path, ignored = names.join(" "), "question");
    }
}

/// Lists the model under each of its names.
pub(crate) fn models(state: &ModelState) -> Response<Body> {
    let models: Vec<_> =
        state.served.model.names.iter().map(|name| model_of(state, name)).collect();
    reply::json(&models::list(&models))
}

/// Describes the model of a name; as elsewhere, unknown names stand for the served model.
pub(crate) async fn model(
    state: &ModelState,
    request: Request<Body>,
) -> Result<Response<Body>, Failure> {
    let (mut parts, _) = request.into_parts();
    let Ok(Path(name)) = Path::<String>::from_request_parts(&mut parts, &()).await else {
        let problem = "the name of the model is not valid UTF-8";
        return Err(Failure::new(FailureKind::NotFound, problem));
    };
    state.check_name(Some(&name))?;
    let own = state.served.model.names.iter().find(|own| **own == name);
    Ok(reply::json(&model_of(state, own.map_or(state.name(), |own| own)).json()))
}

fn model_of(state: &ModelState, name: &str) -> models::ModelEntry {
    models::ModelEntry {
        id: name.to_owned(),
        created_s: state.served.model.created_s,
        n_context: state.served.service.context(),
    }
}

/// Reports whether requests are answered, and nothing else.
pub(crate) fn health(state: &ModelState) -> Response<Body> {
    let (status, word) = match state.served.service.state() {
        State::Loading => (StatusCode::SERVICE_UNAVAILABLE, "loading"),
        State::Broken => (StatusCode::SERVICE_UNAVAILABLE, "broken"),
        State::Closed => (StatusCode::SERVICE_UNAVAILABLE, "closed"),
        _ => (StatusCode::OK, "ok"),
    };
    let mut response = reply::json(&json!({"status": word}));
    *response.status_mut() = status;
    response
}

/// Returns the counters for Prometheus.
pub(crate) fn metrics(state: &ModelState) -> Response<Body> {
    let text = metrics::text(
        state.name(),
        &state.served.service.stats(),
        (&state.server.slots.counts(), &state.server.refusals),
        state.n_replayed.load(Ordering::Relaxed),
    );
    let text = text + &process::text();
    reply::text("text/plain; version=0.0.4; charset=utf-8", text)
}

/// Describes the served model, with the field names that clients of llama.cpp look for.
pub(crate) fn props(state: &ModelState) -> Response<Body> {
    let n_context = state.served.service.context();
    let mut props = json!({
        "model": state.name(),
        "model_names": state.served.model.names,
        "version": env!("CARGO_PKG_VERSION"),
        "max_model_len": n_context,
        "default_generation_settings": {
            "n_ctx": n_context,
            "params": sampling_params(&state.text().sampling(0)),
        },
        "has_chat_template": state.chat.has_template(),
        "chat_template_caps": {
            "supports_tools": state.chat.reads_calls(),
            "supports_thinking": state.has_thinking_switch,
        },
    });
    for (key, value) in &state.served.model.about {
        props[key.as_str()] = value.clone();
    }
    reply::json(&props)
}

/// Returns the sampling settings of a request that gives none.
fn sampling_params(own: &SamplerConfig) -> Json {
    // As people write it: 0.7 rather than 0.699999988.
    let decimal = |value: f32| value.to_string().parse::<f64>().unwrap_or_else(|_| value.into());
    json!({
        "temperature": decimal(own.temperature),
        "top_k": own.top_k,
        "top_p": decimal(own.top_p),
        "min_p": decimal(own.min_p),
        "repeat_penalty": decimal(own.repetition_penalty),
        "presence_penalty": decimal(own.presence_penalty),
        "frequency_penalty": decimal(own.frequency_penalty),
    })
}

/// Returns the description of the interface.
pub(crate) fn document() -> Response<Body> {
    reply::text("application/json", openapi::DOCUMENT)
}

/// Identifies the server to people who ask it without a browser.
pub(crate) fn index(state: &ModelState) -> Response<Body> {
    let line = format!(
        "moeflux {} serves {}; see /openapi.json for the API\n",
        env!("CARGO_PKG_VERSION"),
        state.name()
    );
    reply::text("text/plain; charset=utf-8", line)
}
