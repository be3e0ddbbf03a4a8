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

use std::collections::BTreeSet;
use std::fmt::Write;

use moeflux::Tokenizer;
use serde_json::{Map, Value as Json, json};

use crate::calls::format::{ArgumentsForm, CallFormat, NameForm, Scalars, Tags};
use crate::conversation::Tool;
use crate::grammar::growth::{TARGET, TARGETS};
use crate::grammar::keywords::OWN_OPTIONS;
use crate::grammar::lark::literal;
use crate::grammar::schema::{self, Unenforced};

/// Most references in a row that are followed to see what a parameter is.
const REFERENCES_MAX: usize = 16;

/// A name of a parameter that its schema does not declare.
const ANY_KEY: &str = "/[A-Za-z_][0-9A-Za-z_.-]{0,63}/";

/// A number behind a name.
const NUMBER: &str = "/0|[1-9][0-9]{0,3}/";

/// A tool and the cleaned schema of its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Offered<'t> {
    pub(crate) name: &'t str,
    pub(crate) schema: Json,
}

impl<'t> Offered<'t> {
    pub(crate) fn new(tool: &'t Tool) -> Self {
        let closed = closed(&tool.parameters);
        let schema = schema::prepare(&closed, Unenforced::LeftOut);
        Self { name: &tool.name, schema: schema.unwrap_or_else(|_| any_object()) }
    }

