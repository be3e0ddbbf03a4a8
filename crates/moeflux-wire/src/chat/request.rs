//! Reads the request body of a chat completion.
//!
//! Additions to `OpenAI`'s fields: `top_k`, `min_p`, `repetition_penalty`, `chat_template_kwargs`,
//! `continue_final_message`, `add_generation_prompt`, `max_thinking_tokens`, `grammar` and vLLM's
//! fields for the same, llama.cpp's `return_progress`, and thoughts in assistant messages.

use moeflux_chat::{
    Assistant, Call, ChatOptions, Conversation, Ending, OWN_VARIABLES, Tool, ToolResult, Turn,
};
use serde_json::{Map, Value as Json};

use crate::calls::ToolKinds;
use crate::failure::Failure;
use crate::request::fields::{Fields, Ignored, element, unsupported};
use crate::request::form::{RequestedForm, SchemaAt};
use crate::request::rules;
use crate::request::sampling::{self, N_ANSWERS_MAX, N_LOGPROBS_MAX, N_TOKENS_MAX};
use crate::request::text;
use crate::request::thoughts;
use crate::request::tool_choice;
use crate::request::tools;
use crate::request::turns::Turns;
use crate::request::{Prompt, Request};

/// Known fields without effect here, which any client may send.
const KNOWN: [&str; 10] = [
    "user",
    "store",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "verbosity",
    "prediction",
];

/// The facts about a request that a [`ChatWriter`](crate::chat::ChatWriter) needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatWriterOptions {
    pub(crate) stream_mode: StreamMode,
    pub(crate) n_prompts: usize,
    pub(crate) n_answers: usize,
    pub(crate) has_logprobs: bool,
    pub(crate) has_progress: bool,
    pub(crate) tool_kinds: ToolKinds,
}

/// The way in which the answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamMode {
    Whole,
    Stream,
    StreamWithUsage,
}

/// Parses a request for a chat completion.
///
/// # Errors
/// A [`Failure`] that names the first invalid or unsupported field.
pub fn parse(body: &[u8]) -> Result<(Request, ChatWriterOptions), Failure> {
    parse_fields(Fields::of_body(body)?)
}

/// Like [`parse`], for a body that is already parsed as JSON.
///
/// # Errors
/// As [`parse`].
pub fn parse_json(body: Json) -> Result<(Request, ChatWriterOptions), Failure> {
    parse_fields(Fields::of_json(body)?)
}

pub(crate) fn parse_fields(mut fields: Fields) -> Result<(Request, ChatWriterOptions), Failure> {
    let mut ignored = Ignored::default();
    let mut sampling = sampling::sampling(&mut fields)?;
    sampling.n_logprobs = n_logprobs(&mut fields)?;
    refuse(&mut fields)?;
    let mut form = RequestedForm::of(&mut fields, &mut ignored)?;
    form.format(&mut fields, ("response_format", SchemaAt::Nested), &mut ignored)?;
    let (is_streamed, stream_mode) = stream_mode(&mut fields, &mut ignored)?;
    // A client that waits for the whole answer gets no progress, as from llama.cpp.
    let has_progress = fields.flag("return_progress")?.unwrap_or(false) && is_streamed;
    let n_answers = fields.count("n", 1..=N_ANSWERS_MAX)?.unwrap_or(1);
    let has_logprobs = sampling.n_logprobs.is_some();
    let (options, effort_limit) = options(&mut fields)?;
    let limit = thoughts::limit(&mut fields)?.or(effort_limit);
    let tools = tools::of_chat(&mut fields, &mut ignored)?;
    let choice = tool_choice::of_openai(&mut fields, &tools, &mut ignored)?;
    let tools = tool_choice::offered(&choice, tools);
    let tool_kinds = ToolKinds::of(&tools);
    let (rules, form_field) = rules::rules(choice, form, limit)?;
    let conversation = conversation(&mut fields, tools, &mut ignored)?;
    let request = Request {
        model: fields.string("model")?,
        n_answers,
        n_tokens_max: n_tokens_max(&mut fields)?,
        rules,
        form_field,
        stops: sampling::stops(&mut fields, "stop")?,
        prompt: Prompt::Chat(Box::new(conversation), options),
        is_echoed: false,
        is_streamed,
        sampling,
        ignored: end(fields, ignored),
    };
    let writer_options = ChatWriterOptions {
        stream_mode,
        n_prompts: 1,
        n_answers,
        has_logprobs,
        has_progress,
        tool_kinds,
    };
    Ok((request, writer_options))
}

