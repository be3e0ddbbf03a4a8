//! The metadata of a GGUF file: values by key.
//!
//! **Invariant:** integers of every width become one of two types, so that no reader depends on the
//! width that a converter chose. The meaning of keys is not known here.

use std::collections::BTreeMap;

/// The keys of a file and their values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    pub(super) values: BTreeMap<String, MetadataValue>,
}

/// A value of a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub enum MetadataValue {
    /// `BOOL`.
    Bool(bool),
    /// An unsigned integer of any width, or a signed one that is not negative.
    U64(u64),
    /// A signed integer below 0.
    I64(i64),
    /// `FLOAT32` or `FLOAT64`.
    F64(f64),
    /// `STRING`.
    String(String),
    /// An array of booleans.
    Bools(Vec<bool>),
    /// An array of integers of any width.
    Integers(Vec<i64>),
    /// An array of `FLOAT32` or `FLOAT64`.
    Floats(Vec<f64>),
    /// An array of strings.
    Strings(Vec<String>),
}

impl Metadata {
    /// Drops the keys of the tokenizer.
    pub(crate) fn drop_text(&mut self) {
        self.values.retain(|key, _| !key.starts_with("tokenizer."));
    }

    /// Returns the value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&MetadataValue> {
        self.values.get(key)
    }

    /// Returns the value of a key if it is a string.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            MetadataValue::String(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the value of a key if it is a non-negative integer.
    #[must_use]
    pub fn count(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            MetadataValue::U64(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns all keys with their values, ordered by key.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &MetadataValue)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }
}

impl MetadataValue {
    /// Returns the kind of the value, for messages.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Bool(_) => "a truth value",
            Self::U64(_) | Self::I64(_) => "an integer",
            Self::F64(_) => "a number",
            Self::String(_) => "a string",
            Self::Bools(_) => "an array of truth values",
            Self::Integers(_) => "an array of integers",
            Self::Floats(_) => "an array of numbers",
            Self::Strings(_) => "an array of strings",
        }
    }
}
