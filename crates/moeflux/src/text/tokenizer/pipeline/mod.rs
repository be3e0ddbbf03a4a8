//! Builds a tokenizer from the bytes of a `tokenizer.json`, or from parts of another file. Only the
//! features of published files are supported, within limits.
//!
//! The tokenizers library trusts its file: some parts panic on wrong numbers, some multiply any
//! text, some are random. So each part is parsed here, and the library gets parts built from
//! checked values, never the file. **Invariant:** the result does not panic, multiplies a text at
//! most `GROWTH_MAX` times, and is deterministic; an unknown feature is an error that names it.

mod model;
mod added;
mod normalizer;
mod post_processor;
mod groups;
mod pre_tokenizer;
mod decoder;
mod finder;
mod words;
mod encoder;

use std::path::Path;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::Sequence as Normalizers;
use tokenizers::{NormalizedString, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl};

use crate::error::{Error, Result};
use crate::text::files::{one_line, shortened};
use crate::text::tokenizer::pipeline::normalizer::TextChanges;
use crate::text::tokenizer::pipeline::pre_tokenizer::PreTokenizers;

pub(in crate::text) use crate::text::tokenizer::pipeline::added::{AddedTokens, DeclaredToken};
pub(in crate::text) use crate::text::tokenizer::pipeline::encoder::{Encoder, Markers};
pub(in crate::text) use crate::text::tokenizer::pipeline::model::{
    BpeModel, MERGES_MAX, Merges, VocabularyMap, merge_of,
};
pub(in crate::text) use crate::text::tokenizer::pipeline::post_processor::SurroundingTokens;
pub(in crate::text) use crate::text::tokenizer::pipeline::words::EncodeError;

/// Maximum bytes of JSON in each of the four parts around the model. The largest published ones,
/// with lists of letters in their expressions, have 5 kB.
const PART_BYTES_MAX: usize = 64 << 10;
/// Maximum steps in a part, nested sequences included; the published ones have 10.
const STEPS_MAX: usize = 16;
/// Maximum factor by which all replacements together multiply a text. In published files a space
/// becomes the three bytes of U+2581, and a tab four spaces; a prepended text counts too.
const GROWTH_MAX: usize = 16;
/// Maximum bytes of a text that is searched for, inserted or prepended.
const REPLACEMENT_BYTES_MAX: usize = 256;

/// The library's tokenizer, built from checked parts. It decodes, and has the added tokens. An
/// [`Encoder`] performs all steps before the model.
pub(in crate::text) type LibraryTokenizer =
    TokenizerImpl<BPE, Normalizers, PreTokenizerWrapper, PostProcessorWrapper, Decoders>;

/// The parsed contents of a file.
#[derive(Debug)]
pub(in crate::text) struct TokenizerPipeline {
    pub(in crate::text) inner: LibraryTokenizer,
    pub(in crate::text) changes: TextChanges,
    pub(in crate::text) splits: Option<PreTokenizers>,
    pub(in crate::text) added: AddedTokens,
    /// Tokens added around a text.
    pub(in crate::text) surrounding: SurroundingTokens,
    /// Whether each token stands for the same bytes in any context.
    pub(in crate::text) is_byte_level: bool,
    /// Maximum factor by which a text grows before it is split.
    pub(in crate::text) growth: usize,
    pub(in crate::text) largest_id: u32,
}

/// A `tokenizer.json`. Other keys do not affect the encoding of a single text: `truncation` and
/// `padding` fit texts into a batch.
#[derive(Deserialize)]
struct TokenizerFile<'a> {
    version: Option<String>,
    #[serde(borrow, default)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    post_processor: Option<&'a RawValue>,
    #[serde(borrow, default)]
    decoder: Option<&'a RawValue>,
    #[serde(default)]
    added_tokens: Option<AddedTokens>,
    #[serde(default)]
    model: Option<BpeModel>,
}

/// The parts of a file, before they are checked against each other.
pub(in crate::text) struct TokenizerParts<'a> {
    pub(in crate::text) normalizer: Option<&'a RawValue>,
    pub(in crate::text) pre_tokenizer: Option<&'a RawValue>,
    pub(in crate::text) post_processor: Option<&'a RawValue>,
    pub(in crate::text) decoder: Option<&'a RawValue>,
    pub(in crate::text) added: AddedTokens,
    pub(in crate::text) model: BpeModel,
    /// Key of the model in the file.
    pub(in crate::text) model_key: &'static str,
}

