//! The grammar of calls, derived from the description of their format and the offered tools.
//!
//! Names are those of offered tools. JSON arguments follow the tool's schema. Tagged arguments come
//! in the schema's order, each once: strings as raw text up to the closing tag, other values as
//! JSON or in Python's syntax. The text around them is exactly that of the template.
//!
//! A keyword of a tool's schema that cannot be enforced is left out, so a tool that is never called
//! does not cause a refusal; the client has to check calls then. In raw text, `pattern` and
//! `format` are not enforced either. **Invariant:** every tool has a grammar. This module is
//! independent of tokens except those of markers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use moeflux::{ModelText, Tokenizer};
use serde_json::{Map, Value as Json, json};

use crate::calls::arguments::schema::ValueKinds;
use crate::calls::format::{ArgumentsForm, CallFormat, NameForm, Scalars, Tags};
use crate::conversation::Tool;
use crate::grammar::lark::literal;
use crate::grammar::schema::growth::{TARGET, TARGETS};
use crate::grammar::schema::keywords::OWN_OPTIONS;
use crate::grammar::schema::{self, Unenforced};

/// Maximum number of consecutive references that are followed to find the type of a parameter.
const REFERENCES_MAX: usize = 16;

/// Maximum size of the rules of all calls in bytes. An agent's tools need less than a tenth of it.
const RULES_BYTES_MAX: usize = 1 << 20;

/// The name of an undeclared parameter.
const ANY_KEY: &str = "/[A-Za-z_][0-9A-Za-z_.-]{0,63}/";

/// The number after a name.
const NUMBER: &str = "/0|[1-9][0-9]{0,3}/";

/// A tool and the cleaned schema of its arguments.
#[derive(Clone, Debug)]
pub(crate) struct OfferedTool<'t> {
    tool: &'t Tool,
    schema: Json,
    /// Whether the schema is the tool's own.
    is_strict: bool,
}

impl<'t> OfferedTool<'t> {
    pub(crate) fn new(tool: &'t Tool) -> Self {
        let closed = closed(&tool.parameters);
        match schema::prepare(&closed, Unenforced::LeftOut) {
            Ok(schema) => Self { tool, schema, is_strict: true },
            Err(_) => Self { tool, schema: any_object(), is_strict: false },
        }
    }

    /// Returns the tool.
    pub(crate) fn tool(&self) -> &'t Tool {
        self.tool
    }

    /// Allows any arguments for the tool.
    pub(crate) fn loosen(&mut self) {
        self.schema = any_object();
        self.is_strict = false;
    }

    /// Returns whether the arguments must follow the tool's schema.
    pub(crate) fn is_strict(&self) -> bool {
        self.is_strict
    }
}

/// Returns a schema for any object, cleaned in the same way as schemas of arguments.
fn any_object() -> Json {
    schema::prepare(&json!({"type": "object"}), Unenforced::LeftOut).expect("a sound schema")
}

/// Returns the schema of arguments: an object without undeclared parameters. A model that invents a
/// parameter calls a tool other than the one offered.
fn closed(parameters: &Json) -> Json {
    let Json::Object(keywords) = parameters else { return json!({"type": "object"}) };
    let mut keywords = keywords.clone();
    // Overrides any other type, because arguments of another type are not a call.
    keywords.insert("type".to_owned(), json!("object"));
    let is_plain =
        !["allOf", "anyOf", "oneOf", "$ref", "patternProperties", "additionalProperties"]
            .iter()
            .any(|it| keywords.contains_key(*it));
    if is_plain && keywords.contains_key("properties") {
        keywords.insert("additionalProperties".to_owned(), Json::Bool(false));
    }
    Json::Object(keywords)
}

/// The calls that a grammar covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallScope {
    /// All calls of a turn, with their first marker.
    Turn,
    /// The calls after the first marker of a turn; a single call if the calls have no common frame.
    AfterOpener,
}

