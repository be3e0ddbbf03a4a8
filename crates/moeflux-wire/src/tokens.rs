//! `/tokenize`, `/detokenize` and `/apply-template`, for inspecting the input of the model.
//!
//! They take the fields of both vLLM and llama.cpp. **Invariant:** as for all requests.

use moeflux::TokenId;
use serde_json::{Value as Json, json};

use crate::chat;
use crate::completions;
use crate::failure::Failure;
use crate::request::fields::{Fields, Ignored, wrong};
use crate::request::{Prompt, PromptText};

const NOT_ALONE: &str = "is not supported: /detokenize gives the text of each token";

/// Returns the prompt to be tokenized, and the fields without effect.
///
/// # Errors
/// A [`Failure`] that names the first invalid or unsupported field.
pub fn parse_tokenize(body: &[u8]) -> Result<(Prompt, Ignored), Failure> {
    let mut fields = Fields::of_body(body)?;
    fields.refuse("with_pieces", NOT_ALONE)?;
    fields.refuse("return_token_strs", NOT_ALONE)?;
    if fields.flag("parse_special")? == Some(false) {
        let problem = "is not supported: text of special tokens is always one of them";
        return Err(Failure::invalid(&fields.path("parse_special"), problem));
    }
    if fields.has("messages") {
        let request = chat::parse_fields(fields)?.0;
        return Ok((request.prompt, request.ignored));
    }
    let has_special = fields.flag("add_special_tokens")?;
    let has_special = fields.flag("add_special")?.or(has_special).unwrap_or(true);
    let key = if fields.has("content") { "content" } else { "prompt" };
    let text = PromptText::Text(fields.required_string(key)?);
    let text = if has_special { text } else { text.bare() };
    Ok((Prompt::Texts(vec![text]), end(fields)))
}

/// Returns the tokens to be converted to text, and the fields without effect.
///
/// # Errors
/// A [`Failure`] that names the first invalid or unsupported field.
pub fn parse_detokenize(body: &[u8]) -> Result<(Vec<TokenId>, Ignored), Failure> {
    let mut fields = Fields::of_body(body)?;
    let path = fields.path("tokens");
    let tokens = match fields.required("tokens")? {
        Json::Array(values) => completions::tokens(&path, &values)?,
        other => return Err(wrong(&path, "a list of ids of tokens", &other)),
    };
    Ok((tokens, end(fields)))
}

fn end(mut fields: Fields) -> Ignored {
    let mut ignored = Ignored::default();
    // There is only one model, and any name selects it.
    fields.drop_known(&["model"]);
    fields.end(&mut ignored);
    ignored
}

/// Returns the prompt to be rendered by the template.
///
/// # Errors
/// A [`Failure`] that names the first invalid or unsupported field.
pub fn parse_template(body: &[u8]) -> Result<Prompt, Failure> {
    Ok(chat::parse(body)?.0.prompt)
}

/// Returns the response with tokens.
#[must_use]
pub fn tokenized(tokens: &[TokenId], n_context: usize) -> Json {
    let ids: Vec<u32> = tokens.iter().map(|token| token.0).collect();
    json!({"tokens": ids, "count": ids.len(), "max_model_len": n_context})
}

/// Returns the response with text.
#[must_use]
pub fn detokenized(text: &str) -> Json {
    json!({"prompt": text, "content": text})
}

/// Returns the response with a rendered conversation.
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
            Ok((Prompt::Texts(texts), ignored)) => {
                Ok((texts, ignored.names().map(str::to_owned).collect()))
            }
            Ok((Prompt::Chat(..), _)) => Ok((Vec::new(), Vec::new())),
            Err(failure) => Err(failure.message),
        };
        let found = Ok((vec![PromptText::Text("a".into())], Vec::new()));
        let bare = Ok((vec![PromptText::Bare("a".into())], Vec::new()));
        let none = Ok((Vec::new(), Vec::new()));
        assert_eq!(text(r#"{"prompt": "a", "model": "m"}"#), found);
        assert_eq!(text(r#"{"content": "a", "add_special": true}"#), found);
        assert_eq!(text(r#"{"content": "a", "add_special": false}"#), bare);
        assert_eq!(text(r#"{"prompt": "a", "add_special_tokens": false}"#), bare);
        assert_eq!(text(r#"{"prompt": "a", "x": 1}"#).unwrap().1, ["x"]);
        assert_eq!(text(r#"{"messages": [{"role": "user", "content": "a"}]}"#), none);
        assert_eq!(text(r#"{"prompt": 5}"#), Err("`prompt`: expected a string, got 5".into()));
        assert_eq!(text("{}"), Err("`prompt`: is missing".into()));
        let tokens = |body: &str| {
            parse_detokenize(body.as_bytes())
                .map(|(tokens, _)| tokens)
                .map_err(|failure| failure.message)
        };
        assert_eq!(tokens(r#"{"tokens": [1, 2]}"#), Ok(vec![TokenId(1), TokenId(2)]));
        let problem = tokens(r#"{"tokens": [1, -2]}"#).unwrap_err();
        assert_eq!(problem, "`tokens[1]`: expected the id of a token, got -2");
    }
}
