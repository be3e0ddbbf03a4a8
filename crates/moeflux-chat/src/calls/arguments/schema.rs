//! Determines the kinds of values that a tool's schema allows for a parameter, for formats that
//! write values without quotes.
//!
//! **Invariant:** a schema that is silent, or cannot be understood, allows every kind. The work per
//! parameter is bounded, whatever the schema.

use serde_json::Value as Json;

/// Returns whether arguments are an object that satisfies the declared parameters: all required
/// ones are present, and each has an allowed kind and, if values are listed, an allowed value.
pub(crate) fn fits(schema: &Json, arguments: &str) -> bool {
    let Ok(Json::Object(given)) = serde_json::from_str(arguments) else { return false };
    let required = schema.get("required").and_then(Json::as_array).into_iter().flatten();
    let mut missing = required.filter_map(Json::as_str).filter(|it| !given.contains_key(*it));
    if missing.next().is_some() {
        return false;
    }
    let declared = schema.get("properties").and_then(Json::as_object);
    given.iter().all(|(name, value)| {
        let property = declared.and_then(|it| it.get(name));
        let is_known = property.is_some() || declared.is_none() || is_open(schema);
        let listed = property.and_then(|it| it.get("enum")).and_then(Json::as_array);
        is_known
            && ValueKinds::of_parameter(schema, name).has_kind_of(value)
            && listed.is_none_or(|values| values.contains(value))
    })
}

/// Returns whether undeclared parameters may be given.
fn is_open(schema: &Json) -> bool {
    ["allOf", "anyOf", "oneOf", "$ref", "patternProperties", "additionalProperties"]
        .iter()
        .any(|it| schema.get(*it).is_some_and(|value| value != &Json::Bool(false)))
}

/// Maximum number of schema parts that are read for one parameter, because references may form
/// cycles.
const PARTS_MAX: usize = 1000;

/// The number of list values, or of bytes of a reference, that count as one more part.
const ENTRIES_PER_PART: usize = 64;

/// A set of kinds of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValueKinds(u8);

impl ValueKinds {
    const NONE: Self = Self(0);
    const NULL: Self = Self(1);
    const BOOLEAN: Self = Self(2);
    const NUMBER: Self = Self(4);
    const TEXT: Self = Self(8);
    const ARRAY: Self = Self(16);
    const OBJECT: Self = Self(32);
    pub(crate) const ANY: Self = Self(63);

    /// Returns the kinds that the schema of all parameters allows for the parameter `name`.
    pub(crate) fn of_parameter(schema: &Json, name: &str) -> Self {
        let declared = schema.get("properties").and_then(|it| it.get(name));
        let Some(declared) = declared.or(schema.get("additionalProperties")) else {
            return Self::ANY;
        };
        KindSearch { root: schema, n_left: PARTS_MAX }.kinds(declared).unwrap_or(Self::ANY)
    }

    /// Returns these kinds restricted to strings, or to all but strings; all if none is left.
    pub(crate) fn narrowed(self, to_text: bool) -> Self {
        let left = if to_text { self.0 & Self::TEXT.0 } else { self.0 & !Self::TEXT.0 };
        if left == 0 { self } else { Self(left) }
    }

    /// Returns whether strings are the only kind; then a value is not parsed.
    pub(crate) fn is_text(self) -> bool {
        self == Self::TEXT
    }

    /// Returns whether strings and null are the only kinds.
    pub(crate) fn is_text_or_null(self) -> bool {
        self == Self::TEXT.or(Self::NULL)
    }

    /// Returns whether a string is allowed.
    pub(crate) fn has_text(self) -> bool {
        self.has(Self::TEXT)
    }

    /// Returns whether the kind of this value is allowed.
    pub(crate) fn has_kind_of(self, value: &Json) -> bool {
        self.has(Self::of(value))
    }

