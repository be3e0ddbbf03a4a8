//! Translates the keys of an architecture into a config.
//!
//! **Invariant:** at the end every key of the architecture was taken, or is known to have no
//! effect.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Number, Value as Json};

use crate::error::{Error, Result};
use crate::format::{Gguf, Metadata, MetadataValue, RawConfig};

/// Keys without effect on text.
const WITHOUT_EFFECT: [&str; 4] =
    ["tensor_data_layout", "rope.dimension_sections", "rope.scaling.finetuned", "pooling_type"];

/// The keys of an architecture in a file, and the config built from them.
pub(super) struct ArchitectureKeys<'a> {
    path: &'a Path,
    metadata: &'a Metadata,
    architecture: &'a str,
    taken: BTreeSet<String>,
    config: Map<String, Json>,
    /// Key in the file for each key of the config.
    names: BTreeMap<String, String>,
}

impl<'a> ArchitectureKeys<'a> {
    pub(super) fn new(gguf: &'a Gguf) -> Self {
        Self {
            path: &gguf.path,
            metadata: &gguf.metadata,
            architecture: &gguf.architecture,
            taken: BTreeSet::new(),
            config: Map::new(),
            names: BTreeMap::new(),
        }
    }

    /// Returns the config, if every key was taken or has no effect.
    pub(super) fn into_config(self) -> Result<RawConfig> {
        let prefix = format!("{}.", self.architecture);
        let unknown = self.metadata.entries().map(|(key, _)| key).find(|key| {
            let own = key.strip_prefix(&prefix);
            own.is_some_and(|own| !self.taken.contains(*key) && !WITHOUT_EFFECT.contains(&own))
        });
        if let Some(key) = unknown {
            let key: String = key.escape_debug().take(100).collect();
            return Err(
                self.unsupported(&key, "this key is not known, and it may change the model")
            );
        }
        Ok(RawConfig::of_tree(self.path, self.config, self.names))
    }

    pub(super) fn metadata(&self) -> &'a Metadata {
        self.metadata
    }

    /// Takes a key of the architecture. Returns its full name and its value.
    fn take(&mut self, key: &str) -> (String, Option<&'a MetadataValue>) {
        let full = format!("{}.{key}", self.architecture);
        let value = self.metadata.get(&full);
        self.taken.insert(full.clone());
        (full, value)
    }

    /// Takes a key as a value of the config. A list, as in files with a value per layer, must have
    /// the same value throughout.
    pub(super) fn value(&mut self, key: &str) -> Result<Option<Json>> {
        let (full, value) = self.take(key);
        let Some(value) = value else { return Ok(None) };
        let json = match value {
            MetadataValue::Bool(value) => Some(Json::Bool(*value)),
            MetadataValue::U64(value) => Some(Json::Number((*value).into())),
            MetadataValue::I64(value) => Some(Json::Number((*value).into())),
            MetadataValue::F64(value) => Number::from_f64(*value).map(Json::Number),
            MetadataValue::String(text) => Some(Json::String(text.clone())),
            MetadataValue::Integers(values) => {
                let first = values.first().copied();
                if values.iter().any(|value| Some(*value) != first) {
                    return Err(self.unsupported(&full, "a value for each layer is not supported"));
                }
                first.map(|value| Json::Number(value.into()))
            }
            MetadataValue::Bools(_) | MetadataValue::Floats(_) | MetadataValue::Strings(_) => None,
        };
        let wrong = || self.wrong(&full, "a finite number or a truth value");
        json.map(Some).ok_or_else(wrong)
    }

    /// Marks keys as taken: other keys determine their values.
    pub(super) fn skip(&mut self, keys: &[&str]) {
        for key in keys {
            self.take(key);
        }
    }

    pub(super) fn count_opt(&mut self, key: &str) -> Result<Option<u64>> {
        let Some(value) = self.value(key)? else { return Ok(None) };
        let count = value.as_u64();
        count.map(Some).ok_or_else(|| self.wrong(&self.full(key), "a non-negative integer"))
    }

    pub(super) fn count(&mut self, key: &str) -> Result<u64> {
        self.count_opt(key)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn number_opt(&mut self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.value(key)? else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.wrong(&self.full(key), "a number"))
    }

    pub(super) fn text_opt(&mut self, key: &str) -> Result<Option<&'a str>> {
        let (full, value) = self.take(key);
        match value {
            None => Ok(None),
            Some(MetadataValue::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(&full, "a string")),
        }
    }

    pub(super) fn bools_opt(&mut self, key: &str) -> Result<Option<&'a [bool]>> {
        let (full, value) = self.take(key);
        match value {
            None => Ok(None),
            Some(MetadataValue::Bools(values)) => Ok(Some(values)),
            Some(_) => Err(self.wrong(&full, "an array of truth values")),
        }
    }

    /// Copies a required key.
    pub(super) fn copy(&mut self, config_key: &str, key: &str) -> Result<()> {
        if self.copy_opt(config_key, key)? { Ok(()) } else { Err(self.missing(key)) }
    }

    /// Copies a key. Returns whether it is present.
    pub(super) fn copy_opt(&mut self, config_key: &str, key: &str) -> Result<bool> {
        let Some(value) = self.value(key)? else { return Ok(false) };
        self.set_from(config_key, key, value);
        Ok(true)
    }

    /// Copies a key, or sets a default.
    pub(super) fn copy_or(&mut self, config_key: &str, key: &str, default: Json) -> Result<()> {
        if !self.copy_opt(config_key, key)? {
            self.set_from(config_key, key, default);
        }
        Ok(())
    }

    /// Sets a key of the config that is derived from a key of the file.
    pub(super) fn set_from(&mut self, config_key: &str, key: &str, value: impl Into<Json>) {
        self.names.insert(config_key.to_owned(), self.full(key));
        self.set(config_key, value);
    }

    /// Sets a key of the config. A dot leads into an object.
    pub(super) fn set(&mut self, config_key: &str, value: impl Into<Json>) {
        let Some((outer, inner)) = config_key.split_once('.') else {
            self.config.insert(config_key.to_owned(), value.into());
            return;
        };
        let object = self.config.entry(outer).or_insert_with(|| Json::Object(Map::new()));
        if let Json::Object(object) = object {
            object.insert(inner.to_owned(), value.into());
        }
    }

    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub(super) fn missing(&self, key: &str) -> Error {
        Error::malformed(self.path, format!("key `{}` is missing", self.full(key)))
    }

    /// Returns an error about a key of the file that is not `expected`.
    pub(super) fn wrong(&self, full_key: &str, expected: &str) -> Error {
        let found = self.metadata.get(full_key).map_or("absent", MetadataValue::kind);
        Error::malformed(self.path, format!("`{full_key}` is {found}; expected {expected}"))
    }

    /// Returns an error about a value that cannot be run.
    pub(super) fn refused(&self, key: &str, advice: &str) -> Error {
        self.unsupported(&self.full(key), advice)
    }

    fn unsupported(&self, full_key: &str, advice: &str) -> Error {
        Error::Unsupported(format!("{}: `{full_key}`: {advice}", self.path.display()))
    }
}
