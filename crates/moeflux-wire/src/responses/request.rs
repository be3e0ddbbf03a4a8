//! Reads the request body for a response. The whole history is in `input`, because nothing is
//! stored.
//!
//! The sampling fields of the other dialects are accepted as well.

use moeflux_chat::{AnswerRules, ChatOptions, Conversation};
use serde_json::{Map, Value as Json, json};

use crate::calls::ToolKinds;
use crate::chat;
use crate::failure::Failure;
use crate::request::fields::{Fields, Ignored, element, unsupported, wrong};
use crate::request::form::{RequestedForm, SchemaAt};
use crate::request::rules;
use crate::request::sampling::{self, N_LOGPROBS_MAX, N_TOKENS_MAX};
use crate::request::text;
use crate::request::thoughts;
use crate::request::tool_choice;
use crate::request::tools;
use crate::request::{Prompt, Request, Sampling};
use crate::responses::items::InputItems;

/// Known fields without effect here, which any client may send.
const KNOWN: [&str; 13] = [
    "store",
    "user",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "client_metadata",
    "stream_options",
    "max_tool_calls",
    "context_management",
    "access_programs",
    // The compression of images; images themselves are parts of `input`, and are refused there.
    "image",
];
const NO_MEMORY: &str = "is not supported: this server stores nothing, so send the whole history";
const LOGPROBS: &str = "message.output_text.logprobs";

/// The facts about a request that a [`ResponsesWriter`](crate::responses::ResponsesWriter) needs.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponsesWriterOptions {
    pub(crate) is_streamed: bool,
    pub(crate) has_logprobs: bool,
    pub(crate) tool_kinds: ToolKinds,
    /// Fields of the request that the response repeats.
    pub(crate) settings: Map<String, Json>,
}

/// Parses a request for a response.
///
/// # Errors
/// A [`Failure`] that names the first invalid or unsupported field.
pub fn parse(body: &[u8]) -> Result<(Request, ResponsesWriterOptions), Failure> {
    let mut fields = Fields::of_body(body)?;
    let mut ignored = Ignored::default();
    refuse(&mut fields)?;
    let mut sampling = sampling::sampling(&mut fields)?;
    sampling.n_logprobs = n_logprobs(&mut fields)?;
    let n_tokens_max = fields.count("max_output_tokens", 1..=N_TOKENS_MAX)?;
    let mut settings = settings(&sampling, n_tokens_max);
    settings.insert("metadata".into(), fields.map("metadata")?.into());
    let parallel = fields.get("parallel_tool_calls");
    settings.insert("parallel_tool_calls".into(), parallel.unwrap_or(true.into()));
    settings.extend(fields.get("tool_choice").map(|it| ("tool_choice".to_owned(), it)));
    let (mut options, limit) = chat::options(&mut fields)?;
    let (reasoning, effort_limit) = reasoning(&mut fields, &mut options, &mut ignored)?;
    settings.insert("reasoning".into(), reasoning);
    let limit = thoughts::limit(&mut fields)?.or(effort_limit).or(limit);
    let mut form = RequestedForm::of(&mut fields, &mut ignored)?;
    let text = text_config(&mut fields, &mut form, &mut ignored)?;
    settings.extend(text.map(|it| ("text".to_owned(), it)));
    let is_streamed = fields.flag("stream")?.unwrap_or(false);
    let (conversation, choice) = conversation(&mut fields, &mut ignored)?;
    let tool_kinds = ToolKinds::of(&conversation.tools);
    let (rules, form_field) = rules::rules(choice, form, limit)?;
    let has_logprobs = sampling.n_logprobs.is_some();
    let request = Request {
        model: fields.string("model")?,
        prompt: Prompt::Chat(Box::new(conversation), options),
        n_answers: 1,
        n_tokens_max,
        rules,
        form_field,
        stops: sampling::stops(&mut fields, "stop")?,
        is_echoed: false,
        is_streamed,
        sampling,
        ignored: {
            fields.drop_known(&KNOWN);
            fields.end(&mut ignored);
            ignored
        },
    };
    Ok((request, ResponsesWriterOptions { is_streamed, has_logprobs, tool_kinds, settings }))
}

/// Parses a request for a prompt's token count. It has the same fields; those about the answer have
/// no effect.
///
/// # Errors
/// A [`Failure`] that names the first invalid or unsupported field.
pub fn parse_to_count(body: &[u8]) -> Result<Request, Failure> {
    Ok(parse(body)?.0)
}