    /// The same tool with any arguments.
    pub(crate) fn loosened(&self) -> Self {
        Self { name: self.name, schema: any_object() }
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
    keywords.entry("type").or_insert_with(|| json!("object"));
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

/// The rules of a grammar, whose first is `calls`.
pub(crate) fn rules(
    format: &CallFormat,
    tools: &[Offered<'_>],
    (extent, is_one_call): (Extent, bool),
    tokenizer: &Tokenizer,
) -> String {
    let markers = markers(format, tokenizer);
    let mut writer = Writer { markers, rules: String::new() };
    let has_section = !format.before_calls.is_empty();
    let (mut before_calls, mut before_call) = (format.before_calls, format.before_call);
    if extent == Extent::BehindOpener {
        let first = if has_section { &mut before_calls } else { &mut before_call };
        let at = first.find(format.opener()).expect("the opener is a part of it");
        *first = &first[at + format.opener().len()..];
    }
    let is_one_call = is_one_call || (extent == Extent::BehindOpener && !has_section);
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

/// The markers of a format that are tokens.
fn markers(format: &CallFormat, tokenizer: &Tokenizer) -> Vec<Marker> {
    let marker = |text| {
        let token = tokenizer.id_of(text)?;
        Some(Marker { text, id: token.0, is_special: tokenizer.is_special(token) })
    };
    format.markers().filter_map(marker).collect()
}

#[derive(Clone, Copy, Debug)]
struct Marker {
    text: &'static str,
    id: u32,
    is_special: bool,
}

struct Writer {
    markers: Vec<Marker>,
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
                let quoted = Json::from(tool.name).to_string();
                quoted[1..quoted.len() - 1].to_owned()
            }
            _ => tool.name.to_owned(),
        };
        let before = format!("{before_call}{}{name}", format.before_name);
        let head = match format.name {
            NameForm::Plain => self.text(&format!("{before}{}", format.behind_name)),
            NameForm::Numbered => {
                let behind = self.text(format.behind_name);
                format!("{}{NUMBER} {behind}", self.text(&format!("{before}:")))
            }
        };
        let tail = self.text(&format!("{}{}", format.behind_arguments, format.behind_call));
        self.rule(&format!("call_{idx}"), &format!("{head}arguments_{idx} {tail}"));
        match format.arguments {
            ArgumentsForm::Json => {
                self.rule(&format!("arguments_{idx}"), &format!("%json {}", tool.schema));
            }
            ArgumentsForm::Tagged(tags) => self.tagged(tags, idx, &tool.schema),
        }
    }

    fn tagged(&mut self, tags: Tags, idx: usize, schema: &Json) {
        let Some(properties) = schema.get("properties").and_then(Json::as_object) else {
            let key =
                format!("{}{ANY_KEY} {}", self.text(tags.before_key), self.text(tags.behind_key));
            self.raw(tags, &format!("raw_{idx}"), "/(?s:.*)/");
            self.rule(&format!("arguments_{idx}"), &format!("({key}raw_{idx})*"));
            return;
        };
        let required: BTreeSet<&str> = names(schema.get("required")).collect();
        let mut all = Vec::new();
        for (at, (name, property)) in properties.iter().enumerate() {
            let rule = format!("value_{idx}_{at}");
            let key = self.text(&format!("{}{name}{}", tags.before_key, tags.behind_key));
            self.value(tags, &rule, (property, schema));
            let mark = if required.contains(name.as_str()) { "" } else { "?" };
            all.push(format!("({key}{rule}){mark}"));
        }
        let all = if all.is_empty() { "\"\"".to_owned() } else { all.join(" ") };
        self.rule(&format!("arguments_{idx}"), &all);
    }

    /// A value with what stands behind it.
    fn value(&mut self, tags: Tags, rule: &str, (property, root): (&Json, &Json)) {
        let property = resolved(property, root);
        let kinds = kinds(property, root, 0);
        let behind = self.text(tags.behind_value);
        if kinds.contains("string") {
            let texts = texts(property);
            if texts.is_empty() {
                self.raw(tags, rule, &body(property, &kinds));
            } else {
                let texts: Vec<String> = texts.iter().map(|it| literal(it)).collect();
                self.rule(rule, &format!("({}) {behind}", texts.join(" | ")));
            }
            return;
        }
        let mut cases = Vec::new();
        let mut others = kinds.clone();
        if tags.scalars == Scalars::Python {
            for (kind, written) in [("null", "\"None\""), ("boolean", "\"True\" | \"False\"")] {
                if others.remove(kind) {
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

const ALL_KINDS: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

/// Which kinds of values a schema may have: more than it has, if that is not easily seen.
fn kinds(schema: &Json, root: &Json, depth: usize) -> BTreeSet<&'static str> {
    let schema = resolved(schema, root);
    let all = || ALL_KINDS.into_iter().collect::<BTreeSet<_>>();
    let Some(keywords) = schema.as_object().filter(|_| depth < REFERENCES_MAX) else {
        return all();
    };
    let of_name = |name: &str| {
        let name = if name == "integer" { "number" } else { name };
        ALL_KINDS.into_iter().find(|it| *it == name)
    };
    let mut found = match keywords.get("type") {
        Some(Json::String(name)) => of_name(name).into_iter().collect(),
        Some(Json::Array(_)) => names(keywords.get("type")).filter_map(of_name).collect(),
        _ => all(),
    };
    let values = keywords.get("enum").and_then(Json::as_array).map(Vec::as_slice);
    let values = values.or_else(|| keywords.get("const").map(std::slice::from_ref));
    if let Some(values) = values {
        let of_values: BTreeSet<_> = values.iter().map(kind).collect();
        found.retain(|it| of_values.contains(it));
    }
    for choice in ["anyOf", "oneOf"] {
        if let Some(options) = keywords.get(choice).and_then(Json::as_array) {
            let of_options = options.iter().flat_map(|it| kinds(it, root, depth + 1));
            let of_options: BTreeSet<_> = of_options.collect();
            found.retain(|it| of_options.contains(it));
        }
    }
    for part in keywords.get("allOf").and_then(Json::as_array).into_iter().flatten() {
        let of_part = kinds(part, root, depth + 1);
        found.retain(|it| of_part.contains(it));
    }
    found
}

fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(_) => "number",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    }
}

/// The only texts that a schema allows, in tags; empty if there may be others. A value of another
/// kind is written as it is in JSON.
fn texts(schema: &Json) -> Vec<String> {
    let values = schema.get("enum").and_then(Json::as_array).cloned();
    let values = values.or_else(|| schema.get("const").map(|it| vec![it.clone()]));
    let text = |value: Json| match value {
        Json::String(text) => text,
        other => other.to_string(),
    };
    values.unwrap_or_default().into_iter().map(text).collect()
}

/// Raw text of a length that the schema allows.
fn body(schema: &Json, kinds: &BTreeSet<&str>) -> String {
    let count = |name: &str| schema.get(name).and_then(Json::as_u64).filter(|_| kinds.len() == 1);
    match (count("minLength"), count("maxLength")) {
        (None, None) => "/(?s:.*)/".to_owned(),
        (least, Some(most)) => format!("/(?s:.{{{},{most}}})/", least.unwrap_or(0)),
        (Some(least), None) => format!("/(?s:.{{{least},}})/"),
    }
}

/// The schema for some kinds of values only, on its own.
fn narrowed(schema: &Json, root: &Json, kinds: &BTreeSet<&str>) -> Json {
    let mut keywords = schema.as_object().cloned().unwrap_or_else(Map::new);
    if keywords.get("type").is_none_or(Json::is_array) {
        let is_whole = names(keywords.get("type")).any(|it| it == "integer")
            && !names(keywords.get("type")).any(|it| it == "number");
        let kinds = kinds.iter().copied();
        let names = kinds.map(|kind| if kind == "number" && is_whole { "integer" } else { kind });
        keywords.insert("type".to_owned(), names.collect());
    }
    for own in [TARGETS, OWN_OPTIONS] {
        if let Some(value) = root.get(own) {
            keywords.insert(own.to_owned(), value.clone());
        }
    }
    Json::Object(keywords)
}
