//! `/tokenize`, `/detokenize` and `/apply-template`: what the model reads, for people who look.
//!
//! They take the fields of vLLM and of llama.cpp alike. **Invariant:** as of all requests.

use moeflux::TokenId;
use serde_json::{Value as Json, json};

use crate::wire::chat;
use crate::wire::completions;
use crate::wire::failure::Failure;
use crate::wire::fields::{Fields, wrong};
use crate::wire::request::{Prompt, PromptText};

/// What is to be turned into tokens.
///
/// # Errors
/// The first field that cannot be honoured.
pub fn parse_tokenize(body: &[u8]) -> Result<Prompt, Failure> {
    let mut fields = Fields::of_body(body)?;
    if fields.has("messages") {
        return Ok(chat::parse_fields(fields)?.0.prompt);
    }
    let key = if fields.has("content") { "content" } else { "prompt" };
    Ok(Prompt::Texts(vec![PromptText::Text(fields.required_string(key)?)]))
}

/// What is to be turned into text.
///
/// # Errors
/// The first field that cannot be honoured.
pub fn parse_detokenize(body: &[u8]) -> Result<Vec<TokenId>, Failure> {
    let mut fields = Fields::of_body(body)?;
    let path = fields.path("tokens");
    match fields.required("tokens")? {
        Json::Array(values) => completions::tokens(&path, &values),
        other => Err(wrong(&path, "a list of ids of tokens", &other)),
    }
}

/// What is to be rendered by the template.
///
/// # Errors
/// The first field that cannot be honoured.
pub fn parse_template(body: &[u8]) -> Result<Prompt, Failure> {
    Ok(chat::parse(body)?.0.prompt)
}

/// The response with tokens.
#[must_use]
pub fn tokenized(tokens: &[TokenId], n_context: usize) -> Json {
    let ids: Vec<u32> = tokens.iter().map(|token| token.0).collect();
    json!({"tokens": ids, "count": ids.len(), "max_model_len": n_context})
}

/// The response with text.
#[must_use]
pub fn detokenized(text: &str) -> Json {
    json!({"prompt": text, "content": text})
}

/// The response with a rendered conversation.
#[must_use]
pub fn templated(text: &str) -> Json {
    json!({"prompt": text})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_tokens_are_taken() {
        let text = |body: &str| match parse_tokenize(body.as_bytes()) {
            Ok(Prompt::Texts(texts)) => Ok(texts),
            Ok(Prompt::Chat(..)) => Ok(Vec::new()),
            Err(failure) => Err(failure.message),
        };
        let found = Ok(vec![PromptText::Text("a".into())]);
        assert_eq!(text(r#"{"prompt": "a"}"#), found);
        assert_eq!(text(r#"{"content": "a", "add_special": true}"#), found);
        assert_eq!(text(r#"{"messages": [{"role": "user", "content": "a"}]}"#), Ok(Vec::new()));
        assert_eq!(text(r#"{"prompt": 5}"#), Err("`prompt`: expected a string, got 5".into()));
        assert_eq!(text("{}"), Err("`prompt`: is missing".into()));
        let tokens = |body: &str| parse_detokenize(body.as_bytes()).map_err(|it| it.message);
        assert_eq!(tokens(r#"{"tokens": [1, 2]}"#), Ok(vec![TokenId(1), TokenId(2)]));
        let problem = tokens(r#"{"tokens": [1, -2]}"#).unwrap_err();
        assert_eq!(problem, "`tokens[1]`: expected the id of a token, got -2");
    }
}
