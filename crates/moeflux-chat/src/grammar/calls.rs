//! The grammar of calls, from the description of their format and the tools that are offered.
//!
//! Names are those of offered tools. JSON arguments follow the tool's schema; tagged ones come in
//! the schema's order, each once: strings as raw text up to the closing tag, everything else as
//! JSON or as Python writes it. What stands around them is what the template writes, to the byte.
//!
//! A keyword of a tool's schema that cannot be enforced is left out, so that a tool which nobody
//! calls costs no answer: calls are then checked by who runs them. In raw text, `pattern` and
//! `format` are not enforced either.
//! **Invariant:** every tool has a grammar. Knows no tokens but those of markers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use moeflux::{ModelText, Tokenizer};
use serde_json::{Map, Value as Json, json};

use crate::calls::format::{ArgumentsForm, CallFormat, NameForm, Scalars, Tags};
use crate::calls::schema::Kinds;
use crate::conversation::Tool;
use crate::grammar::growth::{TARGET, TARGETS};
use crate::grammar::keywords::OWN_OPTIONS;
use crate::grammar::lark::literal;
use crate::grammar::schema::{self, Unenforced};

/// Most references in a row that are followed to see what a parameter is.
const REFERENCES_MAX: usize = 16;

/// Most bytes of the rules of all calls: an agent's tools have less than a tenth of it.
const RULES_BYTES_MAX: usize = 1 << 20;

/// A name of a parameter that its schema does not declare.
const ANY_KEY: &str = "/[A-Za-z_][0-9A-Za-z_.-]{0,63}/";

/// A number behind a name.
const NUMBER: &str = "/0|[1-9][0-9]{0,3}/";

/// A tool and the cleaned schema of its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Offered<'t> {
    tool: &'t Tool,
    schema: Json,
    /// Whether the schema is the tool's own.
    is_held: bool,
}

impl<'t> Offered<'t> {
    pub(crate) fn new(tool: &'t Tool) -> Self {
        let closed = closed(&tool.parameters);
        match schema::prepare(&closed, Unenforced::LeftOut) {
            Ok(schema) => Self { tool, schema, is_held: true },
            Err(_) => Self { tool, schema: any_object(), is_held: false },
        }
    }

    /// Lets the tool have any arguments.
    pub(crate) fn loosen(&mut self) {
        self.schema = any_object();
        self.is_held = false;
    }

    /// Whether the arguments follow the tool's schema.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held
    }
}

/// Any object, in the way that schemas of arguments are written.
fn any_object() -> Json {
    schema::prepare(&json!({"type": "object"}), Unenforced::LeftOut).expect("a sound schema")
}

/// The schema of arguments: an object, without parameters that are not declared. A model that makes
/// up a parameter calls another tool than the one that was offered.
fn closed(parameters: &Json) -> Json {
    let Json::Object(keywords) = parameters else { return json!({"type": "object"}) };
    let mut keywords = keywords.clone();
    // Whatever it says: arguments of another kind are no call.
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

/// Which calls a grammar is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All of a turn, with their first marker.
    Turn,
    /// Behind the first marker of a turn. Without markers around all calls, one call.
    BehindOpener,
}

