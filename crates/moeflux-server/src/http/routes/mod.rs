//! The table of paths and operations, from which the router is made.
//!
//! **Invariant:** every failure has the format of its dialect.

mod page;
mod rights;
pub(crate) mod guard;
mod plain;
mod machine;
mod manage;
mod suggestion;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, Response};
use axum::middleware;
use axum::routing::{MethodRouter, get, post};
use moeflux_schedule::Owner;

use crate::http::answers::generate::{self, Dialect};
use crate::http::body;
use crate::http::reply::{self, Family, Problem, RequestId};
use crate::http::routes::guard::{Entrance, Guard, HasLogLine, OPEN_PATH};
use crate::http::routes::manage::ManageRequest;
use crate::http::routes::page::INDEX_PATH;
use crate::http::routes::plain::Question;
use crate::http::routes::suggestion::suggested_path;
use crate::http::shared::CurrentModel;
use moeflux_wire::{Failure, FailureKind};

/// The operation of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Answer(Dialect),
    Ask(Question),
    Models,
    Model,
    Health,
    Metrics,
    Props,
    Machine,
    Experts,
    Manage(ManageRequest),
    Document,
    Index,
    PageFile,
}

impl Operation {
    fn method(self) -> Method {
        match self {
            Self::Answer(_) | Self::Ask(_) => Method::POST,
            Self::Manage(asked) if !asked.is_reading() => Method::POST,
            _ => Method::GET,
        }
    }
}

/// Paths in the notation of `OpenAPI`. The name of a model may contain slashes, and so may the path
/// of a file.
const ROUTES: [(&str, Operation); 26] = [
    ("/v1/chat/completions", Operation::Answer(Dialect::Chat)),
    ("/v1/completions", Operation::Answer(Dialect::Completions)),
    ("/v1/responses", Operation::Answer(Dialect::Responses)),
    ("/v1/responses/input_tokens", Operation::Ask(Question::CountInput)),
    ("/v1/messages", Operation::Answer(Dialect::Messages)),
    ("/v1/messages/count_tokens", Operation::Ask(Question::CountTokens)),
    ("/v1/models", Operation::Models),
    ("/v1/models/{id}", Operation::Model),
    ("/tokenize", Operation::Ask(Question::Tokenize)),
    ("/detokenize", Operation::Ask(Question::Detokenize)),
    ("/apply-template", Operation::Ask(Question::Template)),
    (OPEN_PATH, Operation::Health),
    ("/metrics", Operation::Metrics),
    ("/props", Operation::Props),
    ("/moeflux/machine", Operation::Machine),
    ("/moeflux/experts", Operation::Experts),
    ("/moeflux/models", Operation::Manage(ManageRequest::Catalogue)),
    ("/moeflux/task", Operation::Manage(ManageRequest::Task)),
    ("/moeflux/offer", Operation::Manage(ManageRequest::Offer)),
    ("/moeflux/pull", Operation::Manage(ManageRequest::Pull)),
    ("/moeflux/load", Operation::Manage(ManageRequest::Load)),
    ("/moeflux/remove", Operation::Manage(ManageRequest::Remove)),
    ("/moeflux/cancel", Operation::Manage(ManageRequest::Cancel)),
    ("/openapi.json", Operation::Document),
    (INDEX_PATH, Operation::Index),
    ("/page/{path}", Operation::PageFile),
];

/// Routes all paths, behind the guard of a socket.
pub(crate) fn router(current: &CurrentModel, entrance: Entrance) -> Router {
    let mut router = Router::new();
    for (path, operation) in ROUTES {
        let path = path.replace('{', "{*");
        router = router.route(&path, method_router(current, operation));
    }
    let state = Guard { server: Arc::clone(&current.get().server), entrance };
    router
        .fallback(|request: Request<Body>| async move {
            let problem = match suggested_path(request.uri().path()) {
                Some(path) => format!("does not exist here: did you mean `{path}`?"),
                None => "does not exist here: see /openapi.json".to_owned(),
            };
            refuse(request, FailureKind::NotFound, &problem).await
        })
        .method_not_allowed_fallback(|request: Request<Body>| async move {
            let problem = format!("takes {} only", method_of(request.uri().path()));
            refuse(request, FailureKind::MethodNotAllowed, &problem).await
        })
        .layer(middleware::from_fn_with_state(state, guard::guard))
        .layer(middleware::from_fn(page::policy))
}

