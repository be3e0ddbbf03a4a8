//! Renders a conversation into the text format that the model was trained on, with the checkpoint's
//! template.
//!
//! Templates are Jinja as configured by transformers: blocks trimmed on both sides, loop controls,
//! some additional functions. minijinja parses them and runs instructions that `compile` generates;
//! Python's string methods, `tojson` and `strftime_now` are added here. **Invariant:** a template
//! is untrusted code: rendering ends in a text or in a one-line error with the template's line and
//! the reason, in bounded time and memory, with the same result on every machine. This module knows
//! no tokenizer, reads no clock.

mod check;
pub(crate) mod own;
mod compile;
mod meter;
mod values;
mod operators;
mod charges;
mod json;
mod filters;
mod python;
mod time;
mod functions;
mod render;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use minijinja::Value;
use serde_json::{Map, Value as Json};

use crate::error::{Error, Result};
use crate::text::files::{read_object, read_text};
use crate::text::limit::TextLimit;
use crate::text::special::SpecialTokens;
use crate::text::template::meter::{RenderMeter, WORK_MAX};
use crate::text::template::own::own_template;

/// Maximum bytes of a template; published ones have up to 30 KB.
pub(crate) const TEMPLATE_BYTES_MAX: u64 = 1 << 20;
/// Maximum bytes of a rendered conversation, which is the tokenizer's limit.
pub const OUTPUT_BYTES_MAX: usize = 64 << 20;
/// Maximum instructions of one rendering. A message takes a few hundred, so the limit is far above
/// any conversation; it takes about a second.
pub(crate) const FUEL_MAX: u64 = 20_000_000;

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or another role that the template supports.
    pub role: String,
    /// A string, a list of parts, or null if there are tool calls.
    pub content: Json,
    /// Reasoning of the assistant, separate from its answer.
    pub reasoning: Option<String>,
    /// Tool calls of the assistant, in the form that the template expects.
    pub tool_calls: Option<Json>,
    /// Other keys: `name`, `tool_call_id`.
    pub extra: Map<String, Json>,
}

impl Message {
    /// Creates a message of plain text.
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

    /// Returns the keys that templates read. Reasoning has two names, as in transformers.
    fn to_value(&self, meter: &RenderMeter) -> std::result::Result<Value, minijinja::Error> {
        let mut entries = vec![
            ("role", Value::from(self.role.as_str())),
            ("content", values::from_json(meter, &self.content)?),
        ];
        if let Some(reasoning) = &self.reasoning {
            let reasoning = Value::from(reasoning.as_str());
            entries.push(("reasoning_content", reasoning.clone()));
            entries.push(("thinking", reasoning));
        }
        if let Some(calls) = &self.tool_calls {
            entries.push(("tool_calls", values::from_json(meter, calls)?));
        }
        let n_known = entries.len();
        for (key, value) in &self.extra {
            if entries[..n_known].iter().all(|(known, _)| known != key) {
                entries.push((key, values::from_json(meter, value)?));
            }
        }
        let (keys, values) = entries.into_iter().map(|(key, it)| (Value::from(key), it)).unzip();
        values::given_map(meter, keys, values)
    }
}

/// The variables of a template besides the messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TemplateOptions {
    /// Whether to end with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Whether to enable thinking, for templates that support it; `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// List of tools, in the form of the `OpenAI` API.
    pub tools: Option<Json>,
    /// Local time of the caller in seconds since 1970 (UTC offset added), for templates that write
    /// the date.
    pub now_seconds: Option<i64>,
    /// Additional variables; they override the tokens of the tokenizer's config.
    pub extra: Map<String, Json>,
    /// Limits on the text and on the values created for it.
    pub limit: TextLimit,
}

/// A checkpoint's chat template, which is known to compile.
#[derive(Debug)]
pub struct ChatTemplate {
    default: String,
    tool_use: Option<String>,
    path: PathBuf,
    special: SpecialTokens,
}

