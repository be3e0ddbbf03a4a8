//! Hostile files, by the part of the file that they abuse.
//!
//! **Invariant:** a case has the contents of a whole folder: its `tokenizer.json` and, for a
//! few, its `tokenizer_config.json`.

mod parts;
mod words;

use std::path::Path;

use moeflux::provider::text::byte_tokenizer_json;
use serde_json::{Map, Value, json};

/// Qwen's expression.
pub(crate) const QWEN: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

#[derive(Clone, Debug)]
pub(crate) enum Expected {
    /// An error's line that has this part.
    Refused(&'static str),
    /// It opens and encodes all texts.
    Works,
}

#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) expected: Expected,
    tokenizer: Vec<u8>,
    config: String,
}

impl Case {
    /// Writes the files of the case.
    pub(crate) fn write(&self, dir: &Path) {
        std::fs::write(dir.join("tokenizer.json"), &self.tokenizer).unwrap();
        std::fs::write(dir.join("tokenizer_config.json"), &self.config).unwrap();
    }

    pub(crate) fn raw(name: &str, expected: Expected, tokenizer: impl Into<Vec<u8>>) -> Self {
        let config = "{}".to_owned();
        Self { name: name.to_owned(), expected, tokenizer: tokenizer.into(), config }
    }

    /// A good file with one part changed.
    pub(crate) fn part(name: &str, expected: Expected, key: &str, value: Value) -> Self {
        let mut json = good();
        json[key] = value;
        Self::raw(name, expected, json.to_string())
    }

    /// A good file with one key of its model changed.
    pub(crate) fn model(name: &str, expected: Expected, key: &str, value: Value) -> Self {
        let mut json = good();
        json["model"][key] = value;
        Self::raw(name, expected, json.to_string())
    }

    /// A good file with this expression.
    pub(crate) fn split(name: &str, expected: Expected, expression: &str) -> Self {
        Self::part(name, expected, "pre_tokenizer", split(expression))
    }

    /// A good file, and these contents of `tokenizer_config.json`.
    pub(crate) fn config(name: &str, expected: Expected, config: impl Into<String>) -> Self {
        Self { config: config.into(), ..Self::raw(name, expected, good().to_string()) }
    }
}

/// Bytes, six merges and two added tokens, split as Qwen's.
pub(crate) fn good() -> Value {
    let mut json = byte_tokenizer_json(256, &[]);
    for (id, piece) in (256..).zip(["he", "ll", "hell", "Ġw", "or", "Ġwor"]) {
        json["model"]["vocab"][piece] = json!(id);
    }
    json["model"]["merges"] = json!(["h e", "l l", "he ll", "Ġ w", "o r", "Ġw or"]);
    json["added_tokens"] = json!([added(262, "<|im_start|>"), added(263, "<|im_end|>")]);
    json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [split(QWEN), {
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
        "use_regex": false}]});
    json
}

pub(crate) fn added(id: i64, content: &str) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true})
}

pub(crate) fn split(expression: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated",
        "invert": false})
}

pub(crate) fn replace(pattern: &str, content: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
}

/// `{"type": "Sequence", KEY: [..]}`, `n` times around a part.
pub(crate) fn nested(key: &str, n: usize, inner: Value) -> Value {
    (0..n).fold(inner, |inner, _| {
        let mut outer = Map::new();
        outer.insert("type".into(), json!("Sequence"));
        outer.insert(key.into(), json!([inner]));
        Value::Object(outer)
    })
}

pub(crate) fn all() -> Vec<Case> {
    [
        words::files(),
        words::models(),
        words::added_tokens(),
        parts::normalizers(),
        parts::pre_tokenizers(),
        parts::expressions(),
        parts::ends(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
