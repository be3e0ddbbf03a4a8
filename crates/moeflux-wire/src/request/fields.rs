//! Reads a JSON object field by field, and tracks the path of each.
//!
//! A field that is null counts as absent, as it does for every client. Fields that are not taken
//! are reported as ignored. **Invariant:** a value of the wrong type or out of range gives a
//! [`Failure`] that names its path and the expected value. This module is independent of dialects.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use serde_json::{Map, Value as Json};

use crate::failure::{Failure, FailureKind};

/// The largest integer up to which floats are exact.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// Maximum number of ignored fields whose names are kept; a log line shows no more.
const N_IGNORED_MAX: usize = 32;
/// Maximum length in characters of such a name, which the client chose.
const IGNORED_CHARACTERS_MAX: usize = 80;

/// Fields of a request that have no effect, without the indices of list elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignored {
    names: BTreeSet<String>,
}

impl Ignored {
    /// Returns the names, sorted; beyond the limit, only the first that were met.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    pub(crate) fn add(&mut self, path: &str) {
        if self.names.len() == N_IGNORED_MAX {
            return;
        }
        let mut name = String::new();
        for (number, part) in path.split('[').enumerate() {
            let rest = part.trim_start_matches(|it: char| it.is_ascii_digit());
            name += if number == 0 { part } else { "[" };
            name += if number == 0 { "" } else { rest };
        }
        self.names.insert(name.chars().take(IGNORED_CHARACTERS_MAX).collect());
    }
}

/// The fields of an object that have not been taken yet.
#[derive(Debug)]
pub(crate) struct Fields {
    path: String,
    map: Map<String, Json>,
}

impl Fields {
    /// Parses the fields of a request's body.
    pub(crate) fn of_body(body: &[u8]) -> Result<Self, Failure> {
        let json = serde_json::from_slice(body).map_err(|error| {
            Failure::new(FailureKind::Invalid, format!("the body is not JSON: {error}"))
        })?;
        Self::of_json(json)
    }

    /// Returns the fields of a request's parsed body.
    pub(crate) fn of_json(json: Json) -> Result<Self, Failure> {
        match json {
            Json::Object(map) => Ok(Self { path: String::new(), map }),
            other => {
                let problem = format!("the body: expected an object, got {}", shown(&other));
                Err(Failure::new(FailureKind::Invalid, problem))
            }
        }
    }

    /// Returns the fields of an object at a path.
    pub(crate) fn of(path: String, json: Json) -> Result<Self, Failure> {
        match json {
            Json::Object(map) => Ok(Self { path, map }),
            other => Err(wrong(&path, "an object", &other)),
        }
    }

    /// Returns the path of a field.
    pub(crate) fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Takes a field of any type. The order of the others is not kept, so that the cost does not
    /// grow with the number of fields.
    pub(crate) fn take(&mut self, key: &str) -> Option<Json> {
        self.map.swap_remove(key).filter(|value| !value.is_null())
    }

    /// Returns a copy of a field, for an answer that repeats it.
    pub(crate) fn get(&self, key: &str) -> Option<Json> {
        self.map.get(key).filter(|value| !value.is_null()).cloned()
    }

