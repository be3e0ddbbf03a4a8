//! Suggests an existing path to a client that requests one that does not exist.
//!
//! Clients join a base address and a path, and often with one `/v1` too many or too few.
//! **Invariant:** a suggestion is a path of the table, and differs from the requested one.

/// Segments that other servers put before these paths.
const PREFIXES: [&str; 3] = ["v1", "api", "openai"];

/// Paths without [`PREFIXES`], each with the corresponding path of this server.
const SUGGESTIONS: [(&str, &str); 22] = [
    ("", "/v1/chat/completions"),
    ("chat", "/v1/chat/completions"),
    ("chat/completions", "/v1/chat/completions"),
    ("completions", "/v1/completions"),
    ("completion", "/v1/completions"),
    ("generate", "/v1/completions"),
    ("responses", "/v1/responses"),
    ("responses/input_tokens", "/v1/responses/input_tokens"),
    ("messages", "/v1/messages"),
    ("messages/count_tokens", "/v1/messages/count_tokens"),
    ("models", "/v1/models"),
    ("tags", "/v1/models"),
    ("ps", "/v1/models"),
    ("show", "/v1/models"),
    ("tokenize", "/tokenize"),
    ("detokenize", "/detokenize"),
    ("apply-template", "/apply-template"),
    ("health", "/health"),
    ("metrics", "/metrics"),
    ("props", "/props"),
    ("version", "/props"),
    ("openapi.json", "/openapi.json"),
];

/// Returns the suggested path, or `None` without a match.
pub(crate) fn suggested_path(path: &str) -> Option<&'static str> {
    let segments = path.split('/').filter(|it| !it.is_empty());
    let rest: Vec<&str> = segments.skip_while(|it| PREFIXES.contains(it)).collect();
    let rest = match rest[..] {
        ["models", _, ..] => "models".to_owned(),
        _ => rest.join("/"),
    };
    let (_, found) = SUGGESTIONS.iter().find(|(it, _)| *it == rest)?;
    (*found != path).then_some(*found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_repeated_prefixes_are_corrected() {
        for (path, expected) in [
            ("/chat/completions", Some("/v1/chat/completions")),
            ("/v1", Some("/v1/chat/completions")),
            ("/v1/", Some("/v1/chat/completions")),
            ("/v1/v1/chat/completions", Some("/v1/chat/completions")),
            ("/v1//chat/completions/", Some("/v1/chat/completions")),
            ("/v1/v1/messages", Some("/v1/messages")),
            ("/messages", Some("/v1/messages")),
            ("/completions", Some("/v1/completions")),
            ("/responses", Some("/v1/responses")),
            ("/models/a/b", Some("/v1/models")),
            ("/api/chat", Some("/v1/chat/completions")),
            ("/api/generate", Some("/v1/completions")),
            ("/api/tags", Some("/v1/models")),
            ("/v1/health", Some("/health")),
            ("/v1/embeddings", None),
            ("/nothing", None),
            ("/chat/completions/more", None),
            ("/v1/chat/completions", None),
        ] {
            assert_eq!(suggested_path(path), expected, "{path}");
        }
    }
}
