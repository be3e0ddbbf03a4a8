//! Reads the request body for a message, or for its token count.
//!
//! Without the field `thinking` there are no thoughts, as in Anthropic's API, because its clients
//! request short answers with a few tokens. The sampling fields of the other dialects are accepted
//! as well.

use moeflux_chat::{Call, ChatOptions, Conversation, Tool, ToolResult, Turn};
use serde_json::Value as Json;

use crate::chat;
use crate::failure::{Failure, FailureKind};
use crate::request::fields::{Fields, Ignored, element, unsupported, wrong};
use crate::request::form::{RequestedForm, SchemaAt};
use crate::request::rules;
use crate::request::sampling::{self, N_TOKENS_MAX};
use crate::request::text;
use crate::request::thoughts;
use crate::request::tool_choice;
use crate::request::tools;
use crate::request::turns::Turns;
use crate::request::{Prompt, Request};

/// Known fields without effect here, which any client may send.
const KNOWN: [&str; 9] = [
    "metadata",
    "service_tier",
    "cache_control",
    "betas",
    "diagnostics",
    "inference_geo",
    "speed",
    "user_profile_id",
    "workspace_id",
];
const NO_TOOLS: &str = "is not supported: this server runs no tools";

/// The facts about a request that a [`MessagesWriter`](crate::messages::MessagesWriter) needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessagesWriterOptions {
    pub(crate) is_streamed: bool,
    pub(crate) thought_display: ThoughtDisplay,
}

/// Whether the client wants to read thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThoughtDisplay {
    Shown,
    Omitted,
}

/// The settings for thoughts.
struct Thinking {
    is_on: Option<bool>,
    n_tokens_max: Option<usize>,
    thought_display: ThoughtDisplay,
}

/// Parses a request for a message.
///
/// # Errors
/// A [`Failure`] that names the first invalid or unsupported field.
pub fn parse(body: &[u8]) -> Result<(Request, MessagesWriterOptions), Failure> {
    let mut fields = Fields::of_body(body)?;
    let n_tokens_max = fields.count("max_tokens", 0..=N_TOKENS_MAX)?;
    if n_tokens_max.is_none() {
        return Err(Failure::invalid("max_tokens", "is missing"));
    }
    let (request, options) = parse_fields(fields)?;
    Ok((Request { n_tokens_max, ..request }, options))
}

/// Parses a request for a prompt's token count.
///
/// # Errors
/// A [`Failure`] that names the first invalid or unsupported field.
pub fn parse_to_count(body: &[u8]) -> Result<Request, Failure> {
    let mut fields = Fields::of_body(body)?;
    fields.drop_known(&["max_tokens"]);
    Ok(parse_fields(fields)?.0)
}

fn parse_fields(mut fields: Fields) -> Result<(Request, MessagesWriterOptions), Failure> {
    let mut ignored = Ignored::default();
    let sampling = sampling::sampling(&mut fields)?;
    refuse(&mut fields)?;
    let mut options = ChatOptions::default();
    let mut form = RequestedForm::of(&mut fields, &mut ignored)?;
    form.format(&mut fields, ("output_format", SchemaAt::Beside), &mut ignored)?;
    let effort_limit = output_config(&mut fields, (&mut options, &mut form), &mut ignored)?;
    options.variables.extend(chat::template_variables(&mut fields)?);
    let thinking = thinking(&mut fields, &mut ignored)?;
    options.thinking = thinking.is_on;
    let limit = thinking.n_tokens_max.or(thoughts::limit(&mut fields)?).or(effort_limit);
    let is_streamed = fields.flag("stream")?.unwrap_or(false);
    let tools = tools::of_messages(&mut fields, &mut ignored)?;
    let choice = tool_choice::of_messages(&mut fields, &tools, &mut ignored)?;
    let tools = tool_choice::offered(&choice, tools);
    let (rules, form_field) = rules::rules(choice, form, limit)?;
    let conversation = conversation(&mut fields, tools, &mut ignored)?;
    let request = Request {
        model: fields.string("model")?,
        prompt: Prompt::Chat(Box::new(conversation), options),
        n_answers: 1,
        n_tokens_max: None,
        rules,
        form_field,
        stops: sampling::stops(&mut fields, "stop_sequences")?,
        is_echoed: false,
        is_streamed,
        sampling,
        ignored: {
            fields.drop_known(&KNOWN);
            fields.end(&mut ignored);
            ignored
        },
    };
    Ok((request, MessagesWriterOptions { is_streamed, thought_display: thinking.thought_display }))
}

