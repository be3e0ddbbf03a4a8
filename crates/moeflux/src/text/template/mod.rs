//! Turns a conversation into the text that the model was trained on, by the checkpoint's template.
//!
//! Templates are Jinja as transformers sets it up: blocks trimmed on both sides, loop controls, a
//! few functions more. minijinja renders them; Python's string methods, `tojson` and `strftime_now`
//! are added here.
//! **Invariant:** rendering ends: instructions and output have limits. One line of error names the
//! template's line and the reason. Knows no tokenizer, reads no clock.

mod json;
mod python;
mod time;

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, ErrorKind, Value, syntax::SyntaxConfig};
use serde_json::{Map, Value as Json};

use crate::error::{Error, Result};
use crate::text::files::{read_object, read_text};
use crate::text::special::SpecialTokens;

/// Most bytes of a template; published ones have up to 30 KB.
pub const TEMPLATE_BYTES_MAX: u64 = 1 << 20;
/// Most bytes of a rendered conversation: what the tokenizer takes.
pub const OUTPUT_BYTES_MAX: usize = 64 << 20;
/// Most instructions of one rendering. A message takes a few hundred, so this is far above any
/// conversation, and about a second.
pub const FUEL_MAX: u64 = 20_000_000;

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";
/// Most characters of a reason in an error.
const REASON_CHARS_MAX: usize = 300;

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what the template knows beside these.
    pub role: String,
    /// A string; a list of parts; or null beside tool calls.
    pub content: Json,
    /// What the assistant thought, apart from its answer.
    pub reasoning: Option<String>,
    /// The assistant's tool calls, in the shape that the template expects.
    pub tool_calls: Option<Json>,
    /// Other keys: `name`, `tool_call_id`.
    pub extra: Map<String, Json>,
}

impl Message {
    /// A message of plain text.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: Json::String(content.into()),
            reasoning: None,
            tool_calls: None,
            extra: Map::new(),
        }
    }

    /// The keys that templates read. Reasoning has two names, as transformers gives it.
    fn to_json(&self) -> Json {
        let mut json = Map::new();
        json.insert("role".into(), Json::String(self.role.clone()));
        json.insert("content".into(), self.content.clone());
        if let Some(reasoning) = &self.reasoning {
            json.insert("reasoning_content".into(), Json::String(reasoning.clone()));
            json.insert("thinking".into(), Json::String(reasoning.clone()));
        }
        if let Some(calls) = &self.tool_calls {
            json.insert("tool_calls".into(), calls.clone());
        }
        for (key, value) in &self.extra {
            json.entry(key).or_insert_with(|| value.clone());
        }
        Json::Object(json)
    }
}

/// What a template is told beside the messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TemplateOptions {
    /// End with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Whether to think, for templates that ask; `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// The list of tools, in the shape of the `OpenAI` API.
    pub tools: Option<Json>,
    /// Seconds since 1970 of the caller's wall clock (its offset from UTC added), for templates
    /// that write the date.
    pub now_seconds: Option<i64>,
    /// More variables; they win over the tokens of the tokenizer's config.
    pub extra: Map<String, Json>,
}

/// A checkpoint's chat template, compiled.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    has_tool_use: bool,
    path: PathBuf,
    special: SpecialTokens,
}

impl ChatTemplate {
    /// Reads `chat_template.jinja`, else `chat_template.json`, else the `chat_template` of
    /// `tokenizer_config.json`. `None` if there is none: a base model.
    ///
    /// # Errors
    /// A file that cannot be read, or a template that does not parse, by line.
    pub fn open(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join("chat_template.jinja");
        if let Some(source) = read_text(&path, TEMPLATE_BYTES_MAX)? {
            let sources = [(DEFAULT.to_owned(), source)];
            return Self::compile(&path, sources.into(), SpecialTokens::open(dir)?).map(Some);
        }
        for name in ["chat_template.json", "tokenizer_config.json"] {
            let path = dir.join(name);
            let Some(json) = read_object(&path)? else { continue };
            if let Some(sources) = sources(&path, &json)? {
                return Self::compile(&path, sources, SpecialTokens::open(dir)?).map(Some);
            }
        }
        Ok(None)
    }

