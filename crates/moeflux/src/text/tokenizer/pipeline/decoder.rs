//! Parses `decoder` into the library's steps, which turn the texts of tokens into one text.
//!
//! **Invariant:** no step fails or panics, and all together multiply a text at most `GROWTH_MAX`
//! times.

use serde::Deserialize;
use serde_json::value::RawValue;
use tokenizers::DecoderWrapper;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence;
use tokenizers::decoders::strip::Strip;
use tokenizers::normalizers::Replace;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::text::tokenizer::pipeline::pre_tokenizer::{MetaspaceJson, metaspace};
use crate::text::tokenizer::pipeline::{PatternJson, add_step, multiplied, part, replaced};

/// The decoding steps, if there are any.
pub(super) struct Decoder {
    pub(super) steps: Option<Sequence>,
    /// Whether tokens are written in the byte alphabet and there is no other step.
    pub(super) is_byte_level: bool,
}

/// A step in its JSON form.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum DecoderJson {
    // Its fields concern encoding only.
    ByteLevel,
    ByteFallback,
    Fuse,
    Metaspace(MetaspaceJson),
    Replace { pattern: PatternJson, content: String },
    Strip { content: char, start: usize, stop: usize },
    Sequence { decoders: Vec<DecoderJson> },
}

/// Parses the part.
pub(super) fn read(json: Option<&RawValue>) -> Result<Decoder, String> {
    let mut steps = Vec::new();
    let mut growth = 1;
    if let Some(step) = part::<DecoderJson>(json)? {
        add(&mut steps, &mut growth, step)?;
    }
    let is_byte_level = matches!(steps[..], [DecoderWrapper::ByteLevel(_)]);
    let steps = (!steps.is_empty()).then(|| Sequence::new(steps));
    Ok(Decoder { steps, is_byte_level })
}

fn add(
    steps: &mut Vec<DecoderWrapper>,
    growth: &mut usize,
    step: DecoderJson,
) -> Result<(), String> {
    let step: DecoderWrapper = match step {
        DecoderJson::ByteLevel => ByteLevel::default().into(),
        DecoderJson::ByteFallback => ByteFallback::default().into(),
        DecoderJson::Fuse => Fuse::default().into(),
        DecoderJson::Metaspace(text) => metaspace(&text)?.into(),
        DecoderJson::Replace { pattern, content } => {
            let (pattern, factor) = replaced(pattern, &content)?;
            *growth = multiplied(*growth, factor)?;
            Replace::new(pattern, content).map_err(|error| error.to_string())?.into()
        }
        // With `stop` the library would cut more characters than a token has.
        DecoderJson::Strip { stop: 1.., .. } => {
            return Err("cutting characters from the end of tokens is not supported".to_owned());
        }
        DecoderJson::Strip { content, start, stop } => Strip::new(content, start, stop).into(),
        DecoderJson::Sequence { decoders } => {
            return decoders.into_iter().try_for_each(|step| add(steps, growth, step));
        }
    };
    add_step(steps, step)
}
