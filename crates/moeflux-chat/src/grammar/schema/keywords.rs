//! Single keywords of a JSON Schema: which are enforced, which demand nothing, and which of their
//! values can be enforced.
//!
//! **Invariant:** a keyword that is kept means the same for llguidance as for the client. Considers
//! a keyword and its siblings only.

use std::collections::BTreeSet;

use serde_json::{Map, Value as Json, json};

use crate::grammar::schema::pattern;

/// Maximum value of `minItems`, `maxLength` and other counts.
const COUNT_MAX: u64 = 1_000_000;

/// Integers from here on are not exact in llguidance's arithmetic.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// The key of llguidance's own options, which a client must not set.
pub(crate) const OWN_OPTIONS: &str = "x-guidance";

/// String formats that llguidance enforces. It would accept some invalid dates and times: the 29th
/// of February of any year, and leap seconds at any time.
const FORMATS: [&str; 7] = ["duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// String formats that are implemented here as regular expressions.
const TIMES: [&str; 3] = ["date", "time", "date-time"];

const DATE: &str = concat!(
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|",
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|",
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|",
    "(?:[02468][048]|[13579][26])00)-02-29)"
);

/// Excludes leap seconds, because no expression can tell which minutes have one.
const TIME: &str = concat!(
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,9})?",
    "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
);

const TYPES: [&str; 7] = ["null", "boolean", "number", "integer", "string", "array", "object"];

/// Keywords that only describe, and names for references.
pub(crate) const ANNOTATIONS: [&str; 20] = [
    "$anchor",
    "$comment",
    "$defs",
    "$dynamicAnchor",
    "$schema",
    "$vocabulary",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
    "$id",
    OWN_OPTIONS,
];

/// Keywords that no grammar here enforces.
pub(crate) const UNSUPPORTED: [&str; 17] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedItems",
    "unevaluatedProperties",
    "propertyNames",
    "$dynamicRef",
    "$recursiveRef",
    "$recursiveAnchor",
];

