//! The body of a request for a response. The whole history is in `input`: nothing is stored.
//!
//! The sampling fields of the other dialects are taken as well.

use moeflux_chat::ChatOptions;
use serde_json::{Map, Value as Json, json};

use crate::wire::chat;
use crate::wire::failure::Failure;
use crate::wire::fields::{Fields, Ignored, element, unsupported, wrong};
use crate::wire::request::{Prompt, Request, Sampling};
use crate::wire::responses::items::Items;
use crate::wire::sampling::{self, N_LOGPROBS_MAX, N_TOKENS_MAX};
use crate::wire::text;
use crate::wire::tools;

/// Fields without effect here that every client may send.
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
    "image",
];
const NO_MEMORY: &str = "is not supported: this server stores nothing, so send the whole history";
const LOGPROBS: &str = "message.output_text.logprobs";

/// What the writer of the answer needs to know of the request.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    pub(crate) is_streamed: bool,
    pub(crate) has_logprobs: bool,
    /// What the response repeats of the request.
    pub(crate) settings: Map<String, Json>,
}

/// A request for a response.
///
/// # Errors
/// The first field that cannot be honoured.
pub fn parse(body: &[u8]) -> Result<(Request, Shape), Failure> {
    let mut fields = Fields::of_body(body)?;
    let mut ignored = Ignored::default();
    refuse(&mut fields)?;
    let mut sampling = sampling::sampling(&mut fields)?;
    sampling.n_logprobs = n_logprobs(&mut fields)?;
    let n_tokens_max = fields.count("max_output_tokens", 1..=N_TOKENS_MAX)?;
    let mut settings = settings(&sampling, n_tokens_max);
    settings.insert("metadata".into(), fields.map("metadata")?.into());
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    settings.insert("parallel_tool_calls".into(), parallel.into());
    let mut options = chat::options(&mut fields)?;
    settings.insert("reasoning".into(), reasoning(&mut fields, &mut options, &mut ignored)?);
    text_config(&mut fields, &mut ignored)?;
    let is_streamed = fields.flag("stream")?.unwrap_or(false);
    let shape = Shape { is_streamed, has_logprobs: sampling.n_logprobs.is_some(), settings };
    let request = Request {
        model: fields.string("model")?,
        prompt: prompt(&mut fields, options, &mut ignored)?,
        n_answers: 1,
        n_tokens_max,
        n_thought_tokens_max: fields.count("max_thinking_tokens", 0..=N_TOKENS_MAX)?,
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
    Ok((request, shape))
}

fn refuse(fields: &mut Fields) -> Result<(), Failure> {
    fields.refuse("previous_response_id", NO_MEMORY)?;
    fields.refuse("conversation", NO_MEMORY)?;
    fields.refuse("background", NO_MEMORY)?;
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

/// They are asked for by a name in `include`, or by a number.
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

/// What `reasoning` says about the effort, for the template; the rest is about summaries.
fn reasoning(
    fields: &mut Fields,
    options: &mut ChatOptions,
    ignored: &mut Ignored,
) -> Result<Json, Failure> {
    let Some(mut reasoning) = fields.object("reasoning")? else {
        return Ok(json!({"effort": null, "summary": null}));
    };
    let effort = reasoning.string("effort")?;
    chat::wish_effort(options, effort.as_deref());
    reasoning.drop_known(&["summary", "generate_summary", "context", "mode"]);
    reasoning.end(ignored);
    Ok(json!({"effort": effort, "summary": null}))
}

fn text_config(fields: &mut Fields, ignored: &mut Ignored) -> Result<(), Failure> {
    let Some(mut text) = fields.object("text")? else { return Ok(()) };
    tools::refuse_format(&mut text, "format", ignored)?;
    text.drop_known(&["verbosity"]);
    text.end(ignored);
    Ok(())
}

fn prompt(
    fields: &mut Fields,
    options: ChatOptions,
    ignored: &mut Ignored,
) -> Result<Prompt, Failure> {
    let path = fields.path("tools");
    let offered = fields.list("tools")?;
    let mut items =
        Items { tools: tools::of_responses(&path, offered, ignored)?, ..Items::default() };
    let are_offered = tools::are_offered(fields)?;
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
    let offered = if are_offered { items.tools } else { Vec::new() };
    Ok(Prompt::Chat(Box::new(items.turns.conversation(&path, offered, None)?), options))
}
