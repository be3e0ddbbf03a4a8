//! Converts a client's JSON Schema to one that llguidance enforces exactly.
//!
//! llguidance ignores unknown keywords and interprets some others in its own way. Here every
//! keyword is enforced, dropped because it has no effect, or refused by name.
//! * References are resolved, and their targets are collected under generated names.
//! * Regular expressions are translated to Rust's syntax ([`pattern`]).
//! * The size of the result is bounded ([`growth`]).
//!
//! **Invariant:** each answer that the cleaned schema allows is valid by the client's schema, in
//! draft 2020-12. Answers keep the order of the properties; some valid answers may be rejected.

mod pattern;
pub(crate) mod keywords;
mod multiples;
pub(crate) mod growth;

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value as Json, json};

use crate::grammar::schema::growth::{DEPTH_MAX, FOR_ALL_KINDS, TARGET, TARGETS};
use crate::grammar::schema::keywords::{ANNOTATIONS, CleanedKeyword, OWN_OPTIONS, UNSUPPORTED};
use crate::grammar::schema::multiples::Multiples;

/// Maximum size of one schema in bytes. All tool schemas of an agent together are smaller.
const SCHEMA_BYTES_MAX: usize = 256 << 10;

/// Maximum number of bytes that are cleaned a second time because of references: each copy of a
/// case may contain cases that are copied again.
const COPIED_BYTES_MAX: usize = 1 << 20;

/// Maximum number of properties of an object: llguidance keeps four partial parses for each that
/// may come next.
pub(crate) const PROPERTIES_MAX: usize = 400;

/// Maximum number of property patterns of an object: all pairs are checked.
const PATTERNS_MAX: usize = 16;

/// Maximum number of places in an error.
const PLACES_MAX: usize = 3;

/// The treatment of a keyword that cannot be enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unenforced {
    /// The schema is refused.
    Refused,
    /// The keyword is dropped; answers may violate it.
    LeftOut,
}

/// Returns the schema in the form for llguidance.
///
/// # Errors
/// One line that names the keyword that cannot be enforced and its place, or the limit that the
/// schema exceeds.
pub(crate) fn prepare(schema: &Json, unenforced: Unenforced) -> Result<Json, String> {
    let n_bytes = schema.to_string().len();
    if n_bytes > SCHEMA_BYTES_MAX {
        return Err(format!(
            "the schema has {n_bytes} bytes; the limit is {SCHEMA_BYTES_MAX}: leave out \
             descriptions, or split it"
        ));
    }
    let mut survey = SchemaSurvey::default();
    survey.visit(schema);
    let mut cleaner = Cleaner {
        root: schema,
        unenforced,
        anchors: survey.anchors,
        names: BTreeMap::new(),
        waiting: VecDeque::new(),
        n_copied_bytes: 0,
        multiples: Multiples::new(survey.has_references),
        has_open_object: false,
    };
    let mut cleaned = match cleaner.schema(schema, &mut SchemaPath::default())? {
        Json::Bool(true) => json!({}),
        Json::Bool(false) => return Err("the schema allows no value at all".to_owned()),
        cleaned => cleaned,
    };
    let mut targets = Map::new();
    while let Some((fragment, name)) = cleaner.waiting.pop_front() {
        let target = cleaner.target(&fragment).expect("it was found when it was named");
        cleaner.count_copy(target)?;
        targets.insert(name, cleaner.schema(target, &mut SchemaPath::of(&fragment))?);
    }
    if let Json::Object(keywords) = &mut cleaned
        && !targets.is_empty()
    {
        keywords.insert(TARGETS.to_owned(), Json::Object(targets));
    }
    growth::check(&cleaned)?;
    if let Json::Object(keywords) = &mut cleaned {
        keywords.insert(OWN_OPTIONS.to_owned(), options(cleaner.has_open_object));
    }
    Ok(cleaned)
}

/// Allowed whitespace: one space, or line breaks with an indent, wherever JSON allows whitespace.
/// Models write this; more would let a model write whitespace until its tokens are used up.
const BLANK: &str = r"\x20|\r?\n(\r?\n)?[\x20\t]{0,40}";

/// Returns llguidance's options.
///
/// An undeclared name could be a declared one in which characters are escaped. Therefore such
/// escapes are forbidden where names are open, which also excludes the escapes of control
/// characters in strings.
fn options(has_open_object: bool) -> Json {
    let mut options = json!({"whitespace_pattern": BLANK});
    if has_open_object {
        options["json_allowed_escapes"] = json!("nrbtf\\\"");
    }
    options
}