/// Loosens tools, the largest first, until the rules of all have at most [`RULES_BYTES_MAX`].
pub(crate) fn fit(format: &CallFormat, tools: &mut [Offered<'_>], text: &ModelText) {
    let markers = markers(format, text.tokenizer());
    let n_bytes = |(idx, tool): (usize, &Offered<'_>)| {
        let is_end = ends_answer(format, text);
        let mut writer = Writer { markers: markers.clone(), is_end, rules: String::new() };
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

/// The rules of a grammar, whose first is `calls`.
pub(crate) fn rules(
    format: &CallFormat,
    tools: &[Offered<'_>],
    (extent, is_one_call): (Extent, bool),
    text: &ModelText,
) -> String {
    let is_end = ends_answer(format, text);
    let markers = markers(format, text.tokenizer());
    let mut writer = Writer { markers, is_end, rules: String::new() };
    let has_section = !format.before_calls.is_empty();
    let (mut before_calls, mut before_call) = (format.before_calls, format.before_call);
    if extent == Extent::BehindOpener {
        let first = if has_section { &mut before_calls } else { &mut before_call };
        let at = first.find(format.opener()).expect("the opener is a part of it");
        *first = &first[at + format.opener().len()..];
    }
    let is_one_call = is_one_call || is_end || (extent == Extent::BehindOpener && !has_section);
    let more = if is_one_call {
        String::new()
    } else {
        format!("({}call)*", writer.text(format.between_calls))
    };
    let (before, behind) = (writer.text(before_calls), writer.text(format.behind_calls));
    writer.rule("calls", &format!("{before}call {more} {behind}"));
    let names: Vec<String> = (0..tools.len()).map(|idx| format!("call_{idx}")).collect();
    writer.rule("call", &names.join(" | "));
    for (idx, tool) in tools.iter().enumerate() {
        writer.call(format, before_call, (idx, tool));
    }
    writer.rules
}

/// A text for a grammar, with these markers by their ids where they are tokens.
pub(crate) fn written(text: &str, markers: &[&'static str], tokenizer: &Tokenizer) -> String {
    let markers = tokens_of(markers.iter().copied(), tokenizer);
    Writer { markers, is_end: false, rules: String::new() }.text(text)
}

/// Whether what stands behind a call is a token that ends the answer: then no grammar names it.
pub(crate) fn ends_answer(format: &CallFormat, text: &ModelText) -> bool {
    let end = text.tokenizer().id_of(format.behind_call.trim());
    end.is_some_and(|it| text.end_tokens().contains(&it))
}

/// The markers of a format that are tokens.
fn markers(format: &CallFormat, tokenizer: &Tokenizer) -> Vec<Marker> {
    tokens_of(format.markers(), tokenizer)
}

fn tokens_of(markers: impl Iterator<Item = &'static str>, tokenizer: &Tokenizer) -> Vec<Marker> {
    let marker = |text| {
        let token = tokenizer.id_of(text)?;
        Some(Marker { text, id: token.0, is_special: tokenizer.is_special(token) })
    };
    markers.filter_map(marker).collect()
}

#[derive(Clone, Copy, Debug)]
struct Marker {
    text: &'static str,
    id: u32,
    is_special: bool,
}

struct Writer {
    markers: Vec<Marker>,
    /// Whether the answer ends behind a call.
    is_end: bool,
    rules: String,
}

impl Writer {
    fn rule(&mut self, name: &str, body: &str) {
        writeln!(self.rules, "{name}: {body}").expect("a text takes any text");
    }

    /// A text of the format: literals, and markers that are tokens by their ids. Special ones have
    /// no text; of the others, two may begin with the same text, which llguidance would force in
    /// shorter tokens.
    fn text(&self, text: &str) -> String {
        let places = self.markers.iter().filter_map(|it| Some((text.find(it.text)?, it)));
        match places.min_by_key(|(at, _)| *at) {
            None if text.is_empty() => String::new(),
            None => literal(text),
            Some((at, Marker { text: marker, id, .. })) => {
                let behind = self.text(&text[at + marker.len()..]);
                format!("{}<[{id}]> {behind}", self.text(&text[..at]))
            }
        }
    }

    fn call(&mut self, format: &CallFormat, before_call: &str, (idx, tool): (usize, &Offered<'_>)) {
        let name = match format.arguments {
            // In JSON, if it stands between quotes.
            ArgumentsForm::Json if format.behind_name.starts_with('"') => {
                let quoted = Json::from(tool.tool.name.as_str()).to_string();
                quoted[1..quoted.len() - 1].to_owned()
            }
            _ => tool.tool.name.clone(),
        };
        let before = format!("{before_call}{}{name}", format.before_name);
        let head = match format.name {
            NameForm::Plain => self.text(&format!("{before}{}", format.behind_name)),
            NameForm::Numbered => {
                let behind = self.text(format.behind_name);
                format!("{}{NUMBER} {behind}", self.text(&format!("{before}:")))
            }
        };
        let behind_call = if self.is_end { "" } else { format.behind_call };
        let tail = self.text(&format!("{}{behind_call}", format.behind_arguments));
        self.rule(&format!("call_{idx}"), &format!("{head}arguments_{idx} {tail}"));
        match format.arguments {
            ArgumentsForm::Json => {
                self.rule(&format!("arguments_{idx}"), &format!("%json {}", tool.schema));
            }
            ArgumentsForm::Tagged(tags) => self.tagged(tags, (idx, tool)),
        }
    }

    fn tagged(&mut self, tags: Tags, (idx, tool): (usize, &Offered<'_>)) {
        let schema = &tool.schema;
        let Some(properties) = schema.get("properties").and_then(Json::as_object) else {
            let key =
                format!("{}{ANY_KEY} {}", self.text(tags.before_key), self.text(tags.behind_key));
            self.raw(tags, &format!("raw_{idx}"), "/(?s:.*)/");
            self.rule(&format!("arguments_{idx}"), &format!("({key}raw_{idx})*"));
            return;
        };
        let required: BTreeSet<&str> = names(schema.get("required")).collect();
        let n_before = self.rules.len();
        let mut all = Vec::new();
        for (at, (name, property)) in properties.iter().enumerate() {
            let rule = format!("value_{idx}_{at}");
            let key = self.text(&format!("{}{name}{}", tags.before_key, tags.behind_key));
            let kinds = Kinds::of_parameter(&tool.tool.parameters, name);
            self.value(tags, &rule, (property, schema, kinds));
            // Too much already: it will be loosened.
            if self.rules.len() - n_before > RULES_BYTES_MAX {
                return;
            }
            let mark = if required.contains(name.as_str()) { "" } else { "?" };
            all.push(format!("({key}{rule}){mark}"));
        }
        let all = if all.is_empty() { "\"\"".to_owned() } else { all.join(" ") };
        self.rule(&format!("arguments_{idx}"), &all);
    }

    /// A value with what stands behind it. Its kinds are those by which it will be read.
    fn value(&mut self, tags: Tags, rule: &str, (property, root, kinds): (&Json, &Json, Kinds)) {
        let property = resolved(property, root);
        let behind = self.text(tags.behind_value);
        if kinds.has_text() {
            let texts = texts(property, tags.scalars);
            if texts.is_empty() {
                self.raw(tags, rule, &body(property, kinds));
            } else {
                let texts: Vec<String> = texts.iter().map(|it| literal(it)).collect();
                self.rule(rule, &format!("({}) {behind}", texts.join(" | ")));
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
        self.rule(rule, &format!("{rule}_is {behind}"));
        self.rule(&format!("{rule}_is"), &cases.join(" | "));
    }

    /// Raw text up to the closing tag, which it does not contain.
    fn raw(&mut self, tags: Tags, rule: &str, body: &str) {
        let marker = tags.behind_value.trim();
        let terminal = rule.to_uppercase();
        if self.markers.iter().any(|it| it.text == marker && it.is_special) {
            let at = tags.behind_value.find(marker).expect("a part of it");
            let (before, behind) = tags.behind_value.split_at(at);
            let before = if before.is_empty() { String::new() } else { literal(before) };
            self.rule(&terminal, &format!("{body} {before}"));
            let behind = self.text(behind);
            self.rule(rule, &format!("{terminal} {behind}"));
            return;
        }
        let end = tags.behind_value.find(marker).expect("a part of it") + marker.len();
        let (suffix, behind) = tags.behind_value.split_at(end);
        let without = marker.replace('/', "\\/");
        self.rule(&terminal, &format!("{body} & ~/(?s:.*){without}(?s:.*)/"));
        self.rule(&format!("{rule}_is[suffix={}]", literal(suffix).trim()), &terminal);
        let behind = self.text(behind);
        self.rule(rule, &format!("{rule}_is {behind}"));
    }
}

fn names(list: Option<&Json>) -> impl Iterator<Item = &str> {
    list.and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str)
}

/// What a schema that is nothing but a reference refers to.
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

/// The only texts that a schema allows, in tags; empty if there may be others.
fn texts(schema: &Json, scalars: Scalars) -> Vec<String> {
    let values = schema.get("enum").and_then(Json::as_array).cloned();
    let values = values.or_else(|| schema.get("const").map(|it| vec![it.clone()]));
    let text = |value: Json| match (value, scalars) {
        (Json::String(text), _) => text,
        (Json::Null, Scalars::Python) => "None".to_owned(),
        (Json::Bool(true), Scalars::Python) => "True".to_owned(),
        (Json::Bool(false), Scalars::Python) => "False".to_owned(),
        (other, _) => other.to_string(),
    };
    values.unwrap_or_default().into_iter().map(text).collect()
}

/// Raw text of a length that the schema allows.
fn body(schema: &Json, kinds: Kinds) -> String {
    let count = |name: &str| schema.get(name).and_then(Json::as_u64).filter(|_| kinds.is_text());
    match (count("minLength"), count("maxLength")) {
        (None, None) => "/(?s:.*)/".to_owned(),
        (least, Some(most)) => format!("/(?s:.{{{},{most}}})/", least.unwrap_or(0)),
        (Some(least), None) => format!("/(?s:.{{{least},}})/"),
    }
}

/// The schema for some kinds of values only, on its own.
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

/// What a part of a cleaned schema refers to, and so on.
fn reachable<'s>(schema: &'s Json, root: &'s Json) -> BTreeMap<&'s str, &'s Json> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![schema];
    while let Some(value) = waiting.pop() {
        match value {
            Json::Object(members) => waiting.extend(members.values()),
            Json::Array(members) => waiting.extend(members),
            Json::String(text) => {
                // A value that only reads like a reference leads to a target too many at most.
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
