//! The meaning of `tokenizer.ggml.pre`: how the original tokenizer of that name normalises and
//! splits a text, which a GGUF file does not contain.
//!
//! **Invariant:** each expression is copied verbatim from a published `tokenizer.json` (for Kimi
//! from the tiktoken program). A name whose original is not available has no recipe.

use std::path::Path;

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use crate::error::Result;
use crate::text::tokenizer::pipeline::{AddedTokens, BpeModel, TokenizerParts, TokenizerPipeline};

/// The steps that normalise and split a text and merge its pieces into tokens.
#[derive(Clone, Copy, Debug)]
pub(in crate::text) struct Recipe {
    names: &'static [&'static str],
    splits: &'static [&'static str],
    is_normalized: bool,
    pub(super) merging: Merging,
    /// Default for adding the begin-of-text token, for files without the key.
    pub(super) adds_bos: bool,
}

/// The method of merging a piece into tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Merging {
    /// By the file's merges.
    Listed,
    /// A piece that is a token becomes that token, regardless of the merges.
    WholeFirst,
    /// Whole pieces first, then as in tiktoken: ids are ranks, two tokens merge if their
    /// concatenation is a token, and the lowest id comes first. The file's own merges have only one
    /// pair per token.
    Ranks,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const QWEN3_5: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|",
    r"\s+(?!\S)|\s+"
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|",
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const KIMI: &str = concat!(
    r"[\p{Han}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const DEEPSEEK_V3: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"##,
        "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|",
        r"\s+(?!\S)|\s+"
    ),
];

/// Defaults of most recipes.
const PLAIN: Recipe = Recipe {
    names: &[],
    splits: &[],
    is_normalized: false,
    merging: Merging::Listed,
    adds_bos: false,
};

const RECIPES: [Recipe; 11] = [
    Recipe { names: &["qwen2"], splits: &[QWEN2], is_normalized: true, ..PLAIN },
    Recipe { names: &["qwen35"], splits: &[QWEN3_5], is_normalized: true, ..PLAIN },
    Recipe { names: &["deepseek-v3"], splits: &DEEPSEEK_V3, ..PLAIN },
    Recipe { names: &["glm4", "glm5"], splits: &[LLAMA3], merging: Merging::WholeFirst, ..PLAIN },
    Recipe { names: &["chatglm-bpe"], splits: &[LLAMA3], ..PLAIN },
    Recipe { names: &["gpt-4o"], splits: &[GPT4O], merging: Merging::WholeFirst, ..PLAIN },
    Recipe { names: &["minimax-m2"], splits: &[GPT4O], ..PLAIN },
    Recipe { names: &["kimi-k2"], splits: &[KIMI], merging: Merging::Ranks, ..PLAIN },
    Recipe {
        names: &["llama-bpe", "llama3", "llama-v3"],
        splits: &[LLAMA3],
        merging: Merging::WholeFirst,
        adds_bos: true,
        ..PLAIN
    },
    Recipe {
        names: &["tekken"],
        splits: &[TEKKEN],
        merging: Merging::WholeFirst,
        adds_bos: true,
        ..PLAIN
    },
    Recipe { names: &["olmo"], splits: &[GPT2], is_normalized: true, ..PLAIN },
];

impl Recipe {
    pub(in crate::text) fn named(name: &str) -> Option<&'static Self> {
        RECIPES.iter().find(|recipe| recipe.names.contains(&name))
    }

    /// Returns all names, for a message.
    pub(super) fn names() -> String {
        let names: Vec<&str> = RECIPES.iter().flat_map(|recipe| recipe.names).copied().collect();
        names.join(", ")
    }

    /// Builds the tokenizer with these tokens. `model_key` is the key of the model in the file.
    pub(in crate::text) fn pipeline(
        &self,
        path: &Path,
        added: AddedTokens,
        model: BpeModel,
        model_key: &'static str,
    ) -> Result<TokenizerPipeline> {
        let normalizer = self.normalizer().map(|json| raw(&json));
        let parts = TokenizerParts {
            normalizer: normalizer.as_deref(),
            pre_tokenizer: Some(&raw(&self.pre_tokenizer())),
            post_processor: None,
            decoder: Some(&raw(&bytes())),
            added,
            model,
            model_key,
        };
        TokenizerPipeline::build(path, parts)
    }

    /// Returns the original's `normalizer`.
    fn normalizer(&self) -> Option<Value> {
        self.is_normalized.then(|| json!({"type": "NFC"}))
    }

    /// Returns the original's `pre_tokenizer`.
    fn pre_tokenizer(&self) -> Value {
        let split = |expression: &&str| {
            json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated",
                "invert": false})
        };
        let mut steps: Vec<Value> = self.splits.iter().map(split).collect();
        steps.push(bytes());
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}

/// Returns the step that converts between bytes and the characters that stand for them.
fn bytes() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": false})
}

/// The steps of a SentencePiece tokenizer: spaces are written as characters, and one is prepended
/// unless the file disables it.
pub(super) struct SentencePieceRecipe {
    pub(super) adds_space: bool,
}

impl SentencePieceRecipe {
    /// Builds the tokenizer with these tokens. `model_key` is the key of the model in the file.
    pub(super) fn pipeline(
        &self,
        path: &Path,
        added: AddedTokens,
        model: BpeModel,
        model_key: &'static str,
    ) -> Result<TokenizerPipeline> {
        let parts = TokenizerParts {
            normalizer: Some(&raw(&self.normalizer())),
            pre_tokenizer: None,
            post_processor: None,
            decoder: Some(&raw(&self.decoder())),
            added,
            model,
            model_key,
        };
        TokenizerPipeline::build(path, parts)
    }

    fn normalizer(&self) -> Value {
        let mut steps = Vec::new();
        if self.adds_space {
            steps.push(json!({"type": "Prepend", "prepend": "\u{2581}"}));
        }
        steps.push(replace(" ", "\u{2581}"));
        json!({"type": "Sequence", "normalizers": steps})
    }

    fn decoder(&self) -> Value {
        let mut steps = vec![
            replace("\u{2581}", " "),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if self.adds_space {
            steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        json!({"type": "Sequence", "decoders": steps})
    }
}

fn raw(json: &Value) -> Box<RawValue> {
    to_raw_value(json).expect("JSON of our own is JSON")
}

fn replace(text: &str, content: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": text}, "content": content})
}
