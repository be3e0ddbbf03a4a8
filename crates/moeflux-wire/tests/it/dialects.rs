//! The parsers of all dialects as one, by the path that a request is sent to.

use moeflux_wire::{Failure, Request, chat, completions, messages, responses, tokens};

/// Parses a body as the request of a path.
pub(crate) fn parse(path: &str, body: &[u8]) -> Result<Option<Request>, Failure> {
    let request = match path {
        "chat_completions" => chat::parse(body)?.0,
        "completions" => completions::parse(body)?.0,
        "responses" => responses::parse(body)?.0,
        "messages" => messages::parse(body)?.0,
        "messages_count_tokens" => messages::parse_to_count(body)?,
        "tokenize" => return tokens::parse_tokenize(body).map(|_| None),
        "apply-template" => return tokens::parse_template(body).map(|_| None),
        "detokenize" => return tokens::parse_detokenize(body).map(|_| None),
        other => panic!("no such path: {other}"),
    };
    Ok(Some(request))
}