/// A place in a schema.
#[derive(Clone, Debug, Default)]
struct SchemaPath {
    steps: Vec<String>,
}

impl SchemaPath {
    /// Returns the path of a reference's target. For an anchor, the path begins with the anchor.
    fn of(fragment: &str) -> Self {
        let steps = match fragment.strip_prefix('/') {
            Some(pointer) => pointer.split('/').map(unescaped).collect(),
            None if fragment.is_empty() => Vec::new(),
            None => vec![format!("#{fragment}")],
        };
        Self { steps }
    }

    /// Formats the path as a JSON pointer; the root is `/`.
    fn pointer(&self) -> String {
        let escaped = |step: &String| step.replace('~', "~0").replace('/', "~1");
        format!("/{}", self.steps.iter().map(escaped).collect::<Vec<_>>().join("/"))
    }
}

fn unescaped(step: &str) -> String {
    step.replace("~1", "/").replace("~0", "~")
}

struct Cleaner<'s> {
    root: &'s Json,
    unenforced: Unenforced,
    anchors: BTreeMap<&'s str, &'s Json>,
    /// The generated names of targets, by pointer or anchor.
    names: BTreeMap<String, String>,
    /// Pointers or anchors, with names, of targets that are still to be cleaned.
    waiting: VecDeque<(String, String)>,
    n_copied_bytes: usize,
    /// The divisors of the whole document, because any two may apply to the same number.
    multiples: Multiples,
    has_open_object: bool,
}

impl<'s> Cleaner<'s> {
    fn schema(&mut self, schema: &Json, path: &mut SchemaPath) -> Result<Json, String> {
        let keywords = match schema {
            Json::Bool(_) => return Ok(schema.clone()),
            Json::Object(keywords) => keywords,
            _ => return Err(format!("the schema at {} is not an object", path.pointer())),
        };
        if path.steps.len() > 2 * DEPTH_MAX {
            return Err(growth::too_deep());
        }
        self.has_open_object |= is_open_object(keywords);
        let mut cleaned = Map::new();
        let mut demands = Vec::new();
        for (keyword, value) in keywords {
            path.steps.push(keyword.clone());
            match self.keyword(keywords, (keyword, value), path)? {
                CleanedKeyword::Kept(value) => {
                    cleaned.insert(keyword.clone(), value);
                }
                CleanedKeyword::Renamed(keyword, value) => demands.push((keyword, value)),
                CleanedKeyword::Dropped => {}
                CleanedKeyword::Unenforceable(_) if self.unenforced == Unenforced::LeftOut => {}
                CleanedKeyword::Unenforceable(reason) => {
                    let place = path.pointer();
                    return Err(format!(
                        "the schema's keyword `{keyword}` at {place} cannot be enforced: {reason}"
                    ));
                }
            }
            path.steps.pop();
        }
        for (keyword, value) in &demands {
            add_demand(&mut cleaned, keyword, value);
        }
        // llguidance evaluates keywords before such a keyword without those after it.
        let (after, mut ordered): (Map<_, _>, Map<_, _>) =
            cleaned.into_iter().partition(|(name, _)| FOR_ALL_KINDS.contains(&name.as_str()));
        ordered.extend(after);
        Ok(Json::Object(ordered))
    }