    /// Returns whether the field exists and is not null.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(|value| !value.is_null())
    }

    /// Takes a required field.
    pub(crate) fn required(&mut self, key: &str) -> Result<Json, Failure> {
        self.take(key).ok_or_else(|| Failure::invalid(&self.path(key), "is missing"))
    }

    /// Takes a string.
    pub(crate) fn string(&mut self, key: &str) -> Result<Option<String>, Failure> {
        match self.take(key) {
            None => Ok(None),
            Some(Json::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(&self.path(key), "a string", &other)),
        }
    }

    /// Takes a required string.
    pub(crate) fn required_string(&mut self, key: &str) -> Result<String, Failure> {
        match self.required(key)? {
            Json::String(text) => Ok(text),
            other => Err(wrong(&self.path(key), "a string", &other)),
        }
    }

    /// Takes a boolean.
    pub(crate) fn flag(&mut self, key: &str) -> Result<Option<bool>, Failure> {
        match self.take(key) {
            None => Ok(None),
            Some(Json::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(wrong(&self.path(key), "true or false", &other)),
        }
    }

    /// Takes a number within limits.
    pub(crate) fn number(
        &mut self,
        key: &str,
        range: RangeInclusive<f32>,
    ) -> Result<Option<f32>, Failure> {
        let Some(value) = self.take(key) else { return Ok(None) };
        number_in(&self.path(key), &value, range).map(Some)
    }

    /// Takes an integer within limits.
    pub(crate) fn count(
        &mut self,
        key: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, Failure> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let number = integer(&value).and_then(|it| usize::try_from(it).ok());
        let wanted = || format!("a whole number from {} to {}", range.start(), range.end());
        let number = number.filter(|it| range.contains(it));
        number.map(Some).ok_or_else(|| wrong(&self.path(key), &wanted(), &value))
    }

    /// Takes a list; empty if it is absent.
    pub(crate) fn list(&mut self, key: &str) -> Result<Vec<Json>, Failure> {
        match self.take(key) {
            None => Ok(Vec::new()),
            Some(Json::Array(values)) => Ok(values),
            Some(other) => Err(wrong(&self.path(key), "a list", &other)),
        }
    }

    /// Takes an object.
    pub(crate) fn object(&mut self, key: &str) -> Result<Option<Self>, Failure> {
        self.take(key).map(|value| Self::of(self.path(key), value)).transpose()
    }

    /// Takes an object of any content; empty if it is absent.
    pub(crate) fn map(&mut self, key: &str) -> Result<Map<String, Json>, Failure> {
        Ok(self.object(key)?.map(|fields| fields.map).unwrap_or_default())
    }

    /// Refuses a field, unless its value requests nothing: null, false, 0, or empty.
    pub(crate) fn refuse(&mut self, key: &str, reason: &str) -> Result<(), Failure> {
        let asks_for_nothing = |value: &Json| match value {
            Json::Null => true,
            Json::Bool(value) => !value,
            Json::Number(value) => value.as_f64() == Some(0.0),
            Json::String(value) => value.is_empty(),
            Json::Array(value) => value.is_empty(),
            Json::Object(value) => value.is_empty(),
        };
        match self.take(key).filter(|value| !asks_for_nothing(value)) {
            None => Ok(()),
            Some(_) => Err(Failure::invalid(&self.path(key), reason)),
        }
    }

    /// Drops known fields without effect.
    pub(crate) fn drop_known(&mut self, keys: &[&str]) {
        for key in keys {
            self.map.swap_remove(*key);
        }
    }

    /// Reports the fields that were not taken.
    pub(crate) fn end(self, ignored: &mut Ignored) {
        for (key, value) in &self.map {
            if !value.is_null() {
                ignored.add(&self.path(key));
            }
        }
    }
}

/// Returns the path of a list element.
pub(crate) fn element(path: &str, index: usize) -> String {
    format!("{path}[{index}]")
}

/// Checks that a value is a number within limits.
pub(crate) fn number_in(
    path: &str,
    value: &Json,
    range: RangeInclusive<f32>,
) -> Result<f32, Failure> {
    #[expect(clippy::cast_possible_truncation, reason = "a number beyond f32 is out of range")]
    let number = value.as_f64().map(|it| it as f32).filter(|it| range.contains(it));
    let wanted = || format!("a number from {} to {}", range.start(), range.end());
    number.ok_or_else(|| wrong(path, &wanted(), value))
}

/// Returns an integer, including the float notation of some clients: `1e3`, `16.0`.
pub(crate) fn integer(value: &Json) -> Option<u64> {
    let of_float = || {
        let float = value.as_f64().filter(|it| it.fract() == 0.0 && (0.0..=WHOLE_MAX).contains(it));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole, and between zero and 2^53"
        )]
        float.map(|it| it as u64)
    };
    value.as_u64().or_else(of_float)
}