impl TokenizerPipeline {
    /// Parses a file's bytes, and frees them before the library's tables are built.
    pub(in crate::text) fn parse(path: &Path, bytes: Vec<u8>) -> Result<Self> {
        let refused = |problem: String| Error::malformed(path, one_line(&problem));
        let file: TokenizerFile<'_> = serde_json::from_slice(&bytes)
            .map_err(|error| refused(format!("not a tokenizer: {error}")))?;
        if let Some(version) = file.version.filter(|version| version != "1.0") {
            return Err(refused(format!("unknown tokenizer version `{}`", shortened(&version))));
        }
        let raw_parts = [file.normalizer, file.pre_tokenizer, file.post_processor, file.decoder];
        let raw_parts = raw_parts.map(|json| json.map(RawValue::to_owned));
        let added = file.added_tokens.unwrap_or_default();
        let model = file.model.ok_or_else(|| refused("not a tokenizer: no `model`".to_owned()))?;
        drop(bytes);
        let [normalizer, pre_tokenizer, post_processor, decoder] = raw_parts.each_ref();
        let model_key = "model";
        Self::build(
            path,
            TokenizerParts {
                normalizer: normalizer.as_deref(),
                pre_tokenizer: pre_tokenizer.as_deref(),
                post_processor: post_processor.as_deref(),
                decoder: decoder.as_deref(),
                added,
                model,
                model_key,
            },
        )
    }

    /// Builds a tokenizer from its parts.
    pub(in crate::text) fn build(path: &Path, parts: TokenizerParts<'_>) -> Result<Self> {
        let TokenizerParts { added, model, model_key, .. } = parts;
        let refused = |problem: String| Error::malformed(path, one_line(&problem));
        let in_part = |name: &'static str| {
            move |problem: String| Error::malformed(path, one_line(&format!("`{name}`: {problem}")))
        };
        let normalizer = normalizer::read(parts.normalizer).map_err(in_part("normalizer"))?;
        let splits = pre_tokenizer::read(parts.pre_tokenizer).map_err(in_part("pre_tokenizer"))?;
        let surrounding =
            post_processor::read(parts.post_processor).map_err(in_part("post_processor"))?;
        let decoder = decoder::read(parts.decoder).map_err(in_part("decoder"))?;
        let vocabulary = model.vocabulary();
        added.check(vocabulary).map_err(in_part("added_tokens"))?;
        surrounding.check(vocabulary, &added).map_err(in_part("post_processor"))?;
        let largest_id = vocabulary.largest_id();
        let bpe = model.build().map_err(in_part(model_key))?;
        let mut inner = LibraryTokenizer::new(bpe);
        let library = |error: tokenizers::Error| refused(format!("not a tokenizer: {error}"));
        inner.with_normalizer(normalizer.steps).map_err(library)?;
        inner.with_decoder(decoder.steps);
        added.add_to(path, &mut inner)?;
        Ok(Self {
            inner,
            changes: normalizer.changes,
            splits,
            added,
            surrounding,
            is_byte_level: decoder.is_byte_level,
            growth: normalizer.growth,
            largest_id,
        })
    }
}

/// A pattern in its JSON form.
#[derive(Deserialize)]
enum PatternJson {
    String(String),
    Regex(String),
}

/// Parses a part's JSON, if present and within its limit.
fn part<'a, T: Deserialize<'a>>(
    json: Option<&'a RawValue>,
) -> std::result::Result<Option<T>, String> {
    let Some(json) = json.map(RawValue::get) else { return Ok(None) };
    if json.len() > PART_BYTES_MAX {
        return Err(format!("{} bytes of JSON; the limit is {PART_BYTES_MAX}", json.len()));
    }
    serde_json::from_str(json).map(Some).map_err(|error| error.to_string())
}

/// Adds a step to a part, within its limit.
fn add_step<T>(steps: &mut Vec<T>, step: T) -> std::result::Result<(), String> {
    if steps.len() >= STEPS_MAX {
        return Err(format!("more than {STEPS_MAX} steps"));
    }
    steps.push(step);
    Ok(())
}

/// Returns the text that a replacement searches for, and the factor by which it multiplies a text.
fn replaced(pattern: PatternJson, content: &str) -> std::result::Result<(String, usize), String> {
    let PatternJson::String(text) = pattern else {
        return Err("replacing the matches of an expression is not supported".to_owned());
    };
    if text.is_empty() {
        return Err("a replacement with an empty pattern".to_owned());
    }
    for text in [text.as_str(), content] {
        check_length(text)?;
    }
    let growth = longest_form(content).div_ceil(text.len()).max(1);
    Ok((text, growth))
}

/// Returns the length of a text in its longer form: a later step may normalise the inserted text.
fn longest_form(text: &str) -> usize {
    let mut form = NormalizedString::from(text);
    form.nfkd();
    form.get().len().max(text.len())
}

fn check_length(text: &str) -> std::result::Result<(), String> {
    if text.len() > REPLACEMENT_BYTES_MAX {
        return Err(format!(
            "a replacement of {} bytes; the limit is {REPLACEMENT_BYTES_MAX}",
            text.len()
        ));
    }
    Ok(())
}

/// Multiplies a growth factor, within its limit.
fn multiplied(growth: usize, factor: usize) -> std::result::Result<usize, String> {
    let product = growth.saturating_mul(factor);
    if product > GROWTH_MAX {
        return Err(format!(
            "its replacements make a text {product} times as long; the limit is {GROWTH_MAX}"
        ));
    }
    Ok(product)
}
