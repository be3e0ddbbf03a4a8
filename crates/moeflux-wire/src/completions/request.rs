//! Reads the request body of a completion: texts or token ids to be continued.
//!
//! Evaluation harnesses request `echo` and `logprobs` with `max_tokens` 0: then nothing is
//! generated, and the prompt is returned with its log-probabilities.

use moeflux::TokenId;
use moeflux_chat::AnswerRules;
use serde_json::Value as Json;

use crate::calls::ToolKinds;
use crate::chat::{self, ChatWriterOptions};
use crate::failure::Failure;
use crate::request::fields::{Fields, Ignored, element, wrong};
use crate::request::form::{RequestedForm, SchemaAt};
use crate::request::rules;
use crate::request::sampling::{self, N_ANSWERS_MAX, N_LOGPROBS_MAX, N_TOKENS_MAX};
use crate::request::{Prompt, PromptText, Request};

/// Maximum number of prompts in a request, times the answers to each, because all of them are
/// queued.
const N_PROMPTS_MAX: usize = 1_024;
/// The default number of tokens of an answer, as in `OpenAI`'s API.
const N_TOKENS_DEFAULT: usize = 16;

const KNOWN: [&str; 2] = ["user", "service_tier"];

/// The facts about a request that a [`CompletionsWriter`](crate::completions::CompletionsWriter)
/// needs.
pub type CompletionsWriterOptions = ChatWriterOptions;

/// Parses a request for completions.
///
/// # Errors
/// A [`Failure`] that names the first invalid or unsupported field.
pub fn parse(body: &[u8]) -> Result<(Request, CompletionsWriterOptions), Failure> {
    let mut fields = Fields::of_body(body)?;
    let mut ignored = Ignored::default();
    let mut sampling = sampling::sampling(&mut fields)?;
    sampling.n_logprobs = fields.count("logprobs", 0..=N_LOGPROBS_MAX)?;
    fields.refuse("suffix", "is not supported: put the text into the prompt")?;
    let mut form = RequestedForm::of(&mut fields, &mut ignored)?;
    form.format(&mut fields, ("response_format", SchemaAt::Nested), &mut ignored)?;
    let (rules, form_field) = rules::rules(AnswerRules::default(), form, None)?;
    let (is_streamed, stream_mode) = chat::stream_mode(&mut fields, &mut ignored)?;
    let n_answers = fields.count("n", 1..=N_ANSWERS_MAX)?.unwrap_or(1);
    if fields.count("best_of", 0..=N_ANSWERS_MAX)?.is_some_and(|best_of| best_of > n_answers) {
        return Err(Failure::invalid("best_of", "is not supported: use `n`"));
    }
    let prompts = prompts(&mut fields)?;
    if prompts.len() * n_answers > N_PROMPTS_MAX {
        let n = prompts.len() * n_answers;
        let problem = format!("{n} answers in all are too many; the limit is {N_PROMPTS_MAX}");
        return Err(Failure::invalid("n", problem));
    }
    let options = CompletionsWriterOptions {
        stream_mode,
        n_prompts: prompts.len(),
        n_answers,
        has_logprobs: sampling.n_logprobs.is_some(),
        has_progress: false,
        tool_kinds: ToolKinds::default(),
    };
    let request = Request {
        model: fields.string("model")?,
        prompt: Prompt::Texts(prompts),
        n_answers,
        n_tokens_max: Some(
            fields.count("max_tokens", 0..=N_TOKENS_MAX)?.unwrap_or(N_TOKENS_DEFAULT),
        ),
        rules,
        form_field,
        stops: sampling::stops(&mut fields, "stop")?,
        is_echoed: fields.flag("echo")?.unwrap_or(false),
        is_streamed,
        sampling,
        ignored: {
            fields.drop_known(&KNOWN);
            fields.end(&mut ignored);
            ignored
        },
    };
    Ok((request, options))
}

fn prompts(fields: &mut Fields) -> Result<Vec<PromptText>, Failure> {
    let path = fields.path("prompt");
    let found = match fields.required("prompt")? {
        Json::String(text) => vec![PromptText::Text(text)],
        Json::Array(values) if values.first().is_some_and(Json::is_number) => {
            vec![PromptText::Tokens(tokens(&path, &values)?)]
        }
        Json::Array(values) => {
            if values.len() > N_PROMPTS_MAX {
                let n = values.len();
                let problem = format!("{n} prompts are too many; the limit is {N_PROMPTS_MAX}");
                return Err(Failure::invalid(&path, problem));
            }
            let prompt = |(index, value)| prompt(&element(&path, index), value);
            values.into_iter().enumerate().map(prompt).collect::<Result<_, _>>()?
        }
        other => return Err(wrong(&path, "a string, a list of strings, or ids of tokens", &other)),
    };
    let is_empty = |it: &PromptText| match it {
        PromptText::Text(text) | PromptText::Bare(text) => text.is_empty(),
        PromptText::Tokens(tokens) => tokens.is_empty(),
    };
    if found.is_empty() || found.iter().any(is_empty) {
        return Err(Failure::invalid(&path, "is empty: give a text to continue"));
    }
    if fields.flag("add_special_tokens")? == Some(false) {
        return Ok(found.into_iter().map(PromptText::bare).collect());
    }
    Ok(found)
}

fn prompt(path: &str, value: Json) -> Result<PromptText, Failure> {
    match value {
        Json::String(text) => Ok(PromptText::Text(text)),
        Json::Array(values) => Ok(PromptText::Tokens(tokens(path, &values)?)),
        other => Err(wrong(path, "a string or a list of ids of tokens", &other)),
    }
}

/// Parses a list of token ids.
pub(crate) fn tokens(path: &str, values: &[Json]) -> Result<Vec<TokenId>, Failure> {
    let id = |(index, value): (usize, &Json)| {
        let id = value.as_u64().and_then(|it| u32::try_from(it).ok()).map(TokenId);
        id.ok_or_else(|| wrong(&element(path, index), "the id of a token", value))
    };
    values.iter().enumerate().map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_may_bring_their_own_special_tokens() {
        let prompt = |body: &str| parse(body.as_bytes()).unwrap().0.prompt;
        let (bare, tokens) =
            (PromptText::Bare("<s>a".into()), PromptText::Tokens(vec![TokenId(1)]));
        let found = prompt(r#"{"prompt": ["<s>a", [1]], "add_special_tokens": false}"#);
        assert_eq!(found, Prompt::Texts(vec![bare, tokens]));
        let found = prompt(r#"{"prompt": "a", "add_special_tokens": true}"#);
        assert_eq!(found, Prompt::Texts(vec![PromptText::Text("a".into())]));
    }
}
