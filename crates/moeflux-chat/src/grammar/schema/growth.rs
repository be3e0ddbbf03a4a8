//! Estimates the size of a schema when it is expanded to a grammar.
//!
//! Alternatives that must hold together are multiplied out, and a reference with sibling keywords
//! is copied: a schema of a few lines may expand to millions of nodes. llguidance counts only some
//! of these steps, so they are estimated here before it is called.
//! **Invariant:** the estimate itself takes at most [`STEPS_MAX`] steps, and recursion no deeper
//! than [`DEPTH_MAX`]. Handles cleaned schemas only ([`crate::grammar::schema`]).

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Map, Value as Json};

/// Maximum number of steps of one estimate.
const STEPS_MAX: usize = 50_000;

/// Maximum number of nodes of an expanded schema; a megabyte of tool schemas has about 30,000.
const NODES_MAX: u64 = 100_000;

/// Maximum nesting depth of schemas, including references. llguidance takes about 8 kB of stack for
/// each level, and a thread may have two megabytes.
pub(crate) const DEPTH_MAX: usize = 64;

/// The key of a cleaned schema that holds the targets of references.
pub(crate) const TARGETS: &str = "$defs";
/// The prefix of a reference to a target.
pub(crate) const TARGET: &str = "#/$defs/";

/// Keywords that apply to values of all kinds; the others describe values of one kind.
pub(crate) const FOR_ALL_KINDS: [&str; 6] = ["const", "enum", "allOf", "anyOf", "oneOf", "$ref"];

/// The number of kinds if a schema names none.
const N_KINDS: u64 = 6;

/// Checks that a cleaned schema can be expanded.
///
/// # Errors
/// One line that says which limit is exceeded.
pub(crate) fn check(schema: &Json) -> Result<(), String> {
    let mut estimate = Estimate { root: schema, targets: BTreeMap::new(), n_steps: 0 };
    let size = estimate.schema(schema, 0)?;
    let mut n_nodes = size.n_nodes;
    for target in estimate.targets.values().flatten() {
        n_nodes = n_nodes.saturating_add(target.n_nodes);
    }
    if n_nodes > NODES_MAX {
        return Err(format!(
            "the schema has more than {NODES_MAX} parts when its alternatives and references are \
             written out"
        ));
    }
    Ok(())
}

/// Some keywords of a schema.
type PlainKeywords<'s> = BTreeMap<&'s str, &'s Json>;

/// The size of a schema.
#[derive(Debug)]
struct SchemaSize {
    n_cases: u64,
    n_nodes: u64,
    depth: usize,
    properties: BTreeMap<String, Rc<SchemaSize>>,
    /// The target, if the schema is nothing but a reference.
    target: Option<Rc<SchemaSize>>,
}

impl SchemaSize {
    fn leaf(n_cases: u64) -> Self {
        Self { n_cases, n_nodes: n_cases, depth: 1, properties: BTreeMap::new(), target: None }
    }
}

struct Estimate<'s> {
    root: &'s Json,
    /// Targets of references; `None` while one is being estimated.
    targets: BTreeMap<&'s str, Option<Rc<SchemaSize>>>,
    n_steps: usize,
}

impl<'s> Estimate<'s> {
    fn step(&mut self, depth: usize) -> Result<(), String> {
        self.n_steps += 1;
        if self.n_steps > STEPS_MAX {
            return Err(format!(
                "the schema takes more than {STEPS_MAX} steps to write out its alternatives and \
                 references"
            ));
        }
        if depth > DEPTH_MAX {
            return Err(too_deep());
        }
        Ok(())
    }

    /// Visits keywords in llguidance's own order, which determines its recursion depth: a reference
    /// is followed where it comes first, and keywords for one kind of values wait until one that
    /// applies to all.
    fn schema(&mut self, schema: &'s Json, depth: usize) -> Result<Rc<SchemaSize>, String> {
        self.step(depth)?;
        let Some(keywords) = schema.as_object() else { return Ok(Rc::new(SchemaSize::leaf(1))) };
        let mut whole = None;
        let mut plain = PlainKeywords::new();
        for (keyword, value) in keywords {
            if !FOR_ALL_KINDS.contains(&keyword.as_str()) {
                plain.insert(keyword.as_str(), value);
                continue;
            }
            if !plain.is_empty() {
                let part = self.plain(keywords, &std::mem::take(&mut plain), depth)?;
                whole = Some(self.joined(whole, part, depth)?);
            }
            let part = match (keyword.as_str(), value) {
                ("anyOf" | "oneOf", Json::Array(options)) => self.options(options, depth)?,
                ("enum", Json::Array(values)) => {
                    Rc::new(SchemaSize::leaf(values.iter().map(n_parts).sum()))
                }
                ("const", value) => {
                    Rc::new(SchemaSize { n_nodes: n_parts(value), ..SchemaSize::leaf(1) })
                }
                ("allOf", Json::Array(parts)) => {
                    for part in parts {
                        let part = self.schema(part, depth + 1)?;
                        whole = Some(self.joined(whole, part, depth)?);
                    }
                    continue;
                }
                ("$ref", Json::String(reference)) => self.reference(reference, depth)?,
                _ => continue,
            };
            whole = Some(self.joined(whole, part, depth)?);
        }
        if !plain.is_empty() {
            let part = self.plain(keywords, &plain, depth)?;
            whole = Some(self.joined(whole, part, depth)?);
        }
        Ok(whole.unwrap_or_else(|| Rc::new(SchemaSize::leaf(1))))
    }