    fn keyword(
        &mut self,
        around: &Map<String, Json>,
        (keyword, value): (&str, &Json),
        path: &mut SchemaPath,
    ) -> Result<CleanedKeyword, String> {
        Ok(match keyword {
            "$id" if path.steps.len() > 1 => CleanedKeyword::Unenforceable(
                "references below it would be relative to it".to_owned(),
            ),
            _ if ANNOTATIONS.contains(&keyword) => CleanedKeyword::Dropped,
            _ if keywords::has_no_effect(around, keyword, value) => CleanedKeyword::Dropped,
            _ if UNSUPPORTED.contains(&keyword) => {
                CleanedKeyword::Unenforceable("leave it out".to_owned())
            }
            "$ref" => self.reference(value),
            "type" => keywords::check_type(value),
            "enum" | "const" => keywords::check_values(value),
            "pattern" => keywords::check_pattern(value),
            "format" => keywords::check_format(around, value),
            "required" => keywords::check_required(value),
            "minProperties" => keywords::check_min_properties(around, value),
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                keywords::check_number(value)
            }
            "multipleOf" => match self.multiples.add(value) {
                Ok(()) => CleanedKeyword::Kept(value.clone()),
                Err(reason) => CleanedKeyword::Unenforceable(reason),
            },
            "minLength" | "maxLength" | "minItems" | "maxItems" | "maxProperties" => {
                keywords::check_count(value)
            }
            "additionalItems" if !around.get("items").is_some_and(Json::is_array) => {
                CleanedKeyword::Dropped
            }
            "items" | "additionalItems" | "additionalProperties" => {
                CleanedKeyword::Kept(self.one_or_more(value, path)?)
            }
            "prefixItems" | "allOf" | "anyOf" | "oneOf" => self.list(keyword, value, path)?,
            "properties" => self.named(value, PROPERTIES_MAX, path)?,
            "patternProperties" => match self.named(value, PATTERNS_MAX, path)? {
                CleanedKeyword::Kept(Json::Object(schemas)) => keywords::translate_names(schemas),
                other => other,
            },
            // An unknown keyword only describes.
            _ => CleanedKeyword::Dropped,
        })
    }

    fn one_or_more(&mut self, value: &Json, path: &mut SchemaPath) -> Result<Json, String> {
        match value {
            Json::Array(schemas) => self.schemas(schemas, path),
            schema => self.schema(schema, path),
        }
    }

    fn schemas(&mut self, schemas: &[Json], path: &mut SchemaPath) -> Result<Json, String> {
        let mut cleaned = Vec::with_capacity(schemas.len());
        for (idx, schema) in schemas.iter().enumerate() {
            path.steps.push(idx.to_string());
            cleaned.push(self.schema(schema, path)?);
            path.steps.pop();
        }
        Ok(Json::Array(cleaned))
    }

    fn list(
        &mut self,
        keyword: &str,
        value: &Json,
        path: &mut SchemaPath,
    ) -> Result<CleanedKeyword, String> {
        let Json::Array(schemas) = value else {
            return Ok(CleanedKeyword::Unenforceable("it is not a list of schemas".to_owned()));
        };
        if keyword != "oneOf" {
            return Ok(CleanedKeyword::Kept(self.schemas(schemas, path)?));
        }
        if self.unenforced == Unenforced::LeftOut {
            return Ok(CleanedKeyword::Renamed("anyOf", self.schemas(schemas, path)?));
        }
        // llguidance distinguishes cases by their visible keywords; it does not follow references.
        let mut cleaned = Vec::with_capacity(schemas.len());
        for (idx, schema) in schemas.iter().enumerate() {
            path.steps.push(idx.to_string());
            let opened = self.opened(schema);
            if let Some(target) = opened {
                self.count_copy(target)?;
            }
            cleaned.push(self.schema(opened.unwrap_or(schema), path)?);
            path.steps.pop();
        }
        Ok(CleanedKeyword::Kept(Json::Array(cleaned)))
    }

    /// Returns the target of a case that is nothing but a reference.
    fn opened(&self, schema: &Json) -> Option<&'s Json> {
        let keywords = schema.as_object()?;
        let is_bare = keywords.keys().all(|it| it == "$ref" || ANNOTATIONS.contains(&it.as_str()));
        let reference = keywords.get("$ref").filter(|_| is_bare)?.as_str()?;
        let target = self.target(&fragment(reference)?)?;
        let is_direct = target.as_object().is_some_and(|it| !it.contains_key("$ref"));
        is_direct.then_some(target)
    }

    /// Counts a part of the schema that is cleaned once more.
    fn count_copy(&mut self, schema: &Json) -> Result<(), String> {
        self.n_copied_bytes += schema.to_string().len();
        if self.n_copied_bytes > COPIED_BYTES_MAX {
            return Err(format!(
                "the schema has more than {COPIED_BYTES_MAX} bytes when its references are written \
                 out: use fewer of them, or `anyOf` instead of `oneOf`"
            ));
        }
        Ok(())
    }

    /// Cleans schemas that are listed by name.
    fn named(
        &mut self,
        value: &Json,
        n_max: usize,
        path: &mut SchemaPath,
    ) -> Result<CleanedKeyword, String> {
        let Json::Object(schemas) = value else {
            return Ok(CleanedKeyword::Unenforceable("it is not an object of schemas".to_owned()));
        };
        if schemas.len() > n_max {
            return Err(format!(
                "the schema's keyword at {} has {} entries; the limit is {n_max}",
                path.pointer(),
                schemas.len()
            ));
        }
        let mut cleaned = Map::new();
        for (name, schema) in schemas {
            path.steps.push(name.clone());
            cleaned.insert(name.clone(), self.schema(schema, path)?);
            path.steps.pop();
        }
        Ok(CleanedKeyword::Kept(Json::Object(cleaned)))
    }

    fn reference(&mut self, value: &Json) -> CleanedKeyword {
        let Some(reference) = value.as_str() else {
            return CleanedKeyword::Unenforceable("it is not a string".to_owned());
        };
        let Some(fragment) = fragment(reference).filter(|it| self.target(it).is_some()) else {
            return CleanedKeyword::Unenforceable(format!(
                "there is no `{reference}` in the schema itself"
            ));
        };
        let n_names = self.names.len();
        let name = self.names.entry(fragment.clone()).or_insert_with(|| {
            let name = format!("t{n_names}");
            self.waiting.push_back((fragment, name.clone()));
            name
        });
        CleanedKeyword::Kept(Json::String(format!("{TARGET}{name}")))
    }

    /// Returns the schema of the document with this pointer or anchor.
    fn target(&self, fragment: &str) -> Option<&'s Json> {
        let is_pointer = fragment.is_empty() || fragment.starts_with('/');
        let target = if is_pointer {
            self.root.pointer(fragment)?
        } else {
            self.anchors.get(fragment).copied()?
        };
        (target.is_object() || target.is_boolean()).then_some(target)
    }
}

