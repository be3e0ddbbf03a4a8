//! Reads a GGUF file's metadata by key and type.
//!
//! **Invariant:** a value of the wrong type, or an array whose length differs from the
//! vocabulary's, is an error that names the key.

use std::path::Path;

use crate::error::{Error, Result};
use crate::format::{Metadata, MetadataValue};
use crate::text::files::{one_line, shortened};

/// An absent token, as converters write it: this unsigned number, or -1.
const NO_TOKEN: u64 = 0xffff_ffff;

/// The metadata of a file, with error messages that name it.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextKeys<'a> {
    pub(super) path: &'a Path,
    pub(super) metadata: &'a Metadata,
}

impl<'a> TextKeys<'a> {
    /// Returns an error at a key.
    pub(super) fn refused(&self, key: &str, problem: impl AsRef<str>) -> Error {
        Error::malformed(
            self.path,
            one_line(&format!("`{}`: {}", shortened(key), problem.as_ref())),
        )
    }

    /// Returns an error about a missing part of a tokenizer.
    pub(super) fn missing(&self, key: &str) -> Error {
        let problem = format!("`{key}` is missing");
        Error::UnknownTokenizer { path: self.path.to_owned(), problem }
    }

    fn wrong(&self, key: &str, value: &MetadataValue, wanted: &str) -> Error {
        self.refused(key, format!("{}, not {wanted}", value.kind()))
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(MetadataValue::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, other, "a string")),
        }
    }

    pub(super) fn texts(&self, key: &str) -> Result<Option<&'a [String]>> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(MetadataValue::Strings(texts)) => Ok(Some(texts)),
            Some(other) if is_empty(other) => Ok(Some(&[])),
            Some(other) => Err(self.wrong(key, other, "an array of strings")),
        }
    }

    pub(super) fn integers(&self, key: &str) -> Result<Option<&'a [i64]>> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(MetadataValue::Integers(numbers)) => Ok(Some(numbers)),
            Some(other) => Err(self.wrong(key, other, "an array of integers")),
        }
    }

    pub(super) fn floats(&self, key: &str) -> Result<Option<&'a [f64]>> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(MetadataValue::Floats(numbers)) => Ok(Some(numbers)),
            Some(other) => Err(self.wrong(key, other, "an array of numbers")),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(MetadataValue::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong(key, other, "a truth value")),
        }
    }

    /// Returns an index into a vocabulary of `n_tokens`.
    pub(super) fn token(&self, key: &str, n_tokens: usize) -> Result<Option<usize>> {
        let id = match self.metadata.get(key) {
            None | Some(MetadataValue::U64(NO_TOKEN) | MetadataValue::I64(-1)) => return Ok(None),
            Some(MetadataValue::U64(id)) => usize::try_from(*id).unwrap_or(usize::MAX),
            Some(other) => return Err(self.wrong(key, other, "the id of a token")),
        };
        if id >= n_tokens {
            return Err(self.refused(key, format!("{id}, but there are {n_tokens} tokens")));
        }
        Ok(Some(id))
    }

    /// Checks that the length of an array matches the vocabulary's.
    pub(super) fn check_len(&self, key: &str, len: usize, n_tokens: usize) -> Result<()> {
        if len == n_tokens {
            return Ok(());
        }
        Err(self.refused(key, format!("{len} values for {n_tokens} tokens")))
    }
}

/// Returns whether an array is empty. An empty array may have any type: writers infer it from the
/// first element.
fn is_empty(value: &MetadataValue) -> bool {
    match value {
        MetadataValue::Bools(list) => list.is_empty(),
        MetadataValue::Integers(list) => list.is_empty(),
        MetadataValue::Floats(list) => list.is_empty(),
        MetadataValue::Strings(list) => list.is_empty(),
        MetadataValue::Bool(_)
        | MetadataValue::U64(_)
        | MetadataValue::I64(_)
        | MetadataValue::F64(_)
        | MetadataValue::String(_) => false,
    }
}