    /// Estimates some of the keywords that describe values of one kind.
    fn plain(
        &mut self,
        around: &Map<String, Json>,
        keywords: &PlainKeywords<'s>,
        depth: usize,
    ) -> Result<Rc<SchemaSize>, String> {
        let mut size = SchemaSize::leaf(1);
        let (kinds, n_kinds) = match around.get("type") {
            Some(Json::Array(kinds)) => {
                let kinds: Vec<&str> = kinds.iter().filter_map(Json::as_str).collect();
                (kinds.clone(), kinds.len() as u64)
            }
            Some(Json::String(kind)) => (vec![kind.as_str()], 1),
            _ => (vec!["array", "object"], N_KINDS),
        };
        let of_kind = |kind| -> &[&str] {
            match kind {
                "array" => &["prefixItems", "items", "additionalItems"],
                "object" => &["properties", "patternProperties", "additionalProperties"],
                _ => &[],
            }
        };
        let names = kinds.into_iter().flat_map(of_kind);
        let parts = names.filter_map(|name| Some(parts_of(name, keywords.get(name)?)));
        for (name, part) in parts.flatten() {
            let part = self.schema(part, depth + 1)?;
            size.add(&part);
            if let Some(name) = name {
                size.properties.insert(name.clone(), part);
            }
        }
        // Not counted as cases, because different kinds exclude each other.
        size.n_nodes = size.n_nodes.saturating_add(n_kinds);
        Ok(Rc::new(size))
    }

    fn options(&mut self, options: &'s [Json], depth: usize) -> Result<Rc<SchemaSize>, String> {
        let mut sum = SchemaSize { n_cases: 0, ..SchemaSize::leaf(1) };
        for option in options {
            let option = self.schema(option, depth + 1)?;
            sum.add(&option);
            sum.n_cases = sum.n_cases.saturating_add(option.n_cases);
            for (name, property) in &option.properties {
                sum.properties.entry(name.clone()).or_insert_with(|| property.clone());
            }
        }
        Ok(Rc::new(sum))
    }

    /// Estimates a reference, which llguidance keeps until it meets a sibling.
    fn reference(&mut self, reference: &'s str, depth: usize) -> Result<Rc<SchemaSize>, String> {
        match self.targets.get(reference) {
            Some(Some(size)) if depth + size.depth > DEPTH_MAX => return Err(too_deep()),
            Some(_) => {}
            None => {
                let name = reference.strip_prefix(TARGET).unwrap_or_default();
                let target = self.root.get(TARGETS).and_then(|it| it.get(name));
                let target = target.expect("a cleaned schema has what it refers to");
                self.targets.insert(reference, None);
                let size = self.schema(target, depth + 1)?;
                self.targets.insert(reference, Some(size));
            }
        }
        // Without a shape it refers to itself.
        let target = self.targets.get(reference).and_then(Clone::clone);
        let depth = target.as_ref().map_or(1, |it| it.depth + 1);
        Ok(Rc::new(SchemaSize { target, depth, ..SchemaSize::leaf(1) }))
    }

    fn joined(
        &mut self,
        whole: Option<Rc<SchemaSize>>,
        part: Rc<SchemaSize>,
        depth: usize,
    ) -> Result<Rc<SchemaSize>, String> {
        match whole {
            None => Ok(part),
            Some(whole) => self.both(&whole, &part, depth),
        }
    }

    /// Combines two schemas: each case of one with each of the other.
    fn both(
        &mut self,
        a: &Rc<SchemaSize>,
        b: &Rc<SchemaSize>,
        depth: usize,
    ) -> Result<Rc<SchemaSize>, String> {
        self.step(depth)?;
        let opened = |it: &Rc<SchemaSize>| it.target.clone().unwrap_or_else(|| it.clone());
        if a.target.is_some() || b.target.is_some() {
            return self.both(&opened(a), &opened(b), depth + 1);
        }
        let n_cases = a.n_cases.saturating_mul(b.n_cases);
        let n_alone = a.n_nodes.saturating_mul(b.n_cases);
        let mut n_nodes = n_alone.saturating_add(b.n_nodes.saturating_mul(a.n_cases));
        let mut properties = a.properties.clone();
        for (name, of_b) in &b.properties {
            let Some(of_a) = properties.get(name).cloned() else {
                properties.insert(name.clone(), of_b.clone());
                continue;
            };
            let both = self.both(&of_a, of_b, depth + 1)?;
            n_nodes = n_nodes.saturating_add(both.n_nodes.saturating_mul(n_cases));
            properties.insert(name.clone(), both);
        }
        let depth = a.depth.max(b.depth) + 1;
        Ok(Rc::new(SchemaSize { n_cases, n_nodes, depth, properties, target: None }))
    }
}

impl SchemaSize {
    /// Adds the size of a part.
    fn add(&mut self, part: &Self) {
        self.n_nodes = self.n_nodes.saturating_add(part.n_nodes);
        self.depth = self.depth.max(part.depth + 1);
    }
}

/// Returns the schemas in a keyword's value; those of properties with their names.
fn parts_of<'s>(keyword: &str, value: &'s Json) -> Vec<(Option<&'s String>, &'s Json)> {
    let is_named = keyword == "properties";
    match value {
        Json::Array(schemas) => schemas.iter().map(|it| (None, it)).collect(),
        Json::Object(schemas) if is_named || keyword == "patternProperties" => {
            schemas.iter().map(|(name, it)| (is_named.then_some(name), it)).collect()
        }
        schema => vec![(None, schema)],
    }
}

/// Returns the error for a schema that is too deep.
pub(crate) fn too_deep() -> String {
    format!("the schema has schemas nested more than {DEPTH_MAX} deep, references included")
}

/// Counts the values in a value.
fn n_parts(value: &Json) -> u64 {
    match value {
        Json::Array(values) => 1 + values.iter().map(n_parts).sum::<u64>(),
        Json::Object(values) => 1 + values.values().map(n_parts).sum::<u64>(),
        _ => 1,
    }
}