    /// Returns the names of the kinds in schemas; `number` includes integers.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        const NAMES: [(&str, ValueKinds); 6] = [
            ("null", ValueKinds::NULL),
            ("boolean", ValueKinds::BOOLEAN),
            ("number", ValueKinds::NUMBER),
            ("string", ValueKinds::TEXT),
            ("array", ValueKinds::ARRAY),
            ("object", ValueKinds::OBJECT),
        ];
        NAMES.into_iter().filter(move |(_, kind)| self.has(*kind)).map(|(name, _)| name)
    }

    fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    fn of(value: &Json) -> Self {
        match value {
            Json::Null => Self::NULL,
            Json::Bool(_) => Self::BOOLEAN,
            Json::Number(_) => Self::NUMBER,
            Json::String(_) => Self::TEXT,
            Json::Array(_) => Self::ARRAY,
            Json::Object(_) => Self::OBJECT,
        }
    }

    fn named(name: &Json) -> Self {
        match name.as_str() {
            Some("null") => Self::NULL,
            Some("boolean") => Self::BOOLEAN,
            Some("number" | "integer") => Self::NUMBER,
            Some("string") => Self::TEXT,
            Some("array") => Self::ARRAY,
            Some("object") => Self::OBJECT,
            _ => Self::ANY,
        }
    }

    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// A search for the kinds that a schema allows, of bounded work.
struct KindSearch<'a> {
    root: &'a Json,
    n_left: usize,
}

impl<'a> KindSearch<'a> {
    /// Returns `None` if the limit is exceeded. A contradictory schema allows everything.
    fn kinds(&mut self, schema: &'a Json) -> Option<ValueKinds> {
        self.count(0)?;
        let Some(schema) = schema.as_object() else { return Some(ValueKinds::ANY) };
        let mut kinds = ValueKinds::ANY;
        if let Some(reference) = schema.get("$ref").and_then(Json::as_str) {
            self.count(reference.len())?;
            if let Some(found) = self.referenced(reference) {
                kinds = kinds.and(self.kinds(found)?);
            }
        }
        match schema.get("type") {
            Some(Json::Array(names)) => {
                self.count(names.len())?;
                kinds = kinds.and(union(names, ValueKinds::named));
            }
            Some(name) => kinds = kinds.and(ValueKinds::named(name)),
            None => kinds = kinds.and(implied(schema)),
        }
        if let Some(Json::Array(values)) = schema.get("enum") {
            self.count(values.len())?;
            kinds = kinds.and(union(values, ValueKinds::of));
        }
        if let Some(value) = schema.get("const") {
            kinds = kinds.and(ValueKinds::of(value));
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Json::Array(parts)) = schema.get(key) {
                let mut allowed = ValueKinds::NONE;
                for part in parts {
                    allowed = allowed.or(self.kinds(part)?);
                }
                kinds = kinds.and(allowed);
            }
        }
        for part in schema.get("allOf").and_then(Json::as_array).into_iter().flatten() {
            kinds = kinds.and(self.kinds(part)?);
        }
        if schema.get("nullable") == Some(&Json::Bool(true)) {
            kinds = kinds.or(ValueKinds::NULL);
        }
        Some(if kinds == ValueKinds::NONE { ValueKinds::ANY } else { kinds })
    }

    /// Counts a part, or the entries of one.
    fn count(&mut self, n_entries: usize) -> Option<()> {
        let n_parts = 1 + n_entries / ENTRIES_PER_PART;
        self.n_left = self.n_left.checked_sub(n_parts)?;
        Some(())
    }

    /// Returns the part of the same schema that a reference points to.
    fn referenced(&self, reference: &str) -> Option<&'a Json> {
        self.root.pointer(reference.strip_prefix('#')?)
    }
}

fn union(values: &[Json], kinds: impl Fn(&Json) -> ValueKinds) -> ValueKinds {
    values.iter().map(kinds).fold(ValueKinds::NONE, ValueKinds::or)
}

