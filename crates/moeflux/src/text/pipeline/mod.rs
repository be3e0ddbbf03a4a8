//! Turns the bytes of a `tokenizer.json`, or parts that another file gave, into the parts of a
//! tokenizer: what published files use, within limits, and nothing else.
//!
//! The tokenizers library trusts its file: some parts panic on the wrong numbers, some multiply
//! any text, some draw at random. So the file is read here, part by part, and the library gets
//! parts that were made from checked values, never the file.
//! **Invariant:** what comes out neither panics nor grows a text more than `GROWTH_MAX` times, and
//! gives the same tokens each time; what is not known here is an error that names it.

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
use crate::text::files::{one_line, shown};
use crate::text::pipeline::normalizer::Changes;
use crate::text::pipeline::pre_tokenizer::PreTokenizers;

pub(super) use crate::text::pipeline::added::{AddedTokens, Declared};
pub(super) use crate::text::pipeline::encoder::{Encoder, Markers};
pub(super) use crate::text::pipeline::model::{MERGES_MAX, Merges, Model, Vocabulary, merge_of};
pub(super) use crate::text::pipeline::post_processor::Around;
pub(super) use crate::text::pipeline::words::Stopped;

/// Most bytes of JSON in one of the four parts around the model. The largest published ones, with
/// lists of letters in their expressions, have 5 kB.
const PART_BYTES_MAX: usize = 64 << 10;
/// Most steps in a part, those of sequences in sequences together; the published ones have 10.
const STEPS_MAX: usize = 16;
/// How often a text may be multiplied by all that is replaced in it. A space becomes the three
/// bytes of U+2581 in published files, a tab four spaces; one that is put in front counts as well.
const GROWTH_MAX: usize = 16;
/// Most bytes of a text that is searched for, put in its place or put in front.
const REPLACEMENT_BYTES_MAX: usize = 256;

/// The library's tokenizer, of parts that were checked: it decodes, and knows the added tokens.
/// What comes before its model is done by an [`Encoder`].
pub(super) type Inner =
    TokenizerImpl<BPE, Normalizers, PreTokenizerWrapper, PostProcessorWrapper, Decoders>;

/// All that a file says.
#[derive(Debug)]
pub(super) struct Pipeline {
    pub(super) inner: Inner,
    pub(super) changes: Changes,
    pub(super) splits: Option<PreTokenizers>,
    pub(super) added: AddedTokens,
    /// The tokens that are put around a text.
    pub(super) around: Around,
    /// Whether each token is a string of bytes, whatever stands beside it.
    pub(super) is_byte_level: bool,
    /// How many bytes one byte of text may become before it is split.
    pub(super) growth: usize,
    pub(super) largest_id: u32,
}

/// The file. Keys that are not here have no bearing on what one text means: `truncation` and
/// `padding` fit texts into a batch.
#[derive(Deserialize)]
struct File<'a> {
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
    model: Option<Model>,
}

/// What a file says of each part, before the parts are compared with each other.
pub(super) struct Parts<'a> {
    pub(super) normalizer: Option<&'a RawValue>,
    pub(super) pre_tokenizer: Option<&'a RawValue>,
    pub(super) post_processor: Option<&'a RawValue>,
    pub(super) decoder: Option<&'a RawValue>,
    pub(super) added: AddedTokens,
    pub(super) model: Model,
    /// Where in the file the model stands.
    pub(super) model_key: &'static str,
}