fn end(mut fields: Fields, mut ignored: Ignored) -> Ignored {
    fields.drop_known(&KNOWN);
    fields.end(&mut ignored);
    ignored
}

/// Refuses fields that would change the answer.
fn refuse(fields: &mut Fields) -> Result<(), Failure> {
    let reason = "is not supported: this server answers with text";
    fields.refuse("audio", reason)?;
    fields.refuse("add_special_tokens", "is not supported: the chat template writes them")?;
    fields.refuse("web_search_options", "is not supported: this server runs no tools")?;
    let path = fields.path("modalities");
    for (index, kind) in fields.list("modalities")?.into_iter().enumerate() {
        if kind != "text" {
            return Err(Failure::invalid(&element(&path, index), reason));
        }
    }
    match fields.take("function_call") {
        None => Ok(()),
        Some(Json::String(choice)) if choice == "auto" || choice == "none" => Ok(()),
        Some(_) => {
            Err(Failure::invalid(&fields.path("function_call"), "is not supported: use `tools`"))
        }
    }
}

fn n_logprobs(fields: &mut Fields) -> Result<Option<usize>, Failure> {
    let is_on = fields.flag("logprobs")?.unwrap_or(false);
    let n_top = fields.count("top_logprobs", 0..=N_LOGPROBS_MAX)?;
    match n_top {
        Some(n_top) if n_top > 0 && !is_on => {
            Err(Failure::invalid(&fields.path("top_logprobs"), "needs `logprobs`: true"))
        }
        n_top => Ok(is_on.then_some(n_top.unwrap_or(0))),
    }
}

/// Returns whether the answer is streamed, and how.
pub(crate) fn stream_mode(
    fields: &mut Fields,
    ignored: &mut Ignored,
) -> Result<(bool, StreamMode), Failure> {
    let is_streamed = fields.flag("stream")?.unwrap_or(false);
    let mut has_usage = false;
    if let Some(mut options) = fields.object("stream_options")? {
        has_usage = options.flag("include_usage")?.unwrap_or(false);
        options.drop_known(&["include_obfuscation"]);
        options.end(ignored);
    }
    let stream_mode = match (is_streamed, has_usage) {
        (false, _) => StreamMode::Whole,
        (true, false) => StreamMode::Stream,
        (true, true) => StreamMode::StreamWithUsage,
    };
    Ok((is_streamed, stream_mode))
}

/// Takes the token limit. The newer name takes precedence, as in `OpenAI`'s API.
fn n_tokens_max(fields: &mut Fields) -> Result<Option<usize>, Failure> {
    let older = fields.count("max_tokens", 1..=N_TOKENS_MAX)?;
    Ok(fields.count("max_completion_tokens", 1..=N_TOKENS_MAX)?.or(older))
}

fn conversation(
    fields: &mut Fields,
    tools: Vec<Tool>,
    ignored: &mut Ignored,
) -> Result<Conversation, Failure> {
    let continues = fields.flag("continue_final_message")?;
    let opens = fields.flag("add_generation_prompt")?;
    if opens == Some(true) && continues == Some(true) {
        let problem = "cannot be combined with `continue_final_message`";
        return Err(Failure::invalid(&fields.path("add_generation_prompt"), problem));
    }
    // A client that states how the answer begins does not want a last text continued.
    let continues = continues.or(opens.map(|_| false));
    let path = fields.path("messages");
    if !fields.has("messages") {
        return Err(Failure::invalid(&path, "is missing"));
    }
    let mut turns = Turns::default();
    for (index, json) in fields.list("messages")?.into_iter().enumerate() {
        message(Fields::of(element(&path, index), json)?, &mut turns, ignored)?;
    }
    let mut conversation = turns.conversation(&path, tools, continues)?;
    if opens == Some(false) && conversation.ending == Ending::Answer {
        conversation.ending = Ending::Closed;
    }
    Ok(conversation)
}

/// Returns the inputs of the template, from `chat_template_kwargs` and `reasoning_effort`, and the
/// limit on thoughts that follows from the latter.
pub(crate) fn options(fields: &mut Fields) -> Result<(ChatOptions, Option<usize>), Failure> {
    let variables = template_variables(fields)?;
    let mut options = ChatOptions { variables, ..ChatOptions::default() };
    let effort = fields.string("reasoning_effort")?;
    let limit = apply_effort(&mut options, effort.as_deref());
    Ok((options, limit))
}