/// Returns the method of an existing path.
fn method_of(path: &str) -> Method {
    let route = ROUTES.iter().find(|(known, _)| *known == path);
    route.map_or(Method::GET, |(_, operation)| operation.method())
}

fn method_router(current: &CurrentModel, operation: Operation) -> MethodRouter {
    let current = current.clone();
    let handler = move |request: Request<Body>| serve(current.clone(), operation, request);
    if operation.method() == Method::POST { post(handler) } else { get(handler) }
}

async fn serve(
    current: CurrentModel,
    operation: Operation,
    request: Request<Body>,
) -> Response<Body> {
    let state = current.get();
    let (family, id, owner) = known(&request);
    let served = match operation {
        Operation::Answer(dialect) => generate::answer(state, (dialect, owner), request, &id).await,
        Operation::Ask(question) => plain::ask(&state, (question, owner), request).await,
        Operation::Model => plain::model(&state, request).await.map_err(Problem::from),
        Operation::Models => Ok(plain::models(&state)),
        Operation::Health => Ok(plain::health(&state)),
        Operation::Metrics => Ok(plain::metrics(&state)),
        Operation::Props => Ok(plain::props(&state)),
        Operation::Machine => machine::watch(current, &request),
        Operation::Experts => machine::experts(&state).await,
        Operation::Manage(asked) => manage::serve(&state.server, asked, request).await,
        Operation::Document => Ok(plain::document()),
        Operation::Index if page::is_requested(&request) => {
            Ok(page::index(request.headers(), state.server.start_of_page()))
        }
        Operation::Index => Ok(plain::index(&state)),
        Operation::PageFile => {
            page::asset(request.uri().path(), request.headers()).map_err(Problem::from)
        }
    };
    served.unwrap_or_else(|problem| {
        let mut response = reply::refusal(family, &id, &problem);
        if matches!(operation, Operation::Answer(_)) {
            response.extensions_mut().insert(HasLogLine);
        }
        response
    })
}

async fn refuse(request: Request<Body>, kind: FailureKind, problem: &str) -> Response<Body> {
    let (family, id, _) = known(&request);
    let path = guard::shown_path(&request);
    let problem = format!("{} `{path}`: the path {problem}", request.method());
    body::discard(request).await;
    reply::refusal(family, &id, &Failure::new(kind, problem).into())
}

/// Returns the request's properties that the guard has stored.
fn known(request: &Request<Body>) -> (Family, RequestId, Owner) {
    let extensions = request.extensions();
    let family = extensions.get::<Family>().copied().expect("the guard comes first");
    let id = extensions.get::<RequestId>().cloned().expect("the guard comes first");
    let owner = extensions.get::<Owner>().copied().expect("the guard comes first");
    (family, id, owner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value as Json;

    use super::*;
    use crate::openapi;

    #[test]
    fn suggested_paths_exist() {
        // `suggested_path` is asked about `/` only if there is no such route.
        let is_whole = |path: &str| path != INDEX_PATH && !path.contains('{');
        for (path, _) in ROUTES.into_iter().filter(|(path, _)| is_whole(path)) {
            assert_eq!(suggested_path(path), None, "{path}");
        }
        for wrong in ["/chat", "/v1/tokenize", "/api/show", "/api/version", "/completion", "/v1"] {
            let found = suggested_path(wrong).unwrap();
            assert!(ROUTES.iter().any(|(path, _)| *path == found), "{found}");
        }
    }

    #[test]
    fn the_document_has_every_path() {
        let document: Json = serde_json::from_str(openapi::DOCUMENT).unwrap();
        let mut described = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                described.insert((path.clone(), method.clone()));
            }
        }
        let route = |(path, operation): (&str, Operation)| {
            (path.to_owned(), operation.method().as_str().to_ascii_lowercase())
        };
        assert_eq!(described, ROUTES.into_iter().map(route).collect());
    }
}