    /// Compiles a template's text; `path` is its name in errors.
    ///
    /// # Errors
    /// A template that does not parse, by line.
    pub fn from_source(path: &Path, source: &str, special: SpecialTokens) -> Result<Self> {
        Self::compile(path, vec![(DEFAULT.to_owned(), source.to_owned())], special)
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// What the template itself refuses, a construct that fails, or a limit: with line and reason.
    pub fn render(&self, messages: &[Message], options: &TemplateOptions) -> Result<String> {
        let name = if self.has_tool_use && options.tools.is_some() { TOOL_USE } else { DEFAULT };
        let failed = |error: &minijinja::Error| failed(&self.path, error);
        let template = self.environment.get_template(name).map_err(|error| failed(&error))?;
        let context = Value::from_pairs(self.variables(messages, options));
        let mut output = Limited { bytes: Vec::new() };
        template.render_captured_to(context, &mut output).map_err(|error| failed(&error))?;
        String::from_utf8(output.bytes)
            .map_err(|_| Error::malformed(&self.path, "the template wrote half a character"))
    }

    fn variables(&self, messages: &[Message], options: &TemplateOptions) -> Vec<(String, Value)> {
        let messages: Vec<Json> = messages.iter().map(Message::to_json).collect();
        let mut variables: Vec<(String, Value)> = vec![
            ("messages".into(), Value::from(Serde(&messages))),
            ("tools".into(), Value::from(Serde(&options.tools))),
            ("documents".into(), Value::from(())),
            ("add_generation_prompt".into(), Value::from(options.add_generation_prompt)),
            ("strftime_now".into(), time::strftime_now(options.now_seconds)),
        ];
        if let Some(thinking) = options.enable_thinking {
            variables.push(("enable_thinking".into(), Value::from(thinking)));
        }
        for (role, text) in self.special.roles() {
            variables.push((role.to_owned(), Value::from(text)));
        }
        // Later pairs win.
        for (key, value) in &options.extra {
            variables.push((key.clone(), Value::from(Serde(value))));
        }
        variables
    }

    fn compile(
        path: &Path,
        sources: Vec<(String, String)>,
        special: SpecialTokens,
    ) -> Result<Self> {
        let mut environment = environment();
        for (name, source) in sources {
            environment
                .add_template_owned(name, without_generation_tags(&source))
                .map_err(|error| failed(path, &error))?;
        }
        let has = |name| environment.get_template(name).is_ok();
        let has_tool_use = has(TOOL_USE);
        if !has(DEFAULT) {
            return Err(Error::malformed(path, "no chat template is named `default`"));
        }
        Ok(Self { has_tool_use, environment, path: path.to_owned(), special })
    }
}

/// A template by name: one string is the default; a list names each.
fn sources(path: &Path, json: &Json) -> Result<Option<Vec<(String, String)>>> {
    let wrong =
        || Error::malformed(path, "`chat_template` is no string or list of {name, template}");
    let list = match json.get("chat_template") {
        None | Some(Json::Null) => return Ok(None),
        Some(Json::String(source)) => vec![(DEFAULT.to_owned(), source.clone())],
        Some(Json::Array(entries)) => entries
            .iter()
            .map(|entry| {
                let text = |key| entry.get(key).and_then(Json::as_str).map(str::to_owned);
                Some((text("name")?, text("template")?))
            })
            .collect::<Option<Vec<_>>>()
            .ok_or_else(wrong)?,
        Some(_) => return Err(wrong()),
    };
    Ok(Some(list.into_iter().filter(|(name, _)| name == DEFAULT || name == TOOL_USE).collect()))
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the default delimiters differ"));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_debug(false);
    environment.set_fuel(Some(FUEL_MAX));
    environment.set_unknown_method_callback(python::method);
    environment.add_filter("tojson", json::tojson);
    environment.add_test("sequence", python::is_sequence);
    environment.add_test("iterable", python::is_iterable);
    environment.add_function("raise_exception", raise_exception);
    environment
}

fn raise_exception(message: &str) -> std::result::Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, format!("{REFUSAL}{message}")))
}

/// Marks an error as the template's own words, which need no introduction by the library.
const REFUSAL: &str = "the template refuses: ";

/// `{% generation %}` marks what the assistant wrote, for training; to everyone else it is a block
/// that is always there.
fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        result.push_str(before);
        let inner = tag.trim_start_matches(['-', '+']);
        let word = inner.trim_start();
        let replacement = [("generation", "if true"), ("endgeneration", "endif")].into_iter().find(
            |(name, _)| {
                word.strip_prefix(name).is_some_and(|after| {
                    let end = after.trim_start();
                    ["%}", "-%}", "+%}"].iter().any(|close| end.starts_with(close))
                })
            },
        );
        rest = tag;
        if let Some((name, instead)) = replacement {
            result.push_str(&tag[..tag.len() - word.len()]);
            result.push_str(instead);
            rest = &word[name.len()..];
        }
    }
    result.push_str(rest);
    result
}

/// One line: file, line of the template, reason.
fn failed(path: &Path, error: &minijinja::Error) -> Error {
    let mut reason = match error.kind() {
        ErrorKind::OutOfFuel => format!("more than {FUEL_MAX} instructions; an endless loop?"),
        ErrorKind::WriteFailure => format!("more than {OUTPUT_BYTES_MAX} bytes of text"),
        kind => match error.detail() {
            Some(detail) if detail.starts_with(REFUSAL) => detail.to_owned(),
            Some(detail) => format!("{kind}: {detail}"),
            None => kind.to_string(),
        },
    };
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        // Writing to a string cannot fail.
        let _infallible = write!(reason, ": {cause}");
        source = cause.source();
    }
    let reason: String = reason
        .chars()
        .map(|character| if character.is_control() { ' ' } else { character })
        .take(REASON_CHARS_MAX)
        .collect();
    let line = error.line().map_or_else(String::new, |line| format!(", line {line}"));
    Error::malformed(path, format!("chat template{line}: {reason}"))
}

/// Bytes up to the limit.
struct Limited {
    bytes: Vec<u8>,
}

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > OUTPUT_BYTES_MAX {
            return Err(io::Error::other("the template writes too much"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