impl Pipeline {
    /// Reads a file's bytes, and drops them before the library's tables are made.
    pub(super) fn parse(path: &Path, bytes: Vec<u8>) -> Result<Self> {
        let refused = |problem: String| Error::malformed(path, one_line(&problem));
        let file: File<'_> = serde_json::from_slice(&bytes)
            .map_err(|error| refused(format!("not a tokenizer: {error}")))?;
        if let Some(version) = file.version.filter(|version| version != "1.0") {
            return Err(refused(format!("unknown tokenizer version `{}`", shown(&version))));
        }
        let around = [file.normalizer, file.pre_tokenizer, file.post_processor, file.decoder];
        let around = around.map(|json| json.map(RawValue::to_owned));
        let added = file.added_tokens.unwrap_or_default();
        let model = file.model.ok_or_else(|| refused("not a tokenizer: no `model`".to_owned()))?;
        drop(bytes);
        let [normalizer, pre_tokenizer, post_processor, decoder] = around.each_ref();
        let model_key = "model";
        Self::build(
            path,
            Parts {
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

    /// Makes a tokenizer of what was read.
    pub(super) fn build(path: &Path, parts: Parts<'_>) -> Result<Self> {
        let Parts { added, model, model_key, .. } = parts;
        let refused = |problem: String| Error::malformed(path, one_line(&problem));
        let in_part = |name: &'static str| {
            move |problem: String| Error::malformed(path, one_line(&format!("`{name}`: {problem}")))
        };
        let normalizer = normalizer::read(parts.normalizer).map_err(in_part("normalizer"))?;
        let splits = pre_tokenizer::read(parts.pre_tokenizer).map_err(in_part("pre_tokenizer"))?;
        let around =
            post_processor::read(parts.post_processor).map_err(in_part("post_processor"))?;
        let decoder = decoder::read(parts.decoder).map_err(in_part("decoder"))?;
        let vocabulary = model.vocabulary();
        added.check(vocabulary).map_err(in_part("added_tokens"))?;
        around.check(vocabulary, &added).map_err(in_part("post_processor"))?;
        let largest_id = vocabulary.largest_id();
        let bpe = model.build().map_err(in_part(model_key))?;
        let mut inner = Inner::new(bpe);
        let library = |error: tokenizers::Error| refused(format!("not a tokenizer: {error}"));
        inner.with_normalizer(normalizer.steps).map_err(library)?;
        inner.with_decoder(decoder.steps);
        added.add_to(path, &mut inner)?;
        Ok(Self {
            inner,
            changes: normalizer.changes,
            splits,
            added,
            around,
            is_byte_level: decoder.is_byte_level,
            growth: normalizer.growth,
            largest_id,
        })
    }
}

/// A pattern as the files write it.
#[derive(Deserialize)]
enum PatternText {
    String(String),
    Regex(String),
}

/// A part's JSON, if the file has one that is no longer than a part may be.
fn part<'a, T: Deserialize<'a>>(
    json: Option<&'a RawValue>,
) -> std::result::Result<Option<T>, String> {
    let Some(json) = json.map(RawValue::get) else { return Ok(None) };
    if json.len() > PART_BYTES_MAX {
        return Err(format!("{} bytes of JSON; the limit is {PART_BYTES_MAX}", json.len()));
    }
    serde_json::from_str(json).map(Some).map_err(|error| error.to_string())
}

/// Adds a step to a part that has room for it.
fn add_step<T>(steps: &mut Vec<T>, step: T) -> std::result::Result<(), String> {
    if steps.len() >= STEPS_MAX {
        return Err(format!("more than {STEPS_MAX} steps"));
    }
    steps.push(step);
    Ok(())
}

/// The text that a replacement looks for and how often it multiplies a text.
fn replaced(pattern: PatternText, content: &str) -> std::result::Result<(String, usize), String> {
    let PatternText::String(text) = pattern else {
        return Err("replacing the matches of an expression is not supported".to_owned());
    };
    if text.is_empty() {
        return Err("replacing nothing with something".to_owned());
    }
    for text in [text.as_str(), content] {
        check_length(text)?;
    }
    let growth = longest_form(content).div_ceil(text.len()).max(1);
    Ok((text, growth))
}

/// The bytes of a text in the longer of its forms: a step behind may normalize what one puts in.
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

/// What a text grows by when it is multiplied once more.
fn multiplied(growth: usize, factor: usize) -> std::result::Result<usize, String> {
    let product = growth.saturating_mul(factor);
    if product > GROWTH_MAX {
        return Err(format!(
            "its replacements make a text {product} times as long; the limit is {GROWTH_MAX}"
        ));
    }
    Ok(product)
}
