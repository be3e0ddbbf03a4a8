//! Reads the text-related metadata of a GGUF file: tokenizer, special tokens, end tokens, chat
//! template and sampling parameters.
//!
//! A GGUF file has the vocabulary, but only a name for the steps that split a text (`recipes`). The
//! result passes the same checks as a `tokenizer.json`. **Invariant:** an unknown name, or a list
//! that does not match the others, is an error that names the key. A file without tokens is
//! accepted, except where a tokenizer is required.

mod keys;
pub(super) mod recipes;
pub(super) mod merges;
mod vocabulary;

use std::path::Path;

use serde_json::{Map, Value as Json, json};

use crate::error::{Error, Result};
use crate::format::{Metadata, MetadataValue};
use crate::ids::TokenId;
use crate::text::eos::EndTokens;
use crate::text::files::shortened;
use crate::text::gguf::keys::TextKeys;
use crate::text::gguf::recipes::{Recipe, SentencePieceRecipe};
use crate::text::gguf::vocabulary::{MERGES, TOKEN_TYPE, TOKENS, TokenList};
use crate::text::special::SpecialTokens;
use crate::text::template::own::own_template;
use crate::text::tokenizer::Tokenizer;
use crate::text::tokenizer::pipeline::TokenizerPipeline;

const ARCHITECTURE: &str = "general.architecture";
const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_SPACE: &str = "tokenizer.ggml.add_space_prefix";
const REMOVE_SPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
const TEMPLATES: [(&str, &str); 3] = [
    ("default", "tokenizer.chat_template"),
    ("default", "tokenizer.chat_template.default"),
    ("tool_use", "tokenizer.chat_template.tool_use"),
];
const EOS: &str = "tokenizer.ggml.eos_token_id";