/// Returns the response with a prompt's token count.
#[must_use]
pub fn token_count(n_tokens: usize) -> Json {
    json!({"object": "response.input_tokens", "input_tokens": n_tokens})
}

fn refuse(fields: &mut Fields) -> Result<(), Failure> {
    fields.refuse("previous_response_id", NO_MEMORY)?;
    fields.refuse("conversation", NO_MEMORY)?;
    fields.refuse("background", NO_MEMORY)?;
    fields.refuse("response_format", "is not supported: use `text.format`")?;
    fields.refuse("prompt", "is not supported: use `input` and `instructions`")?;
    let path = fields.path("truncation");
    match fields.string("truncation")?.as_deref() {
        None | Some("disabled") => Ok(()),
        Some(other) => {
            let instead = "a prompt that does not fit is refused, never cut";
            Err(unsupported(&path, other, instead))
        }
    }
}

/// Takes the number of alternatives, from a name in `include` or from `top_logprobs`.
fn n_logprobs(fields: &mut Fields) -> Result<Option<usize>, Failure> {
    let path = fields.path("include");
    let mut is_included = false;
    for (index, name) in fields.list("include")?.into_iter().enumerate() {
        match name {
            Json::String(name) => is_included |= name == LOGPROBS,
            other => return Err(wrong(&element(&path, index), "a string", &other)),
        }
    }
    let n_top = fields.count("top_logprobs", 0..=N_LOGPROBS_MAX)?;
    Ok(n_top.filter(|n_top| is_included || *n_top > 0).or(is_included.then_some(0)))
}

fn settings(sampling: &Sampling, n_tokens_max: Option<usize>) -> Map<String, Json> {
    let pairs = [
        ("max_output_tokens", json!(n_tokens_max)),
        ("temperature", json!(sampling.temperature)),
        ("top_p", json!(sampling.top_p)),
        ("top_logprobs", json!(sampling.n_logprobs.unwrap_or(0))),
    ];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Takes the effort from `reasoning`, for the template and as a limit on thoughts. The other fields
/// are about summaries.
fn reasoning(
    fields: &mut Fields,
    options: &mut ChatOptions,
    ignored: &mut Ignored,
) -> Result<(Json, Option<usize>), Failure> {
    let Some(mut reasoning) = fields.object("reasoning")? else {
        return Ok((json!({"effort": null, "summary": null}), None));
    };
    let effort = reasoning.string("effort")?;
    let limit = chat::apply_effort(options, effort.as_deref());
    reasoning.drop_known(&["summary", "generate_summary", "context", "mode"]);
    reasoning.end(ignored);
    Ok((json!({"effort": effort, "summary": null}), limit))
}

/// Takes the field `text`, and returns the part that the response repeats.
fn text_config(
    fields: &mut Fields,
    form: &mut RequestedForm,
    ignored: &mut Ignored,
) -> Result<Option<Json>, Failure> {
    let Some(mut text) = fields.object("text")? else { return Ok(None) };
    let format = text.get("format");
    form.format(&mut text, ("format", SchemaAt::Beside), ignored)?;
    text.drop_known(&["verbosity"]);
    text.end(ignored);
    Ok(format.map(|format| json!({"format": format})))
}

/// Builds the conversation. Items of the input may offer tools as well, so the choice among tools
/// is read last.
fn conversation(
    fields: &mut Fields,
    ignored: &mut Ignored,
) -> Result<(Conversation, AnswerRules), Failure> {
    let path = fields.path("tools");
    let offered = fields.list("tools")?;
    let mut items = InputItems {
        tools: tools::of_responses(&path, offered, ignored)?,
        ..InputItems::default()
    };
    if let Some(instructions) = fields.take("instructions") {
        let path = fields.path("instructions");
        items.turns.system(text::instructions(&path, instructions, ignored)?);
    }
    let path = fields.path("input");
    let input = fields.required("input")?;
    if input.as_array().is_some_and(Vec::is_empty) {
        return Err(Failure::invalid(&path, "is empty: there is nothing to answer"));
    }
    items.input(&path, input, ignored)?;
    let choice = tool_choice::of_openai(fields, &items.tools, ignored)?;
    let offered = tool_choice::offered(&choice, items.tools);
    Ok((items.turns.conversation(&path, offered, None)?, choice))
}