/// Creates the failure for a value other than the expected one.
pub(crate) fn wrong(path: &str, expected: &str, found: &Json) -> Failure {
    Failure::invalid(path, format!("expected {expected}, got {}", shown(found)))
}

/// Creates the failure for a value that is of the right type but unsupported.
pub(crate) fn unsupported(path: &str, value: &str, instead: &str) -> Failure {
    Failure::invalid(path, format!("`{}` is not supported: {instead}", shortened(value)))
}

/// Returns the part of a client's text that a message shows.
pub(crate) fn shortened(text: &str) -> &str {
    let end = text.char_indices().nth(IGNORED_CHARACTERS_MAX).map_or(text.len(), |(end, _)| end);
    &text[..end]
}

fn shown(value: &Json) -> String {
    match value {
        Json::Null => "null".to_owned(),
        Json::Bool(value) => value.to_string(),
        Json::Number(value) => value.to_string(),
        Json::String(_) => "a string".to_owned(),
        Json::Array(_) => "a list".to_owned(),
        Json::Object(_) => "an object".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_ignored_fields_have_no_numbers() {
        let mut ignored = Ignored::default();
        for path in ["a", "messages[0].name", "messages[12].name", "x[3].y[4]", "[5]"] {
            ignored.add(path);
        }
        let names: Vec<&str> = ignored.names().collect();
        assert_eq!(names, ["[]", "a", "messages[].name", "x[].y[]"]);
        (0..100).for_each(|n| ignored.add(&format!("{n}{}", "x".repeat(100))));
        assert_eq!(ignored.names().count(), N_IGNORED_MAX);
        assert!(ignored.names().all(|name| name.len() <= IGNORED_CHARACTERS_MAX));
    }

    #[test]
    fn wrong_values_are_named() {
        let mut fields = Fields::of(
            "a[0]".into(),
            json!({"s": 5, "n": -1, "c": 1.5, "l": {}, "o": [], "f": "x", "big": 1e300, "z": 0}),
        )
        .unwrap();
        let message = |failure: Failure| failure.message;
        assert_eq!(message(fields.string("s").unwrap_err()), "`a[0].s`: expected a string, got 5");
        assert_eq!(
            message(fields.number("n", 0.0..=2.0).unwrap_err()),
            "`a[0].n`: expected a number from 0 to 2, got -1"
        );
        assert_eq!(
            message(fields.count("c", 1..=8).unwrap_err()),
            "`a[0].c`: expected a whole number from 1 to 8, got 1.5"
        );
        assert_eq!(
            message(fields.list("l").unwrap_err()),
            "`a[0].l`: expected a list, got an object"
        );
        assert_eq!(
            message(fields.object("o").unwrap_err()),
            "`a[0].o`: expected an object, got a list"
        );
        assert_eq!(
            message(fields.flag("f").unwrap_err()),
            "`a[0].f`: expected true or false, got a string"
        );
        assert_eq!(
            message(fields.number("big", 0.0..=2.0).unwrap_err()),
            "`a[0].big`: expected a number from 0 to 2, got 1e+300"
        );
        assert_eq!(fields.refuse("z", "no"), Ok(()));
        assert_eq!(message(fields.required("none").unwrap_err()), "`a[0].none`: is missing");
    }

    #[test]
    fn a_body_is_one_object_of_limited_depth() {
        let problem = |body: &[u8]| Fields::of_body(body).unwrap_err().message;
        assert_eq!(problem(b"[1]"), "the body: expected an object, got a list");
        assert!(problem(b"{").starts_with("the body is not JSON: EOF"));
        assert!(problem(b"{} {}").contains("trailing characters"));
        assert!(problem(b"\xff").starts_with("the body is not JSON"));
        assert!(problem(br#"{"a": 1e999}"#).contains("number out of range"));
        let deep = [b"{\"a\":".repeat(200), b"1".to_vec(), b"}".repeat(200)].concat();
        assert!(problem(&deep).contains("recursion limit exceeded"));
        assert!(problem(&b"[".repeat(1_000_000)).contains("recursion limit exceeded"));
    }
}