impl ChatTemplate {
    /// Reads `chat_template.jinja`, otherwise `chat_template.json`, otherwise the `chat_template`
    /// of `tokenizer_config.json`. Without any of these, takes our own template for the model's
    /// type, if there is one. Returns `None` if there is none, as in a base model.
    ///
    /// # Errors
    /// If a file cannot be read, or a template does not parse. The error has the line.
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
        let config = read_object(&dir.join("config.json"))?;
        let model_type = config.as_ref().and_then(|it| it.get("model_type")?.as_str());
        let Some(source) = model_type.and_then(own_template) else { return Ok(None) };
        Self::from_source(dir, source, SpecialTokens::open(dir)?).map(Some)
    }

    /// Compiles a template's text. `path` is its name in errors.
    ///
    /// # Errors
    /// If the template does not parse. The error has the line.
    pub fn from_source(path: &Path, source: &str, special: SpecialTokens) -> Result<Self> {
        Self::compile(path, vec![(DEFAULT.to_owned(), source.to_owned())], special)
    }

    /// Returns whether the template contains `marker`, so that its model knows it.
    #[must_use]
    pub fn mentions(&self, marker: &str) -> bool {
        [Some(&self.default), self.tool_use.as_ref()].iter().flatten().any(|it| it.contains(marker))
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// If the template refuses the conversation, a construct fails, or a limit is exceeded. The
    /// error has line and reason.
    pub fn render(&self, messages: &[Message], options: &TemplateOptions) -> Result<String> {
        self.render_within(WORK_MAX, messages, options)
    }

    fn render_within(
        &self,
        work_max: u64,
        messages: &[Message],
        options: &TemplateOptions,
    ) -> Result<String> {
        let tool_use = self.tool_use.as_ref().filter(|_| options.tools.is_some());
        let source = tool_use.unwrap_or(&self.default);
        render::render(&self.path, source, (work_max, &options.limit), |meter| {
            Ok(Value::from_pairs(self.variables(meter, messages, options)?))
        })
    }

    fn variables(
        &self,
        meter: &Arc<RenderMeter>,
        messages: &[Message],
        options: &TemplateOptions,
    ) -> std::result::Result<Vec<(String, Value)>, minijinja::Error> {
        let messages = messages.iter().map(|message| message.to_value(meter));
        let messages = messages.collect::<std::result::Result<Vec<Value>, _>>()?;
        let tools = options.tools.as_ref().unwrap_or(&Json::Null);
        let mut variables: Vec<(String, Value)> = vec![
            ("messages".into(), values::given(meter, messages)?),
            ("tools".into(), values::from_json(meter, tools)?),
            ("documents".into(), Value::from(())),
            ("add_generation_prompt".into(), Value::from(options.add_generation_prompt)),
            ("strftime_now".into(), time::strftime_now(meter, options.now_seconds)),
        ];
        if let Some(thinking) = options.enable_thinking {
            variables.push(("enable_thinking".into(), Value::from(thinking)));
        }
        for (role, text) in self.special.roles() {
            variables.push((role.to_owned(), Value::from(text)));
        }
        // Later pairs take precedence.
        for (key, value) in &options.extra {
            variables.push((key.clone(), values::from_json(meter, value)?));
        }
        Ok(variables)
    }

    /// Compiles named templates. Those named `default` and `tool_use` are used.
    ///
    /// # Errors
    /// If a template is too long or does not parse. The error has the line.
    pub(crate) fn of_sources(
        path: &Path,
        sources: Vec<(String, String)>,
        special: SpecialTokens,
    ) -> Result<Self> {
        let too_long = |(_, source): &&(String, String)| source.len() as u64 > TEMPLATE_BYTES_MAX;
        if let Some((_, source)) = sources.iter().find(too_long) {
            let problem = format!(
                "a chat template of {} bytes; the limit is {TEMPLATE_BYTES_MAX}",
                source.len()
            );
            return Err(Error::malformed(path, problem));
        }
        Self::compile(path, sources, special)
    }

    fn compile(
        path: &Path,
        sources: Vec<(String, String)>,
        special: SpecialTokens,
    ) -> Result<Self> {
        let (mut default, mut tool_use) = (None, None);
        for (name, source) in sources {
            let source = without_generation_tags(&source);
            render::try_compile(path, &source)?;
            *(if name == TOOL_USE { &mut tool_use } else { &mut default }) = Some(source);
        }
        let none = || Error::malformed(path, "no chat template is named `default`");
        Ok(Self { default: default.ok_or_else(none)?, tool_use, path: path.to_owned(), special })
    }
}

/// Returns the templates by name: a string is the default template, a list names each.
fn sources(path: &Path, json: &Json) -> Result<Option<Vec<(String, String)>>> {
    let wrong = || {
        Error::malformed(path, "`chat_template` is neither a string nor a list of {name, template}")
    };
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

/// Replaces `{% generation %}` blocks by unconditional ones. They mark the assistant's text for
/// training and have no effect on rendering.
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

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