fn refuse(fields: &mut Fields) -> Result<(), Failure> {
    fields.refuse("container", NO_TOOLS)?;
    fields.refuse("mcp_servers", NO_TOOLS)?;
    fields.refuse("compaction", "is not supported: send the whole history")?;
    fields.refuse("response_format", "is not supported: use `output_config.format`")?;
    if fields.has("thread") {
        let problem = "`thread`: is not supported: this server keeps no history, so send all of it";
        let mut failure = Failure::new(FailureKind::Threads, problem);
        failure.field = Some("thread".to_owned());
        return Err(failure);
    }
    Ok(())
}

/// Takes the format of the answer, and the effort. The effort is passed to the template and
/// returned as a limit on thoughts.
fn output_config(
    fields: &mut Fields,
    (options, form): (&mut ChatOptions, &mut RequestedForm),
    ignored: &mut Ignored,
) -> Result<Option<usize>, Failure> {
    let Some(mut config) = fields.object("output_config")? else { return Ok(None) };
    form.format(&mut config, ("format", SchemaAt::Beside), ignored)?;
    let effort = config.string("effort")?;
    config.end(ignored);
    let limit = effort.as_deref().and_then(thoughts::limit_of);
    if let Some(effort) = effort {
        options.variables.insert("reasoning_effort".into(), effort.into());
    }
    Ok(limit)
}

fn thinking(fields: &mut Fields, ignored: &mut Ignored) -> Result<Thinking, Failure> {
    let off =
        Thinking { is_on: Some(false), n_tokens_max: None, thought_display: ThoughtDisplay::Shown };
    let Some(mut thinking) = fields.object("thinking")? else { return Ok(off) };
    let kind = thinking.required_string("type")?;
    let is_on = match kind.as_str() {
        "enabled" | "adaptive" => Some(true),
        "between_tools" => None,
        "disabled" => Some(false),
        other => {
            let known = "use enabled, adaptive or disabled";
            return Err(unsupported(&thinking.path("type"), other, known));
        }
    };
    let n_tokens_max = thinking.count("budget_tokens", 1..=N_TOKENS_MAX)?;
    let thought_display = match thinking.string("display")?.as_deref() {
        Some("omitted") => ThoughtDisplay::Omitted,
        _ => ThoughtDisplay::Shown,
    };
    thinking.end(ignored);
    Ok(Thinking { is_on, n_tokens_max, thought_display })
}

fn conversation(
    fields: &mut Fields,
    tools: Vec<Tool>,
    ignored: &mut Ignored,
) -> Result<Conversation, Failure> {
    let mut turns = Turns::default();
    if let Some(system) = fields.take("system") {
        turns.system(text::instructions(&fields.path("system"), system, ignored)?);
    }
    let path = fields.path("messages");
    if !fields.has("messages") {
        return Err(Failure::invalid(&path, "is missing"));
    }
    let messages = fields.list("messages")?;
    if messages.is_empty() {
        return Err(Failure::invalid(&path, "is empty: there is nothing to answer"));
    }
    for (index, json) in messages.into_iter().enumerate() {
        message(Fields::of(element(&path, index), json)?, &mut turns, ignored)?;
    }
    turns.conversation(&path, tools, None)
}