/// Returns the pointer or anchor of a reference into the document itself.
fn fragment(reference: &str) -> Option<String> {
    percent_decoded(reference.strip_prefix('#')?)
}

/// Rewrites llguidance's error about a cleaned schema for the client that sent the schema.
pub(crate) fn explained(schema: &Json, problem: &str) -> String {
    if !problem.contains("oneOf") {
        return format!("the schema cannot be enforced: {problem}");
    }
    let mut places = Vec::new();
    find_places(schema, "oneOf", String::new(), &mut places);
    format!(
        "the schema's keyword `oneOf` at {} cannot be enforced: its cases cannot be \
         distinguished by their types or by constants of a required property; use `anyOf`",
        places.join(" or ")
    )
}

/// Appends the pointers of the first of these keywords.
fn find_places(value: &Json, keyword: &str, pointer: String, places: &mut Vec<String>) {
    match value {
        Json::Object(members) => {
            for (name, member) in members {
                let pointer = format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
                if name == keyword && places.len() < PLACES_MAX {
                    places.push(pointer.clone());
                }
                find_places(member, keyword, pointer, places);
            }
        }
        Json::Array(members) => {
            for (idx, member) in members.iter().enumerate() {
                find_places(member, keyword, format!("{pointer}/{idx}"), places);
            }
        }
        _ => {}
    }
}

/// Adds a keyword that applies in addition to all others.
fn add_demand(cleaned: &mut Map<String, Json>, keyword: &str, value: &Json) {
    let all = cleaned.entry("allOf").or_insert_with(|| json!([]));
    if let Json::Array(all) = all {
        all.push(json!({keyword: value}));
    }
}

/// Facts about a whole document that are needed beforehand.
#[derive(Debug, Default)]
struct SchemaSurvey<'s> {
    /// Schemas by anchor; the first for a duplicate anchor. Collected once, because a search for
    /// each reference would take quadratic time.
    anchors: BTreeMap<&'s str, &'s Json>,
    has_references: bool,
}

impl<'s> SchemaSurvey<'s> {
    fn visit(&mut self, value: &'s Json) {
        match value {
            Json::Object(members) => {
                if let Some(anchor) = members.get("$anchor").and_then(Json::as_str) {
                    self.anchors.entry(anchor).or_insert(value);
                }
                self.has_references |= members.contains_key("$ref");
                members.values().for_each(|it| self.visit(it));
            }
            Json::Array(members) => members.iter().for_each(|it| self.visit(it)),
            _ => {}
        }
    }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// Returns whether an object schema declares names and allows others.
fn is_open_object(keywords: &Map<String, Json>) -> bool {
    let declares = |it: &str| keywords.contains_key(it);
    let declares_any =
        declares("properties") || declares("patternProperties") || declares("required");
    declares_any && keywords.get("additionalProperties") != Some(&Json::Bool(false))
}