/// Loosens tools, largest first, until the rules of all take at most [`RULES_BYTES_MAX`].
pub(crate) fn fit(format: &CallFormat, tools: &mut [OfferedTool<'_>], text: &ModelText) {
    let markers = markers(format, text.tokenizer());
    let n_bytes = |(idx, tool): (usize, &OfferedTool<'_>)| {
        let is_end = ends_answer(format, text);
        let mut writer = RuleWriter { markers: markers.clone(), is_end, rules: String::new() };
        writer.call(format, format.before_call, (idx, tool));
        (writer.rules.len(), idx)
    };
    let mut sizes: Vec<(usize, usize)> = tools.iter().enumerate().map(n_bytes).collect();
    let mut n_bytes: usize = sizes.iter().map(|(n_bytes, _)| n_bytes).sum();
    sizes.sort_unstable();
    while n_bytes > RULES_BYTES_MAX
        && let Some((n_largest, idx)) = sizes.pop()
    {
        tools[idx].loosen();
        n_bytes -= n_largest;
    }
}

/// Writes the rules of a grammar; the first is `calls`.
pub(crate) fn rules(
    format: &CallFormat,
    tools: &[OfferedTool<'_>],
    (scope, is_one_call): (CallScope, bool),
    text: &ModelText,
) -> String {
    let is_end = ends_answer(format, text);
    let markers = markers(format, text.tokenizer());
    let mut writer = RuleWriter { markers, is_end, rules: String::new() };
    let has_section = !format.before_calls.is_empty();
    let (mut before_calls, mut before_call) = (format.before_calls, format.before_call);
    if scope == CallScope::AfterOpener {
        let first = if has_section { &mut before_calls } else { &mut before_call };
        let after = first.split_once(format.opener());
        assert!(after.is_some() || format.is_bare(), "the opener is a part of it");
        *first = after.map_or(*first, |(_, after)| after);
    }
    let is_one_call = is_one_call || is_end || (scope == CallScope::AfterOpener && !has_section);
    let more = if is_one_call {
        String::new()
    } else {
        format!("({}call)*", writer.text(format.between_calls))
    };
    let (before, after) = (writer.text(before_calls), writer.text(format.after_calls));
    writer.rule("calls", &format!("{before}call {more} {after}"));
    let names: Vec<String> = (0..tools.len()).map(|idx| format!("call_{idx}")).collect();
    writer.rule("call", &names.join(" | "));
    for (idx, tool) in tools.iter().enumerate() {
        writer.call(format, before_call, (idx, tool));
    }
    writer.rules
}

/// Returns the beginning of a call without a marker, up to the colon in front of its arguments.
pub(crate) fn bare_key(format: &CallFormat, tool: &Tool) -> String {
    let before = format!("{}{}{}", format.before_name, quoted(&tool.name), format.after_name);
    before.trim_end().to_owned()
}

/// Writes a text for a grammar; markers that are tokens are written as ids.
pub(crate) fn written(text: &str, markers: &[&'static str], tokenizer: &Tokenizer) -> String {
    let markers = tokens_of(markers.iter().copied(), tokenizer);
    RuleWriter { markers, is_end: false, rules: String::new() }.text(text)
}

/// Returns whether the text after a call is a token that ends the answer. Such a token does not
/// appear in the grammar.
pub(crate) fn ends_answer(format: &CallFormat, text: &ModelText) -> bool {
    let end = text.tokenizer().id_of(format.after_call.trim());
    end.is_some_and(|it| text.end_tokens().contains(&it))
}

/// Returns the markers of a format that are tokens.
fn markers(format: &CallFormat, tokenizer: &Tokenizer) -> Vec<MarkerToken> {
    tokens_of(format.markers(), tokenizer)
}

fn tokens_of(
    markers: impl Iterator<Item = &'static str>,
    tokenizer: &Tokenizer,
) -> Vec<MarkerToken> {
    let marker = |text| {
        let token = tokenizer.id_of(text)?;
        Some(MarkerToken { text, id: token.0, is_special: tokenizer.is_special(token) })
    };
    markers.filter_map(marker).collect()
}

/// A marker that is a token of the model.
#[derive(Clone, Copy, Debug)]
struct MarkerToken {
    text: &'static str,
    id: u32,
    is_special: bool,
}

/// Writes the rules of a grammar.
struct RuleWriter {
    markers: Vec<MarkerToken>,
    /// Whether the answer ends after a call.
    is_end: bool,
    rules: String,
}

impl RuleWriter {
    fn rule(&mut self, name: &str, body: &str) {
        writeln!(self.rules, "{name}: {body}").expect("a text takes any text");
    }

    /// Writes a text of the format: literals, and markers that are tokens as their ids. Special
    /// tokens have no text. Two other markers may begin with the same text, which llguidance would
    /// force in shorter tokens.
    fn text(&self, text: &str) -> String {
        let places = self.markers.iter().filter_map(|it| Some((text.find(it.text)?, it)));
        match places.min_by_key(|(at, _)| *at) {
            None if text.is_empty() => String::new(),
            None => literal(text),
            Some((at, MarkerToken { text: marker, id, .. })) => {
                let after = self.text(&text[at + marker.len()..]);
                format!("{}<[{id}]> {after}", self.text(&text[..at]))
            }
        }
    }

    fn call(
        &mut self,
        format: &CallFormat,
        before_call: &str,
        (idx, tool): (usize, &OfferedTool<'_>),
    ) {
        let name = match format.arguments {
            // Escaped for JSON, if it stands between quotes.
            ArgumentsForm::Json if format.after_name.starts_with('"') => quoted(&tool.tool.name),
            _ => tool.tool.name.clone(),
        };
        let before = format!("{before_call}{}{name}", format.before_name);
        let head = match format.name {
            NameForm::Plain => self.text(&format!("{before}{}", format.after_name)),
            NameForm::Numbered => {
                let after = self.text(format.after_name);
                format!("{}{NUMBER} {after}", self.text(&format!("{before}:")))
            }
        };
        let after_call = if self.is_end { "" } else { format.after_call };
        let tail = self.text(&format!("{}{after_call}", format.after_arguments));
        self.rule(&format!("call_{idx}"), &format!("{head}arguments_{idx} {tail}"));
        match format.arguments {
            ArgumentsForm::Json => {
                self.rule(&format!("arguments_{idx}"), &format!("%json {}", tool.schema));
            }
            ArgumentsForm::Tagged(tags) => self.tagged(tags, (idx, tool)),
        }
    }

    fn tagged(&mut self, tags: Tags, (idx, tool): (usize, &OfferedTool<'_>)) {
        let schema = &tool.schema;
        let Some(properties) = schema.get("properties").and_then(Json::as_object) else {
            self.undeclared(tags, idx);
            return;
        };
        let required: BTreeSet<&str> = names(schema.get("required")).collect();
        let n_before = self.rules.len();
        let mut all = Vec::new();
        for (at, (name, property)) in properties.iter().enumerate() {
            let rule = format!("value_{idx}_{at}");
            let kinds = ValueKinds::of_parameter(&tool.tool.parameters, name);
            let mut forms = Vec::new();
            for (nth, (after_key, kinds)) in tags.after_keys(kinds).into_iter().enumerate() {
                let key = self.text(&format!("{}{name}{after_key}", tags.before_key));
                let rule = if nth == 0 { rule.clone() } else { format!("{rule}_json") };
                self.value(tags, &rule, (property, schema, kinds));
                forms.push(format!("{key}{rule}"));
            }
            // This is too large already and will be loosened.
            if self.rules.len() - n_before > RULES_BYTES_MAX {
                return;
            }
            let mark = if required.contains(name.as_str()) { "" } else { "?" };
            all.push(format!("({}){mark}", forms.join(" | ")));
        }
        let all = if !all.is_empty() {
            all.join(" ")
        } else if tags.no_parameters.is_empty() {
            "\"\"".to_owned()
        } else {
            self.text(tags.no_parameters)
        };
        self.rule(&format!("arguments_{idx}"), &all);
    }

    /// Writes parameters of any name, which the schema does not declare.
    fn undeclared(&mut self, tags: Tags, idx: usize) {
        let key = |writer: &Self, after_key| {
            format!("{}{ANY_KEY} {}", writer.text(tags.before_key), writer.text(after_key))
        };
        let raw = format!("raw_{idx}");
        self.raw(tags, &raw, "/(?s:.*)/");
        let mut forms = format!("{}{raw}", key(self, tags.after_key));
        if tags.mark_strings() {
            let json = format!("json_{idx}");
            let after = self.text(tags.after_value);
            self.rule(&json, &format!("{json}_is {after}"));
            self.rule(&format!("{json}_is"), "%json {}");
            write!(forms, " | {}{json}", key(self, tags.after_json_key)).expect("a text");
        }
        let none = match tags.no_parameters {
            "" => String::new(),
            text => format!(" | {}", self.text(text)),
        };
        let some = if none.is_empty() { "*" } else { "+" };
        self.rule(&format!("arguments_{idx}"), &format!("({forms}){some}{none}"));
    }

    /// Writes a value and the text after it. `kinds` are the kinds by which it will be parsed.
    fn value(
        &mut self,
        tags: Tags,
        rule: &str,
        (property, root, kinds): (&Json, &Json, ValueKinds),
    ) {
        let property = resolved(property, root);
        let after = self.text(tags.after_value);
        if kinds.has_text() {
            let texts = texts(property, tags);
            if texts.is_empty() {
                self.raw(tags, rule, &body(property, kinds));
            } else {
                let texts: Vec<String> = texts.iter().map(|it| literal(it)).collect();
                self.rule(rule, &format!("({}) {after}", texts.join(" | ")));
            }
            return;
        }
        let mut cases = Vec::new();
        let mut others: Vec<&str> = kinds.names().collect();
        if tags.scalars == Scalars::Python {
            for (kind, written) in [("null", "\"None\""), ("boolean", "\"True\" | \"False\"")] {
                if others.contains(&kind) {
                    others.retain(|it| *it != kind);
                    cases.push(written.to_owned());
                }
            }
        }
        if !others.is_empty() {
            cases.push(format!("%json {}", narrowed(property, root, &others)));
        }
        self.rule(rule, &format!("{rule}_is {after}"));
        self.rule(&format!("{rule}_is"), &cases.join(" | "));
    }

    /// Writes raw text that ends with the closing tag and does not contain it.
    fn raw(&mut self, tags: Tags, rule: &str, body: &str) {
        let marker = tags.after_value.trim();
        let terminal = rule.to_uppercase();
        if self.markers.iter().any(|it| it.text == marker && it.is_special) {
            let at = tags.after_value.find(marker).expect("a part of it");
            let (before, after) = tags.after_value.split_at(at);
            let before = if before.is_empty() { String::new() } else { literal(before) };
            self.rule(&terminal, &format!("{body} {before}"));
            let after = self.text(after);
            self.rule(rule, &format!("{terminal} {after}"));
            return;
        }
        let end = tags.after_value.find(marker).expect("a part of it") + marker.len();
        let (suffix, after) = tags.after_value.split_at(end);
        let without = marker.replace('/', "\\/");
        self.rule(&terminal, &format!("{body} & ~/(?s:.*){without}(?s:.*)/"));
        self.rule(&format!("{rule}_is[suffix={}]", literal(suffix).trim()), &terminal);
        let after = self.text(after);
        self.rule(rule, &format!("{rule}_is {after}"));
    }
}

/// Escapes a name for a string of JSON.
fn quoted(name: &str) -> String {
    let quoted = Json::from(name).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

fn names(list: Option<&Json>) -> impl Iterator<Item = &str> {
    list.and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str)
}

/// Follows schemas that are nothing but a reference.
fn resolved<'s>(mut schema: &'s Json, root: &'s Json) -> &'s Json {
    for _ in 0..REFERENCES_MAX {
        let reference = schema.get("$ref").and_then(Json::as_str);
        let name = reference.and_then(|it| it.strip_prefix(TARGET));
        let target = name.and_then(|name| root.get(TARGETS)?.get(name));
        match target {
            Some(target) if schema.as_object().is_some_and(|it| it.len() == 1) => schema = target,
            _ => break,
        }
    }
    schema
}

/// Returns the only texts that a schema allows between tags; empty if there may be others.
fn texts(schema: &Json, tags: Tags) -> Vec<String> {
    let values = schema.get("enum").and_then(Json::as_array).cloned();
    let values = values.or_else(|| schema.get("const").map(|it| vec![it.clone()]));
    let mut values = values.unwrap_or_default();
    values.retain(|it| it.is_string() || !tags.mark_strings());
    let text = |value: Json| match (value, tags.scalars) {
        (Json::String(text), _) => text,
        (Json::Null, Scalars::Python) => "None".to_owned(),
        (Json::Bool(true), Scalars::Python) => "True".to_owned(),
        (Json::Bool(false), Scalars::Python) => "False".to_owned(),
        (other, _) => other.to_string(),
    };
    values.into_iter().map(text).collect()
}

/// Returns raw text of a length that the schema allows.
fn body(schema: &Json, kinds: ValueKinds) -> String {
    let count = |name: &str| schema.get(name).and_then(Json::as_u64).filter(|_| kinds.is_text());
    match (count("minLength"), count("maxLength")) {
        (None, None) => "/(?s:.*)/".to_owned(),
        (least, Some(most)) => format!("/(?s:.{{{},{most}}})/", least.unwrap_or(0)),
        (Some(least), None) => format!("/(?s:.{{{least},}})/"),
    }
}

/// Returns a self-contained schema restricted to some kinds of values.
fn narrowed(schema: &Json, root: &Json, kinds: &[&str]) -> Json {
    let mut keywords = schema.as_object().cloned().unwrap_or_else(Map::new);
    if keywords.get("type").is_none_or(Json::is_array) {
        let is_whole = names(keywords.get("type")).any(|it| it == "integer")
            && !names(keywords.get("type")).any(|it| it == "number");
        let kinds = kinds.iter().copied();
        let names = kinds.map(|kind| if kind == "number" && is_whole { "integer" } else { kind });
        keywords.insert("type".to_owned(), names.collect());
    }
    let targets = reachable(schema, root);
    if !targets.is_empty() {
        let targets = targets.into_iter().map(|(name, it)| (name.to_owned(), it.clone()));
        keywords.insert(TARGETS.to_owned(), Json::Object(targets.collect()));
    }
    if let Some(options) = root.get(OWN_OPTIONS) {
        keywords.insert(OWN_OPTIONS.to_owned(), options.clone());
    }
    Json::Object(keywords)
}

/// Returns all targets that a part of a cleaned schema refers to, directly or indirectly.
fn reachable<'s>(schema: &'s Json, root: &'s Json) -> BTreeMap<&'s str, &'s Json> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![schema];
    while let Some(value) = waiting.pop() {
        match value {
            Json::Object(members) => waiting.extend(members.values()),
            Json::Array(members) => waiting.extend(members),
            Json::String(text) => {
                // A string value that only looks like a reference adds at most one surplus target.
                let name = text.strip_prefix(TARGET);
                let target = name.and_then(|it| Some((it, root.get(TARGETS)?.get(it)?)));
                if let Some((name, target)) = target
                    && found.insert(name, target).is_none()
                {
                    waiting.push(target);
                }
            }
            _ => {}
        }
    }
    found
}