fn message(mut message: Fields, turns: &mut Turns, ignored: &mut Ignored) -> Result<(), Failure> {
    let role = message.required_string("role")?;
    let path = message.path("content");
    let content = message.required("content")?;
    match role.as_str() {
        "system" => turns.note(text::instructions(&path, content, ignored)?),
        "user" => user(&path, content, (turns, ignored))?,
        "assistant" => assistant(&path, content, (turns, ignored))?,
        other => {
            return Err(unsupported(&message.path("role"), other, "use system, user or assistant"));
        }
    }
    message.drop_known(&["id", "type", "model", "stop_reason", "stop_sequence", "usage"]);
    message.end(ignored);
    Ok(())
}

/// Returns blocks with their paths; a string is a single text block.
fn blocks(path: &str, content: Json) -> Result<Vec<(String, Json)>, Failure> {
    match content {
        Json::Array(blocks) => {
            let blocks = blocks.into_iter().enumerate();
            Ok(blocks.map(|(index, block)| (element(path, index), block)).collect())
        }
        Json::String(_) => Ok(vec![(path.to_owned(), content)]),
        other => Err(wrong(path, "a string or a list of blocks", &other)),
    }
}

fn kind(block: &Json) -> &str {
    block.get("type").and_then(Json::as_str).unwrap_or_default()
}

/// Adds a user message. Text between tool results keeps its place.
fn user(
    path: &str,
    content: Json,
    (turns, ignored): (&mut Turns, &mut Ignored),
) -> Result<(), Failure> {
    let mut said: Option<String> = None;
    for (path, block) in blocks(path, content)? {
        if kind(&block) == "tool_result" {
            turns.user(said.take());
            turns.push(Turn::Tool(tool_result(Fields::of(path, block)?, ignored)?));
        } else {
            let text = text::part(path, block, ignored)?;
            match &mut said {
                Some(said) => {
                    said.push('\n');
                    said.push_str(&text);
                }
                None => said = Some(text),
            }
        }
    }
    turns.user(said);
    Ok(())
}

fn tool_result(mut block: Fields, ignored: &mut Ignored) -> Result<ToolResult, Failure> {
    let call_id = block.required_string("tool_use_id")?;
    let path = block.path("content");
    let content = block.take("content");
    let text = content.map(|it| text::text(&path, it, ignored)).transpose()?.unwrap_or_default();
    let text = if block.flag("is_error")? == Some(true) { failed(text) } else { text };
    block.drop_known(&["type", "cache_control"]);
    block.end(ignored);
    Ok(ToolResult { call_id, name: None, text })
}

/// Marks a failed result in its text, because templates have no other place for it.
fn failed(text: String) -> String {
    let words = text.trim_start_matches(|it: char| !it.is_ascii_alphanumeric());
    let says_so = ["error", "tool_use_error"]
        .iter()
        .any(|it| words.get(..it.len()).is_some_and(|start| start.eq_ignore_ascii_case(it)));
    if says_so { text } else { format!("Error: {text}") }
}

fn assistant(
    path: &str,
    content: Json,
    (turns, ignored): (&mut Turns, &mut Ignored),
) -> Result<(), Failure> {
    for (path, block) in blocks(path, content)? {
        match kind(&block) {
            "thinking" => {
                let mut block = Fields::of(path, block)?;
                turns.thought(block.required_string("thinking")?);
                block.drop_known(&["type", "signature"]);
                block.end(ignored);
            }
            // Readable only by the server that wrote it.
            "redacted_thinking" => ignored.add(&path),
            "tool_use" => turns.called(tool_use(Fields::of(path, block)?, ignored)?),
            _ => turns.said(&text::part(path, block, ignored)?),
        }
    }
    Ok(())
}

fn tool_use(mut block: Fields, ignored: &mut Ignored) -> Result<Call, Failure> {
    let id = block.required_string("id")?;
    let name = block.required_string("name")?;
    let arguments = block.map("input")?;
    block.drop_known(&["type", "cache_control", "caller"]);
    block.end(ignored);
    Ok(Call { id, name, arguments })
}
