//! Turns a conversation into the text that the model was trained on, by the checkpoint's template.
//!
//! Templates are Jinja as transformers sets it up: blocks trimmed on both sides, loop controls, a
//! few functions more. minijinja parses them and runs instructions that `compile` makes; Python's
//! string methods, `tojson` and `strftime_now` are added here.
//! **Invariant:** a template is a stranger's program: rendering ends in a text or in one line that
//! names the template's line and the reason, soon and in bounded memory, the same on every machine.
//! Knows no tokenizer, reads no clock.

mod check;
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
use crate::text::template::meter::{Meter, WORK_MAX};

/// Most bytes of a template; published ones have up to 30 KB.
pub(crate) const TEMPLATE_BYTES_MAX: u64 = 1 << 20;
/// Most bytes of a rendered conversation: what the tokenizer takes.
pub const OUTPUT_BYTES_MAX: usize = 64 << 20;
/// Most instructions of one rendering. A message takes a few hundred, so this is far above any
/// conversation, and about a second.
pub(crate) const FUEL_MAX: u64 = 20_000_000;

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

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
    fn to_value(&self, meter: &Meter) -> std::result::Result<Value, minijinja::Error> {
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
    /// What the text and the values for it may take.
    pub limit: TextLimit,
}

/// A checkpoint's chat template, which has been compiled once without an error.
#[derive(Debug)]
pub struct ChatTemplate {
    default: String,
    tool_use: Option<String>,
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

    /// Whether these characters stand anywhere in the template: a marker that its model knows.
    #[must_use]
    pub fn mentions(&self, marker: &str) -> bool {
        [Some(&self.default), self.tool_use.as_ref()].iter().flatten().any(|it| it.contains(marker))
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// What the template itself refuses, a construct that fails, or a limit: with line and reason.
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
        meter: &Arc<Meter>,
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
        // Later pairs win.
        for (key, value) in &options.extra {
            variables.push((key.clone(), values::from_json(meter, value)?));
        }
        Ok(variables)
    }

    /// Compiles templates by name, of which those named `default` and `tool_use` are used.
    ///
    /// # Errors
    /// One that is too long, or does not parse, by line.
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

/// A template by name: one string is the default; a list names each.
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

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