/// The treatment of a keyword.
pub(crate) enum CleanedKeyword {
    Kept(Json),
    /// Kept as another keyword.
    Renamed(&'static str, Json),
    /// Dropped, because it has no effect.
    Dropped,
    /// Cannot be enforced, for this reason.
    Unenforceable(String),
}

/// Returns whether a keyword demands nothing with this value, or next to these siblings.
pub(crate) fn has_no_effect(around: &Map<String, Json>, keyword: &str, value: &Json) -> bool {
    let is_any = |schema: &Json| match schema {
        Json::Bool(allows) => *allows,
        Json::Object(keywords) => keywords.is_empty(),
        _ => false,
    };
    let has = |other: &str| around.contains_key(other);
    match keyword {
        "uniqueItems" => value == &Json::Bool(false),
        "not" => value == &Json::Bool(false),
        "if" => !has("then") && !has("else"),
        "then" | "else" => !has("if") || is_any(value),
        "minContains" | "maxContains" => !has("contains"),
        "unevaluatedItems" | "unevaluatedProperties" => is_any(value),
        "propertyNames" => is_any(value) || value == &json!({"type": "string"}),
        "dependentRequired" | "dependentSchemas" | "dependencies" => {
            value.as_object().is_some_and(Map::is_empty)
        }
        "$recursiveAnchor" => true,
        _ => false,
    }
}

pub(crate) fn check_type(value: &Json) -> CleanedKeyword {
    let is_type = |it: &Json| it.as_str().is_some_and(|it| TYPES.contains(&it));
    let is_known = match value {
        Json::Array(types) => !types.is_empty() && types.iter().all(is_type),
        one => is_type(one),
    };
    if is_known {
        CleanedKeyword::Kept(value.clone())
    } else {
        CleanedKeyword::Unenforceable(format!("{value} is not a type"))
    }
}

pub(crate) fn check_values(value: &Json) -> CleanedKeyword {
    match inexact(value) {
        Some(number) => CleanedKeyword::Unenforceable(format!(
            "{number} is too large to be represented exactly"
        )),
        None => CleanedKeyword::Kept(value.clone()),
    }
}

/// Returns a number in the value that would be rounded.
fn inexact(value: &Json) -> Option<&Json> {
    match value {
        Json::Number(number) => {
            let is_whole = number.is_i64() || number.is_u64();
            let is_large = number.as_f64().is_none_or(|it| it.abs() >= EXACT_MAX);
            (is_whole && is_large).then_some(value)
        }
        Json::Array(values) => values.iter().find_map(inexact),
        Json::Object(values) => values.values().find_map(inexact),
        _ => None,
    }
}

pub(crate) fn check_number(value: &Json) -> CleanedKeyword {
    match value {
        // The booleans are draft 4's flags for an exclusive bound.
        Json::Number(_) | Json::Bool(_) => check_values(value),
        _ => CleanedKeyword::Unenforceable(format!("{value} is not a number")),
    }
}

pub(crate) fn check_count(value: &Json) -> CleanedKeyword {
    // A number such as 2.0 is as valid as 2.
    let count = value.as_f64().filter(|it| it.fract() == 0.0 && *it >= 0.0);
    match count {
        Some(count) if count <= COUNT_MAX as f64 => {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
            let count = count as u64;
            CleanedKeyword::Kept(json!(count))
        }
        Some(_) => CleanedKeyword::Unenforceable(format!("{value} is above {COUNT_MAX}")),
        None => CleanedKeyword::Unenforceable(format!("{value} is not a count")),
    }
}

pub(crate) fn check_pattern(value: &Json) -> CleanedKeyword {
    let translated = value.as_str().map(pattern::translate);
    match translated {
        Some(Ok(pattern)) => CleanedKeyword::Kept(Json::String(pattern)),
        Some(Err(problem)) => {
            CleanedKeyword::Unenforceable(format!("the expression has {problem}"))
        }
        None => CleanedKeyword::Unenforceable("it is not a string".to_owned()),
    }
}

pub(crate) fn translate_names(schemas: Map<String, Json>) -> CleanedKeyword {
    let mut translated = Map::new();
    for (name, schema) in schemas {
        match pattern::translate(&name) {
            Ok(same) if translated.contains_key(&same) => {
                return CleanedKeyword::Unenforceable(format!(
                    "`{name}` means the same as another one"
                ));
            }
            Ok(name) => translated.insert(name, schema),
            Err(problem) => {
                return CleanedKeyword::Unenforceable(format!("`{name}` has {problem}"));
            }
        };
    }
    CleanedKeyword::Kept(Json::Object(translated))
}

pub(crate) fn check_format(around: &Map<String, Json>, value: &Json) -> CleanedKeyword {
    let is_of_strings = match around.get("type") {
        Some(Json::String(one)) => one == "string",
        Some(Json::Array(types)) => types.iter().any(|it| it == "string"),
        _ => true,
    };
    match value.as_str() {
        _ if !is_of_strings => CleanedKeyword::Dropped,
        Some("date") => CleanedKeyword::Renamed("pattern", json!(format!("^{DATE}$"))),
        Some("time") => CleanedKeyword::Renamed("pattern", json!(format!("^{TIME}$"))),
        Some("date-time") => {
            CleanedKeyword::Renamed("pattern", json!(format!("^{DATE}[tT]{TIME}$")))
        }
        Some(format) if FORMATS.contains(&format) => CleanedKeyword::Kept(value.clone()),
        _ => {
            let known: Vec<_> = TIMES.into_iter().chain(FORMATS).collect();
            CleanedKeyword::Unenforceable(format!("{value} is not one of {}", known.join(", ")))
        }
    }
}

pub(crate) fn check_required(value: &Json) -> CleanedKeyword {
    let is_list = value.as_array().is_some_and(|it| it.iter().all(Json::is_string));
    if is_list {
        CleanedKeyword::Kept(value.clone())
    } else {
        CleanedKeyword::Unenforceable("it is not a list of names".to_owned())
    }
}

/// llguidance counts a property with a duplicate name twice, which must not satisfy a minimum count
/// of properties.
pub(crate) fn check_min_properties(around: &Map<String, Json>, value: &Json) -> CleanedKeyword {
    let n_required = around.get("required").and_then(Json::as_array).map_or(0, |names| {
        let names: BTreeSet<_> = names.iter().filter_map(Json::as_str).collect();
        names.len() as u64
    });
    match check_count(value) {
        CleanedKeyword::Kept(count) => match count.as_u64().unwrap_or(0) {
            least if least <= n_required => CleanedKeyword::Dropped,
            1 => CleanedKeyword::Kept(count),
            _ => CleanedKeyword::Unenforceable(
                "it exceeds the number of required properties".to_owned(),
            ),
        },
        other => other,
    }
}