/// Takes the variables that a client gives to the template.
pub(crate) fn template_variables(fields: &mut Fields) -> Result<Map<String, Json>, Failure> {
    let path = fields.path("chat_template_kwargs");
    let variables = fields.map("chat_template_kwargs")?;
    match OWN_VARIABLES.iter().find(|name| variables.contains_key(**name)) {
        None => Ok(variables),
        Some(name) => {
            let problem = "is set from the conversation: remove it";
            Err(Failure::invalid(&format!("{path}.{name}"), problem))
        }
    }
}

/// Applies an effort: `none` disables thoughts, any other value is passed to the template. The
/// client's own template variables take precedence. Returns the resulting limit on thoughts.
pub(crate) fn apply_effort(options: &mut ChatOptions, effort: Option<&str>) -> Option<usize> {
    match effort {
        None => {}
        Some("none") => options.thinking = Some(false),
        Some(effort) => {
            options.variables.entry("reasoning_effort").or_insert_with(|| effort.into());
        }
    }
    if let Some(value) = options.variables.get("enable_thinking").and_then(Json::as_bool) {
        options.thinking = Some(value);
    }
    let is_overruled = effort == Some("none") && options.thinking == Some(true);
    effort.filter(|_| !is_overruled).and_then(thoughts::limit_of)
}

fn message(mut message: Fields, turns: &mut Turns, ignored: &mut Ignored) -> Result<(), Failure> {
    let role = message.required_string("role")?;
    match role.as_str() {
        "system" | "developer" => {
            let content = message.required("content")?;
            turns.system(text::instructions(&message.path("content"), content, ignored)?);
        }
        "user" => {
            let content = message.required("content")?;
            turns.push(Turn::User(text::text(&message.path("content"), content, ignored)?));
        }
        "assistant" => assistant(&mut message, turns, ignored)?,
        "tool" => {
            let content = message.required("content")?;
            let text = text::text(&message.path("content"), content, ignored)?;
            let call_id = message.required_string("tool_call_id")?;
            let name = message.string("name")?;
            turns.push(Turn::Tool(ToolResult { call_id, name, text }));
        }
        other => {
            let known = "use system, developer, user, assistant or tool";
            return Err(unsupported(&message.path("role"), other, known));
        }
    }
    message.end(ignored);
    Ok(())
}

fn assistant(
    message: &mut Fields,
    turns: &mut Turns,
    ignored: &mut Ignored,
) -> Result<(), Failure> {
    message.refuse("audio", "is not supported: this server takes text")?;
    message.refuse("function_call", "is not supported: use `tool_calls`")?;
    let newer = message.string("reasoning")?;
    let thoughts = message.string("reasoning_content")?.or(newer);
    let path = message.path("content");
    let content = message.take("content");
    let content = content.map(|it| text::text(&path, it, ignored)).transpose()?;
    let refusal = message.string("refusal")?;
    let path = message.path("tool_calls");
    let mut calls = Vec::new();
    for (index, json) in message.list("tool_calls")?.into_iter().enumerate() {
        calls.push(call(Fields::of(element(&path, index), json)?, ignored)?);
    }
    message.drop_known(&["annotations"]);
    turns.push(Turn::Assistant(Assistant {
        thoughts: thoughts.filter(|it| !it.is_empty()),
        text: content.or(refusal).unwrap_or_default(),
        calls,
    }));
    Ok(())
}

fn call(mut call: Fields, ignored: &mut Ignored) -> Result<Call, Failure> {
    let id = call.required_string("id")?;
    let kind = call.string("type")?.unwrap_or_else(|| "function".to_owned());
    let (key, argument) = match kind.as_str() {
        "function" => ("function", "arguments"),
        "custom" => ("custom", "input"),
        other => return Err(unsupported(&call.path("type"), other, "use `function`")),
    };
    let mut inner = Fields::of(call.path(key), call.required(key)?)?;
    let name = inner.required_string("name")?;
    let argument = inner.string(argument)?.unwrap_or_default();
    inner.end(ignored);
    call.drop_known(&["index"]);
    call.end(ignored);
    Ok(match kind.as_str() {
        "custom" => Call::custom(id, name, &argument),
        _ => Call::from_text(id, name, &argument),
    })
}

impl ChatWriterOptions {
    /// Returns whether the answer is sent whole, for the writers of both older dialects.
    pub(crate) fn is_whole(&self) -> bool {
        self.stream_mode == StreamMode::Whole
    }
}