const ROLES: [(&str, &str); 7] = [
    ("bos_token", "tokenizer.ggml.bos_token_id"),
    ("eos_token", EOS),
    ("unk_token", "tokenizer.ggml.unknown_token_id"),
    ("sep_token", "tokenizer.ggml.seperator_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
    ("cls_token", "tokenizer.ggml.cls_token_id"),
    ("mask_token", "tokenizer.ggml.mask_token_id"),
];

const ENDS: [&str; 3] = [EOS, "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// Tokens that end an answer in every model that has them. A GGUF file names one or two; the
/// `generation_config.json` of its source often lists more.
const END_TEXTS: [&str; 14] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<｜end▁of▁sentence｜>",
    "[EOS]",
    "[EOT]",
    "[e~[",
    "</s>",
];

/// Keys of sampling parameters, and their names in a `generation_config.json`.
const SAMPLING: [(&str, &str); 5] = [
    ("general.sampling.temp", "temperature"),
    ("general.sampling.top_k", "top_k"),
    ("general.sampling.top_p", "top_p"),
    ("general.sampling.min_p", "min_p"),
    ("general.sampling.penalty_repeat", "repetition_penalty"),
];

impl Tokenizer {
    /// Creates the tokenizer from the metadata of the GGUF file at `path`, for a model with
    /// `vocab_rows` embedding rows.
    ///
    /// # Errors
    /// [`Error::UnknownTokenizer`] if a name is unknown or a list is missing. Also if a list does
    /// not match the others, or if an id has no embedding row.
    pub(crate) fn of_gguf(path: &Path, metadata: &Metadata, vocab_rows: usize) -> Result<Self> {
        let keys = TextKeys { path, metadata };
        let model = keys.text(MODEL)?.unwrap_or("none");
        let pre = keys.text(PRE)?.unwrap_or("default");
        let recipe = match model {
            "gpt2" => Some(Recipe::named(pre).ok_or_else(|| unknown(&keys, PRE, pre))?),
            "llama" => None,
            other => return Err(unknown(&keys, MODEL, other)),
        };
        let token_list = TokenList::read(keys)?;
        // Without types, special tokens in a text would be split like ordinary text.
        if keys.integers(TOKEN_TYPE)?.is_none() {
            return Err(keys.missing(TOKEN_TYPE));
        }
        let special = special_tokens(&keys, &token_list)?;
        let pipeline = match recipe {
            Some(recipe) => byte_level(&token_list, recipe, path)?,
            None => sentence_piece(&keys, &token_list)?,
        };
        Self::of_pipeline(path, pipeline, special, vocab_rows)
    }
}

impl SpecialTokens {
    /// Reads the special tokens from the metadata of the GGUF file at `path`. Without a vocabulary,
    /// no token has a role.
    ///
    /// # Errors
    /// If a value has the wrong type, or an id has no token.
    pub(crate) fn of_gguf(path: &Path, metadata: &Metadata) -> Result<Self> {
        let keys = TextKeys { path, metadata };
        match metadata.get(TOKENS) {
            None => Ok(Self::default()),
            Some(_) => special_tokens(&keys, &TokenList::read(keys)?),
        }
    }
}

impl EndTokens {
    /// Reads the end tokens from the metadata of the GGUF file at `path`: those that it names, and
    /// those in its vocabulary that always end an answer.
    ///
    /// # Errors
    /// If a value has the wrong type, or an id has no token.
    pub(crate) fn of_gguf(path: &Path, metadata: &Metadata) -> Result<Self> {
        let keys = TextKeys { path, metadata };
        if metadata.get(TOKENS).is_none() {
            return Ok(Self::default());
        }
        let token_list = TokenList::read(keys)?;
        let mut tokens = Vec::new();
        for key in ENDS {
            tokens.extend(token_list.token(key)?.map(|(id, _)| id));
        }
        let named = token_list.added().filter(|(_, text, _)| END_TEXTS.contains(text));
        tokens.extend(named.map(|(id, ..)| TokenId(id)));
        Ok(Self::new(tokens))
    }
}

/// Returns the chat templates of the GGUF file at `path` by name: `tokenizer.chat_template`, and
/// possibly a separate one for tools. Without any, takes our own template for the architecture, if
/// there is one. Base models have none.
///
/// # Errors
/// If a value is not a string.
pub(crate) fn gguf_templates(path: &Path, metadata: &Metadata) -> Result<Vec<(String, String)>> {
    let keys = TextKeys { path, metadata };
    let mut sources: Vec<(String, String)> = Vec::new();
    for (name, key) in TEMPLATES {
        let Some(source) = keys.text(key)? else { continue };
        if sources.iter().all(|(known, _)| known != name) {
            sources.push((name.to_owned(), source.to_owned()));
        }
    }
    if sources.is_empty() {
        let own = keys.text(ARCHITECTURE)?.and_then(own_template);
        sources.extend(own.map(|source| ("default".to_owned(), source.to_owned())));
    }
    Ok(sources)
}

/// Returns the recommended sampling parameters in the form of a `generation_config.json`.
///
/// # Errors
/// If a value is not a finite number.
pub(crate) fn gguf_generation_config(path: &Path, metadata: &Metadata) -> Result<Json> {
    let mut json = Map::new();
    for (key, name) in SAMPLING {
        let value = match metadata.get(key) {
            None => continue,
            Some(MetadataValue::U64(value)) => json!(value),
            Some(MetadataValue::I64(value)) => json!(value),
            // Most are stored as f32: 0.6 is intended, not 0.6000000238418579.
            Some(MetadataValue::F64(value)) if value.is_finite() => json!(nearest(*value)),
            Some(MetadataValue::F64(value)) => {
                return Err(TextKeys { path, metadata }.refused(key, format!("{value}")));
            }
            Some(other) => {
                let problem = format!("{}, not a number", other.kind());
                return Err(TextKeys { path, metadata }.refused(key, problem));
            }
        };
        json.insert(name.to_owned(), value);
    }
    Ok(Json::Object(json))
}

#[expect(clippy::cast_possible_truncation, reason = "the file stores an f32")]
fn nearest(value: f64) -> f32 {
    value as f32
}

fn special_tokens(keys: &TextKeys<'_>, token_list: &TokenList<'_>) -> Result<SpecialTokens> {
    let mut roles = Vec::new();
    for (role, key) in ROLES {
        roles.extend(token_list.token(key)?.map(|(_, text)| (role, text.to_owned())));
    }
    // The default of llama.cpp for files without the key.
    let adds_bos_by_default = match keys.text(MODEL)? {
        Some("llama") => true,
        _ => keys.text(PRE)?.and_then(Recipe::named).is_some_and(|recipe| recipe.adds_bos),
    };
    let adds_bos = keys.flag(ADD_BOS)?.unwrap_or(adds_bos_by_default);
    Ok(SpecialTokens::of_roles(keys.path, roles, adds_bos))
}

fn byte_level(
    token_list: &TokenList<'_>,
    recipe: &Recipe,
    path: &Path,
) -> Result<TokenizerPipeline> {
    recipe.pipeline(path, token_list.added_tokens()?, token_list.byte_model(recipe)?, MERGES)
}

fn sentence_piece(keys: &TextKeys<'_>, token_list: &TokenList<'_>) -> Result<TokenizerPipeline> {
    if keys.flag(REMOVE_SPACES)? == Some(true) {
        return Err(keys.refused(REMOVE_SPACES, "true, which is not supported"));
    }
    let sentence_piece = SentencePieceRecipe { adds_space: keys.flag(ADD_SPACE)?.unwrap_or(true) };
    sentence_piece.pipeline(
        keys.path,
        token_list.added_tokens()?,
        token_list.piece_model()?,
        MERGES,
    )
}

fn unknown(keys: &TextKeys<'_>, key: &str, name: &str) -> Error {
    let known = match key {
        MODEL => "gpt2, llama".to_owned(),
        _ => Recipe::names(),
    };
    let problem = match name {
        "none" | "no_vocab" => "has no tokenizer".to_owned(),
        _ => format!("`{key}` is `{}`, which is not known (known: {known})", shortened(name)),
    };
    Error::UnknownTokenizer { path: keys.path.to_owned(), problem }
}