/// Returns the kinds implied by a schema without a type.
fn implied(schema: &serde_json::Map<String, Json>) -> ValueKinds {
    if schema.contains_key("properties") {
        ValueKinds::OBJECT
    } else if schema.contains_key("items") {
        ValueKinds::ARRAY
    } else {
        ValueKinds::ANY
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(parameter: &Json, expected: ValueKinds) {
        let schema = json!({
            "properties": {"p": parameter},
            "$defs": {"text": {"type": "string"}, "circle": {"$ref": "#/$defs/circle"},
                "burst": {"anyOf": [{"$ref": "#/$defs/burst"}, {"$ref": "#/$defs/burst"}]}},
        });
        assert_eq!(ValueKinds::of_parameter(&schema, "p"), expected, "{parameter}");
    }

    #[test]
    fn schemas_list_the_kinds_that_they_allow() {
        check(&json!({"type": "string"}), ValueKinds::TEXT);
        check(&json!({"type": "integer"}), ValueKinds::NUMBER);
        check(&json!({"type": ["string", "null"]}), ValueKinds::TEXT.or(ValueKinds::NULL));
        check(&json!({"type": "string", "nullable": true}), ValueKinds::TEXT.or(ValueKinds::NULL));
        check(&json!({"enum": ["a", "b"]}), ValueKinds::TEXT);
        check(&json!({"enum": ["a", 1]}), ValueKinds::TEXT.or(ValueKinds::NUMBER));
        check(&json!({"const": true}), ValueKinds::BOOLEAN);
        check(&json!({"properties": {}}), ValueKinds::OBJECT);
        check(&json!({"items": {}}), ValueKinds::ARRAY);
        let either = json!([{"type": "array"}, {"type": "null"}]);
        check(&json!({"anyOf": either}), ValueKinds::ARRAY.or(ValueKinds::NULL));
        check(&json!({"oneOf": either}), ValueKinds::ARRAY.or(ValueKinds::NULL));
        check(&json!({"allOf": [{"minLength": 1}, {"$ref": "#/$defs/text"}]}), ValueKinds::TEXT);
        check(&json!({"$ref": "#/$defs/text", "default": ""}), ValueKinds::TEXT);
    }

    #[test]
    fn long_lists_count_as_many_parts() {
        let values = |n: usize| vec![json!("a"); n];
        check(&json!({"enum": values(50_000)}), ValueKinds::TEXT);
        check(
            &json!({"allOf": [{"enum": values(50_000)}, {"enum": values(50_000)}]}),
            ValueKinds::ANY,
        );
    }

    #[test]
    fn arguments_fit_that_have_the_declared_parameters() {
        let schema = json!({
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
            "required": ["city"],
        });
        for (arguments, expected) in [
            (r#"{"city": "Bern"}"#, true),
            (r#"{"city": "Bern", "unit": "F"}"#, true),
            (r#"{"city": 3}"#, false),
            (r#"{"unit": "C"}"#, false),
            (r#"{"city": "Bern", "unit": "K"}"#, false),
            (r#"{"city": "Bern", "days": 3}"#, false),
            (r#"["Bern"]"#, false),
        ] {
            assert_eq!(fits(&schema, arguments), expected, "{arguments}");
        }
        assert!(fits(&json!({"type": "object"}), r#"{"any": 1}"#));
        assert!(fits(&Json::Null, "{}"));
        let open = json!({"properties": {}, "additionalProperties": {"type": "number"}});
        assert!(fits(&open, r#"{"any": 1}"#));
        assert!(!fits(&open, r#"{"any": "1"}"#));
    }

    #[test]
    fn schemas_without_a_known_type_allow_every_kind() {
        for schema in [
            json!({}),
            json!(true),
            json!({"type": "text"}),
            json!({"type": "string", "const": 1}),
            json!({"$ref": "#/$defs/missing"}),
            json!({"$ref": "https://example.com"}),
            json!({"$ref": "#/$defs/circle"}),
            json!({"$ref": "#/$defs/burst"}),
        ] {
            check(&schema, ValueKinds::ANY);
        }
    }

    #[test]
    fn parameters_that_are_not_declared_are_additional() {
        let kinds = |schema: Json| ValueKinds::of_parameter(&schema, "p");
        assert_eq!(kinds(json!({"additionalProperties": {"type": "string"}})), ValueKinds::TEXT);
        assert_eq!(kinds(json!({"additionalProperties": false})), ValueKinds::ANY);
        assert_eq!(kinds(json!({"properties": {"q": {"type": "string"}}})), ValueKinds::ANY);
        assert_eq!(kinds(Json::Null), ValueKinds::ANY);
    }
}
