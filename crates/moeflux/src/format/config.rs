//! `config.json`, or its equivalent, as a tree with typed getters.
//!
//! **Invariant:** an error names the file, the key, the value found and the type expected. An
//! absent key and `null` are equivalent. The meaning of keys is not known here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::format::json::{parse_json, word};
use crate::format::quoted;
use crate::format::read::read_file;

/// Upper bound on the file. The largest published ones (a quantisation entry per tensor) have about
/// 1 MB.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// A parsed `config.json`.
#[derive(Clone, Debug)]
pub struct RawConfig {
    path: PathBuf,
    root: Map<String, Value>,
    /// Names of keys in the source file, where they differ.
    names: BTreeMap<String, String>,
}

/// One object of a [`RawConfig`].
#[derive(Clone, Debug)]
pub struct ConfigSection<'a> {
    path: &'a Path,
    /// Path of keys to this section, for messages: "" or "text_config.".
    prefix: String,
    map: &'a Map<String, Value>,
    names: &'a BTreeMap<String, String>,
}

impl RawConfig {
    /// Reads `config.json` in a model's folder.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it cannot be read; [`Error::Malformed`] if it is not a JSON object.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join("config.json");
        let bytes = read_file(&path, CONFIG_BYTES_MAX)?;
        Self::parse(&path, &bytes)
    }

    /// Parses the bytes of a config. `path` is only for messages.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if they are not a JSON object, or are nested more than 127 levels deep.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let value = parse_json(bytes)
            .map_err(|error| Error::malformed(path, format!("is not JSON: {error}")))?;
        let Value::Object(root) = value else {
            return Err(Error::malformed(path, format!("is {}, not a JSON object", kind(&value))));
        };
        Ok(Self { path: path.to_owned(), root, names: BTreeMap::new() })
    }

    /// Wraps a tree converted from another kind of file. `names` maps keys to their names in that
    /// file.
    #[must_use]
    pub fn of_tree(path: &Path, root: Map<String, Value>, names: BTreeMap<String, String>) -> Self {
        Self { path: path.to_owned(), root, names }
    }

    /// Returns the path of the file, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the top level.
    #[must_use]
    pub fn root(&self) -> ConfigSection<'_> {
        ConfigSection {
            path: &self.path,
            prefix: String::new(),
            map: &self.root,
            names: &self.names,
        }
    }

    /// Returns the language model's section: `text_config` if present, otherwise the top level.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if `text_config` is not an object.
    pub fn text(&self) -> Result<ConfigSection<'_>> {
        let root = self.root();
        Ok(root.section("text_config")?.unwrap_or(root))
    }
}

impl<'a> ConfigSection<'a> {
    /// Returns the path of the file, for messages.
    #[must_use]
    pub fn path(&self) -> &'a Path {
        self.path
    }

    /// Returns the full path of a key, for messages.
    #[must_use]
    pub fn full_key(&self, key: &str) -> String {
        let key = format!("{}{}", self.prefix, quoted(key));
        self.names.get(&key).cloned().unwrap_or(key)
    }

    /// Returns the value of a key, if present and not `null`.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Returns all keys with their values.
    pub fn entries(&self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        self.map.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Returns whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Returns a nested object.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if the value is something else.
    pub fn section(&self, key: &str) -> Result<Option<Self>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                let prefix = format!("{}{}.", self.prefix, quoted(key));
                Ok(Some(Self { path: self.path, prefix, map, names: self.names }))
            }
            Some(_) => Err(self.wrong(key, "an object")),
        }
    }

    /// Returns a required count.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if it is absent or not a non-negative integer.
    pub fn usize_at(&self, key: &str) -> Result<usize> {
        self.usize_opt(key)?.ok_or_else(|| self.missing(key))
    }

    /// Returns a count.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if it is not a non-negative integer.
    pub fn usize_opt(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "a non-negative integer", |value| {
            value.as_u64().and_then(|n| usize::try_from(n).ok())
        })
    }

    /// Returns a number.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if it is not a finite number.
    pub fn f64_opt(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", Value::as_f64)
    }

    /// Returns a boolean.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if it is neither `true` nor `false`.
    pub fn bool_opt(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", Value::as_bool)
    }

    /// Returns a string.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if it is not a string.
    pub fn str_opt(&self, key: &str) -> Result<Option<&'a str>> {
        self.typed(key, "a string", text)
    }

    /// Returns a list of counts.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if it is not a list of non-negative integers.
    pub fn usize_list_opt(&self, key: &str) -> Result<Option<Vec<usize>>> {
        self.typed(key, "a list of non-negative integers", |value| {
            let as_usize = |item: &Value| item.as_u64().and_then(|n| usize::try_from(n).ok());
            value.as_array()?.iter().map(as_usize).collect()
        })
    }

    /// Returns a list of strings.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if it is not a list of strings.
    pub fn str_list_opt(&self, key: &str) -> Result<Option<Vec<&'a str>>> {
        self.typed(key, "a list of strings", |value| value.as_array()?.iter().map(text).collect())
    }

    /// Returns the first of several alternative keys that is present, or the first key if none is.
    #[must_use]
    pub fn present<'k>(&self, keys: &[&'k str]) -> &'k str {
        let found = keys.iter().find(|key| self.value(key).is_some());
        found.or(keys.first()).copied().unwrap_or("")
    }

    /// Returns an error about a required key that is absent.
    #[must_use]
    pub fn missing(&self, key: &str) -> Error {
        Error::malformed(self.path, format!("key `{}` is missing", self.full_key(key)))
    }

    /// Returns an error about a value that is not `expected`.
    #[must_use]
    pub fn wrong(&self, key: &str, expected: &str) -> Error {
        let found = self.map.get(key).map_or_else(|| "absent".to_owned(), short);
        let problem = format!("`{}` is {found}; expected {expected}", self.full_key(key));
        Error::malformed(self.path, problem)
    }

    /// Returns an error about a well-formed value that this program cannot run, with advice.
    #[must_use]
    pub fn unsupported(&self, key: &str, advice: &str) -> Error {
        let found = self.map.get(key).map_or_else(|| "absent".to_owned(), short);
        let path = self.path.display();
        Error::Unsupported(format!("{path}: `{}` is {found}: {advice}", self.full_key(key)))
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| self.wrong(key, expected))
    }
}

/// Returns the string, unless it stands for a number such as `NaN`.
fn text(value: &Value) -> Option<&str> {
    value.as_str().filter(|_| word(value).is_none())
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) if word(value).is_some() => "a number",
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Formats a value for a message.
fn short(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(map) => format!("an object of {} keys", map.len()),
        Value::String(text) => match word(value) {
            Some(word) => word.to_owned(),
            None => format!("\"{}\"", quoted(text)),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) => quoted(&value.to_string()),
    }
}
